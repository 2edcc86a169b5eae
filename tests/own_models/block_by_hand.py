"""Exercises 3 and 4 of Week 1 Day 2 as a student writes them, with names of its own."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, d, n_heads, dropout):
        super().__init__()
        self.n_heads = n_heads
        self.W_q = nn.Linear(d, d)
        self.W_k = nn.Linear(d, d)
        self.W_v = nn.Linear(d, d)
        self.W_o = nn.Linear(d, d)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        B, T, d = x.shape
        d_k = d // self.n_heads
        q, k, v = (
            W(x).view(B, T, self.n_heads, d_k).transpose(1, 2)
            for W in (self.W_q, self.W_k, self.W_v)
        )
        S = q @ k.transpose(-2, -1) / d_k**0.5
        S = S.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        A = self.drop(S.softmax(dim=-1))
        return self.W_o((A @ v).transpose(1, 2).reshape(B, T, d))


class FeedForward(nn.Module):
    def __init__(self, d, activation="gelu"):
        super().__init__()
        self.activation = activation
        if activation == "swiglu":
            hidden = round(8 * d / 3)
            self.gate = nn.Linear(d, hidden, bias=False)
            self.up = nn.Linear(d, hidden, bias=False)
            self.down = nn.Linear(hidden, d, bias=False)
        else:
            self.up = nn.Linear(d, 4 * d)
            self.down = nn.Linear(4 * d, d)

    def forward(self, x):
        if self.activation == "swiglu":
            return self.down(F.silu(self.gate(x)) * self.up(x))
        act = {"relu": F.relu, "gelu": F.gelu}[self.activation]
        return self.down(act(self.up(x)))


class Block(nn.Module):
    def __init__(self, d, n_heads, n_layers, activation="gelu", dropout=0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(d)
        self.attn = Attention(d, n_heads, dropout)
        self.norm2 = nn.LayerNorm(d)
        self.ffn = FeedForward(d, activation)
        self.drop = nn.Dropout(dropout)
        with torch.no_grad():
            for last in (self.attn.W_o, self.ffn.down):
                last.weight /= math.sqrt(2 * n_layers)

    def forward(self, x):
        x = x + self.drop(self.attn(self.norm1(x)))
        return x + self.drop(self.ffn(self.norm2(x)))


class SinusoidalPositions(nn.Module):
    def __init__(self, d, max_len=4096, base=10000.0):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        w = torch.exp(-math.log(base) * torch.arange(0, d, 2) / d)
        pe = torch.zeros(max_len, d)
        pe[:, 0::2] = torch.sin(pos * w)
        pe[:, 1::2] = torch.cos(pos * w)
        self.register_buffer("pe", pe, persistent=False)

    def forward(self, x):
        return x + self.pe[: x.shape[1]]
