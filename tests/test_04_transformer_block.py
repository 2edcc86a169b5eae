"""04: each piece of its mathematics once more, by another route."""

import importlib.util
import itertools
import math
from companion import Recorder

import numpy as np
import pytest
import torch
from conftest import run_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

F64 = torch.float64
EACH = ("each token × 0.5 … 100", "每个 token 各乘 0.5 … 100")
HALF = ("4 tokens instead of 8", "8 个 token 只保留 4 个")


@pytest.fixture
def block(script):
    return script("04_transformer_block")


# ── Part 1: LayerNorm ────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("epsilon", [0, 1e-5, 0.3])
def test_layer_norm_and_its_gradients_are_torchs(block, epsilon):
    draws = torch.Generator().manual_seed(0)
    x, gamma, beta = (torch.randn(*s, generator=draws, dtype=F64) for s in ((3, 5, 6), (6,), (6,)))
    for one in (x, gamma, beta):
        one.requires_grad_()
    ours, theirs = (
        block.layer_norm(x, gamma, beta, epsilon),
        F.layer_norm(x, (6,), gamma, beta, epsilon),
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    g, h = (torch.autograd.grad(out.square().sum(), (x, gamma, beta)) for out in (ours, theirs))
    torch.testing.assert_close(g, h, rtol=0, atol=1e-12)


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=9, unique=True), st.floats(0.1, 50))
@settings(max_examples=30, deadline=None)
def test_without_epsilon_only_the_shape_of_a_token_counts(numbers, factor):
    from conftest import load_script

    norm = load_script("04_transformer_block").layer_norm
    x = torch.tensor([numbers], dtype=F64)
    out = norm(x, epsilon=0)
    assert out.mean().abs() < 1e-12 and abs(out.square().mean() - 1) < 1e-12
    assert torch.allclose(norm(factor * x + 7, epsilon=0), out, atol=1e-11)
    assert torch.allclose(norm(-x, epsilon=0), -out, atol=1e-12)


def test_layer_norm_changes_as_epsilon_says(block):
    rng = torch.Generator().manual_seed(3)
    x = (block.INPUT_STD * torch.randn(8, 64, generator=rng, dtype=F64)).numpy()
    centred = x - x.mean(1, keepdims=True)
    variance = x.var(1, keepdims=True)

    def expected(k):  # LN(k x) is LN(x) with ε/k² in place of ε
        return abs(centred * ((variance + 1e-5 / k**2) ** -0.5 - (variance + 1e-5) ** -0.5)).max()

    changes = block.norm_changes(3)
    assert changes["× 100"][0] == pytest.approx(expected(100), rel=1e-6)
    each = expected(np.linspace(0.5, 100, 8)[:, None])
    assert changes[EACH][0] == pytest.approx(each, rel=1e-6)
    assert changes["+ 7"][0] < 1e-14
    assert changes[HALF][0] == 0


def test_layer_norm_residue_is_the_largest_difference(block, monkeypatch):
    draws = torch.Generator().manual_seed(4)
    drawn = [torch.randn(n, 64, generator=draws, dtype=F64) for n in (8, 1, 1)]
    off = torch.zeros(8, 64, dtype=F64)
    off[2, 3], off[5, 6] = 2, -3

    def another(x, gamma, beta):
        assert all(map(torch.equal, (x, gamma, beta), drawn))
        return F.layer_norm(x, (64,), gamma[0], beta[0], 0.5) + off

    monkeypatch.setattr(block, "EPSILON", 0.5)
    monkeypatch.setattr(block, "layer_norm", another)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    assert block.layer_norm_residue(4) == pytest.approx(3)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_done_to_the_tokens(block, monkeypatch):
    seen = []
    monkeypatch.setattr(block, "layer_norm", lambda x: seen.append(x) or x)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    block.norm_changes(4)
    assert torch.equal(torch.get_rng_state(), state)
    x = 3 * torch.randn(8, 64, generator=torch.Generator().manual_seed(4), dtype=F64)
    each = torch.tensor([[0.5 + 99.5 * n / 7] for n in range(8)], dtype=F64)
    for changed, expected in zip(seen[::2], (100 * x, x + 7, each * x, x[:4]), strict=True):
        torch.testing.assert_close(changed, expected, rtol=1e-14, atol=0)
    assert all(torch.equal(unchanged, x) for unchanged in seen[1::2])


def test_batch_norms_epsilon_is_layer_norms(block, monkeypatch):
    monkeypatch.setattr(block, "EPSILON", 0.5)
    x = 3 * torch.randn(8, 64, generator=torch.Generator().manual_seed(4), dtype=F64)
    once, more = (F.batch_norm(k * x, None, None, training=True, eps=0.5) for k in (1, 100))
    change = (more - once).abs().max().item()
    assert block.norm_changes(4)["× 100"][1] == pytest.approx(change)


def test_spread_is_the_median_and_the_extremes(block):
    assert block.spread([3, 1, 20, 2.5, 2]) == "2.5 (1 … 20)"
    assert block.spread([0.25, 0.25]) == "0.25"
    assert block.spread([1, 2], ".1f") == "1.5 (1.0 … 2.0)"
    assert block.spread([2.5e-7]) == "2.5e-07"


def test_a_vector_is_listed_to_four_digits(block):
    assert block.listed(torch.tensor([1.0, -0.34164])) == "[1.0000, -0.3416]"


def test_batch_norm_depends_on_the_other_tokens(block):
    rng = torch.Generator().manual_seed(3)
    x = (block.INPUT_STD * torch.randn(8, 64, generator=rng, dtype=F64)).numpy()

    def batch_norm(x):
        return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)

    changes = block.norm_changes(3)
    half = abs(batch_norm(x[:4]) - batch_norm(x)[:4]).max()
    assert changes[HALF][1] == pytest.approx(half)
    assert changes[EACH][1] > 1 > 1e-4 > changes["× 100"][1]


def test_exercise_5(block):
    show = run_parts(block, [1], seeds=2)
    root = math.sqrt(1.25)
    assert show.claims["L2-168"] == pytest.approx([2.5, root])
    assert show.claims["L2-169a"] == pytest.approx([n / root for n in (-1.5, -0.5, 0.5, 1.5)])
    assert show.claims["L2-169b"] is True
    assert show.claims["L2-078"] == 1e-5
    assert max(show.seeds_of["L2-077"]) < 1e-14


# ── Part 2: depth ────────────────────────────────────────────────────────────────────────────────
def by_torch(block, networks, s):
    """Network s of the stack as nn.Linear modules with the same numbers: (forward, modules)."""

    def module(W, b):
        linear = nn.Linear(*W.shape)
        linear.load_state_dict({"weight": W.detach().T, "bias": b.detach()[0]})
        return linear

    first = module(networks.W_in[s], networks.b_in[s])
    layers = [module(W, b) for W, b in zip(networks.W[s], networks.b[s])]
    last = module(networks.W_out[s], networks.b_out[s])
    norm = nn.LayerNorm(block.WIDTH, elementwise_affine=False)

    def forward(x):
        h = first(x)
        for layer in layers:
            h = layer(h).tanh() if networks.kind == "plain" else layer(norm(h)).tanh() + h
        return last(h)

    return forward, nn.ModuleList([first, *layers, last])


@pytest.mark.parametrize("kind", ["plain", "residual"])
def test_networks_side_by_side_are_networks_one_by_one(block, kind):
    draws = block.generators(range(3))
    X, Y = block.teacher(draws)
    networks = block.Networks(4, kind, draws)
    out = networks(X)
    losses = block.squared_error(out, Y)
    losses.sum().backward()
    found = block.initial_gradients(4, kind, range(3))
    for s in range(3):
        forward, modules = by_torch(block, networks, s)
        answer = forward(X[s])
        torch.testing.assert_close(out[s], answer, rtol=1e-5, atol=1e-5)
        loss = F.mse_loss(answer, Y[s])
        assert losses[s].item() == pytest.approx(loss.item(), rel=1e-5)
        loss.backward()
        norms = torch.stack([layer.weight.grad.norm() for layer in modules[1:-1]])
        torch.testing.assert_close(found[s], norms, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind, rate", [("plain", 1e-3), ("residual", 1e-2)])
def test_training_is_adam_on_minibatches(block, monkeypatch, kind, rate):
    monkeypatch.setattr(block, "RATE", rate)
    seeds, steps = range(2), 3
    found = block.train((3, kind, seeds, steps))
    draws = block.generators(seeds)
    X, Y = block.teacher(draws)
    networks = block.Networks(3, kind, draws)
    for s in seeds:
        forward, modules = by_torch(block, networks, s)
        adam = torch.optim.Adam(modules.parameters(), lr=rate, fused=False)
        order = torch.Generator().manual_seed(block.SEED)
        for _ in range(steps):
            some = torch.randint(len(X[s]), (block.BATCH,), generator=order)
            adam.zero_grad()
            F.mse_loss(forward(X[s][some]), Y[s][some]).backward()
            adam.step()
        assert found[s] == pytest.approx(F.mse_loss(forward(X[s]), Y[s]).item(), rel=1e-4)


def test_a_seed_gives_the_same_network_in_any_company(block):
    alone, together = (
        block.train((2, "residual", [1], 5)),
        block.train((2, "residual", range(3), 5)),
    )
    assert alone[0] == together[1]
    assert len(set(together)) == 3


def test_training_leaves_torchs_stream_alone(block):
    torch.manual_seed(11)
    state = torch.get_rng_state()
    block.train((1, "plain", [0], 1))
    assert torch.equal(torch.get_rng_state(), state)


def test_linear_starts_as_nn_linear_does(block):
    W, b = block.linear(block.generators([0]), 16, 400, 3)
    assert W.shape == (1, 3, 16, 400) and b.shape == (1, 3, 1, 400)
    for one in (W, b):  # U(±1/√16): reaches the bound, standard deviation bound/√3
        assert 0.245 < one.abs().max() <= 0.25
        assert one.std().item() == pytest.approx(0.25 / math.sqrt(3), rel=0.05)


def test_the_teacher_is_two_layers_of_tanh(block):
    X, Y = block.teacher(block.generators([5, 6]))
    draws = torch.Generator().manual_seed(6)
    n = block.TEACHER
    x, W_1, W_2 = (torch.randn(r, n, generator=draws).numpy() for r in (block.EXAMPLES, n, n))
    assert np.allclose(X[1], x)
    assert np.allclose(Y[1], np.tanh(np.tanh(x @ W_1 / np.sqrt(n)) @ W_2 / np.sqrt(n)), atol=1e-5)


def test_target_variance_is_the_loss_of_the_best_constant(block):
    X, Y = block.teacher(block.generators([0, 1]))
    best = [np.linalg.lstsq(np.ones((len(y), 1)), y, rcond=None)[0] for y in Y.numpy()]
    losses = [((y - c) ** 2).mean() for y, c in zip(Y.numpy(), best)]
    assert block.target_variance(Y).tolist() == pytest.approx(losses, rel=1e-5)


def test_threads_are_put_back(block):
    before = torch.get_num_threads()
    with pytest.raises(KeyError), block.threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_seeded_leaves_torchs_stream_alone(block):
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    one, two = (block.seeded(3, lambda: torch.rand(4)) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_norm_gradients_on_blocks_of_known_slope(block, norm, monkeypatch):
    class Twice(nn.Module):  # x → 2 x + W_2 1 with W_2 = 0: every block doubles the gradient
        def __init__(self, d, heads, norm):
            super().__init__()
            self.ffn = nn.Module()
            self.ffn.W_2 = nn.Linear(d, d, bias=False)
            nn.init.zeros_(self.ffn.W_2.weight)

        def forward(self, x):
            return 2 * x + self.ffn.W_2(torch.ones_like(x))

    monkeypatch.setattr(block, "Block", Twice)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    ratio, at_W_2 = block.norm_gradients(norm, 3, 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert ratio == pytest.approx(8, rel=1e-4)
    draws = torch.Generator().manual_seed(0)
    x, u = (torch.randn(32, 32, generator=draws) for _ in range(2))  # (BT, d)
    out, g = 8 * x, u
    if norm == "pre":  # back through the final LayerNorm, by its closed form
        centred = out - out.mean(1, keepdim=True)
        sigma = centred.square().mean(1, keepdim=True).sqrt()
        hat = centred / sigma
        g = (u - u.mean(1, keepdim=True) - hat * (u * hat).mean(1, keepdim=True)) / sigma
    assert at_W_2 == pytest.approx((g.T @ torch.ones(32, 32)).norm().item(), rel=1e-3)


def test_norms_differ_as_the_lecture_says(block):
    pre, post = (
        np.median([block.norm_gradients(n, 8, s) for s in range(3)], 0) for n in ("pre", "post")
    )
    assert pre[0] > 1.1 > post[0]
    assert pre[1] < post[1]


def test_the_plain_gradient_vanishes_and_the_residual_one_does_not(block):
    plain = block.initial_gradients(32, "plain", range(3))
    residual = block.initial_gradients(32, "residual", range(3))
    assert (plain[:, 0] < 1e-4 * plain[:, -1]).all()
    assert (residual[:, 0] > residual[:, -1]).all()


@pytest.mark.slow
def test_depth_part_is_the_same_on_two_processes(block, monkeypatch):
    monkeypatch.setattr(block, "DEPTHS", [2, 3])
    monkeypatch.setattr(block, "NORM_DEPTHS", [1])
    one, two = (run_parts(block, [2], jobs=jobs, quick=True) for jobs in (1, 2))
    assert one.tables == two.tables and one.claims == two.claims


def test_edited_depths_run(block, monkeypatch):
    for name, value in {"DEPTHS": [3, 1], "NORM_DEPTHS": [1], "STEPS": 2, "WIDTH": 3}.items():
        monkeypatch.setattr(block, name, value)
    show = run_parts(block, [2], seeds=2)
    assert set(show.claims) == {"L2-082", "L2-086"}
    first = next(iter(show.tables.values()))
    assert [row[0] for row in first[1]] == [3, 1]


# ── Part 3: parameters ───────────────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def parameters():
    from conftest import load_script

    return run_parts(load_script("04_transformer_block"), [3])


def test_a_layer_holds_what_torchs_own_layer_holds(block):
    for d in (16, 64):
        theirs = nn.TransformerEncoderLayer(d, 2, 4 * d, device="meta")
        parts, matrices, ffn = block.count_layer(d)
        assert sum(parts) == sum(p.numel() for p in theirs.parameters())
        ours = [theirs.self_attn, theirs.linear1, theirs.linear2, theirs.norm1, theirs.norm2]
        counts = [sum(p.numel() for p in m.parameters()) for m in ours]
        assert parts == [counts[0], counts[1] + counts[2], counts[3] + counts[4]]
        assert matrices == 12 * d * d
        assert ffn == 8 / 12


def test_post_norm_has_no_final_layer_norm(block):
    assert block.count_gpt(9, 8, 3, 2, 5) - block.count_gpt(9, 8, 3, 2, 5, norm="post") == 2 * 8


def test_sums_of_the_exercises(parameters):
    d, V, T, L = 1024, 50257, 1024, 24
    layer = 4 * d * d + 4 * d + 8 * d * d + 5 * d + 4 * d
    assert parameters.claims["L2-170"] == [12 * d * d, 13 * d, layer]
    assert parameters.claims["L2-171"] == [L * layer, V * d, T * d, 2 * d]
    assert parameters.claims["L2-172"] == L * layer + V * d + T * d + 2 * d
    assert parameters.claims["L2-089"] == [105_152, 105_152]
    assert parameters.claims["L2-095"] == 4


def test_embeddings_shares(parameters):
    (rows,) = (t[1] for name, t in parameters.tables.items() if name.startswith("GPT, "))
    table = {row[0]: row[1:] for row in rows}
    names = [label for label in table if label.startswith(("token emb", "position emb"))]
    sums = [sum(table[name][n] for name in names) for n in range(3)]
    for total, together, share in zip(
        table["total by the formula"], sums, table["embeddings' share, %"]
    ):
        assert float(share) == pytest.approx(100 * together / total, abs=0.005)
    assert table["counted by PyTorch"] == table["total by the formula"]
    assert sum(table[n][0] for n in list(table)[:6]) == table["total by the formula"][0]


def test_the_small_tables_are_printed_in_full(parameters):
    sizes = {row[0]: row[1:] for row in parameters.tables["Sizes"][1]}
    assert sizes["GPT-2 XL"] == [48, 1600, 6400, 25, 64, 50257, 1024]
    assert sizes["GPT-3"] == [96, 12288, 49152, 96, 128, 50257, 2048]
    assert parameters.tables["Google n-grams, 2006"][1][-1][-1] == 3_795_790_711
    (rows,) = (t[1] for name, t in parameters.tables.items() if name.startswith("small GPT, "))
    assert rows[-1] == ["as reported", "—", 117_000_000, 355_000_000]
    assert parameters.claims["L2-012"] is True and parameters.claims["L2-152a"] is False


@pytest.mark.slow
def test_totals_are_hugging_faces(block):
    from transformers import GPT2Config, GPT2LMHeadModel, OpenAIGPTConfig, OpenAIGPTLMHeadModel

    for name in ("GPT-2 small", "GPT-2 Medium", "GPT-2 XL", "GPT-3"):
        V, d, L, h, T, _ = block.MODELS[name]
        config = GPT2Config(vocab_size=V, n_embd=d, n_layer=L, n_head=h, n_positions=T)
        with torch.device("meta"):
            theirs = GPT2LMHeadModel(config).num_parameters()
        assert block.count_gpt(V, d, L, h, T) == theirs
    V, d, L, h, T, _ = block.MODELS["GPT"]
    config = OpenAIGPTConfig(vocab_size=V, n_embd=d, n_layer=L, n_head=h, n_positions=T)
    with torch.device("meta"):
        theirs = OpenAIGPTLMHeadModel(config).num_parameters()
    assert block.count_gpt(V, d, L, h, T, norm="post") == theirs


# ── Part 4: one forward pass ─────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_causality_is_seen_where_it_is_and_missed_where_it_is_not(block, norm):
    gpt, ids = block.small_gpt(0, norm), block.sequence(0)
    assert ids.shape == (1, 12) and next(gpt.parameters()).dtype == F64
    residues, change = block.prefix_residues(gpt, ids), block.effect_of_change(gpt, ids)
    assert residues.shape == change.shape == (12,)
    assert residues.max() < 1e-15
    assert (change[:6] == 0).all() and (change[6:] > 1e-4).all()
    for one in gpt.blocks:
        one.attn.causal = False
    residues, change = block.prefix_residues(gpt, ids), block.effect_of_change(gpt, ids)
    assert (residues[:-1] > 1e-5).all() and residues[-1] < 1e-15
    assert (change > 1e-5).all()


def test_residues_are_differences_of_logits(block):
    gpt, ids = block.small_gpt(1), block.sequence(1)
    for one in gpt.blocks:
        one.attn.causal = False  # so that there is a difference
    with torch.no_grad():
        expected = [
            (gpt(ids)[0, t] - gpt(ids[:, : t + 1])[0, t]).abs().max().item() for t in range(12)
        ]
    assert block.prefix_residues(gpt, ids).tolist() == pytest.approx(expected)


def test_the_small_gpt_has_the_sizes_of_its_constants(block):
    gpt = block.small_gpt(0)
    assert gpt.token_embedding.weight.shape == (47, 64)
    assert gpt.position_embedding.weight.shape == (32, 64)
    assert [one.attn.n_heads for one in gpt.blocks] == [4, 4]


def test_the_small_gpt_starts_as_gpt_2_does(block):
    gpt = block.small_gpt(0)
    assert gpt.token_embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not torch.equal(gpt.token_embedding.weight, block.small_gpt(1).token_embedding.weight)


def test_the_small_post_norm_gpt_has_no_final_norm(block):
    pre, post = (
        sum(p.numel() for p in block.small_gpt(0, n).parameters()) for n in ("pre", "post")
    )
    assert pre - post == 2 * block.D_MODEL


def test_a_sequence_is_its_seeds_and_leaves_torchs_stream_alone(block):
    torch.manual_seed(11)
    state = torch.get_rng_state()
    ids = block.sequence(3)
    assert torch.equal(torch.get_rng_state(), state)
    draws = torch.Generator().manual_seed(3)
    assert torch.equal(ids, torch.randint(47, (1, 12), generator=draws))


def test_the_seventh_token_becomes_the_next_one(block):
    """Logits that are the token's id, and half of it: the change is how far the id has moved."""
    ids = torch.tensor([[9, 3, 7, 30, 21, 14, 46, 33, 5, 40, 11, 2]])  # 46, the last, becomes 0
    change = block.effect_of_change(lambda ids: ids[..., None] * torch.tensor([1.0, 0.5]), ids)
    assert change.tolist() == [46 * (t == 7) for t in range(1, 13)]


def test_part_4_covers_both_norms_and_all_seeds(block):
    show = run_parts(block, [4], seeds=3)
    assert len(show.seeds_of["L2-096"]) == 2 * 3
    assert show.claims["L2-097"] is True
    ((_, rows),) = show.tables.values()
    assert [row[3:] == ["0", "0"] for row in rows] == [True] * 6 + [False] * 6


def test_part_4_notices_a_leak(block, monkeypatch):
    honest = block.small_gpt

    def leaking(seed, norm="pre"):
        gpt = honest(seed, norm)
        gpt.blocks[1].attn.causal = norm == "pre"
        return gpt

    monkeypatch.setattr(block, "small_gpt", leaking)
    show = run_parts(block, [4], seeds=1)
    assert show.claims["L2-097"] is False
    assert show.verdicts["L2-096"] == "differs"


@pytest.mark.parametrize("position, effect", [(1, 1e-9), (6, 1e-300), (7, 0), (12, 0)])
def test_part_4_looks_at_every_position(block, monkeypatch, position, effect):
    change = torch.tensor([0.0] * 6 + [1.0] * 6, dtype=F64)
    monkeypatch.setattr(block, "effect_of_change", lambda gpt, ids: change)
    assert run_parts(block, [4], seeds=1).claims["L2-097"] is True
    change[position - 1] = effect
    assert run_parts(block, [4], seeds=1).claims["L2-097"] is False


# ── Part 5: FLOPs ────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "d, heads, T", [(8, 1, 5), (8, 4, 5), (12, 3, 33), (1, 1, 1), (64, 4, 640)]
)
def test_flops_are_two_per_multiplication(block, d, heads, T):
    maps = [(d, d)] * 4 + [(d, 4 * d), (4 * d, d)]  # W_q, W_k, W_v, W_o, W_1, W_2
    linear = sum(2 * T * rows * columns for rows, columns in maps)
    per_head = 2 * T * (d // heads) * T + 2 * T * T * (d // heads)  # QKᵀ, AV
    assert block.count_flops(d, heads, T) == (linear, heads * per_head)


@pytest.mark.parametrize("d", [1, 3])
def test_attention_takes_over_after_6d(block, d):
    assert block.first_T_where_attention_leads(d) == 6 * d + 1


@pytest.mark.parametrize("linear, first", [(0, 1), (9, 4), (10, 4), (14, 5)])
def test_every_length_is_tried(block, monkeypatch, linear, first):
    monkeypatch.setattr(block, "count_flops", lambda d, heads, T: (linear, 3 * T))
    assert block.first_T_where_attention_leads(1) == first


def test_part_5_numbers(block, monkeypatch):
    monkeypatch.setattr(block, "time_threads", lambda show: None)
    show = run_parts(block, [5])
    allowed = sum(1 for t in range(2048) for j in range(t + 1))
    assert show.claims["L2-176"] == [allowed, 2048**2]
    assert show.claims["L2-177"] == pytest.approx(100 * allowed / 2048**2)
    assert show.claims["L2-174"] == [8 * 8 * 128 * 128, 4]
    assert show.claims["L2-175"] == [16**2, 1]
    assert show.claims["L2-100"] == pytest.approx(100 * 2048 / (6 * 12288 + 2048))
    assert show.claims["L2-173"] == pytest.approx(25)
    assert show.claims["L2-098"] is True and show.claims["L2-099"] is True
    ((_, rows),) = show.tables.values()
    for _, d, T, linear, attention, share, six_d in rows:
        assert six_d == 6 * d
        assert float(share[:-1]) == pytest.approx(100 * T / (6 * d + T), abs=0.005)
        assert float(attention) / float(linear) == pytest.approx(T / (6 * d), rel=1e-2)


@pytest.mark.parametrize("id, extra", [("L2-098", (2, 0)), ("L2-099", (0, 2))])
def test_part_5_claims_exact_counts(block, monkeypatch, id, extra):
    def count(d, heads, T):
        wrong = T == 2**17  # one product too many, in the last row only
        return 24 * T * d * d + wrong * extra[0], 4 * T * T * d + wrong * extra[1]

    monkeypatch.setattr(block, "time_threads", lambda show: None)
    monkeypatch.setattr(block, "count_flops", count)
    claims = run_parts(block, [5]).claims
    assert [claims["L2-098"], claims["L2-099"]] == [id != "L2-098", id != "L2-099"]


def test_timing_compares_one_thread_with_all_and_puts_them_back(block, monkeypatch):
    used = []

    class Model(nn.Module):
        def __init__(self, *sizes, **more):
            super().__init__()

        def forward(self, ids):
            used.append(torch.get_num_threads())

    for name in ("GPT", "RNNLM", "LSTMLM"):
        monkeypatch.setattr(block, name, Model)
    monkeypatch.setattr(block, "PATIENCE", 0)
    clock = itertools.accumulate(itertools.count())  # 0, 1, 3, 6, …: each interval one longer
    monkeypatch.setattr(block.time, "perf_counter", lambda: next(clock))
    show = Recorder()
    monkeypatch.setattr(block, "cores", lambda: 2)
    before = torch.get_num_threads()
    block.time_threads(show)
    assert torch.get_num_threads() == before
    assert used == [1, 2] * 3 * 2  # GPT, Elman, LSTM: one thread, then all; twice, once to warm up
    # by that clock the warm-up takes intervals 1, 3, 5, …, 11, then 12 starts the patience
    assert show.claims["L2-101"] == pytest.approx([14 / 16, 18 / 20, 22 / 24])


def test_timing_keeps_the_fastest_run(block, monkeypatch):
    now, calls = [0.0], [0]

    class Model(nn.Module):
        def __init__(self, *sizes, **more):
            super().__init__()

        def forward(self, ids):  # warm-up 100 s; then 3 s and 2 s, on two threads 8 s and 4 s
            threads, round_ = torch.get_num_threads(), calls[0] // 6
            now[0] += [{1: 100, 2: 100}, {1: 3, 2: 8}, {1: 2, 2: 4}][round_][threads]
            calls[0] += 1

    for name in ("GPT", "RNNLM", "LSTMLM"):
        monkeypatch.setattr(block, name, Model)
    monkeypatch.setattr(block, "PATIENCE", 3 * (3 + 8) + 1)  # enough to begin a second round
    monkeypatch.setattr(block.time, "perf_counter", lambda: now[0])
    show = Recorder()
    monkeypatch.setattr(block, "cores", lambda: 2)
    block.time_threads(show)
    assert calls[0] == 3 * 6
    assert show.claims["L2-101"] == [0.5] * 3
    ((_, rows),) = show.tables.values()
    assert [row[1:] for row in rows] == [["2000", "4000", "0.5"]] * 3


# ── Part 6: formulas ─────────────────────────────────────────────────────────────────────────────
def test_every_formula_stands_where_the_table_says(block):
    ((header, rows),) = run_parts(block, [6]).tables.values()
    with open(block.lm_models.__file__, encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert len(rows) == len(block.FORMULAS) >= 20
    for _, function, line, code in rows:
        below = "".join("".join(lines[line - 1 : line + 4]).split())
        first_name = code.strip("(").split("(")[0].split(" ")[0]
        assert first_name in lines[line - 1], (code, line)
        assert "".join(code.strip("()").split()) in below or code.startswith("("), (code, line)
        name = function.split(".")[-1]
        above = [one for one in lines[:line] if one.lstrip().startswith("def ")]
        assert above[-1].split("(")[0].split()[-1] == name


def altered_lm_models(block, tmp_path, old, new):
    with open(block.lm_models.__file__, encoding="utf-8") as file:
        text = file.read()
    assert text.count(old) == 1
    path = tmp_path / "altered.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("altered", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_formula_that_is_gone_is_noticed(block, tmp_path):
    code = "q @ k.transpose(-2, -1) / math.sqrt(self.d_k)"
    altered = altered_lm_models(block, tmp_path, code, "q @ k.transpose(-2, -1) / self.d_k")
    with pytest.raises(LookupError, match="attention does not say"):
        block.line_of(code, altered.MultiHeadAttention.attention)


def test_lines_follow_the_code(block, tmp_path):
    code = "q @ k.transpose(-2, -1) / math.sqrt(self.d_k)"
    before = block.line_of(code, block.lm_models.MultiHeadAttention.attention)
    laid_out = (
        "(\n            q @ k.transpose(-2, -1)\n            / math.sqrt(self.d_k)\n        )"
    )
    altered = altered_lm_models(block, tmp_path, code, laid_out)
    assert block.line_of(code, altered.MultiHeadAttention.attention) == before + 1


# ── Constants that make no sense ─────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "part, name, value",
    [
        (1, "EPSILON", -1.0),
        (1, "INPUT_STD", 0),
        (1, "FACTOR", -2.0),
        (2, "DEPTHS", []),
        (2, "DEPTHS", [2, 0]),
        (2, "DEPTHS", [2.5]),
        (2, "NORM_DEPTHS", []),
        (2, "STEPS", 0),
        (2, "BATCH", 0),
        (2, "EXAMPLES", 0),
        (2, "TEACHER", 0),
        (2, "WIDTH", 1),
        (2, "RATE", 0),
        (3, "N_HEADS", 0),
        (3, "N_HEADS", 3),
        (3, "D_MODEL", -1),
        (3, "MAX_LEN", 0),
        (4, "N_LAYERS", 0),
        (4, "VOCAB", 0),
        (4, "VOCAB", 1),
        (4, "TOKENS", 33),
        (4, "TOKENS", 0),
        (4, "CHANGED", 0),
        (4, "CHANGED", 13),
        (5, "TIMED", 0),
        (5, "N_HEADS", True),
    ],
)
def test_a_senseless_constant_is_named(block, monkeypatch, part, name, value):
    monkeypatch.setattr(block, name, value)
    with pytest.raises(ValueError, match=rf"\b{name}\b") as caught:
        run_parts(block, [part], seeds=1)
    assert str(value) in str(caught.value) or str(value).strip("[]").split(", ")[-1] in str(
        caught.value
    )
