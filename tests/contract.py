"""The contract of lm_models, and of W1D2's block, as checks of any file that offers these names.

A check fails with a sentence, in both languages, that says what is wrong; it skips with "not there
yet: NAME" what the file does not have. Formulas and known mistakes: diagnosis.py.
"""

import difflib
import inspect
import itertools
import math
import traceback
from contextlib import contextmanager
from functools import cache

import diagnosis as d
import pytest
import torch
from torch.nn import functional as F

B, T, E, H = 2, 5, 4, 6
D, HEADS = 12, 3  # d_model, so that d_k = 4 is neither of them
V, MAX_LEN, LAYERS = 17, 9, 2
SIGNATURES = {
    "ElmanRNN": "ElmanRNN(input_size, hidden_size)",
    "LSTMCell": "LSTMCell(input_size, hidden_size, forget_bias=None)",
    "LSTM": "LSTM(input_size, hidden_size, forget_bias=None)",
    "RNNLM": "RNNLM(vocab_size, embed_size=32, hidden_size=64)",
    "LSTMLM": "LSTMLM(vocab_size, embed_size=32, hidden_size=64)",
    "sinusoidal_positions": "sinusoidal_positions(max_len, d_model, base=10000.0)",
    "MultiHeadAttention": "MultiHeadAttention(d_model, n_heads, causal=True)",
    "FeedForward": "FeedForward(d_model, d_ff=None, activation='gelu')",
    "Block": "Block(d_model, n_heads, norm='pre', activation='gelu', causal=True)",
    "GPT": "GPT(vocab_size, d_model, n_layers, n_heads, max_len=120, positions='learned',"
    " norm='pre', activation='gelu')",
    "gpt_parameter_count": "gpt_parameter_count(vocab_size, d_model, n_layers, max_len)",
    "cut": "cut(model, queries, keys)",
}


# ── saying what is wrong ─────────────────────────────────────────────────────────────────────────
def fail(en, zh):
    pytest.fail(f"{en}\n{zh}", pytrace=False)


def not_there(what):
    pytest.skip(f"not there yet: {what}")


def judge(what, formula, mistakes, theirs, names=("",)):
    """Fail with the mistake that these numbers show, unless they are the formula's."""
    found = d.explain(formula, mistakes, theirs)
    if found == ():
        return
    if found is None:
        right = formula()
        pairs = list(zip(right, theirs)) if isinstance(right, tuple) else [(right, theirs)]
        gaps = ["" if d.same(a, b) else f"{(a - b).abs().max():.2g}" for a, b in pairs]
        en = ", ".join(
            f"{n} is {f'off by up to {g}' if g else 'right'}" for n, g in zip(names, gaps)
        )
        zh = "，".join(f"{n} {f'最多相差 {g}' if g else '正确'}" for n, g in zip(names, gaps))
        fail(
            f"{what}: {en}".replace(":  is", " is")
            + f"; none of the {len(mistakes)} mistakes known"
            " here, alone or two together, gives these numbers: compare with the formula line by"
            " line",
            f"{what}：{zh}".replace("： ", "：")
            + f"；这里认识的 {len(mistakes)} 种错误（单独或两两组合）都得不出这些数："
            "请对着公式逐行检查",
        )
    fail(
        f"{what}: " + "; and ".join(one.en for one in found),
        f"{what}：" + "；并且".join(one.zh for one in found),
    )


def get(models, name):
    """What the file calls by this name; if nothing, perhaps something of its own with another."""
    if not hasattr(models, name):
        mine = [n for n, v in vars(models).items()
                if getattr(v, "__module__",
                "") == models.__name__ and n not in SIGNATURES]  # fmt: skip
        alike = [n for n in mine if len(n) > 2 and (n.lower() in name.lower() or name in n)]
        alike = alike or difflib.get_close_matches(name, mine, 1)
        not_there(name + "".join(f" (rename {n}?)" for n in alike[:1]))
    return getattr(models, name)


def attempt(models, what, call):
    """call(); an error in the student's own code becomes one line that names the place."""
    try:
        return call()
    except Exception as caught:
        error = caught
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if one.filename == models.__file__]
    where = f", line {own[-1].lineno}: {own[-1].line}" if own else ""
    text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return fail(f"{what} ends in {text}{where}", f"{what} 报错：{text}{where}")


def build(models, name, *sizes, **options):
    """An instance in eval mode; an option that is not known is not there yet."""
    cls = get(models, name)
    try:
        taken = inspect.signature(cls).parameters
    except (TypeError, ValueError):
        taken = options
    if any(p.kind is p.VAR_KEYWORD for p in getattr(taken, "values", list)()):
        taken = options
    for option, value in options.items():
        if option not in taken:
            not_there(f"{name}({option}={value!r})")
    what = ", ".join([*map(repr, sizes), *(f"{k}={v!r}" for k, v in options.items())])
    refusals = (ValueError, NotImplementedError, KeyError, AssertionError) if options else ()
    try:
        module = cls(*sizes, **options)
    except refusals:
        not_there(f"{name}({what})")
    except Exception:  # noqa: BLE001
        module = None
    if module is None:
        call = f"{SIGNATURES[name]}: {name}({what})"
        module = attempt(models, call, lambda: cls(*sizes, **options))
    if not isinstance(module, torch.nn.Module):
        fail(f"{name} must be an nn.Module", f"{name} 应当是 nn.Module")
    return module.eval()


def shake(module):
    """Every parameter random, also the gains and biases that start at 1 and 0."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter.shape[-1] / 2))
    return module


def loud(*parameters):
    """Larger, so that beside the variances a LayerNorm's epsilon, whatever it is, is nothing."""
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(5)


def run(models, what, module, *inputs):
    """module(*inputs), its inputs found as they were and the same again on a second call."""
    before = [one.clone() for one in flat(inputs)]
    with torch.no_grad():
        first = attempt(models, what, lambda: module(*inputs))
        changed = not all(map(torch.equal, before, flat(inputs)))
        if changed:
            fail(
                f"{what} changes its input in place (x += …, c *= …, masked_fill_): the caller's"
                " tensor is another one afterwards; write x = x + …",
                f"{what} 就地改动了输入（x += …、c *= …、masked_fill_）：调用者的张量被改了；"
                "应写成 x = x + …",
            )
        again = attempt(models, what, lambda: module(*inputs))
        same = all(map(torch.equal, flat([first]), flat([again])))
    if not same and not any(one.isnan().any() for one in flat([first])):
        fail(
            f"{what} gives other numbers on a second call: dropout is left on after .eval()? Use"
            " nn.Dropout, or F.dropout(…, training=self.training)",
            f"{what} 第二次调用结果不同：.eval() 之后 dropout 还开着？用 nn.Dropout，"
            "或 F.dropout(…, training=self.training)",
        )
    return first


def flat(values):
    """All tensors of nested tuples and lists."""
    tensors = []
    for one in values:
        tensors += [one] if isinstance(one, torch.Tensor) else flat(one) if one else []
    return tensors


def shaped(what, got, shape, names):
    """One tensor of that shape."""
    if isinstance(got, tuple | list):
        fail(
            f"{what} returns {len(got)} things; it must return one tensor {names}",
            f"{what} 返回了 {len(got)} 个值；应只返回一个张量 {names}",
        )
    if not isinstance(got, torch.Tensor) or got.shape != shape:
        have = tuple(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
        fail(
            f"{what} returns {have}; it must be {names} = {tuple(shape)}",
            f"{what} 返回 {have}；应为 {names} = {tuple(shape)}",
        )
    return got


def same_gradients(what, formula, theirs, inputs):
    """The numbers are right; so must be their slopes."""
    right, mine = flat([formula()]), flat([theirs])
    slopes = [torch.randn_like(one) for one in right]
    expected = torch.autograd.grad(
        sum((a * b).sum() for a, b in zip(right, slopes)), inputs, allow_unused=True
    )
    loss = sum((a * b).sum() for a, b in zip(mine, slopes))
    got = [None] * len(inputs)
    if loss.requires_grad:
        got = torch.autograd.grad(loss, inputs, allow_unused=True)
    for a, b in zip(expected, got):
        if a is not None and (b is None or not d.same(a, b)):
            fail(
                f"{what}: the numbers are right, their gradient is not: something cuts it in"
                " forward (.detach(), .data, torch.no_grad(), a trip through NumPy)",
                f"{what}：数值对，梯度不对：forward 里有什么切断了它（.detach()、.data、"
                "torch.no_grad()，或转成了 NumPy）",
            )


# ── finding the weights ──────────────────────────────────────────────────────────────────────────
def parameters(module):
    return dict(module.named_parameters(remove_duplicate=False))


def find(what, module, wanted, hint):
    """{name: parameter} for each wanted {name: shape}, wherever in the module it sits."""
    have, found = parameters(module), {}
    for name, shape in wanted.items():
        fits = [p for n, p in have.items() if n == name or n.endswith("." + name)]
        if len(fits) != 1:
            mine = ", ".join(f"{n} {tuple(p.shape)}" for n, p in have.items())
            plain = ", ".join(n for n, v in vars(module).items() if isinstance(v, torch.Tensor))
            fail(
                f"{what}: there is no parameter {name} to load weights into; yours are:"
                f" {mine or 'none'}."
                + (f" ({plain}: no nn.Parameter, an optimiser would not see it.)" if plain else "")
                + f" Needed: {hint[0]}",
                f"{what}：找不到参数 {name}，没法装入权重；你的参数：{mine or '没有'}。"
                + (f"（{plain} 不是 nn.Parameter，优化器看不到。）" if plain else "")
                + f"需要：{hint[1]}",
            )
        if fits[0].shape != shape:
            have, due = tuple(fits[0].shape), tuple(shape)
            fail(
                f"{what}: {name} has shape {have}, it should be {due} ({hint[0]})",
                f"{what}：{name} 的形状是 {have}，应为 {due}（{hint[1]}）",
            )
        found[name] = fits[0]
    return found


CELL = (
    "weight_ih (4H, E), weight_hh (4H, H), bias_ih (4H,), bias_hh (4H,), as in nn.LSTMCell: the"
    " four gates' rows i, f, g, o one below the other",
    "weight_ih (4H, E)、weight_hh (4H, H)、bias_ih (4H,)、bias_hh (4H,)，和 nn.LSTMCell 一样："
    "四个门的行按 i, f, g, o 上下叠放",
)
ELMAN = (
    "W_hx (H, E), W_hh (H, H), b_h (H,), each an nn.Parameter; one bias",
    "W_hx (H, E)、W_hh (H, H)、b_h (H,)，各是一个 nn.Parameter；偏置只有一个",
)


def elman_weights(what, module):
    return find(what, module, {"W_hx": (H, E), "W_hh": (H, H), "b_h": (H,)}, ELMAN)


def cell_weights(what, module):
    shapes = {"weight_ih": (4 * H, E), "weight_hh": (4 * H, H)}
    return find(what, module, shapes | {"bias_ih": (4 * H,), "bias_hh": (4 * H,)}, CELL)


ATTENTION = (
    "W_q, W_k, W_v, W_o, each an nn.Linear(d_model, d_model) with bias",
    "W_q、W_k、W_v、W_o，各是一个带偏置的 nn.Linear(d_model, d_model)",
)


def attention_weights(what, module):
    wanted = {f"W_{n}.weight": (D, D) for n in "qkvo"}
    found = find(what, module, wanted, ATTENTION)
    for full, parameter in parameters(module).items():
        name = ".".join(full.split(".")[-2:])
        if name.endswith(".bias") and name.replace("bias", "weight") in wanted:
            found[name] = parameter
    return found


def norms(module, inside=()):
    """[{weight, bias}] of each LayerNorm, whatever its names: what starts at 1 is the gain."""
    groups = {}
    for name, parameter in module.named_parameters():
        owner = name.rpartition(".")[0]
        if not any(owner == one or owner.startswith(one + ".") for one in inside):
            groups.setdefault(owner, []).append(parameter)
    found = []
    for owned in groups.values():
        if len(owned) == 2 and all(p.shape == (D,) for p in owned):
            zero_first = bool((owned[0] == 0).all())
            found.append(dict(zip(("weight", "bias"), owned[::-1] if zero_first else owned)))
    return found


def ffn_weights(what, module, gated=False):
    """W_1, W_2 (W_3) by name; else by shape, d → d_ff and back."""
    have, found = parameters(module), {}
    for n in "123" if gated else "12":
        for kind in "weight", "bias":
            name = f"W_{n}.{kind}"
            for full, parameter in have.items():
                if full == name or full.endswith("." + name):
                    found[name] = parameter
    if {"W_1.weight", "W_2.weight"} <= found.keys() and (not gated or "W_3.weight" in found):
        return found
    matrices = [
        (n.removesuffix("weight"), p)
        for n, p in have.items()
        if p.dim() == 2 and D in p.shape and p.shape[0] != p.shape[1]
    ]
    up = [n for n, p in matrices if p.shape[1] == D]
    down = [n for n, p in matrices if p.shape[0] == D]
    if len(up) != 1 + gated or len(down) != 1:
        need = "W_1 (d_ff, d), W_2 (d, d_ff)" + (", W_3 (d_ff, d)" if gated else "")
        fail(
            f"{what}: the feed-forward network's matrices were not found; needed: {need}",
            f"{what}：找不到前馈网络的矩阵；需要：{need}",
        )
    found = {}
    for ours, theirs in zip(("W_1", "W_3", "W_2") if gated else ("W_1", "W_2"), up + down):
        found[f"{ours}.weight"] = have[f"{theirs}weight"]
        if f"{theirs}bias" in have:
            found[f"{ours}.bias"] = have[f"{theirs}bias"]
    return found


def block_weights(what, module, gated=False):
    """Not yet shaken: attention by name, feed-forward by name or shape, norms by their start."""
    w = attention_weights(what, module) | ffn_weights(what, module, gated)
    two = norms(module)
    if len(two) != 2:
        fail(
            f"{what} has {len(two)} LayerNorm of its own; it needs two, LN_1 before the attention"
            " and LN_2 before the feed-forward network",
            f"{what} 里有 {len(two)} 个 LayerNorm；应有两个：注意力前的 LN_1 和前馈网络前的 LN_2",
        )
    for n, one in enumerate(two, start=1):
        w |= {f"ln_{n}.{kind}": p for kind, p in one.items()}
    return w


def judge_block(what, w, x, theirs, norm="pre", activation="gelu"):
    """Which norm is the first is no matter of names: if either order is right, all is right."""
    for order in (2, 1), (1, 2):

        def formula(order=order, **changes):
            changes = {"ln_order": order, "norm": norm, "activation": activation} | changes
            return d.block(w, x, HEADS, **changes)

        if d.same(formula(), theirs):
            return formula
    judge(what, formula, [*d.BLOCK, *d.FFN, *d.ATTENTION], theirs)
    return formula


# ── recurrent networks ───────────────────────────────────────────────────────────────────────────
def needs_state(module):
    """Whether forward takes x alone only together with a state."""
    takes = list(inspect.signature(module.forward).parameters.values())
    return len(takes) > 1 and takes[1].default is takes[1].empty and takes[1].kind == 1


def elman_rnn(models):
    module = build(models, "ElmanRNN", E, H)
    w = elman_weights("ElmanRNN", module)
    shake(module)
    x, h = torch.randn(B, T, E), torch.randn(B, H)
    for state in [h] if needs_state(module) else [h, None]:
        what = "ElmanRNN(4, 6)(x, h)" if state is h else "ElmanRNN(4, 6)(x)"
        got = run(models, what, module, x, state) if state is h else run(models, what, module, x)
        got = pair(what, got, ("all h (B, T, H)", "the last h (B, H)"))
        shaped(what + "[0]", got[0], (B, T, H), "(B, T, H)")
        shaped(what + "[1]", got[1], (B, H), "(B, H)")
        start = torch.zeros(B, H) if state is None else h
        judge(
            "ElmanRNN",
            lambda start=start, **k: d.elman(w, x, start, **k),
            d.ELMAN,
            got,
            ("all h", "the last h"),
        )


def pair(what, got, names):
    if not isinstance(got, tuple | list) or len(got) != 2:
        have = len(got) if isinstance(got, tuple | list) else 1
        wanted = f"({names[0]}, {names[1]})"
        fail(
            f"{what} returns {have} thing(s); it must return two, {wanted}",
            f"{what} 返回了 {have} 个值；应返回两个：{wanted}",
        )
    return tuple(got)


def lstm_cell(models):
    module = build(models, "LSTMCell", E, H)
    w = cell_weights("LSTMCell", module)
    shake(module)
    x, h, c = torch.randn(B, E), torch.randn(B, H), torch.randn(B, H)
    what = "LSTMCell(4, 6)(x, (h, c))"
    got = pair(what, run(models, what, module, x, (h, c)), ("h", "c"))
    if isinstance(got[1], tuple | list):
        fail(
            f"{what} returns (h, (h, c)); it must return (h, c)",
            f"{what} 返回了 (h, (h, c))；应返回 (h, c)",
        )
    for name, one in zip("hc", got):
        shaped(f"{what}, {name}", one, (B, H), "(B, H)")
    judge("LSTMCell", lambda **k: d.lstm_cell(w, x, h, c, **k), d.LSTM_CELL, got, "hc")
    inputs = [one.clone().requires_grad_() for one in (x, h, c)]
    theirs = attempt(models, what, lambda: module(inputs[0], tuple(inputs[1:])))
    inside = [*inputs, *w.values()]
    same_gradients("LSTMCell", lambda: d.lstm_cell(w, *inputs), tuple(theirs), inside)


def lstm_cell_without_state(models):
    """(x) alone starts from zeros."""
    module = build(models, "LSTMCell", E, H)
    if needs_state(module):
        not_there("LSTMCell(…)(x) without a state")
    after(models, lstm_cell, "LSTMCell")
    w = cell_weights("LSTMCell", module)
    shake(module)
    x, zero = torch.randn(B, E), torch.zeros(B, H)
    got = run(models, "LSTMCell(4, 6)(x), no state: zeros", module, x)
    if not d.same(d.lstm_cell(w, x, zero, zero), tuple(got)):
        fail(
            "LSTMCell(4, 6)(x) without a state must start from h = c = 0",
            "LSTMCell(4, 6)(x) 不给状态时应从 h = c = 0 开始",
        )


def forget_bias(models):
    """Both biases of the forget gate add up to it; the other gates' keep their start."""
    cls = "LSTMCell"
    n, bias = 40, 3.0
    module = build(models, cls, E, n, forget_bias=bias)
    have = parameters(module)
    one, two = (
        next((p for k, p in have.items() if k.endswith(b)), None) for b in ("bias_ih", "bias_hh")
    )
    if one is None or two is None or one.shape != (4 * n,) or two.shape != (4 * n,):
        after(models, lstm_cell, cls)
        return
    total = (one + two).detach().view(4, n)
    what = f"LSTMCell(4, {n}, forget_bias={bias:g})"
    hold = [g for g in range(4) if (total[g] - bias).abs().max() < 1e-6]
    if hold == [1]:
        return
    names = ["input gate", "forget gate", "cell candidate", "output gate"]
    zh_names = ["输入门", "遗忘门", "候选", "输出门"]
    if 1 in hold:
        en, zh = "all four gates get it", "四个门都加上了"
    elif hold:
        en, zh = f"it went to the {names[hold[0]]}", f"加到了{zh_names[hold[0]]}上"
    elif (total[1] - 2 * bias).abs().max() < 1e-6:
        en = "it is in bias_ih and in bias_hh, which add up to twice of it"
        zh = "bias_ih 和 bias_hh 里各写了一份，加起来成了两倍"
    elif (total[1] - bias).abs().max() < 2 / math.sqrt(n):
        en = "it was added to the random start, or bias_hh was left as it was"
        zh = "是加到随机初值上的，或者没有把 bias_hh 清零"
    else:
        en = f"there the biases add up to {total[1].mean():.2g} on average"
        zh = f"那里两个偏置之和平均是 {total[1].mean():.2g}"
    fail(
        f"{what}: the forget gate's biases, rows H to 2H of bias_ih + bias_hh, must add up to"
        f" {bias:g}, the others stay: {en}",
        f"{what}：遗忘门的偏置（bias_ih + bias_hh 的第 H 到 2H 行）之和应为 {bias:g}，其余不动："
        f"{zh}",
    )


def lstm(models):
    module = build(models, "LSTM", E, H)
    after(models, lstm_cell, "LSTMCell")
    w = cell_weights("LSTM", module)
    shake(module)
    x, h, c = torch.randn(B, T, E), torch.randn(B, H), torch.randn(B, H)
    zero = torch.zeros(B, H)
    calls = [("LSTM(4, 6)(x)", (x,), (zero, zero)), ("LSTM(4, 6)(x, (h, c))", (x, (h, c)), (h, c))]
    for what, inputs, start in calls[needs_state(module) :]:
        out, state = pair(what, run(models, what, module, *inputs), ("all h (B, T, H)", "(h, c)"))
        shaped(what + "[0]", out, (B, T, H), "(B, T, H)")
        h_end, c_end = pair(what + "[1]", state, ("h", "c"))
        mistakes = d.LSTM + d.LSTM_CELL
        theirs = out, h_end, c_end
        names = "all h", "the last h", "the last c"
        judge("LSTM", lambda s=start, **k: d.lstm(w, x, *s, **k), mistakes, theirs, names)


def language_model(models, name):
    V_, E_, H_ = 11, E, H
    module = build(models, name, V_, E_, H_)
    cell = name == "LSTMLM"
    after(models, lstm if cell else elman_rnn, "LSTM" if cell else "ElmanRNN")
    w = (cell_weights if cell else elman_weights)(name, module)
    by_shape = {tuple(p.shape): p for p in module.parameters()}
    missing = [s for s in ((V_, E_), (V_, H_), (V_,)) if s not in by_shape]
    if missing:
        need = "an embedding (V, E) and a linear output (V, H) with bias (V,)"
        fail(
            f"{name} needs {need}; no parameter of shape {missing[0]}",
            f"{name} 需要词嵌入 (V, E) 和带偏置 (V,) 的输出层 (V, H)；没有形状为 {missing[0]}"
            " 的参数",
        )
    shake(module)
    ids = torch.randint(V_, (B, T))
    got = run(models, f"{name}(ids)", module, ids)
    got = shaped(f"{name}(ids)", got, (B, T, V_), "(B, T, V)")
    zero = torch.zeros(B, H)

    def formula(head=lambda logits: logits, **k):
        x = by_shape[V_, E_][ids]
        h = d.lstm(w, x, zero, zero, **k)[0] if cell else d.elman(w, x, zero, **k)[0]
        return head(F.linear(h, by_shape[V_, H_], by_shape[(V_,)]))

    heads = [one for one in d.GPT if "head" in one.change]
    judge(name, formula, [*heads, *(d.LSTM if cell else d.ELMAN)], got)


def rnnlm(models):
    language_model(models, "RNNLM")


def lstmlm(models):
    language_model(models, "LSTMLM")


def after(models, check, name):
    """What is built of a part waits until the part is right: one fault, one failure."""
    waits = verdict(models, check)
    if waits == "wrong":
        pytest.skip(f"first {name}")
    if waits.startswith("first "):
        pytest.skip(waits)


@cache
def verdict(models, check):
    try:
        check(models)
    except pytest.fail.Exception:
        return "wrong"
    except pytest.skip.Exception as skipped:
        return str(skipped)
    return "right"


# ── positions ────────────────────────────────────────────────────────────────────────────────────
def positions(models):
    function = get(models, "sinusoidal_positions")
    for base in 10000.0, 1000.0:
        options = {} if base == 10000.0 else {"base": base}
        call = f"sinusoidal_positions(9, 12{', base=1000.0' if options else ''})"
        table = attempt(models, call, lambda options=options: function(MAX_LEN, D, **options))
        if isinstance(table, torch.nn.Module):
            fail(
                "sinusoidal_positions is a function that returns the table (max_len, d)",
                "sinusoidal_positions 是一个函数，返回表 (max_len, d)",
            )
        table = torch.as_tensor(table) if not isinstance(table, torch.Tensor) else table
        table = shaped(call, table, (MAX_LEN, D), "(max_len, d)").to(torch.float64)

        def formula(base=base, **changes):
            return d.sinusoids(MAX_LEN, D, base, **changes)

        judge("sinusoidal_positions", formula, d.SINUSOIDS, table)


# ── attention ────────────────────────────────────────────────────────────────────────────────────
def attention(models):
    module = build(models, "MultiHeadAttention", D, HEADS)
    w = attention_weights("MultiHeadAttention", module)
    shake(module)
    x = 1.5 * torch.randn(B, T, D)
    what = "MultiHeadAttention(12, 3)(x)"
    got = shaped(what, run(models, what, module, x), (B, T, D), "(B, T, d)")
    judge("MultiHeadAttention", lambda **k: d.attention(w, x, HEADS, **k), d.ATTENTION, got)
    x.requires_grad_()
    theirs = attempt(models, what, lambda: module(x))
    inside = [x, *w.values()]
    same_gradients("MultiHeadAttention", lambda: d.attention(w, x, HEADS), theirs, inside)


def attention_biases(models):
    module = build(models, "MultiHeadAttention", D, HEADS)
    after(models, attention, "MultiHeadAttention")
    found = attention_weights("MultiHeadAttention", module)
    bare = ", ".join(f"W_{n}" for n in "qkvo" if f"W_{n}.bias" not in found)
    if bare:
        fail(
            f"MultiHeadAttention: no bias in {bare}; needed: {ATTENTION[0]}, 4d² + 4d parameters",
            f"MultiHeadAttention：{bare} 没有偏置；需要：{ATTENTION[1]}，共 4d² + 4d 个参数",
        )


def attention_other_sizes(models):
    """Nothing is made for one T, one batch, one number of heads, with a mask of fixed size."""
    build(models, "MultiHeadAttention", D, HEADS)
    after(models, attention, "MultiHeadAttention")
    for heads, batch, time in (1, 1, 1), (4, 3, 8), (12, 1, 2):
        module = build(models, "MultiHeadAttention", D, heads)
        w = attention_weights("MultiHeadAttention", module)
        shake(module)
        x = torch.randn(batch, time, D)
        what = f"MultiHeadAttention(12, {heads})(x), x {tuple(x.shape)},"
        got = shaped(what, run(models, what, module, x), (batch, time, D), "(B, T, d)")

        def formula(w=w, x=x, n_heads=heads, **changes):
            return d.attention(w, x, n_heads, **changes)

        judge(what, formula, d.ATTENTION, got)


def attention_without_mask(models):
    module = build(models, "MultiHeadAttention", D, HEADS, causal=False)
    after(models, attention, "MultiHeadAttention")
    w = attention_weights("MultiHeadAttention", module)
    shake(module)
    x = torch.randn(B, T, D)
    what = "MultiHeadAttention(12, 3, causal=False)(x)"
    got = shaped(what, run(models, what, module, x), (B, T, D), "(B, T, d)")
    if d.same(d.attention(w, x, HEADS), got):
        fail(
            "MultiHeadAttention: causal=False is ignored: the mask is still there",
            "MultiHeadAttention：没有按 causal=False 来：掩码还在",
        )
    judge(what, lambda **k: d.attention(w, x, HEADS, causal=False, **k), d.ATTENTION, got)


def attention_future(models):
    """The future's influence on the past is exactly 0, also where scores are huge."""
    module = build(models, "MultiHeadAttention", D, HEADS)
    after(models, attention, "MultiHeadAttention")
    w = attention_weights("MultiHeadAttention", module)
    shake(module)
    x = torch.randn(B, T, D)
    for scale in 1.0, 1e6:
        if scale > 1:
            with torch.no_grad():  # scores of 1e12
                w["W_q.weight"].mul_(scale)
                w["W_k.weight"].mul_(scale)
        y = x.clone()
        y[:, 3:] = torch.randn(B, T - 3, D)
        before, changed = (
            run(models, "MultiHeadAttention(12, 3)(x)", module, one) for one in (x, y)
        )
        leak = (before - changed)[:, :3].abs().max().item()
        if leak > 0 and scale > 1:  # not NaN, from a softmax by hand that overflows
            fail(
                f"MultiHeadAttention: the mask leaks: with scores of 1e12 a change of tokens 3, 4"
                f" moves the outputs 0 … 2 by {leak:.2g}: the mask adds or fills in a finite"
                " number,"
                " -1e9 or so; use -inf (float('-inf')), then the future's influence is exactly 0",
                "MultiHeadAttention：掩码会漏：分数到 1e12 时，改动第 3、4 个 token 使第 0–2"
                " 个输出变了"
                f" {leak:.2g}：掩码用的是有限的数（如 -1e9）；用 -inf（float('-inf')），"
                "未来的影响才恰好为 0",
            )
        if leak > 0:
            fail(
                "MultiHeadAttention: a change of tokens 3, 4 moves the outputs 0 … 2 by"
                f" {leak:.2g};"
                " it must be exactly 0: mask with -inf",
                f"MultiHeadAttention：改动第 3、4 个 token 使第 0–2 个输出变了 {leak:.2g}；"
                "应恰好为 0：掩码用 -inf",
            )


def attention_weights_shown(models):
    module = build(models, "MultiHeadAttention", D, HEADS)
    if not inspect.ismethod(getattr(module, "attention", None)):
        not_there("MultiHeadAttention.attention")
    after(models, attention, "MultiHeadAttention")
    w = attention_weights("MultiHeadAttention", module)
    shake(module)
    x = torch.randn(B, T, D)
    what = "MultiHeadAttention.attention(x)"
    got = shaped(what, run(models, what, module.attention, x), (B, HEADS, T, T), "(B, h, T, T)")
    judge(what, lambda **k: d.weights(w, x, HEADS, **k), d.ATTENTION, got)


def extra_mask(models):
    module = build(models, "MultiHeadAttention", D, HEADS)
    if not hasattr(module, "extra_mask"):
        not_there("MultiHeadAttention.extra_mask")
    after(models, attention, "MultiHeadAttention")
    w = attention_weights("MultiHeadAttention", module)
    shake(module)
    x = torch.randn(B, T, D)
    for shape in (T, T), (1, 1, T, T), (HEADS, T, T), (B, HEADS, T, T):
        mask = torch.randn(shape)
        mask[..., 3, 1] = -math.inf
        module.extra_mask = mask
        what = f"MultiHeadAttention with extra_mask {shape}"
        got = shaped(what, run(models, what, module, x), (B, T, D), "(B, T, d)")

        def formula(mask=mask, **k):
            return d.attention(w, x, HEADS, extra=mask, **k)

        judge(what, formula, d.EXTRA_MASK, got)


# ── the Transformer ──────────────────────────────────────────────────────────────────────────────
def feed_forward(models, w1d2=False):
    for activation in (None, "relu", "swiglu") if w1d2 else (None, "gelu_tanh", "relu", "swiglu"):
        options = {"activation": activation} if activation else {}
        module = build(models, "FeedForward", D, **options)
        judge_ffn(
            models,
            f"FeedForward(12{f', {activation!r}' if activation else ''})",
            module,
            activation or "gelu",
        )


def judge_ffn(models, what, module, activation):
    gated = activation == "swiglu"
    w = ffn_weights(what, module, gated)
    d_ff, due = w["W_1.weight"].shape[0], round(8 * D / 3) if gated else 4 * D
    if d_ff != due:
        en = f"8d/3 = {due}, so that three matrices hold the same 8d²" if gated else f"4d = {due}"
        zh = f"8d/3 = {due}，三个矩阵合起来才是同样的 8d²" if gated else f"4d = {due}"
        fail(f"{what}: d_ff is {d_ff}, it should be {en}", f"{what}：d_ff 是 {d_ff}，应为 {zh}")
    shake(module)
    x = 1.5 * torch.randn(B, T, D)
    got = shaped(what, run(models, what, module, x), (B, T, D), "(B, T, d)")
    if gated and not named(module, "W_3") and d.same(d.ffn(w, x, activation, gate="W_1"), got):
        return  # which of the two is the gate is told by names alone
    judge(what, lambda **k: d.ffn(w, x, activation, **k), d.FFN, got)


def named(module, name):
    return any(f".{n}".endswith(f".{name}.weight") for n in parameters(module))


def block(models, norm="pre"):
    options = {} if norm == "pre" else {"norm": norm}
    what = "Block(12, 3)" if norm == "pre" else f"Block(12, 3, norm={norm!r})"
    module = build(models, "Block", D, HEADS, **options)
    w = block_weights(what, module)
    after(models, attention, "MultiHeadAttention")
    if norm == "pre":
        after(models, feed_forward, "FeedForward")
    else:
        after(models, block, "Block")
    shake(module)
    loud(w["ln_1.weight"], w["ln_2.weight"])
    x = 5 * torch.randn(B, T, D)
    got = shaped(f"{what}(x)", run(models, f"{what}(x)", module, x), (B, T, D), "(B, T, d)")
    formula = judge_block(what, w, x, got, norm)
    theirs = attempt(models, f"{what}(x)", lambda: module(x))
    same_gradients(what, formula, theirs, list(w.values()))


def block_post(models):
    block(models, "post")


def gpt_weights(what, models, module, norm="pre", table="learned"):
    """({name: parameter}, [weights of each block]); shapes tell all but the blocks apart."""
    blocks = [m for m in module.modules() if isinstance(m, get(models, "Block"))]
    if len(blocks) != LAYERS:
        fail(
            f"{what} holds {len(blocks)} of your Blocks; with n_layers = {LAYERS} it must hold"
            f" {LAYERS}, in an nn.ModuleList (a plain list hides them from the optimiser)",
            f"{what} 里有 {len(blocks)} 个你的 Block；n_layers = {LAYERS} 时应有 {LAYERS} 个，"
            "放在 nn.ModuleList 里（普通列表里的，优化器看不到）",
        )
    by_shape = {}
    for name, p in module.named_parameters():
        by_shape.setdefault(tuple(p.shape), []).append((name, p))
    tokens = by_shape.get((V, D), [])
    if len(tokens) == 2:
        names = " and ".join(name for name, _ in tokens)
        fail(
            f"{what}: the head is untied: {names} are two matrices; the output uses the token"
            " embedding's own weight (head.weight = embedding.weight, or F.linear(x, weight))",
            f"{what}：输出没有和词嵌入绑定：{names.replace(' and ', ' 与 ')} 是两个矩阵；"
            "输出应直接用词嵌入的"
            "权重（head.weight = embedding.weight，或 F.linear(x, weight)）",
        )
    if len(tokens) != 1:
        fail(f"{what} has no token embedding (V, d)", f"{what} 没有词嵌入 (V, d)")
    if (V,) in by_shape:
        fail(
            f"{what}: the output has a bias, {by_shape[(V,)][0][0]}; tied to the embedding it"
            " has none",
            f"{what}：输出带了偏置 {by_shape[(V,)][0][0]}；与词嵌入绑定的输出没有偏置",
        )
    w = {"token_embedding": tokens[0][1]}
    rows = by_shape.get((MAX_LEN, D), [])
    if table == "learned" and not rows:
        fail(
            f"{what} has no position embedding (max_len, d) = ({MAX_LEN}, {D})",
            f"{what} 没有位置嵌入 (max_len, d) = ({MAX_LEN}, {D})",
        )
    w |= {"position_embedding": rows[0][1]} if rows else {}
    inside = [n for n, m in module.named_modules() if isinstance(m, models.Block)]
    last = norms(module, inside)
    if norm == "pre" and not last:
        fail(
            f"{what}: the final LayerNorm is missing: a pre-norm GPT norms once more before the"
            " output",
            f"{what}：漏了末端 LayerNorm：pre-norm 的 GPT 在输出之前还要归一化一次",
        )
    if norm == "pre":
        w |= {f"final_norm.{kind}": p for kind, p in last[0].items()}
    return w, [block_weights("Block", one) for one in blocks]


def gpt(models, **options):
    norm, table = options.get("norm", "pre"), options.get("positions", "learned")
    shown = "".join(f", {k}={v!r}" for k, v in options.items())
    what = f"GPT({V}, {D}, {LAYERS}, {HEADS}{shown})"
    module = build(models, "GPT", V, D, LAYERS, HEADS, max_len=MAX_LEN, **options)
    w, blocks = gpt_weights(what, models, module, norm, table)
    after(models, block, "Block")
    if norm == "post":
        after(models, block_post, "Block(norm='post')")
    if table == "sinusoidal":
        after(models, positions, "sinusoidal_positions")
    if options:
        after(models, gpt, "GPT")
    shake(module)
    loud(*w.values(), *(one[f"ln_{n}.weight"] for one in blocks for n in (1, 2)))
    ids = torch.randint(V, (B, T))
    got = shaped(f"{what}(ids)", run(models, f"{what}(ids)", module, ids), (B, T, V), "(B, T, V)")
    for orders in itertools.product(((2, 1), (1, 2)), repeat=LAYERS):
        w_blocks = [renamed(one, order) for one, order in zip(blocks, orders)]

        def formula(w_blocks=w_blocks, **changes):
            return d.gpt(w, w_blocks, ids, HEADS, **{"norm": norm, "table": table} | changes)

        if d.same(formula(), got):
            return
    judge(what, formula, d.GPT, got)


def renamed(w, order):
    """The same weights with the two norms in this order."""
    moved = {
        f"ln_{n}.{k}": w[f"ln_{m}.{k}"] for n, m in zip((1, 2), order) for k in ("weight", "bias")
    }
    return w | moved


def gpt_sinusoidal(models):
    gpt(models, positions="sinusoidal")


def gpt_no_positions(models):
    gpt(models, positions="none")


def gpt_post(models):
    gpt(models, norm="post")


def gpt_attention(models):
    module = shake(built_gpt(models))
    if not inspect.ismethod(getattr(module, "attention", None)):
        not_there("GPT.attention")
    after(models, gpt, "GPT")
    ids = torch.randint(V, (B, T))
    got = attempt(models, "GPT.attention(ids)", lambda: module.attention(ids))
    if len(got) != LAYERS:
        fail(
            f"GPT.attention(ids) must be a list of one (B, h, T, T) for each of {LAYERS} layers",
            f"GPT.attention(ids) 应返回一个列表，{LAYERS} 层各一个 (B, h, T, T)",
        )
    for n, one in enumerate(got):
        one = shaped(f"GPT.attention(ids)[{n}]", one, (B, HEADS, T, T), "(B, h, T, T)")
        ones, future = torch.ones(B, HEADS, T), one[..., ~d.below(T)]
        if not d.same(ones, one.sum(-1)) or future.abs().max() > 0:
            fail(
                f"GPT.attention(ids)[{n}]: each row must sum to 1, with 0 for the future",
                f"GPT.attention(ids)[{n}]：每一行之和应为 1，未来处应为 0",
            )


def built_gpt(models):
    return build(models, "GPT", V, D, LAYERS, HEADS, max_len=MAX_LEN)


def gpt_generate(models):
    module = built_gpt(models)
    if not hasattr(module, "generate"):
        not_there("GPT.generate")
    after(models, gpt, "GPT")
    w, _ = gpt_weights("GPT", models, module)
    shake(module)
    loud(w["token_embedding"], w["position_embedding"], w["final_norm.weight"])
    what = "GPT.generate(ids, 4, temperature=0)"
    for _ in range(50):  # until the positions that one may confuse give different tokens
        ids = torch.randint(V, (B, 3))
        right = {name: greedy(module, ids, at) for name, at in AT.items()}
        if len({str(one) for one in right.values()}) == len(AT):
            break
    got = run(models, what, lambda ids: module.generate(ids, 4, temperature=0), ids)
    if isinstance(got, torch.Tensor) and got.shape == (B, 4):
        fail(
            f"{what} returns only the new tokens: it must return ids and after them the new ones",
            f"{what} 只返回了新 token：应返回 ids 再接上新的",
        )
    got = shaped(what, got, (B, 7), "(B, T + n_new)")
    if torch.equal(got, right["last"]):
        return
    if torch.equal(got, right["first"]) or torch.equal(got, right["before"]):
        fail(
            f"{what} takes the logits of the wrong position: the next token comes from the last"
            " one,"
            " logits[:, -1]",
            f"{what} 取错了位置的 logits：下一个 token 由最后一个位置决定，logits[:, -1]",
        )
    fail(
        f"{what} is not the likeliest token each time, from logits[:, -1]",
        f"{what} 不是每步取 logits[:, -1] 里概率最大的 token",
    )


AT = {"last": -1, "first": 0, "before": -2}


@torch.no_grad()
def greedy(module, ids, at):
    """Four times the likeliest token after position `at`."""
    for _ in range(4):
        ids = torch.cat([ids, module(ids)[:, at].argmax(-1, keepdim=True)], dim=1)
    return ids


def parameter_count(models):
    function = get(models, "gpt_parameter_count")
    v, size, layers, length = 50257, 768, 12, 1024
    what = "gpt_parameter_count(50257, 768, 12, 1024)"
    count = attempt(models, what, lambda: function(v, size, layers, length))
    total = count.get("total") if isinstance(count, dict) else count
    right = v * size + length * size + layers * (12 * size**2 + 13 * size) + 2 * size
    if total == right:
        return
    known = [
        (v * size, "the output is counted again, but it is tied to the embedding",
         "输出层又数了一遍，它和词嵌入是绑定的"),
        (-2 * size, "the final LayerNorm's 2d are missing", "漏了末端 LayerNorm 的 2d"),
        (-length * size, "the position embedding is missing", "漏了位置嵌入"),
        (-layers * 4 * size, "the blocks' LayerNorms are missing, 4d a layer",
         "漏了各层的 LayerNorm，每层 4d"),
        (-layers * 9 * size, "the biases are missing, 4d + 5d a layer", "漏了偏置，每层 4d + 5d"),
        (-layers * 4 * size, "the attention's biases are missing", "漏了注意力的偏置"),
        (-layers * 5 * size, "the feed-forward biases are missing", "漏了前馈网络的偏置"),
    ]  # fmt: skip
    why = [(en, zh) for gap, en, zh in known if isinstance(total, int) and total - right == gap]
    en, zh = why[0] if why else ("compare item by item with §4.7", "请对着 §4.7 逐项检查")
    fail(
        f'{what} gives {total} in all ("total"), not {right}: {en}',
        f"{what} 合计得 {total}，应为 {right}：{zh}",
    )


def cutting(models):
    cut = get(models, "cut")
    module = shake(built_gpt(models))
    after(models, extra_mask, "MultiHeadAttention.extra_mask")
    after(models, gpt, "GPT")
    ids = torch.randint(V, (B, T))
    other = ids.clone()
    other[:, 1] = (ids[:, 1] + 1) % V

    def both():
        with torch.no_grad(), cut(module, slice(2, None), 1):
            return module(ids), module(other)

    one, two = attempt(models, "cut(gpt, queries=slice(2, None), keys=1)", both)
    if not torch.equal(one[:, 2:], two[:, 2:]):
        fail(
            "cut: with position 1 cut off from all later queries in every layer, nothing later may"
            " depend on it, but it does",
            "cut：把所有之后的查询对位置 1 的注意力都切断后，后面不应再受它影响，现在仍受影响",
        )
    with torch.no_grad():
        again = torch.equal(module(ids)[:, 2:], module(other)[:, 2:])
    if again:
        fail(
            "cut: the links are still cut after the with block: restore extra_mask",
            "cut：with 结束之后注意力仍被切断：要恢复 extra_mask",
        )


LM_MODELS = [
    elman_rnn, lstm_cell, lstm_cell_without_state, forget_bias, lstm, rnnlm, lstmlm, positions,
    attention, attention_biases, attention_other_sizes, attention_without_mask, attention_future,
    attention_weights_shown, extra_mask, feed_forward, block, block_post, gpt, gpt_sinusoidal,
    gpt_no_positions, gpt_post, gpt_attention, gpt_generate, parameter_count, cutting,
]  # fmt: skip


SEED = 0


@contextmanager
def double_precision():
    """float64 and a fixed seed inside; afterwards all is as before."""
    dtype, draws = torch.get_default_dtype(), torch.default_generator.get_state()
    torch.default_generator.manual_seed(SEED)
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.default_generator.set_state(draws)
