"""01 · 会遗忘的 RNN · The forgetful RNN · Lecture 2, §2.2–2.4

A contraction forgets, an integrator drifts, a latch hides its gradient; a gated, additive memory
does none of the three. The slide's task, in parts 1 and 4: has a one been seen in both input units
so far?

    python 01_forgetful_rnn.py            every part
    python 01_forgetful_rnn.py --part 2   one part
"""

import math
from companion import main, require

import torch

from lm_models import LSTMCell

# ── constants: edit and run again ────────────────────────────────────────────────────────────────
DECAY = 0.5  # W_hh = DECAY · I
THRESHOLD = 1e-3  # the generous readout answers +1 while min(h_1, h_2) > THRESHOLD
STEPS = 100  # of the trajectory, and for as long part 3's latch is held
NOISE = 0.05  # standard deviation of the noise on every input
LONG = 1000  # steps that a memory has to last after the second one was seen
RUNS = 4096  # noisy runs behind each simulated standard deviation
GAIN = 10.0  # the latch: h_t = σ(GAIN h_{t-1} + GAIN x_t - GAIN/2)
INPUT_GAIN, INPUT_BIAS = 40.0, -20.0  # the hand-set LSTM: i = σ(INPUT_GAIN x + INPUT_BIAS)
FORGET_BIAS = 20.0  # and f = σ(FORGET_BIAS)
SEED = 0

F64 = torch.float64  # 1 - f = 2e-9 and gradients down to 1e-115 need it


# %% Part 1 · §2.2 ─────────────────────────────────────────────────────────────────────────────────
def part1_contraction(show):
    """§2.2 · 收缩会遗忘 · A contraction forgets"""
    require(0 < DECAY < 1, f"DECAY must lie between 0 and 1 to contract, got {DECAY}")
    require(THRESHOLD > 0, f"THRESHOLD must be above 0, got {THRESHOLD}")
    require(STEPS >= 5, f"STEPS must be at least 5, where the slide's h_5 is, got {STEPS}")
    W_hx, W_hh = torch.eye(2, dtype=F64), DECAY * torch.eye(2, dtype=F64)
    h = linear_rnn(two_ones(STEPS), W_hx, W_hh)  # (T + 1, 2): h[t] is the lecture's h_t
    seen_both = h.min(dim=-1).values > THRESHOLD  # (T + 1,)
    last = seen_both.nonzero().max().item() if seen_both.any() else 0

    rows = [
        [t, f"{h[t, 0]:.6g}", f"{h[t, 1]:.6g}", f"{h[t].min():.3g}", answer(seen_both[t])]
        for t in sorted({*range(1, 15), last, last + 1, STEPS})
        if 1 <= t <= STEPS
    ]
    header = ["t", "h_1", "h_2", "min", ("generous readout", "最宽容的读出")]
    show.table(("The slide's trajectory", "slides 的轨迹"), header, rows)

    show.claim("L2-013", W_hh)
    show.claim("L2-014", h[3:6])
    show.claim("L2-015", last)
    if STEPS >= 100:  # where the slide asks again
        show.claim("L2-016", -1 if not seen_both[100] else 1)
    show.claim("L2-017", halvings_until_zero(torch.tensor(1.0, dtype=torch.float32)))
    show.claim("L2-018", torch.linalg.eigvals(W_hh).abs().max())

    with show.figure("01_trajectory") as ax:
        t = range(1, min(STEPS, max(20, last + 8)) + 1)
        for unit, marker in (0, "o-"), (1, "s-"):
            ax.plot(t, h[1 : len(t) + 1, unit], marker, label=f"$h_{unit + 1}$")
        ax.axhline(THRESHOLD, color="grey", linestyle="--", label="threshold of the readout")
        ax.axvline(last + 0.5, color="black", linestyle=":", label=f"answers +1 up to t = {last}")
        ax.set(yscale="log", xlabel="step t", ylabel="hidden state")
        ax.minorticks_off()
        ax.set_title(f"A contraction forgets: each step keeps {DECAY} of the memory")
        ax.legend()


def two_ones(steps):
    """The slide's input: a one in unit 1 at t = 3, in unit 2 at t = 4 → x (T, 2); x[t-1] is x_t."""
    x = torch.zeros(steps, 2, dtype=F64)
    x[3 - 1, 0] = x[4 - 1, 1] = 1
    return x


def linear_rnn(x, W_hx, W_hh):
    """h_t = W_hx x_t + W_hh h_{t-1} from h_0 = 0; x (T, …, n) → every h (T + 1, …, n)."""
    h = [torch.zeros_like(x[0])]
    for x_t in x:
        h.append(x_t @ W_hx.T + h[-1] @ W_hh.T)
    return torch.stack(h)


def halvings_until_zero(h):
    """How often a float can be halved until it is exactly 0, denormal numbers included."""
    count = 0
    while h != 0:
        h, count = h / 2, count + 1
    return count


def answer(seen_both):
    return "+1" if seen_both else "-1"


# %% Part 2 · §2.3 ─────────────────────────────────────────────────────────────────────────────────
def part2_integrator(show):
    """§2.3 · 积分器：不遗忘，但积累噪声 · The integrator keeps, and piles up noise"""
    require(NOISE >= 0, f"NOISE must be 0 or more, got {NOISE}")
    require(RUNS >= 2, f"RUNS must be at least 2 to have a standard deviation, got {RUNS}")
    require(LONG >= 1, f"LONG must be at least 1, got {LONG}")
    x = noise(LONG, RUNS, 1)  # (T, RUNS, 1)
    one = torch.ones(1, 1, dtype=F64)
    integrator = linear_rnn(x, one, one).std(dim=1)[:, 0]  # (T + 1,)
    contraction = linear_rnn(x, one, DECAY * one).std(dim=1)[:, 0]  # (T + 1,)
    times = [t for t in sorted({1, 10, 100, LONG}) if t <= LONG]

    single = one_at(1, LONG + 1)  # (T + 1, 1): a one, then nothing, and no noise
    kept, shrunk = linear_rnn(single, one, one)[1:], linear_rnn(single, one, DECAY * one)[1:]
    rows = [[t, f"{kept[t].item():g}", f"{shrunk[t].item():.3g}"] for t in times]
    header = ["t", ("integrator", "积分器"), ("contraction", "收缩")]
    title = "What is left of a one, t steps after it was written, without noise"
    show.table((title, "没有噪声时，写入的 1 过 t 步后还剩多少"), header, rows)

    rows = [
        [t, integrator_std(t), integrator[t], contraction_std(t), contraction[t]] for t in times
    ]
    header = ["t", ("integrator, theory", "积分器，理论"), ("simulated", "模拟")]
    header += [("contraction, theory", "收缩，理论"), ("simulated", "模拟")]
    title = f"Standard deviation of h_t, noise {NOISE} on each input, {RUNS} runs"
    show.table((title, f"h_t 的标准差（每步输入噪声 {NOISE}，{RUNS} 次模拟）"), header, rows)

    show.claim("L2-019", x.std())
    show.claim("L2-020", integrator_std(LONG))
    show.claim("L2-021", contraction_std(math.inf))
    show.claim(
        "L2-022", [ratio for _, i, sim_i, c, sim_c in rows[1:] for ratio in (sim_i / i, sim_c / c)]
    )


def noise(steps, *shape):
    """Independent N(0, NOISE²) draws (T, *shape), the same at every call."""
    draws = torch.Generator().manual_seed(SEED)
    return NOISE * torch.randn(steps, *shape, generator=draws, dtype=F64)


def integrator_std(t):
    """The noise of t steps adds up: its variance is t · NOISE²."""
    return NOISE * math.sqrt(t)


def contraction_std(t):
    """Noise s steps old has shrunk to DECAY^s: a geometric series of variances."""
    return NOISE * math.sqrt((1 - DECAY ** (2 * t)) / (1 - DECAY**2))


# %% Part 3 · §2.3 ─────────────────────────────────────────────────────────────────────────────────
def part3_latch(show):
    """§2.3 · 锁存器：抗噪声，但梯度消失 · The latch withstands noise, and hides its gradient"""
    require(GAIN > 4, f"GAIN must be above 4 for two stable points, got {GAIN}")
    require(STEPS >= 1 and LONG >= 1, f"STEPS, LONG must be at least 1, got {STEPS}, {LONG}")
    low, high = latch_fixed_point(0.0), latch_fixed_point(1.0)
    slope = GAIN * high * (1 - high)  # dσ(GAIN h + …)/dh where σ(…) = h
    h = latch(one_at(3, STEPS + 3))  # (T + 1, 1): written at t = 3, kept STEPS steps
    x = noise(LONG + 3, RUNS)  # (T, RUNS)
    written, unwritten = latch(one_at(3, LONG + 3) + x)[-1], latch(x)[-1]  # (RUNS,) each

    distances = sorted({1, 2, 5, 10, 20, 50, STEPS})
    rows = [[d, f"{latch_gradient(d):.3e}", f"{slope**d:.3e}"] for d in distances]
    header = [("distance d", "距离 d"), "∂h_{3+d}/∂h_3", ("slope^d", "斜率^d")]
    show.table(("The latch's gradient", "锁存器的梯度"), header, rows)

    flipped = [(written < 0.5).double().mean(), (unwritten > 0.5).double().mean()]
    lost, won = (f"{100 * share:.3g}%" for share in flipped)
    en = f"After {LONG} noisy steps {lost} of {RUNS} written latches and {won} of the unwritten "
    zh = f"带噪声走 {LONG} 步后，{RUNS} 个写过的锁存器里有 {lost} 翻了过去，没写过的有 {won}。"
    show.note((f"{en}ones stand on the wrong side of 1/2.", zh))

    show.claim("L2-023", [GAIN, GAIN, -GAIN / 2])
    show.claim("L2-024", [low, high])
    show.claim("L2-025", slope)
    show.claim("L2-026", h[-1, 0])
    show.claim("L2-027", bool(written.min() > 0.9 and unwritten.max() < 0.1))
    show.claim("L2-028", latch_gradient(STEPS))


def one_at(t, steps):
    """A single one at step t → x (T, 1)."""
    x = torch.zeros(steps, 1, dtype=F64)
    x[t - 1] = 1
    return x


def latch(x, h=None):
    """h_t = σ(GAIN h_{t-1} + GAIN x_t - GAIN/2); x (T, n) → every h (T + 1, n)."""
    h = [latch_fixed_point(0.0).expand_as(x[0]) if h is None else h]
    for x_t in x:
        h.append(torch.sigmoid(GAIN * h[-1] + GAIN * x_t - GAIN / 2))
    return torch.stack(h)


def latch_fixed_point(h):
    """Where the latch settles from h when its input stays 0."""
    h = torch.tensor(h, dtype=F64)
    for _ in range(1000):
        h = torch.sigmoid(GAIN * h - GAIN / 2)
    return h


def latch_gradient(distance):
    """∂h_{3+d}/∂h_3 along the trajectory that was written at step 3, by autograd."""
    h_3 = latch(one_at(3, 3))[-1].requires_grad_()  # (1,)
    h = latch(torch.zeros(distance, 1, dtype=F64), h_3)  # (d + 1, 1)
    return torch.autograd.grad(h[-1].sum(), h_3)[0].item()


# %% Part 4 · §2.4, exercise 3 ─────────────────────────────────────────────────────────────────────
def part4_lstm(show):
    """§2.4 · LSTM：门控的加法式记忆 · LSTM: a gated, additive memory"""
    require(LONG >= 1, f"LONG must be at least 1, got {LONG}")
    x = two_ones(LONG + 4)  # (T, 2)
    should = torch.arange(1, LONG + 5) >= 4  # (T,): both have been seen from t = 4 on
    clean_h, _ = run(hand_set_lstm(), x)  # (T, 2)
    noisy_h, noisy_c = run(hand_set_lstm(), x + noise(LONG + 4, 2))  # (T, 2)
    right = [((h.min(dim=-1).values > 0.5) == should).sum() for h in (clean_h, noisy_h)]
    shut = torch.sigmoid(torch.tensor(INPUT_BIAS, dtype=F64)).item()

    header = [("distance d", "距离 d"), ("LSTM cell, ∂c_{4+d}/∂c_4", "LSTM 记忆单元 ∂c_{4+d}/∂c_4")]
    header += ["f^d", ("latch", "锁存器")]
    f = torch.sigmoid(torch.tensor(FORGET_BIAS, dtype=F64)).item()
    gradient = {d: cell_gradient(d) for d in (1, 10, 100, LONG)}
    rows = [[d, f"{g:.9f}", f"{f**d:.9f}", f"{latch_gradient(d):.2e}"] for d, g in gradient.items()]
    show.table(("The gradient back to what was written", "传回写入时刻的梯度"), header, rows)

    show.claim("L2-029", [INPUT_GAIN, INPUT_BIAS])
    show.claim("L2-030", shut)
    show.claim("L2-031", right)
    show.claim("L2-032", (noisy_c[-1] - 1).abs().max())
    show.claim("L2-033", integrator_std(LONG + 4))
    show.claim("L2-034", gradient[LONG])

    keep_half = 0.5 ** (1 / 100)
    show.claim("L2-160", 0.9**50)
    show.claim("L2-161", keep_half)
    show.claim("L2-162", math.log(keep_half / (1 - keep_half)))
    draw_dilemma(show)


def hand_set_lstm():
    """lm_models' cell, weights set by hand: i = σ(40x - 20), f = σ(20), candidate and o about 1."""
    cell = LSTMCell(2, 2).double()
    for parameter in cell.parameters():
        parameter.data.zero_()
    cell.weight_ih.data[:2] = INPUT_GAIN * torch.eye(2)  # the input gate's rows of i, f, g, o
    i, f, g, o = cell.bias_ih.data.chunk(4)  # (2,) each
    i[:], f[:], g[:], o[:] = INPUT_BIAS, FORGET_BIAS, 20.0, 20.0
    return cell


@torch.no_grad()
def run(cell, x):
    """The cell over x (T, 2) or (T, RUNS, 2) → every h and every c, of x's shape."""
    state, h, c = None, [], []
    for x_t in x:
        state = cell(x_t.view(-1, 2), state)
        h.append(state[0].view_as(x_t))
        c.append(state[1].view_as(x_t))
    return torch.stack(h), torch.stack(c)


def cell_gradient(distance):
    """∂c_{4+d}/∂c_4 of unit 1 while the input stays 0, by autograd through the cell."""
    cell, nothing = hand_set_lstm(), torch.zeros(1, 2, dtype=F64)
    c_4 = torch.ones(1, 2, dtype=F64, requires_grad=True)  # what was written
    h, c = nothing, c_4
    for _ in range(distance):
        h, c = cell(nothing, (h, c))
    return torch.autograd.grad(c[0, 0], c_4)[0][0, 0].item()


def draw_dilemma(show):
    """Memory, noise and gradient of the four designs: only the gated cell passes all three."""
    x = noise(LONG, 256, 2)  # (T, runs, 2)
    eye, blank = torch.eye(2, dtype=F64), torch.zeros(LONG, 2, dtype=F64)
    f = torch.sigmoid(torch.tensor(FORGET_BIAS, dtype=F64))
    h_3 = latch(one_at(3, 3))[-1]  # (1,): the latch just after it was written
    d = torch.arange(1, LONG + 1, dtype=F64)
    kept = latch(blank[:, :1], h_3)[1:, 0]  # (T,)
    slope = (GAIN * kept * (1 - kept)).cumprod(dim=0)  # (T,): the chain rule, step by step
    designs = {  # what is left of a one; noisy runs without; the gradient to the state just written
        "contraction": (DECAY**d, linear_rnn(x, eye, DECAY * eye)[1:], DECAY**d),
        "integrator": (d**0, linear_rnn(x, eye, eye)[1:], d**0),
        "latch": (kept, latch(x)[1:], slope),
        "LSTM cell": (f**d, run(hand_set_lstm(), x)[1], f**d),
    }
    with show.figure("01_dilemma", columns=3, size=(13, 4.2)) as (memory, spread, gradient):
        for (name, (left, noisy, back)), style in zip(designs.items(), ("-", "--", "-.", ":")):
            memory.plot(d, left, style, label=name, linewidth=2)
            spread.plot(d, noisy.flatten(1).std(dim=1), style, label=name, linewidth=2)
            gradient.plot(d, back, style, label=name, linewidth=2)
        memory.set(xscale="log", title="Memory: what is left of a one", ylim=(-0.05, 1.1))
        spread.set(xscale="log", yscale="log", title="Noise: standard deviation of the state")
        gradient.set(xscale="log", yscale="log", ylim=(1e-120, 1e6))
        gradient.set_title("Gradient back to the state just written")
        for ax in (memory, spread, gradient):
            ax.set_xlabel("steps")
            ax.minorticks_off()
        memory.legend()


# %% All parts ─────────────────────────────────────────────────────────────────────────────────────
PARTS = [part1_contraction, part2_integrator, part3_latch, part4_lstm]

if __name__ == "__main__":
    main(__doc__, PARTS)
