"""Numbers far out: what formulas promise there, models keep, in every dtype and on every device."""

import math
from decimal import Decimal, getcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lm_models as lm

T, D, V = 6, 8, 9
DTYPES = {torch.float16: 0.02, torch.bfloat16: 0.15, torch.float32: 1e-5, torch.float64: 1e-12}
MODELS = {
    "gpt": lambda: lm.GPT(V, D, 2, 2, max_len=T),
    "gpt sinusoidal": lambda: lm.GPT(V, D, 2, 2, max_len=T, positions="sinusoidal"),
    "gpt post": lambda: lm.GPT(V, D, 2, 2, max_len=T, positions="none", norm="post"),
    "gpt swiglu": lambda: lm.GPT(V, D, 2, 2, max_len=T, activation="swiglu"),
    "rnn": lambda: lm.RNNLM(V, D, D),
    "lstm": lambda: lm.LSTMLM(V, D, D, forget_bias=1),
}
every_model = pytest.mark.parametrize("name", MODELS)


def model_of(name):
    """The model, in float64 and with weights large enough that every part matters."""
    torch.manual_seed(0)
    model = MODELS[name]().double().requires_grad_(False)
    for p in model.parameters():
        p.copy_(torch.randn_like(p) / math.sqrt(p.shape[-1]))
    return model


def some_ids(batch=2, length=T):
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(1))


# ── attention ────────────────────────────────────────────────────────────────────────────────────
def attention_with(scores, dtype=torch.float32, causal=False):
    """A head whose scores (T, T) are these: q are the rows of √d_k S, k the unit vectors."""
    T = len(scores)
    head = lm.MultiHeadAttention(2 * T, 1, causal).to(dtype).requires_grad_(False)
    for W in (head.W_q, head.W_k, head.W_v, head.W_o):
        W.weight.zero_()
        W.bias.zero_()
    head.W_q.weight[:T, :T] = torch.eye(T) * math.sqrt(2 * T)
    head.W_k.weight[:T, T:] = torch.eye(T)
    head.W_v.weight[:T, T:] = torch.eye(T)
    head.W_o.weight[:] = torch.eye(2 * T)
    x = torch.cat([scores, torch.eye(T)], dim=1).to(dtype)[None]  # (1, T, 2T)
    return head, x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_scores_of_ten_thousand(dtype, causal):
    """The largest takes all, ties share, in the forward pass and in finite gradients."""
    scores = torch.tensor([[1e4, -1e4, 0], [-1e4, -1e4, 1e4], [-1e4, 1e4, 1e4]])
    head, x = attention_with(scores, dtype, causal)
    x.requires_grad_()
    expected = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 0.5, 0.5]], dtype=dtype)
    if causal:
        expected[1] = torch.tensor([0.5, 0.5, 0])
    weights = head.attention(x)[0, 0]
    assert torch.equal(weights, expected)
    out = head(x)
    assert torch.equal(out[0, :, :3], expected)
    out.square().sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("score", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_scores_share_equally(score, dtype):
    head, x = attention_with(torch.full((4, 4), score), dtype, causal=True)
    share = 1 / torch.arange(1, 5, dtype=torch.float64)  # query t has t keys
    expected = torch.ones(4, 4, dtype=torch.float64).tril() * share[:, None]
    assert torch.allclose(head.attention(x)[0, 0].double(), expected, atol=DTYPES[dtype] / 10)


def test_one_key_takes_all_whatever_its_score():
    torch.manual_seed(0)
    for scale in 1.0, 1e4:
        head, x = lm.MultiHeadAttention(D, 2), torch.randn(2, 1, D) * scale
        assert torch.equal(head.attention(x), torch.ones(2, 2, 1, 1))
        assert torch.allclose(head(x), head.W_o(head.W_v(x)), rtol=1e-5)


# ── lengths and batches ──────────────────────────────────────────────────────────────────────────
@every_model
def test_one_token_and_as_many_as_fit(name):
    """Of a sequence of max_len tokens, the first has the logits that it has alone."""
    model, ids = model_of(name), some_ids()
    whole = model(ids)
    assert whole.shape == (2, T, V) and whole.isfinite().all()
    assert torch.allclose(model(ids[:, :1]), whole[:, :1], rtol=1e-12)
    if "gpt" in name:
        with pytest.raises(ValueError, match="T = 7 tokens, but max_len is 6"):
            model(some_ids(length=T + 1))
        assert torch.equal(model.generate(ids, 0), ids)  # no room, and none asked for


@every_model
def test_no_sequences_at_all(name):
    model = model_of(name).requires_grad_(True)
    logits = model(some_ids(batch=0))
    assert logits.shape == (0, T, V)
    logits.sum().backward()
    assert all((p.grad == 0).all() for p in model.parameters() if p.grad is not None)
    if "gpt" in name:
        assert [tuple(A.shape) for A in model.attention(some_ids(batch=0))] == 2 * [(0, 2, T, T)]
        assert model.generate(some_ids(0, 2), 3).shape == (0, 5)


# ── LayerNorm ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 4096.0])
def test_a_constant_row_is_normalised_to_zero(value):
    """Its variance is 0, and ε keeps the quotient finite: what is left is β."""
    block = lm.Block(D, 2)
    block.ln_1.bias.data = torch.arange(float(D))
    row = torch.full((1, 1, D), value, requires_grad=True)
    normed = block.ln_1(row)
    assert torch.equal(normed[0, 0], block.ln_1.bias)
    normed.square().sum().backward()
    assert row.grad.isfinite().all() and block(row).isfinite().all()


# ── long and far ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
def test_an_lstm_of_ten_thousand_steps():
    """nn.LSTM's states all the way; a cell whose forget gate is open keeps what it was given."""
    torch.manual_seed(0)
    ours, theirs = lm.LSTM(1, 2).double(), nn.LSTM(1, 2, batch_first=True).double()
    theirs.load_state_dict({f"{n}_l0": p for n, p in ours.cell.state_dict().items()})
    x = torch.randn(1, 10_000, 1, dtype=torch.float64)
    with torch.no_grad():
        out, (h, c) = ours(x)
        ref, (h_ref, c_ref) = theirs(x)
        assert torch.allclose(out, ref, atol=1e-12)
        assert torch.allclose(c, c_ref[0], atol=1e-12)
        keeper = lm.LSTM(1, 2, forget_bias=50).double()  # f = 1 - 2e-22
        for p in keeper.cell.weight_ih, keeper.cell.weight_hh:
            p.zero_()
        keeper.cell.bias_ih[:2] = -800.0  # i = 0: nothing is written
        start = torch.tensor([[0.3, -0.7]], dtype=torch.float64)
        _, (_, kept) = keeper(x, (torch.zeros(1, 2, dtype=torch.float64), start))
    assert torch.equal(kept, start)


def test_sinusoids_at_position_a_million():
    """Against angles of 60 digits: in float64 the angle's own rounding is left, p ω 2^-53."""
    getcontext().prec = 60
    two_pi = 2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
    d, far = 6, 10**6
    table = lm.sinusoidal_positions(far + 1, d, dtype=torch.float64)
    single = lm.sinusoidal_positions(far + 1, d)
    for p in 0, 1, 999_999, far:
        for i in range(d // 2):
            turn = Decimal(p) * Decimal(10_000) ** (Decimal(-2 * i) / Decimal(d)) % two_pi
            for column, exact in (2 * i, math.sin(turn)), (2 * i + 1, math.cos(turn)):
                assert abs(table[p, column] - exact) <= 3e-10
                assert abs(single[p, column] - exact) <= 1e-7  # not the 0.03 of float32 angles
    assert torch.allclose(table.square().sum(dim=1), torch.tensor(d / 2.0).double(), rtol=1e-12)


# ── dtypes and devices ───────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("dtype", DTYPES)
@every_model
def test_every_dtype_gives_the_same_up_to_its_rounding(name, dtype):
    model, ids = model_of(name), some_ids()
    if "gpt" in name:
        model.blocks[1].attn.extra_mask = torch.zeros(T, T).index_fill(
            1, torch.tensor(2), -math.inf
        )
        model.blocks[1].attn.extra_mask[2] = 0
    exact = model(ids)
    lower = model.to(dtype)(ids)
    assert lower.dtype == dtype
    assert (lower.double() - exact).abs().max() <= DTYPES[dtype] * exact.abs().max()


@pytest.mark.slow
@every_model
def test_to_the_meta_device_and_back(name):
    """There it has shapes and no numbers; filled again from its state it is what it was."""
    model, ids = model_of(name), some_ids()
    before, state = model(ids), {k: v.clone() for k, v in model.state_dict().items()}
    assert model.to("meta")(ids.to("meta")).shape == before.shape
    back = model.to_empty(device="cpu")
    back.load_state_dict(state)
    assert torch.equal(back(ids), before)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_exported_it_gives_the_same_logits(positions):
    torch.manual_seed(0)
    gpt, ids = lm.GPT(V, D, 1, 2, max_len=T, positions=positions), some_ids()
    exported = torch.export.export(gpt, (ids,)).module()
    assert torch.allclose(exported(ids), gpt(ids), rtol=1e-6)
    other = (ids + 1) % V
    assert torch.allclose(exported(other), gpt(other), rtol=1e-6)


def test_attention_is_the_same_on_every_path_torch_has():
    """One head against torch's fused attention, with scores far out."""
    torch.manual_seed(0)
    head = lm.MultiHeadAttention(D, 2)
    x = torch.randn(2, T, D) * 100
    q, k, v = (W(x).view(2, T, 2, D // 2).transpose(1, 2) for W in (head.W_q, head.W_k, head.W_v))
    fused = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    assert torch.allclose(head(x), head.W_o(fused), rtol=1e-4, atol=1e-3)
