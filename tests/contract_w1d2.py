"""Week 1 Day 2's exercises 3 and 4 as checks of a file of one's own; compare contract.py.

Block(d, n_heads, n_layers, activation="gelu", dropout=0.1), FeedForward(d, activation="gelu"),
SinusoidalPositions(d, max_len=4096, base=10000.0).
"""

import math

import contract as lm
import diagnosis as d
import torch
from contract import HEADS, B, D, T, after, attempt, block_weights, build, fail, run, shake, shaped

lm.SIGNATURES["SinusoidalPositions"] = "SinusoidalPositions(d, max_len=4096, base=10000.0)"
CALL = "Block(d, n_heads, n_layers, activation='gelu', dropout=0.1)"


def built(models, layers=1, activation=None, dropout=None, size=(D, HEADS)):
    lm.SIGNATURES["Block"] = CALL
    options = {"activation": activation, "dropout": dropout}
    options = {name: value for name, value in options.items() if value is not None}
    return build(models, "Block", *size, layers, **options)


def feed_forward(models):
    lm.feed_forward(models, w1d2=True)


def block(models, activation="gelu"):
    module = built(models, activation=None if activation == "gelu" else activation)
    after(models, feed_forward, "FeedForward")
    if activation != "gelu":
        after(models, block, "Block")
    what = f"Block(12, 3, 1{'' if activation == 'gelu' else f', {activation!r}'}).eval()(x)"
    w = block_weights(what, module, activation == "swiglu")
    shake(module)
    lm.loud(w["ln_1.weight"], w["ln_2.weight"])
    x = 5 * torch.randn(B, T, D)
    got = shaped(what, run(models, what, module, x), (B, T, D), "(B, T, d)")
    lm.judge_block(what, w, x, got, activation=activation)


def block_relu(models):
    block(models, "relu")


def block_swiglu(models):
    block(models, "swiglu")


def future(models):
    """The future's influence on the past is exactly 0."""
    module = shake(built(models))
    after(models, block, "Block")
    x = torch.randn(B, T, D)
    y = x.clone()
    y[:, 3:] = torch.randn(B, T - 3, D)
    before, changed = (run(models, "Block(12, 3, 1).eval()(x)", module, one) for one in (x, y))
    leak = (before - changed)[:, :3].abs().max().item()
    if leak != 0:
        fail(
            f"Block: a change of tokens 3, 4 moves the outputs 0 … 2 by {leak:.2g}; it must be"
            " exactly 0: mask with -inf",
            f"Block：改动第 3、4 个 token 使第 0–2 个输出变了 {leak:.2g}；应恰好为 0：掩码用 -inf",
        )


def dropout(models):
    """In train() the branches are dropped before they are added, the stream never."""
    module = shake(built(models, dropout=0.5))
    after(models, block, "Block")
    x = torch.randn(100, T, D)
    what = "Block(12, 3, 1, dropout=0.5).train()(x)"
    quiet = run(models, what, module, x)
    module.train()
    with torch.no_grad():
        out, again = (attempt(models, what, lambda: module(x)) for _ in range(2))  # (100, T, d)
    if torch.equal(out, again) and torch.equal(out, quiet):
        fail(
            f"{what}: nothing is dropped in train(): dropout is missing, or its p is not passed on",
            f"{what}：train() 时什么也没有丢：漏了 dropout，或没有传 p",
        )
    if (out == 0).double().mean() > 0.05:
        fail(
            f"{what}: the residual stream itself is dropped (outputs of 0): dropout belongs to the"
            " branch before it is added, x + dropout(f(LN(x)))",
            f"{what}：残差流本身被丢了（输出里有 0）：dropout 应放在加回残差之前的分支上，"
            "x + dropout(f(LN(x)))",
        )
    kept = (out == x).double().mean().item()  # both branches dropped: an entry stays as it was
    if not 0.2 < kept < 0.3:
        fail(
            f"{what}: {kept:.0%} of the entries stay as they were, at p = 0.5 it should be a"
            " quarter,"
            " both branches dropped: dropout on each branch before it is added, with p = 0.5",
            f"{what}：有 {kept:.0%} 的数原样不变，p = 0.5 时应是四分之一（两个分支都被丢）："
            "每个分支加回残差之前都要 dropout，p = 0.5",
        )


def start(models):
    """W_o and W_2 start smaller by 1/√(2 n_layers), the other matrices do not."""
    layers, size = 18, (128, 4)
    matrices = {}
    for n in 1, layers:
        module = built(models, n, size=size)
        matrices[n] = {
            name: p.detach().std().item() for name, p in module.named_parameters() if p.dim() == 2
        }
    q, o, two = (
        next((n for n in matrices[1] if n.endswith(f"{end}.weight")), None)
        for end in ("W_q", "W_o", "W_2")
    )
    if q is None or o is None:
        after(models, block, "Block")
    if two is None:
        shapes = dict(module.named_parameters())
        two = next(n for n, p in shapes.items() if p.dim() == 2 and p.shape[0] < p.shape[1])
    shrink = {name: matrices[1][name] / matrices[layers][name] for name in matrices[1]}
    root = math.sqrt(layers)
    what = f"Block(128, 4, n_layers={layers}) at the start"
    zh_what = f"Block(128, 4, n_layers={layers}) 的初始权重"
    right = "the last matrix of each branch, W_o and W_2, times 1/√(2 n_layers)"
    zh_right = "每个残差分支最后的矩阵（W_o 和 W_2）乘 1/√(2 n_layers)"

    def near(a, b):
        return abs(a / b - 1) < 0.1

    by = {name: shrink[full] for name, full in (("W_o", o), ("W_2", two))}
    if all(near(r, 1) for r in by.values()):
        fail(
            f"{what}: n_layers makes no difference: {right}",
            f"{zh_what}：与 n_layers 无关：应把{zh_right}",
        )
    if any(near(r, 1) for r in by.values()):
        en = next(name for name, r in by.items() if near(r, 1))
        fail(f"{what}: {en} is not scaled: {right}", f"{zh_what}：{en} 没有缩放：应把{zh_right}")
    if all(near(r, layers) for r in by.values()):
        fail(
            f"{what}: the root is missing, 1/(2 n_layers): {right}",
            f"{zh_what}：漏了根号，成了 1/(2 n_layers)：应把{zh_right}",
        )
    if not all(near(r, root) for r in by.values()):
        got = ", ".join(f"{name} 1/{r:.3g}" for name, r in by.items())
        fail(
            f"{what}: against n_layers = 1 they shrink by {got}, it should be 1/√18 = 1/{root:.3g}:"
            f" {right}",
            f"{zh_what}：与 n_layers = 1 相比缩小为 {got}，应为 1/√18 = 1/{root:.3g}："
            f"应把{zh_right}",
        )
    others = [name for name in shrink if name not in (o, two) and not near(shrink[name], 1)]
    if others:
        fail(
            f"{what}: {', '.join(others)} is scaled too: only {right}",
            f"{zh_what}：{'、'.join(others)} 也缩放了：只应把{zh_right}",
        )
    gain = matrices[1][q] / matrices[1][o]
    if near(gain, 1):
        fail(
            f"{what}: it is 1/√n_layers: a layer has two branches, 1/√(2 n_layers)",
            f"{zh_what}：用的是 1/√n_layers：每层有两个分支，应为 1/√(2 n_layers)",
        )


def positions(models):
    module = build(models, "SinusoidalPositions", D)
    x = torch.zeros(B, T, D)
    what = "SinusoidalPositions(12)(x)"
    if ends_in_an_error(module, x) and not ends_in_an_error(module, torch.zeros(T, T, D)):
        fail(
            f"{what}: positions are counted along the batch, x.shape[0]: they count along the"
            " sequence, x + pe[: x.shape[1]]",
            f"{what}：位置是沿批（x.shape[0]）数的：应沿序列数，x + pe[: x.shape[1]]",
        )
    got = shaped(what, run(models, what, module, x), (B, T, D), "(B, T, d)")
    lm.judge("SinusoidalPositions", lambda **k: d.sinusoids(T, D, 1e4, **k), d.SINUSOIDS, got[0])
    if not d.same(got[:1].expand_as(got), got):
        fail(
            f"{what}: sequences of a batch get different positions",
            f"{what}：同一批里不同的序列得到了不同的位置编码",
        )
    x = torch.randn(B, T, D)
    added = run(models, what, module, x)
    if not d.same(x + got, added):
        scaled = d.same(x * math.sqrt(D) + got, added)
        en = "x is multiplied by √d first" if scaled else "it must return x + pe[:T]"
        zh = "先把 x 乘了 √d" if scaled else "应返回 x + pe[:T]"
        fail(f"{what}: {en}", f"{what}：{zh}")
    saved = [*dict(module.named_parameters()), *module.state_dict()]
    if saved:
        fail(
            f"SinusoidalPositions saves its table ({saved[0]}): it can be rebuilt;"
            " register_buffer(…, persistent=False)",
            f"SinusoidalPositions 把表存进了 state_dict（{saved[0]}）：它可以重建，"
            "应 register_buffer(…, persistent=False)",
        )


def ends_in_an_error(module, x):
    try:
        module(x)
    except RuntimeError:
        return True
    return False


W1D2_BLOCK = [
    feed_forward, block, block_relu, block_swiglu, future, dropout, start, positions,
]  # fmt: skip
