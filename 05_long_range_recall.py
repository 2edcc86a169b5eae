"""05 · 实验一：“记住开头” · Long-range recall · Lecture 2, §5 and §8.2

A key, then d distractors that have nothing to do with it, then `?`: answer with the key. Who can
learn to carry three bits over a hundred noise symbols, and from which examples?

    python 05_long_range_recall.py                       every part, seed 0
    python 05_long_range_recall.py --seeds 10            every claim over seeds 0 … 9
    python 05_long_range_recall.py --part 7 --sweep-lr   the forget bias over learning rates
"""

import math
import zlib
from companion import in_processes, main, require
from functools import wraps
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lm_models import GPT, cut

# ── constants: edit and run again ────────────────────────────────────────────────────────────────
KEYS, DISTRACTORS = 8, 8  # kinds of each
NEAR, FAR = 20, 100  # §5.2 trains on d in [1, NEAR] and on d in [1, FAR]
LONG_ONLY = 50  # §5.4 trains on d in [LONG_ONLY, FAR]
BATCH, STEPS = 64, 1000  # every training: sequences a step, steps
QUICK_STEPS = 20  # with --quick
LR_ELMAN, LR_LSTM, LR_TRANSFORMER = 3e-3, 3e-3, 1e-3  # Adam's learning rates
LR_LSTM_LONG = 1e-3  # of both LSTMs in §5.4: part 7 has other rates for both
SWEEP_RATES, SWEEP_SEEDS = [1e-3, 2e-3, 3e-3, 5e-3, 1e-2], 4  # of --sweep-lr
EMBED, HIDDEN = 32, 64  # Elman RNN and LSTM
D_MODEL, LAYERS, HEADS, MAX_LEN = 32, 2, 2, 120  # Transformer
TESTED, TEST_SEQUENCES = [1, 2, 5, 10, 20, 35, 50, 75, 100], 1000  # distances, sequences for each
SOLVED = 0.95  # the accuracy from which a distance counts as answered
GRADIENT_FROM = 10  # §5.5: gradients are shown over that at this d
GRADIENT_SEEDS, GRADIENT_BATCH = 10, 16  # initialisations, sequences for each
INSIDE, OPENED = [10, 50, 100], 104  # §5.6: d at which Transformers are opened, sequences for each

QUERY = KEYS + DISTRACTORS  # token ids: keys, distractors, `?`,
VOCAB = QUERY + 2  # and padding, for batches of mixed lengths; here a batch has one length


# %% Part 1 · §5.1 ─────────────────────────────────────────────────────────────────────────────────
def part1_task(show):
    """§5.1 · 任务与三个模型 · The task, and three small models"""
    check_constants()
    rows = [
        [", ".join(map(str, ids[:-1])), "?", ids[0]]
        for ids in sequences(3, 6, stream("example")).tolist()
    ]
    header = [("key, then d = 6 distractors", "键，然后 d = 6 个干扰"), "", ("answer", "答案")]
    keys, others = f"0 … {KEYS - 1}", f"{KEYS} … {QUERY - 1}"
    title = f"Three examples (keys {keys}, distractors {others})"
    show.table((title, f"三个例子（键 {keys}，干扰 {others}）"), header, rows)
    models = {name: new_model(name, 0) for name in ("Elman", "LSTM b_f=1", "Transformer")}
    size = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}

    show.claim("L2-102", [KEYS, math.log2(KEYS), DISTRACTORS])
    show.claim("L2-104a", 1 / KEYS)
    show.claim("L2-104b", F.cross_entropy(torch.zeros(1, KEYS), torch.tensor([0])))
    show.claim("L2-105", size["Elman"])
    show.claim("L2-106", size["LSTM b_f=1"])
    show.claim("L2-107", size["Transformer"])
    show.claim("L2-108", [STEPS, BATCH])


def check_constants():
    room = MAX_LEN - 2  # the largest d for which key, distractors and `?` fit the Transformer
    require(KEYS >= 2, f"KEYS must be at least 2 to leave a choice, got {KEYS}")
    for name in ("DISTRACTORS", "BATCH", "STEPS", "GRADIENT_SEEDS", "GRADIENT_BATCH", "OPENED"):
        value = globals()[name]
        require(value >= 1, f"{name} must be at least 1, got {value}")
    for name, value in {"NEAR": NEAR, "LONG_ONLY": LONG_ONLY, "FAR": FAR}.items():
        require(1 <= value <= room, f"{name} must be in 1 … {room} (MAX_LEN - 2), got {value}")
    require(LONG_ONLY <= FAR, f"LONG_ONLY must be at most FAR = {FAR}, got {LONG_ONLY}")
    for name, value in {"TESTED": TESTED, "INSIDE": INSIDE}.items():
        rising = value == sorted(set(value)) and len(value) > 0
        inside = rising and value[0] >= 1 and value[-1] <= room
        require(inside, f"{name} must list rising distances in 1 … {room}, got {value}")
    whole = TEST_SEQUENCES >= KEYS and TEST_SEQUENCES % KEYS == 0
    require(whole, f"TEST_SEQUENCES must be a multiple of KEYS = {KEYS}, got {TEST_SEQUENCES}")


def stream(*name):
    """Random numbers of its own for each name, the same in every process and on every machine."""
    return torch.Generator().manual_seed(zlib.crc32(repr(name).encode()))


def sequences(n, d, draws):
    """n times key, d distractors, `?` → ids (n, d + 2); the answer to a row is its first token."""
    keys = torch.randint(KEYS, (n, 1), generator=draws)
    distractors = torch.randint(KEYS, QUERY, (n, d), generator=draws)
    return torch.cat([keys, distractors, torch.full((n, 1), QUERY)], dim=1)  # (n, d + 2)


def new_model(name, seed):
    """An untrained model by name; its weights come from a stream of its own."""
    kind, _, forget_bias = name.partition(" b_f=")
    with torch.random.fork_rng(devices=[]):  # torch's modules draw from the global generator
        torch.manual_seed(stream("weights", name, seed).initial_seed())
        if kind == "Elman":
            return Elman(nn.RNN(EMBED, HIDDEN, batch_first=True))
        if kind == "Transformer":
            return Transformer()
        lstm = nn.LSTM(EMBED, HIDDEN, batch_first=True)
        for bias, start in (lstm.bias_ih_l0, float(forget_bias)), (lstm.bias_hh_l0, 0.0):
            bias.data[HIDDEN : 2 * HIDDEN] = start  # the forget gate's rows of i, f, g, o
        return Recurrent(lstm)


class Recurrent(nn.Module):
    """Embedding, nn.RNN or nn.LSTM, linear output: ids (B, T) → logits at the last token (B, V)."""

    def __init__(self, rnn):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, EMBED)
        self.rnn = rnn
        self.output = nn.Linear(HIDDEN, VOCAB)

    def forward(self, ids):
        return self.answer(self.embed(ids))

    def answer(self, x):
        """Embedded tokens (B, T, E) → logits at the last one (B, V): the loss needs no others."""
        h, _ = self.rnn(x)  # (B, T, H)
        return self.output(h[:, -1])  # (B, V)


class Elman(Recurrent):
    """The same with nn.RNN's weights and formula, but a faster way through them."""

    def forward(self, ids):
        table = self.inputs(self.embed.weight)  # (V, H): a_t depends on the token alone
        return self.answer_from(F.embedding(ids.T, table))

    def answer(self, x):
        return self.answer_from(self.inputs(x.transpose(0, 1)))

    def inputs(self, x):
        """a = W_hx x + both biases: (…, E) → (…, H)."""
        return F.linear(x, self.rnn.weight_ih_l0, self.rnn.bias_ih_l0 + self.rnn.bias_hh_l0)

    def answer_from(self, a):
        return self.output(LastState.apply(a, self.rnn.weight_hh_l0))  # (B, V)


class LastState(torch.autograd.Function):
    """h_T of h_t = tanh(a_t + W_hh h_{t-1}), h_0 = 0; a (T, B, H), W_hh (H, H) → (B, H).

    Backpropagation through time by hand: δ_t = ∂L/∂a_t = (1 - h_t²) ⊙ W_hhᵀ δ_{t+1}, two
    operations a step; at the end one product over all steps, ∂L/∂W_hh = Σ_t δ_t h_{t-1}ᵀ.
    The steps are NumPy's, on the tensors' own memory: its calls cost less than torch's.
    """

    @staticmethod
    def forward(ctx, a, W_hh):
        h = torch.cat([torch.zeros_like(a[:1]), a])  # (T + 1, B, H): h_0, then so far a_t
        steps, W_T = h.numpy(), W_hh.T.contiguous().numpy()
        product = np.empty_like(steps[0])
        for h_before, h_t in zip(steps, steps[1:]):  # (B, H) each
            h_t += np.matmul(h_before, W_T, out=product)
            np.tanh(h_t, out=h_t)
        ctx.save_for_backward(h, W_hh)
        return h[-1].clone()  # (B, H)

    @staticmethod
    def backward(ctx, grad_h):
        h, W_hh = ctx.saved_tensors
        delta = 1 - h[1:].square()  # (T, B, H): so far tanh' at every step
        grad, W = grad_h.clone().numpy(), W_hh.numpy()
        for delta_t in delta.numpy()[::-1]:  # (B, H)
            delta_t *= grad
            np.matmul(delta_t, W, out=grad)
        return delta, delta.flatten(0, 1).T @ h[:-1].flatten(0, 1)  # (T, B, H), (H, H)


class Transformer(nn.Module):
    """lm_models' GPT, asked for the last token's logits only: ids (B, T) → (B, V).

    The same weights and formula as .gpt(ids)[:, -1]: what the last layer would compute for the
    other positions is left out. For masks (`cut`) and attention maps use .gpt itself.
    """

    def __init__(self):
        super().__init__()
        self.gpt = GPT(VOCAB, D_MODEL, LAYERS, HEADS, MAX_LEN)

    def embed(self, ids):
        return self.gpt.embed(ids)  # (B, T, d)

    def forward(self, ids):
        return self.answer(self.embed(ids))

    def answer(self, x):
        """Embedded tokens (B, T, d) → logits at the last one (B, V)."""
        for block in self.gpt.blocks[:-1]:
            x = self.block(block, x, x)  # (B, T, d)
        x = self.block(self.gpt.blocks[-1], x[:, -1:], x)  # (B, 1, d): `?` may look at all
        return F.linear(self.gpt.final_norm(x[:, 0]), self.gpt.token_embedding.weight)  # (B, V)

    @staticmethod
    def block(block, x, context):
        """A pre-norm block at the positions of x, all of `context` or its last → as x (B, ·, d)."""
        attn, normed = block.attn, block.ln_1(context)
        q, k, v = attn.W_q(normed[:, -x.shape[1] :]), attn.W_k(normed), attn.W_v(normed)
        in_heads = [t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v)]
        heads = F.scaled_dot_product_attention(*in_heads, is_causal=x is context)  # (B, h, ·, d_k)
        a = x + attn.W_o(heads.transpose(1, 2).flatten(2))  # (B, ·, d)
        return a + block.ffn(block.ln_2(a))


# %% Part 2 · §5.2–5.3 ─────────────────────────────────────────────────────────────────────────────
def part2_all_distances(show):
    """§5.2–5.3 · 训练数据含短距离 · Short examples included: who learns, and how far it reaches"""
    check_constants()
    wanted = [
        ("Elman", 1, NEAR, LR_ELMAN),
        ("Elman", 1, FAR, LR_ELMAN),
        ("LSTM b_f=1", 1, FAR, LR_LSTM),
        ("Transformer", 1, FAR, LR_TRANSFORMER),
    ]
    runs = trained(show, wanted)
    show_runs(show, wanted, runs, "05_all_distances")
    elman_near, elman_far, lstm, transformer = runs

    claim(show, "L2-109", [run.accuracy[-1] for run in elman_near])
    claim(show, "L2-110a", [mean(run.bits) for run in elman_far])
    claim(show, "L2-110b", [[run.accuracy[0], run.accuracy[-1]] for run in elman_far])
    claim(show, "L2-110c", [run.accuracy[0] - run.accuracy[-1] for run in elman_far])
    claim(show, "L2-111", [reach(run.accuracy) / NEAR for run in elman_near])
    pairs = list(zip(lstm, transformer))
    claim(show, "L2-112a", [[min(run.accuracy) for run in pair] for pair in pairs])
    claim(show, "L2-112b", [[mean(run.bits) for run in pair] for pair in pairs])


class Training(NamedTuple):
    """All that decides how a training comes out, besides the constants of task and models."""

    model: str
    low: int  # d is uniform in low … high, one d a batch
    high: int
    rate: float
    steps: int
    seed: int


class Run(NamedTuple):
    """How it came out: the loss of every step, accuracy and bits at every d of TESTED, weights."""

    losses: list
    accuracy: list
    bits: list
    state: dict

    @property
    def loss(self):
        return mean(self.losses[-100:])


RUNS = {}  # Training → Run: parts that need the same training share it


def trained(show, wanted, seeds=1):
    """For each (model, low, high, rate) its Runs, a list over seeds."""
    steps = QUICK_STEPS if show.quick else STEPS
    by_seed = [[Training(*what, steps, seed) for seed in show.seeds(seeds)] for what in wanted]
    new = [training for group in by_seed for training in group if training not in RUNS]
    new.sort(key=lambda training: training.model, reverse=True)  # Transformers, the slowest, first
    RUNS.update(zip(new, in_processes(show, train, new, ("training", "训练"))))
    return [[RUNS[training] for training in group] for group in by_seed]


def on_one_thread(function):
    """More threads would change the order of sums; denormals, which are slow, are taken as 0."""

    @wraps(function)
    def alone(task):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        try:
            return function(task)
        finally:
            torch.set_num_threads(threads)
            torch.set_flush_denormal(False)

    return alone


@on_one_thread
def train(training):
    """Fresh sequences at every step, the gradient's norm clipped at 1, no early stop → Run."""
    name, low, high, rate, steps, seed = training
    model = new_model(name, seed)
    draws = stream("data", name, low, high, seed)
    descend = adam(model, rate)
    losses = []
    for _ in range(steps):
        d = torch.randint(low, high + 1, (), generator=draws).item()
        ids = sequences(BATCH, d, draws)  # (B, d + 2)
        losses.append(descend(F.cross_entropy(model(ids), ids[:, 0])))
    accuracy, bits = zip(*[examine(model, d, seed) for d in TESTED])
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return Run(losses, accuracy, bits, state)


def adam(model, rate):
    """A function that takes one step of Adam down a loss's clipped gradient and returns the loss.

    All parameters become windows on one vector: its norm, the clipping and Adam are then one
    operation each, not one for every parameter.
    """
    parameters = list(model.parameters())
    vector = nn.Parameter(nn.utils.parameters_to_vector(parameters).detach())
    nn.utils.vector_to_parameters(vector.data, parameters)
    optimiser = torch.optim.Adam([vector], lr=rate, fused=True)

    def descend(loss):
        gradient = torch.autograd.grad(loss, parameters)
        vector.grad = torch.cat([g.flatten() for g in gradient])
        nn.utils.clip_grad_norm_([vector], 1.0)
        optimiser.step()
        return loss.item()

    return descend


@torch.inference_mode()
def examine(model, d, seed):
    """Accuracy, and mutual information of answer and key in bits, on new sequences."""
    ids = test_sequences(TEST_SEQUENCES, d, seed)  # (n, d + 2)
    keys, answers = ids[:, 0], model(ids).argmax(dim=-1)  # (n,) each
    return (answers == keys).double().mean().item(), mutual_information(keys, answers)


def test_sequences(n, d, seed):
    """As `sequences`, each key equally often, so that perfect answers carry all log2(KEYS) bits."""
    ids = sequences(n, d, stream("test", d, seed))
    ids[:, 0] = torch.arange(n) % KEYS
    return ids


def mutual_information(keys, answers):
    """I(key; answer) in bits from their joint frequencies; token ids (n,) each.

    Independent ones come out above 0, at about (KEYS - 1)² / (2n ln 2): 0.035 bits for n = 1000.
    """
    pairs = torch.bincount(keys * VOCAB + answers, minlength=VOCAB**2).view(VOCAB, VOCAB)
    joint = pairs.double() / len(keys)  # (V, V)
    independent = joint.sum(dim=1, keepdim=True) * joint.sum(dim=0)  # (V, V)
    seen = joint > 0
    bits = (joint[seen] * (joint[seen] / independent[seen]).log2()).sum().item()
    return max(0.0, bits)  # rounding can leave -1e-16


def mean(values):
    return sum(values) / len(values)


def reach(accuracy):
    """The largest tested distance that is answered (0: none)."""
    return max([d for d, right in zip(TESTED, accuracy) if right >= SOLVED], default=0)


def claim(show, id, by_seed):
    """Claim seed 0's value, all seeds beside it."""
    show.claim(id, by_seed[0], seeds=by_seed)


def show_runs(show, wanted, runs, figure):
    """Loss, accuracy and bits of several trainings by distance; their learning curves."""
    names = [f"{model}, d ∈ [{low}, {high}], lr {rate:g}" for model, low, high, rate in wanted]
    runs = dict(zip(names, runs))
    header = [("model, trained on", "模型，训练距离"), "", *(f"d = {d}" for d in TESTED)]
    title = "Accuracy on new sequences; loss of the last 100 steps of training"
    table_of_seeds(
        show, (title, "新序列上的准确率；训练最后 100 步的损失"), [*header, ("loss", "损失")],
        {name: [[*run.accuracy, run.loss] for run in group] for name, group in runs.items()},
    )  # fmt: skip
    title = f"Bits remembered, I(key; answer), of {math.log2(KEYS):g}"
    bits = {name: [run.bits for run in group] for name, group in runs.items()}
    table_of_seeds(show, (title, "记住的比特数：键与答案的互信息"), header, bits, "{:.2f}")

    with show.figure(figure, columns=2, size=(13, 4.6)) as (curves, by_distance):
        for n, (name, group) in enumerate(runs.items()):
            losses = torch.tensor(group[0].losses)  # (steps,)
            width = min(25, 1 + len(losses) // 4)  # fewer with --quick
            smooth = losses.unfold(0, width, 1).mean(dim=-1)  # (steps - width + 1,)
            curves.plot(range(width, len(losses) + 1), smooth, label=name)
            thick = 1.5 * (len(runs) - n)  # so that equal lines show
            by_distance.plot(TESTED, group[0].accuracy, "o-", linewidth=thick, markersize=thick + 2)
        curves.axhline(
            math.log(KEYS), color="grey", linestyle=":", label=f"chance: ln {KEYS}, 1/{KEYS}"
        )
        by_distance.axhline(1 / KEYS, color="grey", linestyle=":")
        curves.set(xlabel="step", ylabel=f"loss, mean of {width} steps", title="Training, seed 0")
        by_distance.set(xlabel="distance d", ylabel="accuracy", title="New sequences, seed 0")
        by_distance.set_ylim(0, 1.05)
        curves.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)


def table_of_seeds(show, title, header, named, form="{:.3f}"):
    """{name: a row of numbers for each seed} as one row a name, or over seeds min, median, max."""
    rows = []
    for name, by_seed in named.items():
        values = torch.tensor(by_seed, dtype=torch.float64)  # (seeds, columns)
        kinds = {("min", "最小"): 0.0, ("median", "中位数"): 0.5, ("max", "最大"): 1.0}
        for kind, q in kinds.items() if len(values) > 1 else [("", 0.5)]:
            row = values.quantile(q, dim=0).tolist()
            rows.append([show.say(name), show.say(kind), *map(form.format, row)])
    show.table(title, header, rows)


# %% Part 3 · §5.4 ─────────────────────────────────────────────────────────────────────────────────
def part3_long_only(show):
    """§5.4 · 只有长例子时 · Long examples only"""
    check_constants()
    wanted = [
        ("Elman", LONG_ONLY, FAR, LR_ELMAN),
        ("LSTM b_f=1", LONG_ONLY, FAR, LR_LSTM_LONG),
        ("LSTM b_f=3", LONG_ONLY, FAR, LR_LSTM_LONG),
        ("Transformer", LONG_ONLY, FAR, LR_TRANSFORMER),
    ]
    runs = trained(show, wanted)
    show_runs(show, wanted, runs, "05_long_only")
    english = "Whether forget bias 3 helps depends on the learning rate: part 7 (--sweep-lr)."
    show.note((english, "遗忘门偏置 3 有没有用，取决于学习率：见第 7 部分（--sweep-lr）。"))
    elman, lstm, bias3, transformer = runs

    claim(show, "L2-113", [[run.loss for run in pair] for pair in zip(elman, lstm)])
    claim(show, "L2-114", [not beats_chance(run) for run in bias3])
    claim(show, "L2-115", [min(run.accuracy) for run in transformer])


def beats_chance(run):
    """Does it answer the largest tested distance more than twice as often as a guess would?"""
    return run.accuracy[-1] > 2 / KEYS


# %% Part 4 · §5.5 ─────────────────────────────────────────────────────────────────────────────────
def part4_gradients(show):
    """§5.5 · 为什么：刚初始化时的梯度 · Why: the gradient before any training"""
    check_constants()
    distances = sorted({*TESTED, GRADIENT_FROM})
    names = ["Elman", "LSTM b_f=1", "LSTM b_f=3", "Transformer"]
    seeds = show.seeds(2 if show.quick else GRADIENT_SEEDS)
    tasks = [(name, seed, distances) for name in names for seed in seeds]
    measured = in_processes(show, key_gradients, tasks, ("gradients", "梯度"))
    by_name = torch.tensor(measured, dtype=torch.float64).view(len(names), -1, len(distances))
    by_name = by_name / by_name[:, :, distances.index(GRADIENT_FROM), None]  # (models, seeds, d)
    elman, lstm, bias3, transformer = by_name[:, :, -1]  # (seeds,) each: at the largest d
    uniform = [(GRADIENT_FROM + 2) / (d + 2) for d in distances]
    law = f"{GRADIENT_FROM + 2}/(d+2)"

    english = f"‖∂loss/∂(embedding of the key)‖ over that at d = {GRADIENT_FROM}"
    chinese = f"‖∂损失/∂键的嵌入‖ 与 d = {GRADIENT_FROM} 处之比"
    header = [("model", "模型"), "", *(f"d = {d}" for d in distances)]
    named = dict(zip(names, by_name.tolist())) | {law: [uniform]}
    table_of_seeds(show, (english, chinese), header, named, "{:.2g}")

    claim(show, "L2-117", transformer)
    show.claim("L2-118", uniform[-1])
    claim(show, "L2-119", torch.stack([elman, lstm], dim=1))
    claim(show, "L2-120", bias3 > transformer)

    with show.figure("05_gradients", size=(8, 5)) as ax:
        for name, values in zip(names, by_name):
            low, middle, high = values.quantile(torch.tensor([0, 0.5, 1]).double(), dim=0)
            ax.plot(distances, middle, "o-", label=name)
            ax.fill_between(distances, low, high, alpha=0.2)
        ax.plot(distances, uniform, "k--", label=f"{law}: uniform attention")
        ax.set(yscale="log", xlabel="distance d", ylabel=f"gradient, d = {GRADIENT_FROM} is 1")
        ax.set_title(f"Before training: median and range of {by_name.shape[1]} seeds")
        ax.legend()


@on_one_thread
def key_gradients(task):
    """‖∂loss/∂(embedding of the key)‖ of an untrained model, mean of a batch, at each distance."""
    name, seed, distances = task
    model, norms = new_model(name, seed).double(), []  # float32 would underflow
    for d in distances:
        ids = sequences(GRADIENT_BATCH, d, stream("gradient", d, seed))  # (B, d + 2)
        x = model.embed(ids).detach().requires_grad_()  # (B, d + 2, E)
        losses = F.cross_entropy(model.answer(x), ids[:, 0], reduction="sum")
        (grad,) = torch.autograd.grad(losses, x)  # (B, d + 2, E): each row from its own loss
        norms.append(grad[:, 0].norm(dim=-1).mean().item())
    return norms


# %% Part 5 · §5.6 ─────────────────────────────────────────────────────────────────────────────────
def part5_inside(show):
    """§5.6 · 训练好的模型内部 · Inside the trained models"""
    check_constants()
    tasks = models_of(show, ("Transformer", 1, FAR, LR_TRANSFORMER))
    weights = in_processes(show, attention_on_key, tasks, ("attention", "注意力"))
    uniform = [uniform_attention(d) for d in INSIDE]
    heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    named = {head_name(*at): [w[:, *at].tolist() for w in weights] for at in heads}
    named["1/(d+2)"] = [uniform]
    header = [("head", "头"), "", *(f"d = {d}" for d in INSIDE)]
    title = "Attention of ? on the key", "? 分给键的注意力"
    table_of_seeds(show, title, header, named, "{:.4f}")
    if LAYERS > 1:
        claim(show, "L2-121a", [bool((w[:, 1] > 0.99).all()) for w in weights])
    claim(show, "L2-121b", [w.flatten(1).max(dim=1).values for w in weights])
    show.claim("L2-122", all(abs(x - 1 / (d + 2)) < 1e-6 for x, d in zip(uniform, INSIDE)))
    draw_attention(show, tasks[0])

    tasks = models_of(show, ("LSTM b_f=1", 1, FAR, LR_LSTM))
    found, forget = zip(*in_processes(show, lstm_inside, tasks, ("gates", "门")))
    for id in found[0]:
        claim(show, id, [numbers[id] for numbers in found])
    with show.figure("05_forget_gates") as ax:
        for seed, f in enumerate(forget):
            ax.plot(range(1, HIDDEN + 1), sorted(f, reverse=True), ".-", label=f"seed {seed}")
        ax.axhline(1 / (1 + math.exp(-1)), color="grey", linestyle=":", label="σ(1)")
        ax.axhline(0.99, color="black", linestyle="--", label="0.99")
        ax.set(xlabel="cell, sorted", ylabel="mean forget gate at distractors")
        ax.set_title(f"LSTM b_f=1, trained on d in [1, {FAR}]")
        ax.legend()


def models_of(show, what):
    """(name, seed, trained weights) for each seed: what `load` takes."""
    (runs,) = trained(show, [what])
    return [(what[0], seed, run.state) for seed, run in zip(show.seeds(1), runs)]


def load(name, seed, state):
    model = new_model(name, seed)
    model.load_state_dict(state)
    return model


def head_name(layer, head):
    return f"layer {layer + 1}, head {head + 1}", f"第 {layer + 1} 层，头 {head + 1}"


@on_one_thread
@torch.inference_mode()
def attention_on_key(task):
    """The weight of `?` on the key, mean over sequences → (distances, layers, heads)."""
    gpt, seed = load(*task).gpt, task[1]
    tests = [test_sequences(OPENED, d, seed) for d in INSIDE]
    maps = [torch.stack(gpt.attention(ids)) for ids in tests]  # (L, B, h, T, T) each
    return torch.stack([A[:, :, :, -1, 0].mean(dim=1) for A in maps])  # (distances, L, h)


@torch.inference_mode()
def uniform_attention(d):
    """The key's share once W_q and its bias are 0, and with them all scores."""
    gpt = new_model("Transformer", 0).gpt
    for parameter in gpt.blocks[0].attn.W_q.parameters():
        parameter.zero_()
    return gpt.attention(test_sequences(1, d, 0))[0][0, 0, -1, 0].item()


@torch.inference_mode()
def draw_attention(show, task):
    ids = test_sequences(1, NEAR, task[1])  # (1, T)
    A = torch.cat(load(*task).gpt.attention(ids)).flatten(0, 1)  # (L h, T, T)
    size = 4.6 * HEADS, 4 * LAYERS
    with show.figure("05_attention", LAYERS, HEADS, size) as axes:
        axes, ticks = axes if isinstance(axes, list) else [axes], range(0, NEAR + 2, 5)
        for n, (ax, weights) in enumerate(zip(axes, A)):
            image = ax.imshow(weights, vmin=0, vmax=1, cmap="Blues")
            ax.set(xlabel="looked at (0: the key)", xticks=ticks)
            ax.set(ylabel=f"query ({NEAR + 1}: ?)", yticks=ticks)
            ax.set_title(head_name(*divmod(n, HEADS))[0])
        figure = axes[-1].figure
        figure.colorbar(image, ax=axes, label="attention weight")
        figure.suptitle(
            f"Transformer trained on d in [1, {FAR}], seed {task[1]}: one sequence, d = {NEAR}"
        )


@on_one_thread
@torch.inference_mode()
def lstm_inside(task):
    """§5.6's numbers {claim: number} at d = FAR; the cells' mean forget gates at distractors."""
    model = load(*task)
    ids = test_sequences(OPENED, FAR, task[1])  # (B, d + 2)
    i, f, g = gates(model.rnn, model.embed(ids))  # (B, d + 2, H) each
    forget = f[:, 1:-1].mean(dim=(0, 1))  # (H,)
    above = forget[forget > 0.99]
    written = (i * g)[:, 1:-1].flatten(0, 1)  # (B d, H)
    key = ids[:, :1].expand(-1, FAR).flatten()  # (B d,)
    numbers = {
        "L2-123a": len(above),
        "L2-123b": (above if len(above) else forget.max()).mean().item(),
        "L2-124a": i[:, 0].mean().item(),
        "L2-124b": i[:, 1:-1].mean().item(),
        "L2-125a": 100 * explained(written, key),
        "L2-125b": 100 * explained(written, ids[:, 1:-1].flatten()),
    }
    return numbers, forget.tolist()


def gates(lstm, x):
    """i, f, g (the lecture's c̃) of an nn.LSTM at every step, (B, T, H) each; x (B, T, E)."""
    h, _ = lstm(x)  # (B, T, H)
    before = F.pad(h, (0, 0, 1, 0))[:, :-1]  # (B, T, H): h_{t-1}, from h_0 = 0
    pre = F.linear(x, lstm.weight_ih_l0, lstm.bias_ih_l0)
    pre = pre + F.linear(before, lstm.weight_hh_l0, lstm.bias_hh_l0)  # (B, T, 4H)
    i, f, g, _ = pre.chunk(4, dim=-1)
    return torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g)


def explained(written, group):
    """The share of the variance of `written` (n, H), summed over cells, between groups (n,)."""
    centred = written - written.mean(dim=0)  # (n, H)
    within = sum(
        (written[group == k] - written[group == k].mean(dim=0)).square().sum()
        for k in group.unique()
    )
    return 1 - (within / centred.square().sum()).item()


# %% Part 6 · §5.6 made causal ─────────────────────────────────────────────────────────────────────
def part6_cut(show):
    """§5.6、§6.4 · 切断 ? 到键的连线（讲义没有） · Cutting ? from the key (not in the lecture)"""
    check_constants()
    tasks = models_of(show, ("Transformer", 1, FAR, LR_TRANSFORMER))
    by_seed = in_processes(show, accuracy_after_cuts, tasks, ("cuts", "切断"))
    named = {name: [accuracy[name] for accuracy in by_seed] for name in by_seed[0]}
    header = [("cut", "切断"), ""]
    for to in ("key", "random"):
        header += [
            (f"{to}, d = {d}", f"{'键' if to == 'key' else '随机'}，d = {d}") for d in INSIDE
        ]
    english = "Accuracy without the link to the key; without one to a random distractor"
    chinese = "切断通往键的连线后的准确率；切断通往一个随机干扰的连线后的准确率"
    table_of_seeds(show, (english, chinese), header, named)
    english = "If only cutting every later query lowers accuracy, the key also comes in two "
    english += (
        "hops, by way of the distractors: a large weight is no proof of need (§8, pitfall 3)."
    )
    chinese = (
        "若只切断 ? 没有影响、切断其后所有的查询才有影响，说明键的信息还能经干扰位置分两跳传来："
    )
    chinese += "注意力权重大，不等于非它不可（§8 误区 3）。"
    show.note((english, chinese))


@on_one_thread
@torch.inference_mode()
def accuracy_after_cuts(task):
    """{name of the cut: accuracy at INSIDE with the key cut off, then a random distractor}."""
    gpt, seed = load(*task).gpt, task[1]
    every = slice(None)
    cuts = {("nothing", "不切"): ((), every, False)}  # layers, heads, all later queries?
    for layer in range(LAYERS):
        cuts |= {head_name(layer, head): (layer, head, False) for head in range(HEADS)}
    for later, english, chinese in (False, "", ""), (True, ", every later query", "，其后所有查询"):
        for layer in range(LAYERS):
            cuts[f"layer {layer + 1}{english}", f"第 {layer + 1} 层{chinese}"] = layer, every, later
        cuts[f"every layer{english}", f"各层{chinese}"] = every, every, later
    accuracy = {name: [] for name in cuts}
    for is_control in (False, True):
        for d in INSIDE:
            ids = test_sequences(OPENED, d, seed)  # (B, d + 2)
            somewhere = torch.randint(1, d + 1, (), generator=stream("cut", d, seed)).item()
            target = somewhere if is_control else 0
            for name, (layers, heads, later) in cuts.items():
                queries = slice(target + 1, None) if later else d + 1
                with cut(gpt, queries, target, layers, heads):
                    answers = gpt(ids)[:, -1].argmax(dim=-1)  # (B,)
                accuracy[name].append((answers == ids[:, 0]).double().mean().item())
    return accuracy


# %% Part 7 · §5.4 over learning rates ─────────────────────────────────────────────────────────────
def part7_sweep(show):
    """§5.4 · 遗忘门偏置与学习率 · The forget bias over learning rates (--sweep-lr)"""
    check_constants()
    if not getattr(show.options, "sweep_lr", False):
        english = "With --sweep-lr (some minutes): on how many seeds biases 1 and 3 learn, by rate."
        chinese = "加 --sweep-lr（几分钟）：各学习率下，遗忘门偏置取 1 和 3 时各在几个种子上学会。"
        show.note((english, chinese))
        return
    biases = "LSTM b_f=1", "LSTM b_f=3"
    wanted = [(name, LONG_ONLY, FAR, rate) for name in biases for rate in SWEEP_RATES]
    named = {}
    for (name, *_, rate), group in zip(wanted, trained(show, wanted, SWEEP_SEEDS)):
        learned = f"{sum(map(beats_chance, group))} / {len(group)}"
        rows = [[*run.accuracy, run.loss] for run in group]
        named[f"{name}, {rate:g}: {learned}"] = rows
    title = f"d ∈ [{LONG_ONLY}, {FAR}]: seeds that beat chance; accuracy; loss"
    chinese = f"d ∈ [{LONG_ONLY}, {FAR}]：胜过乱猜的种子数、准确率、损失"
    header = [("model, learning rate: seeds", "模型，学习率：种子数"), ""]
    header += [f"d = {d}" for d in TESTED]
    table_of_seeds(show, (title, chinese), [*header, ("loss", "损失")], named)


def flags(parser):
    text = "part 7: forget bias 3 at several learning rates"
    parser.add_argument("--sweep-lr", action="store_true", help=text)


# %% All parts ─────────────────────────────────────────────────────────────────────────────────────
PARTS = [part1_task, part2_all_distances, part3_long_only, part4_gradients, part5_inside]
PARTS += [part6_cut, part7_sweep]

if __name__ == "__main__":
    main(__doc__, PARTS, extra=flags)
