"""05: the task has no shortcut, the fast models are lm_models' models, the measures are right."""

import math
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from companion import ROOT, Recorder
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from conftest import load_script, run_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from lm_models import GPT, LSTMLM, RNNLM, LSTMCell

recall = load_script("05_long_range_recall")
bench = load_script("benchmarks/bench_05")
NAMES = ["Elman", "LSTM b_f=1", "LSTM b_f=3", "Transformer"]


@pytest.fixture
def few_tests(monkeypatch):
    """After a training, two distances and 80 sequences are enough here."""
    monkeypatch.setattr(recall, "TESTED", [1, 3])
    monkeypatch.setattr(recall, "TEST_SEQUENCES", 80)


def batch(n=5, d=7, name="test"):
    return recall.sequences(n, d, recall.stream(name))


# ── the task ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("d", [1, 2, 100])
def test_layout_is_key_then_d_distractors_then_the_question(d):
    ids = batch(400, d)
    assert ids.shape == (400, d + 2)
    assert set(ids[:, 0].tolist()) == set(range(8))  # every key occurs, first
    assert set(ids[:, 1:-1].flatten().tolist()) == set(range(8, 16))  # never a key
    assert set(ids[:, -1].tolist()) == {16}


def test_distractors_tell_nothing_about_the_key():
    n = 20_000
    ids = batch(n, 3)
    for position in (1, 2, 3):
        joint = torch.zeros(8, 8)
        joint.index_put_((ids[:, 0], ids[:, position] - 8), torch.ones(n), accumulate=True)
        expected = n / 64
        chi_squared = ((joint - expected) ** 2 / expected).sum().item()
        assert chi_squared < 120  # 63 degrees of freedom: mean 63, standard deviation 11


def test_only_the_first_token_of_a_sequence_gives_the_answer(few_tests):
    """A trained model follows the key: right on its own key, wrong on a sequence's old one."""
    run = recall.train(recall.Training("Elman", 1, 3, 2e-2, 80, 0))
    model = recall.load("Elman", 0, run.state)
    ids = recall.test_sequences(800, 3, 1)
    swapped = ids.clone()
    swapped[:, 0] = ids.roll(1, 0)[:, 0]  # always another key: they come in the order 0 … 7
    with torch.no_grad():
        answers, after_swap = model(ids).argmax(-1), model(swapped).argmax(-1)
    assert (answers == ids[:, 0]).double().mean() > 0.95
    assert (after_swap == swapped[:, 0]).double().mean() > 0.95
    assert (after_swap == ids[:, 0]).double().mean() < 0.05


def test_test_sequences_hold_each_key_equally_often_and_depend_on_d_and_seed():
    ids = recall.test_sequences(80, 4, 0)
    assert torch.bincount(ids[:, 0]).tolist() == [10] * 8
    assert torch.equal(ids, recall.test_sequences(80, 4, 0))
    assert not torch.equal(ids, recall.test_sequences(80, 4, 1))
    assert set(ids[:, 1:-1].flatten().tolist()) == set(range(8, 16))


def test_streams_are_owned(few_tests):
    """Names decide the numbers; the global generator is left as it was."""
    before = torch.get_rng_state()
    one = recall.new_model("Elman", 0).rnn.weight_hh_l0
    assert torch.equal(one, recall.new_model("Elman", 0).rnn.weight_hh_l0)
    assert not torch.equal(one, recall.new_model("Elman", 1).rnn.weight_hh_l0)
    other = recall.new_model("LSTM b_f=3", 0).rnn.weight_hh_l0
    assert not torch.equal(other, recall.new_model("LSTM b_f=1", 0).rnn.weight_hh_l0)
    draw = lambda *name: torch.rand((), generator=recall.stream(*name)).item()  # noqa: E731
    assert draw("data", 1) == draw("data", 1)
    assert len({draw("data", n) for n in range(20)} | {draw("test", n) for n in range(20)}) == 40
    recall.train(recall.Training("Transformer", 1, 3, 1e-3, 2, 0))
    assert torch.equal(torch.get_rng_state(), before)


# ── the models ───────────────────────────────────────────────────────────────────────────────────
def plain_twin(name, model):
    """lm_models' plain model with the same weights; its logits at the last token; name → name."""
    if name == "Transformer":
        twin = GPT(18, 32, 2, 2, 120).double()
        twin.load_state_dict(model.gpt.state_dict())
        return twin, {name: f"gpt.{name}" for name, _ in twin.named_parameters()}
    names = {"embedding.weight": "embed.weight"}
    names |= {f"output.{n}": f"output.{n}" for n in ("weight", "bias")}
    if name == "Elman":
        twin = RNNLM(18, 32, 64).double()
        names |= {"rnn.W_hx": "rnn.weight_ih_l0", "rnn.W_hh": "rnn.weight_hh_l0"}
        twin.rnn.b_h.data = model.rnn.bias_ih_l0.data + model.rnn.bias_hh_l0.data
    else:
        twin = LSTMLM(18, 32, 64).double()
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        names |= {f"rnn.cell.{part}": f"rnn.{part}_l0" for part in parts}
    for ours, theirs in names.items():
        twin.get_parameter(ours).data = model.get_parameter(theirs).data.clone()
    return twin, names


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("d", [1, 2, 9])
def test_logits_and_every_gradient_equal_the_plain_models(name, d):
    model, ids = recall.new_model(name, 3).double(), batch(6, d)
    for parameter in model.parameters():  # no zeros that would hide a swap
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=recall.stream("more"))
    twin, names = plain_twin(name, model)
    fast, plain = model(ids), twin(ids)[:, -1]
    torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-12)
    F.cross_entropy(fast, ids[:, 0]).backward()
    F.cross_entropy(plain, ids[:, 0]).backward()
    for ours, theirs in names.items():
        grad, other = twin.get_parameter(ours).grad, model.get_parameter(theirs).grad
        torch.testing.assert_close(other, grad, rtol=1e-8, atol=1e-12)
    if name == "Elman":  # b_h is the sum of both biases
        for bias in (model.rnn.bias_ih_l0, model.rnn.bias_hh_l0):
            torch.testing.assert_close(bias.grad, twin.rnn.b_h.grad, rtol=1e-8, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_last_state_passes_a_finite_difference_check(T, B, H, seed):
    draws = torch.Generator().manual_seed(seed)
    a = torch.randn(T, B, H, generator=draws, dtype=torch.float64, requires_grad=True)
    W_hh = torch.randn(H, H, generator=draws, dtype=torch.float64, requires_grad=True)
    before = a.detach().clone()
    assert torch.autograd.gradcheck(recall.LastState.apply, (a, W_hh))
    assert torch.equal(a, before)  # the in-place steps work on a copy


def test_last_state_leaves_the_gradient_that_it_is_given_alone():
    a, W_hh = torch.randn(4, 2, 3, requires_grad=True), torch.eye(3, requires_grad=True)
    grad = torch.ones(2, 3)
    torch.autograd.grad(recall.LastState.apply(a, W_hh), (a, W_hh), grad)
    assert torch.equal(grad, torch.ones(2, 3))


def test_last_state_is_nn_rnn():
    rnn = torch.nn.RNN(4, 6, batch_first=True).double()
    x = torch.randn(3, 8, 4, dtype=torch.float64)
    a = F.linear(x.transpose(0, 1), rnn.weight_ih_l0, rnn.bias_ih_l0 + rnn.bias_hh_l0)
    torch.testing.assert_close(recall.LastState.apply(a, rnn.weight_hh_l0), rnn(x)[0][:, -1])


@pytest.mark.parametrize("b", [1.0, 3.0])
def test_forget_bias_sets_the_forget_gate_alone(b):
    lstm = recall.new_model(f"LSTM b_f={b:g}", 0).rnn
    assert lstm.bias_ih_l0[64:128].tolist() == [b] * 64
    assert lstm.bias_hh_l0[64:128].tolist() == [0.0] * 64
    rest = torch.cat([lstm.bias_ih_l0[:64], lstm.bias_ih_l0[128:], lstm.bias_hh_l0[128:]])
    assert rest.abs().min() > 0 and rest.abs().max() < 1 / 8  # torch's start, U(-1/√H, 1/√H)


def test_initial_weights_are_as_published():
    gpt = recall.new_model("Transformer", 0).gpt
    assert gpt.token_embedding.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert gpt.blocks[0].ffn.W_1.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert recall.new_model("Elman", 0).embed.weight.std().item() == pytest.approx(1, rel=0.15)


# ── training ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("name", "rate"), [("Elman", 3e-3), ("LSTM b_f=1", 3e-3), ("Transformer", 1e-3)]
)
def test_training_is_the_plain_loop(few_tests, name, rate):
    """Six steps against lm_models' model, Adam and clipping written out here."""
    training = recall.Training(name, 2, 6, rate, 6, 5)
    losses = recall.train(training).losses
    start = recall.new_model(name, 5).double()
    model, _ = plain_twin(name, start)
    draws = recall.stream("data", name, 2, 6, 5)
    m = [torch.zeros_like(p) for p in model.parameters()]
    v = [torch.zeros_like(p) for p in model.parameters()]
    for step, loss_there in enumerate(losses, start=1):
        d = torch.randint(2, 7, (), generator=draws).item()
        ids = recall.sequences(64, d, draws)
        loss = F.cross_entropy(model(ids)[:, -1], ids[:, 0])
        assert loss.item() == pytest.approx(loss_there, abs=2e-4), step
        grads = list(torch.autograd.grad(loss, list(model.parameters())))
        both_biases = name == "Elman"  # the twin's b_h stands for two parameters of equal gradient
        weights = [1 + (both_biases and p is model.rnn.b_h) for p in model.parameters()]
        norm = sum(w * g.square().sum() for w, g in zip(weights, grads)).sqrt()
        for k, (w, p, g) in enumerate(zip(weights, model.parameters(), grads)):
            g = g * min(1.0, 1 / (norm.item() + 1e-6))
            m[k] = 0.9 * m[k] + 0.1 * g
            v[k] = 0.999 * v[k] + 0.001 * g**2
            unbiased = (v[k] / (1 - 0.999**step)).sqrt() + 1e-8
            p.data -= w * rate * m[k] / (1 - 0.9**step) / unbiased


def test_gradients_are_clipped_at_norm_1(few_tests, monkeypatch):
    norms = []
    real = torch.nn.utils.clip_grad_norm_

    def spy(parameters, limit):
        parameters = list(parameters)
        real(parameters, limit)
        norms.append((limit, sum(p.grad.square().sum() for p in parameters).sqrt().item()))

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spy)
    recall.train(recall.Training("LSTM b_f=1", 1, 3, 1e-2, 5, 0))
    assert len(norms) == 5
    assert all(limit == 1.0 and norm <= 1.0001 for limit, norm in norms)


def test_d_is_uniform_in_the_range_and_one_a_batch(few_tests, monkeypatch):
    drawn = []
    real = recall.sequences
    monkeypatch.setattr(recall, "sequences", lambda n, d, g: drawn.append((n, d)) or real(n, d, g))
    recall.train(recall.Training("Elman", 3, 5, 1e-3, 60, 0))
    drawn = drawn[:-2]  # the last two are the tests
    assert len(drawn) == 60 and {n for n, _ in drawn} == {64}
    assert {d for _, d in drawn} == {3, 4, 5}
    assert all(10 <= sum(d == one for _, d in drawn) <= 30 for one in (3, 4, 5))


def test_a_training_is_done_once_and_parts_share_it(monkeypatch):
    done = []

    def train(training):
        done.append(training)
        return recall.Run([0.5] * 3, (1.0,) * 9, (3.0,) * 9, {})

    monkeypatch.setattr(recall, "train", train)
    monkeypatch.setattr(recall, "RUNS", {})
    what = ("Elman", 1, 20, 3e-3)
    (runs,) = recall.trained(Recorder(seeds=2), [what])
    again, other = recall.trained(Recorder(seeds=3), [what, ("Transformer", 1, 9, 1e-3)])
    assert len(runs) == 2 and len(again) == len(other) == 3
    assert [t.seed for t in done if t.model == "Elman"] == [0, 1, 2]
    assert {t.steps for t in done} == {1000}
    recall.trained(Recorder(quick=True), [what])
    assert done[-1] == recall.Training(*what, 20, 0)


def test_the_loss_is_the_mean_of_the_last_hundred_steps():
    assert recall.Run([9.0] * 900 + [1.0] * 50 + [3.0] * 50, (), (), {}).loss == 2.0


# ── the measures ─────────────────────────────────────────────────────────────────────────────────
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 17)), min_size=1, max_size=60))
def test_mutual_information_by_its_definition(pairs):
    def entropy(items):
        counts = [items.count(one) for one in set(items)]
        return -sum(c / len(items) * math.log2(c / len(items)) for c in counts)

    keys, answers = zip(*pairs)
    expected = entropy(keys) + entropy(answers) - entropy(pairs)
    measured = recall.mutual_information(torch.tensor(keys), torch.tensor(answers))
    assert measured == pytest.approx(expected, abs=1e-9)


def test_mutual_information_in_cases_that_one_can_count():
    keys = torch.arange(80) % 8
    assert recall.mutual_information(keys, keys) == pytest.approx(3)
    assert recall.mutual_information(keys, (keys + 3) % 8) == pytest.approx(3)  # wrong, but tells
    assert recall.mutual_information(keys, keys // 2) == pytest.approx(2)
    assert recall.mutual_information(keys, keys // 4) == pytest.approx(1)
    assert recall.mutual_information(keys, torch.full_like(keys, 5)) == pytest.approx(0)


def test_accuracy_counts_right_answers():
    class Tells(torch.nn.Module):
        """Right for keys below 6, token 17 otherwise."""

        def forward(self, ids):
            return F.one_hot(ids[:, 0].where(ids[:, 0] < 6, 17), 18).double()

    accuracy, bits = recall.examine(Tells(), 4, 0)
    assert accuracy == pytest.approx(6 / 8)
    assert bits == pytest.approx(6 / 8 * 3 + 2 / 8 * 2)  # one answer stands for two keys


def test_reach_is_the_largest_distance_answered():
    assert recall.reach([1.0] * 9) == 100
    assert recall.reach([1, 1, 1, 1, 0.95, 0.94, 0, 0, 0]) == 20
    assert recall.reach([0.1] * 9) == 0


@pytest.mark.parametrize("name", NAMES)
def test_key_gradient_by_finite_differences(name):
    """Nudge the key's vector of one sequence in plain models; the norm is the mean of all."""
    d, eps = 2, 1e-6
    (measured,) = recall.key_gradients((name, 0, [d]))
    model = recall.new_model(name, 0).double()
    ids = recall.sequences(16, d, recall.stream("gradient", d, 0))
    plain = model.answer if name != "Elman" else lambda x: recall.Recurrent.answer(model, x)
    with torch.no_grad():
        x = model.embed(ids)
        columns = []
        for unit in range(x.shape[-1]):
            losses = []
            for sign in (1, -1):
                nudged = x.clone()
                nudged[:, 0, unit] += sign * eps
                losses.append(F.cross_entropy(plain(nudged), ids[:, 0], reduction="none"))
            columns.append((losses[0] - losses[1]) / (2 * eps))
    norms = torch.stack(columns, dim=1).norm(dim=1)
    assert measured == pytest.approx(norms.mean().item(), rel=1e-4)


@pytest.mark.parametrize("d", [10, 50, 100])
def test_uniform_attention(d):
    assert recall.uniform_attention(d) == pytest.approx(1 / (d + 2), rel=1e-5)


def test_attention_on_key_by_hand(monkeypatch):
    """Layer 1's weight of `?` on the key from W_q, W_k alone, one sequence at a time."""
    monkeypatch.setattr(recall, "INSIDE", [1, 3])
    monkeypatch.setattr(recall, "OPENED", 8)
    model = recall.new_model("Transformer", 0)
    for parameter in model.parameters():
        parameter.data *= 12  # so that attention is far from uniform
    weights = recall.attention_on_key(("Transformer", 0, model.state_dict()))
    assert weights.shape == (2, 2, 2)
    block = model.gpt.blocks[0]
    for n, d in enumerate([1, 3]):
        by_hand = torch.zeros(2)
        for ids in recall.test_sequences(8, d, 0):
            x = block.ln_1(model.gpt.embed(ids[None]))[0]
            q, k = block.attn.W_q(x)[-1], block.attn.W_k(x)
            for head in range(2):
                part = slice(16 * head, 16 * head + 16)
                scores = k[:, part] @ q[part] / 4
                by_hand[head] += torch.softmax(scores, 0)[0].detach() / 8
        torch.testing.assert_close(weights[n, 0], by_hand)
        assert (by_hand - 1 / (d + 2)).abs().max() > 0.01


def test_gates_rebuild_the_lstm():
    """c_t = f c_{t-1} + i g with our gates gives nn.LSTM's c_T; each gate is LSTMCell's."""
    lstm = recall.new_model("LSTM b_f=1", 0).rnn.double()
    x = torch.randn(3, 5, 32, dtype=torch.float64)
    i, f, g = recall.gates(lstm, x)
    c = torch.zeros(3, 64, dtype=torch.float64)
    for t in range(5):
        c = f[:, t] * c + i[:, t] * g[:, t]
    torch.testing.assert_close(c, lstm(x)[1][1][0])
    cell = LSTMCell(32, 64).double()
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in lstm.state_dict().items()})
    _, c_1 = cell(x[:, 0])
    torch.testing.assert_close(i[:, 0] * g[:, 0], c_1)


def test_explained_variance_of_a_balanced_design():
    """written = 3 · key effect + 1 · distractor effect: shares 9/10 and 1/10."""
    key, distractor = torch.tensor(list(product(range(8), range(8)))).T
    effect = torch.randn(8, 5, dtype=torch.float64)
    effect = effect - effect.mean(dim=0)
    effect = effect / effect.square().sum().sqrt()
    written = 3 * effect[key] + effect[distractor] + 7  # (64, 5); a constant explains nothing
    assert recall.explained(written, key) == pytest.approx(0.9)
    assert recall.explained(written, distractor) == pytest.approx(0.1)
    assert recall.explained(written, torch.arange(64)) == pytest.approx(1)
    assert recall.explained(written, torch.zeros(64)) == pytest.approx(0)


def test_lstm_inside_by_a_loop(monkeypatch):
    """All six numbers, cell by cell and step by step, from lm_models' cell."""
    monkeypatch.setattr(recall, "FAR", 5)
    monkeypatch.setattr(recall, "OPENED", 16)
    model = recall.new_model("LSTM b_f=3", 0)
    model.rnn.bias_ih_l0.data[64:70] = 6.0  # six cells that keep, σ(6) = 0.9975
    model.rnn.bias_ih_l0.data[:64] += 1.0
    numbers, forget = recall.lstm_inside(("LSTM b_f=3", 0, model.state_dict()))
    ids = recall.test_sequences(16, 5, 0)
    W = {k.removesuffix("_l0"): v.double() for k, v in model.rnn.state_dict().items()}
    h = c = torch.zeros(16, 64, dtype=torch.float64)
    inputs, forgets, written = [], [], []
    for t in range(6):  # the key, then five distractors
        x = model.embed.weight[ids[:, t]].double()
        z = x @ W["weight_ih"].T + W["bias_ih"] + h @ W["weight_hh"].T + W["bias_hh"]
        i, f, o = (torch.sigmoid(z[:, 64 * k : 64 * k + 64]) for k in (0, 1, 3))
        g = torch.tanh(z[:, 128:192])
        c = f * c + i * g
        h = o * torch.tanh(c)
        inputs.append(i.mean().item())
        forgets.append(f.mean(dim=0))
        written.append(i * g)
    forgets = torch.stack(forgets[1:]).mean(dim=0)
    assert forget == pytest.approx(forgets.tolist(), abs=1e-5)
    assert numbers["L2-123a"] == 6 == sum(f > 0.99 for f in forget)
    assert numbers["L2-123b"] == pytest.approx(forgets[:6].mean().item(), abs=1e-5)
    assert numbers["L2-124a"] == pytest.approx(inputs[0], abs=1e-5)
    assert numbers["L2-124b"] == pytest.approx(sum(inputs[1:]) / 5, abs=1e-5)
    at_distractors = torch.stack(written[1:], dim=1)  # (16, 5, 64)
    total = (at_distractors - at_distractors.mean(dim=(0, 1))).square().sum()
    for id, label in (("L2-125a", ids[:, :1].expand(16, 5)), ("L2-125b", ids[:, 1:-1])):
        between = sum(
            (label == k).sum()
            * (at_distractors[label == k].mean(0) - at_distractors.mean((0, 1))) ** 2
            for k in label.unique()
        ).sum()
        assert numbers[id] == pytest.approx(100 * (between / total).item(), abs=1e-2)
    assert 1 < numbers["L2-125b"] < 100 and numbers["L2-125a"] != numbers["L2-125b"]


def test_cuts(few_tests, monkeypatch):
    """A model that learned d ≤ 4: cutting everything is fatal, the random control harmless."""
    monkeypatch.setattr(recall, "INSIDE", [2, 4])
    run = recall.train(recall.Training("Transformer", 1, 4, 5e-3, 80, 0))
    task = ("Transformer", 0, run.state)
    accuracy = {name[0]: row for name, row in recall.accuracy_after_cuts(task).items()}
    gpt = recall.load(*task).gpt
    assert min(accuracy["nothing"]) > 0.9
    fatal = accuracy["every layer, every later query"]
    assert max(fatal[:2]) < 0.2 and min(fatal[2:]) > 0.8
    assert len(accuracy) == 1 + 4 + 3 + 3 and all(len(row) == 4 for row in accuracy.values())
    for n, d in enumerate([2, 4]):
        ids = recall.test_sequences(recall.OPENED, d, 0)
        keys = ids[:, 0]
        position = torch.randint(1, d + 1, (), generator=recall.stream("cut", d, 0)).item()
        for column, target in ((n, 0), (n + 2, position)):
            for name, layers, heads, queries in (
                ("layer 1, head 2", [0], [1], [d + 1]),
                ("layer 2", [1], [0, 1], [d + 1]),
                ("every layer", [0, 1], [0, 1], [d + 1]),
                ("layer 1, every later query", [0], [0, 1], range(target + 1, d + 2)),
            ):
                for layer in layers:  # the mask by hand, in place of `cut`
                    mask = torch.zeros(2, d + 2, d + 2)
                    for head, query in product(heads, queries):
                        mask[head, query, target] = -math.inf
                    gpt.blocks[layer].attn.extra_mask = mask
                with torch.no_grad():
                    right = (gpt(ids)[:, -1].argmax(-1) == keys).double().mean().item()
                assert accuracy[name][column] == pytest.approx(right), (name, d, target)
                for block in gpt.blocks:
                    block.attn.extra_mask = None


def test_which_links_are_cut(monkeypatch):
    """d = 3: `?` is position 4, the key position 0; the control cuts one distractor, 1 to 3."""
    calls = []

    def spy(gpt, queries, target, layers, heads):
        def places(where, size):
            if isinstance(where, slice):
                return set(range(size)[where])
            return set(where) if isinstance(where, tuple) else {where}

        calls.append((places(queries, 5), target, places(layers, 2), places(heads, 2)))
        return nullcontext()

    monkeypatch.setattr(recall, "INSIDE", [3])
    monkeypatch.setattr(recall, "cut", spy)
    state = recall.new_model("Transformer", 0).state_dict()
    names = [name[0] for name in recall.accuracy_after_cuts(("Transformer", 0, state))]
    control = calls[len(names)][1]
    assert len(calls) == 2 * len(names) and 1 <= control <= 3
    both = {0, 1}
    for target, found in ((0, calls[: len(names)]), (control, calls[len(names) :])):
        later = set(range(target + 1, 5))
        assert dict(zip(names, found)) == {
            "nothing": ({4}, target, set(), both),
            "layer 1, head 1": ({4}, target, {0}, {0}),
            "layer 1, head 2": ({4}, target, {0}, {1}),
            "layer 2, head 1": ({4}, target, {1}, {0}),
            "layer 2, head 2": ({4}, target, {1}, {1}),
            "layer 1": ({4}, target, {0}, both),
            "layer 2": ({4}, target, {1}, both),
            "every layer": ({4}, target, both, both),
            "layer 1, every later query": (later, target, {0}, both),
            "layer 2, every later query": (later, target, {1}, both),
            "every layer, every later query": (later, target, both, both),
        }


# ── the parts ────────────────────────────────────────────────────────────────────────────────────
def fake_run(accuracy=1.0, bits=3.0, loss=0.0):
    return recall.Run([loss] * 200, (accuracy,) * 9, (bits,) * 9, {})


def test_part_2_claims_come_from_the_right_trainings(monkeypatch):
    near = recall.Run([0.0], (1,) * 7 + (0.96, 0.9), (3.0,) * 9, {})
    far = recall.Run([1.0], (0.5, *(0.4,) * 7, 0.3), (*(1.0,) * 8, 1.9), {})
    by_training = {("Elman", 20): near, ("Elman", 100): far}
    by_training |= {
        ("LSTM b_f=1", 100): fake_run(0.9, 2.9),
        ("Transformer", 100): fake_run(0.8, 2.8),
    }

    def trained(show, wanted):
        assert all(low == 1 for _, low, _, _ in wanted)
        return [[by_training[model, high]] for model, _, high, _ in wanted]

    monkeypatch.setattr(recall, "trained", trained)
    claims = run_parts(recall, [2]).claims
    assert claims["L2-109"] == 0.9
    assert claims["L2-110a"] == pytest.approx(1.1)
    assert claims["L2-110b"] == [0.5, 0.3] and claims["L2-110c"] == pytest.approx(0.2)
    assert claims["L2-111"] == 75 / 20
    assert claims["L2-112a"] == [0.9, 0.8]
    assert claims["L2-112b"] == pytest.approx([2.9, 2.8])


def test_part_3_asks_whether_bias_3_learned_at_the_rate_where_bias_1_did_not(monkeypatch):
    stuck, learned = fake_run(0.125, 0.0, 2.08), fake_run()

    def claims(bias3):
        rate_and_run = {
            "Elman": (3e-3, fake_run(loss=2.1)),
            "LSTM b_f=1": (1e-3, fake_run(loss=2.2)),
            "LSTM b_f=3": (1e-3, bias3),
            "Transformer": (1e-3, recall.Run([0.0], (0.75, *(1.0,) * 8), (3.0,) * 9, {})),
        }

        def trained(show, wanted):
            assert [what[:3] for what in wanted] == [(model, 50, 100) for model in rate_and_run]
            assert [what[3] for what in wanted] == [rate for rate, _ in rate_and_run.values()]
            return [[run] for _, run in rate_and_run.values()]

        monkeypatch.setattr(recall, "trained", trained)
        return run_parts(recall, [3]).claims

    assert claims(stuck)["L2-114"] is True
    assert claims(learned)["L2-114"] is False
    assert claims(fake_run(7 / 8))["L2-114"] is False  # one key missing is no failure
    assert claims(fake_run(0.2))["L2-114"] is True
    assert claims(learned)["L2-113"] == pytest.approx([2.1, 2.2])
    assert claims(learned)["L2-115"] == 0.75


def test_part_4_divides_by_the_gradient_at_10(monkeypatch):
    """Known gradients in, ratios out: d^-1 for the Transformer, e^-d, e^-d/10, constant."""
    laws = [lambda d: math.exp(-d), lambda d: math.exp(-d / 10), lambda d: 1.0, lambda d: 2 / d]
    law = dict(zip(NAMES, laws))
    fake = lambda task: [(1 + task[1]) * law[task[0]](d) for d in task[2]]  # noqa: E731
    monkeypatch.setattr(recall, "key_gradients", fake)
    show = run_parts(recall, [4], seeds=3)
    assert show.claims["L2-117"] == pytest.approx(0.1)
    assert show.claims["L2-119"] == pytest.approx([math.exp(-90), math.exp(-9)])
    assert show.claims["L2-120"] is True
    assert show.claims["L2-118"] == pytest.approx(12 / 102)
    assert show.seeds_of["L2-117"] == pytest.approx([0.1] * 3)


def test_the_sweep_runs_where_it_is_asked_for(monkeypatch):
    rates = []

    def trained(show, wanted, seeds):
        rates.extend(rate for *_, rate in wanted)
        assert {what[1:3] for what in wanted} == {(50, 100)}
        learns = [name == "LSTM b_f=3" and rate < 2e-3 for name, *_, rate in wanted]
        return [[fake_run(0.125), fake_run(float(one))] for one in learns]

    monkeypatch.setattr(recall, "trained", trained)
    quiet = run_parts(recall, [7])
    assert not quiet.tables and not rates and "--sweep-lr" in quiet.notes[0]
    show = run_parts(recall, [7], options=Namespace(sweep_lr=True))
    ((_, rows),) = show.tables.values()
    assert rates == 2 * recall.SWEEP_RATES
    learned = [row[0] for row in rows[::3]]
    assert learned[0] == "LSTM b_f=1, 0.001: 0 / 2" and learned[5] == "LSTM b_f=3, 0.001: 1 / 2"
    assert all(name.endswith(": 0 / 2") for n, name in enumerate(learned) if n != 5)


def test_tables_show_min_median_and_max_over_seeds():
    show = Recorder()
    recall.table_of_seeds(show, "t", ["", "", "x"], {"a": [[3.0], [1.0], [8.0]], "b": [[5.0]]})
    assert show.tables["t"][1] == [
        ["a", "min", "1.000"], ["a", "median", "3.000"], ["a", "max", "8.000"], ["b", "", "5.000"]
    ]  # fmt: skip


BAD = {
    "KEYS": 1, "DISTRACTORS": 0, "BATCH": 0, "STEPS": 0, "NEAR": 0, "FAR": 119, "LONG_ONLY": 101,
    "TESTED": [], "INSIDE": [100, 10], "TEST_SEQUENCES": 1001, "OPENED": 0,
    "GRADIENT_SEEDS": 0, "GRADIENT_BATCH": 0,
}  # fmt: skip


def test_one_of_each_is_enough(monkeypatch):
    for name in ("DISTRACTORS", "BATCH", "STEPS", "GRADIENT_SEEDS", "GRADIENT_BATCH", "OPENED"):
        monkeypatch.setattr(recall, name, 1)
    recall.check_constants()


@pytest.mark.parametrize(("name", "value"), [*BAD.items(), ("LONG_ONLY", 0)])
def test_senseless_constants_are_refused_by_name(monkeypatch, name, value):
    monkeypatch.setattr(recall, name, value)
    for part in range(1, 8):
        with pytest.raises(ValueError, match=rf"\b{name}\b") as error:
            run_parts(recall, [part])
        assert str(value) in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_one_vector_of_parameters_learns_like_torchs_own_adam(name):
    mine, theirs = recall.new_model(name, 0), recall.new_model(name, 0)
    descend = recall.adam(mine, 1e-2)
    optimiser = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    for step in range(4):
        ids = recall.sequences(8, 5, torch.Generator().manual_seed(step))
        mine_loss = descend(30 * F.cross_entropy(mine(ids), ids[:, 0]))  # 30: clipping is needed
        loss = 30 * F.cross_entropy(theirs(ids), ids[:, 0])
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimiser.step()
        assert norm > 1
        assert mine_loss == pytest.approx(loss.item(), rel=1e-4)
    for a, b in zip(mine.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_transformer_of_any_depth_answers_as_its_gpt_does(monkeypatch, layers):
    monkeypatch.setattr(recall, "LAYERS", layers)
    monkeypatch.setattr(recall, "MAX_LEN", 30)
    model, ids = recall.new_model("Transformer", 0), batch(3, 8)
    torch.testing.assert_close(model(ids), model.gpt(ids)[:, -1])
    assert len(model.gpt.blocks) == layers
    assert model.gpt.position_embedding.weight.shape == (30, 32)


def test_heads_are_counted_from_1():
    assert recall.head_name(0, 1) == ("layer 1, head 2", "第 1 层，头 2")


def test_the_elman_rnns_table_of_inputs_gives_the_same_answers():
    model = recall.new_model("Elman", 0)
    ids = recall.sequences(5, 7, torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(ids), model.answer(model.embed(ids)))
    plain = recall.Recurrent(model.rnn)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(ids), plain(ids))


def test_part_1_counts_what_there_is():
    """Sizes by counting weights; the answer of an example is its first token."""
    show = run_parts(recall, [1])
    elman = (32 * 64 + 64 * 64) + 2 * 64  # torch has two biases
    around = 18 * 32 + (64 * 18 + 18)  # embedding; output
    block = 4 * (32 * 32 + 32) + (32 * 128 + 128) + (128 * 32 + 32) + 2 * 64
    assert show.claims["L2-102"] == [8, 3, 8]
    assert show.claims["L2-104a"] == 1 / 8
    assert show.claims["L2-104b"] == pytest.approx(3 * math.log(2))  # three bits in nats
    assert show.claims["L2-105"] == around + elman
    assert show.claims["L2-106"] == around + 4 * elman
    assert show.claims["L2-107"] == (18 + 120) * 32 + 2 * block + 64
    assert show.claims["L2-108"] == [1000, 64]
    ((_, rows),) = show.tables.values()
    for sequence, query, answer in rows:
        assert sequence.startswith(f"{answer}, ") and answer < 8 and query == "?"


def test_part_2_tells_accuracy_bits_and_loss_apart(monkeypatch):
    """Every number of a run is another one: each table and claim shows its own."""
    accuracy, bits = [0.9 - 0.05 * n for n in range(9)], [2.0 + 0.1 * n for n in range(9)]
    run = recall.Run([8.0] * 100 + [4.0] * 99 + [5.0], accuracy, bits, {})
    monkeypatch.setattr(recall, "trained", lambda show, wanted: [[run]] * 4)
    show = run_parts(recall, [2])
    of_accuracy, of_bits = [rows for _, rows in show.tables.values()]
    for row in of_accuracy:
        assert row[2:] == [f"{x:.3f}" for x in (*accuracy, 4.01)]
    for row in of_bits:
        assert row[2:] == [f"{x:.2f}" for x in bits]
    assert show.claims["L2-112a"] == pytest.approx([0.5, 0.5])  # the least of all distances
    assert show.claims["L2-112b"] == pytest.approx([2.4, 2.4])


def test_two_keys_of_eight_are_no_more_than_twice_a_guess():
    assert not recall.beats_chance(fake_run(2 / 8))
    assert recall.beats_chance(recall.Run([], (0.1, 0.1, 0.26), (), {}))  # at the largest d
    assert not recall.beats_chance(recall.Run([], (1.0, 1.0, 0.24), (), {}))


@pytest.mark.parametrize(("quick", "expected"), [(False, 10), (True, 2)])
def test_part_4_measures_as_many_initialisations_as_it_says(monkeypatch, quick, expected):
    seeds = []
    fake = lambda task: seeds.append(task[1]) or [1.0] * len(task[2])  # noqa: E731
    monkeypatch.setattr(recall, "key_gradients", fake)
    run_parts(recall, [4], quick=quick)
    assert seeds == [*range(expected)] * 4  # for each model


def test_key_gradients_do_not_underflow(monkeypatch):
    """A contraction to 1e-3 a step leaves 1e-60 of a gradient after 20: float32 ends at 1e-38."""
    model = recall.new_model("Elman", 0)
    model.rnn.weight_hh_l0.data = 1e-3 * torch.eye(64)
    monkeypatch.setattr(recall, "new_model", lambda name, seed: model)
    near, far = recall.key_gradients(("Elman", 0, [1, 21]))
    assert 1e-63 < far / near < 1e-59


def test_part_5_takes_each_seeds_own_weights(monkeypatch):
    """Layer 2 looks at the key, in both heads at all d (seed 0), in all but one place (seed 1)."""
    looks = torch.full((2, 3, 2, 2), 0.1)  # (seeds, distances, layers, heads)
    looks[:, :, 1] = 0.995
    looks[1, 2, 1, 0], looks[1, :, 0, 1] = 0.5, 0.25
    gates_of = lambda seed: {f"L2-12{n}": 100 * seed + k for k, n in enumerate(names)}  # noqa: E731
    names, states = ("3a", "3b", "4a", "4b", "5a", "5b"), [{"w": 0}, {"w": 1}]
    loaded = []

    def inside(task):
        loaded.append(task)
        return gates_of(task[1]), [0.5] * 64

    def trained(show, wanted):
        return [[recall.Run([], (), (), state) for state in states]]

    monkeypatch.setattr(recall, "trained", trained)
    monkeypatch.setattr(recall, "attention_on_key", lambda task: looks[task[2]["w"]])
    monkeypatch.setattr(recall, "lstm_inside", inside)
    monkeypatch.setattr(recall, "draw_attention", lambda show, task: None)
    show = run_parts(recall, [5], seeds=2)
    assert loaded == [("LSTM b_f=1", 0, {"w": 0}), ("LSTM b_f=1", 1, {"w": 1})]
    assert show.seeds_of["L2-121a"] == [True, False]
    assert show.claims["L2-121b"] == pytest.approx([0.995] * 3)
    assert show.seeds_of["L2-121b"][1] == pytest.approx([0.995] * 3)
    assert show.claims["L2-122"] is True
    monkeypatch.setattr(recall, "LAYERS", 1)
    assert "L2-121a" not in run_parts(recall, [5], seeds=2).claims  # without a layer 2
    for id, value in gates_of(0).items():
        assert show.claims[id] == value and show.seeds_of[id] == [value, value + 100]
    ((_, rows),) = show.tables.values()
    largest = {row[0]: row[2:] for row in rows if row[1] == "max"}
    assert largest["layer 1, head 2"] == ["0.2500"] * 3
    assert largest["layer 2, head 1"] == ["0.9950"] * 3
    assert rows[-1] == ["1/(d+2)", "", "0.0833", "0.0192", "0.0098"]


def test_the_best_cell_stands_in_where_none_keeps(monkeypatch):
    """A forget gate at σ(1) = 0.73 holds nothing: no cell above 0.99, and the largest is shown."""
    monkeypatch.setattr(recall, "FAR", 4)
    monkeypatch.setattr(recall, "OPENED", 8)
    state = recall.new_model("LSTM b_f=1", 0).state_dict()
    numbers, forget = recall.lstm_inside(("LSTM b_f=1", 0, state))
    assert numbers["L2-123a"] == 0
    assert numbers["L2-123b"] == pytest.approx(max(forget)) and max(forget) > min(forget) + 0.1


def test_part_6_shows_the_key_before_the_control(monkeypatch):
    row = [0.1, 0.2, 0.3, 0.7, 0.8, 0.9]  # key at three d, then a random distractor
    monkeypatch.setattr(recall, "trained", lambda show, wanted: [[fake_run()]])
    monkeypatch.setattr(recall, "accuracy_after_cuts", lambda task: {("a", "甲"): row})
    ((header, rows),) = run_parts(recall, [6], seeds=1).tables.values()
    assert header[2:] == [f"{to}, d = {d}" for to in ("key", "random") for d in (10, 50, 100)]
    assert rows == [["a", "", *(f"{x:.3f}" for x in row)]]


def test_every_seed_draws_all_its_numbers_anew(few_tests, monkeypatch):
    """Ten seeds are ten experiments: weights, data, tests and controls all depend on the seed."""
    drawn, real = [], recall.stream
    monkeypatch.setattr(recall, "stream", lambda *name: drawn.append(name) or real(*name))
    for name, value in {"INSIDE": [2], "OPENED": 8, "FAR": 4}.items():
        monkeypatch.setattr(recall, name, value)
    run = recall.train(recall.Training("Transformer", 1, 2, 1e-3, 1, 7))
    recall.attention_on_key(("Transformer", 7, run.state))
    recall.accuracy_after_cuts(("Transformer", 7, run.state))
    recall.lstm_inside(("LSTM b_f=1", 7, recall.new_model("LSTM b_f=1", 7).state_dict()))
    recall.key_gradients(("LSTM b_f=1", 7, [2]))
    models = {("weights", name, 7) for name in ("Transformer", "LSTM b_f=1")}
    tests = {("test", d, 7) for d in (1, 2, 3, 4)}  # nor do two distances share their sequences
    others = {("data", "Transformer", 1, 2, 7), ("cut", 2, 7), ("gradient", 2, 7)}
    assert set(drawn) == models | tests | others


def test_information_is_never_below_0():
    """Independent draws by exact counts: 1e-16 below 0 is rounding, and is not shown."""
    for n in (3, 5, 6, 7):
        keys, answers = torch.tensor(list(product(range(n), range(n)))).T
        assert 0 <= recall.mutual_information(keys, answers) < 1e-12


@pytest.mark.parametrize(
    ("name", "value"),
    [("KEYS", 0), ("TESTED", [0, 5]), ("TESTED", [5, 119]), ("INSIDE", [5, 5]), ("NEAR", 119)]
    + [("TEST_SEQUENCES", 0), ("FAR", 0)],
)
def test_constants_just_outside_are_refused(monkeypatch, name, value):
    monkeypatch.setattr(recall, name, value)
    with pytest.raises(ValueError, match=f"^{name} must"):
        recall.check_constants()


def test_constants_at_the_edge_are_taken(monkeypatch):
    """MAX_LEN = 120 tokens hold a key, 118 distractors and `?`; one distance is a range too."""
    edges = {"KEYS": 2, "NEAR": 1, "LONG_ONLY": 118, "FAR": 118, "TEST_SEQUENCES": 2}
    for name, value in (edges | {"TESTED": [1, 118], "INSIDE": [118]}).items():
        monkeypatch.setattr(recall, name, value)
    recall.check_constants()


# ── processes ────────────────────────────────────────────────────────────────────────────────────
def settings_inside(task):
    tiny = torch.tensor(1e-40) * 1.0  # a denormal number, unless they are flushed
    return task, torch.get_num_threads(), tiny.item()


def test_a_task_runs_on_one_thread_without_denormals_and_leaves_both_as_they_were():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = list(map(recall.on_one_thread(settings_inside), [3, 1, 2]))
        assert found == [(3, 1, 0.0), (1, 1, 0.0), (2, 1, 0.0)]
        assert torch.get_num_threads() == 2
        assert settings_inside(0)[2] > 0
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_numbers_are_the_same_for_any_jobs_and_threads():
    tasks = [recall.Training(name, 1, 4, 1e-3, 4, 0) for name in NAMES]

    def run(jobs, threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return recall.in_processes(Recorder(jobs=jobs), recall.train, tasks, ("t", "t"))
        finally:
            torch.set_num_threads(before)

    one = run(1, 1)
    for other in (run(1, 2), run(2, 1)):
        for a, b in zip(one, other):
            assert a[:3] == b[:3]
            assert all(torch.equal(a.state[k], b.state[k]) for k in a.state)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX signals")
def test_a_killed_worker_is_reported_in_one_line():
    code = (
        "import importlib, os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "m = importlib.import_module('05_long_range_recall')\n"
        "from companion import Recorder\n"
        "die = lambda task: os.kill(os.getpid(), signal.SIGKILL)\n"
        "m.in_processes(Recorder(jobs=2), die, [1, 2], ('t', 't'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "killed" in done.stderr, done.stderr


def children(pid):
    """Processes of the session that pid leads, but not pid itself."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as file:
                state, _, _, session = file.read().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if session == str(pid) and entry != str(pid) and state != "Z":
            found.append(int(entry))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="counts processes in /proc")
def test_ctrl_c_in_training_leaves_no_process_and_no_file(tmp_path):
    script = str(ROOT / "05_long_range_recall.py")
    command = [sys.executable, script, "--jobs", "2", "--part", "2", "--figures", str(tmp_path)]
    command += ["--json", str(tmp_path / "out.json")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(children(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.2)  # two workers and joblib's tracker
    time.sleep(3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1] == "05_long_range_recall.py: interrupted"
    assert "Traceback" not in errors
    for _ in range(50):
        if not children(process.pid):
            break
        time.sleep(0.2)
    assert children(process.pid) == []
    assert list(tmp_path.iterdir()) == []


# ── the benchmark's straightforward version ──────────────────────────────────────────────────────
def test_a_padded_batch_has_the_loss_of_its_sequences_one_by_one():
    ids, targets = bench.padded(1, 9, recall.stream("padded"))
    assert ids.shape == targets.shape and ids.shape[0] == 64
    lengths = (ids != bench.PADDING).sum(dim=1)
    assert lengths.min() >= 3 and lengths.max() <= 11 and len(lengths.unique()) > 3
    for name in ("Elman", "LSTM b_f=1", "Transformer"):
        model = bench.plain_model(name)
        with torch.no_grad():
            together = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
            alone = [
                F.cross_entropy(model(row[None, :n])[:, -1], row[:1])
                for row, n in zip(ids, lengths)
            ]
        torch.testing.assert_close(together, torch.stack(alone).mean(), rtol=1e-4, atol=1e-5)
        assert all(row[n - 1] == 16 for row, n in zip(ids, lengths))


@pytest.mark.parametrize("name", NAMES)
def test_the_benchmark_gives_all_versions_the_same_weights(name):
    ours, ids = recall.new_model(name, 1), batch(4, 5)
    plain = bench.plain_model(name)
    plain.load_state_dict(bench.plain_weights(ours))
    torch.testing.assert_close(plain(ids)[:, -1], ours(ids))


def test_counted_operations_are_those_of_torch():
    """A forward pass of the plain recurrent cells and of our Transformer, by torch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    for name, d in product(("Elman", "LSTM b_f=1", "Transformer"), (3, 30)):
        model = recall.new_model(name, 0)
        ids, expected = batch(recall.BATCH, d), bench.matrix_flops(name, d) / 3
        with FlopCounterMode(display=False) as counter:
            if name == "Transformer":
                model(ids)
                T = d + 2  # the counter sees the logits, but not fused attention, 4 T² d a layer
                expected += recall.BATCH * (2 * 18 * 32 - 4 * T * T * 32 - 4 * T * 32)
            else:
                plain_twin(name, model.double())[0].rnn(model.embed(ids))
        assert counter.get_total_flops() == expected, (name, d)
