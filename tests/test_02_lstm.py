"""02_lstm: its measurements against finite differences, closed forms and torch.nn, step by step."""

import math

import pytest
import torch
from conftest import load_script, run_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

F64 = torch.float64


@pytest.fixture
def lstm(script, monkeypatch):
    """The script, its networks shrunk to E = 3, H = 4, so that a test takes no time."""
    module = script("02_lstm")
    small = {"E": 3, "H": 4, "V": 5, "DISTANCES": [0, 1, 4, 9], "BEFORE": 2, "FAR": 6, "NEAR": 2}
    for constant, value in small.items():
        monkeypatch.setattr(module, constant, value)
    return module


# ── part 1: the comparison with nn.LSTM ──────────────────────────────────────────────────────────
def test_copy_of_gives_nn_lstms_outputs_and_a_changed_weight_shows(lstm):
    theirs = lstm.seeded(3, nn.LSTM, 3, 4, batch_first=True)
    pairs = lstm.compare(lstm.copy_of(*theirs.parameters()), theirs, seed=3)
    gradients = [f"∂L/∂{name}" for name in ("x", "weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    assert list(pairs) == ["h", "c_T", *gradients]
    shapes = [(2, 8, 4), (2, 4), (2, 8, 3), (16, 3), (16, 4), (16,), (16,)]
    assert [tuple(theirs.shape) for _, theirs in pairs.values()] == shapes
    for ours, reference in pairs.values():
        assert lstm.relative(ours, reference) < 1e-14
        assert reference.abs().max() > 1e-3
        assert not ours.requires_grad and not reference.requires_grad
    wrong = lstm.copy_of(*theirs.parameters())
    wrong.cell.weight_hh.data[0, 0] += 0.1
    for ours, reference in lstm.compare(wrong, theirs, seed=3).values():
        assert lstm.absolute(ours, reference) > 1e-6


def test_compared_gradients_are_those_of_sum_u_h_by_finite_differences(lstm):
    theirs = lstm.seeded(0, nn.LSTM, 3, 4, batch_first=True).requires_grad_(False)
    x, u = lstm.normal(0, 2, 8, 3), lstm.normal(1000, 2, 8, 4)

    def slope(tensor, *index):
        before, ends = tensor[index].item(), []
        for step in (1e-6, -1e-6):
            tensor[index] = before + step
            ends.append((u * theirs(x)[0]).sum().item())
            tensor[index] = before
        return (ends[0] - ends[1]) / 2e-6

    checked = {"∂L/∂x": slope(x, 1, 2, 0), "∂L/∂weight_hh": slope(theirs.weight_hh_l0, 9, 3)}
    theirs.requires_grad_(True)
    pairs = lstm.compare(lstm.copy_of(*theirs.parameters()), theirs, seed=0)
    for ours in (0, 1):
        assert pairs["∂L/∂x"][ours][1, 2, 0] == pytest.approx(checked["∂L/∂x"], abs=1e-8)
        weight = pairs["∂L/∂weight_hh"][ours][9, 3]
        assert weight == pytest.approx(checked["∂L/∂weight_hh"], abs=1e-8)


def test_the_compared_c_is_the_last_one(lstm):
    theirs = lstm.seeded(0, nn.LSTM, 3, 4, batch_first=True)
    ours, reference = lstm.compare(lstm.copy_of(*theirs.parameters()), theirs, seed=0)["c_T"]
    h, (_, c) = theirs(lstm.normal(0, 2, 8, 3))
    assert torch.equal(reference, c[0])
    assert torch.allclose(ours, c[0], rtol=0, atol=1e-15)
    assert not torch.allclose(h[:, -1], c[0], atol=1e-3)


def test_absolute_and_relative_differences(lstm):
    ours, theirs = torch.tensor([1.0, -4.0, 2.0]), torch.tensor([1.5, -5.0, 2.0])
    assert lstm.absolute(ours, theirs) == lstm.absolute(theirs, ours) == 1.0
    assert lstm.relative(ours, theirs) == pytest.approx(1 / 5)
    assert {type(measure(ours, theirs)) for measure in (lstm.absolute, lstm.relative)} == {float}


def test_only_ifgo_reads_nn_lstm(lstm):
    off = lstm.difference_by_order(lstm.seeded(1, nn.LSTM, 3, 6, batch_first=True))
    assert len(off) == 24
    assert off.pop("ifgo") < 1e-15
    assert min(off.values()) > 1e-3


def test_a_row_order_is_read_as_named(lstm):
    """Rows stored as f, g, i, o are found under that name, not under the inverse order."""
    theirs = lstm.seeded(1, nn.LSTM, 3, 4, batch_first=True)
    reference = theirs(lstm.normal(0, 2, 8, 3))[0]
    stored = lstm.seeded(1, nn.LSTM, 3, 4, batch_first=True)
    for weight in stored.parameters():
        i, f, g, o = weight.data.clone().chunk(4)
        weight.data = torch.cat([f, g, i, o])
    stored.forward = lambda x: (reference, None)
    off = lstm.difference_by_order(stored)
    assert min(off, key=off.get) == "fgio"


def test_claims_of_part_1_are_the_worst_of_the_seeds(lstm, monkeypatch):
    def compare(ours, theirs, seed):
        one = torch.tensor([1.0, -4.0], dtype=F64)
        off = {"h": 1, "c_T": 3 - seed, "∂L/∂x": 4, "∂L/∂weight_ih": 12 + 4 * seed}
        return {name: (one + n / 64, one) for name, n in off.items()}

    monkeypatch.setattr(lstm, "compare", compare)
    show = run_parts(lstm, [1], seeds=3)
    assert show.claims == {"L2-035": True, "L2-036a": 3 / 64, "L2-036b": 5 / 64}
    assert show.seeds_of == {
        "L2-036a": [3 / 64, 2 / 64, 1 / 64],
        "L2-036b": [n / 64 for n in (3, 4, 5)],
    }
    assert "i, f, g, o gives" in show.notes[0]

    other = {"ifgo": 0.2, "fgio": 0.0, "gifo": 0.3}
    monkeypatch.setattr(lstm, "difference_by_order", lambda network: other)
    show = run_parts(lstm, [1], seeds=1)
    assert show.claims["L2-035"] is False
    assert "f, g, i, o gives nn.LSTM's h up to 0e+00, the next best is 0.20 off" in show.notes[0]


def test_table_of_residues_shows_the_worst_seed(lstm):
    one = {"h": (torch.tensor([1.0, -2.0]), torch.tensor([1.0, -2.5]))}
    two = {"h": (torch.tensor([1.0, 2.0]), torch.tensor([1.25, 2.0]))}
    header, [row] = lstm.residues([one, two])
    assert row == ["h", "2", "2.5", "5.0e-01", "2.0e-01"]
    largest = "relative to the largest entry"
    assert [en for en, _ in header] == ["quantity", "shape", "largest entry", "difference", largest]
    assert [zh for _, zh in header] == ["量", "形状", "最大元素", "差", "相对最大元素"]
    matrix = torch.ones(2, 3)
    assert lstm.residues([{"W": (matrix, matrix)}])[1][0][1] == "2 × 3"


def test_seeded_networks_repeat_and_leave_torchs_stream_alone(lstm):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (lstm.seeded(seed, nn.LSTM, 3, 4) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters()):
        assert a.dtype == F64
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert torch.equal(lstm.normal(3, 2, 5), lstm.normal(3, 2, 5))
    assert not torch.equal(lstm.normal(3, 2, 5), lstm.normal(4, 2, 5))
    assert abs(lstm.normal(0, 10000).std() - 1) < 0.03


# ── part 2: parameters ───────────────────────────────────────────────────────────────────────────
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 30))
def test_parameter_counts_are_the_formulas(E, H, V):
    module = load_script("02_lstm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "E", E)
        patch.setattr(module, "H", H)
        patch.setattr(module, "V", V)
        patch.setattr(module, "EXERCISE", [E + 1, H + 2])
        show = run_parts(module, [2])
    layers, models = (rows for _, rows in show.tables.values())
    assert [row[-1] for row in layers] == [row[-2] for row in layers]
    elman, lstm, e, h = H * (E + H + 1), 4 * H * (E + H + 2), E + 1, H + 2
    assert show.claims["L2-038"] == elman
    assert show.claims["L2-037"] == lstm
    assert show.claims["L2-039"] == lstm / elman
    assert show.claims["L2-041"] == V * E + elman + H * V + V
    assert show.claims["L2-040"] == V * E + lstm + H * V + V
    assert show.claims["L2-158"] == [h * e, h * h, 2 * h, h * (e + h + 2)]
    assert show.claims["L2-159"] == 4 * h * (e + h + 2)
    assert models[0][1:] == [V * E, elman, H * V + V, V * E + elman + H * V + V]
    few = H * (E + H)
    assert f"{4 * few:,} multiplications to {few:,}, 4 times" in show.notes[0]


@pytest.mark.slow
def test_a_step_multiplies_by_each_weight_once(script):
    from torch.utils.flop_counter import FlopCounterMode

    module = script("02_lstm")
    flops = []
    for kind in (module.ElmanRNN, module.LSTM):
        with FlopCounterMode(display=False) as counter:
            kind(32, 64)(torch.zeros(1, 1, 32))
        flops.append(counter.get_total_flops())
    assert flops == [2 * 6144, 2 * 24576]  # a multiplication and an addition each
    assert "24,576 multiplications to 6,144, 4 times" in run_parts(module, [2]).notes[0]


# ── part 3: how far the gradient reaches ─────────────────────────────────────────────────────────
def torch_network(module, b_f, seed):
    """The network that `reach` draws, as nn.RNN or nn.LSTM."""
    if b_f == "Elman":
        ours, theirs = module.seeded(seed, module.ElmanRNN, 3, 4), nn.RNN(3, 4).double()
        theirs.bias_hh_l0.data.zero_()
    else:
        ours, theirs = (
            module.seeded(seed, module.LSTM, 3, 4, forget_bias=b_f),
            nn.LSTM(3, 4).double(),
        )
    for mine, yours in zip(ours.parameters(), theirs.parameters()):
        yours.data.copy_(mine)
    return theirs.requires_grad_(False)


@pytest.mark.parametrize("b_f", ["Elman", 0, 3])
def test_reach_is_the_gradient_norm_by_finite_differences(lstm, b_f):
    seed, T = 2, 7
    found = lstm.reach(b_f, [5, seed], T)
    network = torch_network(lstm, b_f, seed)
    x, u = lstm.normal(seed, 1, T, 3)[0], lstm.normal(seed + 1000, 4)  # (T, E), (H,)

    def readouts():
        h, last = network(x)
        return torch.stack([u @ h[-1]] + ([u @ last[1][0]] if b_f != "Elman" else []))

    norms = []
    for d in range(T):
        slopes = []
        for e in range(3):
            ends = []
            for step in (1e-5, -2e-5):
                x[T - 1 - d, e] += step
                ends.append(readouts())
            x[T - 1 - d, e] += 1e-5
            slopes.append((ends[0] - ends[1]) / 2e-5)
        norms.append(torch.stack(slopes).norm(dim=0))  # of uᵀh_T, uᵀc_T
    ratios = torch.stack(norms) / norms[0]  # (T, 1 or 2)
    for n, key in enumerate(["h_T", "c_T"][: ratios.shape[1]]):
        assert found[key].shape == (2, T)
        assert torch.allclose(found[key][1], ratios[:, n], rtol=1e-4, atol=1e-9)
    assert ("c_T" in found) == ("f" in found) == (b_f != "Elman")


def test_elmans_gradient_is_the_product_of_its_jacobians(lstm):
    T = 6
    network = lstm.seeded(4, lstm.ElmanRNN, 3, 4).requires_grad_(False)
    h = network(lstm.normal(4, 1, T, 3))[0][0]  # (T, H)
    row, norms = lstm.normal(1004, 4), []  # ∂(uᵀh_T)/∂h_t, from t = T down
    for t in reversed(range(T)):
        row = row * (1 - h[t] ** 2)
        norms.append((row @ network.W_hx).norm())
        row = row @ network.W_hh
    norms = torch.stack(norms)
    assert torch.allclose(lstm.reach("Elman", [4], T)["h_T"][0], norms / norms[0], rtol=1e-12)


def test_forget_gates_are_the_slopes_along_the_cell(lstm):
    """With h_{t-1} held, ∂c_t/∂c_{t-1} is the diagonal matrix of f_t."""
    T = 5
    found = lstm.reach(1, [7], T)["f"][0]  # (T, H)
    cell = lstm.seeded(7, lstm.LSTM, 3, 4, forget_bias=1).cell
    x, h, c = lstm.normal(7, 1, T, 3)[0], torch.zeros(1, 4, dtype=F64), torch.zeros(1, 4, dtype=F64)
    for t in range(T):

        def next_c(c_before, t=t, h_before=h):
            return cell(x[t : t + 1], (h_before, c_before[None]))[1][0]

        jacobian = torch.autograd.functional.jacobian(next_c, c[0])
        assert torch.allclose(jacobian, torch.diag(found[t]), rtol=1e-12, atol=1e-15)
        h, c = (state.detach() for state in cell(x[t : t + 1], (h, c)))


def test_forget_gates_read_both_biases(lstm):
    """c_t = f_t c_{t-1} + …, so one more in c_{t-1} is f_t more in c_t; nn.LSTMCell fills both."""
    cell, x = lstm.seeded(1, nn.LSTMCell, 3, 5).requires_grad_(False), lstm.normal(2, 4, 3)
    h = c = torch.zeros(1, 5, dtype=F64)
    outputs, expected = [], []
    for x_t in x.split(1):
        _, more = cell(x_t, (h, c + 1))
        h, c = cell(x_t, (h, c))
        outputs.append(h)
        expected.append(more - c)
    found = lstm.forget_gates(cell, x, torch.cat(outputs))
    assert torch.allclose(found, torch.cat(expected), rtol=0, atol=1e-14)


def fake(lstm, monkeypatch, factors, first=1.0, gates=0.5, whole=None):
    """Replace `reach`: ratio first · factor^d by seed; unit 0 has f = gates, the others half.

    whole: other factors where there are no steps before the 6 that count.
    """

    def reach(n, seeds, steps):
        assert steps in (2 + 9 + 1, 6 + 1)
        rates = torch.tensor((whole or factors if steps == 7 else factors)[n], dtype=F64)[:, None]
        assert len(seeds) == len(rates)  # (seeds, 1)
        ratio = first * rates ** torch.arange(steps)  # (seeds, T)
        ratio[:, 0] = 1
        f = torch.full((len(rates), steps, 4), gates / 2, dtype=F64)
        f[:, :, 0] = gates
        f[:, :-6] = 0.99  # before the FAR steps that count
        return {"h_T": ratio, "c_T": ratio**2, "f": f}

    monkeypatch.setattr(lstm, "reach", reach)


FACTORS = {
    "Elman": [0.4, 0.5, 0.9],
    0: [0.52, 0.6, 0.61],
    1: [0.8, 0.74, 0.9],
    3: [0.96, 0.97, 0.98],
    5: [0.97, 0.98, 0.999],
}


def test_factors_are_medians_over_seeds(lstm, monkeypatch):
    fake(lstm, monkeypatch, FACTORS)
    show = run_parts(lstm, [3], seeds=3)
    assert show.claims["L2-043"] == pytest.approx(0.5)
    assert show.seeds_of["L2-043"] == pytest.approx([0.4, 0.5, 0.9])
    assert show.claims["L2-042"] == pytest.approx(0.6)
    assert show.claims["L2-044"] == pytest.approx((6 * 0.99 + 6 * (0.5 + 3 * 0.25) / 4) / 12)
    assert show.claims["L2-045a"] is True
    assert show.seeds_of["L2-045a"] == [True, True, True]
    assert show.claims["L2-045b"] is False
    assert show.seeds_of["L2-045b"] == [False, False, False]  # below either way, or above
    assert show.claims["L2-046"] == pytest.approx(0.97**9)
    assert show.seeds_of["L2-046"] == pytest.approx([0.96**9, 0.97**9, 0.98**9])
    reach, factors, gates = (rows for _, rows in show.tables.values())
    assert [row[0] for row in reach] == [0, 1, 4, 9]
    assert reach[2][1] == f"{0.5**4:.2g}"
    assert reach[3][4] == f"{0.97**9:.2g}"
    for_1 = ["0.800", "0.740 … 0.900", "3 / 3"]
    assert factors[6:9] == [
        ["b_f = 1", "0.731", d, before, *for_1]
        for d, before in (("0 … 6", 5), ("2 … 6", 5), ("0 … 6", 0))
    ]
    assert factors[12][6] == "1 / 3"


def test_at_5_it_depends_on_the_steps_before(lstm, monkeypatch):
    fake(lstm, monkeypatch, FACTORS, whole=FACTORS | {5: [0.999, 0.995, 0.999]})
    show = run_parts(lstm, [3], seeds=3)
    assert show.claims["L2-045b"] is True
    assert show.seeds_of["L2-045b"] == [True, True, False]
    rows = list(show.tables.values())[1][1]
    assert [row[3:5] for row in rows[12:]] == [[5, "0.980"], [5, "0.980"], [0, "0.999"]]
    fake(lstm, monkeypatch, FACTORS | {5: [0.999] * 3}, whole=FACTORS | {5: [0.9999] * 3})
    assert run_parts(lstm, [3], seeds=3).claims["L2-045b"] is False  # above either way


@pytest.mark.parametrize(
    ("b_f", "factors", "seeds"),
    [
        (0, [0.49, 0.6, 0.7], [False, True, True]),
        (1, [0.9, 0.72, 0.71], [True, False, False]),
        (3, [0.96, 0.95, 0.97], [True, False, True]),
    ],
)
def test_the_factor_has_to_exceed_sigma_at_each_bias(lstm, monkeypatch, b_f, factors, seeds):
    fake(lstm, monkeypatch, FACTORS | {b_f: factors})
    show = run_parts(lstm, [3], seeds=3)
    assert show.seeds_of["L2-045a"] == seeds
    assert show.claims["L2-045a"] is (seeds.count(True) == 2)


def test_a_first_step_that_costs_shows_in_the_whole_way_only(lstm, monkeypatch):
    fake(lstm, monkeypatch, FACTORS, first=0.3)
    show = run_parts(lstm, [3], seeds=3)
    assert show.claims["L2-042"] == pytest.approx(0.6 * 0.3 ** (1 / 6))
    assert show.claims["L2-045a"] is False
    _, factors, gates = (rows for _, rows in show.tables.values())
    assert factors[3][4] == f"{0.6 * 0.3 ** (1 / 6):.3f}"
    assert factors[4][4] == "0.600"  # (ratio at 6 / ratio at 2)^(1/4)
    assert [factors[12][6], *factors[13][4:]] == ["0 / 3", "0.980", "0.970 … 0.999", "1 / 3"]
    assert gates[0][-2:] == [f"{0.3 * 0.6:.2f}", f"{(0.3 * 0.6) ** 2:.2f}"]


@pytest.mark.parametrize(("gates", "reached"), [(0.51, [False] * 3), (0.55, [True, False, False])])
def test_gates_alone_count_over_the_last_steps(lstm, monkeypatch, gates, reached):
    fake(lstm, monkeypatch, FACTORS, gates=gates)
    show = run_parts(lstm, [3], seeds=3)
    assert show.claims["L2-045c"] is False
    assert show.seeds_of["L2-045c"] == reached
    rows = list(show.tables.values())[2][1]
    mean_square = (gates**12 + 3 * (gates / 2) ** 12) / 4  # of ∏ f over 6 steps, 4 units
    assert rows[0][:5] == [0, "0.500", f"{mean_square ** (1 / 12):.3f}", f"{gates:.3f}", "0.600"]
    fake(lstm, monkeypatch, FACTORS, gates=0.7)
    assert run_parts(lstm, [3], seeds=3).claims["L2-045c"] is True


def test_other_forget_biases_claim_only_what_they_measured(lstm, monkeypatch):
    monkeypatch.setattr(lstm, "FORGET_BIASES", [-1, 2.5, 2.5])
    show = run_parts(lstm, [3], seeds=2)
    assert list(show.claims) == ["L2-043"]
    header, _ = next(iter(show.tables.values()))
    assert header == ["d", "Elman", "b_f = -1", "b_f = 2.5"]


def test_the_lectures_factors_come_out_in_full_size(script, monkeypatch):
    module = script("02_lstm")
    monkeypatch.setattr(module, "BEFORE", 0)
    monkeypatch.setattr(module, "DISTANCES", [0, 50])
    show = run_parts(module, [3], seeds=2)
    assert show.claims["L2-042"] == pytest.approx(0.60, abs=0.03)
    assert show.claims["L2-043"] == pytest.approx(0.50, abs=0.05)
    assert show.claims["L2-045c"] is False


def norms_with_a_path_cut(module, b_f, seed, T, cut):
    """‖∂(uᵀh_T)/∂x_{T-d}‖ (T,) in full size, without one path: "W_hh", "output" or "none"."""
    cell = module.seeded(seed, module.LSTM, 32, 64, forget_bias=b_f).cell
    x, u = module.normal(seed, T, 32).requires_grad_(), module.normal(seed + 1000, 64)
    h = c = torch.zeros(64, dtype=F64)
    for x_t in x:
        before = h.detach() if cut == "W_hh" else h
        rows = cell.weight_ih @ x_t + cell.bias_ih + cell.weight_hh @ before + cell.bias_hh
        i, f, g, o = rows.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    if cut == "output":
        h = o.sigmoid().detach() * c.tanh()
    return torch.autograd.grad(u @ h, x)[0].norm(dim=1).flip(0)


def test_what_the_note_says_about_the_paths(script):
    """b_f = 0: without W_hh only ∏ f is left. b_f = 5: the first drop is the output gate's."""
    module = script("02_lstm")
    full, cell_only = (norms_with_a_path_cut(module, 0, 1, 60, cut) for cut in ("none", "W_hh"))
    found = module.reach(0, [1], 60)
    assert torch.allclose(found["h_T"][0], full / full[0], rtol=1e-9)
    per_step = [(n[50] / n[1]).item() ** (1 / 49) for n in (full, cell_only)]
    assert per_step[0] > 0.58
    assert per_step[1] < 0.53
    best_unit = found["f"][0, -50:].prod(dim=0).max().item() ** (1 / 50)
    assert per_step[1] < best_unit + 0.01 < per_step[0]
    full, no_output = (norms_with_a_path_cut(module, 5, 1, 150, cut) for cut in ("none", "output"))
    assert full[1] / full[0] < 0.4
    assert no_output[1] / no_output[0] > 0.8


def test_sigmoid_and_median(lstm):
    assert lstm.sigmoid(0) == 0.5
    assert lstm.sigmoid(3) == pytest.approx(1 / (1 + math.exp(-3)), abs=1e-15)
    assert lstm.sigmoid(-2000) == 0.0
    assert lstm.median(torch.tensor([4.0, 1.0, 2.0, 10.0])) == 3.0
    assert type(lstm.sigmoid(3)) is type(lstm.median(torch.ones(3))) is float


# ── part 4: deep, both ways ──────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("both_ways", [False, True])
def test_what_changes_when_one_step_changes(lstm, layers, both_ways):
    change, off = lstm.change_of_outputs(layers, both_ways, [0, 1])
    assert change.shape == (2, 8)
    assert off < 1e-15
    assert (change[:, 3:] > 1e-6).all()  # step 4 and what comes after it
    assert (change[:, :3] > 1e-6).all() if both_ways else (change[:, :3] == 0).all()
    assert not torch.equal(change[0], change[1])


def test_the_changed_step_is_redrawn_from_a_stream_of_its_own(lstm):
    network = lstm.seeded(3, nn.LSTM, 3, 4, batch_first=True).requires_grad_(False)
    x = lstm.normal(3, 1, 8, 3)
    other = x.clone()
    other[0, 3] = lstm.normal(1003, 3)
    expected = (network(other)[0] - network(x)[0])[0].abs().amax(dim=1)
    assert torch.equal(lstm.change_of_outputs(1, False, [3])[0][0], expected)


def test_the_residue_of_stacked_is_the_worst_of_the_seeds(lstm, monkeypatch):
    off = iter([0.25, 0.5, 0.125])
    monkeypatch.setattr(lstm, "stacked", lambda network, x: network(x)[0] + next(off))
    assert lstm.change_of_outputs(1, False, [0, 1, 2])[1] == pytest.approx(0.5)


def test_stacked_by_hand_is_nn_lstm_and_not_less(lstm):
    network = lstm.seeded(0, nn.LSTM, 3, 4, num_layers=2, bidirectional=True, batch_first=True)
    x = lstm.normal(0, 2, 5, 3)
    assert lstm.stacked(network, x).shape == (2, 5, 8)
    assert lstm.absolute(lstm.stacked(network, x), network(x)[0]) < 1e-15


def test_claims_of_part_4_need_every_seed_and_every_step(lstm, monkeypatch):
    for broken, claim in ((0, "L2-047a"), (1, "L2-047a"), (2, "L2-047b"), (3, "L2-047b")):
        kinds = [(1, False), (2, False), (1, True), (2, True)]

        def change(layers, both_ways, seeds, broken=kinds[broken]):
            moved = torch.ones(2, 8, dtype=F64)
            moved[:, :3] = float(both_ways)
            if broken == (layers, both_ways):
                moved[1, 2] = 1 - float(both_ways)
            return moved, 0.0

        monkeypatch.setattr(lstm, "change_of_outputs", change)
        show = run_parts(lstm, [4], seeds=2)
        assert show.claims == {"L2-047a": claim != "L2-047a", "L2-047b": claim != "L2-047b"}
        assert show.seeds_of[claim] == [True, False]


def test_spread_of_values_as_text(lstm):
    assert lstm.spread(torch.tensor([0.0, 0.0])) == "0"
    assert lstm.spread(torch.tensor([0.25, 0.125, 0.5])) == "0.12 … 0.5"


# ── part 5: the GRU, and time ────────────────────────────────────────────────────────────────────
def test_gru_is_nn_gru_cell_by_cell(lstm):
    cell = lstm.seeded(0, nn.GRUCell, 3, 4)
    x, h, expected = lstm.normal(1, 2, 6, 3), torch.zeros(2, 4, dtype=F64), []
    for x_t in x.unbind(dim=1):
        h = cell(x_t, h)
        expected.append(h)
    outputs, last = lstm.GRU(*cell.parameters())(x)
    assert torch.allclose(outputs, torch.stack(expected, dim=1), rtol=0, atol=1e-15)
    assert torch.equal(last, outputs[:, -1])


def test_gru_gradients_are_nn_grus(lstm):
    theirs = lstm.seeded(2, nn.GRU, 3, 4, batch_first=True)
    pairs = lstm.compare(lstm.GRU(*theirs.parameters()), theirs, seed=2)
    assert len(pairs) == 6
    for ours, reference in pairs.values():
        assert lstm.relative(ours, reference) < 1e-14


def test_gru_has_weights_of_its_own(lstm):
    theirs = lstm.seeded(2, nn.GRU, 3, 4)
    before = [weight.clone() for weight in theirs.parameters()]
    for mine in lstm.GRU(*theirs.parameters()).parameters():
        mine.data.zero_()
    assert all(map(torch.equal, theirs.parameters(), before))


@pytest.mark.parametrize("power", [1, 2])
def test_timing_claims_are_the_growth_with_length_and_the_ratio(lstm, monkeypatch, power):
    monkeypatch.setattr(lstm, "LENGTHS", [10, 80, 20])
    monkeypatch.setattr(lstm, "BATCHES", [4, 1, 16])
    asked = []

    def training_step(B, T):
        asked.append((B, T))
        return [6.0 * B**2 * T**power, B * T**1.5, 1.0 * T]

    monkeypatch.setattr(lstm, "training_step", training_step)
    show = run_parts(lstm, [5], seeds=1)
    assert asked == [(4, 10), (1, 10), (16, 10), (16, 20), (16, 80)]
    assert show.claims["L2-050"] == pytest.approx([2**power, 2**1.5])
    assert show.claims["L2-049"] == pytest.approx(6 * 16 * 80 ** (power - 1.5))
    rows = list(show.tables.values())[1][1]
    assert rows[1] == [
        1,
        10,
        f"{6000 * 10**power:.1f}",
        f"{1000 * 10**1.5:.1f}",
        "10000.0",
        rows[1][-1],
    ]
    assert rows[1][-1] == f"{6 * 10 ** (power - 1.5):.1f}"


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_training_step_is_timed_on_one_thread_forward_and_backward(lstm, monkeypatch, kind):
    seen = []

    class Watched(getattr(nn, kind)):
        def forward(self, x):
            assert self.batch_first
            h, state = super().forward(x)
            seen.append((torch.get_num_threads(), tuple(x.shape), x.dtype))
            h.register_hook(lambda gradient: seen.append("backward"))
            return h, state

    monkeypatch.setattr(lstm.nn, kind, Watched)
    monkeypatch.setattr(lstm, "REPEATS", 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seconds = lstm.training_step(3, 5)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [(1, (3, 5, 3), torch.float32), "backward"] * 2
    assert len(seconds) == 3
    assert all(0 < s < 1 for s in seconds)


def test_of_the_timed_steps_the_fastest_counts(lstm, monkeypatch):
    seconds = [5, 7, 9, 4, 8, 3]  # LSTM, nn.LSTM, nn.GRU, and once more
    clock = iter([now for start, s in zip(range(0, 60, 10), seconds) for now in (start, start + s)])
    monkeypatch.setattr(lstm.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(lstm, "REPEATS", 2)
    assert lstm.training_step(1, 2) == [4, 7, 3]


# ── constants, and nothing left behind ───────────────────────────────────────────────────────────
WRONG = [
    (1, "E", 0), (1, "H", 2.5), (1, "SEEDS", 0), (2, "V", -3), (2, "EXERCISE", [100]),
    (2, "EXERCISE", [100, 0]), (2, "EXERCISE", 7), (3, "FORGET_BIASES", []),
    (3, "FORGET_BIASES", ["x"]), (3, "FORGET_BIASES", [math.nan]), (3, "FORGET_BIASES", 3),
    (3, "DISTANCES", []), (3, "DISTANCES", [1, 5]), (3, "DISTANCES", [-1, 9]), (3, "NEAR", 6),
    (3, "E", 0), (3, "H", 0), (3, "SEEDS", 0), (3, "NEAR", 0), (3, "FAR", 2.5),
    (3, "DISTANCES", [0.5, 9]), (3, "FAR", 0), (3, "FAR", 10), (3, "BEFORE", -1), (4, "STEPS", 0),
    (4, "CHANGED", 1), (4, "CHANGED", 9), (5, "LENGTHS", []), (5, "LENGTHS", [8, 8]),
    (5, "LENGTHS", [0, 8]), (5, "BATCHES", []), (5, "BATCHES", [0]), (5, "REPEATS", 0),
]  # fmt: skip


@pytest.mark.parametrize(("part", "constant", "value"), WRONG)
def test_a_senseless_constant_is_named(lstm, monkeypatch, part, constant, value):
    monkeypatch.setattr(lstm, constant, value)
    with pytest.raises(ValueError, match=rf"\b{constant}\b") as error:
        run_parts(lstm, [part])
    shown = max(value) if constant == "DISTANCES" and value == [1, 5] else value
    assert str(shown) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("constant", "kind"),
    [("FORGET_BIASES", "numbers"), ("DISTANCES", "whole numbers from 0 on")],
)
def test_a_list_that_is_refused_is_told_what_it_may_hold(lstm, monkeypatch, constant, kind):
    monkeypatch.setattr(lstm, constant, ["x"])
    with pytest.raises(ValueError, match=f"{constant} must be a list of {kind}, one or more"):
        lstm.need_distances()


def test_parts_repeat_and_leave_torch_as_it_was(lstm, monkeypatch):
    monkeypatch.setattr(lstm, "LENGTHS", [2, 4])
    monkeypatch.setattr(lstm, "BATCHES", [1])
    torch.manual_seed(11)
    state, threads, dtype = (
        torch.get_rng_state(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
    )
    first = run_parts(lstm, seeds=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)
    again = [run_parts(lstm, [part], seeds=2) for part in (4, 3, 1)]
    claims = {id: value for show in again for id, value in show.claims.items()}
    assert {id: value for id, value in first.claims.items() if id in claims} == claims
