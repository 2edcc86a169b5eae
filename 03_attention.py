"""03 · 注意力 · Attention · Lecture 2, §3.2–3.9, exercises 1, 4, 9

Each position asks every position it may see, and takes the average of their values, weighted by a
softmax. Content alone decides who gets which weight: order has to be put in on purpose.

    python 03_attention.py            every part
    python 03_attention.py --part 3   one part
"""

import math
import time
from companion import main, require
from itertools import permutations
from statistics import median

import torch

from lm_models import MultiHeadAttention, sinusoidal_positions

# ── constants: edit and run again ────────────────────────────────────────────────────────────────
X_DIAGONAL = [1, 1, 2, 1]  # the slide's inputs: x_t is X_DIAGONAL[t] in dimension t, else 0
WEIGHTS = [0.1, 0.2, 0.6, 0.1]  # the slide's attention weights of position 4
SCORES = [0, 1, 2, 0]  # exercise 1: the scores of position 4
LENGTHS = [16, 32, 64, 128, 256]  # sequence lengths T at which loop and matrix form race
RUNS = 20  # runs of the matrix form for each of the loop, which takes far longer
D = 32  # dimension of their inputs, queries, keys and values
N_KEYS = 32  # keys behind each softmax of §3.5
QUERIES = 20_000  # queries behind each average of §3.5 and exercise 4
LONG_QUERIES = 4_992  # in §3.5's table above d_k = 64: long vectors take longer, scatter less
D_K = [1, 4, 16, 64, 256, 1024]  # dimensions of queries and keys in the table of §3.5
LEADS = [0, 1, 2, 4, 8, 16, 32]  # by how much one score leads the others
D_K_EXERCISE = 64  # exercise 4
D_MODEL = 16  # §3.8
HEADS = [1, 2, 4, 8]
SHARPNESS = 100.0  # length of the hand-set queries: leaves other keys about exp(-35)
D_POSITIONS = 32  # dimension of the sinusoids in §3.9
STARTS = [0, 10, 30]  # positions p from which their dot products are taken,
DISTANCES = [0, 1, 2, 4, 8, 16, 32]  # over distances k
MAX_LEN = 64  # rows of the table of sinusoids, and words before the head that counts them
ROUNDING = 1e-12  # a change below it is floating-point noise
SEED = 0

F64 = torch.float64  # differences of 1e-16 need it
SWAP = torch.tensor([0, 2, 1, 3])  # x_2 and x_3: the code counts from 0, the lecture from 1


# %% Part 1 · §3.2–3.4 ─────────────────────────────────────────────────────────────────────────────
def part1_swap(show):
    """§3.4 · 课堂练习：交换 x_2 和 x_3 · In class: swap x_2 and x_3"""
    require(len(WEIGHTS) == 4, f"WEIGHTS must be 4 numbers, one a position, got {WEIGHTS}")
    is_average = min(WEIGHTS) >= 0 and abs(sum(WEIGHTS) - 1) < ROUNDING
    require(is_average, f"WEIGHTS must be 0 or more and sum to 1, got {WEIGHTS}")
    a_4, X = torch.tensor(WEIGHTS, dtype=F64), slide_inputs()  # (4,), (4, 4)
    show.claim("L2-051", a_4)
    show.claim("L2-052", a_4 @ X)

    seeds = seeds_from(show, 10)
    runs = [swap(X, causal_mask(4), seed) for seed in seeds]
    before, after, at_position, of_token = runs[0]  # (4,) each
    header = [("inputs in the order", "输入的顺序"), *(f"j = {j}" for j in range(1, 5))]
    rows = [["x_1 x_2 x_3 x_4", *rounded(before)], ["x_1 x_3 x_2 x_4", *rounded(after)]]
    title = "Weights of position 4, random matrices", "第 4 个位置的权重，随机矩阵"
    show.table(title, header, rows)

    columns = [at_position, of_token, *swap(X, torch.zeros(4, 4, dtype=F64), SEED)[2:]]
    rows = [[t + 1, *(f"{column[t]:.2g}" for column in columns)] for t in range(4)]
    header = ["t", ("at t, causal", "位置 t，因果掩码"), ("of x_t, causal", "词 x_t，因果掩码")]
    header += [("at t, no mask", "位置 t，无掩码"), ("of x_t, no mask", "词 x_t，无掩码")]
    title = "Largest change of the output at position t, and of token x_t's, followed as it moves"
    title_zh = "交换带来的最大变化：位置 t 上的输出；词 x_t 的输出（跟着词走）"
    show.table((title, title_zh), header, rows)

    show.claim("L2-053", at_position[3], seeds=[run[2][3].item() for run in runs])
    show.claim("L2-054", before, seeds=[run[0] for run in runs])
    show.claim("L2-055", after, seeds=[run[1] for run in runs])
    changed = [bool((torch.stack(run[2:])[:, 1:3] > ROUNDING).all()) for run in runs]
    show.claim("L2-056", changed[0], seeds=changed)
    off = max((run[1] - run[0][SWAP]).abs().max() for run in runs)
    note = f"The digits of the weights belong to seed {SEED}; that each weight moves with its token"
    note += f" holds for all {len(seeds)} seeds (to {off:.0e})."
    note_zh = f"权重的具体数字只属于种子 {SEED}；权重跟着词走，则对 {len(seeds)} 个种子都成立"
    show.note((note, f"{note_zh}（误差不超过 {off:.0e}）。"))


def seeds_from(show, default):
    """The seeds to spread over: SEED, whose numbers are claimed, then the others."""
    return list(dict.fromkeys([SEED, *show.seeds(default)]))


def slide_inputs():
    """The slide's x_1 … x_4 as the rows of X (4, 4)."""
    require(len(X_DIAGONAL) == 4, f"X_DIAGONAL must be 4 numbers, one a position, got {X_DIAGONAL}")
    return torch.diag(torch.tensor(X_DIAGONAL, dtype=F64))


def random_matrices(d, draws):
    """W_q, W_k, W_v, (d, d) each, from N(0, 1) in this order."""
    return [torch.randn(d, d, generator=draws, dtype=F64) for _ in range(3)]


def causal_mask(T):
    """M (T, T): 0 where j <= t, so that position t sees itself and its past, else -inf (§3.7)."""
    return torch.full((T, T), -torch.inf, dtype=F64).triu(1)


def attention_weights(X, W_q, W_k, M):
    """A = softmax(QKᵀ/√d_k + M) row by row (§3.6): X (T, d), W_q and W_k (d, d_k) → (T, T)."""
    Q, K = X @ W_q, X @ W_k  # (T, d_k)
    S = Q @ K.T / math.sqrt(W_k.shape[1])  # (T, T): row t holds position t's score of every j
    return torch.softmax(S + M, dim=1)


def attention(X, W_q, W_k, W_v, M):
    """X' = A V (§3.6): row t averages the values with the weights in row t of A → (T, d_v)."""
    return attention_weights(X, W_q, W_k, M) @ (X @ W_v)


def swap(X, M, seed):
    """Position 4's weights before and after the swap, and what it changes → four times (4,).

    The changes: of the output at each position, and of each token's output, followed as it moves.
    """
    W_q, W_k, W_v = random_matrices(4, torch.Generator().manual_seed(seed))
    weights = [attention_weights(inputs, W_q, W_k, M)[3] for inputs in (X, X[SWAP])]
    before, after = (attention(inputs, W_q, W_k, W_v, M) for inputs in (X, X[SWAP]))  # (4, 4)
    at_position = (after - before).abs().amax(dim=1)
    of_token = (after[SWAP] - before).abs().amax(dim=1)
    return *weights, at_position, of_token


def rounded(values):
    return [f"{value:.3f}" for value in values]


# %% Part 2 · §3.3, §3.6 ───────────────────────────────────────────────────────────────────────────
def part2_loop_and_matrix(show):
    """§3.6 · 逐个位置的循环与矩阵写法 · The formulas word for word, and as matrices"""
    require(LENGTHS and min(LENGTHS) >= 1, f"LENGTHS must be one or more T >= 1, got {LENGTHS}")
    require(RUNS >= 1, f"RUNS must be 1 or more, got {RUNS}")
    require(D >= 1, f"D must be 1 or more, got {D}")
    seeds = seeds_from(show, 3)
    races = {T: [] for T in LENGTHS}  # T → (difference, loop's seconds, matrix form's) per seed
    runs = [(T, seed) for T in LENGTHS for seed in seeds]
    for T, seed in show.progress(runs, len(runs), "loop against matrix form"):
        races[T].append(race(T, seed))

    rows, speedups = [], {}
    for T, measured in races.items():
        differences, loop, matrix = zip(*measured)
        speedups[T] = min(loop) / min(matrix)
        times = [f"{1e3 * min(loop):.2f}", f"{1e3 * min(matrix):.3f}", f"{speedups[T]:.0f}"]
        rows.append([T, T * (T + 1) // 2, f"{max(differences):.1e}", *times])
    header = ["T", ("scores", "分数个数"), ("largest difference", "最大差")]
    header += [
        ("loop, ms", "循环，毫秒"),
        ("matrix, ms", "矩阵，毫秒"),
        ("times faster", "快多少倍"),
    ]
    n = len(seeds)
    title = f"attention_loop against the matrix form, d = {D}, one thread, fastest run"
    title_zh = f"attention_loop 与矩阵写法，d = {D}，单线程，取最快一次"
    title += f" (loop: of {n}, matrix: of {n * RUNS})"
    title_zh += f"（循环 {n} 次，矩阵 {n * RUNS} 次）"
    show.table((title, title_zh), header, rows)

    longest = [difference for difference, *_ in races[max(LENGTHS)]]
    show.claim("L2-063", longest[0], seeds=longest)
    show.claim("L2-064", speedups[max(LENGTHS)])


def attention_loop(X, W_q, W_k, W_v):
    """§3.2–3.3, one score at a time: X (T, d), W_q and W_k (d, d_k), W_v (d, d_v) → (T, d_v)."""
    q = [W_q.T @ x for x in X]  # T times (d_k,)
    k = [W_k.T @ x for x in X]  # T times (d_k,)
    v = [W_v.T @ x for x in X]  # T times (d_v,)
    root, outputs = math.sqrt(W_k.shape[1]), []
    for t in range(len(X)):
        s_t = [k[j] @ q[t] / root for j in range(t + 1)]  # j <= t: causal
        a_t = torch.softmax(torch.stack(s_t), dim=0)  # (t + 1,)
        outputs.append(sum(a_tj * v_j for a_tj, v_j in zip(a_t, v)))  # the zip ends at j = t
    return torch.stack(outputs)


def race(T, seed):
    """The largest difference of the two forms on one draw, and the seconds that each takes."""
    draws = torch.Generator().manual_seed(seed)
    X = torch.randn(T, D, generator=draws, dtype=F64) / math.sqrt(D)  # x_t of length about 1
    matrices = random_matrices(D, draws)
    from_loop, loop = timed(lambda: attention_loop(X, *matrices), runs=1)
    from_matrix, matrix = timed(lambda: attention(X, *matrices, causal_mask(T)), runs=RUNS)
    return (from_loop - from_matrix).abs().max().item(), loop, matrix


def timed(compute, runs):
    """The result, and the seconds of the fastest of several runs."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        result = compute()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)


# %% Part 3 · §3.6–3.7 ─────────────────────────────────────────────────────────────────────────────
def part3_masks(show):
    """§3.6–3.7 · 按行还是按列，因果掩码 · Rows or columns, and the causal mask"""
    runs = [row_sums(seed) for seed in seeds_from(show, 10)]
    ways = ("along each row", "按行"), ("along each column", "按列")
    rows = [[show.say(way), *rounded([*sums, sum(sums)])] for way, sums in zip(ways, runs[0])]
    header = ["softmax", *(f"t = {t}" for t in range(1, 5)), ("together", "合计")]
    show.table(("What the weights of x_t' sum to", "x_t' 的权重之和"), header, rows)
    note = "The lecture does not give the matrices behind its own sums, so their digits cannot be "
    note += "compared. With the softmax along columns they add up to T whatever the matrices; only "
    note += "by chance is each of them 1."
    note_zh = "讲义没有给出它所用的矩阵，按列做的具体数字无法对照；无论用什么矩阵，"
    note_zh += "这几个和加起来都等于 T，但各自都等于 1 只会是巧合。"
    show.note((note, note_zh))

    show.claim("L2-065", runs[0][0], seeds=[by_rows for by_rows, _ in runs])
    farthest = [(by_columns - 1).abs().max().item() for _, by_columns in runs]
    show.claim("L2-066a", farthest[0], seeds=farthest)
    is_T = [abs(by_columns.sum().item() - 4) < ROUNDING for _, by_columns in runs]
    show.claim("L2-066b", is_T[0], seeds=is_T)

    X, W = slide_inputs(), random_matrices(4, torch.Generator().manual_seed(SEED))
    seen = {name: influence(lambda X, M=M: attention(X, *W, M), X) for name, M in masks().items()}
    nudged = [(f"nudge x_{j}", f"扰动 x_{j}") for j in range(1, 5)]
    names = [show.say(("none", "无")), "A", "B", "C"]
    rows = [
        [name, *(f"{change:.3g}" for change in changes[1])]
        for name, changes in zip(names, seen.values())
    ]
    title = ("Largest change of x_2' when one input is nudged", "扰动一个输入，x_2' 的最大变化")
    show.table(title, [("mask", "掩码"), *nudged], rows)

    looked_at = {name: who(changes[1]) for name, changes in seen.items()}
    stated = {"none": [1, 2, 3, 4], "A": [2, 3, 4], "B": [1, 2], "C": [2]}
    show.claim("L2-067", looked_at == stated)
    past = [list(range(1, t + 1)) for t in range(1, 5)]
    causal = [name for name, changes in seen.items() if [who(row) for row in changes] == past]
    show.claim("L2-068", causal == ["B"])

    M = masks()["B"]
    ways = {
        ("add -inf before", "softmax 前加 -inf"): lambda X: attention_weights(X, *W[:2], M),
        ("multiply by 0 after", "softmax 后乘 0"): lambda X: zeroed_after(X, *W[:2], M),
    }
    rows = []
    for way, weights in ways.items():
        changes = influence(lambda X, weights=weights: weights(X) @ (X @ W[2]), X)  # (4, 4)
        rows.append([show.say(way), *rounded(weights(X).sum(dim=1)), str(who(changes[1]))])
    header = [("mask B", "掩码 B"), *((f"sum of row {t}", f"第 {t} 行之和") for t in range(1, 5))]
    header += [("x_2' depends on", "x_2' 依赖的位置")]
    title = "-inf before the softmax, or 0 after it", "softmax 前加 -inf，还是 softmax 后乘 0"
    show.table(title, header, rows)
    note = "Zeros afterwards leak as well: the softmax has already divided by the future's scores."
    show.note((note, "softmax 后乘 0 还会泄漏未来：分母里已经有了未来位置的分数。"))


def row_sums(seed):
    """What each row's weights sum to, with the softmax along rows and along columns: (4,), (4,)."""
    X, (W_q, W_k, _) = slide_inputs(), random_matrices(4, torch.Generator().manual_seed(seed))
    S = (X @ W_q) @ (X @ W_k).T / math.sqrt(4)  # (4, 4)
    return torch.softmax(S, dim=1).sum(dim=1), torch.softmax(S, dim=0).sum(dim=1)


def masks():
    """No mask, and the slide's three candidates for T = 4."""
    minus_inf = torch.full((4, 4), -torch.inf, dtype=F64)
    return {
        "none": torch.zeros(4, 4, dtype=F64),
        "A": minus_inf.tril(-1),  # -inf below the diagonal
        "B": minus_inf.triu(1),  # -inf above the diagonal
        "C": minus_inf.tril(-1) + minus_inf.triu(1),  # -inf everywhere else
    }


def influence(f, X):
    """Largest change of each output f(X)_t when one input x_j is nudged: entry (t, j) of (T, T)."""
    changes = []
    for j in range(len(X)):
        nudged = X.clone()
        nudged[j] += 0.5
        changes.append((f(nudged) - f(X)).abs().amax(dim=1))  # (T,)
    return torch.stack(changes, dim=1)


def who(changes):
    """The inputs, counted from 1, that change anything at all: unseen means exactly 0."""
    return [j for j, change in enumerate(changes.tolist(), start=1) if change != 0]


def zeroed_after(X, W_q, W_k, M):
    """The pitfall: a softmax over everything, then 0 where the mask has -inf → (T, T)."""
    return attention_weights(X, W_q, W_k, torch.zeros_like(M)) * (M == 0)


# %% Part 4 · §3.5, exercises 1 and 4 ──────────────────────────────────────────────────────────────
def part4_scaling(show):
    """§3.5 · 为什么要除以 √d_k · Why divide by √d_k"""
    require(N_KEYS >= 2, f"N_KEYS must be 2 or more for a softmax to choose from, got {N_KEYS}")
    for name, queries in ("QUERIES", QUERIES), ("LONG_QUERIES", LONG_QUERIES):
        require(queries >= N_KEYS, f"{name} must be N_KEYS = {N_KEYS} or more, got {queries}")
    require(D_K and min(D_K) >= 1, f"D_K must be one or more dimensions >= 1, got {D_K}")
    require(D_K_EXERCISE >= 1, f"D_K_EXERCISE must be 1 or more, got {D_K_EXERCISE}")
    require(LEADS, f"LEADS must be one or more score differences, got {LEADS}")
    entropies = saturation_table(show)
    slope_table(show)
    exercise_1(show)
    scores = exercise_4(show)

    with show.figure("03_scaling", columns=2, size=(12, 4.6)) as (left, right):
        for entropy, name in zip(entropies, ("unscaled", r"divided by $\sqrt{d_k}$")):
            left.plot(D_K, entropy, "o-", label=name)
        left.axhline(math.log(N_KEYS), color="grey", linestyle="--", label=f"uniform: ln {N_KEYS}")
        left.set(xscale="log", xlabel="$d_k$", ylabel="mean entropy of the weights", ylim=(0, None))
        left.set_title("Unscaled, the softmax saturates")
        left.legend()
        for S, name in zip(scores, ("$1$", r"$1/\sqrt{d_k}$", "$1/d_k$")):
            ordered = torch.softmax(S, dim=1).sort(dim=1, descending=True).values
            right.plot(range(1, N_KEYS + 1), ordered.mean(dim=0), ".-", label=f"c = {name}")
        right.set(xlabel="keys, from the largest weight down", ylabel="mean weight", yscale="log")
        right.set(title=rf"Softmax of $c\,q^\top k$, $d_k$ = {D_K_EXERCISE}", ylim=(1e-8, 2))
        right.legend()


def saturation_table(show):
    """§3.5's table over d_k; returns the mean entropies, unscaled and scaled (2, len(D_K))."""
    seeds = seeds_from(show, 3)
    runs = [
        [saturation(d_k, seed) for d_k in D_K]
        for seed in show.progress(seeds, len(seeds), "softmax over d_k")
    ]
    runs = torch.tensor(runs, dtype=F64)  # (seeds, len(D_K), 5)
    spread = (runs.amax(dim=0) - runs.amin(dim=0)) / 2  # (len(D_K), 5)
    rows = [
        [d_k, f"{math.sqrt(d_k):.2f}", *(f"{x:.3f} ±{e:.3f}" for x, e in zip(values, errors))]
        for d_k, values, errors in zip(D_K, runs[0], spread)
    ]
    header = ["d_k", "√d_k", ("std of qᵀk", "qᵀk 的标准差")]
    for scale, scale_zh in ("unscaled", "不缩放"), ("scaled", "缩放"):
        header += [(f"{scale}: largest weight", f"{scale_zh}：最大权重")]
        header += [(f"{scale}: entropy", f"{scale_zh}：熵")]
    title = f"Softmax over {N_KEYS} keys, {QUERIES} queries ({LONG_QUERIES} above d_k = 64); "
    title += f"± half the range of {len(seeds)} seeds"
    title_zh = (
        f"{N_KEYS} 个键上的 softmax，{QUERIES} 个查询（d_k > 64 时 {LONG_QUERIES} 个），"
        f"± 为 {len(seeds)} 个种子极差的一半"
    )
    show.table((title, title_zh), header, rows)

    show.claim("L2-057", N_KEYS)
    show.claim("L2-058", uniform_entropy(N_KEYS))
    show.claim("L2-059a", runs[0, :, 4], seeds=runs[:, :, 4])
    show.claim("L2-059b", runs[0, :, 3], seeds=runs[:, :, 3])
    show.claim("L2-059c", saturates(runs[0]), seeds=map(saturates, runs))
    ratios = runs[:, :, 0] / torch.tensor(D_K, dtype=F64).sqrt()  # (seeds, len(D_K))
    show.claim("L2-062", ratios[0], seeds=ratios)
    show.view("softmax", softmax_view)
    return runs[0, :, [2, 4]].T


def softmax_view():
    """For the report page's slider over d_k = 1, 2, 4, …: the scores of one query and N_KEYS keys.

    A smaller d_k takes the first numbers of the same vectors. Largest weight and entropy, means of
    many queries, are the table's.
    """
    sizes = [2**n for n in range(max(D_K).bit_length())]
    draws = torch.Generator().manual_seed(SEED)
    q, k = (torch.randn(n, sizes[-1], generator=draws) for n in (1, N_KEYS))
    means = [saturation(d_k, SEED)[1:] for d_k in sizes]
    scores = [(k[:, :d_k] @ q[0, :d_k]).tolist() for d_k in sizes]  # (N_KEYS,) each
    return {"d_k": sizes, "scores": scores, "means": means}


def saturation(d_k, seed):
    """Std of qᵀk, then largest weight and entropy, unscaled and scaled by 1/√d_k.

    Queries and keys are N(0, 1), for sequences of N_KEYS positions that all look at each other.
    float32 draws four times as fast, and its rounding is far below the spread over seeds.
    """
    draws = torch.Generator().manual_seed(seed)
    queries = QUERIES if d_k <= 64 else LONG_QUERIES
    shape = queries // N_KEYS, N_KEYS, d_k
    Q, K = (torch.randn(shape, generator=draws) for _ in range(2))
    S = Q @ K.mT  # (sequences, N_KEYS, N_KEYS)
    return S.std().item(), *concentration(S), *concentration(S / math.sqrt(d_k))


def concentration(S):
    """Means over queries of the largest weight and of the entropy -Σ a ln a; S (…, keys)."""
    A = torch.softmax(S, dim=-1)
    entropy = torch.special.entr(A).sum(dim=-1)  # entr(a) = -a ln a, with 0 at a = 0
    return A.amax(dim=-1).mean().item(), entropy.mean().item()


def uniform_entropy(n):
    """The entropy of the softmax of n equal scores."""
    return concentration(torch.zeros(n, dtype=F64))[1]


def saturates(run):
    """Unscaled: does the largest weight only grow, the entropy only fall, past 0.9 and 0.2?"""
    largest, entropy = run[:, 1], run[:, 2]  # (len(D_K),)
    one_way = (largest.diff() > 0).all() and (entropy.diff() < 0).all()
    return bool(one_way and largest[-1] > 0.9 and entropy[-1] < 0.2)


def slope_table(show):
    """What is left of the softmax's derivatives once one score leads the others."""
    rows = []
    for lead in LEADS:
        p, by_autograd, by_formula = slopes(lead)
        steepest = [f"{J[1].abs().max():.3e}" for J in (by_autograd, by_formula)]
        rows.append([lead, f"{p[0]:.6f}", f"{p[1]:.2e}", *steepest])
    header = [("lead Δ", "领先 Δ"), "p_1", "p_2"]
    header += [("max |∂p_2/∂s|, autograd", "max |∂p_2/∂s|，自动微分"), "diag(p) - p pᵀ"]
    title = f"Softmax of [Δ, 0, …, 0], {N_KEYS} scores: its derivatives die"
    show.table((title, f"[Δ, 0, …, 0] 的 softmax，共 {N_KEYS} 个分数：导数消失"), header, rows)
    show.claim("L2-060", slopes(1)[1][1].abs().max())
    show.claim("L2-061", slopes(32)[1][1].abs().max())


def slopes(lead):
    """p (n,) of the scores [lead, 0, …, 0]; ∂p_i/∂s_j (n, n) by autograd and as diag(p) - p pᵀ."""
    s = torch.zeros(N_KEYS, dtype=F64)
    s[0] = lead
    p = torch.softmax(s, dim=0)
    by_autograd = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, dim=0), s)
    return p, by_autograd, torch.diag(p) - torch.outer(p, p)


def exercise_1(show):
    """From scores to weights to x_4', and again with the scores times 4."""
    require(len(SCORES) == 4, f"SCORES must be 4 numbers, one a position, got {SCORES}")
    s_4, X = torch.tensor(SCORES, dtype=F64), slide_inputs()  # (4,), (4, 4)
    a_4, sharp = torch.softmax(s_4, dim=0), torch.softmax(4 * s_4, dim=0)  # (4,)
    rows = [
        [scores, name, *(f"{x:.4f}" for x in values)]
        for scores, a in (("s_4", a_4), ("4 s_4", sharp))
        for name, values in (("a_4", a), ("x_4'", a @ X))
    ]
    title = (f"Exercise 1, s_4 = {SCORES}", f"练习 1，s_4 = {SCORES}")
    show.table(title, [("scores", "分数"), "", *(f"[{n}]" for n in range(1, 5))], rows)
    show.claim("L2-154", a_4)
    show.claim("L2-155", a_4 @ X)
    show.claim("L2-156", sharp)
    show.claim("L2-157", sharp @ X)


def exercise_4(show):
    """c qᵀk for c = 1, 1/√d_k, 1/d_k; returns the three (QUERIES, N_KEYS)."""
    scales = [1.0, 1 / math.sqrt(D_K_EXERCISE), 1 / D_K_EXERCISE]
    seeds = seeds_from(show, 3)
    scores = own_keys(SEED, F64)  # (QUERIES, N_KEYS): the lecture's draw
    runs = [[concentration(c * scores) for c in scales]]
    for seed in show.progress(seeds[1:], len(seeds) - 1, "exercise 4"):
        others = own_keys(seed, torch.float32)  # drawn faster; they only show the spread
        runs.append([concentration(c * others) for c in scales])

    rows = []
    for n, c in enumerate(scales):
        rows.append([f"{c:.4f}", f"{(c * scores).std():.4f}"])
        for over_seeds in zip(*(run[n] for run in runs)):  # largest weights, then entropies
            rows[-1] += [f"{over_seeds[0]:.4f}", f"{min(over_seeds):.4f} … {max(over_seeds):.4f}"]
    spread = (f"over {len(seeds)} seeds", f"{len(seeds)} 个种子的范围")
    header = ["c", ("std of c qᵀk", "c qᵀk 的标准差"), ("largest weight", "最大权重"), spread]
    header += [("entropy", "熵"), spread]
    title = f"Exercise 4, d_k = {D_K_EXERCISE}, {QUERIES} queries with {N_KEYS} keys of their own"
    title_zh = f"练习 4，d_k = {D_K_EXERCISE}，{QUERIES} 个查询，各有 {N_KEYS} 个键"
    show.table((title, title_zh), header, rows)

    english = "The lecture's digits are those of seed 0; the last one differs from seed to seed."
    show.note((english, "讲义的数字是种子 0 的；换一个种子，末位就会变。"))

    show.claim("L2-163", [(c * scores).std() for c in scales])
    for n, id in enumerate(("L2-164", "L2-165", "L2-166")):
        show.claim(id, runs[0][n], seeds=[run[n] for run in runs])
    show.claim("L2-167", uniform_entropy(N_KEYS))
    return [c * scores for c in scales]


def own_keys(seed, dtype):
    """qᵀk of QUERIES queries, each with N_KEYS keys of its own → (QUERIES, N_KEYS)."""
    draws = torch.Generator().manual_seed(seed)
    q = torch.randn(QUERIES, D_K_EXERCISE, generator=draws, dtype=dtype)  # (QUERIES, d_k)
    scores = []
    for some in q.split(200):  # the same numbers as in one draw, which would take 330 MB
        k = torch.randn(len(some), N_KEYS, D_K_EXERCISE, generator=draws, dtype=dtype)
        scores.append((k @ some.unsqueeze(2)).squeeze(2))  # (200, N_KEYS)
    return torch.cat(scores)


# %% Part 5 · §3.8 ─────────────────────────────────────────────────────────────────────────────────
def part5_heads(show):
    """§3.8 · 多头注意力 · Multi-head attention"""
    require(D_MODEL >= 4 and D_MODEL % 2 == 0, f"D_MODEL must be even, 4 or more, got {D_MODEL}")
    fit = HEADS and all(h >= 1 and D_MODEL % h == 0 for h in HEADS)
    require(fit, f"HEADS must be one or more divisors of D_MODEL = {D_MODEL}, got {HEADS}")
    require(SHARPNESS > 0, f"SHARPNESS must be above 0 for a head to choose, got {SHARPNESS}")
    rows = []
    for h in HEADS:
        layer = MultiHeadAttention(D_MODEL, h)
        sizes = [count(part) for part in (layer.W_q, layer.W_k, layer.W_v, layer.W_o, layer)]
        rows.append([h, layer.d_k, *sizes, 4 * D_MODEL**2 + 4 * D_MODEL])
    header = [("heads", "头数"), "d_k", "W_q", "W_k", "W_v", "W_o", ("counted", "合计"), "4d² + 4d"]
    show.table((f"Parameters, d = {D_MODEL}", f"参数量，d = {D_MODEL}"), header, rows)
    show.claim("L2-069", [row[6] for row in rows])

    T = D_MODEL // 2
    draws = torch.Generator().manual_seed(SEED)
    words = torch.randn(T, T, generator=draws, dtype=F64)
    x = torch.cat([torch.eye(T, dtype=F64), words], dim=1)  # (T, D_MODEL): [which place | word]
    layer, undecided = hand_set_heads(), hand_set_heads()
    undecided.W_q.weight.data[:T] += undecided.W_q.weight.data[T:]  # head 1 asks for both at once
    with torch.no_grad():
        heads, output = layer.attention(x[None])[0], layer(x[None])[0]  # (2, T, T), (T, D_MODEL)
        both = undecided.attention(x[None])[0, 0]  # (T, T)
    wanted = torch.zeros(2, T, T, dtype=F64)
    wanted[0, 0, 0] = 1  # nothing stands before the first position: it has only itself
    wanted[0, 1:].fill_diagonal_(1)
    wanted[1, :, 0] = 1
    show.claim("L2-070", torch.allclose(heads, wanted, rtol=0, atol=1e-6))

    rows = []
    for t in range(T):
        looks = [cell for head in heads for cell in (head[t].argmax() + 1, f"{head[t].max():.6f}")]
        previous = f"{both[t, t - 1]:.2f}" if t else "—"
        rows.append([t + 1, *looks, previous, f"{both[t, 0]:.2f}"])
    header = ["t", ("head 1 looks at", "头 1 看"), ("weight", "权重")]
    header += [("head 2 looks at", "头 2 看"), ("weight", "权重")]
    header += [("one head for both: previous", "一个头兼顾：前一个"), ("first", "第一个")]
    show.table(("Two hand-set heads", "手工设定的两个头"), header, rows)
    before, first = words[[0, *range(T - 1)]], words[:1].expand(T, T)  # (T, T)
    off = (output - torch.cat([before, first], dim=1)).abs().max()
    note = f"From position 3 on, two heads hand on two words side by side, unmixed (to {off:.0e}); "
    note_zh = f"从第 3 个位置起，两个头把两个词并排传下去，互不混合（误差 {off:.0e}）；"
    if off > 1e-3:
        note = (
            f"With so little SHARPNESS the two heads mix in other words (off by up to {off:.1g}); "
        )
        note_zh = f"SHARPNESS 太小，两个头里都混进了别的词（最多相差 {off:.1g}）；"
    note_zh += "一个头要兼顾两处，只能传下它们的平均。"
    show.note((note + "one head that asks for both can only hand on their mean.", note_zh))

    with show.figure("03_heads", columns=3, size=(13.5, 4.6)) as axes:
        names = "Head 1: the previous position", "Head 2: the first position", "One head for both"
        for ax, name, weights in zip(axes, names, (*heads, both)):
            image = ax.imshow(weights, vmin=0, vmax=1, cmap="Blues")
            ax.set(title=name, xlabel="key j", ylabel="query t")
            ax.set(xticks=range(T), xticklabels=range(1, T + 1))
            ax.set(yticks=range(T), yticklabels=range(1, T + 1))
        ax.figure.colorbar(image, ax=axes, label="attention weight", shrink=0.85)


def count(module):
    """The number of a module's parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def hand_set_heads():
    """lm_models' layer with two heads for x_t = [one-hot place | word], set by hand (§3.8)."""
    T = D_MODEL // 2  # places; also the size of a word, and d_k: rows :T are head 1's, T: head 2's
    layer = all_zero(MultiHeadAttention(D_MODEL, 2).double())
    q, k, v = layer.W_q.weight.data, layer.W_k.weight.data, layer.W_v.weight.data  # (out, in)
    eye = torch.eye(T, dtype=F64)
    q[: T - 1, :T] = SHARPNESS * eye[1:]  # head 1: place t asks for t - 1, the first for nothing
    q[T, :T] = SHARPNESS  # head 2: every place asks for the first
    k[:T, :T] = k[T:, :T] = eye  # a key says which place it is
    v[:T, T:] = v[T:, T:] = eye  # a value is the word there
    layer.W_o.weight.data = torch.eye(D_MODEL, dtype=F64)
    return layer


def all_zero(layer):
    """The layer with all weights and biases 0, to be set by hand from there."""
    for parameter in layer.parameters():
        parameter.data.zero_()
    return layer


# %% Part 6 · §3.9, exercise 9 ─────────────────────────────────────────────────────────────────────
def part6_positions(show):
    """§3.9 · 位置编码 · Positions"""
    fits = D_POSITIONS >= 8 and D_POSITIONS % 8 == 0
    allowed = "a multiple of 8 (pairs of sin and cos, in 4 heads)"
    require(fits, f"D_POSITIONS must be {allowed}, got {D_POSITIONS}")
    require(STARTS and min(STARTS) >= 0, f"STARTS must be positions >= 0, got {STARTS}")
    require(DISTANCES and min(DISTANCES) >= 0, f"DISTANCES must be 0 or more, got {DISTANCES}")
    last = max(STARTS) + max(*DISTANCES, 4)
    require(last < MAX_LEN, f"MAX_LEN must be above the largest p + k = {last}, got {MAX_LEN}")
    PE = sinusoidal_positions(MAX_LEN, D_POSITIONS, dtype=F64)  # (MAX_LEN, d)
    swap_with_positions(show, PE)
    dot_products(show, PE)
    exercise_9(show, PE)
    counting_head_table(show)
    draw_sinusoids(show, PE)


def swap_with_positions(show, PE):
    """§3.4's swap again, without and with sinusoids added to the words."""
    seeds = seeds_from(show, 20)
    without, added = zip(*(swap_changes(PE, seed) for seed in seeds))
    rows = []
    for name, changes in (("words", "词"), without), (("words + positions", "词 + 位置"), added):
        four = changes[0], min(changes), median(changes), max(changes)
        rows.append([show.say(name), *(f"{change:.2g}" for change in four)])
    header = [("input", "输入"), (f"seed {SEED}", f"种子 {SEED}"), ("min", "最小")]
    header += [("median", "中位数"), ("max", "最大")]
    title = f"Largest change of x_4' when x_2 and x_3 swap, {len(seeds)} seeds"
    show.table((title, f"交换 x_2、x_3 后 x_4' 的最大变化，{len(seeds)} 个种子"), header, rows)
    show.claim("L2-071", without[0], seeds=without)
    show.claim("L2-072", added[0], seeds=added)


@torch.no_grad()
def swap_changes(PE, seed):
    """Largest change of x_4' when the words at 2 and 3 swap, without and with positions."""
    layer, words = layer_and_words(1, 4, seed)  # words (4, d)
    layer.W_o.weight.data = torch.eye(D_POSITIONS, dtype=F64)  # §3.9 ends at the weighted average

    def change(p):
        """Position t adds p[t], whichever word stands there."""
        before, after = layer(torch.stack([words + p, words[SWAP] + p]))  # (4, d) each
        return (after - before)[3].abs().max().item()

    return change(torch.zeros_like(PE[:4])), change(PE[:4])


def layer_and_words(n_heads, T, seed, causal=True):
    """MultiHeadAttention as torch starts it, and words from N(0, 1) (T, d), both in float64."""
    with torch.random.fork_rng(devices=[]):  # torch starts layers from the global generator
        torch.manual_seed(seed)
        layer = MultiHeadAttention(D_POSITIONS, n_heads, causal).double()
        return layer, torch.randn(T, D_POSITIONS, dtype=F64)


def dot_products(show, PE):
    """PE[p]·PE[p+k] = Σ_i cos(k ω_i): the distance k alone decides."""
    rows = []
    for k in DISTANCES:
        exact = [f"{PE[p] @ PE[p + k]:.7f}" for p in STARTS]
        noisy = (PE.float()[: MAX_LEN - k] * PE.float()[k:]).sum(dim=1)  # (MAX_LEN - k,)
        rows.append([k, *exact, f"{cosine_sum(k):.7f}", f"{noisy.min():.7f} … {noisy.max():.7f}"])
    header = ["k", *(f"p = {p}" for p in STARTS), "Σ cos(k ω_i)"]
    header += [("float32, over all p", "float32，所有 p")]
    title = (f"PE[p]·PE[p+k], d = {D_POSITIONS}", f"PE[p]·PE[p+k]，d = {D_POSITIONS}")
    show.table(title, header, rows)
    show.claim("L2-073", [PE[p] @ PE[p + 1] for p in STARTS])
    show.claim("L2-074", [PE[p] @ PE[p + 4] for p in STARTS])


def omega(i):
    """How far the i-th pair turns at each step, in radians: ω_i = 10000^(-2i/d)."""
    return 10000 ** (-2 * i / D_POSITIONS)


def cosine_sum(k):
    """Σ_i cos(k ω_i): what PE[p]·PE[p+k] comes to from every p."""
    return sum(math.cos(k * omega(i)) for i in range(D_POSITIONS // 2))


def exercise_9(show, PE):
    """f(PX) = P f(X) for every order P of five words: only without a mask and positions."""
    seeds = seeds_from(show, 10)
    nothing = torch.zeros_like(PE[:5])
    cases = {
        ("no mask", "无掩码"): (False, nothing),
        ("causal mask", "因果掩码"): (True, nothing),
        ("no mask, sinusoids added", "无掩码，加正弦位置编码"): (False, PE[:5]),
    }
    gaps = [torch.stack([equivariance_gaps(*case, s) for s in seeds]) for case in cases.values()]
    rows = []
    for name, gap in zip(cases, gaps):  # gap (seeds, 120)
        broken = (gap > ROUNDING).sum(dim=1)  # (seeds,)
        rows.append([show.say(name), f"{gap.max():.2g}", f"{broken.min()} … {broken.max()}"])
    header = [("attention", "注意力"), ("largest |f(PX) - P f(X)|", "|f(PX) - P f(X)| 的最大值")]
    header += [("orders P that break it, of 120", "120 个排列 P 中不成立的个数")]
    title = f"Exercise 9: every order of 5 words, 4 heads, {len(seeds)} seeds"
    show.table((title, f"练习 9：5 个词的所有排列，4 个头，{len(seeds)} 个种子"), header, rows)
    holds = (gaps[0] < ROUNDING).all(dim=1).tolist()  # one bool a seed
    show.claim("L2-178", holds[0], seeds=holds)


@torch.no_grad()
def equivariance_gaps(causal, p, seed):
    """Largest entry of |f(PX) - P f(X)| for each P, where f(X) is attention on X + p → (120,)."""
    layer, X = layer_and_words(4, 5, seed, causal)  # X (5, d)
    P = torch.tensor(list(permutations(range(5))))  # (120, 5)
    f_PX = layer(X[P] + p)  # (120, 5, d)
    P_fX = layer((X + p)[None])[0][P]  # (120, 5, d)
    return (f_PX - P_fX).abs().flatten(1).amax(dim=1)


@torch.no_grad()
def counting_head_table(show):
    """Exercise 9's other side: under a causal mask a head can tell where it is from 1/t."""
    draws = torch.Generator().manual_seed(SEED)
    x = torch.randn(1, MAX_LEN, D_POSITIONS, generator=draws, dtype=F64)  # (1, T, d): any words
    x[0, :, 0] = 0
    x[0, 0, 0] = 1  # dimension 0 marks the start token <s>, and it alone
    masked, unmasked = (counting_head(causal)(x)[0, :, 0] for causal in (True, False))  # (T,)
    read = (1 / masked).round().int().tolist()
    rows = [
        [t, f"{1 / t:.6f}", f"{masked[t - 1]:.6f}", read[t - 1], f"{unmasked[t - 1]:.6f}"]
        for t in (1, 2, 3, 4, 8, 16, 32, 64)
        if t <= MAX_LEN
    ]
    header = ["t", "1/t", ("causal head", "带因果掩码的头"), ("position read", "读出的位置")]
    header += [("same head, no mask", "同一个头，无掩码")]
    title = "A head without position code: equal weights, and a value of 1 at <s> only"
    show.table((title, "没有位置编码的头：权重均等，只有 <s> 的值是 1"), header, rows)
    right = sum(position == t for t, position in enumerate(read, start=1))
    note = (
        f"The causal head tells {right} of {MAX_LEN} positions; without a mask they all look alike."
    )
    note_zh = (
        f"带因果掩码的头读对了 {MAX_LEN} 个位置中的 {right} 个；没有掩码，各位置看起来都一样。"
    )
    show.note((note, note_zh))


def counting_head(causal):
    """One head whose scores are all 0, and whose only value is dimension 0 of the input."""
    head = all_zero(MultiHeadAttention(D_POSITIONS, 1, causal).double())
    head.W_v.weight.data[0, 0] = head.W_o.weight.data[0, 0] = 1
    return head


def draw_sinusoids(show, PE):
    """Pairs of dimensions as clock hands; the whole table, and its dot products over k."""
    with show.figure("03_clock_hands", columns=4, size=(14, 4)) as axes:
        for ax, i in zip(axes, range(0, D_POSITIONS // 2, max(1, D_POSITIONS // 16))):
            turn = torch.linspace(0, 2 * math.pi, 100)
            ax.plot(turn.cos(), turn.sin(), color="lightgrey")
            for p in range(8):
                sin, cos = PE[p, 2 * i : 2 * i + 2].tolist()
                ax.plot([0, cos], [0, sin], "o-", color=f"C{p}", label=f"p = {p}", markevery=[1])
            ax.set(title=f"pair i = {i}: {omega(i):.3g} rad a step", aspect="equal", xlabel="cos")
        axes[0].set_ylabel("sin")
        axes[-1].legend(loc="lower left", fontsize="small")

    with show.figure("03_sinusoids", columns=2, size=(13, 4.8)) as (table, dots):
        image = table.imshow(PE, aspect="auto", cmap="RdBu", vmin=-1, vmax=1)
        table.set(title="Sinusoidal positions PE[p]", xlabel="dimension", ylabel="position p")
        table.figure.colorbar(image, ax=table)
        for p, style in zip(STARTS, ("-", "--", ":") * len(STARTS)):
            dots.plot(PE[p:] @ PE[p], style, label=f"p = {p}", linewidth=2)
        dots.set(title="PE[p] · PE[p+k]: the distance alone decides", xlabel="distance k")
        dots.legend()


# %% All parts ─────────────────────────────────────────────────────────────────────────────────────
PARTS = [
    part1_swap,
    part2_loop_and_matrix,
    part3_masks,
    part4_scaling,
    part5_heads,
    part6_positions,
]

if __name__ == "__main__":
    torch.set_num_threads(1)  # small tensors: a second thread only waits; and sums never reorder
    main(__doc__, PARTS)
