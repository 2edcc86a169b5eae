"""04 · Transformer 块 · The Transformer block · Lecture 2, §4.2–4.10

LayerNorm by hand, why depth needs the residual connection, where GPT's parameters and FLOPs are,
what one forward pass computes, and where each of the slides' formulas stands in lm_models.py.

    python 04_transformer_block.py            every part
    python 04_transformer_block.py --part 2   one part
"""

import ast
import inspect
import statistics
import textwrap
import time
from companion import cores, in_processes, main, require
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import lm_models
from lm_models import GPT, LSTMLM, RNNLM, Block, MultiHeadAttention, gpt_parameter_count

# ── constants: edit and run again ────────────────────────────────────────────────────────────────
EPSILON = 1e-5  # added to LayerNorm's variance, as PyTorch does
INPUT_STD = 3.0  # of the tokens that LayerNorm is tried on
FACTOR, SHIFT = 100.0, 7.0  # what those tokens are multiplied by, what is added to them
DEPTHS = [2, 4, 8, 16, 32, 64]  # layers of the plain and the residual networks
WIDTH = 32  # units in each of their layers
TEACHER = 8  # inputs, hidden units and outputs of the random teacher
EXAMPLES, BATCH = 1024, 64  # what the teacher labels; how many of them make one training step
STEPS, RATE = 500, 1e-3  # Adam's steps and learning rate
NORM_DEPTHS = [2, 8, 32]  # Transformer blocks stacked to compare pre-norm with post-norm
VOCAB, D_MODEL, N_LAYERS, N_HEADS, MAX_LEN = 47, 64, 2, 4, 32  # the small GPT
TOKENS, CHANGED = 12, 7  # a sequence of 12 tokens, of which the 7th is changed
TIMED, PATIENCE = 512, 1.0  # tokens in a timed sequence; seconds to go on repeating it
SEED = 0

F64 = torch.float64  # residues of 1e-16 need it
META = torch.device("meta")  # shapes without numbers: GPT-3 is counted here, never filled in

# name: V, d, L, h, T_max, parameters as reported (None: not reported)
MODELS = {
    "small GPT": (VOCAB, D_MODEL, N_LAYERS, N_HEADS, MAX_LEN, None),
    "GPT-2 small": (50257, 768, 12, 12, 1024, 117_000_000),
    "GPT-2 Medium": (50257, 1024, 24, 16, 1024, 355_000_000),
    "GPT": (40478, 768, 12, 12, 512, 117_000_000),
    "GPT-2 XL": (50257, 1600, 48, 25, 1024, 1_542_000_000),
    "GPT-3": (50257, 12288, 96, 96, 2048, 175_000_000_000),
}
GOOGLE_NGRAMS = [13_588_391, 314_843_401, 977_069_902, 1_313_818_354, 1_176_470_663]  # n = 1 … 5
LLM_SIZES = [["GPT-3", 175e9, 300e9], ["Chinchilla", 70e9, 1.4e12], ["LLaMA-3 405B", 405e9, 15e12]]


# %% Part 1 · §4.3, exercise 5 ─────────────────────────────────────────────────────────────────────
def part1_layer_norm(show):
    """§4.3、练习 5 · 层归一化 · LayerNorm"""
    require(EPSILON >= 0, f"EPSILON must be 0 or more, got {EPSILON}")
    require(INPUT_STD > 0, f"INPUT_STD must be above 0, got {INPUT_STD}")
    require(FACTOR > 0, f"FACTOR must be above 0: a negative one turns the sign, got {FACTOR}")
    seeds = show.seeds(10)
    changes = [norm_changes(seed) for seed in seeds]  # S dicts: what was done → (LN, BN)
    rows = []
    for what in changes[0]:
        layer, batch = zip(*[change[what] for change in changes])  # S numbers each
        rows.append([show.say(what), *map(spread, (layer, batch))])
    title = (
        f"Largest change of the output, 8 tokens of 64 numbers, {len(seeds)} seeds",
        f"输出的最大变化（8 个 token、每个 64 维，{len(seeds)} 个种子）",
    )
    show.table(title, [("change of the input", "输入的变化"), "LayerNorm", "BatchNorm"], rows)
    show.note(
        (
            "LayerNorm takes each token's own statistics: its scale matters only through ε, and "
            "the other tokens not at all. BatchNorm's are taken over the tokens: a factor common "
            "to all does no harm, one for each token does, and so does leaving some tokens out.",
            "LayerNorm 只用每个 token 自己的统计量：放大多少倍只通过 ε 有一点点影响，同批还有哪些 "
            "token 则毫无影响。BatchNorm 的统计量是跨 token 算的：所有 token 乘同一个数没有关系，"
            "各乘各的、或者去掉同批的一部分 token，结果就变了。",
        )
    )

    residues = [layer_norm_residue(seed) for seed in seeds]
    scaled, shifted, each = (
        [change[what][0] for change in changes] for what in list(changes[0])[:3]
    )
    show.claim("L2-077", max(residues), residues)
    show.claim("L2-078", nn.LayerNorm(64).eps)
    show.claim("L2-079", statistics.median(scaled), scaled)
    show.claim("L2-080", max(shifted), shifted)
    show.claim("L2-081", max(each), each)

    x = torch.tensor([[1, 2, 3, 4], [10, 20, 30, 40], [101, 102, 103, 104]], dtype=F64)
    normed = layer_norm(x, epsilon=0)  # (3, 4)
    show.table(
        ("Exercise 5, ε = 0", "练习 5，ε = 0"),
        ["x", "μ", "σ", "LN(x)"],
        [
            [
                str(one.int().tolist()),
                f"{one.mean():g}",
                f"{one.std(correction=0):.4f}",
                listed(out),
            ]
            for one, out in zip(x, normed)
        ],
    )
    show.claim("L2-168", [x[0].mean(), x[0].std(correction=0)])
    show.claim("L2-169a", normed[0])
    show.claim("L2-169b", torch.allclose(normed, normed[:1].expand(3, 4), rtol=0, atol=1e-15))


def layer_norm(x, gamma=1.0, beta=0.0, epsilon=EPSILON):
    """γ ⊙ (x - μ)/√(σ² + ε) + β with μ and σ² of each token's own d numbers; x (…, d) → (…, d)."""
    mu = x.mean(dim=-1, keepdim=True)  # (…, 1)
    variance = ((x - mu) ** 2).mean(dim=-1, keepdim=True)  # (…, 1)
    return gamma * (x - mu) / torch.sqrt(variance + epsilon) + beta


def layer_norm_residue(seed):
    """Largest difference to nn.LayerNorm with a gain and a bias that are not 1 and 0."""
    draws = torch.Generator().manual_seed(seed)
    x, gamma, beta = (torch.randn(n, 64, generator=draws, dtype=F64) for n in (8, 1, 1))
    theirs = nn.LayerNorm(64, eps=EPSILON, dtype=F64)
    theirs.load_state_dict({"weight": gamma[0], "bias": beta[0]})
    return (layer_norm(x, gamma, beta) - theirs(x)).abs().max().item()


def norm_changes(seed):
    """{what is done to 8 tokens: (change of LayerNorm's output, change of BatchNorm's)}."""
    draws = torch.Generator().manual_seed(seed)
    x = INPUT_STD * torch.randn(8, 64, generator=draws, dtype=F64)  # (T, d)
    factors = torch.linspace(0.5, 100, 8, dtype=F64).unsqueeze(1)  # (T, 1)
    batch_norm = nn.BatchNorm1d(64, eps=EPSILON, affine=False).double()  # statistics over tokens

    def change(changed):
        pairs = ((norm(changed), norm(x)[: len(changed)]) for norm in (layer_norm, batch_norm))
        return [(after - before).abs().max().item() for after, before in pairs]

    return {
        f"× {FACTOR:g}": change(FACTOR * x),
        f"+ {SHIFT:g}": change(x + SHIFT),
        ("each token × 0.5 … 100", "每个 token 各乘 0.5 … 100"): change(factors * x),
        ("4 tokens instead of 8", "8 个 token 只保留 4 个"): change(x[:4]),
    }


def spread(values, form=".3g"):
    """The median and, in brackets, the extremes."""
    low, middle, high = min(values), statistics.median(values), max(values)
    text = f"{middle:{form}}"
    return text if low == high else f"{text} ({low:{form}} … {high:{form}})"


def listed(vector):
    return "[" + ", ".join(f"{one:.4f}" for one in vector.tolist()) + "]"


# %% Part 2 · §4.4–4.5 ─────────────────────────────────────────────────────────────────────────────
def part2_depth(show):
    """§4.4–4.5 · 残差连接让深层网络训得动 · Residual connections make depth trainable"""
    for name, depths in (("DEPTHS", DEPTHS), ("NORM_DEPTHS", NORM_DEPTHS)):
        require(len(depths) > 0, f"{name} must hold at least one depth, got {depths}")
        require_whole(**{f"{name}[{n}]": depth for n, depth in enumerate(depths)})
    require_whole(STEPS=STEPS, BATCH=BATCH, EXAMPLES=EXAMPLES, TEACHER=TEACHER)
    require_whole(2, WIDTH=WIDTH)  # LayerNorm turns a single number into 0
    require(RATE > 0, f"RATE must be above 0, got {RATE}")
    seeds = show.seeds(5)
    steps = 50 if show.quick else STEPS

    tasks = [(depth, kind, seeds, steps) for depth in sorted(DEPTHS)[::-1] for kind in KINDS]
    losses = dict(
        zip([task[:2] for task in tasks], in_processes(show, train, tasks, ("training", "训练")))
    )
    variances = target_variance(teacher(generators(seeds))[1]).tolist()  # (S,)
    ratios = {net: [loss / v for loss, v in zip(losses[net], variances)] for net in losses}
    rows = []
    for depth in DEPTHS:
        row = [depth]
        for net in [(depth, kind) for kind in KINDS]:
            row += [spread(losses[net], ".4f"), f"{statistics.median(ratios[net]):.3f}"]
        rows.append(row)
    title = (
        f"Loss after {steps} steps, {len(seeds)} seeds; target variance {spread(variances, '.4f')}",
        f"{steps} 步后的损失（{len(seeds)} 个种子）；目标方差 {spread(variances, '.4f')}",
    )
    over = ("/ variance", "/ 方差")
    header = [("layers", "层数"), ("plain network", "普通网络"), over]
    show.table(title, [*header, ("residual network", "残差网络"), over], rows)

    learnt = {d: sum(r < 0.99 for r in ratios[d, "plain"]) for d in DEPTHS}
    show.note(
        (
            f"Plain networks whose loss fell below 0.99 of the variance, of {len(seeds)}: "
            + ", ".join(f"{d} layers {n}" for d, n in learnt.items()),
            f"损失降到方差的 0.99 以下的普通网络（共 {len(seeds)} 个）："
            + "、".join(f"{d} 层 {n} 个" for d, n in learnt.items()),
        )
    )
    show.claim("L2-082", statistics.median(variances), variances)
    for id, of, net in (
        ("L2-083a", ratios, (32, "plain")),
        ("L2-083b", ratios, (64, "plain")),
        ("L2-084", losses, (64, "residual")),
        ("L2-085", losses, (2, "plain")),
    ):
        if net in of:
            show.claim(id, statistics.median(of[net]), of[net])
    show.claim("L2-086", steps)

    gradients = {kind: initial_gradients(max(DEPTHS), kind, seeds) for kind in KINDS}  # (S, L)
    compare_norms(show, seeds, gradients)
    with show.figure("04_degradation") as ax:
        for kind, line in KINDS.items():
            values = [losses[depth, kind] for depth in DEPTHS]
            band(ax, DEPTHS, values, f"o{line}", f"{kind} network")
        ax.axhline(statistics.median(variances), color="grey", linestyle="--")
        ax.annotate("always predicting the mean", (DEPTHS[0], statistics.median(variances)),
                    (0, 4), textcoords="offset points", va="bottom", color="grey")  # fmt: skip
        ax.set(xscale="log", yscale="log", xlabel="layers", ylabel=f"loss after {steps} steps")
        ax.set_xticks(DEPTHS, DEPTHS)
        ax.minorticks_off()
        ax.set_title(f"Median and range of {len(seeds)} seeds")
        ax.legend()


KINDS = {"plain": "-", "residual": "--"}  # the two networks, and the line that figures draw them in


def require_whole(low=1, **sizes):
    for name, value in sizes.items():
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= low
        require(whole, f"{name} must be a whole number, {low} or more, got {value!r}")


class Networks(nn.Module):
    """S networks side by side, one for each generator in draws; they share nothing.

    plain: h ← tanh(W h + b). residual: h ← h + tanh(W LN(h) + b). Linear maps in and out.
    Weights and biases start from U(±1/√inputs), as nn.Linear's. x (S, B, n) → (S, B, n).
    """

    def __init__(self, depth, kind, draws):
        super().__init__()
        self.kind = kind
        self.W_in, self.b_in = linear(draws, TEACHER, WIDTH)  # (S, n, H), (S, 1, H)
        self.W, self.b = linear(draws, WIDTH, WIDTH, depth)  # (S, L, H, H), (S, L, 1, H)
        self.W_out, self.b_out = linear(draws, WIDTH, TEACHER)  # (S, H, n), (S, 1, n)

    def forward(self, x):
        h = affine(x, self.W_in, self.b_in)  # (S, B, H)
        for W, b in zip(self.W.unbind(dim=1), self.b.unbind(dim=1)):  # layer by layer
            if self.kind == "plain":
                h = torch.tanh(affine(h, W, b))
            else:
                h = h + torch.tanh(affine(F.layer_norm(h, (WIDTH,)), W, b))
        return affine(h, self.W_out, self.b_out)  # (S, B, n)


def affine(x, W, b):
    """x W + b in each of the S networks: x (S, B, n), W (S, n, m), b (S, 1, m) → (S, B, m)."""
    return torch.baddbmm(b, x, W)


def linear(draws, inputs, outputs, *layers):
    """The weights (S, *layers, inputs, outputs) and biases of linear maps, one for each seed."""
    bound = inputs**-0.5
    shapes = (*layers, inputs, outputs), (*layers, 1, outputs)
    return [
        nn.Parameter(
            torch.stack([torch.empty(s).uniform_(-bound, bound, generator=g) for g in draws])
        )
        for s in shapes
    ]


def generators(seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def teacher(draws):
    """X ~ N(0, 1) and Y = tanh(tanh(X W_1) W_2) with W ~ N(0, 1/n), each (S, EXAMPLES, n)."""
    n = TEACHER
    X, W_1, W_2 = (
        torch.stack([torch.randn(rows, n, generator=g) for g in draws]) for rows in (EXAMPLES, n, n)
    )
    return X, torch.tanh(torch.tanh(X @ W_1 / n**0.5) @ W_2 / n**0.5)


def target_variance(Y):
    """The loss of the best constant answer, for each seed: Y (S, EXAMPLES, n) → (S,)."""
    return Y.var(dim=1, correction=0).mean(dim=-1)


def train(task):
    """The loss on all examples after training, one number for each seed."""
    depth, kind, seeds, steps = task
    with threads(1):
        draws = generators(seeds)
        X, Y = teacher(draws)  # (S, EXAMPLES, n)
        networks = Networks(depth, kind, draws)
        adam = torch.optim.Adam(networks.parameters(), lr=RATE, fused=True)
        order = torch.Generator().manual_seed(SEED)
        for _ in range(steps):
            some = torch.randint(EXAMPLES, (BATCH,), generator=order)  # (B,)
            losses = squared_error(networks(X[:, some]), Y[:, some])  # (S,)
            adam.zero_grad()
            losses.sum().backward()  # networks share no weight, so each gets its own gradient
            adam.step()
        with torch.no_grad():
            return squared_error(networks(X), Y).tolist()


def squared_error(answer, Y):
    """Its mean over examples and outputs, for each seed: (S, B, n) → (S,)."""
    return ((answer - Y) ** 2).mean(dim=(1, 2))


def initial_gradients(depth, kind, seeds):
    """‖∂loss/∂W‖ of every layer before training → (S, L)."""
    with threads(1):
        draws = generators(seeds)
        X, Y = teacher(draws)  # (S, EXAMPLES, n)
        networks = Networks(depth, kind, draws)
        squared_error(networks(X), Y).sum().backward()
    return networks.W.grad.norm(dim=(2, 3))  # (S, L)


@contextmanager
def threads(count):
    """Inside the `with`, torch computes on that many threads; afterwards on as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compare_norms(show, seeds, gradients):
    """§4.4's gradient by layer and §4.5's by norm, before training: two tables and a figure."""
    depth = max(DEPTHS)
    layers = sorted({n for n in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128) if n < depth} | {depth})
    rows = [[n, *(spread(gradients[kind][:, n - 1].tolist()) for kind in KINDS)] for n in layers]
    show.table(
        (f"Before training: ‖∂loss/∂W‖ in networks of {depth} layers",
         f"训练之前：{depth} 层网络里各层的 ‖∂loss/∂W‖"),
        [("layer", "第几层"), ("plain network", "普通网络"), ("residual network", "残差网络")],
        rows,
    )  # fmt: skip

    tasks = [(norm, d, seed) for d in NORM_DEPTHS for norm in ("pre", "post") for seed in seeds]
    with threads(1):
        found = {task: norm_gradients(*task) for task in tasks}
    back, last = ({t: values[n] for t, values in found.items()} for n in (0, 1))
    rows = [
        [d]
        + [
            spread([of[norm, d, s] for s in seeds])
            for of in (back, last)
            for norm in ("pre", "post")
        ]
        for d in NORM_DEPTHS
    ]
    show.table(
        ("Transformer blocks before training: gradient at the input over gradient at the output; "
         "gradient of the last block's W_2",
         "训练之前的 Transformer 块：输入处与输出处的梯度之比；最后一块 W_2 的梯度"),
        [("blocks", "块数"), ("input/output, pre-norm", "输入/输出，pre-norm"), "post-norm",
         ("last W_2, pre-norm", "最后的 W_2，pre-norm"), "post-norm"],
        rows,
    )  # fmt: skip
    show.note(
        (
            "Pre-norm leaves the residual path alone: the gradient reaches the input undiminished, "
            "and the last block's falls as the stack grows. In post-norm each block's LayerNorms "
            "act on the path, and the last block's gradient stays large however deep the stack, "
            "which Xiong et al. (2020) give as the reason for the learning rate's warm-up (not "
            "tested here).",
            "pre-norm 不碰残差通路：梯度传到输入处并不变小，最后一块的梯度随深度下降。"
            "post-norm 的每一块都有 LN 作用在通路上，而且无论堆多深，最后一块的梯度始终很大；"
            "Xiong et al. (2020) 用这一点解释为什么需要学习率预热（这里没有训练验证）。",
        )
    )
    with show.figure("04_gradients", columns=2) as (by_layer, by_norm):
        for kind, line in KINDS.items():
            name = f"{kind} network"
            band(by_layer, range(1, depth + 1), gradients[kind].T.tolist(), line, name)
        by_layer.set(yscale="log", xlabel="layer", ylabel="‖∂loss/∂W‖ before training")
        by_layer.set_title(f"{depth} layers: residuals carry the gradient to layer 1")
        for norm, style in (("pre", "o-"), ("post", "s--")):
            ratios = [[back[norm, d, s] for s in seeds] for d in NORM_DEPTHS]
            band(by_norm, NORM_DEPTHS, ratios, style, f"{norm}-norm")
        by_norm.set(xscale="log", xlabel="blocks", ylabel="gradient at the input / at the output")
        by_norm.set_xticks(NORM_DEPTHS, NORM_DEPTHS)
        by_norm.minorticks_off()
        by_norm.set_title("Transformer blocks: pre-norm's path is clear")
        for ax in (by_layer, by_norm):
            ax.legend()


def norm_gradients(norm, depth, seed):
    """Before training: ‖gradient‖ at the input over that at the output, ‖gradient‖ of the last W_2.

    The loss is a random linear function of the output, after the final LayerNorm of pre-norm.
    """
    blocks = seeded(seed, lambda: [Block(32, 4, norm) for _ in range(depth)])
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 16, 32, generator=draws, requires_grad=True)  # (B, T, d)
    u = torch.randn(2, 16, 32, generator=draws)  # (B, T, d)
    out = x
    for block in blocks:
        out = block(out)
    loss = (u * (F.layer_norm(out, (32,)) if norm == "pre" else out)).sum()
    W_2 = blocks[-1].ffn.W_2.weight
    at_input, at_output, at_W_2 = (
        g.norm().item() for g in torch.autograd.grad(loss, (x, out, W_2))
    )
    return at_input / at_output, at_W_2


def seeded(seed, build):
    """What build() makes when torch's own random stream starts at seed; the stream is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def band(ax, x, values, style, label):
    """A line through the medians and a band from least to largest; values[n] belong to x[n]."""
    ax.plot(x, list(map(statistics.median, values)), style, label=label)
    ax.fill_between(x, list(map(min, values)), list(map(max, values)), alpha=0.2)


# %% Part 3 · §4.2, 4.6, 4.7, 1.2, 1.3, 7.1, exercise 6 ────────────────────────────────────────────
def part3_parameters(show):
    """§4.6–4.7、1.2–1.3、练习 6 · 数参数 · Counting parameters"""
    require_small_gpt()
    header = ["", ("layers L", "层数 L"), "d", ("inner 4d", "前馈中间维 4d"), ("heads h", "头数 h")]
    header += ["d/h", ("vocabulary V", "词表 V"), "T_max"]
    sizes = [[name, L, d, 4 * d, h, d // h, V, T] for name, (V, d, L, h, T, _) in MODELS.items()]
    show.table(("Sizes", "规模"), header, sizes)
    with META:
        heads = Block(1600, 25).attn
    show.claim("L2-087", [heads.n_heads, heads.d_k])

    widths = [D_MODEL, 768, 1600, 12288]
    layers = {d: count_layer(d) for d in widths}
    header = ["d", ("attention", "注意力"), ("feed-forward", "前馈"), ("two LayerNorms", "两个 LN")]
    header += [
        ("sum", "合计"),
        "12d² + 13d",
        ("feed-forward's share of 12d²", "前馈占 12d² 的份额"),
    ]
    rows = [
        [d, *parts, sum(parts), 12 * d**2 + 13 * d, f"{ffn_share:.4f}"]
        for d, (parts, _, ffn_share) in layers.items()
    ]
    show.table(("One layer, counted", "一层的参数（逐个数出）"), header, rows)
    show.claim("L2-076", layers[768][2])
    show.claim("L2-088", all(sum(layers[d][0]) == 12 * d**2 + 13 * d for d in widths))
    show.claim("L2-095", count_layer(2 * 768)[1] / layers[768][1])

    items = {name: gpt_parameter_count(V, d, L, T) for name, (V, d, L, _, T, _) in MODELS.items()}
    counted = {name: count_gpt(*size[:5]) for name, size in MODELS.items()}
    share = {
        name: (count["token embedding"] + count["position embedding"]) / count["total"]
        for name, count in items.items()
    }
    for names in (list(MODELS)[:3], list(MODELS)[3:]):
        rows = [[ITEMS[item], *(items[n][item] for n in names)] for item in ITEMS]
        rows += [
            [("counted by PyTorch", "PyTorch 数出"), *(counted[n] for n in names)],
            [("embeddings' share, %", "嵌入层占比，%"), *(f"{100 * share[n]:.2f}" for n in names)],
            [("as reported", "报告值"), *(MODELS[n][5] or "—" for n in names)],
        ]
        rows = [[show.say(row[0]), *row[1:]] for row in rows]
        show.table((", ".join(names), "、".join(names)), ["", *names], rows)
    total = {name: count["total"] for name, count in items.items()}
    no_final_norm = total["GPT"] - count_gpt(*MODELS["GPT"][:5], norm="post")
    show.note(
        (
            f"The first GPT is post-norm, without a final LayerNorm: {no_final_norm:,} fewer. "
            "GPT-2 small and Medium are 124.4M and 354.8M as released; their paper's 117M and 345M "
            "do not match the weights.",
            f"初代 GPT 是 post-norm，没有最后的 LN，要少 {no_final_norm:,} 个。"
            "GPT-2 small、Medium 按公开权重是 124.4M、354.8M，论文里的 117M、345M 与权重对不上。",
        )
    )
    show.claim("L2-089", [counted["small GPT"], total["small GPT"]])
    agree = round(total["GPT"] / 1e6) == 117 and round(total["GPT-3"] / 1e9) == 175
    show.claim("L2-090", agree)
    show.claim("L2-091", (total["GPT-2 XL"] / MODELS["GPT-2 XL"][5] - 1) * 100)
    show.claim("L2-092", total["GPT-2 small"] / 1e6)
    show.claim("L2-093", MODELS["GPT-2 small"][5] / 1e6)
    show.claim("L2-094", share["GPT"] > share["GPT-2 XL"] > share["GPT-3"])
    medium, d = items["GPT-2 Medium"], 1024
    layer = count_layer(d)[0]
    show.claim("L2-170", [count_layer(d)[1], sum(layer) - count_layer(d)[1], sum(layer)])
    in_layers = medium["attention"] + medium["feed-forward"] + medium["layer norms"]
    embeddings = [medium["token embedding"], medium["position embedding"]]
    show.claim("L2-171", [in_layers, *embeddings, medium["final layer norm"]])
    show.claim("L2-172", counted["GPT-2 Medium"])
    count_history(show)


ITEMS = {
    "token embedding": ("token embedding Vd", "词嵌入 Vd"),
    "position embedding": ("position embedding T_max d", "位置嵌入 T_max d"),
    "attention": ("attention L(4d² + 4d)", "注意力 L(4d² + 4d)"),
    "feed-forward": ("feed-forward L(8d² + 5d)", "前馈 L(8d² + 5d)"),
    "layer norms": ("LayerNorms L · 4d", "各层 LN L · 4d"),
    "final layer norm": ("final LayerNorm 2d", "最后的 LN 2d"),
    "total": ("total by the formula", "公式合计"),
}


def require_small_gpt():
    sizes = {"VOCAB": VOCAB, "D_MODEL": D_MODEL, "N_LAYERS": N_LAYERS, "N_HEADS": N_HEADS}
    require_whole(**sizes, MAX_LEN=MAX_LEN)
    fits = f"N_HEADS must divide D_MODEL, got {N_HEADS} and {D_MODEL}"
    require(D_MODEL % N_HEADS == 0, fits)


def count_gpt(vocab_size, d_model, n_layers, n_heads, max_len, norm="pre"):
    """The parameters that PyTorch finds in lm_models.GPT; the tied output matrix counts once."""
    with META:
        gpt = GPT(vocab_size, d_model, n_layers, n_heads, max_len, norm=norm)
    return sum(p.numel() for p in gpt.parameters())


def count_layer(d):
    """[attention, feed-forward, LayerNorms], all in matrices, the feed-forward's share of those."""
    with META:
        block = Block(d, 1)
    parts = [(block.attn,), (block.ffn,), (block.ln_1, block.ln_2)]
    everything = [sum(p.numel() for m in part for p in m.parameters()) for part in parts]
    attention, ffn = (
        sum(p.numel() for p in m.parameters() if p.dim() == 2) for m in (block.attn, block.ffn)
    )
    return everything, attention + ffn, ffn / (attention + ffn)


def count_history(show):
    """§1.2's n-grams, §1.3's tokens per parameter, §7.1's ranges."""
    total = sum(GOOGLE_NGRAMS)
    rows = [[f"{n}-gram", count] for n, count in enumerate(GOOGLE_NGRAMS, start=1)]
    show.table(
        ("Google n-grams, 2006", "Google n-gram（2006）"),
        ["", ("how many", "条数")],
        [*rows, [show.say(("together", "合计")), total]],
    )
    rows = [[name, f"{n:.3g}", f"{t:.3g}", f"{t / n:.2f}"] for name, n, t in LLM_SIZES]
    header = ["", ("parameters", "参数"), ("training tokens", "训练 token")]
    header += [("tokens per parameter", "每个参数的 token 数")]
    show.table(("How large language models are", "大语言模型有多大"), header, rows)
    (_, gpt3, gpt3_tokens), (_, llama, llama_tokens) = LLM_SIZES[0], LLM_SIZES[-1]
    show.claim("L2-005", GOOGLE_NGRAMS)
    show.claim("L2-006", total / 1e9)
    for id, (_, parameters, tokens) in zip(("L2-009", "L2-010", "L2-011"), LLM_SIZES):
        show.claim(id, tokens / parameters)
    show.claim("L2-012", llama_tokens / gpt3_tokens > llama / gpt3)
    show.claim("L2-152a", all(1e12 <= tokens <= 1e13 for _, _, tokens in LLM_SIZES))
    show.claim("L2-152b", all(1e10 <= parameters < 1e12 for _, parameters, _ in LLM_SIZES))


# %% Part 4 · §4.8 ─────────────────────────────────────────────────────────────────────────────────
def part4_one_pass(show):
    """§4.8 · 一次前向算出所有位置 · One forward pass, every prefix"""
    require_small_gpt()
    require_whole(2, VOCAB=VOCAB)  # a token can only be changed into another one
    require_whole(TOKENS=TOKENS, CHANGED=CHANGED)
    require(TOKENS <= MAX_LEN, f"TOKENS must be at most MAX_LEN = {MAX_LEN}, got {TOKENS}")
    require(CHANGED <= TOKENS, f"CHANGED must be at most TOKENS = {TOKENS}, got {CHANGED}")
    seeds, norms = show.seeds(5), ("pre", "post")
    gpts = {norm: [small_gpt(seed, norm) for seed in seeds] for norm in norms}
    ids = [sequence(seed) for seed in seeds]  # (1, T) each
    prefix = {n: torch.stack(list(map(prefix_residues, gpts[n], ids))) for n in norms}  # (S, T)
    change = {n: torch.stack(list(map(effect_of_change, gpts[n], ids))) for n in norms}  # (S, T)

    columns = [of[norm].amax(dim=0).tolist() for of in (prefix, change) for norm in norms]  # (T,)
    rows = [[t, *(f"{x:.2g}" for x in row)] for t, row in enumerate(zip(*columns), start=1)]
    header = ["t", *((f"whole minus prefix, {n}-norm", f"整段与前缀之差，{n}-norm") for n in norms)]
    header += [(f"x_{CHANGED} changed, {n}-norm", f"改动 x_{CHANGED}，{n}-norm") for n in norms]
    title = (
        f"Largest difference between the logits at position t, {len(seeds)} seeds, float64",
        f"第 t 个位置的 logits 的最大差（{len(seeds)} 个种子，float64）",
    )
    show.table(title, header, rows)

    residues = torch.cat(list(prefix.values())).amax(dim=1)  # (2S,)
    show.claim("L2-096", residues.max(), residues)
    changes = torch.cat(list(change.values()))  # (2S, T)
    before, after = changes[:, : CHANGED - 1], changes[:, CHANGED - 1 :]
    show.claim("L2-097", bool((before == 0).all() and (after > 0).all()))


def small_gpt(seed, norm="pre"):
    gpt = seeded(seed, lambda: GPT(VOCAB, D_MODEL, N_LAYERS, N_HEADS, MAX_LEN, norm=norm))
    # its own start, N(0, 0.02²): logits of about 1 at most, so residues near 1e-16
    return gpt.double()


def sequence(seed):
    """Random token ids (1, T)."""
    return torch.randint(VOCAB, (1, TOKENS), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def prefix_residues(gpt, ids):
    """|logits of the whole - logits of the prefix that ends at t|, its largest entry → (T,)."""
    whole = gpt(ids)[0]  # (T, V)
    prefixes = [gpt(ids[:, :t])[0, -1] for t in range(1, TOKENS + 1)]  # T times (V,)
    return (whole - torch.stack(prefixes)).abs().amax(dim=1)


@torch.no_grad()
def effect_of_change(gpt, ids):
    """|change of the logits at t| when token CHANGED becomes another, its largest entry → (T,)."""
    other = ids.clone()
    other[0, CHANGED - 1] = (ids[0, CHANGED - 1] + 1) % VOCAB
    return (gpt(other) - gpt(ids))[0].abs().amax(dim=1)


# %% Part 5 · §4.9, 7.8, exercises 7 and 8 ─────────────────────────────────────────────────────────
def part5_flops(show):
    """§4.9、练习 7–8 · T² 什么时候成为大头 · When T² takes over"""
    require_whole(TIMED=TIMED)
    require_small_gpt()
    sizes = [  # name, d, heads, T
        ("small GPT", D_MODEL, N_HEADS, MAX_LEN),
        ("GPT", 768, 12, 512),
        ("GPT-2 XL", 1600, 25, 1024),
        ("GPT-3", 12288, 96, 2048),
        ("T = 8k", 4096, 32, 8192),
        ("T = 6d", 4096, 32, 6 * 4096),
        ("T = 128k", 4096, 32, 2**17),
    ]
    flops = {name: count_flops(d, heads, T) for name, d, heads, T in sizes}
    share = {name: attention / (linear + attention) for name, (linear, attention) in flops.items()}
    rows = [
        [name, d, T, *(f"{x:.4g}" for x in flops[name]), f"{share[name]:.2%}", 6 * d]
        for name, d, _, T in sizes
    ]
    header = ["", "d", "T", ("linear maps", "线性层"), ("QKᵀ and AV", "QKᵀ 与 AV")]
    header += [("attention's share", "注意力占比"), "6d"]
    title = (
        "Forward FLOPs of one layer and sequence, counted",
        "一层一条序列的前向 FLOPs（逐个数出）",
    )
    show.table(title, header, rows)

    show.claim("L2-098", all(flops[name][0] == 24 * T * d**2 for name, d, _, T in sizes))
    show.claim("L2-099", all(flops[name][1] == 4 * T**2 * d for name, d, _, T in sizes))
    show.claim("L2-100", share["GPT-3"] * 100)
    leads_from = {d: first_T_where_attention_leads(d) for d in (1, 2, 4)}
    show.claim("L2-153", all(first == 6 * d + 1 for d, first in leads_from.items()))
    show.claim("L2-173", share["T = 8k"] * 100)
    short, long = (score_matrix(T) for T in (128, 2048))
    show.claim("L2-174", [short.numel(), short.nbytes / 2**20])
    show.claim("L2-175", [long.numel() // short.numel(), long.nbytes / 2**30])
    one_head = seeded(SEED, lambda: MultiHeadAttention(8, 1))
    looked_at = one_head.attention(torch.zeros(1, 2048, 8)) > 0  # (1, 1, T, T)
    show.claim("L2-176", [looked_at.sum(), looked_at.numel()])
    show.claim("L2-177", looked_at.double().mean() * 100)

    with show.figure("04_flops") as ax:
        T = torch.logspace(1, 6, 200)  # (200,)
        for d in (64, 768, 1600, 4096, 12288):
            ax.plot(T, 100 * T / (6 * d + T), label=f"d = {d}")
        for name, _, _, T in sizes:
            to_right = name in ("small GPT", "GPT-2 XL", "GPT-3")
            ax.plot(T, 100 * share[name], "k.")
            ax.annotate(name, (T, 100 * share[name]), (6, -5) if to_right else (-6, 4),
                        textcoords="offset points", ha="left" if to_right else "right",
                        bbox={"color": "white", "pad": 1, "alpha": 0.8})  # fmt: skip
        ax.axhline(50, color="grey", linestyle="--", label="T = 6d")
        ax.set(xscale="log", xlabel="tokens T", ylabel="attention's share of the FLOPs, %")
        ax.set_title("Dots: counted. Lines: T / (6d + T)")
        ax.legend()
    time_threads(show)


def count_flops(d, heads, T):
    """FLOPs of one forward pass of a Block over T tokens, as torch counts: linear maps, QKᵀ and AV.

    On the meta device a product has a shape and a cost but is never computed.
    """
    with META, torch.no_grad(), FlopCounterMode(display=False) as counter:
        Block(d, heads)(torch.empty(1, T, d))
    flops = counter.get_flop_counts()["Global"]
    return flops[torch.ops.aten.addmm], flops[torch.ops.aten.bmm]  # with a bias; head by head


def first_T_where_attention_leads(d):
    """The shortest sequence on which QKᵀ and AV cost more than the linear maps, by trying."""
    T = 1
    while (flops := count_flops(d, 1, T))[1] <= flops[0]:
        T += 1
    return T


def score_matrix(T):
    """The attention weights (8, 8, T, T) of batch 8 and 8 heads, without their numbers."""
    with META:
        return MultiHeadAttention(64, 8).attention(torch.empty(8, T, 64))  # (B, h, T, T)


def time_threads(show):
    """A forward pass of three language models on one thread and on all of them."""
    several = cores()
    models = {
        "GPT": GPT(VOCAB, D_MODEL, N_LAYERS, N_HEADS, max_len=TIMED),
        "Elman RNN": RNNLM(VOCAB),
        "LSTM": LSTMLM(VOCAB),
    }
    ids = torch.zeros(4, TIMED, dtype=torch.int64)  # (B, T)
    seconds = {(name, count): [] for name in models for count in (1, several)}

    def forward(name, count):
        with threads(count), torch.no_grad():
            start = time.perf_counter()
            models[name](ids)
            return time.perf_counter() - start

    for name, count in seconds:
        forward(name, count)  # the first call also starts threads and fills caches: not counted
    give_up = time.perf_counter() + PATIENCE
    while not seconds["LSTM", several] or time.perf_counter() < give_up:
        for name, count in seconds:  # in turn, so that a busy moment hits them all
            seconds[name, count].append(forward(name, count))
    one, all_ = ([min(seconds[name, n]) for name in models] for n in (1, several))
    speed_up = [a / b for a, b in zip(one, all_)]
    rows = [
        [name, f"{1e3 * a:.0f}", f"{1e3 * b:.0f}", f"{ratio:.2g}"]
        for name, a, b, ratio in zip(models, one, all_, speed_up)
    ]
    header = [
        "",
        ("1 thread, ms", "单线程，毫秒"),
        (f"{several} threads, ms", f"{several} 线程，毫秒"),
    ]
    title = (
        f"Forward pass, T = {TIMED}, batch 4, fastest run",
        f"前向耗时（T = {TIMED}，批大小 4，取最快一次）",
    )
    show.table(title, [*header, ("speed-up", "加速比")], rows)
    show.note(
        (
            "On one thread a GPT need not be faster than an LSTM. The lecture had 4 threads, here "
            f"are {several}; and only on an otherwise idle machine does this compare the models: a "
            "core that is shared makes every run on several threads wait.",
            f"单线程时，GPT 不一定比 LSTM 快。讲义用的是 4 个线程，这里是 {several} 个；"
            "而且只有机器空闲时这张表才说明问题：核心被别的程序占用时，多线程的每一次都要等。",
        )
    )
    show.claim("L2-101", speed_up)


# %% Part 6 · §4.10 ────────────────────────────────────────────────────────────────────────────────
def part6_formulas(show):
    """§4.10 · 代码导读：公式在代码里的位置 · Where the formulas stand in the code"""
    rows = [
        [show.say(formula), function.__qualname__, line_of(code, function), code]
        for formula, function, code in FORMULAS
    ]
    header = [("formula", "公式"), ("lm_models.", "lm_models."), ("line", "行"), ("code", "代码")]
    show.table(("lm_models.py", "lm_models.py"), header, rows)


Attention, FFN = lm_models.MultiHeadAttention, lm_models.FeedForward
Cell, Elman, PE = lm_models.LSTMCell, lm_models.ElmanRNN, lm_models.sinusoidal_positions
FORMULAS = [
    (
        "h_t = tanh(W_hx x_t + W_hh h_{t-1} + b_h)",
        Elman.forward,
        "torch.tanh(x_t @ self.W_hx.T + h @ self.W_hh.T + self.b_h)",
    ),
    (
        "(a_i, a_f, a_g, a_o) = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh",
        Cell.forward,
        "x @ self.weight_ih.T + self.bias_ih + h @ self.weight_hh.T + self.bias_hh",
    ),
    (
        "i_t = σ(a_i), f_t = σ(a_f), o_t = σ(a_o)",
        Cell.forward,
        "torch.sigmoid(a_i), torch.sigmoid(a_f), torch.sigmoid(a_o)",
    ),
    (
        (
            "g_t = tanh(a_g), the candidate: c_t with a tilde in the lecture",
            "g_t = tanh(a_g)，即候选值，讲义写作带波浪号的 c_t",
        ),
        Cell.forward,
        "torch.tanh(a_g)",
    ),
    ("c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t", Cell.forward, "f * c + i * g"),
    ("h_t = o_t ⊙ tanh(c_t)", Cell.forward, "o * torch.tanh(c)"),
    (
        "PE[p, 2i] = sin(p ω_i), PE[p, 2i+1] = cos(p ω_i)",
        PE,
        "torch.stack([torch.sin(p * omega), torch.cos(p * omega)], dim=-1)",
    ),
    ("x_t = w_t + p_t", GPT.embed, "x + self.position_embedding.weight[:T]"),
    (
        "Q = X W_q, K = X W_k",
        Attention.attention,
        "(self._split(self.W_q(x)), self._split(self.W_k(x)))",
    ),
    (
        "S = QKᵀ/√d_k",
        Attention.attention,
        "q @ k.transpose(-2, -1) / math.sqrt(self.d_k)",
    ),
    (
        ("M: -∞ above the diagonal", "M：对角线以上为 -∞"),
        Attention._mask,
        "torch.full_like(M, -torch.inf).triu(1)",
    ),
    ("A = softmax(S + M)", Attention.attention, "torch.softmax(S + self._mask(S), dim=-1)"),
    ("V = X W_v", Attention.forward, "self._split(self.W_v(x))"),
    ("X' = A V", Attention.forward, "A @ v"),
    (
        "Concat(head_1 … head_h) W_o",
        Attention.forward,
        "self.W_o(heads.transpose(1, 2).flatten(2))",
    ),
    ("GELU(W_1 x + b_1)", FFN.forward, "ACTIVATIONS[self.activation](self.W_1(x))"),
    ("FFN(x) = W_2 (…) + b_2", FFN.forward, "self.W_2(hidden)"),
    ("pre-norm: a = x + Attn(LN(x))", Block.forward, "x + self.attn(self.ln_1(x))"),
    ("pre-norm: a + FFN(LN(a))", Block.forward, "a + self.ffn(self.ln_2(a))"),
    ("post-norm: a = LN(x + Attn(x))", Block.forward, "self.ln_1(x + self.attn(x))"),
    ("post-norm: LN(a + FFN(a))", Block.forward, "self.ln_2(a + self.ffn(a))"),
    (
        (
            "logits W h_t, W tied (softmax: in the loss)",
            "logits W h_t，W 与词嵌入共享（softmax 在损失里）",
        ),
        GPT.forward,
        "F.linear(self.final_norm(x), self.token_embedding.weight)",
    ),
]


def line_of(code, function):
    """The line of lm_models.py where the function has this expression, however it is laid out."""
    lines, first = inspect.getsourcelines(function)
    wanted = ast.dump(ast.parse(code, mode="eval").body)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    found = [node.lineno for node in ast.walk(tree) if ast.dump(node) == wanted]
    if not found:
        raise LookupError(f"lm_models.{function.__qualname__} does not say {code} any more")
    return first + found[0] - 1


# %% All parts ─────────────────────────────────────────────────────────────────────────────────────
PARTS = [
    part1_layer_norm,
    part2_depth,
    part3_parameters,
    part4_one_pass,
    part5_flops,
    part6_formulas,
]

if __name__ == "__main__":
    main(__doc__, PARTS)
