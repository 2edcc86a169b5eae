"""Every model of lm_models against an independent route, in float64, values and gradients."""

import copy
import itertools
import math
import pickle

import contract
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import lm_models as lm

B, T, E, H = 3, 7, 5, 6


@pytest.fixture(autouse=True)
def double_precision():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def close(ours, theirs, tolerance=1e-12):
    """Equal up to rounding, relative to the size of the values."""
    assert ours.shape == theirs.shape
    scale = max(1.0, theirs.detach().abs().max().item())
    assert (ours - theirs).abs().max().item() <= tolerance * scale


def same_gradients(ours, theirs, inputs):
    """The gradients of a random linear read-out of two equal outputs, input by input."""
    weights = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * weights).sum(), inputs, retain_graph=True)
    yours = torch.autograd.grad((theirs * weights).sum(), inputs, retain_graph=True)
    for a, b in zip(mine, yours):
        assert b.abs().max() > 0
        close(a, b)


# ── the contract: of lm_models, or of a student's own file with --models ─────────────────────────
@pytest.fixture
def models(own_file):
    return own_file or lm


@pytest.mark.parametrize("check", contract.LM_MODELS, ids=lambda check: check.__name__)
def test_contract(models, check):
    with contract.double_precision():
        check(models)


# ── the same by independent routes, and the rest, of lm_models only ──────────────────────────────
def size(model):
    return sum(p.numel() for p in model.parameters())


def grad_of(output, parameters, weights):
    return torch.autograd.grad((output * weights).sum(), parameters, retain_graph=True)


# ── recurrent networks ───────────────────────────────────────────────────────────────────────────
def torch_rnn(ours):
    """nn.RNN with the weights of our ElmanRNN; its second bias is zero."""
    theirs = nn.RNN(ours.input_size, ours.hidden_size, batch_first=True)
    theirs.weight_ih_l0, theirs.weight_hh_l0, theirs.bias_ih_l0 = ours.W_hx, ours.W_hh, ours.b_h
    theirs.bias_hh_l0.data.zero_()
    return theirs


def test_elman_is_nn_rnn_with_one_bias():
    ours = lm.ElmanRNN(E, H)
    theirs = torch_rnn(ours)
    x, h_0 = torch.randn(B, T, E, requires_grad=True), torch.randn(B, H, requires_grad=True)
    out, h = ours(x, h_0)
    ref, h_ref = theirs(x, h_0[None])
    close(out, ref)
    close(h, h_ref[0])
    close(h, out[:, -1], 0)
    same_gradients(out, ref, [x, h_0, ours.W_hx, ours.W_hh, ours.b_h])
    close(ours(x)[0], ours(x, torch.zeros(B, H))[0], 0)


def test_lstm_cell_takes_torchs_weights_and_gives_its_values_and_gradients():
    theirs = nn.LSTMCell(E, H)
    ours = lm.LSTMCell(E, H)
    ours.load_state_dict(theirs.state_dict())
    x, h, c = (torch.randn(B, n, requires_grad=True) for n in (E, H, H))
    for mine, yours in zip(ours(x, (h, c)), theirs(x, (h, c))):
        close(mine, yours)
        same_gradients(mine, yours, [x, h, c])
        weights = torch.randn_like(mine)
        names = [name for name, _ in theirs.named_parameters()]
        assert names == [name for name, _ in ours.named_parameters()]
        for a, b in zip(
            grad_of(mine, list(ours.parameters()), weights),
            grad_of(yours, list(theirs.parameters()), weights),
        ):
            close(a, b)
    for mine, yours in zip(ours(x), theirs(x)):
        close(mine, yours)


def test_lstm_is_nn_lstm():
    ours, theirs = lm.LSTM(E, H), nn.LSTM(E, H, batch_first=True)
    for name, parameter in ours.cell.named_parameters():
        setattr(theirs, f"{name}_l0", parameter)
    x = torch.randn(B, T, E, requires_grad=True)
    h, c = torch.randn(B, H), torch.randn(B, H)
    out, (h_T, c_T) = ours(x, (h, c))
    ref, (h_ref, c_ref) = theirs(x, (h[None], c[None]))
    close(out, ref)
    close(h_T, h_ref[0])
    close(c_T, c_ref[0])
    same_gradients(out, ref, [x, *ours.parameters()])
    close(ours(x)[0], theirs(x)[0])


def test_recurrent_weights_start_as_torchs_do():
    """U(-1/√H, 1/√H): the bound from H, not from the input size; a third of it as variance."""
    for module in lm.ElmanRNN(400, 100), lm.LSTMCell(400, 100):
        for parameter in module.parameters():
            assert parameter.abs().max() <= 0.1
            assert parameter.abs().max() > 0.095
            assert abs(parameter.mean()) < 0.02
            assert abs(parameter.std() / (0.1 / math.sqrt(3)) - 1) < 0.15


@pytest.mark.parametrize("bias", [0, 1.0, 3, -2.5])
def test_forget_bias_is_the_sum_of_both_biases_in_the_forget_rows_only(bias):
    cell = lm.LSTMCell(E, 40, forget_bias=bias)
    total = (cell.bias_ih + cell.bias_hh).view(4, 40)
    assert (total[1] == bias).all()
    for gate in (0, 2, 3):
        assert total[gate].unique().numel() == 40
        assert total[gate].abs().max() < 2 / math.sqrt(40)
    assert (lm.LSTM(E, 40, bias).cell.bias_ih.view(4, 40)[1] == bias).all()
    assert lm.LSTMCell(E, 40).bias_ih.view(4, 40)[1].unique().numel() == 40


def test_language_models_are_embedding_recurrence_output():
    ids = torch.randint(56, (B, T))
    elman, lstm = lm.RNNLM(56), lm.LSTMLM(56, forget_bias=1)
    assert size(elman) == 11_640  # lecture 1's, one bias
    assert size(lstm) == 30_520
    reference = nn.LSTM(32, 64, batch_first=True)
    for name, parameter in lstm.rnn.cell.named_parameters():
        setattr(reference, f"{name}_l0", parameter)
    for model, recurrent in (elman, torch_rnn(elman.rnn)), (lstm, reference):
        x = F.embedding(ids, model.embedding.weight)
        logits = F.linear(recurrent(x)[0], model.output.weight, model.output.bias)
        close(model(ids), logits)
    assert (lstm.rnn.cell.bias_ih.view(4, 64)[1] == 1).all()


# ── positions ────────────────────────────────────────────────────────────────────────────────────
@given(p=st.integers(0, 300), i=st.integers(0, 15), base=st.sampled_from([10000.0, 100.0]))
def test_sinusoids_entry_by_entry(p, i, base):
    table = lm.sinusoidal_positions(301, 32, base=base, dtype=torch.float64)
    angle = p / base ** (2 * i / 32)
    assert abs(table[p, 2 * i] - math.sin(angle)) < 1e-12
    assert abs(table[p, 2 * i + 1] - math.cos(angle)) < 1e-12


def test_sinusoids_default_to_base_10000_and_torchs_dtype():
    assert lm.sinusoidal_positions(9, 4).dtype == torch.float64  # the default here
    table = lm.sinusoidal_positions(9, 4, dtype=torch.float32)
    assert table.dtype == torch.float32
    assert table.shape == (9, 4)
    assert math.isclose(table[8, 2], math.sin(8 / 100), abs_tol=1e-7)


# ── attention ────────────────────────────────────────────────────────────────────────────────────
def torch_attention(ours):
    """nn.MultiheadAttention with our weights."""
    theirs = nn.MultiheadAttention(ours.d_model, ours.n_heads, batch_first=True)
    q_k_v = [ours.W_q, ours.W_k, ours.W_v]
    theirs.in_proj_weight.data = torch.cat([W.weight.data for W in q_k_v])
    theirs.in_proj_bias.data = torch.cat([W.bias.data for W in q_k_v])
    theirs.out_proj.load_state_dict(ours.W_o.state_dict())
    return theirs


def above_diagonal(T):
    return torch.full((T, T), -torch.inf).triu(1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_attention_is_nn_multihead_attention(causal, n_heads):
    ours = lm.MultiHeadAttention(8, n_heads, causal=causal)
    theirs = torch_attention(ours)
    x = torch.randn(B, T, 8, requires_grad=True)
    mask = above_diagonal(T) if causal else None
    ref, weights = theirs(x, x, x, attn_mask=mask, average_attn_weights=False)
    out = ours(x)
    close(out, ref)
    close(ours.attention(x), weights)
    same_gradients(out, ref, [x])
    read_out = torch.randn_like(out)
    mine = grad_of(out, [W.weight for W in (ours.W_q, ours.W_k, ours.W_v)], read_out)
    close(torch.cat(mine), grad_of(ref, [theirs.in_proj_weight], read_out)[0])


def test_attention_number_by_number():
    """The sums of §3.3 spelt out for one head, without a matrix product."""
    attention = lm.MultiHeadAttention(4, 2)
    x = torch.randn(1, 5, 4)
    matrices = attention.W_q, attention.W_k, attention.W_v
    q, k, v = (W(x)[0].view(5, 2, 2).detach() for W in matrices)  # (T, h, d_k) each
    heads = torch.zeros(5, 2, 2)
    for t, i in itertools.product(range(5), range(2)):
        s = [sum(q[t, i, n] * k[j, i, n] for n in range(2)) / math.sqrt(2) for j in range(t + 1)]
        a = [math.exp(one) / sum(map(math.exp, s)) for one in s]
        for j in range(t + 1):
            heads[t, i] += a[j] * v[j, i]
    close(attention(x)[0], attention.W_o(heads.flatten(1)))


@pytest.mark.parametrize("shape", [(T, T), (1, 1, T, T), (B, 1, T, T), (2, T, T), (B, 2, T, T)])
@pytest.mark.parametrize("causal", [True, False])
def test_extra_mask_is_added_to_the_scores(shape, causal):
    """Any finite number may be added, not only 0; torch's own attention takes the same mask."""
    ours = lm.MultiHeadAttention(8, 2, causal=causal)
    x = torch.randn(B, T, 8)
    ours.extra_mask = torch.randn(shape)
    ours.extra_mask[..., 3, 1] = -torch.inf
    q, k, v = (W(x).view(B, T, 2, 4).transpose(1, 2) for W in (ours.W_q, ours.W_k, ours.W_v))
    mask = ours.extra_mask + (above_diagonal(T) if causal else 0)
    ref = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(B, 2, T, T))
    close(ours(x), ours.W_o(ref.transpose(1, 2).reshape(B, T, 8)))
    weights = ours.attention(x)
    assert (weights[..., 3, 1] == 0).all()
    close(weights.sum(dim=-1), torch.ones(B, 2, T))
    expected = ours(x)
    ours.extra_mask = lambda T, mask=ours.extra_mask: mask  # a function of T does the same
    close(ours(x), expected, 0)


@settings(max_examples=15, deadline=None)
@given(t=st.integers(0, T - 1), norm=st.sampled_from(["pre", "post"]), seed=st.integers(0, 99))
def test_the_future_never_reaches_the_past(t, norm, seed):
    """Change position t: everything before is the same to the last bit, t itself is not."""
    torch.manual_seed(seed)
    x = torch.randn(B, T, 8)
    y = x.clone()
    y[:, t] += torch.randn(8)
    for module in lm.MultiHeadAttention(8, 2), lm.Block(8, 2, norm=norm):
        changed = (module(x) != module(y)).any(dim=-1)
        assert not changed[:, :t].any()
        assert changed[:, t:].all()


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(T)), seed=st.integers(0, 99))
def test_without_a_mask_attention_is_permutation_equivariant(order, seed):
    torch.manual_seed(seed)
    x = torch.randn(B, T, 8)
    for module in lm.MultiHeadAttention(8, 2, causal=False), lm.Block(8, 2, causal=False):
        close(module(x[:, order]), module(x)[:, order])


@settings(max_examples=10, deadline=None)
@given(b=st.integers(0, B - 1), seed=st.integers(0, 99))
def test_a_sequence_does_not_see_its_batch(b, seed):
    torch.manual_seed(seed)
    ids, x = torch.randint(9, (B, T)), torch.randn(B, T, 8)
    for module, data in (
        (lm.GPT(9, 8, 2, 2), ids),
        (lm.LSTMLM(9, 5, 6), ids),
        (lm.RNNLM(9, 5, 6), ids),
        (lm.Block(8, 2, norm="post"), x),
    ):
        close(module(data)[b], module(data[b : b + 1])[0])


def test_masks_that_make_no_sense_are_refused_by_name():
    ours, x = lm.MultiHeadAttention(8, 2), torch.randn(B, T, 8)
    for mask, words in [
        (torch.ones(T, T, dtype=torch.bool), "extra_mask must be a float tensor.*bool"),
        (torch.zeros(T, T, dtype=torch.int64), "extra_mask must be a float tensor.*int64"),
        ([[0.0]], "extra_mask must be a float tensor.*list"),
        (torch.zeros(T, T - 1), r"extra_mask \(7, 6\) does not broadcast to \(3, 2, 7, 7\)"),
        (torch.zeros(2, 1, T, T), r"extra_mask \(2, 1, 7, 7\) does not broadcast"),
        (torch.zeros(1, 1, 1, T, T), "extra_mask .* does not broadcast"),
        (torch.full((T, T), torch.nan), "extra_mask must hold finite numbers or -inf"),
        (torch.full((T, T), torch.inf), "extra_mask must hold finite numbers or -inf"),
    ]:
        ours.extra_mask = mask
        with pytest.raises(ValueError, match=words):
            ours(x)
        with pytest.raises(ValueError, match=words):
            ours.attention(x)


@pytest.mark.parametrize("row", [0, 2, T - 1])
def test_a_query_cut_off_from_every_key_is_named(row):
    ours, x = lm.MultiHeadAttention(8, 2), torch.randn(B, T, 8)
    ours.extra_mask = torch.zeros(2, T, T)
    ours.extra_mask[1, row, : row + 1] = -torch.inf  # the mask and causality together
    with pytest.raises(ValueError, match=f"cuts query row {row} off from every key"):
        ours(x)


# ── feed-forward, block ──────────────────────────────────────────────────────────────────────────
def test_feed_forward_by_formula():
    x = torch.randn(B, T, 6)
    phi = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    tanh = 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    for activation, expected in [
        ("gelu", x * phi),
        ("gelu_tanh", x * tanh),
        ("relu", x.clamp(min=0)),
        ("swiglu", x * torch.sigmoid(x) * 3 * x),
    ]:
        ffn = lm.FeedForward(6, 6, activation)
        for W in (ffn.W_1, ffn.W_2):
            W.weight.data = torch.eye(6)
        if activation == "swiglu":
            ffn.W_3.weight.data = 3 * torch.eye(6)
        else:
            ffn.W_1.bias.data.zero_()
            ffn.W_2.bias.data.fill_(2.0)
            expected = expected + 2.0
        close(ffn(x), expected)


def test_feed_forward_sizes():
    assert lm.FeedForward(12).d_ff == 48
    assert lm.FeedForward(12, activation="swiglu").d_ff == 32  # 8d/3
    assert lm.FeedForward(16, activation="swiglu").d_ff == 43  # 42.67
    assert size(lm.FeedForward(12)) == 8 * 144 + 5 * 12
    assert size(lm.FeedForward(12, activation="swiglu")) == 8 * 144


def test_the_two_gelus_differ_on_the_same_weights():
    exact, tanh = lm.GPT(9, 8, 2, 2), lm.GPT(9, 8, 2, 2, activation="gelu_tanh")
    for p in exact.parameters():
        p.data = torch.randn_like(p)
    tanh.load_state_dict(exact.state_dict())
    ids = torch.randint(9, (B, T))
    assert 0 < (exact(ids) - tanh(ids)).abs().max() < 0.1


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("causal", [True, False])
def test_block_is_nn_transformer_encoder_layer(norm, activation, causal):
    ours = lm.Block(8, 2, norm=norm, activation=activation, causal=causal)
    theirs = nn.TransformerEncoderLayer(
        8, 2, 32, dropout=0.0, activation=activation, batch_first=True, norm_first=norm == "pre"
    )
    theirs.self_attn = torch_attention(ours.attn)
    theirs.linear1, theirs.linear2 = ours.ffn.W_1, ours.ffn.W_2
    for ln in (ours.ln_1, ours.ln_2):
        ln.weight.data, ln.bias.data = torch.randn(8), torch.randn(8)
    theirs.norm1, theirs.norm2 = ours.ln_1, ours.ln_2
    x = torch.randn(B, T, 8, requires_grad=True)
    assert theirs.training  # not its fast path for inference
    ref = theirs(x, src_mask=above_diagonal(T) if causal else None)
    out = ours(x)
    close(out, ref)
    same_gradients(out, ref, [x, *ours.ffn.parameters(), *ours.ln_1.parameters()])
    normed = ours.ln_1(x) if norm == "pre" else x
    close(ours.attention(x), ours.attn.attention(normed), 0)


# ── GPT ──────────────────────────────────────────────────────────────────────────────────────────
def randomised(model):
    """Weights of size 1/√fan instead of 0.02, so that every part matters; LayerNorms too."""
    for p in model.parameters():
        p.data = torch.randn_like(p) / math.sqrt(p.shape[-1])
    return model


@pytest.fixture(scope="module")
def gpt2():
    """A small random GPT-2 of Hugging Face's, no download."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=13,
        n_embd=8,
        n_layer=3,
        n_head=2,
        n_positions=12,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    return randomised(GPT2LMHeadModel(config).double().eval())


def test_gpt_is_hugging_faces_gpt2(gpt2):
    ours = lm.GPT(13, 8, 3, 2, max_len=12, activation="gelu_tanh")
    ours.load_gpt2_state_dict(gpt2.state_dict())
    ids = torch.randint(13, (B, 12))
    theirs = gpt2(ids, output_attentions=True)
    close(ours(ids), theirs.logits)
    for mine, yours in zip(ours.attention(ids), theirs.attentions, strict=True):
        close(mine, yours)
    weights = torch.randn_like(theirs.logits)
    mine = grad_of(
        ours(ids), [ours.token_embedding.weight, ours.position_embedding.weight], weights
    )
    wte_wpe = [gpt2.transformer.wte.weight, gpt2.transformer.wpe.weight]
    for a, b in zip(mine, grad_of(theirs.logits, wte_wpe, weights)):
        close(a, b)


def test_gpt2_weights_load_whole_or_not_at_all(gpt2):
    ours = lm.GPT(13, 8, 3, 2, max_len=12, activation="gelu_tanh")
    before = copy.deepcopy(ours.state_dict())
    good = gpt2.state_dict()
    swapped = {**good, "transformer.h.1.mlp.c_fc.weight": torch.zeros(32, 8)}
    for bad, words in [
        ({k: v for k, v in good.items() if "ln_f.bias" not in k}, "final_norm.bias"),
        ({**good, "transformer.h.3.ln_1.bias": torch.zeros(8)}, "blocks.3.ln_1.bias"),
        (swapped, "blocks.1.ffn.W_1.weight"),
        (
            {**good, "lm_head.weight": good["lm_head.weight"] + 1},
            "lm_head.weight differs from wte.weight; this GPT ties them$",
        ),
    ]:
        with pytest.raises(ValueError, match=f"^state_dict: .*{words}"):
            ours.load_gpt2_state_dict(bad)
        for name, value in ours.state_dict().items():
            assert torch.equal(value, before[name]), name
    with pytest.raises(ValueError, match="position_embedding"):
        lm.GPT(13, 8, 3, 2, max_len=12, positions="none").load_gpt2_state_dict(good)
    triangle = torch.ones(1, 1, 12, 12).tril()
    old = {"transformer.h.0.attn.bias": triangle, **good}
    for n in (1, 2):  # later ones hold bools, and the number of what is cut
        old[f"transformer.h.{n}.attn.bias"] = triangle.bool()
        old[f"transformer.h.{n}.attn.masked_bias"] = torch.tensor(-10000)
    del old["lm_head.weight"]  # as checkpoints of the bare GPT2Model have it
    ours.load_gpt2_state_dict(old)
    ids = torch.randint(13, (B, T))
    close(ours(ids), gpt2(ids).logits)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_gpt_is_its_parts_in_order(positions, norm):
    gpt = randomised(lm.GPT(9, 8, 2, 2, max_len=10, positions=positions, norm=norm))
    ids = torch.randint(9, (B, T))
    table = torch.zeros(T, 8)
    if positions == "learned":
        table = gpt.position_embedding.weight[:T]
    if positions == "sinusoidal":
        table = lm.sinusoidal_positions(T, 8)
    x = gpt.token_embedding.weight[ids] + table
    for block in gpt.blocks:
        assert block.norm == norm
        x = block(x)
    if norm == "pre":
        x = F.layer_norm(x, (8,), gpt.final_norm.weight, gpt.final_norm.bias)
    close(gpt(ids), x @ gpt.token_embedding.weight.T)
    names = {name.split(".")[0] for name in gpt.state_dict()}
    assert ("position_embedding" in names) == (positions == "learned")
    assert ("final_norm" in names) == (norm == "pre")


def test_gpt_starts_as_gpt2_does():
    gpt = lm.GPT(100, 64, 2, 4)
    for name, p in gpt.named_parameters():
        if name.endswith("bias"):
            assert (p == 0).all(), name
        elif ".ln_" in name or "final_norm" in name:
            assert (p == 1).all(), name
        else:
            assert abs(p.std() / 0.02 - 1) < 0.05, name
            assert abs(p.mean()) < 0.002, name
    # small logits: the loss of a fresh model is that of a uniform guess
    ids = torch.randint(100, (8, 20))
    loss = F.cross_entropy(gpt(ids).flatten(0, 1), torch.randint(100, (160,)))
    assert abs(loss - math.log(100)) < 0.05


def test_output_is_tied_to_the_embedding_also_in_copies():
    gpt = lm.GPT(9, 8, 1, 2)
    ids = torch.zeros(1, 1, dtype=torch.int64)
    for model in gpt, copy.deepcopy(gpt), pickle.loads(pickle.dumps(gpt)):
        assert size(model) == lm.gpt_parameter_count(9, 8, 1, 120)["total"]
        before = model(ids)
        model.token_embedding.weight.data[5] += 1  # token 5 is not in ids: only the output moves
        moved = (model(ids) != before).flatten()
        assert moved.tolist() == [n == 5 for n in range(9)]


def test_parameter_count_item_by_item():
    for V, d, L, max_len in (9, 8, 1, 5), (47, 64, 2, 32):
        count = lm.gpt_parameter_count(V, d, L, max_len)
        gpt = lm.GPT(V, d, L, 2, max_len=max_len)
        sizes = {name: p.numel() for name, p in gpt.named_parameters()}
        assert count == {
            "token embedding": sizes["token_embedding.weight"],
            "position embedding": sizes["position_embedding.weight"],
            "attention": sum(n for name, n in sizes.items() if ".attn." in name),
            "feed-forward": sum(n for name, n in sizes.items() if ".ffn." in name),
            "layer norms": sum(n for name, n in sizes.items() if ".ln_" in name),
            "final layer norm": sum(n for name, n in sizes.items() if "final_norm" in name),
            "total": sum(sizes.values()),
        }
    assert lm.gpt_parameter_count(50257, 768, 12, 1024)["total"] == 124_439_808


# ── cut ──────────────────────────────────────────────────────────────────────────────────────────
def test_cut_leaves_no_path_from_the_keys():
    """Cut position 2 for all later queries in every layer: nothing after it can depend on it."""
    gpt = randomised(lm.GPT(9, 8, 3, 2))
    ids = torch.randint(9, (B, T))
    other = ids.clone()
    other[:, 2] = (ids[:, 2] + 1) % 9
    with lm.cut(gpt, slice(3, None), 2):
        same = (gpt(ids) == gpt(other)).all(dim=-1)
        for weights in gpt.attention(ids):
            assert (weights[:, :, 3:, 2] == 0).all()
            assert (weights[:, :, 2, 2] > 0).all()
            close(weights.sum(dim=-1), torch.ones(B, 2, T))
    assert same[:, 3:].all()
    assert not same[:, 2].any()
    assert not (gpt(ids) == gpt(other))[:, 3:].all(dim=-1).any()  # uncut, it does reach them


@pytest.mark.parametrize("layer", [0, 1])
def test_cut_in_one_layer_or_head_touches_no_other(layer):
    gpt = randomised(lm.GPT(9, 8, 2, 4))
    ids = torch.randint(9, (B, T))
    with lm.cut(gpt, queries=[4, -1], keys=(1, 3), layers=layer, heads=[0, 3]):
        zero = torch.stack(gpt.attention(ids)) == 0  # (L, B, h, T, T)
    expected = torch.zeros_like(zero)
    for head, query, key in itertools.product((0, 3), (4, 6), (1, 3)):
        expected[layer, :, head, query, key] = True
    assert torch.equal(zero, expected | torch.ones(T, T).triu(1).bool())


def test_cut_adds_to_what_was_cut_and_restores_it_even_after_an_error():
    gpt = randomised(lm.GPT(9, 8, 2, 2))
    attentions = [block.attn for block in gpt.blocks]
    mine = torch.zeros(T, T)
    mine[5, 0] = -torch.inf
    attentions[1].extra_mask = mine
    ids = torch.randint(9, (B, T))
    with pytest.raises(KeyError), lm.cut(gpt, 5, 1), lm.cut(gpt, 5, [2]):
        first, second = gpt.attention(ids)
        assert (first[..., 5, [1, 2]] == 0).all()
        assert (first[..., 5, 0] > 0).all()
        assert (second[..., 5, [0, 1, 2]] == 0).all()
        raise KeyError
    assert attentions[0].extra_mask is None
    assert attentions[1].extra_mask is mine


def test_cut_refuses_positions_that_are_not_there():
    gpt = lm.GPT(9, 8, 2, 2)
    ids = torch.randint(9, (B, T))
    for arguments, word in [
        ({"queries": T, "keys": 0}, "queries"),
        ({"queries": 1, "keys": [0, -T - 1]}, "keys"),
        ({"queries": 1, "keys": 0, "layers": 2}, "layers"),
        ({"queries": 1, "keys": 0, "heads": 2}, "heads"),
        ({"queries": 1.5, "keys": 0}, "queries"),
        ({"queries": True, "keys": 0}, "queries"),
        ({"queries": 0, "keys": 0}, "query row 0"),
    ]:
        with pytest.raises(ValueError, match=word), lm.cut(gpt, **arguments):
            gpt(ids)


# ── generate ─────────────────────────────────────────────────────────────────────────────────────
def test_generate_at_temperature_0_takes_the_likeliest_each_time():
    gpt = randomised(lm.GPT(9, 8, 2, 2, max_len=12))
    ids = torch.randint(9, (B, 3))
    expected = ids
    for _ in range(5):
        expected = torch.cat([expected, gpt(expected)[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
    assert torch.equal(gpt.generate(ids, 5, temperature=0), expected)
    assert torch.equal(gpt.generate(ids, 5, top_k=1), expected)
    assert torch.equal(gpt.generate(ids, 0), ids)


def test_generate_draws_from_the_softmax_at_its_temperature():
    gpt = randomised(lm.GPT(5, 8, 1, 2))
    gpt.token_embedding.weight.data *= 2
    ids = torch.tensor([[3, 1]]).expand(20_000, 2)
    logits = gpt(ids[:1])[0, -1].detach()
    for temperature, top_k in (1.0, None), (0.5, None), (2.0, 3):
        draws = gpt.generate(ids, 1, temperature, top_k, torch.Generator().manual_seed(0))[:, -1]
        p = torch.softmax(logits / temperature, dim=-1)
        if top_k:
            p[logits.argsort()[:-top_k]] = 0
            p = p / p.sum()
        seen = torch.bincount(draws, minlength=5) / len(draws)
        assert (seen - p).abs().max() < 4 * math.sqrt(0.25 / len(draws))
        assert ((seen == 0) == (p == 0)).all()


def test_generate_repeats_with_its_generator():
    gpt = lm.GPT(50, 8, 1, 2)
    ids = torch.randint(50, (B, 3))
    draw = [gpt.generate(ids, 9, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert torch.equal(draw[0], draw[1])
    assert not torch.equal(draw[0], draw[2])
    assert torch.equal(draw[0][:, :3], ids)
    plain = gpt.generate(ids, 9, 1.0, generator=torch.Generator().manual_seed(0))
    assert torch.equal(draw[0], plain)  # temperature 1 is the default


def test_one_plus_inf_is_refused_and_the_first_blind_row_named():
    ours, x = lm.MultiHeadAttention(8, 2), torch.randn(B, T, 8)
    ours.extra_mask = torch.zeros(T, T)
    ours.extra_mask[3, 1] = torch.inf  # below the diagonal: no -inf to make it NaN
    with pytest.raises(ValueError, match="extra_mask must hold finite numbers or -inf"):
        ours(x)
    ours.extra_mask = torch.zeros(T, T)
    ours.extra_mask[[2, 5]] = -torch.inf
    with pytest.raises(ValueError, match="cuts query row 2 off"):
        ours(x)


@pytest.mark.slow
def test_compiles_whole():
    gpt, ids = lm.GPT(9, 8, 1, 2), torch.randint(9, (B, T))
    gpt.blocks[0].attn.extra_mask = torch.zeros(T, T)
    close(torch.compile(gpt, backend="eager", fullgraph=True)(ids), gpt(ids))


def test_sizes_round_and_buffers_stay_out():
    assert lm.FeedForward(8, activation="swiglu").d_ff == 21  # 21.33
    assert "pe" not in lm.GPT(9, 8, 1, 2, positions="sinusoidal").state_dict()


def test_int32_ids():
    gpt, ids = lm.GPT(9, 8, 1, 2), torch.randint(9, (B, T), dtype=torch.int32)
    close(gpt(ids), gpt(ids.long()), 0)
    assert gpt.generate(ids, 2).dtype == torch.int32


def test_bare_gpt2_checkpoint(gpt2):
    bare = dict(gpt2.transformer.state_dict())  # no "transformer.", no lm_head
    bare["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    ours = lm.GPT(13, 8, 3, 2, max_len=12, activation="gelu_tanh")
    ours.load_gpt2_state_dict(bare)
    ids = torch.randint(13, (B, T))
    close(ours(ids), gpt2(ids).logits)


def test_cut_takes_ranges_sets_and_layers_of_other_head_counts():
    layers = nn.ModuleList([lm.MultiHeadAttention(8, 2), lm.MultiHeadAttention(8, 4)])
    x = torch.randn(B, T, 8)
    with lm.cut(layers, range(4, 6), {1, 3}, heads=-1):
        for layer in layers:
            zero = (layer.attention(x) == 0) & ~torch.ones(T, T).triu(1).bool()
            places = {tuple(p) for p in zero[0].nonzero().tolist()}
            assert places == {(layer.n_heads - 1, q, k) for q in (4, 5) for k in (1, 3)}


# ── wrong input ──────────────────────────────────────────────────────────────────────────────────
IDS, X = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, 8, dtype=torch.float64)
WRONG = {
    "hidden_size must be a whole number, 1 or more, got 0": lambda: lm.ElmanRNN(3, 0),
    "input_size must be a whole number, 1 or more, got 2.5": lambda: lm.LSTMCell(2.5, 3),
    "forget_bias must be a number, got 'one'": lambda: lm.LSTM(3, 3, forget_bias="one"),
    "forget_bias must be a number, got nan": lambda: lm.LSTM(3, 3, forget_bias=math.nan),
    "vocab_size must be a whole number": lambda: lm.RNNLM(-1),
    "d_model must be even .* got 7": lambda: lm.sinusoidal_positions(5, 7),
    "max_len must be a whole number": lambda: lm.sinusoidal_positions(0, 8),
    "base must be a finite number above 0, got -1": lambda: lm.sinusoidal_positions(5, 8, base=-1),
    "base must be a finite number above 0, got 0": lambda: lm.sinusoidal_positions(5, 8, base=0),
    "n_heads must divide d_model, got 3 and 8": lambda: lm.MultiHeadAttention(8, 3),
    "n_heads must be a whole number, 1 or more, got 0": lambda: lm.MultiHeadAttention(8, 0),
    "n_heads must be a whole number, 1 or more, got True": lambda: lm.MultiHeadAttention(8, True),
    "activation must be one of gelu, gelu_tanh, relu, swiglu, got 'silu'": lambda: lm.FeedForward(
        8, activation="silu"
    ),
    "d_ff must be a whole number": lambda: lm.FeedForward(8, d_ff=0),
    "norm must be one of pre, post, got 'rms'": lambda: lm.Block(8, 2, norm="rms"),
    "positions must be one of learned, sinusoidal, none, got 'rope'": lambda: lm.GPT(
        9, 8, 1, 2, positions="rope"
    ),
    "n_layers must be a whole number": lambda: lm.GPT(9, 8, 0, 2),
    "T = 3 tokens, but max_len is 2": lambda: lm.GPT(9, 8, 1, 2, max_len=2)(IDS),
    "max_len is 2": lambda: lm.GPT(9, 8, 1, 2, max_len=2, positions="none").attention(IDS),
    "ids must lie in 0 … 8, got 0 … 9": lambda: lm.GPT(9, 8, 1, 2)(torch.tensor([[0, 9]])),
    "ids must lie in 0 … 8, got -1 … 0": lambda: lm.RNNLM(9)(torch.tensor([[0, -1]])),
    "ids must be integers": lambda: lm.LSTMLM(9)(torch.zeros(2, 3)),
    "ids must be integers .*T >= 1": lambda: lm.GPT(9, 8, 1, 2)(IDS[:, :0]),
    r"x must have shape \(B, T, 8\)": lambda: lm.Block(8, 2)(torch.zeros(2, 3, 7)),
    r"x must have shape \(B, T, 8\) with T >= 1": lambda: lm.FeedForward(8)(X[0]),
    r"x must have shape \(B, T, 8\) with": lambda: lm.MultiHeadAttention(8, 2)(X[:, :0]),
    r"x must have shape \(B, T, 4\)": lambda: lm.LSTM(4, 3)(X),
    r"x must have shape \(B, T, 5\)": lambda: lm.ElmanRNN(5, 3)(X),
    r"x must have shape \(B, T, 6\)": lambda: lm.Block(6, 2).attention(X),
    "ids must be integers .*float": lambda: lm.GPT(9, 8, 1, 2).generate(X[0], 0),
    "d_model must be a whole number, 1 or more, got -8": lambda: lm.FeedForward(-8, d_ff=4),
    r"x must be \(B, 4\)": lambda: lm.LSTMCell(4, 3)(X[0]),
    r"h must have shape \(2, 5\), got \(2, 4\)": lambda: lm.ElmanRNN(8, 5)(X, torch.zeros(2, 4)),
    r"c must have shape \(2, 5\), got \(1, 5\)": lambda: lm.LSTM(8, 5)(
        X, (torch.zeros(2, 5), torch.zeros(1, 5))
    ),
    "temperature must be 0 or a positive number, got -1": lambda: lm.GPT(9, 8, 1, 2).generate(
        IDS, 1, temperature=-1
    ),
    "top_k must be in 1 … 9, got 0": lambda: lm.GPT(9, 8, 1, 2).generate(IDS, 1, top_k=0),
    "top_k must be in 1 … 9, got 10": lambda: lm.GPT(9, 8, 1, 2).generate(IDS, 1, top_k=10),
    r"n_new must be in 0 … 117 \(max_len 120": lambda: lm.GPT(9, 8, 1, 2).generate(IDS, 118),
    "n_new must be in 0 … 117 .* got -1": lambda: lm.GPT(9, 8, 1, 2).generate(IDS, -1),
    "vocab_size must be a whole number, 1 or more": lambda: lm.gpt_parameter_count(0, 8, 1, 4),
    "input_size must be a whole number": lambda: lm.ElmanRNN(0, 3),
    "vocab_size must be a whole number, 1 or more, got 0": lambda: lm.GPT(0, 8, 1, 2),
    "max_len must be a whole number, 1 or more, got 0": lambda: lm.GPT(9, 8, 1, 2, max_len=0),
    "max_len must be a whole number, 1": lambda: lm.gpt_parameter_count(9, 8, 1, 0),
    "base must be a finite number above 0, got inf": lambda: lm.sinusoidal_positions(
        5, 8, base=math.inf
    ),
    "temperature must be 0 or a positive number, got inf": lambda: lm.GPT(9, 8, 1, 2).generate(
        IDS, 1, math.inf
    ),
    "top_k must be in 1 … 9, got 2.5": lambda: lm.GPT(9, 8, 1, 2).generate(IDS, 1, top_k=2.5),
    "n_new must be in .* got 1.0": lambda: lm.GPT(9, 8, 1, 2).generate(IDS, 1.0),
    r"ids must be integers \(B, T\) .*int64 \(3,\)": lambda: lm.GPT(9, 8, 1, 2)(IDS[0]),
    "ids must be integers .*bool": lambda: lm.GPT(9, 8, 1, 2)(IDS.bool()),
    r"x must have .* torch.float64, got torch.float32 \(2, 3, 8\)": lambda: lm.Block(8, 2)(
        X.float()
    ),
    r"h must be a torch.float64 tensor, got torch.float32 \(2, 5\)": lambda: lm.ElmanRNN(8, 5)(
        X, torch.zeros(2, 5).float()
    ),
    r"x must be \(B, 4\) and torch.float64, got torch.float64 \(3, 8\)": lambda: lm.LSTMCell(4, 3)(
        X[0]
    ),
    r"^state must be a pair \(h, c\), got torch.float64 \(2, 5\)": lambda: lm.LSTMCell(8, 5)(
        X[:, 0], torch.zeros(2, 5)
    ),
    r"^h must have shape \(2, 5\), got \(1, 5\)": lambda: lm.LSTMCell(8, 5)(
        X[:, 0], (torch.zeros(1, 5), torch.zeros(2, 5))
    ),
    r"^extra_mask must hold finite numbers or -inf, got NaN or \+inf$": lambda: nan_mask(),
    "^keys must be ints in 0 … 119 or a slice, got None": lambda: masked(keys=None),
    r"^keys must be ints in 0 … 119 or a slice, got \[True\]": lambda: masked(keys=[True]),
    r"^queries must be ints in 0 … 119 or a slice, got slice\(0, 1, 0\)": lambda: masked(
        slice(0, 1, 0)
    ),
    "hidden_size must be a whole number, 1 or more, got -3": lambda: lm.RNNLM(9, 8, -3),
    "d_model must be a whole number, 1 or more, got 0": lambda: lm.sinusoidal_positions(5, 0),
    "d_model must be a whole number, 1 or more, got 1.5": lambda: lm.GPT(9, 1.5, 1, 1),
    "d_model must be a whole number, 1 or more, got -2": lambda: lm.gpt_parameter_count(
        9, -2, 1, 4
    ),
    "dtype must be one of torch's float dtypes, got torch.int64": lambda: lm.sinusoidal_positions(
        5, 8, dtype=torch.int64
    ),
    "dtype must be one of torch's float dtypes, got 'float32'": lambda: lm.sinusoidal_positions(
        5, 8, dtype="float32"
    ),
    r"queries must be ints in 0 … 119 or a slice, got 120": lambda: masked(queries=120),
    "keys must be ints in 0 … 119 or a slice, got 'all'": lambda: masked(keys="all"),
    "state_dict must be a dict from names to tensors, got list": lambda: lm.GPT(
        9, 8, 1, 2
    ).load_gpt2_state_dict([1]),
    "state_dict: 'wte' must be a float tensor, got int 1": lambda: lm.GPT(
        9, 8, 1, 2
    ).load_gpt2_state_dict({"wte": 1}),
    "state_dict: 'wte' must be a float tensor, got torch.int64": lambda: lm.GPT(
        9, 8, 1, 2
    ).load_gpt2_state_dict({"wte": IDS}),
}


def nan_mask():
    attention = lm.MultiHeadAttention(8, 2)
    attention.extra_mask = torch.full((3, 3), math.nan)
    attention(X)


def masked(queries=0, keys=0):
    with lm.cut(lm.GPT(9, 8, 1, 2), queries, keys) as gpt:
        gpt(torch.zeros(1, 120, dtype=torch.int64))


@pytest.mark.parametrize("message", WRONG)
def test_wrong_input_is_named(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()


def test_the_limits_themselves_are_allowed():
    gpt = lm.GPT(9, 8, 1, 2, max_len=3)
    assert gpt(torch.tensor([[0, 8, 0]])).shape == (1, 3, 9)
    assert gpt.generate(IDS[:, :1], 2, top_k=9).shape == (2, 3)
    assert gpt(IDS[:0]).shape == (0, 3, 9)  # an empty batch is a batch
    assert lm.MultiHeadAttention(8, 8)(X).shape == X.shape
    assert lm.sinusoidal_positions(2, 2, base=0.5)[1, 0] == math.sin(1)
    for extreme in torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max:
        assert lm.LSTMCell(3, 3, forget_bias=extreme).bias_ih[3] == extreme


def test_a_model_moves_whole():
    gpt = lm.GPT(9, 8, 1, 2, positions="sinusoidal")
    assert {b.dtype for b in gpt.float().buffers()} == {torch.float32}
    ids = torch.zeros(1, 3, dtype=torch.int64)
    gpt.blocks[0].attn.extra_mask = torch.zeros(3, 3, dtype=torch.float64)
    assert gpt(ids).dtype == torch.float32  # a mask of another dtype follows the scores
    assert gpt.to("meta")(ids.to("meta")).shape == (1, 3, 9)


def test_a_forget_bias_changes_the_forget_gates_rows_alone():
    torch.manual_seed(0)
    plain = lm.LSTMCell(3, 2)
    torch.manual_seed(0)
    biased = lm.LSTMCell(3, 2, forget_bias=1.0)
    for name in ("bias_ih", "bias_hh"):
        before, after = getattr(plain, name), getattr(biased, name)
        assert (before != after).tolist() == [False] * 2 + [True] * 2 + [False] * 4


def test_sinusoidal_positions_are_as_exact_as_the_model():
    """Cast to float64 they are made anew, not float32's numbers with zeros behind."""
    torch.set_default_dtype(torch.float32)
    gpt = lm.GPT(9, 8, 1, 2, positions="sinusoidal").double()
    assert torch.equal(gpt.pe, lm.sinusoidal_positions(120, 8, dtype=torch.float64))
