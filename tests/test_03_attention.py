"""03_attention.py against torch's own attention, brute force, closed forms, and other routes."""

import json
import math
import re
from companion import Recorder
from itertools import permutations

import numpy as np
import pytest
import torch
from conftest import load_script, run_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from lm_models import sinusoidal_positions

F64 = torch.float64
INF = math.inf


@pytest.fixture
def att(script):
    return script("03_attention")


@pytest.fixture
def small(att, monkeypatch):
    """The script with few queries: part 4 in a blink."""
    monkeypatch.setattr(att, "QUERIES", 960)
    monkeypatch.setattr(att, "LONG_QUERIES", 960)
    monkeypatch.setattr(att, "D_K", [1, 4, 16])
    monkeypatch.setattr(att, "LENGTHS", [3, 5])
    return att


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def softmax(scores):
    """In plain Python, without torch."""
    e = [math.exp(s) for s in scores]
    return [x / sum(e) for x in e]


def columns(show, title):
    """A table's columns by header, from the part of its title that does not change."""
    (found,) = [table for name, table in show.tables.items() if title in name]
    header, rows = found
    return header, list(zip(*rows))


# ── §3.2–3.6 ─────────────────────────────────────────────────────────────────────────────────────
sizes = st.integers(1, 6)


@settings(max_examples=15, deadline=None)
@given(T=sizes, d=sizes, d_k=sizes, d_v=sizes, seed=st.integers(0, 999))
def test_loop_and_matrix_form_are_torchs_causal_attention(script_module, T, d, d_k, d_v, seed):
    X = drawn(T, d, seed=seed)
    W_q, W_k, W_v = (drawn(d, n, seed=seed + i) for i, n in enumerate((d_k, d_k, d_v), start=1))
    torchs = F.scaled_dot_product_attention(X @ W_q, X @ W_k, X @ W_v, is_causal=True)
    matrix = script_module.attention(X, W_q, W_k, W_v, script_module.causal_mask(T))
    torch.testing.assert_close(script_module.attention_loop(X, W_q, W_k, W_v), torchs)
    torch.testing.assert_close(matrix, torchs)


@pytest.fixture(scope="module")
def script_module():
    """The same module for hypothesis, which wants no function-scoped fixture."""
    return load_script("03_attention")


def test_one_row_by_hand(att):
    """t = 2 of two positions, d = 2, d_k = 2: s = [k_1·q_2, k_2·q_2] / √2."""
    X = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=F64)
    W_q = torch.tensor([[0.5, 0.0], [0.0, 1.0]], dtype=F64)
    W_k = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=F64)
    W_v = torch.tensor([[2.0], [1.0]], dtype=F64)
    q_2, k, v = [1.5, -1.0], [[2.0, 1.0], [-1.0, 3.0]], [4.0, 5.0]
    a = softmax([(q_2[0] * kj[0] + q_2[1] * kj[1]) / math.sqrt(2) for kj in k])
    expected = a[0] * v[0] + a[1] * v[1]
    for got in (
        att.attention(X, W_q, W_k, W_v, torch.zeros(2, 2, dtype=F64)),
        att.attention_loop(X, W_q, W_k, W_v),
    ):
        assert got[1].item() == pytest.approx(expected, rel=1e-14)
    assert att.attention_loop(X, W_q, W_k, W_v)[0].item() == 4.0  # position 1 has only itself


def test_causal_mask_is_zero_on_and_below_the_diagonal(att):
    assert att.causal_mask(3).tolist() == [[0, -INF, -INF], [0, 0, -INF], [0, 0, 0]]


# ── part 1 ───────────────────────────────────────────────────────────────────────────────────────
def test_random_matrices_are_one_stream_in_the_order_q_k_v(att):
    torch.manual_seed(0)
    assert torch.equal(torch.stack(att.random_matrices(4, torch.Generator().manual_seed(0))),
                       torch.randn(3, 4, 4, dtype=F64))  # fmt: skip


@pytest.mark.parametrize("seed", [3, 5])
def test_swap_against_the_sums_written_out(att, seed):
    """Weights, and outputs with and without the swap, by loops over the four positions."""
    X = att.slide_inputs()
    assert X.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 1]]
    W_q, W_k, W_v = att.random_matrices(4, torch.Generator().manual_seed(seed))

    def outputs(order):
        rows, weights = [], []
        for t in range(4):
            keys = [order[j] for j in range(t + 1)]
            q = W_q.T @ X[order[t]]
            weights.append(softmax([float(q @ (W_k.T @ X[j])) / 2 for j in keys]))
            rows.append(sum(a * (W_v.T @ X[j]) for a, j in zip(weights[-1], keys)))
        return rows, weights[3]

    (old, old_weights), (new, new_weights) = outputs([0, 1, 2, 3]), outputs([0, 2, 1, 3])
    before, after, at_position, of_token = att.swap(X, att.causal_mask(4), seed)
    assert before.tolist() == pytest.approx(old_weights) and after.tolist() == pytest.approx(
        new_weights
    )
    assert after.tolist() == pytest.approx([old_weights[j] for j in (0, 2, 1, 3)])
    moved = [(new[t] - old[t]).abs().max().item() for t in range(4)]
    followed = [(new[now] - old[was]).abs().max().item() for was, now in enumerate((0, 2, 1, 3))]
    assert at_position.tolist() == pytest.approx(moved, abs=1e-14)
    assert of_token.tolist() == pytest.approx(followed, abs=1e-14)
    assert min(at_position[1:3]) > 1e-3 and at_position[3] < 1e-14


def test_without_a_mask_each_token_takes_its_output_along(att):
    X, nothing = att.slide_inputs(), torch.zeros(4, 4, dtype=F64)
    for seed in range(5):
        _, _, at_position, of_token = att.swap(X, nothing, seed)
        assert of_token.max() < 1e-13 < 1e-3 < at_position[1:3].min()


def test_part_1_gives_the_lectures_numbers(att):
    show = run_parts(att, parts=[1])
    assert set(show.verdicts.values()) == {"ok"}
    assert show.claims["L2-052"] == pytest.approx([0.1 * 1, 0.2 * 1, 0.6 * 2, 0.1 * 1])
    assert len(show.seeds_of["L2-053"]) == len(show.seeds_of["L2-056"]) == 10
    weights, swapped = show.seeds_of["L2-054"], show.seeds_of["L2-055"]
    assert weights[0] == show.claims["L2-054"] and weights[1] != weights[0]
    assert [[w[j] for j in (0, 2, 1, 3)] for w in weights] == [pytest.approx(w) for w in swapped]
    assert max(show.seeds_of["L2-053"]) < 1e-14
    (note,) = show.notes
    assert float(re.search(r"\(to (\S+)\)", note)[1]) < 1e-14  # the weights move with their tokens
    header, cells = columns(show, "Largest change of the output")
    assert [float(x) < 1e-12 for x in cells[4]] == [True] * 4  # of x_t, no mask
    assert [float(x) < 1e-12 for x in cells[2]] == [True, False, False, True]  # of x_t, causal
    assert [float(x) < 1e-12 for x in cells[1]] == [True, False, False, True]  # at t, causal


def test_seeds_start_with_the_scripts_own(att, monkeypatch):
    assert att.seeds_from(Recorder(), 3) == [0, 1, 2]
    assert att.seeds_from(Recorder(seeds=2), 3) == [0, 1]
    monkeypatch.setattr(att, "SEED", 7)
    assert att.seeds_from(Recorder(), 3) == [7, 0, 1, 2]


# ── part 2 ───────────────────────────────────────────────────────────────────────────────────────
def test_race_compares_both_forms_on_one_draw(att, monkeypatch):
    difference, loop, matrix = att.race(9, seed=1)
    assert difference < 1e-14 and loop > 0 and matrix > 0
    assert att.race(9, seed=1)[0] == difference
    real = att.attention
    monkeypatch.setattr(att, "attention", lambda *given: real(*given) + torch.eye(9, 32) * 2)
    assert att.race(9, seed=1)[0] == pytest.approx(2)  # the largest difference, not the mean


def test_race_draws_words_of_length_1_then_the_matrices(att, monkeypatch):
    raced = []
    monkeypatch.setattr(att, "attention", lambda *given: raced.append(given) or torch.zeros(9, 32))
    att.race(9, seed=1)
    X, *matrices, M = raced[0]
    stream = torch.Generator().manual_seed(1)
    for array, shape, scale in (X, (9, 32), 32**-0.5), *((W, (32, 32), 1) for W in matrices):
        expected = scale * torch.randn(shape, generator=stream, dtype=F64)
        torch.testing.assert_close(array, expected)
    assert torch.equal(M, att.causal_mask(9)) and len(matrices) == 3


def test_timed_keeps_the_fastest_run(att, monkeypatch):
    clock = iter([0.0, 5.0, 10.0, 12.0, 20.0, 29.0])
    monkeypatch.setattr(att.time, "perf_counter", lambda: next(clock))
    assert att.timed(lambda: "result", runs=3) == ("result", 2.0)


def test_race_times_as_many_runs_as_the_title_says(small, monkeypatch):
    calls = []
    monkeypatch.setattr(small, "RUNS", 4)
    monkeypatch.setattr(
        small, "timed", lambda compute, runs: (calls.append(runs), compute())[1:] + (1.0,)
    )
    show = run_parts(small, parts=[2], seeds=2)
    (title,) = show.tables
    assert "(loop: of 2, matrix: of 8)" in title
    assert calls == [1, 4] * 2 * len(small.LENGTHS)


def test_part_2_tabulates_each_length(small, monkeypatch):
    runs = {(3, 0): (1e-16, 4.0, 0.5), (3, 1): (3e-16, 2.0, 1.0),
            (5, 0): (2e-16, 9.0, 0.2), (5, 1): (4e-16, 8.0, 0.1)}  # fmt: skip
    monkeypatch.setattr(small, "race", lambda T, seed: runs[T, seed])
    show = run_parts(small, parts=[2], seeds=2)
    _, (T, scores, difference, loop, matrix, faster) = columns(show, "attention_loop")
    assert T == (3, 5) and scores == (1 + 2 + 3, 1 + 2 + 3 + 4 + 5)
    assert difference == ("3.0e-16", "4.0e-16") and faster == ("4", "80")
    assert loop == ("2000.00", "8000.00") and matrix == ("500.000", "100.000")
    assert show.claims == {"L2-063": 2e-16, "L2-064": 80.0}
    assert show.seeds_of["L2-063"] == [2e-16, 4e-16]


# ── part 3 ───────────────────────────────────────────────────────────────────────────────────────
def test_row_sums_by_loops(att):
    X, (W_q, W_k, _) = att.slide_inputs(), att.random_matrices(4, torch.Generator().manual_seed(5))
    S = [[float((W_q.T @ x) @ (W_k.T @ y)) / 2 for y in X] for x in X]
    of_columns = list(zip(*(softmax(column) for column in zip(*S))))
    by_rows, by_columns = att.row_sums(5)
    assert by_rows.tolist() == pytest.approx([1] * 4)
    assert by_columns.tolist() == pytest.approx([sum(row) for row in of_columns])
    assert by_columns.sum().item() == pytest.approx(4) and (by_columns - 1).abs().max() > 0.01


MAY_LOOK = {  # 1-based: may position t look at j?
    "none": lambda t, j: True,
    "A": lambda t, j: j >= t,
    "B": lambda t, j: j <= t,
    "C": lambda t, j: j == t,
}


@pytest.mark.parametrize("name", MAY_LOOK)
def test_masks_are_the_slides_and_cut_exactly_what_they_forbid(att, name):
    may_look = [[MAY_LOOK[name](t, j) for j in range(1, 5)] for t in range(1, 5)]
    M = att.masks()[name]
    assert M.tolist() == [[0 if yes else -INF for yes in row] for row in may_look]
    W = att.random_matrices(4, torch.Generator().manual_seed(2))
    changes = att.influence(lambda X: att.attention(X, *W, M), att.slide_inputs())
    assert (changes != 0).tolist() == may_look
    assert att.who(changes[1]) == [j for j in range(1, 5) if MAY_LOOK[name](2, j)]


@pytest.mark.parametrize("lang, none", [("en", "none"), ("zh", "无")])
def test_each_row_of_the_mask_table_is_its_masks(att, lang, none):
    show = run_parts(att, parts=[3], seeds=1, lang=lang)
    _, (masks, *nudged) = columns(show, "x_2'")
    assert masks == (none, "A", "B", "C")
    seen = [[j for j, x in enumerate(row, start=1) if x != "0"] for row in zip(*nudged)]
    assert seen == [[j for j in range(1, 5) if rule(2, j)] for rule in MAY_LOOK.values()]


def test_influence_of_a_linear_map_is_its_matrix(att):
    """f(X) = B X moves output t by half of B[t, j] when input j moves by one half."""
    B, X = drawn(3, 3, seed=1), drawn(3, 2, seed=2)
    torch.testing.assert_close(att.influence(lambda X: B @ X, X), 0.5 * B.abs())


def test_influence_is_the_largest_component(att):
    stretch = torch.tensor([1.0, 6.0], dtype=F64)
    changes = att.influence(lambda X: X * stretch, drawn(2, 2))
    torch.testing.assert_close(changes, 3 * torch.eye(2, dtype=F64))


def test_influence_nudges_upwards(att):
    """(x + 1/2)² - x² = x + 1/4."""
    ones = torch.ones(2, 3, dtype=F64)
    torch.testing.assert_close(att.influence(torch.square, ones), 1.25 * torch.eye(2, dtype=F64))


def test_zeroed_weights_are_the_masked_ones_times_what_is_left(att):
    X, (W_q, W_k, _) = drawn(5, 3), att.random_matrices(3, torch.Generator().manual_seed(1))
    M = att.causal_mask(5)
    zeroed, masked = att.zeroed_after(X, W_q, W_k, M), att.attention_weights(X, W_q, W_k, M)
    assert (zeroed.sum(dim=1)[:4] < 1 - 1e-3).all() and zeroed.sum(dim=1)[
        4
    ].item() == pytest.approx(1)
    torch.testing.assert_close(zeroed / zeroed.sum(dim=1, keepdim=True), masked)
    assert (zeroed.triu(1) == 0).all()


def test_part_3_gives_the_lectures_answers(att):
    show = run_parts(att, parts=[3], seeds=4)
    assert set(show.verdicts.values()) == {"ok"}
    by_columns = [att.row_sums(seed)[1] for seed in range(4)]
    largest = [max(abs(x - 1) for x in sums.tolist()) for sums in by_columns]
    assert show.seeds_of["L2-066a"] == pytest.approx(largest)
    assert show.claims["L2-066a"] == pytest.approx(largest[0])
    header, cells = columns(show, "What the weights")
    assert [sum(map(float, row[:4])) for row in zip(*cells[1:])] == pytest.approx([4, 4], abs=2e-3)
    _, cells = columns(show, "-inf before the softmax")
    assert cells[5] == ("[1, 2]", "[1, 2, 3, 4]")
    assert [float(column[0]) for column in cells[1:5]] == [1, 1, 1, 1]
    assert [float(column[1]) < 1 for column in cells[1:5]] == [True, True, True, False]


@pytest.mark.parametrize("wrong", ["A", "C"])
def test_the_answer_is_not_b_if_b_is_another_mask(att, monkeypatch, wrong):
    masks = att.masks()
    monkeypatch.setattr(att, "masks", lambda: masks | {"B": masks[wrong]})
    show = run_parts(att, parts=[3], seeds=1)
    assert show.claims["L2-067"] is False and show.claims["L2-068"] is False


# ── part 4 ───────────────────────────────────────────────────────────────────────────────────────
def test_concentration_of_known_distributions(att):
    assert att.concentration(torch.zeros(3, 8, dtype=F64)) == pytest.approx((1 / 8, math.log(8)))
    one_hot = torch.tensor([[0.0, -INF, -INF]], dtype=F64)
    assert att.concentration(one_hot) == (1.0, 0.0)  # 0 ln 0 counts as 0
    quarters = torch.tensor([math.log(3), 0.0], dtype=F64)  # weights 3/4 and 1/4
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert att.concentration(quarters) == pytest.approx((0.75, entropy))
    both = torch.stack([quarters, torch.zeros(2, dtype=F64)])
    means = (0.75 + 0.5) / 2, (entropy + math.log(2)) / 2
    assert att.concentration(both) == pytest.approx(means)
    assert att.uniform_entropy(32) == pytest.approx(math.log(32), rel=1e-14)


@pytest.mark.parametrize("d_k", [1, 16, 64])
def test_saturation_by_another_route(att, monkeypatch, d_k):
    """Given q, the scores q·k are N(0, |q|²): |q| is a chi with d_k degrees, no vectors needed."""
    monkeypatch.setattr(att, "QUERIES", 6400)
    monkeypatch.setattr(att, "LONG_QUERIES", 6400)
    random = np.random.default_rng(d_k)
    scores = np.sqrt(random.chisquare(d_k, size=(6400, 1))) * random.standard_normal((6400, 32))
    std, *four = att.saturation(d_k, seed=0)
    assert std == pytest.approx(math.sqrt(d_k), rel=0.05)
    expected = []
    for S in scores, scores / math.sqrt(d_k):
        p = np.exp(S - S.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        entropy = -(p * np.log(p + 1e-300)).sum(axis=1).mean()
        expected += [p.max(axis=1).mean(), entropy]
    assert four == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(("d_k", "sequences"), [(1, 3), (64, 3), (65, 2)])
def test_saturation_draws_queries_then_keys_and_fewer_long_ones(att, monkeypatch, d_k, sequences):
    monkeypatch.setattr(att, "QUERIES", 96)
    monkeypatch.setattr(att, "LONG_QUERIES", 64)
    seen = []
    monkeypatch.setattr(att, "concentration", lambda S: seen.append(S) or (0, 0))
    att.saturation(d_k, seed=4)
    draws = torch.Generator().manual_seed(4)
    Q, K = (torch.randn(sequences, 32, d_k, generator=draws) for _ in range(2))
    S = torch.einsum("nqd,nkd->nqk", Q, K)
    torch.testing.assert_close(seen, [S, S * d_k**-0.5])


def test_softmax_view_takes_the_first_numbers_of_one_draw(small):
    view = small.softmax_view()
    assert json.loads(json.dumps(view)) == {**view, "means": [list(m) for m in view["means"]]}
    assert view["d_k"] == [1, 2, 4, 8, 16]  # powers of two up to the largest of D_K
    assert view["means"] == [small.saturation(d_k, 0)[1:] for d_k in view["d_k"]]
    draws = torch.Generator().manual_seed(0)
    q, k = torch.randn(16, generator=draws), torch.randn(32, 16, generator=draws)
    for d_k, scores in zip(view["d_k"], view["scores"]):
        assert scores == pytest.approx([sum(q[:d_k] * key[:d_k]).item() for key in k], abs=1e-5)


def test_saturation_table_spreads_over_seeds(small):
    show = Recorder(seeds=3, edited=["QUERIES"])
    entropies = small.saturation_table(show)
    runs = [[small.saturation(d_k, seed) for d_k in (1, 4, 16)] for seed in range(3)]
    per_seed = torch.tensor(runs, dtype=F64)  # (3, 3, 5)
    torch.testing.assert_close(entropies, torch.stack([per_seed[0, :, 2], per_seed[0, :, 4]]))
    assert show.claims["L2-057"] == 32 and show.claims["L2-058"] == pytest.approx(math.log(32))
    assert show.seeds_of["L2-059a"] == per_seed[:, :, 4].tolist()
    assert show.seeds_of["L2-059b"] == per_seed[:, :, 3].tolist()
    for id in "L2-059a", "L2-059b", "L2-062":
        assert show.claims[id] == show.seeds_of[id][0]
    ratios = [[run[n][0] / (1, 2, 4)[n] for n in range(3)] for run in runs]
    assert show.seeds_of["L2-062"] == [pytest.approx(one) for one in ratios]
    _, cells = columns(show, "Softmax over 32 keys")
    assert cells[0] == (1, 4, 16) and cells[1] == ("1.00", "2.00", "4.00")
    for which, column in enumerate(cells[2:]):
        for n, cell in enumerate(column):
            values = [run[n][which] for run in runs]
            assert cell == f"{values[0]:.3f} ±{(max(values) - min(values)) / 2:.3f}"


def test_saturates_wants_growth_up_to_one_hot(att):
    def run(largest, entropy):
        return torch.tensor([[0.0, a, b, 0.0, 0.0] for a, b in zip(largest, entropy)])

    assert att.saturates(run([0.1, 0.5, 0.95], [3, 1, 0.1])) is True
    assert att.saturates(run([0.1, 0.05, 0.95], [3, 1, 0.1])) is False
    assert att.saturates(run([0.1, 0.5, 0.95], [3, 3.1, 0.1])) is False
    assert att.saturates(run([0.1, 0.5, 0.85], [3, 1, 0.1])) is False
    assert att.saturates(run([0.1, 0.5, 0.95], [3, 1, 0.3])) is False
    assert att.saturates(run([0.5, 0.5, 0.95], [3, 1, 0.1])) is False  # standing still is no growth
    assert att.saturates(run([0.1, 0.5, 0.95], [1, 1, 0.1])) is False
    assert att.saturates(run([0.1, 0.5, 0.9], [3, 1, 0.1])) is False  # past them, not up to them
    assert att.saturates(run([0.1, 0.5, 0.95], [3, 1, 0.2])) is False


@pytest.mark.parametrize("lead", [0, 1, 5, 32])
def test_slopes_by_autograd_formula_and_finite_differences(att, lead):
    p, by_autograd, by_formula = att.slopes(lead)
    p_2 = 1 / (math.exp(lead) + 31)
    assert p.tolist() == pytest.approx([math.exp(lead) * p_2] + [p_2] * 31)
    torch.testing.assert_close(by_autograd, by_formula, rtol=1e-9, atol=1e-25)
    steepest = by_autograd[1].abs().max().item()
    assert steepest == pytest.approx(p_2 * (1 - p_2), rel=1e-9, abs=0)
    h, scores = 1e-6, [float(lead)] + [0.0] * 31
    for j in 0, 1, 31:
        up, down = ([s + sign * h * (i == j) for i, s in enumerate(scores)] for sign in (1, -1))
        slope = [(a - b) / (2 * h) for a, b in zip(softmax(up), softmax(down))]
        assert by_formula[:, j].tolist() == pytest.approx(slope, abs=1e-9)


def test_slope_table_claims_the_second_weights_row(att):
    show = Recorder()
    att.slope_table(show)
    for id, lead in ("L2-060", 1), ("L2-061", 32):
        p_2 = 1 / (math.exp(lead) + 31)
        assert show.claims[id] == pytest.approx(p_2 * (1 - p_2), rel=1e-9, abs=0)
    _, (leads, p_1, p_2, autograd, formula) = columns(show, "Softmax of [Δ")
    assert leads == (0, 1, 2, 4, 8, 16, 32) and autograd == formula
    for lead, slope in zip(leads, autograd):
        p = 1 / (math.exp(lead) + 31)
        assert float(slope) == pytest.approx(p * (1 - p), rel=1e-3, abs=0)
    assert float(p_1[1]) == pytest.approx(math.e / (math.e + 31), abs=1e-6)
    assert float(p_2[1]) == pytest.approx(1 / (math.e + 31), rel=1e-2)


def test_exercise_1_in_closed_form(att):
    show = Recorder()
    att.exercise_1(show)
    assert set(show.verdicts.values()) == {"ok"}
    for factor, weights, output in (1, "L2-154", "L2-155"), (4, "L2-156", "L2-157"):
        e, e2 = math.exp(factor), math.exp(2 * factor)
        a = [x / (2 + e + e2) for x in (1, e, e2, 1)]
        assert show.claims[weights] == pytest.approx(a)
        assert show.claims[output] == pytest.approx([a[0], a[1], 2 * a[2], a[3]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_keys_drawn_in_pieces_are_the_keys_of_one_draw(att, monkeypatch, dtype):
    monkeypatch.setattr(att, "QUERIES", 450)  # two pieces of 200, one of 50
    monkeypatch.setattr(att, "LONG_QUERIES", 450)
    torch.manual_seed(0)
    q, k = torch.randn(450, 64, dtype=dtype), torch.randn(450, 32, 64, dtype=dtype)
    torch.testing.assert_close(att.own_keys(0, dtype), torch.einsum("nd,nkd->nk", q, k))


def test_exercise_4_scales_the_same_scores(small):
    show = Recorder(seeds=3, edited=["QUERIES"])
    scores = small.exercise_4(show)
    raw = [small.own_keys(seed, F64 if seed == 0 else torch.float32) for seed in range(3)]
    for n, c in enumerate((1, 1 / 8, 1 / 64)):
        torch.testing.assert_close(scores[n], raw[0] * c)
        assert show.claims["L2-163"][n] == pytest.approx(raw[0].std().item() * c)
        id = f"L2-{164 + n}"
        per_seed = [small.concentration(c * S) for S in raw]
        assert [tuple(x) for x in show.seeds_of[id]] == [pytest.approx(x) for x in per_seed]
        assert show.claims[id] == show.seeds_of[id][0]
    assert show.claims["L2-167"] == pytest.approx(math.log(32))
    _, cells = columns(show, "Exercise 4")
    for n, c in enumerate((1, 1 / 8, 1 / 64)):
        for which, column in (0, cells[3]), (1, cells[5]):  # largest weight, entropy
            values = [small.concentration(c * S)[which] for S in raw]
            assert column[n] == f"{min(values):.4f} … {max(values):.4f}"
    assert cells[4][2] == f"{small.concentration(raw[0] / 64)[1]:.4f}"


@pytest.mark.slow
def test_part_4_gives_the_lectures_numbers(att):
    show = run_parts(att, parts=[4])
    assert set(show.verdicts.values()) == {"ok"} and len(show.claims) == 17


# ── part 5 ───────────────────────────────────────────────────────────────────────────────────────
def test_parameters_are_those_of_torchs_multi_head_attention(att, monkeypatch):
    show = run_parts(att, parts=[5])
    assert set(show.verdicts.values()) == {"ok"}
    torchs = [sum(p.numel() for p in nn.MultiheadAttention(16, h).parameters()) for h in att.HEADS]
    assert show.claims["L2-069"] == torchs
    _, cells = columns(show, "Parameters")
    assert cells[0] == (1, 2, 4, 8) and cells[1] == (16, 8, 4, 2)
    assert [sum(row) for row in zip(*cells[2:6])] == list(cells[6]) == list(cells[7])
    _, cells = columns(show, "Two hand-set heads")
    assert [int(x) for x in cells[1]] == [1, 1, 2, 3, 4, 5, 6, 7]
    assert [int(x) for x in cells[3]] == [1] * 8
    assert cells[5] == ("—", "1.00", *["0.50"] * 6)  # nothing stands before the first position
    assert cells[6] == ("1.00", "1.00", *["0.50"] * 6)
    (note,) = show.notes
    assert float(re.search(r"\(to (\S+)\)", note)[1]) < 1e-12  # both words arrive unmixed
    monkeypatch.setattr(att, "SHARPNESS", 1.0)
    (note,) = run_parts(att, parts=[5]).notes
    assert note.startswith(
        "With so little SHARPNESS the two heads mix in other words (off by up to"
    )


def test_parameters_are_counted_not_computed(att, monkeypatch):
    monkeypatch.setattr(att, "count", lambda module: 7)
    assert run_parts(att, parts=[5]).claims["L2-069"] == [7, 7, 7, 7]


@pytest.mark.parametrize("d_model", [8, 16])
def test_hand_set_heads_hand_on_the_previous_and_the_first_word(att, monkeypatch, d_model):
    monkeypatch.setattr(att, "D_MODEL", d_model)
    T = d_model // 2
    words = drawn(T, T, seed=9)
    x = torch.cat([torch.eye(T, dtype=F64), words], dim=1)[None]
    layer = att.hand_set_heads()
    previous, first = layer.attention(x)[0].tolist()
    for t in range(T):
        before = max(t - 1, 0)
        assert previous[t] == pytest.approx([float(j == before) for j in range(T)], abs=1e-9)
        assert first[t] == pytest.approx([float(j == 0) for j in range(T)], abs=1e-9)
        expected = [*words[before].tolist(), *words[0].tolist()]
        assert layer(x)[0, t].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("part", ["W_q", "W_k"])
def test_hand_set_heads_are_not_claimed_if_they_look_elsewhere(att, monkeypatch, part):
    real = att.hand_set_heads

    def broken():
        layer = real()
        getattr(layer, part).weight.data.zero_()
        return layer

    monkeypatch.setattr(att, "hand_set_heads", broken)
    assert run_parts(att, parts=[5]).claims["L2-070"] is False


def test_heads_of_the_layer_are_separate_attentions_side_by_side(att):
    """The layer against the script's own `attention`, head by head; ones carry the bias."""
    layer, X = att.layer_and_words(4, 6, seed=3)
    X1 = torch.cat([X, torch.ones(6, 1, dtype=F64)], dim=1)
    W = [torch.cat([m.weight.T, m.bias[None]]) for m in (layer.W_q, layer.W_k, layer.W_v)]
    heads = [
        att.attention(X1, *(w[:, 8 * h : 8 * h + 8] for w in W), att.causal_mask(6))
        for h in range(4)
    ]
    together = torch.cat(heads, dim=1) @ layer.W_o.weight.T + layer.W_o.bias
    torch.testing.assert_close(layer(X[None])[0], together)


# ── part 6 ───────────────────────────────────────────────────────────────────────────────────────
def table_of_sinusoids(n=64, d=32):
    """From the formula, number by number."""
    angle = [[p / 10000 ** (2 * i / d) for i in range(d // 2)] for p in range(n)]
    pairs = [[f(a) for a in row for f in (math.sin, math.cos)] for row in angle]
    return torch.tensor(pairs, dtype=F64)


def test_layer_and_words_are_torchs_start_and_leave_the_generator_alone(att):
    state = torch.get_rng_state()
    layer, words = att.layer_and_words(2, 5, seed=4, causal=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert words.shape == (5, 32) and words.dtype == F64
    assert (layer.n_heads, layer.causal) == (2, False)
    torch.manual_seed(4)
    assert torch.equal(layer.W_q.weight, nn.Linear(32, 32).weight.double())
    assert not torch.equal(words, att.layer_and_words(2, 5, seed=5)[1])


@pytest.mark.parametrize("seed", [1, 2])
def test_swap_changes_by_the_loop(att, seed):
    """The layer's biases enter attention_loop as one more input that is always 1."""
    PE = table_of_sinusoids()
    without, added = att.swap_changes(PE, seed)
    assert without < 1e-15 and added > 1e-3
    layer, words = att.layer_and_words(1, 4, seed)
    W = [torch.cat([m.weight.T, m.bias[None]]) for m in (layer.W_q, layer.W_k, layer.W_v)]

    def fourth(order):
        X = torch.cat([words[order] + PE[:4], torch.ones(4, 1, dtype=F64)], dim=1)
        q, k, v = (X @ w for w in W)
        return torch.softmax(k @ q[3] / math.sqrt(32), dim=0) @ v

    expected = (fourth([0, 2, 1, 3]) - fourth([0, 1, 2, 3])).abs().max().item()
    assert added == pytest.approx(expected)


def test_dot_products_depend_on_the_distance_alone(att):
    PE = table_of_sinusoids()
    torch.testing.assert_close(sinusoidal_positions(64, 32, dtype=F64), PE)
    for k in (0, 1, 4, 33):
        turned = sum(np.exp(1j * k * 10000 ** (-i / 16)) for i in range(16)).real
        assert att.cosine_sum(k) == pytest.approx(turned)
        for p in (0, 7, 30):
            assert (PE[p] @ PE[p + k]).item() == pytest.approx(turned)


def test_part_6_gives_the_lectures_numbers(att):
    show = run_parts(att, parts=[6], seeds=8)
    assert {id for id, verdict in show.verdicts.items() if verdict != "ok"} == {"L2-073"}
    assert show.verdicts["L2-073"] == "erratum"
    PE = table_of_sinusoids()
    for id, k in ("L2-073", 1), ("L2-074", 4):
        assert show.claims[id] == pytest.approx([(PE[p] @ PE[p + k]).item() for p in (0, 10, 30)])
    changes = [att.swap_changes(PE, seed) for seed in range(8)]
    assert show.seeds_of["L2-072"] == pytest.approx([added for _, added in changes])
    assert show.claims["L2-072"] == show.seeds_of["L2-072"][0]
    assert show.claims["L2-071"] == show.seeds_of["L2-071"][0]
    assert show.seeds_of["L2-178"] == [True] * 8

    _, cells = columns(show, "PE[p]·PE[p+k]")
    assert cells[1] == cells[2] == cells[3] == cells[4] and cells[0] == tuple(att.DISTANCES)
    for exact, noisy in zip(cells[4], cells[5]):  # float32 lies around the exact sum
        low, high = map(float, noisy.split(" … "))
        assert low - 1e-7 <= float(exact) <= high + 1e-7 and high - low < 1e-5
    one_step = map(float, cells[5][1].split(" … "))
    assert [f"{x:.4f}" for x in one_step] == ["15.3136", "15.3137"]  # the lecture's digit is here

    _, cells = columns(show, "Exercise 9")
    assert float(cells[1][0]) < 1e-14 and min(map(float, cells[1][1:])) > 0.01
    assert cells[2] == ("0 … 0", "119 … 119", "119 … 119")  # all but the order it is in

    _, (t, inverse, causal, read, unmasked) = columns(show, "without position code")
    assert list(t) == list(read) == [1, 2, 3, 4, 8, 16, 32, 64]
    assert causal == inverse == tuple(f"{1 / n:.6f}" for n in t)
    assert set(unmasked) == {f"{1 / 64:.6f}"}
    assert any("64 of 64 positions" in note for note in show.notes)


def test_position_is_rounded_not_cut_off(att, monkeypatch):
    monkeypatch.setattr(att, "MAX_LEN", 128)  # 1 / (1/93) comes out just below 93
    show = Recorder()
    att.counting_head_table(show)
    assert "128 of 128 positions" in show.notes[0]


def test_positions_change_the_claim_if_they_are_left_out(att, monkeypatch):
    monkeypatch.setattr(
        att, "sinusoidal_positions", lambda n, d, dtype: torch.zeros(n, d, dtype=dtype)
    )
    show = run_parts(att, parts=[6], seeds=1)
    assert show.verdicts["L2-072"] == "differs" and show.verdicts["L2-073"] == "differs"


def test_a_causal_layer_is_no_case_of_equivariance(att, monkeypatch):
    """The claim is False when the mask stays on, in the same code."""
    real = att.equivariance_gaps
    monkeypatch.setattr(att, "equivariance_gaps", lambda causal, p, seed: real(True, p, seed))
    assert run_parts(att, parts=[6], seeds=2).claims["L2-178"] is False


@pytest.mark.parametrize("causal", [False, True])
def test_equivariance_gaps_with_permutation_matrices(att, causal):
    """P as a matrix of zeros and ones, for a few of the 120 orders."""
    layer, X = att.layer_and_words(4, 5, 2, causal)
    p = table_of_sinusoids()[:5] if causal else torch.zeros(5, 32, dtype=F64)
    gaps = att.equivariance_gaps(causal, p, 2)
    assert gaps.shape == (120,) and gaps[0] < 1e-14
    orders = list(permutations(range(5)))
    with torch.no_grad():
        for n in (0, 1, 37, 119):
            P = torch.zeros(5, 5, dtype=F64)
            P[range(5), orders[n]] = 1
            gap = layer((P @ X + p)[None])[0] - P @ layer((X + p)[None])[0]
            assert gaps[n].item() == pytest.approx(gap.abs().max().item(), abs=1e-14)
            assert n == 0 or (gaps[n].item() > 1e-3) == causal


@settings(max_examples=10, deadline=None)
@given(T=st.integers(1, 300), seed=st.integers(0, 99))
def test_the_counting_head_averages_one_start_over_t_words(script_module, T, seed):
    x = drawn(1, T, 32, seed=seed)
    x[0, :, 0] = 0
    x[0, 0, 0] = 1
    with torch.no_grad():
        masked = script_module.counting_head(True)(x)[0, :, 0]
        unmasked = script_module.counting_head(False)(x)[0, :, 0]
    torch.testing.assert_close(1 / masked, torch.arange(1, T + 1, dtype=F64))
    torch.testing.assert_close(unmasked, torch.full((T,), 1 / T, dtype=F64))


def test_omega_is_how_far_each_pair_turns_at_a_step(att):
    PE = table_of_sinusoids()
    for i in (0, 1, 8, 15):
        turned = math.atan2(PE[1, 2 * i], PE[1, 2 * i + 1]) - math.atan2(
            PE[0, 2 * i], PE[0, 2 * i + 1]
        )
        assert att.omega(i) == pytest.approx(turned)


# ── edited constants ─────────────────────────────────────────────────────────────────────────────
SENSELESS = [
    (1, "WEIGHTS", [0.5, 0.5]),
    (1, "WEIGHTS", [0.5, 0.5, 0.5, 0.5]),
    (1, "WEIGHTS", [1.5, -0.5, 0, 0]),
    (1, "X_DIAGONAL", [1, 1, 1]),
    (2, "LENGTHS", []),
    (2, "LENGTHS", [4, 0]),
    (2, "D", 0),
    (2, "RUNS", 0),
    (4, "N_KEYS", 1),
    (4, "QUERIES", 31),
    (4, "D_K", []),
    (4, "D_K", [4, 0]),
    (4, "D_K_EXERCISE", 0),
    (4, "LEADS", []),
    (4, "SCORES", [1, 2, 3]),
    (5, "D_MODEL", 15),
    (5, "D_MODEL", 2),
    (5, "HEADS", []),
    (5, "HEADS", [0]),
    (5, "HEADS", [3]),
    (5, "SHARPNESS", 0),
    (6, "D_POSITIONS", 31),
    (6, "D_POSITIONS", 0),
    (6, "STARTS", []),
    (6, "STARTS", [-1]),
    (6, "DISTANCES", []),
    (6, "DISTANCES", [-1]),
    (6, "MAX_LEN", 62),
]


@pytest.mark.parametrize(("part", "name", "value"), SENSELESS)
def test_a_senseless_constant_is_refused_by_name(small, monkeypatch, part, name, value):
    monkeypatch.setattr(small, name, value)
    with pytest.raises(ValueError, match=f"^{name} must be ") as refusal:
        run_parts(small, parts=[part], seeds=1)
    assert str(value) in str(refusal.value) and "\n" not in str(refusal.value)


def test_random_numbers_do_not_come_from_torchs_own_stream(small, monkeypatch):
    monkeypatch.setattr(small, "QUERIES", 32)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    for part in (1, 2, 3, 4):  # 5 and 6 start layers, whose weights they then set
        run_parts(small, parts=[part], seeds=1, page=True)  # page: the view too
        assert torch.equal(torch.get_rng_state(), state)


EDITED = [
    (1, {"WEIGHTS": [0, 0, 0, 1], "X_DIAGONAL": [3, 1, 0, 1], "SEED": 5}),
    (2, {"LENGTHS": [1, 7], "D": 3}),
    (4, {"D_K": [2], "N_KEYS": 5, "QUERIES": 100, "LEADS": [3], "D_K_EXERCISE": 9, "SEED": 2}),
    (4, {"SCORES": [9, 0, 0, 0], "QUERIES": 320}),
    (5, {"HEADS": [16], "D_MODEL": 16}),
    (5, {"HEADS": [1, 3], "D_MODEL": 6, "SHARPNESS": 1.0}),
    (6, {"D_POSITIONS": 8, "STARTS": [2], "DISTANCES": [3], "MAX_LEN": 8}),
    (6, {"SEED": 11}),
]


@pytest.mark.parametrize(("part", "changes"), EDITED)
def test_edited_constants_run_and_nothing_differs(small, monkeypatch, part, changes):
    for name, value in changes.items():
        monkeypatch.setattr(small, name, value)
    show = run_parts(small, parts=[part], seeds=2, edited=[str(changes)])
    assert show.claims and "differs" not in show.verdicts.values()
