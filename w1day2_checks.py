"""W1D2 · 十二组检查 · Twelve checks · Week 1 Day 2, §0–6

Every part of a Transformer block, checked in NumPy alone: no training, no torch, nothing hidden.
Vectors are rows: the lecture's W_1 x is x @ W_1.T here, its W_Qᵀ x is x @ W_Q.

    python w1day2_checks.py            all twelve groups
    python w1day2_checks.py --part 5   one of them
"""

import math
from companion import main, require
from fractions import Fraction
from itertools import product

import numpy as np

# ── constants: edit and run again ────────────────────────────────────────────────────────────────
SEED = 0
FFN_WIDTH, FFN_TOKENS = 16, 200  # d and T in group 1
TOKENS = 16  # T in §0.1 and in group 4
WIDTH = 64  # d there, and in groups 5 and 7
HEADS = 4
GAP_LAYERS = 12  # depth at which §0.1 looks
SWIGLU_WIDTHS = [512, 768, 4096, 5120, 6656, 8192]  # the last four: Llama 7B, 13B, 33B, 65B
MULTIPLE = 256  # Llama rounds d_ff up to a multiple of it
DEPTHS = [1, 4, 16, 64]  # L in group 4; growth is claimed over the last three
SEEDS = 8  # the lecture's
BASE = 10000.0  # of the sinusoids' frequencies
SHIFTS = [1, 7, 100]  # k in p_{t+k} = R_k p_t
D_DOT = 128  # d in group 6
# Group 7's table is lost: this seed, these t of the pairs (t, t + APART) and d = 64, found by
# trying, give the lecture's three scores.
PROJECTION_SEED = 7
STARTS = [10, 110, 200]
APART = 3
COUNT_WIDTH = 64  # d of the block whose operations group 9 counts
LENGTHS = [1024, 2048, 4096]  # T in group 9
CORPUS = [("hug", 10), ("pug", 5), ("pun", 12), ("bun", 4), ("hugs", 5)]
NEW_WORDS = ["pugs", "bug", "puns", "gun"]  # encoded with what the corpus taught
# Unigram: pieces and how often each is used, out of 100. The lecture prints three results only:
# P(hugs) and the product of P(hug) and P(s) follow from them, the rest is ours. Seven segmentations
# of "hugs" need exactly one of "ug" and "ugs" missing: here "ugs".
PIECES = [("h", 15), ("u", 20), ("g", 16), ("s", 6), ("hu", 7), ("ug", 14), ("gs", 4)]
PIECES += [("hug", 15), ("hugs", 3)]
WORD = "hugs"

# name, V, positions P, d, L, parameters of the published checkpoint
GPT2 = [
    ("GPT-2 small", 50257, 1024, 768, 12, 124_439_808),
    ("GPT-2 medium", 50257, 1024, 1024, 24, 354_823_168),
    ("GPT-2 XL", 50257, 1024, 1600, 48, 1_557_611_200),
]
GPT3 = ("GPT-3", 50257, 2048, 12288, 96)
BERT = ("BERT-base", 30522, 512, 768, 12)
LLAMA = [  # name, V, d, L, width of k and v, d_ff
    ("Llama-2-7B", 32000, 4096, 32, 4096, 11008),
    ("Llama-3-8B", 128256, 4096, 32, 1024, 14336),
    ("Llama-3-70B", 128256, 8192, 80, 1024, 28672),
]
LARGE_VOCABULARY = 128256
# the original Transformer: encoder and decoder layers, d, h, d_ff, dropout, label smoothing
TRANSFORMER_BASE = [6, 6, 512, 8, 2048, 0.1, 0.1]
TRANSFORMER_VOCABULARY = 37000  # shared by source, target and output


# %% Part 1 · §0.1, §1.3 ───────────────────────────────────────────────────────────────────────────
def part1_memory(show):
    """§1.3 · FFN 是一张键-值记忆表 · The FFN is a key-value memory"""
    sizes = {"FFN_WIDTH": FFN_WIDTH, "FFN_TOKENS": FFN_TOKENS, "TOKENS": TOKENS}
    for name, size in (sizes | {"GAP_LAYERS": GAP_LAYERS, "SEEDS": SEEDS}).items():
        require(size >= 1, f"{name} must be at least 1, got {size}")
    show_gaps(show)
    show_two_memories(show)

    x, W_1, b_1, W_2, b_2 = random_ffn(SEED)
    memory = ffn_as_memory(x, W_1, b_1, W_2, b_2)  # (T, d)
    shares = [active_share(seed) for seed in show.seeds(SEEDS)]
    show.claim("W1D2-002", len(PARTS))
    show.claim("W1D2-004", np.abs(memory - ffn(x, W_1, b_1, W_2, b_2)).max())
    show.claim("W1D2-005", shares[0], seeds=shares)


def random_ffn(seed):
    """x (T, d), W_1 (4d, d), b_1 (4d,), W_2 (d, 4d), b_2 (d,), Gaussian: an output of order 1."""
    d, draw = FFN_WIDTH, np.random.default_rng(seed).standard_normal
    W_1, b_1 = draw((4 * d, d)) / math.sqrt(d), 0.1 * draw(4 * d)
    W_2, b_2 = draw((d, 4 * d)) / math.sqrt(4 * d), 0.1 * draw(d)
    return draw((FFN_TOKENS, d)), W_1, b_1, W_2, b_2


def relu(z):
    return np.maximum(z, 0)


def ffn(x, W_1, b_1, W_2, b_2):
    """§1.2: W_2 σ(W_1 x + b_1) + b_2 for every row of x (T, d) → (T, d)."""
    return relu(x @ W_1.T + b_1) @ W_2.T + b_2


def ffn_as_memory(x, W_1, b_1, W_2, b_2):
    """§1.3: slot i adds its value v_i as strongly as its key k_i matches x; (T, d) → (T, d)."""
    out = np.tile(b_2, (len(x), 1))  # (T, d)
    for i in range(len(W_1)):
        k_i, v_i = W_1[i], W_2[:, i]  # (d,) each
        match = relu(x @ k_i + b_1[i])  # (T,)
        out += match[:, None] * v_i
    return out


def active_share(seed):
    """How many of the slots a random token switches on, on average."""
    x, W_1, b_1, _, _ = random_ffn(seed)
    return (x @ W_1.T + b_1 > 0).mean()


def show_gaps(show):
    """§0.1's table: four gaps of attention alone and their patches, in group 4's random layers."""
    rng, say = np.random.default_rng(SEED), show.say
    x = rng.standard_normal((TOKENS, WIDTH))  # (T, d)
    layers = [draw_layer(rng, WIDTH) for _ in range(GAP_LAYERS)]
    first, A = layers[0], attention_weights(x, layers[0])  # (h, T, T)
    shuffle, places = rng.permutation(TOKENS), positions(TOKENS, WIDTH)  # (T,), (T, d)

    def even_part(f):  # twice that of f: 0 for whatever is linear
        return rms(f(x) + f(-x))

    def spread(layer_output):  # how much of the stream tells the tokens apart, of all there is
        y = through(layer_output)
        return rms(y - y.mean(axis=0)) / rms(y)

    def through(layer_output):
        y = x
        for W in layers:
            y = layer_output(y, W)
        return y

    def order_counts(added):  # 0 when shuffled input gives the same rows, shuffled
        return rms(attention(x[shuffle] + added, first) - attention(x + added, first)[shuffle])

    rows = [
        [
            say(("it only averages values: linear", "只会对 value 取平均，是线性的")),
            say(("f(x) + f(-x), A held fixed", "固定 A 时的 f(x) + f(-x)")),
            even_part(lambda x: mix(A, x, first)),
            say(("FFN, §1", "FFN，§1")),
            even_part(lambda x: feed_forward(x, first)),
        ],
        [
            say(("stacked, it makes all tokens alike", "一层层叠下去，各个 token 趋于相同")),
            say((f"spread of tokens, {GAP_LAYERS} layers", f"{GAP_LAYERS} 层后 token 的离散度")),
            spread(attention),
            say(("residual connection, §2", "残差连接，§2")),
            spread(lambda y, W: y + attention(y, W)),
        ],
        [
            say(("with residuals the scale explodes", "有了残差，数值尺度又会爆炸")),
            say((f"RMS after {GAP_LAYERS} blocks", f"{GAP_LAYERS} 个块后的 RMS")),
            rms(through(lambda y, W: block(y, W, norm=lambda z: z))),
            say(("LayerNorm, §2", "LayerNorm，§2")),
            rms(through(block)),
        ],
        [
            say(("it cannot see the order", "看不见顺序")),
            say(("shuffled input against shuffled output", "打乱输入与打乱输出之差")),
            order_counts(0),
            say(("positions, §3", "位置编码，§3")),
            order_counts(places),
        ],
    ]
    header = [("gap", "缺口"), ("measured", "测量的量"), ("without", "没有补丁")]
    header += [("patch", "补丁"), ("with", "有补丁")]
    title = ("§0.1 Attention alone has four gaps; a block patches them", "§0.1 四个缺口与四个补丁")
    show.table(title, header, rows)


def show_two_memories(show):
    """§1.3's table: the same sum over slots, read as attention and as FFN."""
    en = [
        ["query", "q_t, projected from x_t", "x_t itself"],
        ["keys", "k_j, from the text", "rows of W_1"],
        ["values", "v_j, from the text", "columns of W_2"],
        ["weight of a slot", "softmax: positive, all sum to 1", "σ(k_iᵀx + b_1,i): each by itself"],
        ["number of slots", "T, grows with the text", "d_ff = 4d, fixed"],
        ["holds", "this text, then forgets it", "what training left, in parameters"],
    ]
    zh = [
        ["查询", "q_t，由 x_t 投影", "x_t 本身"],
        ["键", "k_j，来自上下文", "W_1 的各行"],
        ["值", "v_j，来自上下文", "W_2 的各列"],
        ["槽的权重", "softmax：为正，和为 1", "σ(k_iᵀx + b_1,i)：各算各的"],
        ["槽数", "T，随文本变长", "d_ff = 4d，固定"],
        ["记的是", "眼前这段文本，用完即忘", "训练留下的东西，存在参数里"],
    ]
    rows = show.say((en, zh))
    show.table(("§1.3 Two memories", "§1.3 两种记忆"), ["", ("attention", "注意力"), "FFN"], rows)


# %% Part 2 · §1.4 ─────────────────────────────────────────────────────────────────────────────────
def part2_swiglu(show):
    """§1.4 · SwiGLU 的 2/3 规则与 11008 · SwiGLU's two-thirds rule, and 11008"""
    whole = all(isinstance(d, int) and d >= 1 for d in SWIGLU_WIDTHS)
    require(SWIGLU_WIDTHS and whole, f"SWIGLU_WIDTHS must be whole numbers, got {SWIGLU_WIDTHS}")
    require(MULTIPLE >= 1, f"MULTIPLE must be at least 1, got {MULTIPLE}")
    rows = []
    for d in SWIGLU_WIDTHS:
        d_ff = swiglu_width(d)
        three, two = ffn_weights(d, d_ff, matrices=3), ffn_weights(d, 4 * d, matrices=2)
        more = f"{100 * (three / two - 1):+.2f}"
        rows.append([d, f"{8 * d / 3:.2f}", d_ff, three, two, more])
    header = ["d", "8d/3", "d_ff", ("SwiGLU weights", "SwiGLU 权重数"), "8d²"]
    title = (
        f"d_ff = 8d/3, rounded up to a multiple of {MULTIPLE}",
        f"8d/3 向上取整到 {MULTIPLE} 的倍数",
    )
    show.table(title, [*header, ("% more", "多出 %")], rows)

    same = [
        ffn_weights(d, Fraction(8 * d, 3), matrices=3) == ffn_weights(d, 4 * d, matrices=2)
        for d in SWIGLU_WIDTHS
    ]
    show.claim("W1D2-011", all(same))
    show.claim("W1D2-012", [8 * 4096 / 3, swiglu_width(4096)])


def ffn_weights(d, d_ff, matrices):
    """Weights of an FFN without biases: 2 matrices (W_1, W_2), or 3 with SwiGLU's W_3."""
    return matrices * d * d_ff


def swiglu_width(d):
    """8d/3 rounded up to a multiple of MULTIPLE, in whole numbers."""
    return math.ceil(Fraction(8 * d, 3) / MULTIPLE) * MULTIPLE


# %% Part 3 · §1.4, §A.2 ───────────────────────────────────────────────────────────────────────────
def part3_gelu(show):
    """§1.4 · GELU 的两个版本 · GELU, exact and tanh"""
    x = np.linspace(-6, 6, 24001)  # (24001,): steps of 0.0005
    difference = gelu_tanh(x) - gelu(x)
    worst = np.abs(difference).argmax()
    at = np.array([-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, abs(x[worst])])
    rows = [
        [f"{x:.3f}", f"{r:.6f}", f"{g:.6f}", f"{t:.6f}", f"{t - g:+.2e}"]
        for x, r, g, t in zip(at, relu(at), gelu(at), gelu_tanh(at))
    ]
    header = ["x", "ReLU", ("GELU, exact", "GELU 精确版"), ("GELU, tanh", "GELU tanh 版")]
    title = ("GELU keeps a little on the negative side", "GELU 在负半轴留下一点非零输出")
    show.table(title, [*header, ("tanh - exact", "tanh 版 - 精确版")], rows)
    show.note(("The last row: where the two differ most.", "最后一行：两者相差最大的地方。"))

    show.claim("W1D2-009", gelu(np.array(-1.0)))
    show.claim("W1D2-010", np.abs(difference).max())

    with show.figure("w1day2_gelu", columns=2, size=(11, 4.2)) as (curves, gap):
        curves.plot(x, relu(x), color="grey", linestyle=":", label="ReLU")
        curves.plot(x, gelu(x), linewidth=3, alpha=0.6, label="GELU, exact")
        curves.plot(x, gelu_tanh(x), "--", label="GELU, tanh form")
        curves.set(
            xlim=(-4, 3), ylim=(-0.4, 3), xlabel="x", title="Two forms, one curve to the eye"
        )
        curves.legend()
        gap.plot(x, 1e4 * difference)
        peak = f"largest: {np.abs(difference).max():.2e} at x = ±{abs(x[worst]):.2f}"
        gap.axhline(0, color="grey", linewidth=0.8)
        gap.plot(
            [-abs(x[worst]), abs(x[worst])], 1e4 * difference[[worst, -1 - worst]], "o", label=peak
        )
        gap.set(xlabel="x", ylabel="tanh form - exact, in 1e-4", title="Their difference")
        gap.set_ylim(-5.5, 7)
        gap.legend(loc="upper center")


def gelu(x):
    """x Φ(x), Φ(x) = (1 + erf(x/√2))/2 the normal distribution; NumPy has no erf, math has."""
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    """GPT-2's form: Φ(x) replaced by (1 + tanh(√(2/π) (x + 0.044715 x³)))/2."""
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))) / 2


# %% Part 4 · §2.3 ─────────────────────────────────────────────────────────────────────────────────
def part4_residual_stream(show):
    """§2.3 · 残差流的增长与 1/√(2L) · The residual stream grows; 1/√(2L) stops it"""
    ascending = len(DEPTHS) >= 3 and min(DEPTHS) >= 1 and sorted(set(DEPTHS)) == DEPTHS
    require(ascending, f"DEPTHS must be at least three ascending whole numbers, got {DEPTHS}")
    require(SEEDS >= 1, f"SEEDS must be at least 1, got {SEEDS}")
    runs = [rms_by_depth(seed) for seed in show.progress(range(SEEDS), SEEDS, "seeds")]
    plain, scaled = np.array(runs).transpose(1, 0, 2)  # (SEEDS, depths) each

    def spread(values):
        return f"{values.mean():.3f} ({values.min():.3f} … {values.max():.3f})"

    factor = [""] + [f"{b / a:.2f}" for a, b in zip(plain.mean(0), plain.mean(0)[1:])]
    rows = [[L, spread(plain[:, n]), factor[n], spread(scaled[:, n])] for n, L in enumerate(DEPTHS)]
    header = ["L", ("unscaled", "不缩放"), ("times the row above", "是上一行的几倍")]
    title = f"RMS of a token after L blocks: mean (min … max) over {SEEDS} seeds"
    title = (title, f"L 个块之后每个 token 的 RMS：{SEEDS} 个种子的平均（最小 … 最大）")
    show.table(title, [*header, ("W_O and W_2 times 1/√(2L)", "W_O、W_2 乘 1/√(2L)")], rows)

    def growth(by_depth):
        return [by_depth[-2] / by_depth[-3], by_depth[-1] / by_depth[-2]]

    def ratio(by_depth):
        return by_depth.max() / by_depth.min()

    show.claim("W1D2-014", len(runs))
    show.claim("W1D2-015", growth(plain.mean(0)), seeds=[growth(one) for one in plain])
    show.claim("W1D2-016", ratio(scaled.mean(0)), seeds=[ratio(one) for one in scaled])

    with show.figure("w1day2_rms_by_depth") as ax:
        for runs, style, label in (plain, "o-", "unscaled"), (scaled, "s-", "times $1/\\sqrt{2L}$"):
            ax.plot(DEPTHS, runs.mean(0), style, label=f"{label}, mean of {SEEDS} seeds")
            ax.fill_between(DEPTHS, runs.min(0), runs.max(0), alpha=0.25)
        middle, L = len(DEPTHS) // 2, np.array(DEPTHS)
        slope = plain.mean(0)[middle] * np.sqrt(L / L[middle])
        ax.plot(L, slope, ":", color="grey", label="proportional to $\\sqrt{L}$")
        ax.set(xscale="log", yscale="log", xlabel="blocks L", ylabel="RMS of a token")
        ax.set_title("The residual stream against depth (band: min to max)")
        ax.set_xticks(DEPTHS, DEPTHS)
        ax.set_yticks([1, 2, 4, 8], [1, 2, 4, 8])
        ax.minorticks_off()
        ax.legend()


def rms_by_depth(seed):
    """RMS of a token after each of DEPTHS blocks: unscaled, scaled by the depth's own 1/√(2L)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((TOKENS, WIDTH))  # (T, d)
    plain, unscaled = x, []
    scaled = dict.fromkeys(DEPTHS, x)  # one stream for each depth
    for layer in range(1, DEPTHS[-1] + 1):
        W = draw_layer(rng, WIDTH)
        plain = block(plain, W)
        if layer in DEPTHS:  # an unscaled stack of L blocks is the start of every deeper one
            unscaled.append(rms(plain))
        for L in DEPTHS:
            if layer <= L:
                scaled[L] = block(scaled[L], W, scale=1 / math.sqrt(2 * L))
    return unscaled, [rms(stream) for stream in scaled.values()]


def draw_layer(rng, d):
    """One block's matrices, entries N(0, 1/fan_in); no biases, and LayerNorms without gain."""
    fits = HEADS >= 1 and d % HEADS == 0
    require(fits, f"HEADS must divide WIDTH, got {HEADS} heads and WIDTH {d}")
    shapes = {"W_Q": (d, d), "W_K": (d, d), "W_V": (d, d), "W_O": (d, d)}
    shapes |= {"W_1": (4 * d, d), "W_2": (d, 4 * d)}
    fan_in = {"W_2": 4 * d}
    return {
        name: rng.standard_normal(shape) / math.sqrt(fan_in.get(name, d))
        for name, shape in shapes.items()
    }


def layer_norm(x, eps=1e-5):
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)


def block(x, W, scale=1.0, norm=layer_norm):
    """x + MHA(LN(x)), then the same with the FFN; scale multiplies W_O and W_2; (T, d) → (T, d)."""
    x = x + scale * attention(norm(x), W)
    return x + scale * feed_forward(norm(x), W)


def attention(x, W):
    """Every token may look at every other: (T, d) → (T, d)."""
    return mix(attention_weights(x, W), x, W)


def attention_weights(x, W):
    """softmax(q kᵀ/√d_k) in each head: (T, d) → A (h, T, T)."""
    q, k = split_heads(x @ W["W_Q"]), split_heads(x @ W["W_K"])  # (h, T, d_k)
    S = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])  # (h, T, T)
    E = np.exp(S - S.max(axis=-1, keepdims=True))
    return E / E.sum(axis=-1, keepdims=True)


def mix(A, x, W):
    """Each head averages its values, W_O joins the heads: A (h, T, T), x (T, d) → (T, d)."""
    heads = A @ split_heads(x @ W["W_V"])  # (h, T, d_k)
    return heads.transpose(1, 0, 2).reshape(x.shape) @ W["W_O"]  # (T, d)


def split_heads(x):
    return x.reshape(len(x), HEADS, -1).transpose(1, 0, 2)  # (h, T, d_k)


def feed_forward(x, W):
    return gelu_tanh(x @ W["W_1"].T) @ W["W_2"].T  # (T, d)


def rms(x):
    """Root mean square of each row, averaged over the rows."""
    return np.sqrt((x * x).mean(axis=-1)).mean()


# %% Part 5 · §3.2–3.4 ─────────────────────────────────────────────────────────────────────────────
def part5_rotation(show):
    """§3.4 · 相对位移是一个旋转 · A shift of the sinusoids is a rotation"""
    require(WIDTH >= 4, f"WIDTH must be at least 4, two wavelengths, got {WIDTH}")
    require(SHIFTS and min(SHIFTS) >= 1, f"SHIFTS must be whole numbers from 1, got {SHIFTS}")
    show_schemes(show)
    reach = [200, 1000, 4000]  # t from 0 up to here
    p = positions(reach[-1] + max(SHIFTS), WIDTH)  # (T, d)
    residue = np.array([[rotation_residue(p, k, T) for T in reach] for k in SHIFTS])  # (k, reach)
    # an angle ω_i t is rounded to float64 by at most half a unit in its last place, up to
    # 2^-53 ω_i t; for ω_0 = 1 not at all: t is whole
    bound = [f"{2.0**-53 * (T + max(SHIFTS)):.1e}" for T in reach]
    rows = [[k, *(f"{r:.1e}" for r in row)] for k, row in zip(SHIFTS, residue)]
    rounding = ("the angle's rounding, at most about 2^-53 t", "角度 ω_i t 的舍入，至多约 2^-53 t")
    rows.append([show.say(rounding), *bound])
    title = (
        "max |p_{t+k} - R_k p_t|, one R_k for all t",
        "max |p_{t+k} - R_k p_t|，所有 t 共用一个 R_k",
    )
    show.table(title, ["k", *(f"t < {T}" for T in reach)], rows)
    near, far = (f"{residue[:, n].max():.1e}" for n in (0, -1))
    show.note(
        (
            f"The residue grows with t, as the rounding of the angle ω_i t does: {near} for"
            f" t < {reach[0]}, {far} for t < {reach[-1]}.",
            f"残差随 t 增大，因为角度 ω_i t 的舍入在增大：t < {reach[0]} 时为 {near}，"
            f"t < {reach[-1]} 时为 {far}。",
        )
    )

    wavelengths = 2 * math.pi / frequencies(WIDTH)  # (d/2,)
    last = 2 * math.pi * BASE ** ((WIDTH - 2) / WIDTH)
    ratios = wavelengths[1:] / wavelengths[:-1]
    geometric = np.allclose(ratios, ratios[0], rtol=1e-12, atol=0)
    ends = np.allclose(wavelengths[[0, -1]], [2 * math.pi, last], rtol=1e-12, atol=0)
    show.claim("W1D2-018", bool(geometric and ends))
    show.claim("W1D2-019", wavelengths[-1])
    show.claim("W1D2-020", residue[:, 0].max())

    with show.figure("w1day2_sinusoids", columns=2, size=(12, 4.6)) as (heat, waves):
        seen = 128
        image = heat.imshow(p[:seen].T, aspect="auto", cmap="RdBu", vmin=-1, vmax=1)
        heat.set(xlabel="position t", ylabel="dimension")
        heat.set_title(f"$p_t$, d = {WIDTH}: fast clocks on top, slow ones below")
        heat.figure.colorbar(image, ax=heat)
        for i in [0, 4, 8, 12]:
            if 2 * i < WIDTH:
                waves.plot(p[:seen, 2 * i], label=f"i = {i}, wavelength {wavelengths[i]:.1f}")
        waves.set(xlabel="position t", title="Some sine rows: wavelengths grow geometrically")
        waves.set_ylim(-1.1, 1.9)
        waves.legend(loc="upper right", ncols=2)


def frequencies(d):
    """ω_i = BASE^(-2i/d) for i = 0 … d/2 - 1 (§3.3)."""
    require(BASE > 0, f"BASE must be above 0, got {BASE}")
    even = d >= 2 and d % 2 == 0
    require(even, f"WIDTH and D_DOT must be even, sin and cos come in pairs, got d = {d}")
    return BASE ** (-np.arange(0, d, 2) / d)  # (d/2,)


def positions(T, d):
    """p_t = (sin ω_0 t, cos ω_0 t, sin ω_1 t, …) for t = 0 … T - 1 → (T, d)."""
    angle = np.arange(T)[:, None] * frequencies(d)  # (T, d/2)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(T, d)


def rotation(k, d):
    """R_k (d, d): pair i turns by the angle ω_i k, whatever t is (§3.4)."""
    R = np.zeros((d, d))
    for i, omega in enumerate(frequencies(d)):
        c, s = math.cos(omega * k), math.sin(omega * k)
        R[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[c, s], [-s, c]]
    return R


def rotation_residue(p, k, T):
    """max |p_{t+k} - R_k p_t| over t < T."""
    return np.abs(p[k : T + k] - p[:T] @ rotation(k, p.shape[1]).T).max()


def show_schemes(show):
    """§3.2's table: four naive schemes and the sinusoids, held against the four wishes."""
    T = 128
    t = np.arange(T)[:, None]  # (T, 1)
    bits = t >> np.arange(7) & 1  # (T, 7)
    schemes = [t, t / T, np.eye(T), bits, positions(T, WIDTH)]
    en = [
        ["the number t", "unbounded: drowns the words"],
        ["t/T", "the same step differs from text to text"],
        ["one-hot", "no place T; all distances look alike"],
        ["binary digits", "jumps: 63 to 64 flips every digit"],
        ["sinusoids, §3.3", "none of these"],
    ]
    zh = [
        ["直接用整数 t", "无界，会淹没词义"],
        ["归一化 t/T", "同样一步，在长短不同的文本里大小不同"],
        ["one-hot", "没有第 T 个位置；任何距离看起来都一样"],
        ["二进制", "跳变：63 到 64 每一位都翻转"],
        ["正弦，§3.3", "以上都没撞上"],
    ]
    rows = []
    for p, (name, wall) in zip(schemes, show.say((en, zh))):
        steps = np.linalg.norm(np.diff(p, axis=0), axis=1)  # (T - 1,)
        apart_3 = (p[:-3] * p[3:]).sum(axis=1)  # (T - 3,): p_t · p_{t+3}
        row = [name, p.shape[1], len(np.unique(p, axis=0)), f"{np.abs(p).max():.3g}"]
        row += [f"{steps.min():.3g} … {steps.max():.3g}", f"{np.ptp(apart_3):.2g}", wall]
        rows.append(row)
    header = [("scheme", "方案"), ("dimensions", "维数"), ("distinct", "不同的编码数")]
    header += [("largest", "最大值"), ("length of one step", "相邻位置之差的长度")]
    header += [("p_tᵀ p_{t+3} varies by", "p_tᵀ p_{t+3} 的变化幅度"), ("wall", "撞上的墙")]
    show.table((f"§3.2 Positions 0 … {T - 1}, coded", f"§3.2 给 0 … {T - 1} 编码"), header, rows)


# %% Part 6 · §3.5 ─────────────────────────────────────────────────────────────────────────────────
def part6_dot_products(show):
    """§3.5 · 点积只依赖相对距离 · Dot products depend on distance alone"""
    far, near = 4096, 1024
    p = positions(far + 1001, D_DOT)  # (T, d)
    D = p[: far + 1] @ p[0]  # (far + 1,): D[k] = p_0 · p_k
    rises = np.diff(D) > 0  # rises[k - 1]: D[k] > D[k - 1]
    first_rise = int(rises.argmax()) + 1
    lowest, negative = int(D.argmin()), int((D < 0).argmax())

    shown = [0, 1, 2, 4, 8, 11, 12, 16, 32, 64, 128, 256, 512, 1024, 2048, lowest, 4096]
    rows = [
        [k, *(f"{p[t] @ p[t + k]:.4f}" for t in (0, 10, 1000)), f"{cosine_sum(k, D_DOT):.4f}"]
        for k in shown
    ]
    header = [("distance k", "距离 k"), *(f"p_tᵀ p_{{t+k}}, t = {t}" for t in (0, 10, 1000))]
    title = (f"Dot products at distance k, d = {D_DOT}", f"相距 k 的点积，d = {D_DOT}")
    show.table(title, [*header, ("sum of cos(ω_i k)", "cos(ω_i k) 之和")], rows)
    show.note((f"first below 0 at distance {negative}", f"第一次变成负数：距离 {negative}"))

    show.claim("W1D2-021", p.shape[1])
    show.claim("W1D2-022", first_rise)
    show.claim("W1D2-023", rises[:near].sum())
    show.claim("W1D2-024", D.min())

    with show.figure("w1day2_dot_products", columns=2, size=(12, 4.2)) as (whole, start):
        whole.plot(D, linewidth=0.9)
        whole.axhline(0, color="grey", linewidth=0.8)
        whole.plot(lowest, D[lowest], "o", label=f"lowest: {D[lowest]:.2f} at {lowest}")
        whole.set(xlabel="distance k", ylabel="$p_0 \\cdot p_k$", title="Far out it turns negative")
        start.plot(D[:65], ".-")
        start.plot(first_rise, D[first_rise], "o", label=f"first rise: k = {first_rise}")
        start.set(xlabel="distance k", ylabel="$p_0 \\cdot p_k$", title="Falls, but not steadily")
        for ax in (whole, start):
            ax.legend()


def cosine_sum(k, d):
    """The sum over i of cos(ω_i k)."""
    return np.cos(frequencies(d) * k).sum()


# %% Part 7 · §3.6 ─────────────────────────────────────────────────────────────────────────────────
def part7_projection(show):
    """§3.6 · 投影之后，相对性就没了 · Projection destroys relativity"""
    d = WIDTH
    require(len(STARTS) >= 2 and min(STARTS) >= 0, f"STARTS must be two or more, got {STARTS}")
    require(APART >= 1, f"APART must be at least 1, got {APART}")
    p = positions(max(STARTS) + APART + 1, d)  # (T, d)
    W_Q, W_K = projections(PROJECTION_SEED, d)
    random_M = W_Q @ W_K.T  # (d, d)
    # the exception: 2 × 2 blocks [[a, b], [-b, a]], built like R_k's own, commute with every R_k
    a, b = np.random.default_rng(SEED).standard_normal((2, d // 2)) / math.sqrt(d)  # (d/2,) each
    turning_M = np.kron(np.diag(a), np.eye(2)) + np.kron(np.diag(b), [[0, 1], [-1, 0]])  # (d, d)

    matrices = [("M = I", np.eye(d)), (("random M", "随机 M"), random_M)]
    matrices += [(("M of rotations", "由旋转块组成的 M"), turning_M)]
    R = rotation(APART, d)
    rows = [
        [show.say(name), *(f"{s:.3f}" for s in scores(p, M)), f"{np.abs(M @ R - R @ M).max():.1e}"]
        for name, M in matrices
    ]
    header = ["M", *(f"({t}, {t + APART})" for t in STARTS), "max |M R_k - R_k M|"]
    title = (f"p_tᵀ M p_s for pairs {APART} apart", f"相距 {APART} 的几对位置：p_tᵀ M p_s")
    show.table(title, header, rows)
    show_four_terms(show, p, W_Q, W_K)
    others = (projections(seed, d) for seed in range(200))
    spread = np.array([np.ptp(scores(p, W_Q @ W_K.T)) for W_Q, W_K in others])  # (200,)
    three = f"{spread.min():.2f} / {np.median(spread):.2f} / {spread.max():.2f}"
    en = f"Largest minus smallest score for 200 random M: {three} (min / median / max)"
    zh = f"200 个随机 M 的最大打分减最小打分：{three}（最小 / 中位 / 最大）"
    show.note((en, zh))

    show.claim("W1D2-025", scores(p, np.eye(d)))
    show.claim("W1D2-026", scores(p, random_M))


def projections(seed, d):
    """W_Q, W_K (d, d), entries N(0, 1/d); RandomState's stream is the same in every NumPy."""
    draw = np.random.RandomState(seed).standard_normal
    return draw((d, d)) / math.sqrt(d), draw((d, d)) / math.sqrt(d)


def scores(p, M):
    """p_tᵀ M p_s for each pair (t, t + APART)."""
    return [p[t] @ M @ p[t + APART] for t in STARTS]


def show_four_terms(show, p, W_Q, W_K):
    """§3.6's expansion: the same two words at each pair of places, q · k taken apart."""
    x_t, x_s = np.random.default_rng(SEED).standard_normal((2, len(W_Q)))  # (d,) each
    M, rows = W_Q @ W_K.T, []
    for t in STARTS:
        p_t, p_s = p[t], p[t + APART]
        terms = [x_t @ M @ x_s, x_t @ M @ p_s, p_t @ M @ x_s, p_t @ M @ p_s]
        whole = ((x_t + p_t) @ W_Q) @ ((x_s + p_s) @ W_K)
        rows.append([f"({t}, {t + APART})", *(f"{v:.3f}" for v in [*terms, sum(terms), whole])])
    header = ["(t, s)", "x_tᵀ M x_s", "x_tᵀ M p_s", "p_tᵀ M x_s", "p_tᵀ M p_s"]
    title = ("The same two words at three pairs of places", "同样两个词放在三对位置上")
    show.table(title, [*header, ("their sum", "四项之和"), "q_tᵀ k_s"], rows)


# %% Part 8 · §4, §5.1 ─────────────────────────────────────────────────────────────────────────────
def part8_parameters(show):
    """§5.1 · 三个模型的参数量，数到每一个 · Three models, counted to the last parameter"""
    show_architectures(show)
    name, V, P, d, L, _ = GPT2[0]
    layer = layer_shapes(d)
    formulas = ["3d² + 3d", "d² + d", "4d² + 4d", "4d² + d", "4d"]
    rows = [[n, f, count(s)] for (n, s), f in zip(layer.items(), formulas)]
    rows.append([show.say(("sum", "合计")), "12d² + 13d", sum(map(count, layer.values()))])
    title = (
        f"One layer with biases; counted at d = {d}",
        f"一层（带偏置）；右列为 d = {d} 时逐个数出",
    )
    show.table(title, [("item", "项"), ("formula", "公式"), ("parameters", "参数量")], rows)

    models = [gpt2_shapes(*sizes) for _, *sizes, _ in GPT2]
    items = [{item: count(shapes) for item, shapes in model.items()} for model in models]
    totals = [sum(one.values()) for one in items]
    formula = [V * d + P * d + L * (12 * d**2 + 13 * d) + 2 * d for _, V, P, d, L, _ in GPT2]
    published = [model[-1] for model in GPT2]
    zh = {"token embedding": "词嵌入", "position embedding": "位置嵌入", "final LN": "末端 LN"}
    rows = [
        [show.say((item, zh.get(item, item))), *(one[item] for one in items)] for item in items[0]
    ]
    rows += [
        [show.say(("total", "总数")), *totals],
        ["Vd + Pd + L(12d² + 13d) + 2d", *formula],
        [show.say(("published", "公开的数")), *published],
        ["12Ld²", *(12 * L * d**2 for *_, d, L, _ in GPT2)],
    ]
    header = [("item", "项"), *(model[0] for model in GPT2)]
    title = ("Whole models, output tied to the embedding", "整个模型（输出头与词嵌入绑定）")
    show.table(title, header, rows)

    attention = [layer["W_Q, W_K, W_V"], layer["W_O"]]
    ffn = [layer["W_1"], layer["W_2"]]
    in_attention, in_ffn = (sum(map(weights, one)) for one in (attention, ffn))
    show.claim("W1D2-006a", bool(in_ffn == 8 * d**2 and in_attention == 4 * d**2))
    show.claim("W1D2-006b", in_ffn / (in_attention + in_ffn))
    show.claim("W1D2-007", [sum(map(count, one)) / 1e6 for one in (attention, ffn)])
    show.claim("W1D2-029", TRANSFORMER_BASE)
    show.claim("W1D2-030", transformer_parameters() / 1e6)
    show.claim("W1D2-033", totals == formula)
    show.claim("W1D2-034", totals == published)
    show.claim("W1D2-035a", formula[0])
    show.claim("W1D2-036", 12 * L * d**2 / 1e6)
    show.claim("W1D2-037", (items[0]["token embedding"] + items[0]["position embedding"]) / 1e6)


def show_architectures(show):
    """§4.3's table; the last column counts who may look at whom, source and target of 8 tokens."""
    T = 8
    all_pairs, causal = np.ones((T, T), bool), np.tri(T, dtype=bool)  # (T, T) each
    masks = [[all_pairs], [all_pairs, causal, all_pairs], [causal]]
    en = [
        ["encoder only", "BERT", "both ways", "masked words", "classify, tag, retrieve"],
        [
            "encoder-decoder",
            "2017, T5",
            "both ways; causal; cross",
            "target words",
            "translate, summarise",
        ],
        ["decoder only", "GPT, Llama", "causal", "every next word", "generate; anything as text"],
    ]
    zh = [
        ["仅编码器", "BERT", "双向", "被遮住的词", "分类、标注、检索"],
        ["编码器-解码器", "2017 原版、T5", "双向；因果；交叉", "目标句的词", "翻译、摘要"],
        ["仅解码器", "GPT、Llama", "因果", "每个位置的下一个词", "生成，及一切可写成续写的任务"],
    ]
    rows = [
        [*words, " + ".join(str(mask.sum()) for mask in some)]
        for words, some in zip(show.say((en, zh)), masks)
    ]
    header = [("architecture", "架构"), ("examples", "例子"), ("attention", "注意力")]
    header += [("predicts", "预测"), ("good at", "擅长")]
    header.append((f"links, {T} tokens each", f"连线数（每边 {T} 个 token）"))
    show.table(("§4.3 Three architectures", "§4.3 三种架构"), header, rows)


def layer_shapes(d):
    """Every tensor of one GPT-2 layer, item by item: {item: shapes}."""
    return {
        "W_Q, W_K, W_V": 3 * [(d, d), (d,)],
        "W_O": [(d, d), (d,)],
        "W_1": [(4 * d, d), (4 * d,)],
        "W_2": [(d, 4 * d), (d,)],
        "LN_1, LN_2": 2 * [(d,), (d,)],  # gain and bias each
    }


def gpt2_shapes(V, P, d, L):
    """Every tensor of a GPT-2: {item: shapes}; the output layer is the token embedding again."""
    blocks = {item: L * shapes for item, shapes in layer_shapes(d).items()}
    ends = {"token embedding": [(V, d)], "position embedding": [(P, d)]}
    return ends | blocks | {"final LN": [(d,), (d,)]}


def count(shapes):
    """Parameters in tensors of these shapes."""
    return sum(math.prod(shape) for shape in shapes)


def weights(shapes):
    """The same without biases and LayerNorms: matrices only."""
    return count(shape for shape in shapes if len(shape) == 2)


def transformer_parameters():
    """§4.1's base model with one embedding shared by source, target and output."""
    encoders, decoders, d, _, d_ff, *_ = TRANSFORMER_BASE
    attention = count(4 * [(d, d), (d,)])
    ffn = count([(d_ff, d), (d_ff,), (d, d_ff), (d,)])
    norm = 2 * d
    encoder = attention + ffn + 2 * norm
    decoder = 2 * attention + ffn + 3 * norm  # cross-attention is the second
    return encoders * encoder + decoders * decoder + TRANSFORMER_VOCABULARY * d


# %% Part 9 · §5.2, §1.4 ───────────────────────────────────────────────────────────────────────────
def part9_flops(show):
    """§5.2 · 为什么训练是 6N · Why training takes 6N operations, counted"""
    require(COUNT_WIDTH >= 1, f"COUNT_WIDTH must be at least 1, got {COUNT_WIDTH}")
    require(LENGTHS and min(LENGTHS) >= 1, f"LENGTHS must be 1 or more, got {LENGTHS}")
    name, _, _, d, L, _ = GPT2[0]
    narrow = COUNT_WIDTH  # the counts are exact at any width
    layer, projections = [(4 * d, d)], 4 * [(narrow, narrow)]
    ffn = [(4 * narrow, narrow), (narrow, 4 * narrow)]
    measured = [  # label, weights, operations of a token: forward, backward
        (show.say(label), count(shapes), *count_training(shapes))
        for label, shapes in [
            ((f"one matrix, {d} to {4 * d}", f"一个矩阵，{d} 到 {4 * d}"), layer),
            ((f"attention's four, d = {narrow}", f"注意力的四个，d = {narrow}"), projections),
            ((f"the FFN's two, d = {narrow}", f"FFN 的两个，d = {narrow}"), ffn),
        ]
    ]
    rows = [
        [label, n, forward, backward, forward + backward, f"{(forward + backward) / n:g}"]
        for label, n, forward, backward in measured
    ]
    header = [("one token through", "一个 token 通过"), ("weights", "权重数"), ("forward", "前向")]
    header += [("backward", "反向"), ("training", "训练"), ("per weight", "每个权重")]
    show.table(("Operations, counted as they are done", "运算次数，边算边数"), header, rows)

    rows = []
    for T in (8, 32, 128):
        full, causal = (count_attention(T, narrow, one) for one in (False, True))
        rows.append([T, full // T, 4 * T * narrow, causal // T, 2 * (T + 1) * narrow])
    header = ["T", ("all pairs", "全部位置对"), "4Td", ("causal", "只算因果部分"), "2(T + 1)d"]
    title = (
        f"QKᵀ and AV: operations per token and layer, d = {narrow}",
        f"QKᵀ 与 AV：每 token 每层的运算次数，d = {narrow}",
    )
    show.table(title, header, rows)

    rows = [[T, *(f"{s:.1f}" for s in shares(T, d, L))] for T in [*LENGTHS, 6 * d, 12 * d]]
    header = ["T", ("2LTd, Kaplan's, causal: %", "2LTd，Kaplan 口径（因果）：%")]
    header.append(("4LTd, all pairs: %", "4LTd，全部位置对：%"))
    title = (
        f"Attention's share of the forward pass of {name}'s blocks (no output layer),"
        " in both conventions",
        f"{name} 各块前向（不含输出层）中注意力项的占比，两种口径",
    )
    show.table(title, header, rows)
    kaplan, all_pairs = zip(*(shares(T, d, L) for T in (1024, 4096)))
    small, large = ("% / ".join(f"{s:.1f}" for s in both) + "%" for both in (kaplan, all_pairs))
    show.note(
        (
            f"At T = 1024 / 4096 attention takes {small} counted as 2LTd; counted as 4LTd, to which"
            f" the crossover {crossover(d)} belongs, it takes {large}.",
            f"T = 1024 / 4096 时，按 2LTd 计，注意力项占 {small}；若按 4LTd 计"
            f"（交叉点 {crossover(d)} 用的就是它），则占 {large}。",
        )
    )

    (_, _, *one_layer), (_, n_4, forward_4, backward_4), (_, n_2, forward_2, backward_2) = measured
    forward, backward, n = forward_4 + forward_2, backward_4 + backward_2, n_4 + n_2
    show.claim("W1D2-008", forward_2 == 16 * narrow**2 and forward_4 == 8 * narrow**2)
    show.claim("W1D2-038", one_layer)
    show.claim("W1D2-039", [forward / n, backward / n, (forward + backward) / n])
    show.claim("W1D2-040", [crossover(d), crossover(4096)])
    show.claim("W1D2-041", kaplan)


class Tally:
    """Multiplies matrices product by product, and counts what it does."""

    def __init__(self):
        self.operations = 0

    def matmul(self, A, B):
        """A (n, m) times B (m, p) → (n, p)."""
        products = A[:, :, None] * B[None, :, :]  # (n, m, p): every single multiplication
        # each product is then added to a sum: an output's, or a gradient's collected so far
        self.operations += 2 * products.size
        return products.sum(axis=1)  # (n, p)


def count_training(shapes):
    """Operations of one token through y = W x, for a W of each shape: forward, backward."""
    forward, backward = Tally(), Tally()
    for n, m in shapes:
        W, x = np.ones((n, m)), np.ones((m, 1))
        y = forward.matmul(W, x)  # (n, 1)
        y_bar = np.ones_like(y)  # the gradient that comes back
        backward.matmul(W.T, y_bar)  # x̄ (m, 1), for the layer below
        backward.matmul(y_bar, x.T)  # W̄ (n, m), for the optimiser
    return forward.operations, backward.operations


def count_attention(T, d, causal):
    """Operations of QKᵀ and AV for T tokens; causal: token t meets t + 1 keys only."""
    q, k, v = np.random.default_rng(SEED).standard_normal((3, T, d))  # (T, d) each
    tally = Tally()
    for t in range(T):
        seen = t + 1 if causal else T
        S = tally.matmul(q[t : t + 1], k[:seen].T)  # (1, seen)
        tally.matmul(S, v[:seen])  # (1, d); the softmax between them is not a matrix product
    return tally.operations


def crossover(d):
    """First T at which attention's 4Td reaches the 24d² of the linear maps."""
    return -(-24 * d**2 // (4 * d))


def shares(T, d, L):
    """Attention's percentage of a token's forward pass: counted as 2LTd, as 4LTd."""
    N = 12 * L * d**2
    return [100 * a / (a + 2 * N) for a in (2 * L * T * d, 4 * L * T * d)]


# %% Part 10 · §6.1, §6.4 ──────────────────────────────────────────────────────────────────────────
def part10_vocabulary(show):
    """§6.4 · 词表占多少参数 · How much of a model its vocabulary is"""
    require(LARGE_VOCABULARY >= 1, f"LARGE_VOCABULARY must be 1 or more, got {LARGE_VOCABULARY}")
    models = [  # name, V, width d, times the table is held, all parameters
        *((name, V, d, 1, count_all(gpt2_shapes(V, P, d, L))) for name, V, P, d, L, _ in GPT2),
        (*GPT3[:2], GPT3[3], 1, count_all(gpt2_shapes(*GPT3[1:]))),
        (*BERT[:2], BERT[3], 1, count_all(bert_shapes(*BERT[1:]))),
        # Llama's output layer is a table of its own
        *((name, V, d, 2, count_all(llama_shapes(V, d, *rest))) for name, V, d, *rest in LLAMA),
    ]
    rows, share_of = [], {}
    for name, V, d, tables, total in models:
        vocabulary = tables * V * d
        large = tables * LARGE_VOCABULARY * d
        share_of.setdefault(V, []).append((total, vocabulary / total))
        what_if = large / (total - vocabulary + large)
        row = [name, V, d, tables, vocabulary, total, f"{100 * vocabulary / total:.2f}"]
        rows.append([*row, f"{100 * what_if:.2f}"])
    header = [("model", "模型"), "V", "d", ("tables", "嵌入矩阵数"), ("vocabulary", "词表参数")]
    header += [("all", "总参数"), ("share, %", "占比 %")]
    header.append((f"with V = {LARGE_VOCABULARY}, %", f"若 V = {LARGE_VOCABULARY}，%"))
    show.table(("§6.4 The vocabulary's share", "§6.4 词表占比"), header, rows)

    # among models of one vocabulary, the larger the model the smaller the share
    falls = [
        all(a > b for (_, a), (_, b) in zip(same, same[1:]))
        for same in map(sorted, share_of.values())
    ]
    V = GPT2[0][1]
    n_bytes, n_special = 2**8, 1
    show.claim("W1D2-042", [V, n_bytes, V - n_bytes - n_special, n_special])
    show.claim("W1D2-051", all(falls))


def count_all(shapes):
    """Parameters of a whole model, {item: shapes}."""
    return sum(map(count, shapes.values()))


def bert_shapes(V, P, d, L):
    """BERT: GPT-2's layers; segments, a LayerNorm and a pooler in place of the final LayerNorm."""
    shapes = gpt2_shapes(V, P, d, L) | {"segments": [(2, d)], "pooler": [(d, d), (d,)]}
    return shapes | {"embedding LN": shapes.pop("final LN")}


def llama_shapes(V, d, L, d_kv, d_ff):
    """Llama: no biases, SwiGLU, RMSNorm (gain only), k and v narrower than q from Llama 3 on."""
    layer = [(d, d), (d_kv, d), (d_kv, d), (d, d), (d_ff, d), (d, d_ff), (d_ff, d), (d,), (d,)]
    return {"embedding": [(V, d)], "blocks": L * layer, "norm": [(d,)], "output": [(V, d)]}


# %% Part 11 · §6.1, §6.2 ──────────────────────────────────────────────────────────────────────────
def part11_merges(show):
    """§6.2 · BPE 与 WordPiece 的每一次合并 · BPE and WordPiece, every merge"""
    longer = [word for word, _ in CORPUS if len(word) > 1]
    require(longer, f"CORPUS must hold a word of two letters or more, got {CORPUS}")
    sane = all(word and n >= 1 for word, n in CORPUS)
    require(sane, f"CORPUS must hold words, each 1 time or more, got {CORPUS}")
    start = {word: [word[0], *("##" + c for c in word[1:])] for word, _ in CORPUS}
    pairs, pieces = count_pairs(start)
    scores = {(a, b): wordpiece_score(ab, pieces[a], pieces[b]) for (a, b), ab in pairs.items()}
    rows = [
        [f"{a} + {b}", ab, pieces[a], pieces[b], f"{scores[a, b]:.4f}"]
        for (a, b), ab in pairs.items()
    ]
    header = [("pair", "相邻对"), "count(ab)", "count(a)", "count(b)"]
    header.append(("WordPiece's score", "WordPiece 得分"))
    title = ("At the start: how often, and how surprising", "合并之前：每一对的频次与得分")
    show.table(title, header, rows)

    bpe = learn({word: list(word) for word, _ in CORPUS}, lambda ab, a, b: ab)
    wordpiece = learn(start, wordpiece_score)
    for name, steps in ("BPE", bpe), ("WordPiece", wordpiece):
        rows = [
            [n, f"{a} + {b}", ab, f"{score:.4g}", "  ".join(" ".join(split) for split in splits)]
            for n, ((a, b), ab, score, splits) in enumerate(steps, start=1)
        ]
        title = f"{name}: every merge; of equals the pair met first in the corpus"
        title = (title, f"{name} 的每一次合并；并列时取语料里先出现的一对")
        header = ["", ("merge", "合并"), ("count", "频次"), ("score", "得分")]
        header.append(("the corpus now", "合并后的语料"))
        show.table(title, header, rows)

    merges = [pair for pair, *_ in bpe]
    vocabulary = {piece for split in start.values() for piece in split}
    vocabulary |= {join(*pair) for pair, *_ in wordpiece}
    rows = [
        [w, " ".join(encode_bpe(w, merges)), " ".join(encode_wordpiece(w, vocabulary))]
        for w in NEW_WORDS
    ]
    header = [("word", "词"), ("BPE replays its merges", "BPE 按顺序重放合并")]
    header.append(("WordPiece takes the longest match", "WordPiece 取最长匹配"))
    show.table(("Words the corpus does not hold", "语料里没有的词"), header, rows)

    show.claim("W1D2-043", [n for _, n in CORPUS])
    show.claim("W1D2-044a", merges[0] == ("u", "g"))
    show.claim("W1D2-044b", bpe[0][1])
    show.claim("W1D2-045a", wordpiece[0][0] == ("##g", "##s"))
    show.claim("W1D2-045b", [scores.get(pair, 0) for pair in (("##g", "##s"), ("##u", "##g"))])
    show.claim("W1D2-046", [pieces.get("##u", 0), pieces.get("##s", 0)])


def count_pairs(splits):
    """How often neighbours (a, b) and single pieces occur in the corpus, in the order met."""
    pairs, pieces = {}, {}
    for word, n in CORPUS:
        split = splits[word]
        for piece in split:
            pieces[piece] = pieces.get(piece, 0) + n
        for pair in zip(split, split[1:]):
            pairs[pair] = pairs.get(pair, 0) + n
    return pairs, pieces


def wordpiece_score(ab, a, b):
    """count(ab) / (count(a) count(b)): PMI without its logarithm and constant."""
    return ab / (a * b)


def learn(splits, score):
    """Merge the best pair until each word is whole: a list of (pair, count, score, splits)."""
    steps = []
    while count_pairs(splits)[0]:
        pairs, pieces = count_pairs(splits)
        scores = {(a, b): score(ab, pieces[a], pieces[b]) for (a, b), ab in pairs.items()}
        best = max(scores, key=scores.get)  # the first of equals
        splits = {word: merge(split, best) for word, split in splits.items()}
        steps.append((best, pairs[best], scores[best], list(splits.values())))
    return steps


def merge(split, pair):
    """Join each (a, b) in a list of pieces, from the left."""
    out = []
    for piece in split:
        if out and (out[-1], piece) == pair:
            out[-1] = join(out[-1], piece)
        else:
            out.append(piece)
    return out


def join(a, b):
    """WordPiece's ## says "inside a word"; it goes where two pieces meet."""
    return a + b.removeprefix("##")


def encode_bpe(word, merges):
    """Characters, then every merge in the order in which it was learned."""
    split = list(word)
    for pair in merges:
        split = merge(split, pair)
    return split


def encode_wordpiece(word, vocabulary):
    """The longest piece that fits, again and again from the left; [UNK] where none does."""
    split, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = [e for e in range(len(word), start, -1) if prefix + word[start:e] in vocabulary]
        if not ends:
            return ["[UNK]"]
        split.append(prefix + word[start : ends[0]])
        start = ends[0]
    return split


# %% Part 12 · §6.3 ────────────────────────────────────────────────────────────────────────────────
def part12_viterbi(show):
    """§6.3 · Unigram 的 Viterbi 与穷举 · Unigram: Viterbi against every segmentation"""
    require(WORD, f"WORD must not be empty, got {WORD!r}")
    require(all(n > 0 for _, n in PIECES), f"PIECES must have counts above 0, got {PIECES}")
    total = sum(n for _, n in PIECES)
    log_P = {piece: math.log(n / total) for piece, n in PIECES}
    needed = {*WORD, "hug", "s", "hugs"}  # the lecture scores the last three
    require(needed <= log_P.keys(), f"PIECES must hold {sorted(needed)} for WORD {WORD!r}")
    ways = sorted(segmentations(WORD, log_P), key=lambda way: -score_of(way, log_P))
    together = sum(math.exp(score_of(way, log_P)) for way in ways)
    rows = [
        [" + ".join(way), f"{s:.4f}", f"{math.exp(s):.6f}", f"{math.exp(s) / together:.3f}"]
        for way in ways
        for s in [score_of(way, log_P)]
    ]
    header = [("segmentation", "切法"), "log P", "P", ("share when sampled", "按概率采样时的占比")]
    show.table((f"Every segmentation of {WORD}", f"{WORD} 的每一种切法"), header, rows)

    best = viterbi(WORD, log_P)
    rows = [
        [WORD[:end], f"{best[end][0]:.4f}", " + ".join(path(WORD, best, end))]
        for end in range(1, len(WORD) + 1)
    ]
    header = [("prefix", "前缀"), "log P", ("its best segmentation", "它的最佳切法")]
    title = ("Viterbi: the best way to each prefix", "Viterbi：到每个前缀的最佳切法")
    show.table(title, header, rows)

    letters = [piece for piece in log_P if len(piece) == 1]
    strings = ["".join(s) for n in range(1, 6) for s in product(letters, repeat=n)]
    agree = [
        math.isclose(
            viterbi(s, log_P)[-1][0],
            max(score_of(way, log_P) for way in segmentations(s, log_P)),
        )
        for s in strings
    ]
    agree.append(path(WORD, best, len(WORD)) == ways[0])
    en = f"Compared on {WORD} and {len(strings)} strings, all of 1 to 5 of {', '.join(letters)}"
    zh = f"比较的范围：{WORD}，以及 {'、'.join(letters)} 组成的长 1 到 5 的全部 {len(strings)} 个串"
    show.note((en, zh))
    show.claim("W1D2-047", len(ways))
    show.claim("W1D2-048", log_P["hugs"])
    show.claim("W1D2-049", log_P["hug"] + log_P["s"])
    show.claim("W1D2-050", all(agree))


def segmentations(word, log_P):
    """Every way to write the word as pieces of the vocabulary: lists of pieces."""
    if not word:
        return [[]]
    heads = [word[:end] for end in range(1, len(word) + 1) if word[:end] in log_P]
    return [[head, *rest] for head in heads for rest in segmentations(word[len(head) :], log_P)]


def score_of(way, log_P):
    """A segmentation's log P: its pieces are independent."""
    return sum(log_P[piece] for piece in way)


def viterbi(word, log_P):
    """best[end] = (log P of the best way to word[:end], where its last piece starts)."""
    best = [(0.0, 0)]
    for end in range(1, len(word) + 1):
        best.append(
            max(
                (best[start][0] + log_P.get(word[start:end], -math.inf), start)
                for start in range(end)
            )
        )
    return best


def path(word, best, end):
    """Follow the starts back from end: the best segmentation of word[:end]."""
    start = best[end][1]
    return ([*path(word, best, start)] if start else []) + [word[start:end]]


# %% All parts ─────────────────────────────────────────────────────────────────────────────────────
PARTS = [part1_memory, part2_swiglu, part3_gelu, part4_residual_stream, part5_rotation]
PARTS += [part6_dot_products, part7_projection, part8_parameters, part9_flops, part10_vocabulary]
PARTS += [part11_merges, part12_viterbi]

if __name__ == "__main__":
    main(__doc__, PARTS)
