"""--models: each mistake, planted in a right file, is called by its name; a right file by none."""

import itertools
import os
import subprocess
import sys
import types
from companion import ROOT

import conftest
import contract
import contract_w1d2
import diagnosis as d
import pytest
import torch

FILES = {
    "by_hand": ROOT / "tests/own_models/by_hand.py",
    "with_torch": ROOT / "tests/own_models/with_torch.py",
    "block_by_hand": ROOT / "tests/own_models/block_by_hand.py",
    "lm_models": ROOT / "lm_models.py",
}
CHECKS = {check.__name__: check for check in contract.LM_MODELS}
BLOCK_CHECKS = {check.__name__: check for check in contract_w1d2.W1D2_BLOCK}


def module_of(name, *changes):
    """The file as a module, after (old, new) replacements in its text."""
    path = FILES[name]
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, f"{old!r} is no longer in {path.name}"
        text = text.replace(old, new)
    module = types.ModuleType("own_models")
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), vars(module))
    return module


def outcome(check, module):
    """("passed" | "failed" | "skipped", what it says)."""
    with contract.double_precision():
        try:
            check(module)
        except pytest.fail.Exception as failed:
            assert failed.__context__ is None  # or pytest shows that error before the sentence
            return "failed", str(failed)
        except pytest.skip.Exception as skipped:
            return "skipped", str(skipped)
    return "passed", ""


def outcomes(module, checks=CHECKS):
    return {name: outcome(check, module) for name, check in checks.items()}


# ── a right file ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", ["lm_models", "by_hand", "with_torch"])
def test_a_right_file_is_called_right(name):
    found = outcomes(module_of(name))
    assert not [said for verdict, said in found.values() if verdict == "failed"]
    skipped = [said for verdict, said in found.values() if verdict == "skipped"]
    assert all(said.startswith("not there yet: ") for said in skipped)
    assert not (name == "lm_models" and skipped)


def test_a_right_block_is_called_right(script):
    for module in script("code/w1d2_block"), module_of("block_by_hand"):
        assert {verdict for verdict, _ in outcomes(module, BLOCK_CHECKS).values()} == {"passed"}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 6))
def test_a_right_file_is_right_for_any_numbers(number, monkeypatch):
    """The verdict does not hang on one draw."""
    monkeypatch.setattr(contract, "SEED", number)
    for name in "lm_models", "by_hand", "with_torch":
        assert "failed" not in {verdict for verdict, _ in outcomes(module_of(name)).values()}


# ── planted mistakes ─────────────────────────────────────────────────────────────────────────────
CELL, SPLIT = "z.chunk(4, dim=1)", "view(B, T, self.n_heads, self.d_k).transpose(1, 2)"
MASK = "future = torch.ones(T, T).triu(1).bool()"
FILL = 'S = S.masked_fill(future, float("-inf"))'
MERGE = "(A @ v).transpose(1, 2).reshape(B, T, d)"
ATTEND = "x = x + self.mha(self.norm_a(x))"
FEED = "return x + self.down(self.act(self.up(self.norm_b(x))))"
STD = "unbiased=False"
W = "w = torch.exp(-math.log(base) * torch.arange(0, d_model, 2) / d_model)"
HEAD = "return self.head(self.norm(x))"
POS = "self.pos(torch.arange(ids.shape[1]))"
BY_HAND = [
    ("lstm_cell", "gate order igfo", (f"i, f, g, o = {CELL}", f"i, g, f, o = {CELL}")),
    ("lstm_cell", "gate order ifog", (f"i, f, g, o = {CELL}", f"i, f, o, g = {CELL}")),
    ("lstm_cell", "gate order figo", (f"i, f, g, o = {CELL}", f"f, i, g, o = {CELL}")),
    ("lstm_cell", "gate order fiog", (f"i, f, g, o = {CELL}", f"f, i, o, g = {CELL}")),
    ("lstm_cell", "every fourth row", (CELL, "z.view(len(z), -1, 4).unbind(2)")),
    ("lstm_cell", "cell tanh missing", ("h = o * torch.tanh(c)", "h = o * c")),
    ("lstm_cell", "cell sigmoid", ("h = o * torch.tanh(c)", "h = o * torch.sigmoid(c)")),
    ("lstm_cell", "candidate sigmoid", ("g = torch.tanh(g)", "g = torch.sigmoid(g)")),
    ("lstm_cell", "candidate tanh missing", ("g = torch.tanh(g)", "")),
    ("lstm_cell", "input gate missing", ("c = f * c + i * g", "c = f * c + g")),
    ("lstm_cell", "forget gate missing", ("c = f * c + i * g", "c = c + i * g")),
    ("lstm_cell", "coupled gates", ("c = f * c + i * g", "c = f * c + (1 - f) * g")),
    ("lstm_cell", "old cell read", ("c = f * c + i * g\n        h = o * torch.tanh(c)",
                                    "h = o * torch.tanh(c)\n        c = f * c + i * g")),
    ("lstm_cell", "bias_hh missing", (" + self.bias_hh\n", "\n")),
    ("lstm_cell", "bias_ih missing", (" + self.bias_ih", "")),
    ("lstm_cell", "forget bias in forward", ("torch.sigmoid(f)", "torch.sigmoid(f + 1.0)")),
    ("lstm_cell", "state returned c, h", ("return h, c", "return c, h")),
    ("lstm_cell", "state taken c, h", ("h, c = state\n", "c, h = state\n")),
    ("lstm_cell", "cell in the gates", ("h @ self.weight_hh.T", "c @ self.weight_hh.T")),
    ("lstm", "state not carried", ("self.step(x[:, t], state)", "self.step(x[:, t])")),
    ("lstm", "outputs c", ("hs.append(state[0])", "hs.append(state[1])")),
    ("positions", "sinusoids from 1", ("torch.arange(max_len)", "torch.arange(1, max_len + 1)")),
    ("positions", "sin and cos swapped", ("pe[:, 0::2]", "pe[:, 2::2]"), ("pe[:, 1::2]",
     "pe[:, 0::2]"),
     ("pe[:, 2::2]", "pe[:, 1::2]")),
    ("positions", "not interleaved", ("pe[:, 0::2]", "pe[:, : d_model // 2]"),
     ("pe[:, 1::2]", "pe[:, d_model // 2 :]")),
    ("positions", "own frequency", (W, "w = base ** (-torch.arange(d_model) / d_model)"),
     ("sin(pos * w)", "sin(pos * w)[:, 0::2]"), ("cos(pos * w)", "cos(pos * w)[:, 1::2]")),
    ("positions", "exponent i/d", (W, "w = base ** (-torch.arange(d_model // 2) / d_model)")),
    ("positions", "exponent 4i/d", (W, "w = base ** (-2 * torch.arange(0, d_model, 2) / d_model)")),
    ("positions", "frequency inverted", ("exp(-math", "exp(math")),
    ("positions", "base ignored", ("math.log(base)", "math.log(10000)")),
    ("attention", "sqrt missing", (" / math.sqrt(self.d_k)", "")),
    ("attention", "sqrt of d_model", ("math.sqrt(self.d_k)", "math.sqrt(d)")),
    ("attention", "d_k without root", ("math.sqrt(self.d_k)", "self.d_k")),
    ("attention", "scale multiplied", ("/ math.sqrt(self.d_k)", "* math.sqrt(self.d_k)")),
    ("attention", "softmax over queries", ("softmax(S, dim=-1)", "softmax(S, dim=-2)")),
    ("attention", "softmax over heads", ("softmax(S, dim=-1)", "softmax(S, dim=1)")),
    ("attention", "softmax over batch", ("softmax(S, dim=-1)", "softmax(S, dim=0)")),
    ("attention", "mask missing", ("if self.causal:", "if False:")),
    ("attention", "diagonal cut", ("triu(1)", "triu(0)")),
    ("attention", "diagonal cut", ("triu(1)", "triu()"), ('float("-inf")', "-1e9")),
    ("attention", "one future token", ("triu(1)", "triu(2)")),
    ("attention", "mask reversed", (FILL, FILL.replace("future", "~future"))),
    ("attention", "past blocked", ("triu(1)", "tril(-1)")),
    ("attention", "mask adds 1", (FILL, "S = S + future")),
    ("attention", "mask adds 1 to the past", (FILL, "S = S + torch.ones(T, T).tril()")),
    ("attention", "mask times 0", (FILL, "S = S * ~future")),
    ("attention", "mask times 0", ('float("-inf")', "1e-9")),
    ("attention", "mask adds 1 to the past", (FILL, "S = S - future.to(S)")),
    ("attention", "mask adds -10", (FILL, "S = S - 10 * future")),
    ("attention", "mask after softmax", (FILL, ""), ("A = torch.softmax(S, dim=-1)",
                                                     "A = torch.softmax(S, dim=-1) * ~future")),
    ("attention", "split and merge without transpose", (SPLIT,
     "view(B, self.n_heads, T, self.d_k)"),
     (MERGE, "(A @ v).reshape(B, T, d)")),
    ("attention", "split without transpose", (SPLIT, "view(B, self.n_heads, T, self.d_k)")),
    ("attention", "merge without transpose", (MERGE, "(A @ v).reshape(B, T, d)")),
    ("attention", "every h-th number", (SPLIT,
     "view(B, T, self.d_k, self.n_heads).permute(0, 3, 1, 2)"),
     (MERGE, "(A @ v).permute(0, 2, 3, 1).reshape(B, T, d)")),
    ("attention", "every h-th number, merged as neighbours", (SPLIT,
     "view(B, T, self.d_k, self.n_heads).permute(0, 3, 1, 2)")),
    ("attention", "one head", (SPLIT, "view(B, T, 1, d).transpose(1, 2)"),
     ("math.sqrt(self.d_k)", "math.sqrt(d)")),
    ("attention", "one head", (SPLIT, "view(B, T, 1, d).transpose(1, 2)")),
    ("attention", "W_o missing", ("return self.W_o(out)", "return out")),
    ("attention", "v from W_k", ("v = self.W_v(x)", "v = self.W_k(x)")),
    ("attention", "v unprojected", ("v = self.W_v(x)", "v = x")),
    ("attention", "q from W_k", ("q = self.W_q(x)", "q = self.W_k(x)")),
    ("attention", "k from W_q", ("k = self.W_k(x)", "k = self.W_q(x)")),
    ("attention", "scores transposed", ("q @ k.transpose(-2, -1)", "k @ q.transpose(-2, -1)")),
    ("block", "post-norm", (ATTEND, "x = self.norm_a(x + self.mha(x))"),
     (FEED, "return self.norm_b(x + self.down(self.act(self.up(x))))")),
    ("block", "normed residual", (ATTEND, "x = self.norm_a(x); x = x + self.mha(x)"),
     (FEED, "x = self.norm_b(x); return x + self.down(self.act(self.up(x)))")),
    ("block", "residual 1 missing", (ATTEND, ATTEND.replace("x + ", ""))),
    ("block", "residual 2 missing", (FEED, FEED.replace("x + ", ""))),
    ("block", "residuals missing", (ATTEND, ATTEND.replace("x + ", "")), (FEED,
     FEED.replace("x + ", ""))),
    ("block", "norm 1 missing", (ATTEND, "x = x + self.mha(x)")),
    ("block", "norm 2 missing", (FEED, "return x + self.down(self.act(self.up(x)))")),
    ("block", "parallel", (ATTEND, "y = x; x = x + self.mha(self.norm_a(x))"),
     (FEED, FEED.replace("self.norm_b(x)", "self.norm_b(y)"))),
    ("block", "second residual from x", (ATTEND, "y = x; x = x + self.mha(self.norm_a(x))"),
     (FEED, FEED.replace("return x +", "return y +"))),
    ("block", "one norm for both", (FEED, FEED.replace("norm_b", "norm_a"))),
    ("block", "norm on the branch", (ATTEND, "x = x + self.norm_a(self.mha(x))"),
     (FEED, "return x + self.norm_b(self.down(self.act(self.up(x))))")),
    ("block", "feed-forward first", (ATTEND, f"y = {FEED[7:]}"),
     (FEED, f"return y {ATTEND[6:-3]}y))")),
    ("block", "unbiased variance", (STD, "unbiased=True")),
    ("block", "RMSNorm", ("std = x.std(dim=-1, keepdim=True, unbiased=False)",
                          "std = x.pow(2).mean(-1, keepdim=True).sqrt(); mean = 0")),
    ("block", "norm over positions", ("dim=-1, keepdim=True", "dim=(-2, -1), keepdim=True")),
    ("block", "norm over time", ("dim=-1, keepdim=True", "dim=1, keepdim=True")),
    ("block", "variance without root", ("x.std(", "x.var(")),
    ("block", "tanh GELU", ("nn.GELU()", "nn.GELU(approximate='tanh')")),
    ("block", "quick GELU", ("nn.GELU()", "lambda x: x * torch.sigmoid(1.702 * x)")),
    ("block", "ReLU", ("nn.GELU()", "nn.ReLU()")),
    ("block", "SiLU", ("nn.GELU()", "nn.SiLU()")),
    ("block", "activation missing", ("nn.GELU()", "nn.Identity()")),
    ("gpt", "final norm missing", (HEAD, "return self.head(x)")),
    ("gpt", "positions shifted", (POS, "self.pos(torch.arange(1, ids.shape[1] + 1))")),
    ("gpt", "positions missing", (f" + {POS}", "")),
    ("gpt", "positions by batch", (POS, "self.pos(torch.arange(ids.shape[0])).unsqueeze(1)")),
    ("gpt", "embedding scaled", ("self.tok(ids) +",
     "self.tok(ids) * math.sqrt(self.pos.embedding_dim) +")),
    ("gpt", "probabilities", (HEAD, f"{HEAD}.softmax(-1)")),
    ("gpt", "log-probabilities", (HEAD, f"{HEAD}.log_softmax(-1)")),
    ("gpt", "blocks reversed", ("in self.layers:", "in reversed(self.layers):")),
    ("gpt", "first block repeated", ("x = layer(x)", "x = self.layers[0](x)")),
]  # fmt: skip
IN_LM_MODELS = [
    ("elman_rnn", "tanh missing", ("h = torch.tanh(x_t", "h = (x_t")),
    ("elman_rnn", "sigmoid", ("h = torch.tanh(x_t", "h = torch.sigmoid(x_t")),
    ("elman_rnn", "relu", ("h = torch.tanh(x_t", "h = torch.relu(x_t")),
    ("elman_rnn", "bias missing", (" + self.b_h)", ")")),
    ("elman_rnn", "bias twice", (" + self.b_h)", " + self.b_h + self.b_h)")),
    ("elman_rnn", "outputs late", ("h = torch.tanh(x_t", "outputs.append(h); h = torch.tanh(x_t"),
     ("            outputs.append(h)\n", "")),
    ("attention", "diagonal cut", ("-torch.inf).triu(1)", "-1e9).triu(0)")),
    ("attention", "sqrt missing", (" / math.sqrt(self.d_k)", "")),
    ("extra_mask", "extra_mask ignored", ("needs.sight(M + extra.to(S))", "M")),
    ("extra_mask", "extra_mask subtracted", ("needs.sight(M + extra.to(S))", "M - extra.to(S)")),
    ("feed_forward", "tanh GELU", ('{"gelu": F.gelu,',
     '{"gelu": partial(F.gelu, approximate="tanh"),')),
    ("feed_forward", "exact GELU", ('partial(F.gelu, approximate="tanh")', "F.gelu")),
    ("feed_forward", "gate swapped", ("ACTIVATIONS[self.activation](self.W_1(x))",
     "self.W_1(x) if self.W_3 else ACTIVATIONS[self.activation](self.W_1(x))"),
     ("hidden * self.W_3(x)", "hidden * F.silu(self.W_3(x))")),
    ("feed_forward", "gate missing", ("hidden * self.W_3(x)", "hidden")),
    ("block_post", "pre-norm", ('if self.norm == "pre":\n            a = x',
     'if True:\n            a = x')),
    ("block_post", "post, residual 1 missing", ("self.ln_1(x + self.attn(x))",
     "self.ln_1(self.attn(x))")),
    ("block_post", "post, residual 2 missing", ("self.ln_2(a + self.ffn(a))",
     "self.ln_2(self.ffn(a))")),
    ("gpt_sinusoidal", "positions missing", ("x = x + self.pe[:T]", "pass")),
    ("gpt_sinusoidal", "positions shifted", ("x = x + self.pe[:T]", "x = x + self.pe[1 : T + 1]"),
     ('("pe", sinusoidal_positions(max_len,', '("pe", sinusoidal_positions(max_len + 1,')),
    ("gpt_post", "norm ignored", ("Block(d_model, n_heads, norm, activation)",
                                  "Block(d_model, n_heads, 'pre', activation)")),
]  # fmt: skip
MISTAKES = [m for group in (d.ELMAN, d.LSTM_CELL, d.LSTM, d.SINUSOIDS, d.ATTENTION, d.EXTRA_MASK,
                            d.FFN, d.BLOCK, d.GPT) for m in group]  # fmt: skip
PLANTED = [("by_hand", *p) for p in BY_HAND] + [("lm_models", *p) for p in IN_LM_MODELS]


@pytest.mark.parametrize(
    ("file", "check", "name", "changes"),
    [pytest.param(f, c, name, rest, id=f"{c}: {name}") for f, c, name, *rest in PLANTED],
)
def test_a_planted_mistake_is_called_by_its_name(file, check, name, changes):
    module = module_of(file, *changes)
    verdict, said = outcome(CHECKS[check], module)
    mistake = next(m for m in MISTAKES if m.name == name)
    assert verdict == "failed", said
    english, chinese = said.splitlines()
    assert mistake.en in english
    assert mistake.zh in chinese
    assert "; and " not in english  # one mistake, not two that happen to add up to it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "name", "changes"),
    [pytest.param(f, name, rest, id=f"{c}: {name}") for f, c, name, *rest in PLANTED],
)
def test_a_planted_mistake_is_called_nothing_else(file, name, changes):
    """Run everything: no check that fails names another cause."""
    mistake = next(m for m in MISTAKES if m.name == name)
    for verdict, said in outcomes(module_of(file, *changes)).values():
        assert verdict != "failed" or mistake.en in said, said


def test_every_mistake_is_planted():
    orders = {m.name for m in d.LSTM_CELL if m.name.startswith("gate order")}  # 4 of 23 are enough
    assert {m.name for m in MISTAKES} - orders <= {name for _, _, name, *_ in PLANTED}
    assert len({m.name for m in MISTAKES} - orders) > 60


def test_no_two_mistakes_give_the_same_numbers():
    """Each wrong formula differs from the right one and from all others that could be meant."""
    with contract.double_precision():
        w = {n: torch.randn(24, s) for n, s in (("weight_ih", 4), ("weight_hh", 6))}
        w |= {n: torch.randn(24) for n in ("bias_ih", "bias_hh")}
        w |= {"W_hx": torch.randn(6, 4), "W_hh": torch.randn(6, 6), "b_h": torch.randn(6)}
        w |= {f"W_{n}.weight": torch.randn(12, 12) for n in "qkvo"}
        w |= {f"ln_{n}.{kind}": torch.randn(12) for n in "12" for kind in ("weight", "bias")}
        w |= {"W_1.weight": torch.randn(48, 12), "W_2.weight": torch.randn(12, 48)}
        w["W_3.weight"] = torch.randn(48, 12)
        x, h, c, y = torch.randn(2, 4), torch.randn(2, 6), torch.randn(2, 6), torch.randn(2, 5, 12)
        pre = [m for m in d.BLOCK if "post," not in m.name and m.name != "pre-norm"]
        post = [m for m in d.BLOCK if "post" in m.name or m.name == "pre-norm"][1:]
        plain = [m for m in d.FFN if "gate" not in m.name and m.name != "exact GELU"]
        for formula, mistakes in (
            (lambda **k: d.elman(w, torch.randn(2, 5, 4), h, **k), d.ELMAN),
            (lambda **k: d.lstm_cell(w, x, h, c, **k), d.LSTM_CELL),
            (lambda **k: d.sinusoids(9, 12, 1000.0, **k), d.SINUSOIDS),
            (lambda **k: d.attention(w, y, 3, **k), d.ATTENTION),
            (lambda **k: d.block(w, y, 3, **k), [*pre, *plain, *d.ATTENTION]),
            (lambda **k: d.block(w, y, 3, "post", **k), post),
            (lambda **k: d.ffn(w, y, "swiglu", **k), [m for m in d.FFN if m.name != "SiLU"]),
        ):
            results = {"right": formula()} | {m.name: formula(**m.change) for m in mistakes}
            for (one, a), (two, b) in itertools.combinations(results.items(), 2):
                assert one == two or not d.same(a, b), (one, two)


# ── mistakes that show otherwise than in the numbers ─────────────────────────────────────────────
BIAS = "self.bias_ih[hidden_size : 2 * hidden_size] = forget_bias"
ZERO = "self.bias_hh[hidden_size : 2 * hidden_size] = 0"
LINEARS = "self.W_q = nn.Linear(d_model, d_model)"
OTHERWISE = [
    ("by_hand", "lstm_cell", "three things", ("return h, c", "return h, h, c"), "returns 3 thing"),
    ("by_hand", "lstm_cell", "nested state", ("return h, c", "return h, (h, c)"),
     "must return (h, c)"),
    ("by_hand", "lstm_cell", "in place", ("c = f * c + i * g", "c *= f; c += i * g"), "in place"),
    ("by_hand", "lstm_cell", "gradient cut", ("z = x @ self", "h = h.detach(); z = x @ self"),
     "gradient is not"),
    ("by_hand", "lstm_cell", "names", ("self.weight_ih", "self.W_ih"),
     "yours are: W_ih (24, 4), weight_hh (24, 6)"),
    ("by_hand", "lstm_cell", "plain tensors", ("nn.Parameter(torch.empty(4 * hidden_size))",
     "torch.zeros(4 * hidden_size)"), "(bias_ih, bias_hh: no nn.Parameter"),
    ("by_hand", "lstm_cell", "weight transposed", ("torch.empty(4 * hidden_size, input_size)",
     "torch.empty(input_size, 4 * hidden_size)"), "weight_ih has shape (4, 24), it should be"
                                                  " (24, 4)"),
    ("by_hand", "lstm_cell", "an error", ("z.chunk(4, dim=1)", "z.chunk(3, dim=1)"),
     "ends in ValueError: not enough values to unpack (expected 4, got 3), line 35: "),
    ("by_hand", "lstm_cell_without_state", "state of ones", ("h = torch.zeros(", "h = torch.ones("),
     "must start from h = c = 0"),
    ("by_hand", "forget_bias", "to the input gate", (BIAS, BIAS.replace("hidden_size : 2 * ",
     ": ")),
     (ZERO, ZERO.replace("hidden_size : 2 * ", ": ")), "it went to the input gate"),
    ("by_hand", "forget_bias", "to the candidate", (BIAS, BIAS.replace("hidden_size : 2",
     "2 * hidden_size : 3")),
     (ZERO, ZERO.replace("hidden_size : 2", "2 * hidden_size : 3")),
      "it went to the cell candidate"),
    ("by_hand", "forget_bias", "twice", (ZERO, ZERO.replace("0", "forget_bias")), "twice of it"),
    ("by_hand", "forget_bias", "to all", (BIAS, "self.bias_ih[:] = forget_bias"),
     (ZERO, "self.bias_hh[:] = 0"), "all four gates"),
    ("by_hand", "forget_bias", "added", (BIAS, BIAS.replace("=", "+=")),
     "added to the random start"),
    ("by_hand", "forget_bias", "not used", (BIAS, "pass"), (ZERO, "pass"), "biases add up to"),
    ("by_hand", "attention", "two things", ("return self.W_o(out)", "return self.W_o(out), A"),
     "returns 2 things; it must return one tensor (B, T, d)"),
    ("by_hand", "attention", "heads not merged", (MERGE, "(A @ v)"), ("self.W_o(out)", "out"),
     "returns (2, 3, 5, 4); it must be (B, T, d) = (2, 5, 12)"),
    ("by_hand", "attention", "dropout on", ("A = torch.softmax(S, dim=-1)",
     "A = torch.dropout(torch.softmax(S, dim=-1), 0.1, True)"), "dropout is left on after .eval()"),
    ("by_hand", "attention", "in place", ("B, T, d = x.shape", "B, T, d = x.shape; x += 1"),
     "in place"),
    ("by_hand", "attention", "gradient cut", ("A @ v)", "A.detach() @ v)"), "gradient is not"),
    ("by_hand", "attention", "names", ("self.W_q", "self.query"), "no parameter W_q.weight"),
    ("by_hand", "attention", "packed", (LINEARS, "self.W_qkv = nn.Linear(d_model, 3 * d_model)"),
     "no parameter W_q.weight"),
    ("by_hand", "attention", "three arguments", ("def forward(self, x):\n        B, T, d",
     "def forward(self, x, k, v):\n        B, T, d"), "missing 2 required positional arguments"),
    ("by_hand", "attention_biases", "no bias", (LINEARS, LINEARS[:-1] + ", bias=False)"),
     "no bias in W_q; needed"),
    ("by_hand", "attention_future", "finite mask", ('float("-inf")', "-1e9"), "the mask leaks"),
    ("by_hand", "attention_future", "finite mask", ('float("-inf")', "-1e4"), "the mask leaks"),
    ("by_hand", "attention_without_mask", "always", ("if self.causal:", "if True:"), "is ignored"),
    ("by_hand", "attention_other_sizes", "a mask of one size", ("torch.ones(T, T)",
     "torch.ones(5, 5)"),
     "ends in RuntimeError"),
    ("by_hand", "attention_other_sizes", "a scale of one size", ("math.sqrt(self.d_k)", "2.0"),
     "MultiHeadAttention(12, 4)(x), x (3, 8, 12), is off by up to"),
    ("by_hand", "block", "one norm", ("self.norm_b = LayerNorm(d_model)", ""), ("norm_b", "norm_a"),
     "has 1 LayerNorm"),
    ("by_hand", "block", "in place", (ATTEND, "x += self.mha(self.norm_a(x))"), "in place"),
    ("by_hand", "gpt", "untied", ("self.head.weight = self.tok.weight", ""),
     "the head is untied: tok.weight and head.weight"),
    ("by_hand", "gpt", "a bias", ("vocab_size, bias=False)", "vocab_size)"),
     "the output has a bias, head.bias"),
    ("by_hand", "gpt", "no final norm", ("self.norm = LayerNorm(d_model)", ""), ("self.norm(x)",
     "x"),
     "the final LayerNorm is missing"),
    ("by_hand", "gpt", "plain list",
     ("nn.ModuleList([Block(d_model, n_heads) for _ in range(n_layers)])",
     "[Block(d_model, n_heads) for _ in range(n_layers)]"), "holds 0 of your Blocks"),
    ("by_hand", "gpt", "no positions", ("self.pos = nn.Embedding(max_len, d_model)", ""),
     (f" + {POS}", ""), "no position embedding"),
    ("by_hand", "gpt_generate", "only the new", ("return ids", "return ids[:, -n_new:]"),
     "only the new tokens"),
    ("by_hand", "gpt_generate", "first position", ("self(ids)[:, -1]", "self(ids)[:, 0]"),
     "wrong position"),
    ("by_hand", "positions", "transposed", ("return pe", "return pe.T"),
     "returns (12, 9); it must be (max_len, d) = (9, 12)"),
    ("by_hand", "positions", "a batch", ("return pe", "return pe.unsqueeze(0)"),
     "returns (1, 9, 12)"),
    ("lm_models", "feed_forward", "4d for SwiGLU", ("round(8 * d_model / 3)", "4 * d_model"),
     "d_ff is 48, it should be 8d/3 = 32"),
    ("lm_models", "feed_forward", "2d", ("else 4 * d_model", "else 2 * d_model"),
     "should be 4d = 48"),
    ("lm_models", "parameter_count", "head twice", ('"token embedding": V * d',
     '"token embedding": 2 * V * d'),
     "the output is counted again"),
    ("lm_models", "parameter_count", "no final norm", ("2 * d\n    return", "0\n    return"),
     "the final LayerNorm's 2d"),
    ("lm_models", "gpt_attention", "one layer", ("weights.append(",
     "weights[:] = (lambda one: [one])("),
     "a list of one (B, h, T, T) for each of 2 layers"),
    ("lm_models", "cutting", "not restored", ("module.extra_mask = mask_before", "pass"),
     "still cut"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "check", "changes", "words"),
    [pytest.param(f, c, rest[:-1], rest[-1], id=f"{c}: {n}") for f, c, n, *rest in OTHERWISE],
)
def test_a_mistake_that_is_no_number_is_told_in_a_sentence(file, check, changes, words):
    verdict, said = outcome(CHECKS[check], module_of(file, *changes))
    assert verdict == "failed", said
    assert words in said
    assert len(said.splitlines()) == 2  # English, Chinese


def test_other_ways_to_be_right():
    """Softmax by hand, no default state, a mask from a buffer, float32, beta before gamma."""
    table = "self.register_buffer('mask', torch.ones(50, 50).tril())"
    changes = [
        ("A = torch.softmax(S, dim=-1)", "A = S.exp() / S.exp().sum(-1, keepdim=True)"),
        ("def forward(self, x, state=None):\n        if state is None",
         "def forward(self, x, state):"
         "\n        if state is None"),
        (LINEARS, f"{table}; {LINEARS}"),
        (MASK, "future = self.mask[:T, :T] == 0"),
        ("    return pe", "    return pe.float()"),
        ("self.gamma = nn.Parameter(torch.ones(d))", "self.beta = nn.Parameter(torch.zeros(d))"),
        ("self.beta = nn.Parameter(torch.zeros(d))\n\n",
         "self.gamma = nn.Parameter(torch.ones(d))\n\n"),
    ]  # fmt: skip
    found = outcomes(module_of("by_hand", *changes))
    assert "failed" not in {verdict for verdict, _ in found.values()}
    missing = ("skipped", "not there yet: LSTMCell(…)(x) without a state")
    assert found["lstm_cell_without_state"] == missing


def test_two_mistakes_together_are_both_named():
    changes = (" / math.sqrt(self.d_k)", ""), ("return self.W_o(out)", "return out")
    verdict, said = outcome(contract.attention, module_of("by_hand", *changes))
    assert "not divided by √d_k; and W_o is missing" in said


def test_what_no_known_mistake_explains_is_said_so():
    changes = ("h = o * torch.tanh(c)", "h = o * torch.tanh(c) + 0.12")
    verdict, said = outcome(contract.lstm_cell, module_of("by_hand", changes))
    assert verdict == "failed"
    assert "h is off by up to 0.12, c is right; none of the" in said


def test_what_is_missing_is_listed_by_its_name():
    found = outcomes(
        module_of("by_hand", ("class LSTM(", "class MyLSTM("), ("class GPT(", "class X("))
    )
    assert found["lstm"] == ("skipped", "not there yet: LSTM (rename MyLSTM?)")
    assert found["gpt"] == ("skipped", "not there yet: GPT")
    assert found["elman_rnn"] == ("skipped", "not there yet: ElmanRNN")
    assert found["block_post"] == ("skipped", "not there yet: Block(norm='post')")


def test_one_fault_fails_once_and_what_is_built_of_it_waits():
    found = outcomes(module_of("by_hand", ("triu(1)", "triu(2)")))
    assert [name for name, (verdict, _) in found.items() if verdict == "failed"] == ["attention"]
    assert found["block"] == ("skipped", "first MultiHeadAttention")
    assert found["gpt"][0] == "skipped"


# ── the block of Week 1 Day 2 ────────────────────────────────────────────────────────────────────
ATTEND_2 = "x = x + self.drop(self.attn(self.norm1(x)))"
FEED_2 = "return x + self.drop(self.ffn(self.norm2(x)))"
SCALE = "last.weight /= math.sqrt(2 * n_layers)"
BLOCK_PLANTED = [
    ("block", "post-norm", (ATTEND_2, "x = self.norm1(x + self.drop(self.attn(x)))"),
     (FEED_2, "return self.norm2(x + self.drop(self.ffn(x)))"), "the numbers of post-norm"),
    ("block", "mask off by one", ("triu(1)", "triu(2)"), "each query sees one future token"),
    ("block", "mask missing", ("triu(1)", "triu(99)"), "there is no causal mask"),
    ("block", "sqrt missing", (" / d_k**0.5", ""), "not divided by √d_k"),
    ("block", "tanh GELU", ('"gelu": F.gelu', '"gelu": lambda x: F.gelu(x, approximate="tanh")'),
     None),
    ("block", "residual missing", (FEED_2, FEED_2.replace("x + ", "")),
     "residual around the feed-forward"),
    ("block", "dropout in eval", ("self.drop(self.ffn", "F.dropout(self.ffn"),
     "dropout is left on after"),
    ("feed_forward", "tanh GELU", ('"gelu": F.gelu',
     '"gelu": lambda x: F.gelu(x, approximate="tanh")'),
     "tanh approximation"),
    ("feed_forward", "4d for SwiGLU", ("round(8 * d / 3)", "4 * d"),
     "d_ff is 48, it should be 8d/3 = 32"),
    ("feed_forward", "gate missing", (" * self.up(x)", ""),
     "the gate W_3 x is never multiplied in"),
    ("feed_forward", "ReLU ignored", ('"relu": F.relu', '"relu": F.gelu'), "exact x Φ(x)"),
    ("future", "finite mask", ("-torch.inf", "-30.0"), "it must be exactly 0"),
    ("dropout", "none", ("self.drop(self.", "(self."), ("self.drop(S", "(S"),
     "nothing is dropped in train()"),
    ("dropout", "on the stream", (FEED_2, "return self.drop(x + self.ffn(self.norm2(x)))"),
     "residual stream itself"),
    ("dropout", "only one branch", (FEED_2, "return x + self.ffn(self.norm2(x))"),
     "should be a quarter"),
    ("dropout", "wrong p", ("self.drop = nn.Dropout(dropout)\n        with",
     "self.drop = nn.Dropout(0.1)\n        with"),
     "should be a quarter"),
    ("dropout", "p too large", ("nn.Dropout(dropout)", "nn.Dropout(0.9)"), "should be a quarter"),
    ("start", "not at all", (SCALE, "pass"), "n_layers makes no difference"),
    ("start", "only W_o", ("(self.attn.W_o, self.ffn.down)", "(self.attn.W_o,)"),
     "W_2 is not scaled"),
    ("start", "no root", ("math.sqrt(2 * n_layers)", "(2 * n_layers)"), "the root is missing"),
    ("start", "one branch", ("math.sqrt(2 * n_layers)", "math.sqrt(n_layers)"),
     "a layer has two branches"),
    ("start", "all", ("self.attn.W_o, self.ffn.down",
     "self.attn.W_q, self.attn.W_o, self.ffn.down"),
     "attn.W_q.weight is scaled too"),
    ("positions", "from 1", ("torch.arange(max_len)", "torch.arange(1, max_len + 1)"),
     "shifted by one"),
    ("positions", "not interleaved", ("pe[:, 0::2]", "pe[:, : d // 2]"), ("pe[:, 1::2]",
     "pe[:, d // 2 :]"),
     "not interleaved"),
    ("positions", "by batch", ("x.shape[1]", "x.shape[0]"), "counted along the batch"),
    ("positions", "saved", (", persistent=False", ""), "saves its table (pe)"),
    ("positions", "scaled", ("return x +", "return x * math.sqrt(x.shape[-1]) +"),
     "multiplied by √d"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "changes", "words"),
    [pytest.param(c, rest[:-1], rest[-1], id=f"{c}: {n}") for c, n, *rest in BLOCK_PLANTED],
)
def test_a_mistake_planted_in_the_block_is_named(check, changes, words):
    verdict, said = outcome(BLOCK_CHECKS[check], module_of("block_by_hand", *changes))
    if words is None:  # the block waits for its feed-forward network
        assert (verdict, said) == ("skipped", "first FeedForward")
    else:
        assert verdict == "failed", said
        assert words in said
        assert len(said.splitlines()) == 2


# ── as a student types it ────────────────────────────────────────────────────────────────────────
def typed(folder, *arguments, suite="test_lm_models.py", encoding="utf-8"):
    """`python -m pytest …/tests/test_lm_models.py --models …` in that folder → the run."""
    command = [sys.executable, "-m", "pytest", str(ROOT / "tests" / suite), *arguments]
    environment = os.environ | {"PYTHONIOENCODING": f"{encoding}:backslashreplace"}
    done = subprocess.run(command, cwd=folder, capture_output=True, env=environment)
    return done.returncode, done.stdout.decode(encoding), done.stderr.decode(encoding)


def write(folder, name, file="by_hand", *changes):
    text = FILES[file].read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_a_student_sees_what_is_wrong_and_what_is_missing(tmp_path):
    changes = (f"i, f, g, o = {CELL}", f"i, g, f, o = {CELL}"), ("MultiHeadAtt", "MultiAtt")
    write(tmp_path, "my_models.py", "by_hand", *changes)
    code, out, err = typed(tmp_path, "--models", "my_models.py")
    assert code == 1
    assert err == ""
    assert "LSTMCell: forget and cell gate rows look swapped" in out
    assert "LSTMCell：遗忘门与候选" in out
    assert "Traceback" not in out
    assert "assert" not in out
    assert "1 failed" in out
    (missing,) = [line for line in out.splitlines() if line.startswith("not there yet")]
    assert "ElmanRNN, " in missing
    assert "MultiHeadAttention (rename MultiAttention?)" in missing
    (waiting,) = [line for line in out.splitlines() if line.startswith("the rest is checked")]
    assert "LSTMCell" in waiting
    failure = out[out.index("FAILURES") :].splitlines()
    assert failure[2].startswith("LSTMCell: ")  # the sentence comes first


@pytest.mark.slow
def test_a_right_file_passes_from_a_project_of_its_own_on_an_ascii_console(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "helper.py").write_text("one = 1\n")
    write(
        tmp_path, "mine.py", "by_hand", ("import math\n", "import math\nfrom helper import one\n")
    )
    code, out, err = typed(tmp_path, f"--models={tmp_path / 'mine.py'}", encoding="ascii")
    assert (code, err) == (0, "")
    assert "not there yet" in out
    assert "failed" not in out


@pytest.mark.slow
def test_the_block_of_w1d2_is_checked_the_same_way(tmp_path):
    write(tmp_path, "my_block.py", "block_by_hand", (SCALE, "pass"))
    code, out, _ = typed(
        tmp_path, "--models", "my_block.py", suite="test_w1d2_block.py", encoding="gbk"
    )
    assert code == 1
    assert "n_layers makes no difference: the last matrix of each branch" in out
    assert "与 n_layers 无关" in out
    assert "1 failed, 7 passed" in out


@pytest.mark.slow
def test_a_file_that_is_not_there_is_one_line(tmp_path):
    code, out, err = typed(tmp_path, "--models", "my_models.py")
    assert code == 4
    (line,) = [line for line in (out + err).splitlines() if line]
    assert line.startswith("ERROR: --models: there is no file ")
    assert line.endswith("my_models.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = (\n", "line 1: SyntaxError: '(' was never closed"),
        ("import nothing_like_it\n", "line 1: ModuleNotFoundError: No module named"),
        ("\n\nx = 1 / 0\n", "line 3: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
        ("assert False\n", "line 1: AssertionError: "),
    ],
)
def test_a_file_that_does_not_import_is_one_line(tmp_path, monkeypatch, text, words):
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setitem(sys.modules, "own_models", None)
    (tmp_path / "my_models.py").write_text(text)
    here = types.SimpleNamespace(dir=tmp_path)
    config = types.SimpleNamespace(invocation_params=here, getoption=lambda _: "my_models.py")
    with pytest.raises(pytest.UsageError) as error:
        conftest.own_models(config)
    assert str(error.value).startswith(f"--models: my_models.py does not import: {words}")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.slow
def test_a_file_without_a_model_is_no_success(tmp_path):
    (tmp_path / "mine.py").write_text("class Something:\n    pass\n")
    code, out, _ = typed(tmp_path, "--models", "mine.py")
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "nothing here to check" in out
