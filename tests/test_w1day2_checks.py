"""W1D2's twelve groups by other routes: loops, torch, closed forms, brute force."""

import itertools
import math
import subprocess
import sys
from collections import Counter
from companion import ROOT

import numpy as np
import pytest
import torch
from conftest import load_script, run_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import lm_models

checks = load_script("w1day2_checks")
rng = np.random.default_rng(5)
some = settings(max_examples=25, deadline=None)  # enough to meet every case of such small inputs


@pytest.fixture(scope="module")
def shown():
    return run_parts(checks)


def table(shown, word):
    """The rows of the one table whose title holds the word."""
    (found,) = [rows for title, (_, rows) in shown.tables.items() if word in title]
    return found


def tensor(array):
    return torch.from_numpy(np.asarray(array))


def test_every_number_agrees(shown):
    wrong = {id: shown.claims[id] for id, v in shown.verdicts.items() if v not in ("ok", "erratum")}
    assert not wrong
    assert [id for id, v in shown.verdicts.items() if v == "erratum"] == [
        "W1D2-030",  # 65M is 63.1M
    ]


def test_neither_torch_nor_matplotlib_is_imported():
    code = """if True:
        import sys
        sys.modules["torch"] = None  # importing it would fail
        import w1day2_checks
        from companion import Recorder
        for part in w1day2_checks.PARTS[:3] + w1day2_checks.PARTS[4:]:  # 4 has nothing of its own
            part(show := Recorder())
        assert not {"matplotlib", "scipy", "lm_models"} & {*sys.modules}
    """
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_importing_draws_nothing_and_running_twice_gives_the_same_numbers(shown):
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - the global stream, untouched
    again = run_parts(checks, parts=[1, 7, 9])
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002
    assert all(shown.claims[id] == value for id, value in again.claims.items())


# ── 1: FFN, §0.1 ─────────────────────────────────────────────────────────────────────────────────
def test_ffn_is_two_linear_layers_with_a_relu_between():
    x, W_1, b_1, W_2, b_2 = map(tensor, checks.random_ffn(3))
    expected = F.linear(F.relu(F.linear(x, W_1, b_1)), W_2, b_2)
    weights = [a.numpy() for a in (x, W_1, b_1, W_2, b_2)]
    for form in checks.ffn, checks.ffn_as_memory:
        np.testing.assert_allclose(form(*weights), expected, rtol=0, atol=1e-14)


def test_random_ffn_is_drawn_for_an_output_near_1(monkeypatch):
    monkeypatch.setattr(checks, "FFN_WIDTH", 256)
    x, W_1, b_1, W_2, b_2 = checks.random_ffn(3)
    for matrix, std in (x, 1), (W_1, 256**-0.5), (W_2, 1024**-0.5):
        assert matrix.std() == pytest.approx(std, rel=0.02)
    for bias in b_1, b_2:
        assert bias.std() == pytest.approx(0.1, rel=0.2)
    assert 0.5 < checks.rms(checks.ffn(x, W_1, b_1, W_2, b_2)) < 1.5


def test_a_memory_slot_adds_its_value_only_when_its_key_matches():
    x, W_1, b_1, W_2, b_2 = checks.random_ffn(4)
    one, nothing = np.zeros_like(W_2), np.zeros_like(b_2)
    one[:, 5] = W_2[:, 5]
    match = x @ W_1[5] + b_1[5]
    out = checks.ffn_as_memory(x, W_1, b_1, one, nothing)
    assert (out[match < 0] == 0).all()
    assert (match < 0).any()
    np.testing.assert_allclose(out[match > 0], match[match > 0, None] * W_2[:, 5], atol=1e-15)


def test_active_share_is_the_share_of_positive_keys():
    x, W_1, b_1, _, _ = checks.random_ffn(6)
    hits = [(W_1[i] @ token + b_1[i] > 0) for token in x for i in range(len(W_1))]
    assert checks.active_share(6) == pytest.approx(sum(hits) / len(hits))


def test_each_gap_is_there_without_its_patch_and_gone_with_it(shown):
    linear, rank, scale, order = table(shown, "§0.1")
    assert linear[2] == 0 and linear[4] > 0.1  # noqa: PT018
    assert rank[2] < 1e-12 and rank[4] > 0.05  # noqa: PT018
    assert scale[2] > 50 and 1 < scale[4] < 8  # noqa: PT018
    assert order[2] < 1e-14 and order[4] > 0.1  # noqa: PT018


def test_the_residual_connection_alone_keeps_tokens_apart(shown):
    rng = np.random.default_rng(0)
    y = rng.standard_normal((16, 64))
    for W in [checks.draw_layer(rng, 64) for _ in range(12)]:
        y = y + checks.attention(y, W)
    norms = np.sqrt(((y - y.mean(0)) ** 2).mean(1)).mean(), np.sqrt((y**2).mean(1)).mean()
    assert table(shown, "§0.1")[1][4] == pytest.approx(norms[0] / norms[1], rel=1e-12)


# ── 2, 3: SwiGLU, GELU ───────────────────────────────────────────────────────────────────────────
def test_swiglu_width_is_the_first_multiple_that_is_large_enough():
    for d in range(1, 1200):
        brute = next(m for m in range(256, 10**6, 256) if 3 * m >= 8 * d)
        assert checks.swiglu_width(d) == brute
    published = {4096: 11008, 5120: 13824, 6656: 17920, 8192: 22016}  # Llama 7B, 13B, 33B, 65B
    assert all(checks.swiglu_width(d) == width for d, width in published.items())


def test_swiglu_weights_are_those_of_three_matrices(shown):
    for d, _, d_ff, three, two, more in table(shown, "8d/3"):
        ffn = lm_models.FeedForward(d // 64, d_ff // 64, "swiglu")  # smaller by 64 each way
        assert three == 64**2 * sum(p.numel() for p in ffn.parameters())
        assert two == 8 * d * d
        assert float(more) == pytest.approx(100 * (three - two) / two, abs=0.005)


def test_gelu_is_torchs_in_both_forms():
    x = np.linspace(-8, 8, 1001)
    for form, name in (checks.gelu, "none"), (checks.gelu_tanh, "tanh"):
        expected = F.gelu(tensor(x), approximate=name)
        np.testing.assert_allclose(form(x), expected, rtol=0, atol=1e-15)


def test_the_largest_gelu_difference_is_at_2_70(shown):
    assert float(table(shown, "GELU")[-1][0]) == pytest.approx(2.699, abs=0.001)
    x = torch.linspace(0, 10, 100_001, dtype=torch.float64)
    worst = (F.gelu(x) - F.gelu(x, approximate="tanh")).abs().max().item()
    assert shown.claims["W1D2-010"] == pytest.approx(worst, rel=1e-6)


# ── 4: the residual stream ───────────────────────────────────────────────────────────────────────
def test_attention_is_torchs():
    W = checks.draw_layer(np.random.default_rng(1), checks.WIDTH)
    x = rng.standard_normal((7, checks.WIDTH))
    torchs = nn.MultiheadAttention(checks.WIDTH, checks.HEADS, bias=False, dtype=torch.float64)
    q_k_v = [tensor(W[name].T) for name in ("W_Q", "W_K", "W_V")]  # q_t = W_Qᵀ x_t
    torchs.in_proj_weight.data = torch.cat(q_k_v)
    torchs.out_proj.weight.data = tensor(W["W_O"].T)
    out, A = torchs(*3 * [tensor(x)], average_attn_weights=False)
    np.testing.assert_allclose(checks.attention(x, W), out.detach(), atol=1e-13)
    np.testing.assert_allclose(checks.attention_weights(x, W), A.detach(), atol=1e-14)


def test_block_is_pre_ln_with_a_full_ffn():
    d = checks.WIDTH
    W = checks.draw_layer(np.random.default_rng(2), d)
    x = rng.standard_normal((5, d)) + 3
    a = x + 0.3 * checks.attention(F.layer_norm(tensor(x), (d,)).numpy(), W)
    h = F.gelu(F.layer_norm(tensor(a), (d,)) @ tensor(W["W_1"]).T, approximate="tanh")
    expected = tensor(a) + 0.3 * h @ tensor(W["W_2"]).T
    np.testing.assert_allclose(checks.block(x, W, scale=0.3), expected, atol=1e-13)


def test_layer_norm_is_torchs_whatever_the_other_axes():
    x = rng.standard_normal((2, 3, 5)) + 3
    np.testing.assert_allclose(checks.layer_norm(x), F.layer_norm(tensor(x), (5,)), atol=1e-14)


def test_layers_start_with_unit_gain():
    W = checks.draw_layer(np.random.default_rng(3), 128)
    shapes = {name: M.shape for name, M in W.items()}
    assert shapes == dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), (128, 128)) | {
        "W_1": (512, 128),
        "W_2": (128, 512),
    }
    for name, M in W.items():
        assert M.std() * math.sqrt(512 if name == "W_2" else 128) == pytest.approx(1, rel=0.03)


def test_rms_by_depth_is_one_stack_for_each_depth(monkeypatch):
    monkeypatch.setattr(checks, "DEPTHS", [1, 2, 5])
    drawn = np.random.default_rng(9)
    x = drawn.standard_normal((checks.TOKENS, checks.WIDTH))
    layers = [checks.draw_layer(drawn, checks.WIDTH) for _ in range(5)]
    expected = [[], []]
    for row, power in zip(expected, (0, 0.5)):
        for L in (1, 2, 5):
            y = x
            for W in layers[:L]:
                y = checks.block(y, W, scale=(2 * L) ** -power)
            row.append(np.mean([np.linalg.norm(token) for token in y]) / math.sqrt(checks.WIDTH))
    np.testing.assert_allclose(checks.rms_by_depth(9), expected, rtol=1e-12)


def test_growth_and_spread_are_read_off_the_means(monkeypatch):
    runs = {0: ([1, 2, 5, 9], [1.1, 1.3, 1.2, 1.15]), 1: ([1, 3, 5, 11], [1.1, 1.1, 1.2, 1.05])}
    monkeypatch.setattr(checks, "rms_by_depth", runs.get)
    monkeypatch.setattr(checks, "SEEDS", 2)
    shown = run_parts(checks, parts=[4])
    assert shown.claims["W1D2-014"] == 2
    assert shown.claims["W1D2-015"] == pytest.approx([5 / 2.5, 10 / 5])
    np.testing.assert_allclose(shown.seeds_of["W1D2-015"], [[5 / 2, 9 / 5], [5 / 3, 11 / 5]])
    assert shown.claims["W1D2-016"] == pytest.approx(1.2 / 1.1)
    assert shown.seeds_of["W1D2-016"] == pytest.approx([1.3 / 1.1, 1.2 / 1.05])
    assert table(shown, "RMS of a token")[1] == [
        4, "2.500 (2.000 … 3.000)", "2.50", "1.200 (1.100 … 1.300)",
    ]  # fmt: skip


# ── 5, 6: sinusoids ──────────────────────────────────────────────────────────────────────────────
@some
@given(st.integers(1, 300), st.integers(1, 40).map(lambda half: 2 * half))
def test_positions_are_lm_models_sinusoids(T, d):
    ours = checks.positions(T, d)
    theirs = lm_models.sinusoidal_positions(T, d, dtype=torch.float64)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_a_position_by_the_formula():
    p = checks.positions(60, 8)[53]
    for i in range(4):
        angle = 53 / 10000 ** (2 * i / 8)
        assert p[2 * i] == pytest.approx(math.sin(angle), abs=1e-14)
        assert p[2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-14)


@some
@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))
def test_rotations_compose_and_shift(j, k, t):
    R_j, R_k = checks.rotation(j, 16), checks.rotation(k, 16)
    p = checks.positions(t + k + 1, 16)
    np.testing.assert_allclose(R_k @ p[t], p[t + k], atol=1e-12)
    np.testing.assert_allclose(R_j @ R_k, checks.rotation(j + k, 16), atol=1e-12)
    np.testing.assert_allclose(R_k.T @ R_k, np.eye(16), atol=1e-14)


def test_the_residue_looks_at_every_t():
    p = checks.positions(7, 8)
    assert checks.rotation_residue(p, 3, 2) < 1e-14
    for place, seen in enumerate([True, True, False, True, True, False, False]):  # p_0 p_1, p_3 p_4
        broken = p.copy()
        broken[place] += 1
        assert (checks.rotation_residue(broken, 3, 2) > 0.1) == seen


def test_the_residue_grows_with_t(shown):
    for _, near, middle, far in table(shown, "R_k p_t")[:-1]:
        assert float(near) < 4e-14 < float(middle) < 2e-13 < float(far) < 1e-12
    *_, bound = table(shown, "R_k p_t")
    for half_unit, T in zip(bound[1:], (300, 1100, 4100)):
        assert float(half_unit) == pytest.approx(T * 2**-53, rel=0.02, abs=0)
    assert any("2.8e-14 for t < 200, 4.5e-13 for t < 4000" in note for note in shown.notes)


def test_wavelengths_are_the_lectures(shown):
    assert shown.claims["W1D2-019"] == pytest.approx(2 * math.pi * 10000 ** (62 / 64), rel=1e-12)


def test_schemes_show_each_wall(shown):
    number, fraction, one_hot, binary, sinusoids = table(shown, "§3.2")
    assert all(row[2] == 128 for row in (number, fraction, one_hot, binary, sinusoids))
    assert [row[1] for row in (number, one_hot, binary)] == [1, 128, 7]
    assert number[3] == "127" and number[5] == str(f"{124 * 127:.2g}")  # noqa: PT018
    assert fraction[4].split(" … ")[0] == f"{1 / 128:.3g}"
    assert one_hot[4] == "1.41 … 1.41" and one_hot[5] == "0"  # noqa: PT018
    assert binary[4] == f"1 … {math.sqrt(7):.3g}"
    assert float(sinusoids[5]) < 1e-12


def test_dot_products_by_cosine_sums(shown):
    omega = [10000 ** (-2 * i / 128) for i in range(64)]
    D = [math.fsum(math.cos(w * k) for w in omega) for k in range(4097)]
    rising = [k for k in range(1, 4097) if D[k] > D[k - 1]]
    assert shown.claims["W1D2-022"] == rising[0] == 12
    assert shown.claims["W1D2-023"] == sum(k <= 1024 for k in rising)
    assert shown.claims["W1D2-024"] == pytest.approx(min(D), abs=1e-9)
    for k, *cells in table(shown, "Dot products"):
        assert [float(cell) for cell in cells] == pytest.approx(4 * [D[k]], abs=1e-4)
    first_negative = next(k for k in range(4097) if D[k] < 0)
    assert any(note.endswith(f" {first_negative}") for note in shown.notes)


# ── 7: projection ────────────────────────────────────────────────────────────────────────────────
def test_scores_are_bilinear_forms_of_pairs_three_apart(shown):
    W_Q, W_K = checks.projections(7, 64)
    legacy = np.random.RandomState(7)
    np.testing.assert_array_equal(W_Q * 8, legacy.randn(64, 64))
    np.testing.assert_array_equal(W_K * 8, legacy.randn(64, 64))
    p = lm_models.sinusoidal_positions(300, 64, dtype=torch.float64).numpy()
    q, k = p @ W_Q, p @ W_K  # q_t = W_Qᵀ p_t
    assert shown.claims["W1D2-026"] == pytest.approx([q[t] @ k[t + 3] for t in (10, 110, 200)])
    assert shown.claims["W1D2-025"] == pytest.approx([p[t] @ p[t + 3] for t in (10, 110, 200)])


def test_only_a_matrix_that_commutes_keeps_the_score(shown):
    identity, random, turning = table(shown, "pairs 3 apart")
    assert len(set(identity[1:4])) == len(set(turning[1:4])) == 1
    assert len(set(random[1:4])) == 3
    assert float(identity[4]) < 1e-14 and float(turning[4]) < 1e-14  # noqa: PT018
    assert float(random[4]) > 0.1


def test_four_terms_are_words_and_places_against_words_and_places(shown):
    W_Q, W_K = checks.projections(7, 64)
    words = np.random.default_rng(checks.SEED).standard_normal((2, 64))
    p = checks.positions(300, 64)
    for t, (pair, *terms, together, whole) in zip(
        (10, 110, 200), table(shown, "two words"), strict=True
    ):
        queries = [words[0] @ W_Q, p[t] @ W_Q]
        keys = [words[1] @ W_K, p[t + 3] @ W_K]
        expected = [query @ key for query in queries for key in keys]
        assert pair == f"({t}, {t + 3})"
        assert list(map(float, terms)) == pytest.approx(expected, abs=6e-4)
        assert together == whole == f"{sum(queries) @ sum(keys):.3f}"


# ── 8, 10: parameters ────────────────────────────────────────────────────────────────────────────
@some
@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 6), st.integers(1, 4))
def test_gpt2_shapes_count_as_lm_models_counts(V, P, d, L):
    parameters = list(lm_models.GPT(V, d, L, 1, max_len=P).parameters())
    ours = checks.gpt2_shapes(V, P, d, L)
    assert checks.count_all(ours) == sum(p.numel() for p in parameters)
    expected = Counter(tuple(p.shape) for p in parameters)
    assert Counter(shape for shapes in ours.values() for shape in shapes) == expected


def test_layer_table_agrees_with_its_formulas(shown):
    for _, formula, parameters in table(shown, "One layer"):
        value = 0
        for term in formula.split(" + "):  # such as 4d² or d
            factor, power = term.split("d")
            value += int(factor or 1) * 768 ** (2 if power else 1)
        assert value == parameters


def test_layer_table_says_what_it_should(shown):
    rows = {row[0]: row[2] for row in table(shown, "One layer")}
    assert rows["W_Q, W_K, W_V"] == 3 * (768**2 + 768)
    assert rows["W_1"] - rows["W_2"] == 3 * 768  # biases of 4d against d
    assert rows["sum"] == sum(v for k, v in rows.items() if k != "sum") == 7_087_872


def test_the_original_transformer_against_torchs():
    with torch.device("meta"):
        model = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
    norms = 2 * 2 * 512  # torch adds a final LayerNorm to each half; post-LN needs none
    expected = sum(p.numel() for p in model.parameters()) - norms + 37000 * 512
    assert checks.transformer_parameters() == expected


def test_architectures_count_their_links(shown):
    links = [row[-1] for row in table(shown, "§4.3")]
    causal = sum(j <= t for t in range(8) for j in range(8))
    assert links == ["64", f"64 + {causal} + 64", str(causal)]


def test_berts_tables_have_a_row_for_each_word_place_and_segment():
    shapes = checks.bert_shapes(V=30, P=7, d=4, L=1)
    tables = [shapes[f"{item} embedding"] for item in ("token", "position")]
    assert [*tables, shapes["segments"]] == [[(30, 4)], [(7, 4)], [(2, 4)]]


def test_every_item_of_a_model_has_its_name(shown):
    layer = ["W_Q, W_K, W_V", "W_O", "W_1", "W_2", "LN_1, LN_2"]
    assert [row[0] for row in table(shown, "One layer with biases")] == [*layer, "sum"]
    around = ["token embedding", "position embedding"]
    assert {*checks.bert_shapes(9, 5, 4, 1)} == {
        *around, *layer, "segments", "pooler", "embedding LN"
    }  # fmt: skip
    assert [*checks.llama_shapes(9, 4, 1, 2, 8)] == ["embedding", "blocks", "norm", "output"]


@pytest.mark.slow
def test_published_models_by_hugging_face():
    import transformers as hf

    def size(config, model):
        with torch.device("meta"):
            built = model(config)
        return sum({id(p): p.numel() for p in built.parameters()}.values())

    for _, V, P, d, L, published in checks.GPT2:
        config = hf.GPT2Config(vocab_size=V, n_positions=P, n_embd=d, n_layer=L, n_head=d // 64)
        assert size(config, hf.GPT2LMHeadModel) == published
    ours = checks.count_all(checks.bert_shapes(*checks.BERT[1:]))
    assert size(hf.BertConfig(), hf.BertModel) == ours == 109_482_240
    for _, V, d, L, d_kv, d_ff in checks.LLAMA:
        heads = d // 128
        config = hf.LlamaConfig(
            vocab_size=V, hidden_size=d, num_hidden_layers=L, intermediate_size=d_ff,
            num_attention_heads=heads, num_key_value_heads=heads * d_kv // d,
        )  # fmt: skip
        expected = checks.count_all(checks.llama_shapes(V, d, L, d_kv, d_ff))
        assert size(config, hf.LlamaForCausalLM) == expected


def test_vocabulary_shares(shown):
    rows = {row[0]: row for row in table(shown, "§6.4")}
    totals = {name: row[5] for name, row in rows.items()}
    assert totals["Llama-2-7B"] == 6_738_415_616  # as the released checkpoints hold
    assert totals["Llama-3-8B"] == 8_030_261_248
    assert totals["Llama-3-70B"] == 70_553_706_496
    assert totals["BERT-base"] == 109_482_240
    small = rows["GPT-2 small"]
    assert small[6] == f"{100 * 50257 * 768 / 124_439_808:.2f}"
    rest = 124_439_808 - 50257 * 768
    assert small[7] == f"{100 * 128256 * 768 / (rest + 128256 * 768):.2f}"
    assert rows["Llama-3-8B"][6] == rows["Llama-3-8B"][7]  # its vocabulary is that large
    assert rows["Llama-2-7B"][4] == 2 * 32000 * 4096


# ── 9: operations ────────────────────────────────────────────────────────────────────────────────
class Counted:
    """A number that tells how often such numbers were multiplied."""

    multiplications = 0

    def __init__(self, value):
        self.value = value

    def __mul__(self, other):
        Counted.multiplications += 1
        return Counted(self.value * other.value)

    def __add__(self, other):
        return Counted(self.value + other.value)


@some
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_tally_counts_each_multiplication(n, m, p):
    A, B = rng.standard_normal((n, m)), rng.standard_normal((m, p))
    tally, Counted.multiplications = checks.Tally(), 0
    ours = tally.matmul(A, B)
    theirs = np.vectorize(Counted, otypes=[object])(A) @ np.vectorize(Counted, otypes=[object])(B)
    np.testing.assert_allclose(ours, np.vectorize(lambda c: c.value)(theirs), atol=1e-14)
    assert tally.operations == 2 * Counted.multiplications  # each product is also added


def test_training_counts_by_hand():
    forward = 2 * (48 * 12 + 12 * 48 + 5 * 7)  # one product and one sum for each weight
    assert checks.count_training([(48, 12), (12, 48), (5, 7)]) == (forward, 2 * forward)


def test_training_counts_the_three_products_that_it_needs(monkeypatch):
    made = []

    class Watched(checks.Tally):
        def matmul(self, A, B):
            made.append(super().matmul(A, B))
            return made[-1]

    monkeypatch.setattr(checks, "Tally", Watched)
    checks.count_training([(5, 7)])
    y, x_bar, W_bar = made  # of y = W x with ones everywhere
    np.testing.assert_array_equal(y, np.full((5, 1), 7))
    np.testing.assert_array_equal(x_bar, np.full((7, 1), 5))
    np.testing.assert_array_equal(W_bar, np.ones((5, 7)))


def test_attention_counts_by_hand():
    links = {False: 10 * 10, True: sum(j <= t for t in range(10) for j in range(10))}
    for causal, n in links.items():  # a link: 6 products for its score, 6 for its value
        assert checks.count_attention(10, 6, causal) == 2 * n * (6 + 6)


@pytest.mark.slow
def test_counts_are_those_of_torchs_flop_counter():
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    def flops(function):
        with FlopCounterMode(display=False) as counter:
            function()
        return counter.get_total_flops()

    linear, x = nn.Linear(12, 48, bias=False), torch.ones(1, 12, requires_grad=True)
    y = linear(x).sum()
    expected = flops(lambda: linear(x)), flops(y.backward)
    assert checks.count_training([(48, 12)]) == expected
    q, k, v = torch.ones(3, 10, 6).unbind()
    assert checks.count_attention(10, 6, causal=False) == flops(lambda: (q @ k.T) @ v)


def test_counted_tables_agree_with_their_formulas(shown):
    for T, full, formula, causal, causal_formula in table(shown, "QKᵀ"):
        assert full == formula == 4 * T * checks.COUNT_WIDTH
        assert causal == causal_formula
    assert [row[5] for row in table(shown, "counted as")] == ["6", "6", "6"]


@pytest.mark.parametrize("d", [1, 16, 768])
def test_crossover_is_the_first_length_that_catches_up(d):
    attention, linear = (lambda T: 4 * T * d), 24 * d * d
    T = checks.crossover(d)
    assert attention(T) >= linear > attention(T - 1)


def test_shares_in_closed_form(shown):
    for T in (1, 1024, 4096, 9216):
        kaplan, all_pairs = checks.shares(T, 768, 12)
        assert kaplan == pytest.approx(100 * T / (12 * 768 + T))
        assert all_pairs == pytest.approx(100 * T / (6 * 768 + T))
    rows = table(shown, "convention")
    assert [row[0] for row in rows if "50.0" in row] == [6 * 768, 12 * 768]
    (note,) = [note for note in shown.notes if "crossover 4608 belongs" in note]
    assert "10.0% / 30.8% counted as 2LTd" in note
    assert "18.2% / 47.1%" in note


# ── 11: BPE and WordPiece ────────────────────────────────────────────────────────────────────────
def slow_merges(corpus, wordpiece):
    """The same training on a corpus written out word by word, without the script's helpers."""
    text = [w for w, n in corpus for _ in range(n)]
    words = [[c if i == 0 or not wordpiece else "##" + c for i, c in enumerate(w)] for w in text]
    merges = []
    while any(len(w) > 1 for w in words):
        singles = Counter(piece for w in words for piece in w)
        pairs = Counter(pair for w in words for pair in itertools.pairwise(w))
        order = list(pairs)  # a Counter keeps the order of first sight

        def rank(pair, pairs=pairs, singles=singles, order=order):
            a, b = pair
            score = pairs[pair] / (singles[a] * singles[b]) if wordpiece else pairs[pair]
            return score, -order.index(pair)

        best = max(pairs, key=rank)
        merges.append((best, pairs[best]))
        for w in words:
            i = 0
            while i < len(w) - 1:
                if (w[i], w[i + 1]) == best:
                    w[i : i + 2] = [w[i] + w[i + 1].removeprefix("##")]
                i += 1
    return merges


letters = st.text("abc", min_size=1, max_size=6)
corpora = st.dictionaries(letters, st.integers(1, 9), min_size=1, max_size=5)


@some
@given(corpora.filter(lambda corpus: any(len(word) > 1 for word in corpus)))
def test_every_merge_by_a_slower_route(corpus):
    corpus = list(corpus.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "CORPUS", corpus)
        shown = run_parts(checks, parts=[11])
    for name in "BPE", "WordPiece":
        rows = table(shown, f"{name}: every merge")
        expected = slow_merges(corpus, name == "WordPiece")
        assert [(row[1], row[2]) for row in rows] == [(" + ".join(p), n) for p, n in expected]
        assert rows[-1][4].split() == [word for word, _ in corpus]


def test_scores_at_the_start(shown):
    text = "hug " * 10 + "pug " * 5 + "pun " * 12 + "bun " * 4 + "hugs " * 5
    for pair, ab, a, b, score in table(shown, "At the start"):
        left, right = (piece.removeprefix("##") for piece in pair.split(" + "))
        assert (ab, a, b) == (text.count(left + right), text.count(left), text.count(right))
        assert float(score) == pytest.approx(ab / (a * b), abs=5e-5)


def test_merging_goes_from_the_left():
    assert checks.merge(list("aaaab"), ("a", "a")) == ["aa", "aa", "b"]
    assert checks.merge(list("aaab"), ("a", "a")) == ["aa", "a", "b"]
    assert checks.merge(["h", "##u", "##g"], ("##u", "##g")) == ["h", "##ug"]
    assert checks.merge(list("abab"), ("b", "a")) == ["a", "ba", "b"]


@some
@given(st.text("hugspnb", min_size=1, max_size=8))
def test_encodings_spell_the_word(word):
    merges = [pair for pair, _ in slow_merges(checks.CORPUS, wordpiece=False)]
    assert "".join(checks.encode_bpe(word, merges)) == word
    vocabulary = {"h", "##u", "##g", "hu", "##gs", "hug", "p", "b", "s"}
    split = checks.encode_wordpiece(word, vocabulary)
    if split != ["[UNK]"]:
        assert split[0] + "".join(piece.removeprefix("##") for piece in split[1:]) == word
        assert set(split) <= vocabulary
        rest = word
        for place, piece in enumerate(split):  # nothing longer would have fitted
            bare = piece.removeprefix("##") if place else piece
            longer = [rest[:n] for n in range(len(bare) + 1, len(rest) + 1)]
            assert not {("##" if place else "") + one for one in longer} & vocabulary
            rest = rest[len(bare) :]


def test_new_words(shown):
    assert {row[0]: row[1:] for row in table(shown, "does not hold")} == {
        "pugs": ["pug s", "pug ##s"],
        "bug": ["b ug", "bu ##g"],
        "puns": ["pun s", "pun ##s"],
        "gun": ["g un", "[UNK]"],  # no word of the corpus starts with g
    }


# ── 12: Unigram ──────────────────────────────────────────────────────────────────────────────────
vocabularies = st.dictionaries(
    st.text("abc", min_size=1, max_size=4), st.floats(0.01, 1), max_size=9
)


@some
@given(st.text("abc", min_size=1, max_size=8), vocabularies)
def test_viterbi_against_all_cuts(word, extra):
    p = {"a": 0.1, "b": 0.2, "c": 0.3} | extra
    log_P = {piece: math.log(value) for piece, value in p.items()}
    ways = []
    for cuts in itertools.product([0, 1], repeat=len(word) - 1):  # a cut after a letter, or none
        pieces = [""]
        for letter, cut in zip(word, (*cuts, 0)):
            pieces[-1] += letter
            if cut:
                pieces.append("")
        if all(piece in p for piece in pieces):
            ways.append(pieces)
    assert sorted(checks.segmentations(word, log_P)) == sorted(ways)
    best = checks.viterbi(word, log_P)
    assert len(best) == len(word) + 1  # one entry for each prefix, the empty one too
    found = checks.path(word, best, len(word))
    assert found in ways
    highest = max(math.prod(p[piece] for piece in way) for way in ways)
    assert math.exp(best[-1][0]) == pytest.approx(highest)
    assert math.prod(p[piece] for piece in found) == pytest.approx(highest)
    assert checks.score_of(found, log_P) == pytest.approx(best[-1][0])


def test_sampling_shares_are_probabilities_over_their_sum(shown):
    rows = table(shown, "Every segmentation")
    p = [float(row[2]) for row in rows]
    assert p == sorted(p, reverse=True)
    assert [float(row[3]) for row in rows] == pytest.approx([one / sum(p) for one in p], abs=1e-3)
    assert sum(n for _, n in checks.PIECES) == 100


def test_viterbis_prefixes(shown):
    assert [row[2] for row in table(shown, "Viterbi")] == ["h", "hu", "hug", "hugs"]


# ── wrong constants ──────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        (1, "FFN_WIDTH", 0), (1, "FFN_TOKENS", 0), (1, "TOKENS", 0), (1, "GAP_LAYERS", 0),
        (1, "HEADS", 0), (1, "HEADS", 5), (2, "SWIGLU_WIDTHS", []), (2, "SWIGLU_WIDTHS", [1.5]),
        (2, "MULTIPLE", 0), (4, "DEPTHS", []), (4, "DEPTHS", [4, 1, 16]), (4, "SEEDS", 0),
        (5, "WIDTH", 2), (5, "WIDTH", 7), (5, "SHIFTS", []), (5, "BASE", 0), (6, "D_DOT", 127),
        (6, "D_DOT", 0), (7, "STARTS", [3]), (7, "APART", 0), (9, "COUNT_WIDTH", 0),
        (9, "LENGTHS", []), (10, "LARGE_VOCABULARY", 0), (11, "CORPUS", []),
        (11, "CORPUS", [("", 3)]), (11, "CORPUS", [("hug", 0)]), (12, "WORD", ""),
        (12, "WORD", "hugx"), (12, "PIECES", [("h", 0)]), (12, "PIECES", [("h", 1)]),
    ],
)  # fmt: skip
def test_a_senseless_constant_is_refused_by_name(monkeypatch, part, name, value):
    monkeypatch.setattr(checks, name, value)
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        run_parts(checks, parts=[part])


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        (1, "HEADS", 1), (2, "MULTIPLE", 1), (4, "DEPTHS", [1, 2, 3]), (5, "WIDTH", 8),
        (5, "BASE", 100.0), (5, "BASE", 0.5),
        (6, "D_DOT", 16), (7, "STARTS", [0, 5]), (9, "LENGTHS", [7]), (11, "CORPUS", [("ab", 1)]),
        (11, "NEW_WORDS", []), (12, "WORD", "s"),
    ],
)  # fmt: skip
def test_other_sensible_constants_run(monkeypatch, part, name, value):
    monkeypatch.setattr(checks, name, value)
    assert run_parts(checks, parts=[part]).claims
