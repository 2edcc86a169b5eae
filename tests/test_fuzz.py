"""Wrong input by the hundred: the right result, or a ValueError that names the argument.

No other exception, no NaN, no warning. Each test runs on a few examples and as a slow test on many,
the same every time; with FUZZ=20 in the environment on 20 times as many, drawn afresh. Sizes stay
small: a model larger than the memory is the machine's to refuse.
"""

import contextlib
import io
import math
import os
import re
import tempfile
import warnings
from argparse import ArgumentTypeError
from companion import cli, ledger
from companion.show import Recorder
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import load_script
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import farm_language as farm
import lm_models as lm
import needs

FEW, MANY = 12, 150
TIMES = int(os.environ.get("FUZZ", 0))  # 0: the examples that were seen to pass


def fuzz(few=FEW, many=MANY, **strategies):
    """A test over a few examples, and a slow one over many."""

    def decorate(check):
        @pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])
        def test(examples):
            limits = settings(
                max_examples=examples * (TIMES or 1),
                derandomize=not TIMES,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            limits(given(**strategies)(check))()

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


ODD = [None, True, 10**400, -(10**400), 2.0, np.int64(2), np.float32(2), torch.tensor(2)]
ODD += [
    torch.tensor(2.5),
    torch.ones(2),
    torch.ones(2, 2),
    [2],
    (2,),
    {},
    {2},
    object,
    Fraction(2),
    Decimal(2),
]
ODD += [b"2", 2j, slice(None), range(2), print, "", "learned", "pre", "relu", "two\nlines", "二"]
junk = st.sampled_from(ODD) | st.integers(-3, 12) | st.floats() | st.text(max_size=5)
small = st.integers(1, 6)
size = small | small | small | junk.filter(lambda v: not isinstance(v, int) or abs(v) < 99)


def named(call, *names, shape=None):
    """The call's result; None if it was refused by a ValueError of one line with such a name."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = call()
        except ValueError as error:
            message = str(error)
            assert any(re.search(rf"\b{name}\b", message) for name in names), message
            assert "\n" not in message and len(message) < 500, message
            return None
    if isinstance(result, torch.Tensor):
        assert not result.isnan().any()
    return result


def whole(value, low=1):
    return not isinstance(value, bool) and isinstance(value, int | np.integer) and value >= low


def same(ours, theirs, tolerance=1e-10):
    assert ours.shape == theirs.shape
    assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)


# ── lm_models ────────────────────────────────────────────────────────────────────────────────────
@fuzz(a=size, b=size, bias=st.just(0.5) | junk)
def test_recurrent_models(a, b, bias):
    B, T = 2, 3
    numbers = "input_size", "hidden_size"
    elman = named(lambda: lm.ElmanRNN(a, b), *numbers)
    assert (elman is not None) == (whole(a) and whole(b))
    cell = named(lambda: lm.LSTMCell(a, b, bias), *numbers, "forget_bias")
    sequence = named(lambda: lm.LSTM(a, b, bias), *numbers, "forget_bias")
    assert (cell is None) == (sequence is None)
    if elman is None:
        return
    x = torch.randn(B, T, a, generator=torch.Generator().manual_seed(0))
    h = torch.zeros(B, b)
    for t in range(T):
        h = torch.tanh(F.linear(x[:, t], elman.W_hx, elman.b_h) + F.linear(h, elman.W_hh))
        same(named(lambda: elman(x), "x")[0][:, t], h, 1e-5)
    if cell is None:
        return
    assert not named(lambda: sequence(x), "x")[0].isnan().any()
    if bias is not None:
        assert ((cell.bias_ih + cell.bias_hh)[b : 2 * b] == bias).all()
    theirs = torch.nn.LSTMCell(a, b)
    theirs.load_state_dict(cell.state_dict())
    for mine, yours in zip(cell(x[:, 0]), theirs(x[:, 0])):
        same(mine, yours, 1e-5)


@fuzz(V=size, E=size, H=size, bias=st.none() | junk)
def test_recurrent_language_models(V, E, H, bias):
    names = "vocab_size", "embed_size", "hidden_size"
    for make in (
        lambda: lm.RNNLM(V, E, H),
        lambda: lm.LSTMLM(V, E, H, bias),
    ):
        model = named(make, *names, "forget_bias", "input_size")
        if model is not None:
            assert whole(V) and whole(E) and whole(H)
            logits = named(lambda model=model: model(torch.zeros(2, 3, dtype=torch.long)), "ids")
            assert logits.shape == (2, 3, V)


dtypes = st.none() | st.sampled_from([torch.float16, torch.float64, torch.int64, torch.bool, "f"])


@fuzz(max_len=size, d_model=size, base=st.just(1e4) | junk, dtype=dtypes)
def test_sinusoids(max_len, d_model, base, dtype):
    names = "max_len", "d_model", "base", "dtype"
    table = named(lambda: lm.sinusoidal_positions(max_len, d_model, base, dtype), *names)
    if table is None:
        return
    assert table.shape == (max_len, d_model)
    for p in range(max_len):
        for i in range(d_model // 2):
            angle = p * float(base) ** (-2 * i / d_model)
            if angle < 1e3:
                same(table[p, 2 * i].double(), torch.tensor(math.sin(angle)).double(), 1e-3)
                same(table[p, 2 * i + 1].double(), torch.tensor(math.cos(angle)).double(), 1e-3)


def test_a_number_that_python_will_not_print():
    huge = 10**5000
    assert named(lambda: lm.sinusoidal_positions(3, 4, base=huge), "base") is None
    assert named(lambda: lm.LSTMCell(2, 3, forget_bias=huge), "forget_bias") is None
    assert named(lambda: lm.Block(huge, huge - 1), "n_heads") is None
    ids = torch.zeros(1, 2, dtype=torch.long)
    assert named(lambda: SMALL.generate(ids, huge, 1.0), "n_new") is None
    assert named(lambda: SMALL.generate(ids, 1, huge), "temperature") is None
    with pytest.raises(ValueError, match="d_model must be .*, got <int object at "):
        lm.FeedForward(-huge)


def test_what_was_given_is_shown_in_one_short_line():
    with pytest.raises(ValueError, match="words must be a list, got 55555$"):
        needs.listed("words", 55555)
    assert needs.shown("ab\n" * 99) == repr("ab\n" * 99)[:60]
    assert needs.shown(torch.ones(2, 2)) == "tensor([[1., 1.], [1., 1.]])"


words = st.sampled_from(["pre", "post", "learned", "sinusoidal", "none", "gelu", "relu", "swiglu"])


@fuzz(d=size, heads=size, d_ff=st.none() | size, norm=words | junk, act=words | junk)
def test_blocks(d, heads, d_ff, norm, act):
    x = torch.randn(2, 3, d) if whole(d) else torch.randn(2, 3, 4)
    for make, names in (
        (lambda: lm.MultiHeadAttention(d, heads), ("d_model", "n_heads")),
        (lambda: lm.FeedForward(d, d_ff, act), ("d_model", "d_ff", "activation")),
        (lambda: lm.Block(d, heads, norm, act), ("d_model", "n_heads", "norm", "activation")),
    ):
        module = named(make, *names)
        if module is not None:
            assert named(lambda module=module: module(x), "x").shape == x.shape


@fuzz(V=size, d=size, L=size, h=size, max_len=size, positions=words | junk, norm=words | junk)
def test_gpt_and_its_parameters(V, d, L, h, max_len, positions, norm):
    names = "vocab_size", "d_model", "n_layers", "n_heads", "max_len"
    gpt = named(lambda: lm.GPT(V, d, L, h, max_len, positions, norm), *names, "positions", "norm")
    count = named(lambda: lm.gpt_parameter_count(V, d, L, max_len), *names)
    assert (count is None) == (not all(map(whole, (V, d, L, max_len))))
    if gpt is not None and positions == "learned" and norm == "pre":
        assert count["total"] == sum(p.numel() for p in gpt.parameters())
    if gpt is not None:
        ids = torch.zeros(1, max_len, dtype=torch.long)
        assert named(lambda: gpt(ids), "ids").shape == (1, max_len, V)


shapes = st.lists(st.integers(0, 4), max_size=4)
kinds = st.sampled_from([torch.float32] * 3 + [torch.int64] * 3 + [torch.float64, torch.bool])
tensors = st.builds(
    lambda shape, kind, low, high: torch.randint(low, high, shape).to(kind),
    shapes | st.sampled_from([[2, 3, 4], [2, 3], [1, 1, 4], [2, 4], [0, 3]]),
    kinds,
    st.integers(-2, 0),
    st.integers(1, 7),
)
SMALL = lm.GPT(5, 4, 2, 2, max_len=6)


@fuzz(x=tensors | junk, state=st.none() | tensors | junk | st.tuples(tensors, tensors))
def test_what_goes_into_a_model(x, state):
    for model in lm.ElmanRNN(4, 3), lm.LSTM(4, 3), lm.LSTMCell(4, 3):
        named(lambda model=model: model(x, state), "x", "h", "c", "state")
    for model in lm.MultiHeadAttention(4, 2), lm.FeedForward(4), lm.Block(4, 2, "post"):
        named(lambda model=model: model(x), "x")
        if hasattr(model, "attention"):
            named(lambda model=model: model.attention(x), "x")
    for model in lm.RNNLM(5), lm.LSTMLM(5), SMALL:
        logits = named(lambda model=model: model(x), "ids")
        good = isinstance(x, torch.Tensor) and x.dim() == 2 and x.dtype == torch.int64
        good = good and 1 <= x.shape[1] <= 6 and (x.numel() == 0 or 0 <= x.min() <= x.max() < 5)
        if good or model is SMALL:
            assert (logits is not None) == good
    weights = named(lambda: SMALL.attention(x), "ids")
    assert weights is None or len(weights) == 2


@fuzz(ids=tensors | st.just(torch.tensor([[1, 2]])), n=st.integers(0, 5) | junk,
      temperature=st.floats(0, 9) | junk, top_k=st.none() | junk)  # fmt: skip
def test_generate(ids, n, temperature, top_k):
    draws = torch.Generator().manual_seed(0)
    names = "ids", "n_new", "temperature", "top_k"
    longer = named(lambda: SMALL.generate(ids, n, temperature, top_k, draws), *names)
    if longer is None:
        return
    assert torch.equal(longer[:, : ids.shape[1]], ids)
    assert longer.shape[1] == ids.shape[1] + n <= 6
    for row in longer:
        for t in range(ids.shape[1], longer.shape[1]):
            logits = SMALL(row[None, :t])[0, -1]
            rank = int((logits > logits[row[t]]).sum())
            assert rank < (1 if temperature == 0 else top_k or 5)


uncallable = junk.filter(lambda v: not callable(v))  # a function's own errors are its own
finite = st.sampled_from([0.0, 0.0, -math.inf, -math.inf, 1.5, math.nan, math.inf])
masks = st.builds(
    lambda shape, values: torch.tensor(values[: math.prod(shape)]).reshape(shape),
    st.sampled_from([[3, 3], [1, 3], [2, 3, 3], [2, 1, 3, 3], [3, 1]]),
    st.lists(st.sampled_from([0.0] * 5 + [-math.inf, 1.5]) | finite, min_size=18, max_size=18),
)


@fuzz(mask=masks | tensors | uncallable, causal=st.booleans(), as_function=st.booleans())
def test_masks(mask, causal, as_function):
    """Against the softmax spelt out, key by key."""
    module = lm.MultiHeadAttention(4, 2, causal).double()
    module.extra_mask = (lambda T: mask) if as_function else mask
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    weights = named(lambda: module.attention(x), "extra_mask")
    if weights is None or mask is None:
        return
    M = torch.broadcast_to(mask.double(), (2, 2, 3, 3))
    q, k = (W(x).view(2, 3, 2, 2) for W in (module.W_q, module.W_k))  # (B, T, h, d_k)
    for b, h, t in np.ndindex(2, 2, 3):
        keys = [j for j in range(3) if (j <= t or not causal) and M[b, h, t, j] > -math.inf]
        e = {j: ((q[b, t, h] @ k[b, j, h]) / math.sqrt(2) + M[b, h, t, j]).exp() for j in keys}
        for j in range(3):
            expected = e[j] / sum(e.values()) if j in e else torch.tensor(0.0)
            assert abs(weights[b, h, t, j] - expected) < 1e-10


some_places = st.integers(-9, 9) | st.lists(st.integers(-5, 5), max_size=3) | junk
some_places |= st.builds(slice, st.none() | st.integers(-5, 5), st.none() | st.integers(-5, 5))


@fuzz(queries=some_places, keys=some_places, layers=st.just(slice(None)) | some_places,
      heads=st.just(slice(None)) | some_places)  # fmt: skip
def test_cut(queries, keys, layers, heads):
    ids = torch.tensor([[0, 1, 2, 3]])

    def with_cut():
        with lm.cut(SMALL, queries, keys, layers, heads):
            return SMALL.attention(ids)

    weights = named(with_cut, "queries", "keys", "layers", "heads", "query row")
    assert all(block.attn.extra_mask is None for block in SMALL.blocks)
    if weights is None:
        return

    def chosen(where, n):
        try:
            if isinstance(where, slice):
                return set(range(n)[where])
            where = where.tolist() if isinstance(where, torch.Tensor) else where
            return {range(n)[i] for i in ([where] if whole(where, -99) else list(where))}
        except (TypeError, IndexError):
            pytest.fail(f"{where!r} is no place among {n}, and nobody said so")

    for layer, weight in enumerate(weights):
        for h, q, k in np.ndindex(2, 4, 4):
            is_cut = layer in chosen(layers, 2) and h in chosen(heads, 2)
            is_cut = is_cut and q in chosen(queries, 4) and k in chosen(keys, 4)
            assert (weight[0, h, q, k] == 0) == (is_cut or k > q)


keys = st.sampled_from(["h.0.attn.bias", "wte.weight", "h.0.attn.c_attn.weight", "lm_head.weight"])


@fuzz(few=8, state=st.dictionaries(st.text(max_size=6) | keys, tensors | junk) | junk)
def test_gpt2_state_dicts(state):
    before = {k: v.clone() for k, v in SMALL.state_dict().items()}
    assert named(lambda: SMALL.load_gpt2_state_dict(state), "state_dict") is None
    assert all(torch.equal(v, before[k]) for k, v in SMALL.state_dict().items())


# ── farm_language ────────────────────────────────────────────────────────────────────────────────
vocabulary = st.sampled_from(farm.VOCABULARY) | st.text(max_size=3)
one_sentence = st.lists(vocabulary, max_size=12) | st.integers(0, 999).map(
    lambda n: farm.sample(farm.stream("fuzz", n))
)
NAMES = ["the", *farm.NOUN[0], *farm.NOUN[1]]


@fuzz(words=one_sentence | junk)
def test_walks(words):
    """Against the grammar as a regular expression."""
    found = named(lambda: farm.follow(words), "words")
    error = named(lambda: farm.first_error(words), "words")
    price = named(lambda: farm.bits(words), "words")
    if found is None:
        return
    one, many = "|".join(farm.NOUN[0]), "|".join(farm.NOUN[1])
    verbs = [
        f"(?:{'|'.join(f'{v} {place}' for v, place in zip(farm.VERB[n], farm.PLACES.values()))})"
        for n in (0, 1)
    ]
    phrase = f"(?: (?:{'|'.join(farm.PREPOSITIONS)}) the (?:{one}|{many})){{0,3}}"
    halves = [f"the (?:{noun}){phrase} {verb}" for noun, verb in zip((one, many), verbs)]
    grammar = rf"(?:{'|'.join(halves)})(?: every (?:day|night))? \. </s>"
    text = " ".join(w if isinstance(w, str) and w and " " not in w else "?" for w in words)
    assert (error is None) == bool(re.fullmatch(grammar, text)) == math.isfinite(price)
    assert found[1] == error


@fuzz(rows=st.lists(one_sentence, max_size=3) | junk)
def test_encode_and_back(rows):
    ids = named(lambda: farm.encode(rows), "rows", "words")
    if ids is not None:
        assert ids.shape == (len(rows), 1 + max(map(len, rows)))
        for row, words in zip(ids.tolist(), rows):
            said = [w for w in words if w != farm.BOS] + [farm.PAD] * (
                ids.shape[1] - 1 - len(words)
            )
            end = said.index(farm.EOS) + 1 if farm.EOS in said else None
            assert named(lambda row=row: farm.decode(row), "ids") == said[:end]


@fuzz(ids=st.lists(st.integers(0, 55) | junk, max_size=4) | junk | tensors)
def test_decode(ids):
    words = named(lambda: farm.decode(ids), "ids")
    if words is not None:
        assert all(0 <= i < 56 for i in ids)
        assert [farm.ID[w] for w in words] == [i for i in ids if i != 1][: len(words)]


@fuzz(k=st.integers(0, 8) | junk, size=st.integers(1, 9) | junk)
def test_agreement_sets_and_corpora(k, size):
    if isinstance(size, int) and size > 10**6 or isinstance(k, int) and k > 10**6:
        return  # what does not fit the memory
    found = named(lambda: farm.agreement(k, size), "k", "size")
    assert (found is not None) == (whole(k, 0) and whole(size))
    if found:
        ids, numbers = found
        assert ids.shape == (size, farm.query_position(k))
        for row, n in zip(ids.tolist(), numbers.tolist()):
            nouns = [farm.VOCABULARY[i] for i in row[2::3]]
            assert nouns[0] in farm.NOUN[n] and all(w in farm.NOUN[1 - n] for w in nouns[1:])
    else:
        named(lambda: farm.query_position(k), "k")
    if isinstance(size, list | dict | set):
        return  # a cache cannot look it up, and Python says so
    corpus = named(lambda: farm.corpus.__wrapped__(size, "fuzz"), "size")
    assert corpus is not None or not whole(size)
    assert corpus is None or all(farm.first_error(s) is None for s in corpus)


@fuzz(state=st.tuples(junk, junk) | junk)
def test_states(state):
    """Those that a cache can look up: a list is no state, and Python says so."""
    try:
        hash(state)
    except TypeError:
        return
    for function in farm.arcs, farm.expected, farm.lengths, farm.sentences:
        named(lambda function=function: function(state), "state")


# ── the command line ─────────────────────────────────────────────────────────────────────────────
def part1_nothing(show):
    """§1 · 无 · Nothing"""


def part2_nothing(show):
    """§2 · 无 · Nothing"""


FLAGS = ["--part", "--seeds", "--jobs", "--lang", "--figures", "--json", "--no-figures", "--quick"]
FLAGS += ["--strict", "--set", "--help", "-h", "--par", "--", "-x", "--part=1", "--seeds=0"]
text = st.text(st.characters(exclude_characters="/\\\0", exclude_categories=["Cs"]), max_size=6)
values = st.sampled_from(["1", "2", "3", "0", "-1", "1.5", "en", "zh", "٣", "9" * 5000, "FEW=3",
                          "FEW=", "FEW", "=1", "NAMES=[", "MANY=two", "", " 1"]) | text  # fmt: skip


@fuzz(few=60, many=800, argv=st.lists(st.sampled_from(FLAGS) | values, max_size=5))
def test_command_lines(argv):
    """0 and the parts that were asked for; or 2 and one line."""
    with contextlib.ExitStack() as around:
        folder = around.enter_context(pytest.MonkeyPatch.context())
        folder.chdir(around.enter_context(temporary()))
        folder.setattr(ledger, "load_claims", None)
        out = around.enter_context(contextlib.redirect_stdout(Terminal()))
        err = around.enter_context(contextlib.redirect_stderr(Terminal()))
        with pytest.raises(SystemExit) as end:
            cli.main("09 · 无 · Nothing", [part1_nothing, part2_nothing], argv)
    code, said = end.value.code, err.getvalue()
    if "--help" in argv or "-h" in argv:
        return
    assert code in (0, 2), said
    assert (said.count("\n"), len(said.splitlines())) == ((0, 0) if code == 0 else (1, 1)), said
    if code == 0:
        one = [a.split("=")[-1] for flag, a in zip(argv, argv[1:]) if flag == "--part"]
        one += ["1"] if "--part=1" in argv else []
        assert ("1 · §1" in out.getvalue()) == (not one or int(one[-1]) == 1 or len(one) > 1)


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────
texts = st.sampled_from(["2", "1/2", "1/0", "0/0", "[1, 2]", "1e999999999", "-", "1e-5", "ln 8"])
texts |= st.text(max_size=4)
numbers = st.none() | st.integers() | st.floats() | st.just(10**400)
fields = st.fixed_dictionaries(
    {"section": texts, "en": texts, "zh": texts, "lecture": texts,
     "check": st.sampled_from(ledger.CHECKS)},
    optional={"low": numbers, "high": numbers, "right": texts, "slack": st.integers(0, 2),
              "why_en": texts, "why_zh": texts, "random": texts, "script": texts},
)  # fmt: skip
fields |= st.dictionaries(st.sampled_from(["section", "check", "low", "guess", "id"]), texts | junk)
measured = st.recursive(
    numbers | st.booleans() | st.text(max_size=2), lambda m: st.lists(m, max_size=3), max_leaves=4
)


@fuzz(few=60, many=800, entry=fields | junk, value=measured)
def test_ledger_entries(entry, value):
    """An entry is refused by id, or judges and shows every value."""
    claims = named(lambda: ledger.claims_of({"T-1": entry}), "T-1")
    if claims is None:
        return
    claim = claims["T-1"]
    assert all(getattr(claim, name) == v for name, v in entry.items())
    verdict = ledger.judge(claim, value)
    assert verdict in ("ok", "differs", "timing", "erratum")
    for lang in "en", "zh":
        assert isinstance(ledger.written(claim, value, lang), str)
    assert isinstance(claim.bounds, str) and isinstance(claim.lecture_is_outside, bool)
    if claim.check == "range" and isinstance(value, float | int) and not isinstance(value, bool):
        assert (verdict == "ok") == (claim.low <= value <= claim.high)


@fuzz(few=10, data=st.binary(max_size=40) | texts.map(str.encode))
def test_ledger_files(data):
    with temporary() as folder:
        (folder / "claims.toml").write_bytes(data)
        with contextlib.suppress(ValueError):
            assert ledger.load_claims(folder / "claims.toml") is not None


# ── caches and corpora ───────────────────────────────────────────────────────────────────────────
class Trap:
    def __reduce__(self):
        return (os.abort, ())


contents = st.sampled_from([Trap(), {"key": Trap()}, {"key": 1, "digest": 2, "weights": Trap()}])
contents |= st.dictionaries(st.sampled_from(["key", "digest", "weights"]), junk.filter(
    lambda v: not isinstance(v, type | slice | range) and not callable(v)))  # fmt: skip
contents |= st.dictionaries(st.sampled_from(["key", "digest", "weights"]), tensors)


@fuzz(few=8, many=80, content=contents | st.binary(max_size=99))
def test_caches_of_the_farm(content):
    """Whatever lies there: it is not used, in a line that says so."""
    farm06, show = load_script("06_farm_transformer"), Recorder(quick=True)
    job = ("RNN", 0, 40)
    with temporary() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(farm06, "CACHE", folder)
        patch.setattr(farm06, "KEPT", {})
        patch.setattr(farm06, "rnn_key", lambda job: "ours")
        path = folder / "farm_rnn_40_steps.pt"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path)
        farm06.load_rnn(show, job)
        assert farm06.KEPT == {}
    [note] = show.notes
    assert "\n" not in note and path.name in note


@fuzz(few=8, many=60, data=st.binary(max_size=60) | st.text(max_size=60).map(
      lambda t: t.encode("utf-8", "surrogatepass")))  # fmt: skip
def test_corpora(data):
    """A text that can be tokenized by all of them, or one line that says why not."""
    tok = load_script("code/w1d2_tokenizers")
    with temporary() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tok, "VOCAB_SIZE", 300)
        path = folder / "corpus.txt"
        path.write_bytes(data)
        try:
            text, size, note = tok.read_corpus(path)
        except ArgumentTypeError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            assert (text, size) == (data.decode("utf-8-sig"), 300)


# ── plumbing ─────────────────────────────────────────────────────────────────────────────────────
class Terminal(io.StringIO):
    encoding = "utf-8"


@contextlib.contextmanager
def temporary():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
