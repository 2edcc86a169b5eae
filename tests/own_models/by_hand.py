"""A file as a student writes it: steps spelt out, names of its own where the contract has none.

tests/test_own_models.py plants the mistakes in it.
"""

import math

import torch
import torch.nn as nn


class LSTMCell(nn.Module):
    def __init__(self, input_size, hidden_size, forget_bias=None):
        super().__init__()
        self.H = hidden_size
        bound = hidden_size**-0.5
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden_size))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden_size))
        for p in self.parameters():
            nn.init.uniform_(p, -bound, bound)
        if forget_bias is not None:
            with torch.no_grad():
                self.bias_ih[hidden_size : 2 * hidden_size] = forget_bias
                self.bias_hh[hidden_size : 2 * hidden_size] = 0

    def forward(self, x, state=None):
        if state is None:
            h = torch.zeros(x.shape[0], self.H)
            c = torch.zeros(x.shape[0], self.H)
        else:
            h, c = state
        z = x @ self.weight_ih.T + self.bias_ih + h @ self.weight_hh.T + self.bias_hh
        i, f, g, o = z.chunk(4, dim=1)
        i = torch.sigmoid(i)
        f = torch.sigmoid(f)
        o = torch.sigmoid(o)
        g = torch.tanh(g)
        c = f * c + i * g
        h = o * torch.tanh(c)
        return h, c


class LSTM(nn.Module):
    def __init__(self, input_size, hidden_size, forget_bias=None):
        super().__init__()
        self.step = LSTMCell(input_size, hidden_size, forget_bias)

    def forward(self, x, state=None):
        hs = []
        for t in range(x.shape[1]):
            state = self.step(x[:, t], state)
            hs.append(state[0])
        return torch.stack(hs, dim=1), state


def sinusoidal_positions(max_len, d_model, base=10000.0):
    pos = torch.arange(max_len).unsqueeze(1)
    w = torch.exp(-math.log(base) * torch.arange(0, d_model, 2) / d_model)
    pe = torch.zeros(max_len, d_model)
    pe[:, 0::2] = torch.sin(pos * w)
    pe[:, 1::2] = torch.cos(pos * w)
    return pe


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads, causal=True):
        super().__init__()
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.causal = causal
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, d = x.shape
        q = self.W_q(x).view(B, T, self.n_heads, self.d_k).transpose(1, 2)
        k = self.W_k(x).view(B, T, self.n_heads, self.d_k).transpose(1, 2)
        v = self.W_v(x).view(B, T, self.n_heads, self.d_k).transpose(1, 2)
        S = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if self.causal:
            future = torch.ones(T, T).triu(1).bool()
            S = S.masked_fill(future, float("-inf"))
        A = torch.softmax(S, dim=-1)
        out = (A @ v).transpose(1, 2).reshape(B, T, d)
        return self.W_o(out)


class LayerNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(d))
        self.beta = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        std = x.std(dim=-1, keepdim=True, unbiased=False)
        return self.gamma * (x - mean) / (std + 1e-6) + self.beta


class Block(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.mha = MultiHeadAttention(d_model, n_heads)
        self.norm_a = LayerNorm(d_model)
        self.norm_b = LayerNorm(d_model)
        self.up = nn.Linear(d_model, 4 * d_model)
        self.down = nn.Linear(4 * d_model, d_model)
        self.act = nn.GELU()

    def forward(self, x):
        x = x + self.mha(self.norm_a(x))
        return x + self.down(self.act(self.up(self.norm_b(x))))


class GPT(nn.Module):
    def __init__(self, vocab_size, d_model, n_layers, n_heads, max_len=120):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, d_model)
        self.pos = nn.Embedding(max_len, d_model)
        self.layers = nn.ModuleList([Block(d_model, n_heads) for _ in range(n_layers)])
        self.norm = LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    @torch.no_grad()
    def generate(self, ids, n_new, temperature=1.0):
        for _ in range(n_new):
            logits = self(ids)[:, -1]
            if temperature == 0:
                new = logits.argmax(dim=-1, keepdim=True)
            else:
                new = torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1)
            ids = torch.cat([ids, new], dim=1)
        return ids
