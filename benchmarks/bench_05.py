"""How fast 05_long_range_recall.py trains, beside the straightforward version of its trainings.

Straightforward: lm_models' plain models (cell in a Python loop, textbook attention), each
sequence with its own d in a padded batch, the logits of all positions, torch's default Adam,
denormals as they come. All versions are timed in the middle of the training, from the same weights:
at its start the gradients of a long sequence are not yet so small that denormals slow them down.

    python benchmarks/bench_05.py              steps, timed in alternation; two to three minutes
    python benchmarks/bench_05.py --whole      and the script itself, from start to end
"""

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
recall = importlib.import_module("05_long_range_recall")
from lm_models import GPT, LSTMLM, RNNLM  # noqa: E402

BEFORE = 300  # steps of the training before anything is timed
ROUNDS, STEPS = 10, 6  # per training: this many rounds of this many steps, of each version in turn
TRAININGS = [
    ("Elman", 1, recall.NEAR, recall.LR_ELMAN),
    ("Elman", 1, recall.FAR, recall.LR_ELMAN),
    ("LSTM b_f=1", 1, recall.FAR, recall.LR_LSTM),
    ("Transformer", 1, recall.FAR, recall.LR_TRANSFORMER),
    ("Elman", recall.LONG_ONLY, recall.FAR, recall.LR_ELMAN),
    ("LSTM b_f=1", recall.LONG_ONLY, recall.FAR, recall.LR_LSTM_LONG),
    ("LSTM b_f=3", recall.LONG_ONLY, recall.FAR, recall.LR_LSTM_LONG),
    ("Transformer", recall.LONG_ONLY, recall.FAR, recall.LR_TRANSFORMER),
]
PADDING, IGNORE = recall.VOCAB - 1, -100


def plain_model(name):
    """lm_models' own model, with all logits: ids (B, T) → (B, T, V)."""
    kind, _, forget_bias = name.partition(" b_f=")
    if kind == "Elman":
        return RNNLM(recall.VOCAB, recall.EMBED, recall.HIDDEN)
    if kind == "LSTM":
        return LSTMLM(recall.VOCAB, recall.EMBED, recall.HIDDEN, float(forget_bias))
    return GPT(recall.VOCAB, recall.D_MODEL, recall.LAYERS, recall.HEADS, recall.MAX_LEN)


def plain_weights(model):
    """The weights of a model of the script, under the names of lm_models' plain one."""
    if isinstance(model, recall.Transformer):
        return model.gpt.state_dict()
    weights = {f"output.{name}": value for name, value in model.output.state_dict().items()}
    weights["embedding.weight"] = model.embed.weight
    rnn = {name.removesuffix("_l0"): value for name, value in model.rnn.named_parameters()}
    if isinstance(model, recall.Elman):  # torch has two biases, the plain cell one
        b_h = rnn["bias_ih"] + rnn["bias_hh"]
        return weights | {
            "rnn.W_hx": rnn["weight_ih"], "rnn.W_hh": rnn["weight_hh"], "rnn.b_h": b_h
        }  # fmt: skip
    return weights | {f"rnn.cell.{name}": value for name, value in rnn.items()}


def one_length(low, high, draws):
    """A batch as the script draws it → ids (B, d + 2), targets (B, d + 2): the key at `?`."""
    d = torch.randint(low, high + 1, (), generator=draws).item()
    ids = recall.sequences(recall.BATCH, d, draws)  # (B, d + 2)
    targets = torch.full_like(ids, IGNORE)
    targets[:, -1] = ids[:, 0]
    return ids, targets


def padded(low, high, draws):
    """The same with a d of its own for each sequence, padded behind the `?` to the longest."""
    d = torch.randint(low, high + 1, (recall.BATCH,), generator=draws)  # (B,)
    ids = recall.sequences(recall.BATCH, d.max().item(), draws)  # (B, T)
    position = torch.arange(ids.shape[1])  # (T,)
    query = (d + 1)[:, None]  # (B, 1)
    ids = ids.where(position < query, recall.QUERY).where(position <= query, PADDING)  # (B, T)
    targets = ids[:, :1].where(position == query, IGNORE)  # (B, T)
    return ids, targets


def plain_step(model, optimiser, batch):
    ids, targets = batch
    logits = model(ids)  # (B, T, V)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return loss.item()


def fast_step(model, descend, batch):
    ids, _ = batch
    return descend(F.cross_entropy(model(ids), ids[:, 0]))


def seconds_a_step(versions, low, high):
    """{name: (model, step, batch function, Adam)} → {name: processor time a step}, alternating.

    Denormals count as 0 for ours alone: it is one of the ways in which it is faster.

    A few steps of each version in turn, since the machine's own speed wanders; each turn's first
    step is not counted: it finds the other versions' numbers in the processor's caches.
    """
    times = dict.fromkeys(versions, 0.0)
    draws = {name: recall.stream("bench", low, high) for name in versions}  # the same d for all
    for _ in range(ROUNDS):
        for name, (model, step, batch, adam) in versions.items():
            torch.set_flush_denormal(name == "ours")
            for n in range(STEPS + 1):
                start = time.process_time()
                step(model, adam, batch(low, high, draws[name]))
                times[name] += (time.process_time() - start) * (n > 0)
    return {name: total / (ROUNDS * STEPS) for name, total in times.items()}


def matrix_flops(name, d):
    """Operations in the matrix products of one of our steps; backward takes twice the forward."""
    T, E, H, D = d + 2, recall.EMBED, recall.HIDDEN, recall.D_MODEL
    if name.startswith("Transformer"):
        full = 24 * T * D * D + 4 * T * T * D  # a layer (§4.9)
        last = 4 * T * D * D + 20 * D * D + 4 * T * D  # keys and values for all, the rest for `?`
        forward = (recall.LAYERS - 1) * full + last
    else:
        forward = 2 * T * (E * H + H * H) * (1 if name == "Elman" else 4)
    return 3 * recall.BATCH * forward


def matrix_speed(n=512, repeats=30):
    """Floating-point operations a second of this machine's own n × n matrix product, one thread."""
    a, b = torch.randn(n, n), torch.randn(n, n)
    times = []
    for _ in range(repeats):
        start = time.process_time()
        a @ b
        times.append(time.process_time() - start)
    return 2 * n**3 / statistics.median(times)


def compare():
    """Print both tables; the straightforward seconds of all eight trainings, one thread."""
    speed = matrix_speed()
    print(
        f"one thread, milliseconds of processor time a step, after {BEFORE} steps of training; "
        f"matrix product {speed / 1e9:.0f} GF/s"
    )
    columns = (
        "training",
        "straightforward",
        "same batches",
        "ours",
        "ratio",
        "like for like",
        "of matmul",
    )
    print("{:30}{:>16}{:>14}{:>8}{:>8}{:>15}{:>11}".format(*columns))
    total = {"straightforward": 0.0, "ours": 0.0}
    for name, low, high, rate in TRAININGS:
        plain, same, fast = plain_model(name), plain_model(name), recall.new_model(name, 0)
        descend, draws = recall.adam(fast, rate), recall.stream("before", name, low)
        torch.set_flush_denormal(True)
        for n in range(BEFORE):  # each length first of all once: oneDNN builds a kernel for each
            here = (low + n, low + n) if low + n <= high else (low, high)
            fast_step(fast, descend, one_length(*here, draws))
        for model in (plain, same):
            model.load_state_dict(plain_weights(fast))
        adam = [torch.optim.Adam(m.parameters(), lr=rate) for m in (plain, same)]
        t = seconds_a_step({
            "straightforward": (plain, plain_step, padded, adam[0]),
            "same batches": (same, plain_step, one_length, adam[1]),
            "ours": (fast, fast_step, one_length, descend),
        }, low, high)  # fmt: skip
        for version in total:
            total[version] += t[version] * recall.STEPS
        # d is uniform: average the operations over it, T² included
        flops = statistics.mean(matrix_flops(name, d) for d in range(low, high + 1))
        print(
            f"{name + f', d in [{low}, {high}]':30}{t['straightforward'] * 1e3:16.1f}"
            f"{t['same batches'] * 1e3:14.1f}{t['ours'] * 1e3:8.2f}"
            f"{t['straightforward'] / t['ours']:7.1f}x{t['same batches'] / t['ours']:14.1f}x"
            f"{flops / t['ours'] / speed:11.0%}",
            flush=True,
        )
    ratio = total["straightforward"] / total["ours"]
    print(
        f"all eight, {recall.STEPS} steps each: straightforward {total['straightforward']:.0f} s, "
        f"ours {total['ours']:.0f} s of one core: {ratio:.1f}x"
    )
    return total["straightforward"]


def whole(straightforward):
    """Run the script as a reader would and print its time beside the straightforward trainings'."""
    command = [sys.executable, str(ROOT / "05_long_range_recall.py")]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    print(
        f"the script from start to end, {os.cpu_count()} cores: {seconds:.0f} s, "
        f"{straightforward / seconds:.1f}x faster than the straightforward trainings alone"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--whole", action="store_true", help="time the whole script as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds = compare()
    if options.whole:
        whole(seconds)
