"""02 · 从零实现 LSTM · The LSTM from scratch · Lecture 2, §2.5–2.7

The hand-written cell against torch's own, its parameters, how far back its gradient reaches before
any training, what happens when it reads both ways, and why it is slow.

    python 02_lstm.py            every part
    python 02_lstm.py --part 3   one part
"""

import math
import time
from companion import main, require
from contextlib import contextmanager
from itertools import permutations, product

import torch
from torch import nn

from lm_models import LSTM, LSTMLM, RNNLM, ElmanRNN

# ── constants: edit and run again ────────────────────────────────────────────────────────────────
E, H, V = 32, 64, 56  # input size, hidden size, vocabulary of the two language models
EXERCISE = [100, 200]  # E and H of exercise 2
FORGET_BIASES = [0, 1, 3, 5]  # b_f at initialisation
DISTANCES = [0, 1, 2, 5, 10, 20, 50, 100]  # the table's d
BEFORE = 100  # steps before the farthest of them: cells start empty, and b_f = 5 settles slowly
# (part 3 also measures without any: the text does not say which)
FAR = 50  # the factor per step is (ratio at FAR) ** (1 / FAR)
NEAR = 10  # and once more from NEAR to FAR, without the first steps
STEPS, CHANGED = 8, 4  # short sequences have 8 steps; part 4 changes the input of step 4
LENGTHS = [32, 64, 128, 256]  # T of the timings
BATCHES = [1, 8, 64]  # B of the timings; the last one for the table over T
REPEATS = 5  # the fastest of so many runs counts: other programs only slow one down
SEEDS = 10  # seeds 0 … 9, or as many as --seeds says

F64 = torch.float64  # the residues are 1e-16, the gradients go down to 1e-33


# %% Part 1 · §2.5 ─────────────────────────────────────────────────────────────────────────────────
def part1_cell(show):
    """§2.5 · 从零实现 LSTM · The LSTM from scratch, beside nn.LSTM"""
    need_whole(E=E, H=H, STEPS=STEPS, SEEDS=SEEDS)
    seeds = show.seeds(SEEDS)
    theirs = [seeded(seed, nn.LSTM, E, H, batch_first=True) for seed in seeds]
    found = [compare(copy_of(*lstm.parameters()), lstm, seed) for seed, lstm in zip(seeds, theirs)]
    en = f"Our LSTMCell against nn.LSTM, float64, the worst of {len(seeds)} seeds"
    zh = f"我们的 LSTMCell 与 nn.LSTM 对比（float64，取 {len(seeds)} 个种子中最差的）"
    show.table((en, zh), *residues(found))

    off = difference_by_order(theirs[0])
    best, second = sorted(off, key=off.get)[:2]
    en = f"Four gates have 24 orders: {', '.join(best)} gives nn.LSTM's h up to {off[best]:.0e}, "
    zh = f"四个门有 24 种排列：按 {', '.join(best)} 与 nn.LSTM 的 h 只差 {off[best]:.0e}，"
    show.note((f"{en}the next best is {off[second]:.2f} off.", f"{zh}次好的差 {off[second]:.2f}。"))

    shapes = [tuple(weight.shape) for weight in copy_of(*theirs[0].parameters()).parameters()]
    show.claim("L2-035", best == "ifgo" and shapes[:2] == [(4 * H, E), (4 * H, H)])
    outputs = [max(absolute(*one["h"]), absolute(*one["c_T"])) for one in found]
    show.claim("L2-036a", max(outputs), seeds=outputs)
    gradients = [max(relative(*one[name]) for name in one if name[0] == "∂") for one in found]
    show.claim("L2-036b", max(gradients), seeds=gradients)


def need_whole(**sizes):
    """Refuse what is not a whole number, 1 or more."""
    for name, size in sizes.items():
        require(is_whole(size), f"{name} must be a whole number, 1 or more, got {size!r}")


def need_list(kind, fits, **lists):
    """Refuse what is not a list of such values, one or more."""
    for name, values in lists.items():
        good = isinstance(values, list) and len(values) > 0 and all(map(fits, values))
        require(good, f"{name} must be a list of {kind}, one or more, got {values!r}")


def is_whole(value):
    return isinstance(value, int) and value >= 1


def is_number(value):
    return isinstance(value, int | float) and math.isfinite(value)


@contextmanager
def one_thread():
    """In a `with` or as a decorator: torch on one thread; at these sizes a second only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def seeded(seed, network, *sizes, **options):
    """A float64 network that starts from that seed's weights; torch's own stream is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network(*sizes, **options).double()


def normal(seed, *shape):
    """N(0, 1) draws (*shape), the same at every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def copy_of(*weights):
    """Our LSTM with one layer of nn.LSTM in it: weight_ih, weight_hh, bias_ih, bias_hh."""
    ours = seeded(0, LSTM, weights[0].shape[1], weights[1].shape[1])
    for mine, weight in zip(ours.parameters(), weights):
        mine.data.copy_(weight)
    return ours


@one_thread()
def compare(ours, theirs, seed):
    """Outputs of two networks, and their gradients of L = Σ u · h_t: {name: (ours, theirs)}."""
    u = normal(seed + 1000, 2, STEPS, H)  # (B, T, H)
    both = []
    for network in (ours, theirs):
        x = normal(seed, 2, STEPS, E).requires_grad_()  # (B, T, E)
        h, last = network(x)  # (B, T, H), and what nn.LSTM or nn.GRU call their last state
        values = {"h": h, "c_T": last[1].view(2, H)} if isinstance(last, tuple) else {"h": h}
        gradients = torch.autograd.grad((u * h).sum(), [x, *network.parameters()])
        names = ("x", "weight_ih", "weight_hh", "bias_ih", "bias_hh")
        both.append(values | {f"∂L/∂{name}": value for name, value in zip(names, gradients)})
    return {name: (both[0][name].detach(), both[1][name].detach()) for name in both[0]}


def absolute(ours, theirs):
    """The largest difference of two tensors."""
    return (ours - theirs).abs().max().item()


def relative(ours, theirs):
    """The same as a share of the largest entry."""
    return absolute(ours, theirs) / theirs.abs().max().item()


def residues(found):
    """Header and rows of a table: each quantity of `compare`, at its worst over the seeds."""
    header = [("quantity", "量"), ("shape", "形状"), ("largest entry", "最大元素")]
    header += [("difference", "差"), ("relative to the largest entry", "相对最大元素")]
    rows = []
    for name, (_, theirs) in found[0].items():
        largest = max(one[name][1].abs().max().item() for one in found)
        worst = [max(measure(*one[name]) for one in found) for measure in (absolute, relative)]
        shape = " × ".join(map(str, theirs.shape))
        rows.append([name, shape, f"{largest:.3g}", *(f"{value:.1e}" for value in worst)])
    return header, rows


def difference_by_order(lstm):
    """Read nn.LSTM's rows as gates in each possible order: how far is our h from its h?"""
    x = normal(0, 2, STEPS, E)  # (B, T, E)
    off = {}
    for order in permutations("ifgo"):
        weights = []
        for weight in lstm.parameters():
            gates = dict(zip(order, weight.chunk(4)))  # (H, …) each
            weights.append(torch.cat([gates[gate] for gate in "ifgo"]))  # (4H, …)
        off["".join(order)] = absolute(copy_of(*weights)(x)[0], lstm(x)[0])
    return off


# %% Part 2 · §2.5, exercise 2 ─────────────────────────────────────────────────────────────────────
def part2_parameters(show):
    """§2.5、练习 2 · 参数量 · Parameters"""
    need_whole(E=E, H=H, V=V)
    need_list("whole numbers from 1 on", is_whole, EXERCISE=EXERCISE)
    require(len(EXERCISE) == 2, f"EXERCISE must hold two numbers, E and H, got {EXERCISE}")
    e, h = EXERCISE
    layers = [  # gates × (H E + H H + biases × H)
        ("ElmanRNN", ElmanRNN, E, H, 1, 1),
        ("LSTM", LSTM, E, H, 4, 2),
        ("nn.RNN", nn.RNN, e, h, 1, 2),
        ("nn.LSTM", nn.LSTM, e, h, 4, 2),
    ]
    rows = []
    for name, kind, n_in, n, gates, biases in layers:
        W_x, W_h, *b = [p.numel() for p in seeded(0, kind, n_in, n).parameters()]
        formula = gates * (n * n_in + n * n + biases * n)
        rows.append([f"{name}({n_in}, {n})", W_x, W_h, sum(b), W_x + W_h + sum(b), formula])
    elman, lstm, nn_rnn, nn_lstm = rows
    header = [("layer", "循环层"), "W_hx, weight_ih", "W_hh, weight_hh"]
    header += [("biases", "偏置"), ("sum", "合计"), ("by formula", "按公式")]
    title = ("Parameters of recurrent layers, counted in PyTorch", "循环层的参数（PyTorch 数出）")
    show.table(title, header, rows)

    models = [[kind.__name__, *sizes(seeded(0, kind, V, E, H))] for kind in (RNNLM, LSTMLM)]
    header = [("model", "模型"), ("embedding VE", "词嵌入 VE"), ("recurrent layer", "循环层")]
    header += [("output HV + V", "输出层 HV + V"), ("sum", "合计")]
    show.table((f"Whole language models, V = {V}", f"整个语言模型（V = {V}）"), header, models)

    few, many = (layer[1] + layer[2] for layer in (elman, lstm))
    en = f"A step multiplies by each input and recurrent weight once: {many:,} multiplications to "
    zh = f"每走一步，输入权重和循环权重各乘一次：{many:,} 次乘法对 {few:,} 次，"
    show.note((f"{en}{few:,}, {many / few:g} times as many.", f"{zh}是 {many / few:g} 倍。"))

    show.claim("L2-037", lstm[4])
    show.claim("L2-038", elman[4])
    show.claim("L2-039", lstm[4] / elman[4])
    show.claim("L2-040", models[1][-1])
    show.claim("L2-041", models[0][-1])
    show.claim("L2-158", nn_rnn[1:5])
    show.claim("L2-159", nn_lstm[4])


def sizes(model):
    """Parameters of a model's parts (embedding, recurrent layer, output), and their sum."""
    parts = [sum(p.numel() for p in part.parameters()) for part in model.children()]
    return [*parts, sum(parts)]


# %% Part 3 · §2.5 ─────────────────────────────────────────────────────────────────────────────────
def part3_reach(show):
    """§2.5 · 刚初始化时，梯度能传多远？ · How far does the gradient reach before any training?"""
    need_distances()
    seeds, T = show.seeds(SEEDS), BEFORE + max(DISTANCES) + 1
    networks = ["Elman", *dict.fromkeys(FORGET_BIASES)]  # each bias once
    found = {n: reach(n, seeds, T) for n in show.progress(networks, len(networks), "gradients")}
    ratio = {n: found[n]["h_T"] for n in networks}  # (seeds, T) each
    factor = {n: r[:, FAR] ** (1 / FAR) for n, r in ratio.items()}  # (seeds,) each
    later = {n: (r[:, FAR] / r[:, NEAR]) ** (1 / (FAR - NEAR)) for n, r in ratio.items()}
    whole = {n: reach(n, seeds, FAR + 1)["h_T"][:, FAR] ** (1 / FAR) for n in networks}

    rows = [[d, *(f"{median(r[:, d]):.2g}" for r in ratio.values())] for d in DISTANCES]
    title = f"‖∂(u^T h_T)/∂x_(T-d)‖ relative to d = 0, median of {len(seeds)} seeds"
    zh = f"‖∂(u^T h_T)/∂x_(T-d)‖ 相对于 d = 0 的比值，{len(seeds)} 个种子的中位数"
    show.table((title, zh), ["d", *map(name, networks)], rows)

    header = [("network", "网络"), "σ(b_f)", "d", ("steps before", "之前的步数")]
    header += [("factor", "每步的倍数"), ("min … max", "最小 … 最大")]
    header += [("above σ(b_f)", "大于 σ(b_f) 的种子")]
    before = BEFORE + max(DISTANCES) - FAR
    ways = [(0, before, factor), (NEAR, before, later), (0, 0, whole)]
    rows = []
    for n, (start, steps, found_so) in product(networks, ways):
        f, is_elman = found_so[n], n == "Elman"
        row = [name(n), "" if is_elman else f"{sigmoid(n):.3f}", f"{start} … {FAR}", steps]
        row += [f"{median(f):.3f}", f"{f.min():.3f} … {f.max():.3f}"]
        rows.append([*row, "" if is_elman else f"{(f > sigmoid(n)).sum()} / {len(seeds)}"])
    title = f"Factor per step: median and range of {len(seeds)} seeds, σ(b_f) beside it"
    zh = f"每步的倍数：{len(seeds)} 个种子的中位数与范围，旁边是 σ(b_f)"
    show.table((title, zh), header, rows)

    if 0 in factor:
        show.claim("L2-042", median(factor[0]), seeds=factor[0])
    show.claim("L2-043", median(factor["Elman"]), seeds=factor["Elman"])
    if 0 in factor:
        gates = found[0]["f"].mean(dim=(1, 2))  # (seeds,)
        show.claim("L2-044", median(gates), seeds=gates)
    if {0, 1, 3} <= factor.keys():
        above = [factor[b_f] > sigmoid(b_f) for b_f in (0, 1, 3)]  # (seeds,) each
        medians = all(median(factor[b_f]) > sigmoid(b_f) for b_f in (0, 1, 3))
        show.claim("L2-045a", medians, seeds=torch.stack(above).all(dim=0))
    if 5 in factor:
        depends = (whole[5] > sigmoid(5)) & (factor[5] < sigmoid(5))  # (seeds,)
        show.claim("L2-045b", median(factor[5]) < sigmoid(5) < median(whole[5]), seeds=depends)
    explain(show, found, factor)
    if 3 in ratio:
        farthest = ratio[3][:, max(DISTANCES)]  # (seeds,)
        show.claim("L2-046", median(farthest), seeds=farthest)
    draw_reach(show, ratio, factor, later)


def need_distances():
    """Refuse constants of part 3 that make no sense."""
    need_whole(E=E, H=H, NEAR=NEAR, FAR=FAR, SEEDS=SEEDS)
    need_list("numbers", is_number, FORGET_BIASES=FORGET_BIASES)
    need_list("whole numbers from 0 on", lambda d: d == 0 or is_whole(d), DISTANCES=DISTANCES)
    require(BEFORE == 0 or is_whole(BEFORE), f"BEFORE must be 0, 1, 2 …, got {BEFORE!r}")
    order = f"{NEAR} < {FAR} <= {max(DISTANCES)}"
    require(NEAR < FAR <= max(DISTANCES), f"NEAR < FAR <= max(DISTANCES) must hold, got {order}")


@one_thread()
def reach(b_f, seeds, steps):
    """How the last state of fresh networks depends on each input; b_f: a forget bias, or "Elman".

    "h_T" (seeds, T): ‖∂(uᵀh_T)/∂x_{T-d}‖ at column d, relative to d = 0, where u and every x_t are
    N(0, 1). An LSTM also gives "c_T", the same of uᵀc_T, and "f" (seeds, T, H), its forget gates.
    """
    found = {}
    for seed in seeds:
        if b_f == "Elman":
            network = seeded(seed, ElmanRNN, E, H)
        else:
            network = seeded(seed, LSTM, E, H, forget_bias=b_f)
        x = normal(seed, 1, steps, E).requires_grad_()  # (1, T, E)
        h, last = network(x)  # (1, T, H)
        states = {"h_T": h[0, -1]} if b_f == "Elman" else {"h_T": last[0][0], "c_T": last[1][0]}
        for key, state in states.items():  # (H,)
            uT_state = normal(seed + 1000, H) @ state
            # one backward pass reaches every step at once
            gradient = torch.autograd.grad(uT_state, x, retain_graph=True)[0][0]  # (T, E)
            norms = gradient.norm(dim=-1).flip(0)  # (T,): norms[d] is that of x_{T-d}
            found.setdefault(key, []).append(norms / norms[0])
        if b_f != "Elman":
            found.setdefault("f", []).append(forget_gates(network.cell, x[0], h[0]))
    return {key: torch.stack(values) for key, values in found.items()}


@torch.no_grad()
def forget_gates(cell, x, h):
    """f_1 … f_T (T, H) of an LSTM cell that went through x (T, E) and gave h (T, H)."""
    h_before = torch.cat([torch.zeros_like(h[:1]), h[:-1]])  # (T, H): h_{t-1} in row t
    gates = x @ cell.weight_ih.T + cell.bias_ih + h_before @ cell.weight_hh.T + cell.bias_hh
    return torch.sigmoid(gates.chunk(4, dim=1)[1])  # (T, H)


def explain(show, found, factor):
    """How much of the factor the forget gates give by themselves, and what the first step costs."""
    rows, best = [], {}
    for b_f in [n for n in found if n != "Elman"]:
        kept = found[b_f]["f"][:, -FAR:].prod(dim=1)  # (seeds, H): what each unit's own gates leave
        all_units = kept.square().mean(dim=1).sqrt() ** (1 / FAR)  # (seeds,)
        best[b_f] = kept.amax(dim=1) ** (1 / FAR)  # (seeds,)
        factors = sigmoid(b_f), median(all_units), median(best[b_f]), median(factor[b_f])
        first = median(found[b_f]["h_T"][:, 1]), median(found[b_f]["c_T"][:, 1])
        rows.append([b_f, *(f"{f:.3f}" for f in factors), *(f"{r:.2f}" for r in first)])
    header = ["b_f", "σ(b_f)", ("∏ f, root mean square", "∏ f，各单元的均方根")]
    header += [("∏ f, best unit", "∏ f，最好的单元"), ("measured", "实测")]
    header += [("h_T, d = 1", "h_T，d = 1"), ("c_T, d = 1", "c_T，d = 1")]
    title = f"What the forget gates alone give, per step over {FAR} steps; the ratio at d = 1"
    zh = f"只算遗忘门时每步的倍数（按 {FAR} 步算）；以及 d = 1 处的比值"
    show.table((title, zh), header, rows)
    en = (
        "∏ f is the path along the cell alone. At a small b_f even the unit whose gates stay "
        "nearest to 1 falls short of the measured factor: the rest comes back through W_hh, since "
        "h_(t-1) also sets the gates and the candidate of step t. At a large b_f the first step "
        "costs most: x_T acts on h_T mainly through the output gate, at that step only, and "
        "nothing of it is stored; c_T, which has no output gate, loses little."
    )
    zh = (
        "∏ f 只算沿记忆单元的通路。b_f 小的时候，就连遗忘门最接近 1 的单元也达不到实测的倍数："
        "其余的梯度经 W_hh 传回，因为 h_(t-1) 还决定第 t 步的各个门和候选值。b_f 大的时候，"
        "损失集中在第一步：x_T 主要经输出门影响 h_T，这种影响只在当步有效，不会存进记忆单元；"
        "c_T 不经过输出门，损失很小。"
    )
    show.note((en, zh))
    if {0, 1} <= best.keys():
        reached = torch.stack([best[b_f] >= factor[b_f] for b_f in (0, 1)])  # (2, seeds)
        medians = any(median(best[b_f]) >= median(factor[b_f]) for b_f in (0, 1))
        show.claim("L2-045c", medians, seeds=reached.any(dim=0))


def draw_reach(show, ratio, factor, later):
    """Left: the ratio over d, median and range of the seeds. Right: the factor beside σ(b_f)."""
    with show.figure("02_gradient_reach", columns=2, size=(13, 4.8)) as (left, right):
        d = torch.arange(max(DISTANCES) + 1)
        for n, r in ratio.items():
            r = r[:, : len(d)]  # (seeds, len(d))
            left.fill_between(d, r.amin(dim=0), r.amax(dim=0), alpha=0.25)
            left.plot(d, r.quantile(0.5, dim=0), label=name(n), linewidth=2)
        left.set(yscale="log", ylim=(1e-16, 10), xlabel="distance d", ylabel="relative to d = 0")
        left.set_title("Gradient of $u^T h_T$ to the input d steps ago")
        left.legend(loc="lower right")

        biases = torch.tensor(sorted(float(n) for n in factor if n != "Elman"))
        line = torch.linspace(biases[0] - 0.5, biases[-1] + 0.5, 100)
        right.plot(line, line.sigmoid(), "k--", label="σ(b_f)")
        for f, marker, start, shift in ((factor, "o", 0, -0.06), (later, "s", NEAR, 0.06)):
            seeds = torch.stack([f[b_f] for b_f in biases.tolist()])  # (biases, seeds)
            middle, low, high = seeds.quantile(0.5, dim=1), seeds.amin(dim=1), seeds.amax(dim=1)
            style = {"fmt": marker, "capsize": 4, "label": f"d = {start} to {FAR}"}
            right.errorbar(biases + shift, middle, [middle - low, high - middle], **style)
        right.axhline(median(factor["Elman"]), color="C0", linestyle=":", label="Elman")
        right.set(xlabel="forget bias b_f", ylabel="factor per step")
        right.set_title("Factor per step: median and range of the seeds")
        right.legend(loc="center right")


def name(network):
    return network if network == "Elman" else f"b_f = {network}"


def sigmoid(b_f):
    return torch.tensor(float(b_f), dtype=F64).sigmoid().item()


def median(values):
    return values.quantile(0.5).item()


# %% Part 4 · §2.6 ─────────────────────────────────────────────────────────────────────────────────
def part4_directions(show):
    """§2.6 · 深层与双向 LSTM · Deep and bidirectional LSTMs"""
    need_whole(E=E, H=H, STEPS=STEPS, CHANGED=CHANGED, SEEDS=SEEDS)
    require(1 < CHANGED <= STEPS, f"CHANGED must be 2 … STEPS = {STEPS}, got {CHANGED}")
    seeds = show.seeds(SEEDS)
    kinds = [(1, False), (2, False), (1, True), (2, True)]  # layers, both ways?
    change, off = zip(*(change_of_outputs(*kind, seeds) for kind in kinds))  # (seeds, T) each

    header = ["t", ("one way, 1 layer", "单向，1 层"), ("one way, 2 layers", "单向，2 层")]
    header += [("both ways, 1 layer", "双向，1 层"), ("both ways, 2 layers", "双向，2 层")]
    rows = [[t, *(spread(c[:, t - 1]) for c in change)] for t in range(1, STEPS + 1)]
    title = f"max |Δh_t| when x_{CHANGED} changes: smallest … largest of {len(seeds)} seeds"
    zh = f"改动 x_{CHANGED} 后 max |Δh_t|（{len(seeds)} 个种子的最小值 … 最大值）"
    show.table((title, zh), header, rows)
    en = f"The same four, stacked by hand from our LSTM, are within {max(off):.0e} of nn.LSTM."
    zh = f"用我们的 LSTM 手工搭出同样的四个网络，与 nn.LSTM 最多相差 {max(off):.0e}。"
    show.note((en, zh))

    before = [c[:, : CHANGED - 1] for c in change]  # (seeds, CHANGED - 1) each
    same = (torch.cat(before[:2], dim=1) == 0).all(dim=1)  # (seeds,)
    differ = (torch.cat(before[2:], dim=1) > 0).all(dim=1)  # (seeds,)
    show.claim("L2-047a", same.all(), seeds=same)
    show.claim("L2-047b", differ.all(), seeds=differ)


@one_thread()
def change_of_outputs(layers, both_ways, seeds):
    """max |Δh_t| when step CHANGED of x is redrawn (seeds, T), and the residue of `stacked`."""
    options = {"num_layers": layers, "bidirectional": both_ways, "batch_first": True}
    change, off = [], 0.0
    for seed in seeds:
        lstm = seeded(seed, nn.LSTM, E, H, **options).requires_grad_(False)
        x = normal(seed, 1, STEPS, E)  # (1, T, E)
        other = x.clone()
        other[0, CHANGED - 1] = normal(seed + 1000, E)
        h, other_h = lstm(x)[0], lstm(other)[0]  # (1, T, H), or 2H where it reads both ways
        change.append((other_h - h)[0].abs().amax(dim=1))  # (T,)
        off = max(off, absolute(stacked(lstm, x), h))
    return torch.stack(change), off


def stacked(lstm, x):
    """What nn.LSTM does, with our own: x (B, T, E) → h (B, T, H), or (B, T, 2H) if both ways.

    Deep: a layer's h is the next layer's x. Both ways: a second LSTM reads the sequence from its
    end, its h is turned round again, and the two are joined at each step.
    """
    weights = iter(lstm.all_weights)  # one entry a layer and direction
    for _ in range(lstm.num_layers):
        h, _ = copy_of(*next(weights))(x)  # (B, T, H)
        if lstm.bidirectional:
            back, _ = copy_of(*next(weights))(x.flip(1))  # (B, T, H): from T down to 1
            h = torch.cat([h, back.flip(1)], dim=-1)  # (B, T, 2H)
        x = h
    return x


def spread(values):
    """Smallest … largest as text, one number where all are the same."""
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} … {high}"


# %% Part 5 · §2.6–2.7 ────────────────────────────────────────────────────────────────────────────
def part5_time(show):
    """§2.6–2.7 · GRU；为什么不一直用 LSTM？ · The GRU; why not LSTMs for ever?"""
    need_whole(E=E, H=H, STEPS=STEPS, REPEATS=REPEATS, SEEDS=SEEDS)
    need_list("whole numbers from 1 on", is_whole, LENGTHS=LENGTHS, BATCHES=BATCHES)
    require(len(set(LENGTHS)) >= 2, f"LENGTHS must hold two lengths or more, got {LENGTHS}")
    seeds = show.seeds(SEEDS)
    theirs = [seeded(seed, nn.GRU, E, H, batch_first=True) for seed in seeds]
    found = [compare(GRU(*gru.parameters()), gru, seed) for seed, gru in zip(seeds, theirs)]
    en = f"A GRU written out against nn.GRU, float64, the worst of {len(seeds)} seeds"
    zh = f"手写 GRU 与 nn.GRU 对比（float64，取 {len(seeds)} 个种子中最差的）"
    show.table((en, zh), *residues(found))
    layers = theirs[0], seeded(0, nn.LSTM, E, H)
    gru, lstm = (sum(p.numel() for p in layer.parameters()) for layer in layers)
    en = f"Parameters: nn.GRU({E}, {H}) {gru:,}, nn.LSTM({E}, {H}) {lstm:,}; three gates' rows "
    zh = f"参数量：nn.GRU({E}, {H}) {gru:,}，nn.LSTM({E}, {H}) {lstm:,}；"
    show.note((f"{en}against four.", f"{zh}前者三组权重，后者四组。"))

    T_first, *longer = sorted(set(LENGTHS))
    cases = [(B, T_first) for B in BATCHES] + [(BATCHES[-1], T) for T in longer]  # (B, T) each
    times = [training_step(*case) for case in show.progress(cases, len(cases), "timing")]
    rows = []
    for case, (ours, nn_lstm, nn_gru) in zip(cases, times):
        milliseconds = (f"{1000 * seconds:.1f}" for seconds in (ours, nn_lstm, nn_gru))
        rows.append([*case, *milliseconds, f"{ours / nn_lstm:.1f}"])
    header = ["B", "T", ("our LSTM", "手写 LSTM"), "nn.LSTM", "nn.GRU"]
    header += [("our LSTM / nn.LSTM", "手写 / nn.LSTM")]
    title = f"Milliseconds for forward and backward, one thread, the fastest of {REPEATS}"
    zh = f"一次前向加反向的毫秒数（单线程，{REPEATS} 次中最快的）"
    show.table((title, zh), header, rows)

    ratios = ", ".join(f"{ours / nn_lstm:.1f}" for ours, nn_lstm, _ in times[: len(BATCHES)])
    en = f"Our LSTM / nn.LSTM at B = {BATCHES}, T = {T_first}: {ratios}. On a CPU nn.LSTM runs in "
    en += "oneDNN, which nn.GRU does not: its loop is in C++, but a step is many small operations."
    zh = f"B = {BATCHES}、T = {T_first} 时，手写 / nn.LSTM 为 {ratios}。"
    zh += "CPU 上 nn.LSTM 由 oneDNN 计算，nn.GRU 则不是："
    zh += "它的循环虽然写在 C++ 里，每一步仍要付许多小运算的开销。"
    show.note((en, zh))

    over_T = torch.tensor(times[len(BATCHES) - 1 :], dtype=F64)  # (lengths, 3), all at BATCHES[-1]
    doublings = math.log2(longer[-1] / T_first)
    per_doubling = (over_T[-1] / over_T[0]) ** (1 / doublings)  # (3,)
    show.claim("L2-049", over_T[-1, 0] / over_T[-1, 1])
    show.claim("L2-050", per_doubling[:2])

    with show.figure("02_time") as ax:
        lengths = [T_first, *longer]
        for kind, milliseconds in zip(("our LSTM", "nn.LSTM", "nn.GRU"), 1000 * over_T.T):
            ax.plot(lengths, milliseconds, "o-", label=kind)
        proportional = [over_T[0, 0] * 1000 * T / T_first for T in lengths]
        ax.plot(lengths, proportional, "k:", label="proportional to T")
        ax.set(xlabel="sequence length T", ylabel="ms for a training step")
        ax.set(xlim=(0, None), ylim=(0, None), xticks=lengths)
        ax.set_title(f"Step t waits for step t - 1: time grows with T (B = {BATCHES[-1]})")
        ax.legend()


class GRU(nn.Module):
    """The GRU of nn.GRU with one of its layers' weights; rows r, z, n (§2.6; Cho et al., 2014).

    No memory cell, and one update gate z in place of the LSTM's f and i.
    forward: x (B, T, E) → every h (B, T, H), the last h (B, H).
    """

    def __init__(self, *weights):
        super().__init__()
        weight_ih, weight_hh, bias_ih, bias_hh = (nn.Parameter(w.detach().clone()) for w in weights)
        self.weight_ih, self.weight_hh = weight_ih, weight_hh  # (3H, E), (3H, H)
        self.bias_ih, self.bias_hh = bias_ih, bias_hh  # (3H,) each

    def forward(self, x):
        h, outputs = x.new_zeros(len(x), self.weight_hh.shape[1]), []  # (B, H)
        for x_t in x.unbind(dim=1):  # T times (B, E)
            r_x, z_x, n_x = (x_t @ self.weight_ih.T + self.bias_ih).chunk(3, dim=1)  # (B, H) each
            r_h, z_h, n_h = (h @ self.weight_hh.T + self.bias_hh).chunk(3, dim=1)  # (B, H) each
            r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
            n = torch.tanh(n_x + r * n_h)  # Cho et al. reset h before its matrix, torch after it
            h = (1 - z) * n + z * h  # z keeps, 1 - z writes
            outputs.append(h)
        return torch.stack(outputs, dim=1), h  # (B, T, H), (B, H)


@one_thread()
def training_step(B, T):
    """Seconds for forward and backward, the fastest of REPEATS: our LSTM, nn.LSTM, nn.GRU."""
    x = normal(0, B, T, E).float()  # (B, T, E)
    networks = [seeded(0, LSTM, E, H).float()]
    networks += [seeded(0, kind, E, H, batch_first=True).float() for kind in (nn.LSTM, nn.GRU)]
    seconds = [[] for _ in networks]
    for _ in range(REPEATS):  # in turn, so that a busy moment hits all three alike
        for network, measured in zip(networks, seconds):
            start = time.perf_counter()
            network(x)[0].sum().backward()
            measured.append(time.perf_counter() - start)
    return [min(measured) for measured in seconds]


# %% All parts ─────────────────────────────────────────────────────────────────────────────────────
PARTS = [part1_cell, part2_parameters, part3_reach, part4_directions, part5_time]

if __name__ == "__main__":
    main(__doc__, PARTS)
