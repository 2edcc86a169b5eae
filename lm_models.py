"""Every model of Lecture 2, written out: Elman RNN, LSTM, attention, Transformer block, GPT.

Names follow the lecture: W_hx, W_hh, i f g o, q k v, S, M, d_k. Sequences are batch first.
B batch, T time, E input size, H hidden size, d d_model, h heads, d_k = d/h, V vocabulary.
A line ends with its tensor's shape where the shape changes. Positions count from 0.

What this is not: fast. Each model is its formula, tested against torch.nn or Hugging Face.
"""

import math
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

import needs


# ── Recurrent networks (§2) ──────────────────────────────────────────────────────────────────────
class ElmanRNN(nn.Module):
    """h_t = tanh(W_hx x_t + W_hh h_{t-1} + b_h), with one bias (nn.RNN has two) (§2.1).

    forward: x (B, T, E), h_0 (B, H) or None for zeros → all h (B, T, H), the last h (B, H).
    """

    def __init__(self, input_size, hidden_size):
        super().__init__()
        needs.whole(input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.W_hx = _uniform(hidden_size, hidden_size, input_size)  # (H, E)
        self.W_hh = _uniform(hidden_size, hidden_size, hidden_size)  # (H, H)
        self.b_h = _uniform(hidden_size, hidden_size)  # (H,)

    def forward(self, x, h=None):
        needs.sequence(x, self.W_hx)
        h = needs.state("h", h, x[:, 0], self.hidden_size)  # (B, H)
        outputs = []
        for x_t in x.unbind(dim=1):  # T times (B, E)
            h = torch.tanh(x_t @ self.W_hx.T + h @ self.W_hh.T + self.b_h)  # (B, H)
            outputs.append(h)
        return torch.stack(outputs, dim=1), h  # (B, T, H), (B, H)


class LSTMCell(nn.Module):
    """One step of an LSTM without peepholes (§2.4); nn.LSTMCell's state_dict loads as it is.

    The rows of weight_ih (4H, E) and weight_hh (4H, H) hold the gates in torch's order i, f, g, o.
    forget_bias: what the forget gate's two biases add up to at the start (None: torch's own start).
    forward: x (B, E), (h, c) each (B, H) or None for zeros → (h, c).
    """

    def __init__(self, input_size, hidden_size, forget_bias=None):
        super().__init__()
        needs.whole(input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.weight_ih = _uniform(hidden_size, 4 * hidden_size, input_size)  # (4H, E)
        self.weight_hh = _uniform(hidden_size, 4 * hidden_size, hidden_size)  # (4H, H)
        self.bias_ih = _uniform(hidden_size, 4 * hidden_size)  # (4H,)
        self.bias_hh = _uniform(hidden_size, 4 * hidden_size)  # (4H,)
        if forget_bias is not None:
            needs.number("forget_bias", forget_bias)
            self.bias_ih.data[hidden_size : 2 * hidden_size] = forget_bias
            self.bias_hh.data[hidden_size : 2 * hidden_size] = 0.0

    def forward(self, x, state=None):
        needs.step(x, state, self.weight_ih)
        h, c = (None, None) if state is None else state
        h = needs.state("h", h, x, self.hidden_size)  # (B, H), zeros for None
        c = needs.state("c", c, x, self.hidden_size)  # (B, H)
        gates = x @ self.weight_ih.T + self.bias_ih + h @ self.weight_hh.T + self.bias_hh  # (B, 4H)
        a_i, a_f, a_g, a_o = gates.chunk(4, dim=1)  # (B, H) each, before σ and tanh
        i, f, o = torch.sigmoid(a_i), torch.sigmoid(a_f), torch.sigmoid(a_o)
        g = torch.tanh(a_g)  # the candidate, the lecture's c̃
        c = f * c + i * g  # the additive update
        h = o * torch.tanh(c)
        return h, c


class LSTM(nn.Module):
    """LSTMCell over a sequence: x (B, T, E) → all h (B, T, H), the last (h, c), each (B, H)."""

    def __init__(self, input_size, hidden_size, forget_bias=None):
        super().__init__()
        self.cell = LSTMCell(input_size, hidden_size, forget_bias)

    def forward(self, x, state=None):
        needs.sequence(x, self.cell.weight_ih)
        outputs = []
        for x_t in x.unbind(dim=1):  # T times (B, E); step t has to wait for step t-1
            state = self.cell(x_t, state)
            outputs.append(state[0])
        return torch.stack(outputs, dim=1), state  # (B, T, H), ((B, H), (B, H))


def _uniform(fan, *shape):
    """torch's own start for recurrent weights: U(-1/√fan, 1/√fan)."""
    return nn.Parameter(torch.empty(shape).uniform_(-1 / math.sqrt(fan), 1 / math.sqrt(fan)))


class RNNLM(nn.Module):
    """Lecture 1's language model: embedding, Elman RNN, linear output; ids (B, T) → (B, T, V)."""

    def __init__(self, vocab_size, embed_size=32, hidden_size=64):
        super().__init__()
        needs.whole(vocab_size=vocab_size, embed_size=embed_size, hidden_size=hidden_size)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = ElmanRNN(embed_size, hidden_size)
        self.output = nn.Linear(hidden_size, vocab_size)

    def forward(self, ids):
        needs.ids(ids, self.embedding.num_embeddings)
        h, _ = self.rnn(self.embedding(ids))  # (B, T, H)
        return self.output(h)  # (B, T, V)


class LSTMLM(RNNLM):
    """The same with an LSTM in place of the Elman RNN (§2.5): ids (B, T) → logits (B, T, V)."""

    def __init__(self, vocab_size, embed_size=32, hidden_size=64, forget_bias=None):
        super().__init__(vocab_size, embed_size, hidden_size)
        self.rnn = LSTM(embed_size, hidden_size, forget_bias)


# ── Attention (§3) ───────────────────────────────────────────────────────────────────────────────
def sinusoidal_positions(max_len, d_model, base=10000.0, dtype=None):
    """PE[p, 2i] = sin(p ω_i), PE[p, 2i+1] = cos(p ω_i), ω_i = base^(-2i/d) (§3.9) → (max_len, d).

    Computed in float64, as p ω_i is large far out; returned as dtype (None: torch's default).
    """
    needs.whole(max_len=max_len, d_model=d_model)
    needs.that(d_model % 2 == 0, f"d_model must be even (pairs of sin and cos), got {d_model}")
    needs.positive("base", base)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    needs.float_dtype(dtype)
    p = torch.arange(max_len, dtype=torch.float64).unsqueeze(1)  # (max_len, 1)
    omega = base ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)  # (d/2,)
    pairs = torch.stack([torch.sin(p * omega), torch.cos(p * omega)], dim=-1)  # (max_len, d/2, 2)
    return pairs.flatten(1).to(dtype)  # (max_len, d)


class MultiHeadAttention(nn.Module):
    """softmax(QKᵀ/√d_k + M) V in h heads of d_k = d/h dimensions (§3.3–3.8).

    extra_mask: added to every head's scores; None, a float tensor that broadcasts to (B, h, T, T)
    with 0 = may look and -inf = cut, or a function of T that returns one.
    forward: x (B, T, d) → (B, T, d). attention(x): the weights (B, h, T, T), row t for query t.
    """

    def __init__(self, d_model, n_heads, causal=True):
        super().__init__()
        needs.whole(d_model=d_model, n_heads=n_heads)
        needs.divisor("n_heads", n_heads, "d_model", d_model)
        self.d_model, self.n_heads, self.d_k = d_model, n_heads, d_model // n_heads
        self.causal, self.extra_mask = causal, None
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def attention(self, x):
        needs.sequence(x, self.W_q.weight)
        q, k = self._split(self.W_q(x)), self._split(self.W_k(x))  # (B, h, T, d_k)
        S = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)  # (B, h, T, T)
        return torch.softmax(S + self._mask(S), dim=-1)  # over keys: each row sums to 1

    def forward(self, x):
        A = self.attention(x)  # (B, h, T, T)
        v = self._split(self.W_v(x))  # (B, h, T, d_k)
        heads = A @ v  # (B, h, T, d_k)
        return self.W_o(heads.transpose(1, 2).flatten(2))  # (B, T, d)

    def _split(self, x):
        """One vector of d numbers becomes h vectors of d_k."""
        return x.unflatten(-1, (self.n_heads, self.d_k)).transpose(1, 2)  # (B, h, T, d_k)

    def _mask(self, S):
        """M for the scores S: -inf above the diagonal if causal, plus extra_mask (§3.7)."""
        T = S.shape[-1]
        M = S.new_zeros(T, T)
        if self.causal:
            M = torch.full_like(M, -torch.inf).triu(1)  # query t may look at keys j <= t
        if self.extra_mask is None:
            return M
        extra = self.extra_mask(T) if callable(self.extra_mask) else self.extra_mask
        needs.mask(extra, S)
        return needs.sight(M + extra.to(S))  # up to (B, h, T, T)


# ── The Transformer (§4) ─────────────────────────────────────────────────────────────────────────
ACTIVATIONS = {"gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh")}  # GPT-2: tanh
ACTIVATIONS |= {"relu": F.relu, "swiglu": F.silu}  # SiLU is Swish, gated by a third matrix


class FeedForward(nn.Module):
    """W_2 act(W_1 x + b_1) + b_2 at each position, or SwiGLU: W_2 (Swish(W_1 x) ⊙ W_3 x) (§4.2).

    d_ff: 4d by default; for SwiGLU 8d/3 rounded, so that three matrices without biases hold the
    same 8d² parameters (Week 1 Day 2, §1.4). forward: (B, T, d) → (B, T, d).
    """

    def __init__(self, d_model, d_ff=None, activation="gelu"):
        super().__init__()
        needs.choice("activation", activation, ACTIVATIONS)
        needs.whole(d_model=d_model)
        gated = activation == "swiglu"
        if d_ff is None:
            d_ff = round(8 * d_model / 3) if gated else 4 * d_model
        needs.whole(d_ff=d_ff)
        self.d_model, self.d_ff, self.activation = d_model, d_ff, activation
        self.W_1 = nn.Linear(d_model, d_ff, bias=not gated)
        self.W_2 = nn.Linear(d_ff, d_model, bias=not gated)
        self.W_3 = nn.Linear(d_model, d_ff, bias=False) if gated else None

    def forward(self, x):
        needs.sequence(x, self.W_1.weight)
        hidden = ACTIVATIONS[self.activation](self.W_1(x))  # (B, T, d_ff)
        if self.W_3 is not None:
            hidden = hidden * self.W_3(x)
        return self.W_2(hidden)  # (B, T, d)


class Block(nn.Module):
    """Attention and feed-forward, each with a residual connection and a LayerNorm (§4.2–4.5).

    norm "pre":  a = x + attn(LN_1(x)),  out = a + ffn(LN_2(a))   no norm on the residual path
    norm "post": a = LN_1(x + attn(x)),  out = LN_2(a + ffn(a))   the original Transformer
    forward: (B, T, d) → (B, T, d). attention(x): this block's weights (B, h, T, T).
    """

    def __init__(self, d_model, n_heads, norm="pre", activation="gelu", causal=True):
        super().__init__()
        needs.choice("norm", norm, ("pre", "post"))
        self.norm = norm
        self.attn = MultiHeadAttention(d_model, n_heads, causal)
        self.ffn = FeedForward(d_model, activation=activation)
        self.ln_1, self.ln_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x):
        needs.sequence(x, self.attn.W_q.weight)
        if self.norm == "pre":
            a = x + self.attn(self.ln_1(x))
            return a + self.ffn(self.ln_2(a))
        a = self.ln_1(x + self.attn(x))
        return self.ln_2(a + self.ffn(a))

    def attention(self, x):
        needs.sequence(x, self.attn.W_q.weight)
        return self.attn.attention(self.ln_1(x) if self.norm == "pre" else x)  # (B, h, T, T)


class GPT(nn.Module):
    """Embedding + positions, n_layers causal blocks, final LN (pre-norm), output tied (§4.6).

    positions: "learned" (a table), "sinusoidal" (fixed) or "none" (the causal mask alone).
    Matrices and embeddings start from N(0, 0.02²), biases from 0; GPT-2 also divides W_o and
    W_2 by √(2 n_layers) at the start.
    forward: ids (B, T) → logits (B, T, V), with T up to max_len.
    """

    def __init__(self, vocab_size, d_model, n_layers, n_heads, max_len=120,
                 positions="learned", norm="pre", activation="gelu"):  # fmt: skip
        super().__init__()
        needs.whole(vocab_size=vocab_size, d_model=d_model, n_layers=n_layers, max_len=max_len)
        needs.choice("positions", positions, ("learned", "sinusoidal", "none"))
        self.vocab_size, self.max_len, self.positions = vocab_size, max_len, positions
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        if positions == "learned":
            self.position_embedding = nn.Embedding(max_len, d_model)
        elif positions == "sinusoidal":
            self.register_buffer("pe", sinusoidal_positions(max_len, d_model), persistent=False)
        blocks = [Block(d_model, n_heads, norm, activation) for _ in range(n_layers)]
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = nn.LayerNorm(d_model) if norm == "pre" else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def _apply(self, fn, recurse=True):
        """Whatever moves, casts or empties a model: pe is in no state_dict, so it is made anew."""
        super()._apply(fn, recurse)
        if self.positions == "sinusoidal":
            self.pe.copy_(sinusoidal_positions(*self.pe.shape, dtype=torch.float64))
        return self

    def embed(self, ids):
        """ids (B, T) → token vector plus position vector (B, T, d)."""
        needs.ids(ids, self.vocab_size)
        T = ids.shape[1]
        needs.that(self.max_len >= T, f"ids hold T = {T} tokens, but max_len is {self.max_len}")
        x = self.token_embedding(ids)  # (B, T, d)
        if self.positions == "learned":
            x = x + self.position_embedding.weight[:T]
        elif self.positions == "sinusoidal":
            x = x + self.pe[:T]
        return x

    def forward(self, ids):
        x = self.embed(ids)  # (B, T, d)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.final_norm(x), self.token_embedding.weight)  # (B, T, V), tied

    def attention(self, ids):
        """The weights of every layer: a list of n_layers tensors (B, h, T, T)."""
        x, weights = self.embed(ids), []  # (B, T, d)
        for block in self.blocks:
            weights.append(block.attention(x))  # (B, h, T, T)
            x = block(x)
        return weights

    @torch.no_grad()
    def generate(self, ids, n_new, temperature=1.0, top_k=None, generator=None):
        """Sample n_new tokens after ids (B, T) → (B, T + n_new); temperature 0: the likeliest.

        top_k keeps the k likeliest tokens (None: all); generator makes the draws repeatable.
        """
        needs.ids(ids, self.vocab_size)
        k = self.vocab_size if top_k is None else top_k
        needs.draws(n_new, ids.shape[1], self.max_len, temperature, k, self.vocab_size)
        for _ in range(n_new):
            logits = self(ids)[:, -1]  # (B, V)
            logits = logits.masked_fill(logits < logits.topk(k).values[:, -1:], -torch.inf)
            new = logits.argmax(dim=-1, keepdim=True)  # (B, 1)
            if temperature > 0:
                logits = logits - logits.max(dim=-1, keepdim=True).values  # or / 1e-38 overflows
                p = torch.softmax(logits / temperature, dim=-1)  # (B, V)
                new = torch.multinomial(p, 1, generator=generator)  # (B, 1)
            ids = torch.cat([ids, new.to(ids)], dim=1)  # one token longer
        return ids

    def load_gpt2_state_dict(self, state_dict):
        """Copy the weights of Hugging Face's GPT2LMHeadModel: all of them, or none and ValueError.

        GPT-2 has q, k, v in one matrix and stores matrices as (in, out): they are split, turned.
        Build the GPT with activation="gelu_tanh", GPT-2's own; the exact GELU gives other logits.
        """
        needs.state_dict(state_dict)
        renamed = {
            "transformer.": "", "h.": "blocks.", "wte": "token_embedding", "ln_f": "final_norm",
            "wpe": "position_embedding", "attn.c_proj": "attn.W_o", "mlp.c_fc": "ffn.W_1",
            "mlp.c_proj": "ffn.W_2",
        }  # fmt: skip
        ours = {}
        for name, value in state_dict.items():
            if name.endswith((".attn.bias", ".attn.masked_bias")):
                continue  # mask buffers of old checkpoints
            if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
                value = value.t() if value.dim() == 2 else value[None]  # (out, in)
            for theirs, our in renamed.items():
                name = name.replace(theirs, our)
            qkv = zip(("W_q", "W_k", "W_v"), torch.atleast_1d(value).chunk(3))
            parts = qkv if "c_attn" in name else [("", value)]
            ours |= {name.replace("c_attn", W): part for W, part in parts}
        head = ours.pop("lm_head.weight", None)
        needs.same_shapes(ours, self.state_dict())
        tied = head is None or torch.equal(head, ours["token_embedding.weight"])
        needs.that(tied, "state_dict: lm_head.weight differs from wte.weight; this GPT ties them")
        self.load_state_dict(ours)


def gpt_parameter_count(vocab_size, d_model, n_layers, max_len):
    """§4.7 itemised: Vd + T_max d + L(12d² + 13d) + 2d, as a dict that ends in "total"."""
    needs.whole(vocab_size=vocab_size, d_model=d_model, n_layers=n_layers, max_len=max_len)
    V, d, L = vocab_size, d_model, n_layers
    count = {"token embedding": V * d, "position embedding": max_len * d}
    count["attention"] = L * (4 * d * d + 4 * d)  # W_q, W_k, W_v, W_o with biases
    count["feed-forward"] = L * (8 * d * d + 5 * d)  # d → 4d → d with biases
    count["layer norms"] = L * 4 * d  # two a layer, γ and β each
    count["final layer norm"] = 2 * d
    return count | {"total": sum(count.values())}


@contextmanager
def cut(model, queries, keys, layers=slice(None), heads=slice(None)):
    """Inside the `with`, those queries cannot look at those keys, in every layer and head (§6.4).

    Each an int (from 0), several, or a slice. An extra_mask that was there holds too, and returns.
    """

    def mask(T, in_head, before):
        rows = needs.places("queries", queries, T)  # (T,)
        columns = needs.places("keys", keys, T)  # (T,)
        link = in_head[:, None, None] & rows[:, None] & columns  # (h, T, T)
        M = torch.zeros(link.shape).masked_fill(link, -torch.inf)
        return M if before is None else M + (before(T) if callable(before) else before)

    modules = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    masks = [m.extra_mask for m in modules]
    in_head = [needs.places("heads", heads, m.n_heads) for m in modules]
    try:
        for n in needs.places("layers", layers, len(modules)).nonzero().flatten():
            modules[n].extra_mask = partial(mask, in_head=in_head[n], before=masks[n])
        yield model
    finally:
        for module, mask_before in zip(modules, masks):
            module.extra_mask = mask_before
