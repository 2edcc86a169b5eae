"""The same contract met with torch's own parts inside."""

import torch
from torch import nn
from torch.nn import functional as F


class LSTMCell(nn.Module):
    def __init__(self, n_in, n_hidden, forget_bias=None):
        super().__init__()
        self.inner = nn.LSTMCell(n_in, n_hidden)
        if forget_bias is not None:
            half = torch.full((n_hidden,), forget_bias / 2)
            for bias in (self.inner.bias_ih, self.inner.bias_hh):
                bias.data[n_hidden : 2 * n_hidden] = half

    def forward(self, x, state=None):
        return self.inner(x, state)


class MultiHeadAttention(nn.Module):
    def __init__(self, width, heads, causal=True, p=0.1):
        super().__init__()
        self.heads, self.causal, self.p = heads, causal, p
        for name in "W_v", "W_o", "W_k", "W_q":
            self.add_module(name, nn.Linear(width, width))

    def forward(self, x):
        q, k, v = (
            torch.stack(W(x).chunk(self.heads, dim=-1), dim=1)
            for W in (self.W_q, self.W_k, self.W_v)
        )
        p = self.p if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=p)
        return self.W_o(torch.cat(out.unbind(dim=1), dim=-1))


class Block(nn.Module):
    def __init__(self, width, heads, norm="pre", activation="gelu"):
        super().__init__()
        self.norm_first = norm == "pre"
        self.ln_ffn, self.ln_attn = nn.LayerNorm(width), nn.LayerNorm(width)  # in this order
        act = {"gelu": nn.GELU, "relu": nn.ReLU}[activation]()
        self.ffn = nn.Sequential(
            nn.Linear(width, 4 * width), act, nn.Linear(4 * width, width), nn.Dropout(0.1)
        )
        self.attention = MultiHeadAttention(width, heads)  # a module, not the contract's method

    def forward(self, x):
        if self.norm_first:
            x = x + self.attention(self.ln_attn(x))
            return x + self.ffn(self.ln_ffn(x))
        x = self.ln_attn(x + self.attention(x))
        return self.ln_ffn(x + self.ffn(x))


class GPT(nn.Module):
    def __init__(self, vocab_size, width, depth, heads, max_len=120, norm="pre"):
        super().__init__()
        self.register_buffer("places", torch.arange(max_len), persistent=False)
        self.positions = nn.Embedding(max_len, width)
        self.body = nn.Sequential(*(Block(width, heads, norm) for _ in range(depth)))
        self.last = nn.LayerNorm(width) if norm == "pre" else nn.Identity()
        self.words = nn.Embedding(vocab_size, width)

    def forward(self, ids):
        x = self.words(ids) + self.positions(self.places[: ids.size(1)])
        return self.last(self.body(x)) @ self.words.weight.T
