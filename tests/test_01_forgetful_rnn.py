"""Script 01 against closed forms: powers of two, geometric series, the chain rule by hand."""

import math
from companion import Recorder
from contextlib import contextmanager
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from conftest import load_script, run_parts
from hypothesis import given
from hypothesis import strategies as st

rnn = load_script("01_forgetful_rnn")


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


# ── §2.2 ─────────────────────────────────────────────────────────────────────────────────────────
def test_trajectory_is_powers_of_the_decay():
    eye = torch.eye(2, dtype=torch.float64)
    h = rnn.linear_rnn(rnn.two_ones(100), eye, rnn.DECAY * eye)
    assert h.shape == (101, 2)
    for t in range(101):
        assert h[t].tolist() == [0.5 ** (t - 3) if t >= 3 else 0, 0.5 ** (t - 4) if t >= 4 else 0]


def test_the_generous_readout_answers_plus_1_up_to_step_12():
    [(_, rows)] = run_parts(rnn, [1]).tables.values()
    answers = {row[0]: row[-1] for row in rows}
    assert [answers[t] for t in (1, 3, 4, 12, 13)] == ["-1", "-1", "+1", "+1", "-1"]


@given(seed=st.integers(0, 999))
def test_linear_rnn_by_matrix_powers(seed):
    """h_t = Σ_s W_hh^{t-s} W_hx x_s, with matrices that do not commute."""
    draw = np.random.default_rng(seed)
    x, W_hx, W_hh = (draw.normal(size=(n, 2)) for n in (6, 2, 2))
    h = rnn.linear_rnn(*(torch.tensor(a) for a in (x, W_hx, W_hh)))
    for t in range(7):
        power = np.linalg.matrix_power
        terms = [power(W_hh, t - s) @ W_hx @ x[s - 1] for s in range(1, t + 1)]
        np.testing.assert_allclose(h[t], sum(terms, np.zeros(2)), atol=1e-12)


@pytest.mark.parametrize(
    "dtype, count", [(torch.float16, 25), (torch.float32, 150), (torch.float64, 1075)]
)
def test_halvings_are_the_smallest_denormal_and_one_more(dtype, count):
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # 2^-149 in float32
    assert count == 1 - math.log2(smallest)
    assert rnn.halvings_until_zero(torch.tensor(1.0, dtype=dtype)) == count


# ── §2.3 ─────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("t", [1, 2, 10, 1000])
def test_noise_in_theory_is_a_sum_of_variances(t):
    variances = [rnn.NOISE**2 * rnn.DECAY ** (2 * s) for s in range(t)]
    assert math.isclose(rnn.contraction_std(t), math.sqrt(sum(variances)))
    assert math.isclose(rnn.integrator_std(t), math.sqrt(t * rnn.NOISE**2))


def test_noise_is_normal_repeats_and_is_new_at_every_step_and_run():
    x = rnn.noise(200, 300)
    assert torch.equal(x, rnn.noise(200, 300))
    assert abs(x.std() / rnn.NOISE - 1) < 0.01
    assert abs(x.mean()) < 3 * rnn.NOISE / math.sqrt(x.numel())
    assert x.unique().numel() == x.numel()
    assert abs((x[1:] * x[:-1]).mean() / rnn.NOISE**2) < 0.02


def test_noise_is_the_seeds_and_leaves_torchs_own_stream_alone(monkeypatch):
    monkeypatch.setattr(rnn, "SEED", 7)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    x = rnn.noise(5, 2)
    assert torch.equal(torch.get_rng_state(), state)
    draws = torch.Generator().manual_seed(7)
    assert torch.equal(x, rnn.NOISE * torch.randn(5, 2, generator=draws, dtype=torch.float64))


def test_latch_settles_where_its_equation_says():
    low, high = rnn.latch_fixed_point(0.0).item(), rnn.latch_fixed_point(1.0).item()
    for h in (low, high):
        assert math.isclose(h, sigmoid(10 * h - 5), rel_tol=1e-12)
    assert math.isclose(low + high, 1)  # the equation is symmetric about 1/2
    assert low < 0.01


@pytest.mark.parametrize("gain", [5.0, 10.0])
def test_latch_step_by_step(monkeypatch, gain):
    monkeypatch.setattr(rnn, "GAIN", gain)
    x = rnn.one_at(3, 6)
    assert x.flatten().tolist() == [0, 0, 1, 0, 0, 0]
    h, expected = rnn.latch(x), rnn.latch_fixed_point(0.0).item()
    assert math.isclose(expected, sigmoid(gain * expected - gain / 2), rel_tol=1e-12)
    for t in range(1, 7):
        expected = sigmoid(gain * expected + gain * (t == 3) - gain / 2)
        assert math.isclose(h[t, 0], expected, rel_tol=1e-12)


@pytest.mark.parametrize("distance", [1, 2, 7, 100])
def test_latch_gradient_is_the_product_of_its_slopes(distance):
    h, slopes = rnn.latch(rnn.one_at(3, 3))[-1].item(), 1.0
    for _ in range(distance):
        h = sigmoid(10 * h - 5)
        slopes *= 10 * h * (1 - h)
    assert math.isclose(rnn.latch_gradient(distance), slopes, rel_tol=1e-9)


# ── §2.4 ─────────────────────────────────────────────────────────────────────────────────────────
def test_hand_set_lstm_is_the_recurrence_of_the_lecture():
    """c_t = σ(20) c_{t-1} + σ(40 x_t - 20) · 1, unit by unit, and h_t = σ(20) tanh c_t."""
    x = rnn.two_ones(50) + rnn.noise(50, 2)
    h, c = rnn.run(rnn.hand_set_lstm(), x)
    expected = [0.0, 0.0]
    for t in range(50):
        for unit in range(2):
            write = sigmoid(40 * x[t, unit].item() - 20)
            expected[unit] = sigmoid(20) * expected[unit] + write * math.tanh(20)
            assert math.isclose(c[t, unit], expected[unit], rel_tol=1e-12)
            assert math.isclose(h[t, unit], sigmoid(20) * math.tanh(expected[unit]), rel_tol=1e-12)


def test_many_runs_at_once_are_the_runs_one_by_one():
    x = rnn.noise(20, 3, 2)
    _, together = rnn.run(rnn.hand_set_lstm(), x)
    for n in range(3):
        _, alone = rnn.run(rnn.hand_set_lstm(), x[:, n])
        assert torch.allclose(together[:, n], alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize("distance", [1, 10, 1000])
def test_cell_gradient_is_the_forget_gate_to_the_power_of_the_distance(distance):
    assert math.isclose(rnn.cell_gradient(distance), sigmoid(20) ** distance, rel_tol=1e-12)


# ── the whole script ─────────────────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def shown():
    """All parts as published."""
    return run_parts(rnn)


def test_every_number_agrees(shown):
    assert set(shown.verdicts.values()) == {"ok"}


def test_tables_are_whole(shown):
    _, rows = shown.tables["The slide's trajectory"]
    assert [row[0] for row in rows] == [*range(1, 15), 100]
    assert [row[-1] for row in rows] == ["-1"] * 3 + ["+1"] * 9 + ["-1"] * 3
    _, rows = shown.tables["The latch's gradient"]
    assert rows[-1] == [100, "2.205e-115", "2.228e-115"]
    _, rows = shown.tables["The gradient back to what was written"]
    assert [row[0] for row in rows] == [1, 10, 100, 1000]
    assert rows[-1][1] == rows[-1][2] == "0.999997939"
    assert shown.figures == ["01_trajectory", "01_dilemma"]
    assert "0% of 4096 written latches and 0% of the unwritten" in shown.notes[0]


@pytest.mark.slow
def test_a_soft_latch_is_flipped_by_the_noise(monkeypatch):
    monkeypatch.setattr(rnn, "GAIN", 5.0)
    note = run_parts(rnn, [3]).notes[0]
    x = rnn.noise(1003, 4096)
    ends = rnn.latch(rnn.one_at(3, 1003) + x)[-1], rnn.latch(x)[-1]
    wrong = (ends[0] < 0.5).sum() / 40.96, (ends[1] > 0.5).sum() / 40.96
    assert f" {wrong[0]:.3g}% of 4096 written" in note
    assert f" {wrong[1]:.3g}% of the unwritten" in note
    assert 10 < wrong[0] < 16


@pytest.mark.parametrize(
    "part, name, value",
    [
        (1, "DECAY", 1.5),
        (1, "STEPS", 4),
        (1, "THRESHOLD", -1),
        (2, "NOISE", -1.0),
        (2, "RUNS", 1),
        (2, "LONG", 0),
        (3, "GAIN", 4.0),
        (3, "STEPS", 0),
        (4, "LONG", 0),
    ],
)
def test_a_constant_that_makes_no_sense_is_named(monkeypatch, part, name, value):
    monkeypatch.setattr(rnn, name, value)
    with pytest.raises(ValueError, match=rf"{name}.* got .*{value}"):
        run_parts(rnn, [part])


@pytest.mark.parametrize("name, value", [("DECAY", 0.9), ("LONG", 2), ("GAIN", 6.0), ("STEPS", 5)])
def test_constants_can_be_edited(monkeypatch, name, value):
    for constant, small in {"RUNS": 64, "LONG": 20, name: value}.items():
        monkeypatch.setattr(rnn, constant, small)
    assert len(run_parts(rnn).claims) == 25 - (rnn.STEPS < 100)  # the slide asks at step 100


def test_the_slides_question_is_asked_at_its_own_step(monkeypatch):
    monkeypatch.setattr(rnn, "STEPS", 200)
    monkeypatch.setattr(rnn, "DECAY", 0.95)
    show = run_parts(rnn, [1])
    assert show.claims["L2-015"] == 137 and show.claims["L2-016"] == 1


def test_memory_at_another_decay_lasts_as_the_closed_form_says(monkeypatch):
    monkeypatch.setattr(rnn, "DECAY", 0.9)
    # min(h_1, h_2) = h_1 = 0.9^(t-3) > 0.001 up to t = 3 + log(0.001)/log(0.9) = 68.56
    assert run_parts(rnn, [1]).claims["L2-015"] == 68


def test_figures_draw_what_they_say(monkeypatch):
    drawn = {}

    @contextmanager
    def figure(self, name, rows=1, columns=1, size=None):
        drawn[name] = [MagicMock() for _ in range(rows * columns)]
        yield drawn[name] if columns > 1 else drawn[name][0]

    monkeypatch.setattr(Recorder, "figure", figure)
    monkeypatch.setattr(rnn, "LONG", 30)
    run_parts(rnn, [1, 4])
    calls = [ax.plot.call_args_list for ax in drawn["01_trajectory"] + drawn["01_dilemma"]]
    first, memory, spread, gradient = ({c.kwargs["label"]: c.args[1] for c in one} for one in calls)
    assert first["$h_1$"][:5].tolist() == [0, 0, 1, 0.5, 0.25]  # steps 1, 2, …
    assert memory["contraction"][4] == gradient["contraction"][4] == 0.5**5
    assert memory["latch"][0] == rnn.latch(rnn.one_at(3, 4))[-1, 0]
    assert math.isclose(gradient["latch"][29], rnn.latch_gradient(30), rel_tol=1e-9)
    assert math.isclose(gradient["LSTM cell"][29], rnn.cell_gradient(30), rel_tol=1e-12)
    for name, theory in ("integrator", rnn.integrator_std), ("contraction", rnn.contraction_std):
        assert all(abs(spread[name][t - 1] / theory(t) - 1) < 0.15 for t in (1, 10, 30))
    _, c = rnn.run(rnn.hand_set_lstm(), rnn.noise(30, 256, 2))
    assert torch.equal(spread["LSTM cell"], c.flatten(1).std(dim=1))


def test_table_cells(shown):
    assert shown.tables["The slide's trajectory"][1][4] == [5, "0.25", "0.5", "0.25", "+1"]
    [rows] = [rows for title, (_, rows) in shown.tables.items() if title.startswith("Standard dev")]
    assert [row[1] for row in rows] == [rnn.integrator_std(row[0]) for row in rows]
    assert [row[3] for row in rows] == [rnn.contraction_std(row[0]) for row in rows]
    _, rows = shown.tables["The gradient back to what was written"]
    assert [row[3] for row in rows] == [f"{rnn.latch_gradient(row[0]):.2e}" for row in rows]


def test_claims_of_part_4_are_of_the_noisy_run_and_the_worse_unit(monkeypatch):
    T = rnn.LONG + 4
    h, c = torch.zeros(T, 2), torch.ones(T, 2)
    h[3:] = 1
    noisy = h.clone()
    noisy[7, 0], c[-1] = 0, torch.tensor([1.25, 0.5])
    runs = iter([(h, c), (noisy, c)])
    monkeypatch.setattr(rnn, "run", lambda cell, x: next(runs))
    monkeypatch.setattr(rnn, "draw_dilemma", lambda show: None)
    claims = run_parts(rnn, [4]).claims
    assert claims["L2-031"] == [T, T - 1]
    assert claims["L2-032"] == 0.5
    assert claims["L2-033"] == rnn.integrator_std(T)


def test_too_much_noise_flips_some_latches(monkeypatch):
    monkeypatch.setattr(rnn, "NOISE", 0.25)
    assert run_parts(rnn, [3]).claims["L2-027"] is False


def test_ratios(monkeypatch):
    show = run_parts(rnn, [2])
    (_, left), (_, rows) = show.tables.values()
    assert left == [
        [t, "1", f"{0.5**t:.3g}"] for t in (1, 10, 100, 1000)
    ]  # the integrator keeps, the contraction forgets
    ratios = [[(a / i).item(), (b / c).item()] for _, i, a, c, b in rows[1:]]
    assert show.claims["L2-022"] == [ratio for both in ratios for ratio in both]
