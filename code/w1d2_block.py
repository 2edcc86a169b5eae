"""W1D2 · 手写 Pre-LN 块 · A pre-LN decoder block by hand · Week 1 Day 2, §2, §3.7, §A.1, §A.3, §B

The reference answer to exercises 3 and 4: the block, held against torch's own layer with the same
weights; a stack of it counted to GPT-2 small's last parameter; the sinusoids; torch's defaults.

    python code/w1d2_block.py            every part
    python code/w1d2_block.py --part 2   one part
"""

import sys
from pathlib import Path

# For companion, one folder up; a notebook, which has no __file__, runs in this folder.
sys.path.insert(0, str(Path(globals().get("__file__", "notebook")).resolve().parent.parent))

import inspect
import math
import warnings
from companion import main, require
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

from lm_models import MultiHeadAttention, sinusoidal_positions

# ── constants: edit and run again ────────────────────────────────────────────────────────────────
SEED = 0
WIDTH, HEADS = 64, 4  # d and h of every small model here
BATCH, TOKENS = 3, 10  # B and T
DROPOUT = 0.1
DEPTHS = [1, 4, 16, 64]  # L in part 3
GPT2_SMALL = [50257, 1024, 768, 12, 12]  # V, positions P, d, L, heads
ENCODER_LAYERS = 6  # of the nn.TransformerEncoder in part 5
MAX_LEN = 16  # rows of the learned table in part 6
SEEDS = 10

F64 = torch.float64


# %% Part 1 · §2, exercise 3 ───────────────────────────────────────────────────────────────────────
class Attention(MultiHeadAttention):
    """lm_models' causal multi-head attention; dropout's first place: on the weights (§2.4).

    Its names are lecture 2's: W_q, W_k, W_v, W_o are W_Q, W_K, W_V, W_O here.
    """

    def __init__(self, d, n_heads, dropout):
        super().__init__(d, n_heads, causal=True)
        self.dropout = nn.Dropout(dropout)

    def attention(self, x):
        return self.dropout(super().attention(x))  # (B, h, T, T)


class FeedForward(nn.Module):
    """W_2 act(W_1 x + b_1) + b_2, or SwiGLU: W_2 (Swish(W_1 x) ⊙ W_3 x) without biases (§1).

    d_ff: 4d, for SwiGLU 8d/3, which three matrices turn into the same 8d². (B, T, d) → (B, T, d).
    """

    def __init__(self, d, activation="gelu"):
        super().__init__()
        known = {"relu": F.relu, "gelu": F.gelu, "swiglu": F.silu}
        if activation not in known:
            raise ValueError(f"activation must be one of {', '.join(known)}, got {activation!r}")
        self.act, gated = known[activation], activation == "swiglu"
        d_ff = round(8 * d / 3) if gated else 4 * d
        self.W_1 = nn.Linear(d, d_ff, bias=not gated)
        self.W_2 = nn.Linear(d_ff, d, bias=not gated)
        self.W_3 = nn.Linear(d, d_ff, bias=False) if gated else None

    def forward(self, x):
        hidden = self.act(self.W_1(x))  # (B, T, d_ff)
        if self.W_3 is not None:
            hidden = hidden * self.W_3(x)  # Swish(W_1 x), just computed, is the gate
        return self.W_2(hidden)  # (B, T, d)


class Block(nn.Module):
    """x' = x + MHA(LN_1(x)),  x'' = x' + FFN(LN_2(x')): one of n_layers (§2.1).

    Matrices start from N(0, 1/fan_in); the two that write to the residual stream, W_o and W_2,
    are then multiplied by 1/√(2 n_layers), as a stack adds 2 n_layers such branches (§2.3).
    """

    def __init__(self, d, n_heads, n_layers, activation="gelu", dropout=DROPOUT):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(d), Attention(d, n_heads, dropout)
        self.ln_2, self.ffn = nn.LayerNorm(d), FeedForward(d, activation)
        self.dropout = nn.Dropout(dropout)  # the second place: a branch, before it is added
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for W in (self.attn.W_o, self.ffn.W_2):
            W.weight.data *= 1 / math.sqrt(2 * n_layers)

    def forward(self, x):
        x = x + self.dropout(self.attn(self.ln_1(x)))  # (B, T, d)
        return x + self.dropout(self.ffn(self.ln_2(x)))  # (B, T, d)


class Decoder(nn.Module):
    """Embeddings, n_layers blocks, a last LayerNorm, output tied to the token embedding.

    ids (B, T), T up to max_len → logits (B, T, V).
    """

    def __init__(self, V, max_len, d, n_layers, n_heads, activation="gelu", dropout=DROPOUT):
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(V, d), nn.Embedding(max_len, d)
        self.dropout = nn.Dropout(dropout)  # the third place: token plus position
        blocks = [Block(d, n_heads, n_layers, activation, dropout) for _ in range(n_layers)]
        self.blocks = nn.Sequential(*blocks)
        self.final_norm = nn.LayerNorm(d)  # pre-LN leaves the stream as it is: norm it once
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)  # (T,), where the ids are
        x = self.dropout(self.token_embedding(ids) + self.position_embedding(places))  # (B, T, d)
        x = self.final_norm(self.blocks(x))  # (B, T, d)
        return F.linear(x, self.token_embedding.weight)  # (B, T, V)


def part1_block(show):
    """§2.1 · 手写的 Pre-LN 块 · The block: three activations, three dropouts, no look ahead"""
    check_constants()
    rows = []
    for activation in ("relu", "gelu", "swiglu"):
        with repeatable(SEED):
            block = Block(WIDTH, HEADS, n_layers=1, activation=activation)
            x = torch.randn(BATCH, TOKENS, WIDTH)  # (B, T, d)
            changed = x.clone()
            changed[:, -1] = torch.randn(BATCH, WIDTH)  # a constant added, LayerNorm would hide
            ffn = block.ffn.W_1.out_features, n_parameters(block.ffn)
            with torch.no_grad():
                noise = (block(x) - block(x)).abs().max()  # in training each pass drops others
                block.eval()
                again = (block(x) - block(x)).abs().max()
                past = (block(x) - block(changed))[:, :-1].abs().max()
        rows.append([activation, *ffn, f"{noise:.2f}", f"{again:g}", f"{past:g}"])
    header = [("activation", "激活函数"), "d_ff", ("FFN parameters", "FFN 参数量")]
    header += [("two passes, train()", "两次前向之差，train()"), ("eval()", "eval()")]
    header.append(("future's effect on the past", "未来对过去的影响"))
    title = (
        f"One block, d = {WIDTH}, dropout {DROPOUT}",
        f"一个块，d = {WIDTH}，dropout {DROPOUT}",
    )
    show.table(title, header, rows)
    show.claim("W1D2-017", Block(WIDTH, HEADS, n_layers=1).dropout.p)


def check_constants():
    """The ones that several parts share."""
    fits = HEADS >= 1 and WIDTH >= 1 and WIDTH % HEADS == 0
    require(fits, f"HEADS must divide WIDTH, got {HEADS} heads and WIDTH {WIDTH}")
    require(BATCH >= 2, f"BATCH must be at least 2, to see one sequence leak into another: {BATCH}")
    require(TOKENS >= 2, f"TOKENS must be at least 2, to have a past and a future, got {TOKENS}")
    require(0 <= DROPOUT < 1, f"DROPOUT must lie in 0 … 1, 1 left out, got {DROPOUT}")


@contextmanager
def repeatable(seed):
    """Inside, draws come from this seed and one thread computes; afterwards all is as before."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def n_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


# %% Part 2 · exercise 3 ───────────────────────────────────────────────────────────────────────────
def part2_against_torch(show):
    """§B · 与 nn.TransformerEncoderLayer 对拍 · The same numbers as nn.TransformerEncoderLayer"""
    check_constants()
    rows = []
    for activation in ("gelu", "relu"):
        for dtype in (F64, torch.float32):
            rows.append(
                [activation, str(dtype).removeprefix("torch."), *compare(activation, dtype)]
            )
    header = [
        ("activation", "激活函数"),
        "dtype",
        ("output", "输出之差"),
        ("gradient of x", "x 的梯度之差"),
    ]
    header.append(("output, mask forgotten", "忘了传掩码时输出之差"))
    title = ("Largest difference, weights copied, causal mask", "复制权重、传因果掩码后的最大差")
    show.table(title, header, [[*row[:2], *(f"{v:.1e}" for v in row[2:])] for row in rows])
    en = "torch's layer is not causal by itself: every call needs the mask. In train() it has a "
    en += "fourth dropout, after the activation."
    zh = "torch 的层自己没有因果性，每次调用都要传掩码。"
    zh += "train() 时它在激活函数之后还有第四处 dropout。"
    show.note((en, zh))
    show.claim("W1D2-072", rows[0][2])


def compare(activation, dtype):
    """Our block against torch's layer: output, gradient of the input, output without the mask."""
    with repeatable(SEED):
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, DROPOUT, activation, batch_first=True, norm_first=True
        )  # fmt: skip
        for parameter in layer.parameters():  # no bias or gain may hide at its 0 or 1
            parameter.data += 0.1 * torch.randn_like(parameter)
        block = Block(WIDTH, HEADS, 1, activation)
        copy_weights(layer, block)
        layer, block = layer.to(dtype).eval(), block.to(dtype).eval()
        x = torch.randn(BATCH, TOKENS, WIDTH, dtype=dtype)  # (B, T, d)
        direction = torch.randn(BATCH, TOKENS, WIDTH, dtype=dtype)  # gradient of y · direction
        mask = torch.full((TOKENS, TOKENS), -torch.inf, dtype=dtype).triu(1)  # (T, T)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, y_torch = block(ours), layer(theirs, src_mask=mask)  # (B, T, d) each
        (y * direction).sum().backward()
        (y_torch * direction).sum().backward()
        pairs = [(y, y_torch), (ours.grad, theirs.grad), (y, layer(x))]
        return [(a - b).abs().max().item() for a, b in pairs]


def copy_weights(layer, block):
    """A TransformerEncoderLayer's weights into a Block; torch keeps W_q, W_k, W_v in one matrix."""
    attn, ffn, theirs = block.attn, block.ffn, layer.self_attn
    weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)  # (d, d), (d,)
    for W, weight, bias in zip((attn.W_q, attn.W_k, attn.W_v), weights, biases):
        W.load_state_dict({"weight": weight, "bias": bias})
    same = [(attn.W_o, theirs.out_proj), (ffn.W_1, layer.linear1), (ffn.W_2, layer.linear2)]
    for ours, torchs in [*same, (block.ln_1, layer.norm1), (block.ln_2, layer.norm2)]:
        ours.load_state_dict(torchs.state_dict())


# %% Part 3 · §2.3, exercise 3 ─────────────────────────────────────────────────────────────────────
def part3_initialisation(show):
    """§2.3 · 输出投影乘 1/√(2L) · The two output projections start smaller, by 1/√(2L)"""
    check_constants()
    require(DEPTHS and min(DEPTHS) >= 1, f"DEPTHS must be whole numbers from 1, got {DEPTHS}")
    L = DEPTHS[-1]
    with repeatable(SEED):
        block = Block(WIDTH, HEADS, n_layers=L)
    matrices = [(n, m) for n, m in block.named_modules() if isinstance(m, nn.Linear)]
    rows = [[name, f"{W.weight.std() * math.sqrt(W.in_features):.4f}"] for name, W in matrices]
    header = [("matrix", "矩阵"), ("std times √fan_in", "标准差乘 √fan_in")]
    title = f"L = {L}: 1/√(2L) = {1 / math.sqrt(2 * L):.4f}"
    show.table(title, header, rows)

    rows = [[L, *(f"{stream_rms(L, scaled):.3f}" for scaled in (False, True))] for L in DEPTHS]
    header = ["L", ("unscaled", "不缩放"), ("with 1/√(2L)", "乘 1/√(2L)")]
    title = ("RMS of the residual stream after L blocks", "L 个块之后残差流的 RMS")
    show.table(title, header, rows)


@torch.no_grad()
def stream_rms(n_layers, scaled):
    """RMS of x ~ N(0, 1) after n_layers blocks without dropout."""
    with repeatable(SEED):
        x = torch.randn(BATCH, TOKENS, WIDTH)  # (B, T, d)
        for _ in range(n_layers):
            block = Block(WIDTH, HEADS, n_layers if scaled else 0.5)  # 1/√(2 · 0.5) = 1
            x = block.eval()(x)
        return rms(x)


def rms(x):
    """Root mean square of each token, averaged over the tokens."""
    return x.square().mean(dim=-1).sqrt().mean().item()


# %% Part 4 · §5.1, exercises 2 and 3 ──────────────────────────────────────────────────────────────
def part4_count(show):
    """§5.1 · 数出 124,439,808 · A stack of these blocks counts 124,439,808"""
    V, P, d, L, n_heads = GPT2_SMALL
    with torch.device("meta"):  # shapes without numbers: nothing is allocated
        model = Decoder(V, P, d, L, n_heads)
    block = model.blocks[0]
    parts = [
        ("token_embedding", 1, model.token_embedding, V * d),
        ("position_embedding", 1, model.position_embedding, P * d),
        ("blocks[i].attn", L, block.attn, 4 * d * d + 4 * d),
        ("blocks[i].ffn", L, block.ffn, 8 * d * d + 5 * d),
        ("blocks[i].ln_1", L, block.ln_1, 2 * d),
        ("blocks[i].ln_2", L, block.ln_2, 2 * d),
        ("final_norm", 1, model.final_norm, 2 * d),
    ]
    rows = [
        [name, times, n_parameters(module), formula, times * n_parameters(module)]
        for name, times, module, formula in parts
    ]
    rows.append([show.say(("the whole model", "整个模型")), "", "", "", n_parameters(model)])
    header = [("module", "模块"), ("times", "个数"), ("parameters", "参数量")]
    header += [("§5.1's formula", "§5.1 的公式"), ("together", "合计")]
    show.table(f"V = {V}, P = {P}, d = {d}, L = {L}", header, rows)
    show.claim("W1D2-035b", n_parameters(model))


# %% Part 5 · §A.1 ─────────────────────────────────────────────────────────────────────────────────
def part5_defaults(show):
    """§A.1 · 2017 年的默认值，各有什么坑 · Defaults of 2017, and what each does to you"""
    check_constants()
    default = defaults(nn.TransformerEncoderLayer)
    wanted = {"dim_feedforward": "4d", "dropout": 0.0, "activation": "gelu / SwiGLU"}
    wanted |= {"batch_first": True, "norm_first": True}
    rows = [
        [n, str(getattr(default[n], "__name__", default[n])), str(w)] for n, w in wanted.items()
    ]
    header = [("argument", "参数"), ("default", "默认值"), ("a modern block", "现代的块")]
    show.table(f"nn.TransformerEncoderLayer, torch {torch.__version__}", header, rows)

    without_norm = [encoder_rms(seed, None) for seed in show.seeds(SEEDS)]
    d_ff, warned = default["dim_feedforward"], encoder_warnings(True)
    rows = []

    def add(en, zh, as_default, set_right):
        rows.append([show.say((en, zh)), as_default, set_right])

    add(
        "norm_first=False is post-LN, no residual path stays free of LayerNorm: RMS of the output"
        " for a 100 times larger input",
        "norm_first=False 是 Post-LN，残差通路也被归一化：输入放大 100 倍后输出的 RMS",
        *(response_to_scale(norm_first) for norm_first in (False, True)),
    )
    add(
        "batch_first=False: what one sequence of the batch changes in another",
        "batch_first=False：同一批里一个句子对另一个句子的影响",
        *(leak_across_batch(batch_first) for batch_first in (False, True)),
    )
    add(
        "dim_feedforward=2048 whatever d: d_ff / d at d = 768",
        "dim_feedforward=2048 与 d 无关：d = 768 时 d_ff / d",
        d_ff / 768,
        4,
    )
    add(
        "... and the layer's parameters",
        "……以及这一层的参数量",
        *(layer_parameters(768, width) for width in (d_ff, 4 * 768)),
    )
    add(
        f"norm=None: RMS of the output of {ENCODER_LAYERS} pre-LN layers",
        f"norm=None：{ENCODER_LAYERS} 层 Pre-LN 输出的 RMS",
        without_norm[0],
        encoder_rms(0, nn.LayerNorm(WIDTH)),
    )
    add(
        "enable_nested_tensor=True with norm_first=True: warnings",
        "norm_first=True 时 enable_nested_tensor=True：警告条数",
        len(warned),
        len(encoder_warnings(False)),
    )
    add(
        f"nn.TransformerEncoder copies one layer: different starts among {ENCODER_LAYERS} layers",
        f"nn.TransformerEncoder 复制同一层：{ENCODER_LAYERS} 层里不同的初始权重有几套",
        *distinct_starts(),
    )
    header = [("what goes wrong", "坑"), ("default", "默认"), ("set right", "改对之后")]
    show.table(("Each default, measured", "逐个测量"), header, rows)
    show.note(
        tuple(f"{head}{'; '.join(warned)}" for head in ("torch's warning: ", "torch 的警告："))
    )

    rest = [default[name] for name in ("dropout", "batch_first", "norm_first")]
    relu = default["activation"] in (F.relu, "relu")
    show.claim("W1D2-054", default["dim_feedforward"])
    show.claim("W1D2-055", relu and rest == [0.1, False, False])
    show.claim("W1D2-056", default["dim_feedforward"] / 768)
    show.claim("W1D2-057", len(warned) > 0 and not encoder_warnings(False))
    show.claim("W1D2-058", without_norm[0], seeds=without_norm)


def defaults(function):
    """{argument: default}, read from the installed torch itself."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


@torch.no_grad()
def response_to_scale(norm_first):
    """RMS of a layer's output when x ~ N(0, 1) is multiplied by 100."""
    with repeatable(SEED):
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=True, norm_first=norm_first)
        x = torch.randn(BATCH, TOKENS, WIDTH)  # (B, T, d)
        return rms(layer.eval()(100 * x))


@torch.no_grad()
def leak_across_batch(batch_first):
    """Largest change in sequence 0's output when only sequence 1 of x (B, T, d) changes."""
    with repeatable(SEED):
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=batch_first).eval()
        x = torch.randn(BATCH, TOKENS, WIDTH)  # (B, T, d)
        changed = x.clone()
        changed[1] = torch.randn(TOKENS, WIDTH)
        return (layer(x) - layer(changed))[0].abs().max().item()


def layer_parameters(d, d_ff):
    with torch.device("meta"):
        return n_parameters(nn.TransformerEncoderLayer(d, HEADS, d_ff))


def encoder(norm=None, enable_nested_tensor=False):
    """A pre-LN nn.TransformerEncoder with batch_first; d_ff and the rest are torch's defaults."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, ENCODER_LAYERS, norm, enable_nested_tensor)


@torch.no_grad()
def encoder_rms(seed, norm):
    """RMS of a pre-LN encoder's output for x ~ N(0, 1)."""
    with repeatable(seed):
        return rms(encoder(norm).eval()(torch.randn(BATCH, TOKENS, WIDTH)))


def encoder_warnings(enable_nested_tensor):
    """What torch warns about when a pre-LN encoder is built."""
    with repeatable(SEED), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        encoder(enable_nested_tensor=enable_nested_tensor)
    return [str(one.message) for one in caught]


def distinct_starts():
    """How many different W_1 the layers start from: of an nn.TransformerEncoder, of our blocks."""
    with repeatable(SEED):
        copied = [layer.linear1 for layer in encoder().layers]
        ours = [Block(WIDTH, HEADS, ENCODER_LAYERS).ffn.W_1 for _ in range(ENCODER_LAYERS)]
    return [len({W.weight.sum().item() for W in layers}) for layers in (copied, ours)]


# %% Part 6 · §3.7, §A.3, exercise 4 ───────────────────────────────────────────────────────────────
class SinusoidalPositions(nn.Module):
    """x + p_t with p_{t,2i} = sin(ω_i t), p_{t,2i+1} = cos(ω_i t), ω_i = base^(-2i/d) (§3.3).

    forward: x (B, T, d) with T up to max_len → (B, T, d).
    """

    def __init__(self, d, max_len=4096, base=10000.0):
        super().__init__()
        if d < 2 or d % 2:
            raise ValueError(f"d must be even, sin and cos come in pairs, got {d}")
        self.base = base
        self.register_buffer("pe", torch.empty(max_len, d), persistent=False)  # in no state_dict
        self.fill()

    def fill(self):
        max_len, d = self.pe.shape
        omega = torch.exp(-math.log(self.base) * torch.arange(0, d, 2, dtype=F64) / d)  # (d/2,)
        angle = torch.arange(max_len, dtype=F64).unsqueeze(1) * omega  # (max_len, d/2)
        pe = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # (max_len, d)
        self.pe.copy_(pe)  # float64 until here: in float32 the angle itself rounds

    def _apply(self, fn, recurse=True):
        """Whatever moves, casts or empties the module: no state_dict brings pe back, so it does."""
        super()._apply(fn, recurse)
        self.fill()
        return self

    def forward(self, x):
        if x.shape[1] > len(self.pe):
            raise ValueError(f"x holds T = {x.shape[1]} tokens, but max_len is {len(self.pe)}")
        return x + self.pe[: x.shape[1]]  # (B, T, d)


def part6_positions(show):
    """§A.3 · 位置编码的实现 · Position codes in PyTorch, and where they break"""
    require(MAX_LEN >= 1, f"MAX_LEN must be at least 1, got {MAX_LEN}")
    learned = nn.Embedding(MAX_LEN, WIDTH, _weight=torch.zeros(MAX_LEN, WIDTH))
    too_long = torch.arange(MAX_LEN + 1)  # (MAX_LEN + 1,)
    sinusoids = SinusoidalPositions(WIDTH)
    past_the_end = torch.zeros(1, len(sinusoids.pe) + 1, WIDTH)  # (1, max_len + 1, d)
    failures = [
        (f"nn.Embedding({MAX_LEN}, d)(arange({MAX_LEN}))", lambda: learned(too_long[:-1])),
        (f"nn.Embedding({MAX_LEN}, d)(arange({MAX_LEN + 1}))", lambda: learned(too_long)),
        ("pe[:, 1::2] = cos, d = 8", lambda: fill_by_slices(8)),
        ("pe[:, 1::2] = cos, d = 7", lambda: fill_by_slices(7)),
        ("SinusoidalPositions(7)", lambda: SinusoidalPositions(7)),
        ("SinusoidalPositions(d)(T = 4097)", lambda: sinusoids(past_the_end)),
    ]
    raised = {call: error_of(function) for call, function in failures}
    rows = [
        [call, type(e).__name__ if e else "", str(e).splitlines()[0] if e else "-"]
        for call, e in raised.items()
    ]
    header = [("call", "调用"), ("error", "错误"), ("message", "信息")]
    show.table(("Where position codes stop", "位置编码在哪里报错"), header, rows)

    T, pe = 4096, sinusoids.pe
    exact = sinusoidal_positions(T, WIDTH, dtype=F64)  # (T, d), lm_models' own
    rows = [
        [show.say(("angles in float64, as here", "角度用 float64，如本文件")), gap(pe[:T], exact)],
        [show.say(("angles in float32", "角度用 float32")), gap(float32_positions(T), exact)],
    ]
    header = [("a table of 4096 positions", "4096 个位置的表"), ("largest error", "最大误差")]
    show.table(("The price of float32 angles", "float32 角度的代价"), header, rows)

    call = list(raised)
    default = defaults(SinusoidalPositions)
    fits, overflows = raised[call[0]] is None, isinstance(raised[call[1]], IndexError)
    even, odd = raised[call[2]] is None, isinstance(raised[call[3]], RuntimeError)
    show.claim("W1D2-028", fits and overflows)
    show.claim("W1D2-059", even and odd)
    show.claim("W1D2-060", [default["max_len"], default["base"]])

    with show.figure("w1d2_block_positions", columns=2, size=(12, 4.4)) as (heat, curve):
        image = heat.imshow(pe[:256].numpy(), aspect="auto", cmap="RdBu", vmin=-1, vmax=1)
        heat.set(xlabel="dimension", ylabel="position t", title=f"pe, d = {WIDTH}")
        heat.figure.colorbar(image, ax=heat)
        wide = SinusoidalPositions(128).pe  # group 6's d
        curve.plot((wide @ wide[0]).numpy(), linewidth=0.8)
        curve.axhline(0, color="grey", linewidth=0.8)
        curve.set(xlabel="distance k", ylabel="$p_0 \\cdot p_k$")
        curve.set_title("d = 128, as in group 6: large when near, not monotonic")


def error_of(function):
    """The exception that a call ends in, None if it does not."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - which one is what the table shows
        return error
    return None


def fill_by_slices(d):
    """The common way to write the table, sines and cosines into every other column."""
    omega = torch.exp(-math.log(10_000.0) * torch.arange(0, d, 2) / d)  # (ceil(d/2),)
    angle = torch.arange(4).unsqueeze(1) * omega  # (4, ceil(d/2))
    pe = torch.zeros(4, d)
    pe[:, 0::2] = angle.sin()
    pe[:, 1::2] = angle.cos()  # odd d: one column too many
    return pe


def float32_positions(T):
    """The table with every step in float32 → (T, d)."""
    omega = torch.exp(-math.log(10000.0) * torch.arange(0, WIDTH, 2) / WIDTH)  # (d/2,)
    angle = torch.arange(T).unsqueeze(1) * omega  # (T, d/2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def gap(a, b):
    return f"{(a - b).abs().max():.1e}"


# %% All parts ─────────────────────────────────────────────────────────────────────────────────────
PARTS = [part1_block, part2_against_torch, part3_initialisation, part4_count, part5_defaults]
PARTS += [part6_positions]

if __name__ == "__main__":
    main(__doc__, PARTS)
