"""How fast 06_farm_transformer.py trains, beside the straightforward version of its trainings.

Straightforward: lm_models' plain models (separate q, k, v, explicit softmax, the LSTM cell in a
Python loop) on batches padded to the longest sentence of the corpus, torch's plain Adam with one
operation for each parameter, one process.

Both versions of a training run in turn, one step each, so that a machine whose speed wanders
wanders for both; after a warm-up, as a kernel is built when its shape comes for the first time.

    python benchmarks/bench_06.py              the steps; two to three minutes
    python benchmarks/bench_06.py --whole      and the script itself, with one and with three seeds
"""

import argparse
import importlib
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
farm06 = importlib.import_module("06_farm_transformer")
import farm_language as farm  # noqa: E402

WARM_UP, STEPS = 40, 200  # for each kind, of both versions in turn
TOKENS = 11.625  # of a mean sentence, </s> included


def plain_train(kind, seed, steps):
    """farm06.train as one would write it first; the same model, batches, rate and clipping."""
    model = farm06.new_model(kind, seed)
    ids = farm.encode(farm.corpus(farm06.TRAINING, "training"))  # (TRAINING, T + 1)
    order = torch.Generator().manual_seed(farm06.stream(seed, "order").getrandbits(63))
    rate = {"LSTM": farm06.LSTM_RATE, "RNN": farm06.RNN_RATE}.get(kind, farm06.RATE)
    adam = torch.optim.Adam(model.parameters(), lr=rate, foreach=False)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    batches = []
    for _ in range(steps):
        batches = batches or list(torch.randperm(len(ids), generator=order).split(batch(kind)))
        loss = farm06.plain_loss(model, ids[batches.pop()])
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), farm06.CLIP, foreach=False)
        adam.step()
        cosine.step()


def batch(kind):
    return farm06.RNN_BATCH if kind in farm06.LOSS else farm06.BATCH


def seconds_a_step(kind):
    """Mean processor time of one whole step: straightforward, ours.

    Each runs in a thread of its own, which stops before each step until the other has done one.
    """
    turns = [threading.Semaphore(1), threading.Semaphore(0)]
    clocks = [[], []]  # of each thread: its processor time when it begins a step

    def in_turn(mine, function):
        def step(*arguments):
            if clocks[mine]:
                turns[1 - mine].release()
            turns[mine].acquire()
            clocks[mine].append(time.thread_time())
            return function(*arguments)

        return step

    def run(mine, train):
        with farm06.one_thread():
            train(kind, 0, WARM_UP + STEPS + 1)
        turns[1 - mine].release()

    fast = "LOSS" if kind in farm06.LOSS else "gpt_gradient"
    before = {"plain_loss": farm06.plain_loss, fast: getattr(farm06, fast)}
    farm06.plain_loss = in_turn(0, farm06.plain_loss)
    if kind in farm06.LOSS:
        farm06.LOSS = farm06.LOSS | {kind: in_turn(1, farm06.LOSS[kind])}
    else:
        farm06.gpt_gradient = in_turn(1, farm06.gpt_gradient)
    trainings = enumerate([plain_train, farm06.train])
    threads = [threading.Thread(target=run, args=one) for one in trainings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, value in before.items():
        setattr(farm06, name, value)
    return [(clock[-1] - clock[WARM_UP]) / STEPS for clock in clocks]


def flops(kind):
    """Operations in the matrix products of one step on real tokens; backward is twice forward."""
    V, d = len(farm.VOCABULARY), farm06.D
    mean_square = sum(p * T * T for T, p in farm.lengths().items())
    linear = {"LSTM": 8 * 64 * (32 + 64) + 2 * 64 * V, "RNN": 2 * 64 * (32 + 64) + 2 * 64 * V}
    gpt = farm06.LAYERS * 24 * d * d + 2 * d * V
    forward = linear.get(kind, gpt) * TOKENS
    if kind not in linear:
        forward += farm06.LAYERS * 4 * d * mean_square  # Q Kᵀ and A V
    return 3 * forward * batch(kind)


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
    """Print the table; the straightforward seconds of a run with one seed and with three."""
    speed = matrix_speed()
    print(f"one thread, processor time; matrix product of 512 x 512: {speed / 1e9:.0f} GF/s")
    columns = ("model", "plain ms/step", "ours ms/step", "ratio", "tokens/s", "of matmul")
    print("{:12}{:>15}{:>14}{:>8}{:>11}{:>11}".format(*columns))
    plain, ours = {}, {}
    for kind in [*farm06.POSITIONS, "LSTM", "RNN"]:
        plain[kind], ours[kind] = seconds_a_step(kind)
        tokens = batch(kind) * TOKENS / ours[kind]
        share = flops(kind) / ours[kind] / speed
        print(
            f"{kind:12}{1e3 * plain[kind]:15.2f}{1e3 * ours[kind]:14.2f}"
            f"{plain[kind] / ours[kind]:8.2f}{tokens:11,.0f}{share:11.0%}"
        )
    kinds = [*farm06.POSITIONS, "LSTM"]  # lecture 1's RNN comes from the cache
    steps = {kind: math.ceil(farm06.TRAINING / batch(kind)) * farm06.EPOCHS for kind in kinds}
    one_seed = [sum(steps[kind] * t[kind] for kind in kinds) for t in (plain, ours)]
    ratio = one_seed[0] / one_seed[1]
    print(
        f"trainings of one seed: {one_seed[0]:.0f} s straightforward, {one_seed[1]:.0f} s ours; "
        f"{ratio:.2f} times faster on one core, up to {2 * ratio:.1f} times in two processes"
    )
    return {1: one_seed[0], 3: 3 * one_seed[0]}


def whole(straightforward):
    """The script from start to end, figures included; the RNN is in the cache from a run before."""
    command = [sys.executable, str(ROOT / "06_farm_transformer.py")]
    subprocess.run([*command, "--part", "1"], check=True, stdout=subprocess.DEVNULL)
    for seeds, plain in straightforward.items():
        start, before = time.perf_counter(), os.times()
        run = [*command, "--seeds", str(seeds)]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
        seconds, after = time.perf_counter() - start, os.times()
        used = after.children_user - before.children_user
        print(
            f"--seeds {seeds}: {seconds:.0f} s, all parts and figures, {used:.0f} s of processor "
            f"time; {plain / seconds:.1f} times faster than the straightforward trainings alone"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--whole", action="store_true", help="time the whole script as well")
    options = parser.parse_args()
    with farm06.one_thread():
        found = compare()
    if options.whole:
        whole(found)
