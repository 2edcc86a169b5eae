"""The block by other routes: torch's own layer, lm_models, statistics of its dropout and start."""

import inspect
import math

import contract
import contract_w1d2
import pytest
import torch
from conftest import load_script, run_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import lm_models

by_hand = load_script("code/w1d2_block")
F64 = torch.float64
some = settings(max_examples=15, deadline=None)


@pytest.fixture(scope="module")
def shown():
    return run_parts(by_hand)


@pytest.fixture(autouse=True)
def seeded():
    with by_hand.repeatable(1):
        yield


# ── the exercise: of the reference answer, or of a student's own file with --models ──────────────
@pytest.fixture
def models(own_file):
    return own_file or by_hand


@pytest.mark.parametrize("check", contract_w1d2.W1D2_BLOCK, ids=lambda check: check.__name__)
def test_exercise(models, check):
    with contract.double_precision():
        check(models)


# ── the reference answer and its script by other routes ──────────────────────────────────────────
def table(shown, word):
    """The rows of the one table whose title holds the word."""
    (found,) = [rows for title, (_, rows) in shown.tables.items() if word in title]
    return found


def shaken(module):
    """Every parameter moved off its start, so that no bias or gain can hide; float64, eval."""
    for parameter in module.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return module.to(F64).eval()


def test_every_number_agrees(shown):
    assert len(shown.claims) == 11
    assert set(shown.verdicts.values()) == {"ok"}


# ── the block ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_feed_forward_is_lm_models(activation):
    ours = shaken(by_hand.FeedForward(10, activation))  # 8d/3 = 26.67
    theirs = lm_models.FeedForward(10, activation=activation).to(F64)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, 10, dtype=F64)
    torch.testing.assert_close(ours(x), theirs(x))


def test_swiglu_written_out():
    ffn = shaken(by_hand.FeedForward(6, "swiglu"))
    x = torch.randn(2, 3, 6, dtype=F64)
    z, gate = x @ ffn.W_1.weight.T, x @ ffn.W_3.weight.T
    torch.testing.assert_close(ffn(x), (z / (1 + torch.exp(-z)) * gate) @ ffn.W_2.weight.T)


@some
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 9))
def test_block_is_torchs_layer(n_heads, d_k, B, T):
    d = n_heads * d_k
    block = shaken(by_hand.Block(d, n_heads, n_layers=3))
    layer = nn.TransformerEncoderLayer(
        d, n_heads, 4 * d, 0.0, "gelu", batch_first=True, norm_first=True, dtype=F64
    )
    a = block.attn
    stacked = [
        torch.cat([getattr(W, kind) for W in (a.W_q, a.W_k, a.W_v)]) for kind in ("weight", "bias")
    ]
    ours = {"self_attn.in_proj_weight": stacked[0], "self_attn.in_proj_bias": stacked[1]}
    names = {"self_attn.out_proj": a.W_o, "linear1": block.ffn.W_1, "linear2": block.ffn.W_2}
    for name, module in (names | {"norm1": block.ln_1, "norm2": block.ln_2}).items():
        ours |= {f"{name}.{kind}": value for kind, value in module.state_dict().items()}
    layer.load_state_dict(ours)
    x = torch.randn(B, T, d, dtype=F64)
    mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=F64)
    expected = layer(x, src_mask=mask, is_causal=True)
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_block_is_lm_models(activation):
    ours = shaken(by_hand.Block(12, 3, n_layers=2, activation=activation))
    theirs = lm_models.Block(12, 3, activation=activation).to(F64)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 7, 12, dtype=F64)
    torch.testing.assert_close(ours(x), theirs(x))


def test_copied_weights_are_all_the_weights():
    layer = nn.TransformerEncoderLayer(8, 2, 32, batch_first=True, norm_first=True)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    block = by_hand.Block(8, 2, 1)
    by_hand.copy_weights(layer, block)
    expected, copied = ([p.flatten() for p in m.parameters()] for m in (layer, block))
    torch.testing.assert_close(torch.cat(expected).sort()[0], torch.cat(copied).sort()[0])


def test_the_comparison_would_see_a_difference(monkeypatch):
    for name in "W_o", "W_v":
        with monkeypatch.context() as patch:
            right = by_hand.copy_weights

            def wrong(layer, block, right=right, name=name):
                right(layer, block)
                getattr(block.attn, name).weight.data.T.copy_(
                    getattr(block.attn, name).weight.clone()
                )

            patch.setattr(by_hand, "copy_weights", wrong)
            output, gradient, _ = by_hand.compare("gelu", F64)
            assert output > 0.01
            assert gradient > 0.01


def test_the_forgotten_mask_is_a_large_error(shown):
    for *_, output, gradient, unmasked in table(shown, "weights copied"):
        assert max(float(output), float(gradient)) < 1e-5
        assert float(unmasked) > 0.1


def test_the_future_never_reaches_the_past(shown):
    for _, _, _, training, evaluation, past in table(shown, "One block"):
        assert float(training) > 0
        assert float(evaluation) == float(past) == 0


def test_a_leak_from_the_future_would_show(monkeypatch):
    class Leaky(by_hand.Attention):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.causal = False

    monkeypatch.setattr(by_hand, "Attention", Leaky)
    shown = run_parts(by_hand, parts=[1])
    assert all(float(row[-1]) > 1e-3 for row in table(shown, "One block"))


# ── dropout ──────────────────────────────────────────────────────────────────────────────────────
def test_first_dropout_is_on_the_attention_weights():
    attention = by_hand.Attention(16, 2, dropout=0.25).train()
    x = torch.randn(20, 30, 16)
    dropped = attention.attention(x)
    kept = attention.eval().attention(x)
    seen = kept > 0
    zero = (dropped == 0) & seen
    assert zero.sum() / seen.sum() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(dropped[seen & ~zero], kept[seen & ~zero] / 0.75)
    attention.dropout.p = 1.0  # every weight gone: only W_o's bias is left
    attention.train()
    torch.testing.assert_close(attention(x), attention.W_o.bias.expand_as(x))


def test_second_dropout_is_on_both_branches_and_not_on_the_stream():
    block = by_hand.Block(16, 2, 1, dropout=0.0).train()
    x = torch.randn(2, 5, 16)
    block.dropout.p = 1.0
    torch.testing.assert_close(block(x), x, rtol=0, atol=0)
    block.dropout.p = 0.5
    zeroed = 0.0
    for _ in range(40):  # an entry stays as it was only if both of its branches were dropped
        zeroed += (block(x) == x).float().mean().item() / 40
    assert zeroed == pytest.approx(0.25, abs=0.03)


def test_third_dropout_is_on_the_embeddings():
    model = by_hand.Decoder(9, 5, 8, 1, 2, dropout=0.0).train()
    ids = torch.tensor([[1, 2, 3]])
    model.dropout.p = 1.0
    nothing = model.final_norm(model.blocks(torch.zeros(1, 3, 8)))
    torch.testing.assert_close(model(ids), nothing @ model.token_embedding.weight.T)


def test_dropout_defaults_to_the_papers_in_all_places():
    model = by_hand.Decoder(9, 5, 8, 2, 2)
    rates = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    assert rates == [0.1] * (1 + 2 * 2)  # embeddings; weights and branches of two blocks


# ── the start ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_output_projections_start_smaller(activation):
    block = by_hand.Block(128, 4, n_layers=18, activation=activation)
    for name, module in block.named_modules():
        if isinstance(module, nn.Linear):
            gain = module.weight.std().item() * math.sqrt(module.in_features)
            expected = 1 / 6 if name in ("attn.W_o", "ffn.W_2") else 1  # 1/√(2 · 18)
            assert gain == pytest.approx(expected, rel=0.03), name
            assert module.bias is None or (module.bias == 0).all()


def test_tables_of_the_start(shown):
    gains = {row[0]: float(row[1]) for row in table(shown, "L = 64")}
    for name, gain in gains.items():
        expected = 1 / math.sqrt(128) if name in ("attn.W_o", "ffn.W_2") else 1
        assert gain == pytest.approx(expected, rel=0.05)
    unscaled, scaled = zip(*[map(float, row[1:]) for row in table(shown, "residual stream")])
    assert unscaled[-1] > 4 * unscaled[0]
    assert max(scaled) / min(scaled) < 1.1


def test_unscaled_means_unscaled():
    x = torch.randn(by_hand.BATCH, by_hand.TOKENS, by_hand.WIDTH)
    assert by_hand.rms(3 * torch.ones(2, 4)) == 3
    assert by_hand.rms(torch.tensor([[3.0, 4.0], [0.0, 0.0]])) == pytest.approx(math.sqrt(12.5) / 2)
    with by_hand.repeatable(by_hand.SEED):
        x = torch.randn(by_hand.BATCH, by_hand.TOKENS, by_hand.WIDTH)
        block = by_hand.Block(by_hand.WIDTH, by_hand.HEADS, n_layers=1).eval()
        for W in block.attn.W_o, block.ffn.W_2:
            W.weight.data *= math.sqrt(2)
        expected = by_hand.rms(block(x))
    assert by_hand.stream_rms(1, scaled=False) == pytest.approx(expected, rel=1e-5)


# ── the stack ────────────────────────────────────────────────────────────────────────────────────
@some
@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3))
def test_decoder_counts_by_the_formula(V, P, d, L):
    model = by_hand.Decoder(V, P, 2 * d, L, 2)
    expected = lm_models.gpt_parameter_count(V, 2 * d, L, P)["total"]
    assert by_hand.n_parameters(model) == expected


def test_decoder_is_lm_models_gpt():
    ours = shaken(by_hand.Decoder(11, 8, 12, 2, 3))
    theirs = lm_models.GPT(11, 12, 2, 3, max_len=8).to(F64)
    theirs.load_state_dict(ours.state_dict())
    ids = torch.randint(11, (2, 8))
    torch.testing.assert_close(ours(ids), theirs(ids))


def test_count_table_adds_up(shown):
    *parts, whole = table(shown, "V = 50257")
    assert whole[-1] == sum(row[-1] for row in parts) == 124_439_808
    assert all(row[2] == row[3] for row in parts)


# ── torch's defaults ─────────────────────────────────────────────────────────────────────────────
def test_defaults_are_read_from_torch(shown):
    layer = nn.TransformerEncoderLayer(4, 1)
    assert layer.linear1.out_features == shown.claims["W1D2-054"]
    assert layer.dropout.p == 0.1
    assert layer.norm_first is layer.self_attn.batch_first is False
    assert layer.activation is F.relu
    assert by_hand.defaults(lambda a, b=2, *, c=None: 0) == {"b": 2, "c": None}


def test_each_pitfall_is_measured(shown):
    rows = table(shown, "Each default")
    post, leak, width, size, norm, warned, copies = [row[1:] for row in rows]
    assert post[0] == pytest.approx(1, abs=1e-3)
    assert post[1] > 50
    assert leak[0] > 0.01
    assert leak[1] == 0
    assert width == [2048 / 768, 4]
    assert size == [4 * 768**2 + 2 * 768 * 2048 + 2048 + 9 * 768, 12 * 768**2 + 13 * 768]
    assert norm[1] == pytest.approx(1, abs=1e-3)
    assert warned == [1, 0]
    assert copies == [1, by_hand.ENCODER_LAYERS]


def test_rms_without_the_final_norm_is_measured_on_every_seed(shown):
    seeds = shown.seeds_of["W1D2-058"]
    assert len(set(seeds)) == by_hand.SEEDS
    assert shown.claims["W1D2-058"] == seeds[0]
    with by_hand.repeatable(4):
        layer = nn.TransformerEncoderLayer(64, 4, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()
        y = encoder(torch.randn(by_hand.BATCH, by_hand.TOKENS, 64))
    assert seeds[4] == pytest.approx((y**2).mean(-1).sqrt().mean().item(), rel=1e-5)


# ── positions ────────────────────────────────────────────────────────────────────────────────────
@some
@given(st.integers(1, 20).map(lambda half: 2 * half), st.integers(1, 50), st.floats(2, 1e5))
def test_sinusoids_are_lm_models(d, T, base):
    module = by_hand.SinusoidalPositions(d, max_len=T, base=base).to(F64)
    expected = lm_models.sinusoidal_positions(T, d, base)
    torch.testing.assert_close(module.pe, expected.to(F64), rtol=0, atol=2e-7)
    x = torch.randn(2, T, d, dtype=F64)
    for part in x, x[:, : T // 2 + 1]:  # shorter than the table: its first rows
        added = module.pe[: part.shape[1]].expand_as(part)
        torch.testing.assert_close(module(part) - part, added)
    assert not module.state_dict()  # it can be rebuilt


def test_sinusoids_refuse_what_they_cannot_do():
    for d in 7, 1, 0:
        with pytest.raises(ValueError, match=f"even.*got {d}"):
            by_hand.SinusoidalPositions(d)
    with pytest.raises(ValueError, match="T = 6 tokens, but max_len is 5"):
        by_hand.SinusoidalPositions(4, max_len=5)(torch.zeros(1, 6, 4))


def test_slices_fill_the_same_table_when_d_is_even():
    table = by_hand.fill_by_slices(8)
    expected = lm_models.sinusoidal_positions(4, 8)
    torch.testing.assert_close(table, expected)


def test_errors_are_the_ones_named(shown):
    assert [row[1] for row in table(shown, "stop")] == [
        "", "IndexError", "", "RuntimeError", "ValueError", "ValueError",
    ]  # fmt: skip


def test_float32_angles_cost_four_digits(shown):
    kept, lost = (float(row[1]) for row in table(shown, "price"))
    assert kept < 1e-7
    assert 1e-5 < lost < 1e-3


# ── the script ───────────────────────────────────────────────────────────────────────────────────
def test_repeatable_leaves_no_trace():
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.manual_seed(3)
    torch.set_num_threads(2)
    with pytest.raises(KeyError), by_hand.repeatable(8):
        torch.randn(5)
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.equal(torch.randn(4), expected)
    assert torch.get_num_threads() == 2


def test_the_block_says_what_it_takes():
    assert list(inspect.signature(by_hand.Block).parameters) == [
        "d", "n_heads", "n_layers", "activation", "dropout",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="relu, gelu, swiglu, got 'tanh'"):
        by_hand.Block(4, 2, 1, activation="tanh")


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        (1, "HEADS", 5), (2, "HEADS", 0), (3, "WIDTH", 6), (5, "WIDTH", 0), (5, "BATCH", 1),
        (1, "TOKENS", 1), (1, "DROPOUT", 1.5), (3, "DEPTHS", []), (3, "DEPTHS", [0]),
        (6, "MAX_LEN", 0),
    ],
)  # fmt: skip
def test_a_senseless_constant_is_refused_by_name(monkeypatch, part, name, value):
    monkeypatch.setattr(by_hand, name, value)
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        run_parts(by_hand, parts=[part])
