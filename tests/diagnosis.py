"""What goes wrong when one writes these models oneself: each mistake as a wrong formula.

A right formula here takes its mistakes as keywords. `explain` looks for the mistake, or the two
together, whose formula gives exactly the numbers that a student's model gave.
w: a dict of weights by lm_models' names. Shapes as there: B, T, E, H, d, h, d_k, V.
"""

import itertools
import math
from typing import NamedTuple

import torch
from torch.nn import functional as F


class Mistake(NamedTuple):
    name: str
    en: str
    zh: str
    change: dict  # keywords of the formula


def explain(formula, mistakes, theirs):
    """The mistakes (one, or two) that give these numbers; () if the formula is right; or None."""
    if same(formula(), theirs):
        return ()
    for chosen in [*itertools.combinations(mistakes, 1), *itertools.combinations(mistakes, 2)]:
        change = {key: value for one in chosen for key, value in one.change.items()}
        if len(change) == sum(len(one.change) for one in chosen):  # not two of the same place
            try:
                wrong = formula(**change)
            except (RuntimeError, KeyError):
                continue  # two that cannot happen together, or not in this model
            if same(wrong, theirs):
                return chosen
    return None


def same(expected, got, tolerance=1e-5):
    """Equal but for rounding, float32's too; where a formula gives NaN (0/0), anything goes."""
    if isinstance(expected, tuple):
        return len(expected) == len(got) and all(map(same, expected, got))
    defined = ~expected.isnan()
    if got.shape != expected.shape or not defined.any():
        return False
    scale = max(1.0, expected[defined].abs().max().item())
    return bool(((expected - got)[defined].abs() <= tolerance * scale).all())  # NaN is not <=


# ── recurrent networks ───────────────────────────────────────────────────────────────────────────
def elman(w, x, h, act=torch.tanh, bias=1, carry=True, outputs="new", axis=1):
    """x (B, T, E), h (B, H) → all h (B, T, H), the last h."""
    out = []
    for x_t in x.unbind(axis):
        before = h
        h = act(x_t @ w["W_hx"].T + h @ w["W_hh"].T + bias * w["b_h"])
        out.append(h if outputs == "new" else before)
        h_end = h
        h = h if carry else torch.zeros_like(h)
    return torch.stack(out, axis), h_end


CARRY = Mistake(
    "state not carried",
    "the state is not carried from step to step: each step starts again from zeros",
    "状态没有一步步传下去：每一步都从零重新开始",
    {"carry": False},
)
ELMAN = [
    Mistake("tanh missing", "the tanh is missing", "漏了 tanh", {"act": lambda a: a}),
    Mistake("sigmoid", "a sigmoid stands in place of tanh", "tanh 写成了 sigmoid",
    {"act": torch.sigmoid}),
    Mistake("relu", "a ReLU stands in place of tanh", "tanh 写成了 ReLU", {"act": torch.relu}),
    Mistake("bias missing", "the bias b_h is never added", "没有加偏置 b_h", {"bias": 0}),
    Mistake("bias twice", "the bias b_h is added twice", "偏置 b_h 加了两次", {"bias": 2}),
    CARRY,
    Mistake(
        "outputs late",
        "the outputs are h_0 … h_(T-1): h is stored before it is updated",
        "输出的是 h_0 … h_(T-1)：在更新之前就存了 h",
        {"outputs": "old"},
    ),
]  # fmt: skip


def lstm_cell(
    w, x, h, c, order="ifgo", g_act=torch.tanh, new_c=lambda i, f, g, c: f * c + i * g,
    out=torch.tanh, read="new", b_ih=1, b_hh=1, f_plus=0, takes="hc", returns="hc", recurrent="h",
    cut=lambda gates: gates.chunk(4, dim=1),
):  # fmt: skip
    """x (B, E), h and c (B, H) → (h, c)."""
    if takes == "ch":
        h, c = c, h
    gates = x @ w["weight_ih"].T + b_ih * w["bias_ih"] + b_hh * w["bias_hh"]
    gates = gates + (h if recurrent == "h" else c) @ w["weight_hh"].T  # (B, 4H)
    a = dict(zip(order, cut(gates)))
    i, f, o = torch.sigmoid(a["i"]), torch.sigmoid(a["f"] + f_plus), torch.sigmoid(a["o"])
    old, c = c, new_c(i, f, g_act(a["g"]), c)
    h = o * out(c if read == "new" else old)
    return (h, c) if returns == "hc" else (c, h)


NAMES = {
    "i": ("input", "输入门"),
    "f": ("forget", "遗忘门"),
    "g": ("cell", "候选（g）"),
    "o": ("output", "输出门"),
}


def gate_order(order):
    """The rows in another order than i, f, g, o."""
    moved = [gate for gate, right in zip(order, "ifgo") if gate != right]
    en, zh = ([NAMES[gate][n] for gate in "ifgo" if gate in moved] for n in (0, 1))
    rows = f"{' and '.join(en)} gate rows look swapped" if len(moved) == 2 else "the gate rows are"
    hang = f"{'与'.join(zh)}的行像是对调了" if len(moved) == 2 else "各门的行次序不对"
    have = ", ".join(order)
    return Mistake(
        f"gate order {order}",
        f"{rows}{':' if len(moved) == 2 else ' in another order:'} yours are {have}; torch's order,"
        " and the one here, is i, f, g, o (rows of weight_ih, weight_hh and both biases)",
        f"{hang}：你的次序是 {have}；torch 的次序（也是这里的）是 i, f, g, o"
        "（weight_ih、weight_hh 和两个偏置的行都这样排）",
        {"order": order},
    )


LSTM_CELL = [
    gate_order("".join(p)) for p in itertools.permutations("ifgo") if "".join(p) != "ifgo"
] + [
    Mistake(
        "every fourth row",
        "each gate takes every fourth row, view(B, H, 4): it takes H neighbours, chunk(4, dim=1)",
        "每个门隔 4 行取一行，即 view(B, H, 4)：应取相邻的 H 行，即 chunk(4, dim=1)",
        {"cut": lambda gates: gates.unflatten(1, (-1, 4)).unbind(2)},
    ),
    Mistake(
        "cell tanh missing",
        "the tanh on the cell is missing in the output: h = o * tanh(c), not o * c",
        "输出处漏了对记忆单元的 tanh：应为 h = o * tanh(c)，不是 o * c",
        {"out": lambda c: c},
    ),
    Mistake(
        "cell sigmoid",
        "the output takes a sigmoid of the cell: h = o * tanh(c)",
        "输出处对记忆单元用了 sigmoid：应为 h = o * tanh(c)",
        {"out": torch.sigmoid},
    ),
    Mistake(
        "candidate sigmoid",
        "the candidate g goes through a sigmoid: it is no gate, g = tanh(…)",
        "候选 g 用了 sigmoid：它不是门，应为 g = tanh(…)",
        {"g_act": torch.sigmoid},
    ),
    Mistake(
        "candidate tanh missing",
        "the candidate g has no tanh: g = tanh(…)",
        "候选 g 没有过 tanh：应为 g = tanh(…)",
        {"g_act": lambda a: a},
    ),
    Mistake(
        "input gate missing",
        "the input gate is missing: c = f * c + i * g, not f * c + g",
        "漏了输入门：应为 c = f * c + i * g，不是 f * c + g",
        {"new_c": lambda i, f, g, c: f * c + g},
    ),
    Mistake(
        "forget gate missing",
        "the forget gate is missing: c = f * c + i * g, not c + i * g",
        "漏了遗忘门：应为 c = f * c + i * g，不是 c + i * g",
        {"new_c": lambda i, f, g, c: c + i * g},
    ),
    Mistake(
        "coupled gates",
        "1 - f stands in place of the input gate (as in a GRU): c = f * c + i * g",
        "输入门的位置写成了 1 - f（GRU 的做法）：应为 c = f * c + i * g",
        {"new_c": lambda i, f, g, c: f * c + (1 - f) * g},
    ),
    Mistake(
        "old cell read",
        "h is read from the cell before its update: h = o * tanh(c) with the new c",
        "h 读的是更新之前的记忆单元：应为 h = o * tanh(c)，其中 c 是新的",
        {"read": "old"},
    ),
    Mistake("bias_hh missing", "bias_hh is never added", "没有加 bias_hh", {"b_hh": 0}),
    Mistake("bias_ih missing", "bias_ih is never added", "没有加 bias_ih", {"b_ih": 0}),
    Mistake(
        "forget bias in forward",
        "forward adds 1 to the forget gate on top of the weights: the forget bias belongs into"
        " bias_ih at the start, not into each step",
        "forward 里又给遗忘门加了 1：遗忘门偏置应在初始化时写进 bias_ih，不是每步再加",
        {"f_plus": 1},
    ),
    Mistake(
        "state returned c, h",
        "the state is returned in the order (c, h): the order is (h, c)",
        "返回的状态次序是 (c, h)：应为 (h, c)",
        {"returns": "ch"},
    ),
    Mistake(
        "state taken c, h",
        "the state is taken apart as (c, h): the order is (h, c)",
        "拆状态时用了 (c, h) 的次序：应为 (h, c)",
        {"takes": "ch"},
    ),
    Mistake(
        "cell in the gates",
        "the gates look at c instead of h: weight_hh multiplies h_(t-1)",
        "门看的是 c 而不是 h：weight_hh 乘的是 h_(t-1)",
        {"recurrent": "c"},
    ),
]  # fmt: skip


def lstm(w, x, h, c, carry=True, outputs="h", **cell):
    """x (B, T, E) → all h (B, T, H), the last h, the last c."""
    out = []
    for x_t in x.unbind(1):
        end = lstm_cell(w, x_t, h, c, **cell)
        out.append(end[outputs == "c"])
        h, c = end if carry else (torch.zeros_like(h), torch.zeros_like(c))
    return torch.stack(out, 1), *end


LSTM = [
    CARRY,
    Mistake(
        "outputs c",
        "the outputs are the cells c_1 … c_T: they are h_1 … h_T",
        "输出的是记忆单元 c_1 … c_T：应为 h_1 … h_T",
        {"outputs": "c"},
    ),
]


# ── positions ────────────────────────────────────────────────────────────────────────────────────
def sinusoids(max_len, d, base, first=0, order="sin cos", exponent=2.0, sign=-1, fixed=False):
    """PE[p, 2i] = sin(p ω_i), PE[p, 2i+1] = cos(p ω_i), ω_i = base^(-2i/d) → (max_len, d)."""
    p = torch.arange(first, first + max_len, dtype=torch.float64).unsqueeze(1)
    i = torch.arange(d // 2, dtype=torch.float64)
    base = 10000.0 if fixed else base
    if order == "own frequency":
        angle = p * base ** (-torch.arange(d, dtype=torch.float64) / d)  # (max_len, d)
        return torch.stack([angle[:, 0::2].sin(), angle[:, 1::2].cos()], -1).flatten(1)
    angle = p * base ** (sign * exponent * i / d)  # (max_len, d/2)
    if order == "halves":
        return torch.cat([angle.sin(), angle.cos()], dim=1)
    pair = [angle.sin(), angle.cos()] if order == "sin cos" else [angle.cos(), angle.sin()]
    return torch.stack(pair, dim=-1).flatten(1)


SINUSOIDS = [
    Mistake(
        "sinusoids from 1",
        "positions are shifted by one: the first row is for p = 0 (0, 1, 0, 1, …)",
        "位置错开了一位：第一行是 p = 0 的编码（0, 1, 0, 1, …）",
        {"first": 1},
    ),
    Mistake(
        "sin and cos swapped",
        "sin and cos are swapped: sin stands in columns 0, 2, 4, …, cos in 1, 3, 5, …",
        "sin 和 cos 对调了：sin 在第 0、2、4… 列，cos 在第 1、3、5… 列",
        {"order": "cos sin"},
    ),
    Mistake(
        "not interleaved",
        "sin and cos are not interleaved: all sines stand before all cosines, but they alternate",
        "sin 和 cos 没有交错排列：你把 sin 全放在前一半、cos 全放在后一半，应该逐列交替",
        {"order": "halves"},
    ),
    Mistake(
        "own frequency",
        "columns 2i and 2i+1 have different frequencies: the two of a pair share ω_i ="
        " base^(-2i/d)",
        "第 2i 列和第 2i+1 列的频率不同：一对共用同一个 ω_i = base^(-2i/d)",
        {"order": "own frequency"},
    ),
    Mistake(
        "exponent i/d",
        "the exponent is i/d, it should be 2i/d: ω_i = base^(-2i/d), i = 0 … d/2 - 1",
        "指数写成了 i/d，应为 2i/d：ω_i = base^(-2i/d)，i = 0 … d/2 - 1",
        {"exponent": 1.0},
    ),
    Mistake(
        "exponent 4i/d",
        "the exponent is 4i/d: arange(0, d, 2) already holds 2i, do not double it again",
        "指数成了 4i/d：arange(0, d, 2) 已经是 2i，不要再乘 2",
        {"exponent": 4.0},
    ),
    Mistake(
        "frequency inverted",
        "p is multiplied by base^(2i/d), it should be divided by it",
        "p 乘了 base^(2i/d)，应该除以它",
        {"sign": 1},
    ),
    Mistake(
        "base ignored",
        "the argument base is ignored: 10000 is used whatever it says",
        "没有用参数 base：不管它是多少都用了 10000",
        {"fixed": True},
    ),
]


# ── attention ────────────────────────────────────────────────────────────────────────────────────
def linear(w, name, x):
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def below(T, diagonal=0):
    """True where query t may look at key j ≤ t + diagonal (T, T)."""
    return torch.ones(T, T).tril(diagonal).bool()


def cut(S, seen):
    return S.masked_fill(~seen, -math.inf)


def weights(
    w, x, h, causal=True, extra=None, scale=lambda S, d_k, d: S / math.sqrt(d_k), axis=-1,
    seen=below, fill=cut, after=False, heads="split", q="W_q", k="W_k", turned=False, extra_by=1,
    **_,
):  # fmt: skip
    """softmax(QKᵀ/√d_k + M): x (B, T, d) → (B, h, T, T)."""
    T, d = x.shape[1:]
    q, k = split(linear(w, q, x), h, heads), split(linear(w, k, x), h, heads)  # (B, h, T, d_k)
    S = scale(q @ k.transpose(-2, -1), d // h, d)  # (B, h, T, T)
    S = S.transpose(-2, -1) if turned else S
    if causal and not after:
        S = fill(S, seen(T))
    if extra is not None and extra_by:
        S = S + extra_by * extra
    A = torch.softmax(S, dim=axis)
    return A * seen(T) if causal and after else A


def attention(w, x, h, merge="split", v="W_v", W_o=True, **changes):
    """x (B, T, d) → (B, T, d)."""
    value = x if v is None else linear(w, v, x)
    heads = weights(w, x, h, **changes) @ split(value, h, changes.get("heads", "split"))
    out = joined(heads, merge)  # (B, T, d)
    return linear(w, "W_o", out) if W_o else out


def split(x, h, how):
    B, T, d = x.shape
    if how == "view":  # no transpose: B, T, d cut into h pieces along T
        return x.reshape(B, h, T, d // h)
    if how == "every h-th":
        return x.reshape(B, T, d // h, h).permute(0, 3, 1, 2)
    if how == "one":  # h copies of a single head, so that one shape fits all
        return x.unsqueeze(1).expand(B, h, T, d)
    return x.reshape(B, T, h, d // h).transpose(1, 2)


def joined(heads, how):
    B, h, T, d_k = heads.shape
    if how == "view":
        return heads.reshape(B, T, h * d_k)
    if how == "every h-th":
        return heads.permute(0, 2, 3, 1).reshape(B, T, h * d_k)
    return heads[:, 0] if how == "one" else heads.transpose(1, 2).reshape(B, T, h * d_k)


ATTENTION = [
    Mistake(
        "sqrt missing",
        "the scores are not divided by √d_k",
        "分数没有除以 √d_k",
        {"scale": lambda S, d_k, d: S},
    ),
    Mistake(
        "sqrt of d_model",
        "the scores are divided by √d_model: divide by √d_k with d_k = d_model / n_heads, the size"
        " of one head",
        "分数除以了 √d_model：应除以 √d_k，d_k = d_model / n_heads 是一个头的维度",
        {"scale": lambda S, d_k, d: S / math.sqrt(d)},
    ),
    Mistake(
        "d_k without root",
        "the scores are divided by d_k: divide by its square root, √d_k",
        "分数除以了 d_k：应除以它的平方根 √d_k",
        {"scale": lambda S, d_k, d: S / d_k},
    ),
    Mistake(
        "scale multiplied",
        "the scores are multiplied by √d_k: divide by it",
        "分数乘了 √d_k：应该除",
        {"scale": lambda S, d_k, d: S * math.sqrt(d_k)},
    ),
    Mistake(
        "softmax over queries",
        "softmax over the wrong axis: it runs over the queries (dim=-2), so the weights of a query"
        " do not sum to 1; it must run over the keys (dim=-1)",
        "softmax 的维度错了：你按列（查询，dim=-2）做，一个查询的权重之和不是 1；应按行（键，"
        "dim=-1）做",
        {"axis": -2},
    ),
    Mistake(
        "softmax over heads",
        "softmax over the wrong axis: it runs over the heads (dim=1); it must run over the keys"
        " (dim=-1)",
        "softmax 的维度错了：你在头之间（dim=1）做；应在键之间（dim=-1）做",
        {"axis": 1},
    ),
    Mistake(
        "softmax over batch",
        "softmax over the wrong axis: it runs over the batch (dim=0); it must run over the keys"
        " (dim=-1)",
        "softmax 的维度错了：你在批（dim=0）上做；应在键之间（dim=-1）做",
        {"axis": 0},
    ),
    Mistake(
        "mask missing",
        "there is no causal mask: every query sees the future",
        "没有因果掩码：每个查询都看到了未来",
        {"seen": lambda T: torch.ones(T, T).bool()},
    ),
    Mistake(
        "diagonal cut",
        "the mask is off by one: it cuts the diagonal, so a query cannot see its own position (and"
        " the first one nothing at all); block only j > t, triu(1) and not triu(0)",
        "掩码差了一位：连对角线也挡住了，查询看不到自己的位置（第一个什么也看不到）；只挡 j > t，"
        "即 triu(1) 而不是 triu(0)",
        {"seen": lambda T: below(T, -1)},
    ),
    Mistake(
        "one future token",
        "the mask is off by one: each query sees one future token; block all j > t, triu(1) and not"
        " triu(2)",
        "掩码差了一位：每个查询多看到一个未来的 token；j > t 全都要挡，即 triu(1) 而不是 triu(2)",
        {"seen": lambda T: below(T, 1)},
    ),
    Mistake(
        "mask reversed",
        "the mask's polarity is reversed: what may be seen is blocked, what lies in the future is"
        " seen (True means 'blocked' in masked_fill, 'may look' in scaled_dot_product_attention)",
        "掩码的极性反了：该看的被挡住，未来反而看得见（True 在 masked_fill 里表示挡住，"
        "在 scaled_dot_product_attention 里表示可看）",
        {"seen": lambda T: ~below(T)},
    ),
    Mistake(
        "past blocked",
        "the mask is upside down: it blocks the past (j < t) in place of the future (j > t), tril"
        " and triu swapped",
        "掩码上下颠倒：挡住的是过去（j < t）而不是未来（j > t），tril 和 triu 用反了",
        {"seen": lambda T: below(T).T},
    ),
    Mistake(
        "mask adds 1",
        "the mask adds 1 to the future's scores: it must add -inf there and 0 elsewhere",
        "掩码给未来的分数加了 1：那里应加 -inf，别处加 0",
        {"fill": lambda S, seen: S + (~seen).to(S)},
    ),
    Mistake(
        "mask adds 1 to the past",
        "the mask adds 1 where a query may look and 0 elsewhere (or only -1 to the future, which"
        " is the"
        " same to a softmax): it must add 0 there and -inf to the future's scores",
        "掩码在可看处加了 1、别处加 0（或只给未来加了 -1，对 softmax 是一回事）：可看处应加 0，"
        "未来的分数应加 -inf",
        {"fill": lambda S, seen: S + seen.to(S)},
    ),
    Mistake(
        "mask times 0",
        "the mask makes the future's scores 0 (multiplied by 0, or filled with 0 or 1e-9):"
        " exp(0) = 1"
        " is still seen; make them -inf before the softmax",
        "掩码把未来的分数变成了 0（乘 0，或填 0、1e-9）：exp(0) = 1，照样看得见；应在 softmax"
        " 之前填 -inf",
        {"fill": lambda S, seen: S * seen},
    ),
    Mistake(
        "mask after softmax",
        "the mask comes after the softmax: the weights left over do not sum to 1; put -inf into the"
        " scores before the softmax",
        "掩码放在了 softmax 之后：剩下的权重之和不是 1；应在 softmax 之前把分数填成 -inf",
        {"after": True},
    ),
    Mistake(
        "mask adds -10",
        "the mask adds only -10 to the future's scores: it must add -inf",
        "掩码只给未来的分数加了 -10：应加 -inf",
        {"fill": lambda S, seen: S - 10 * (~seen).to(S)},
    ),
    Mistake(
        "split without transpose",
        "the heads are not separated: view(B, h, T, d_k) mixes positions; view(B, T, h, d_k) first,"
        " then transpose(1, 2)",
        "头没有正确拆开：view(B, h, T, d_k) 会把不同位置混在一起；应先 view(B, T, h, d_k)，"
        "再 transpose(1, 2)",
        {"heads": "view"},
    ),
    Mistake(
        "merge without transpose",
        "the heads are put together without the transpose back: transpose(1, 2) before the reshape"
        " to (B, T, d)",
        "拼头时没有先转置回来：reshape 成 (B, T, d) 之前要 transpose(1, 2)",
        {"merge": "view"},
    ),
    Mistake(
        "split and merge without transpose",
        "the heads are not separated: view(B, h, T, d_k) and back mixes positions; view(B, T, h,"
        " d_k) and transpose(1, 2), and transpose back before the reshape",
        "头没有正确拆开：直接 view 成 (B, h, T, d_k) 再 view 回来，会把不同位置混在一起；"
        "应 view(B, T, h, d_k) 再 transpose(1, 2)，最后转置回来再 reshape",
        {"heads": "view", "merge": "view"},
    ),
    Mistake(
        "every h-th number",
        "a head takes every h-th number, view(B, T, d_k, h): it takes d_k neighbours, view(B, T, h,"
        " d_k)",
        "每个头隔 h 个取一个数，即 view(B, T, d_k, h)：应取相邻的 d_k 个，即 view(B, T, h, d_k)",
        {"heads": "every h-th", "merge": "every h-th"},
    ),
    Mistake(
        "every h-th number, merged as neighbours",
        "a head takes every h-th number, view(B, T, d_k, h): it takes d_k neighbours, view(B, T, h,"
        " d_k)",
        "每个头隔 h 个取一个数，即 view(B, T, d_k, h)：应取相邻的 d_k 个，即 view(B, T, h, d_k)",
        {"heads": "every h-th"},
    ),
    Mistake(
        "one head",
        "n_heads is ignored: the numbers are those of one head of all d dimensions",
        "没有用到 n_heads：结果等于一个 d 维的头",
        {"heads": "one", "merge": "one", "scale": lambda S, d_k, d: S / math.sqrt(d)},
    ),
    Mistake(
        "one head",
        "n_heads is ignored: the numbers are those of one head of all d dimensions",
        "没有用到 n_heads：结果等于一个 d 维的头",
        {"heads": "one", "merge": "one"},
    ),
    Mistake(
        "W_o missing",
        "W_o is missing: the heads are put together but never go through W_o",
        "漏了 W_o：各头拼起来之后没有再过 W_o",
        {"W_o": False},
    ),
    Mistake(
        "v from W_k",
        "the values come from W_k: v = W_v x",
        "值用了 W_k：应为 v = W_v x",
        {"v": "W_k"},
    ),
    Mistake(
        "v unprojected",
        "the values are x itself: v = W_v x",
        "值直接用了 x：应为 v = W_v x",
        {"v": None},
    ),
    Mistake(
        "q from W_k",
        "the queries come from W_k: q = W_q x",
        "查询用了 W_k：应为 q = W_q x",
        {"q": "W_k"},
    ),
    Mistake(
        "k from W_q",
        "the keys come from W_q: k = W_k x",
        "键用了 W_q：应为 k = W_k x",
        {"k": "W_q"},
    ),
    Mistake(
        "scores transposed",
        "the scores are transposed, K Qᵀ: row t belongs to query t, Q Kᵀ",
        "分数矩阵转置了，写成了 K Qᵀ：第 t 行属于查询 t，应为 Q Kᵀ",
        {"turned": True},
    ),
]
EXTRA_MASK = [
    Mistake(
        "extra_mask ignored",
        "extra_mask is set but never added to the scores",
        "设了 extra_mask，但没有加到分数上",
        {"extra_by": 0},
    ),
    Mistake(
        "extra_mask subtracted",
        "extra_mask is subtracted: it is added, 0 = may look, -inf = cut",
        "extra_mask 是减上去的：应当相加，0 表示可看，-inf 表示切断",
        {"extra_by": -1},
    ),
]


# ── the Transformer ──────────────────────────────────────────────────────────────────────────────
ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "swiglu": F.silu}
ACTIVATIONS["gelu_tanh"] = lambda x: F.gelu(x, approximate="tanh")


def ffn(w, x, activation="gelu", act=None, gate="W_3"):
    """x (B, T, d) → (B, T, d)."""
    first, second = ("W_3", "W_1") if gate == "W_1" else ("W_1", "W_3")
    hidden = (act or ACTIVATIONS[activation])(linear(w, first, x))  # (B, T, d_ff)
    if activation == "swiglu" and gate is not None:
        hidden = hidden * linear(w, second, x)
    return linear(w, "W_2", hidden)


FFN = [
    Mistake(
        "tanh GELU",
        "the GELU is its tanh approximation (GPT-2's); the exact one, x Φ(x), is expected here",
        "GELU 用了 tanh 近似（GPT-2 的那种）；这里要的是精确的 x Φ(x)",
        {"act": ACTIVATIONS["gelu_tanh"]},
    ),
    Mistake(
        "exact GELU",
        "the GELU is the exact x Φ(x); its tanh approximation is expected here",
        "GELU 用了精确的 x Φ(x)；这里要的是 tanh 近似",
        {"act": F.gelu},
    ),
    Mistake(
        "quick GELU",
        "the GELU is the approximation x σ(1.702 x); the exact one, x Φ(x), is expected here",
        "GELU 用了近似 x σ(1.702 x)；这里要的是精确的 x Φ(x)",
        {"act": lambda x: x * torch.sigmoid(1.702 * x)},
    ),
    Mistake(
        "ReLU",
        "a ReLU stands in the feed-forward network, whatever activation says",
        "前馈网络用的是 ReLU，没有按 activation 来",
        {"act": F.relu},
    ),
    Mistake(
        "SiLU",
        "Swish (SiLU) stands in the feed-forward network in place of the activation asked for",
        "前馈网络用的是 Swish（SiLU），不是所要的激活函数",
        {"act": F.silu},
    ),
    Mistake(
        "activation missing",
        "the feed-forward network has no activation between W_1 and W_2",
        "前馈网络的 W_1 和 W_2 之间没有激活函数",
        {"act": lambda x: x},
    ),
    Mistake(
        "gate swapped",
        "W_1 and W_3 are swapped: Swish(W_1 x) * W_3 x",
        "W_1 和 W_3 对调了：应为 Swish(W_1 x) * W_3 x",
        {"gate": "W_1"},
    ),
    Mistake(
        "gate missing",
        "the gate W_3 x is never multiplied in: W_2 (Swish(W_1 x) * W_3 x)",
        "没有乘上门 W_3 x：应为 W_2 (Swish(W_1 x) * W_3 x)",
        {"gate": None},
    ),
]


def layer_norm(x, gain, bias, unbiased=False, centre=True, dims=(-1,), root=True):
    """(x - mean) / √(variance + 1e-5) · gain + bias over the last dimension."""
    mean = x.mean(dims, keepdim=True)
    variance = x.var(dims, correction=int(unbiased), keepdim=True)
    if not centre:
        mean, variance = 0, (x * x).mean(dims, keepdim=True)
    return (x - mean) / (variance + 1e-5) ** (0.5 if root else 1) * gain + bias


def block(w, x, h, norm="pre", plan=None, ln={}, ln_order=(1, 2), activation="gelu", **changes):  # noqa: B006
    """pre: a = x + attn(LN_1(x)), a + ffn(LN_2(a)); post: LN_1(x + attn(x)), LN_2(a + ffn(a))."""
    in_ffn = {key: changes.pop(key) for key in ("act", "gate") if key in changes}

    def attn(x):
        return attention(w, x, h, **changes)

    def feed(x):
        return ffn(w, x, activation, **in_ffn)

    def norm_n(n):
        n = ln_order[n - 1]
        return lambda x: layer_norm(x, w[f"ln_{n}.weight"], w[f"ln_{n}.bias"], **ln)

    return PLANS[plan or norm](x, attn, feed, norm_n(1), norm_n(2))


def post(x, attn, ffn, ln_1, ln_2):
    a = ln_1(x + attn(x))
    return ln_2(a + ffn(a))


def pre(x, attn, ffn, ln_1, ln_2):
    a = x + attn(ln_1(x))
    return a + ffn(ln_2(a))


def normed_residual(x, attn, ffn, ln_1, ln_2):
    x = ln_1(x)
    a = x + attn(x)
    a = ln_2(a)
    return a + ffn(a)


def ffn_first(x, attn, ffn, ln_1, ln_2):
    a = x + ffn(ln_2(x))
    return a + attn(ln_1(a))


PLANS = {
    "pre": pre,
    "post": post,
    "normed residual": normed_residual,
    "ffn first": ffn_first,
    "no residual 1": lambda x, attn, ffn, ln_1, ln_2: (a := attn(ln_1(x))) + ffn(ln_2(a)),
    "no residual 2": lambda x, attn, ffn, ln_1, ln_2: ffn(ln_2(x + attn(ln_1(x)))),
    "no residual": lambda x, attn, ffn, ln_1, ln_2: ffn(ln_2(attn(ln_1(x)))),
    "no norm 1": lambda x, attn, ffn, ln_1, ln_2: (a := x + attn(x)) + ffn(ln_2(a)),
    "no norm 2": lambda x, attn, ffn, ln_1, ln_2: (a := x + attn(ln_1(x))) + ffn(a),
    "parallel": lambda x, attn, ffn, ln_1, ln_2: x + attn(ln_1(x)) + ffn(ln_2(x)),
    "residual from x": lambda x, attn, ffn, ln_1, ln_2: x + ffn(ln_2(x + attn(ln_1(x)))),
    "one norm": lambda x, attn, ffn, ln_1, ln_2: (a := x + attn(ln_1(x))) + ffn(ln_1(a)),
    "res-post": lambda x, attn, ffn, ln_1, ln_2: (a := x + ln_1(attn(x))) + ln_2(ffn(a)),
    "post, no residual 1": lambda x, attn, ffn, ln_1, ln_2: ln_2((a := ln_1(attn(x))) + ffn(a)),
    "post, no residual 2": lambda x, attn, ffn, ln_1, ln_2: ln_2(ffn(ln_1(x + attn(x)))),
}


BLOCK = [
    Mistake(
        "post-norm",
        "the norm is in the wrong place: these are the numbers of post-norm, LN(x + f(x));"
        " pre-norm,"
        " x + f(LN(x)), is asked for",
        "归一化的位置不对：这是 post-norm 的结果，LN(x + f(x))；要的是 pre-norm，x + f(LN(x))",
        {"plan": "post"},
    ),
    Mistake(
        "pre-norm",
        "the norm is in the wrong place: these are the numbers of pre-norm, x + f(LN(x));"
        " post-norm,"
        " LN(x + f(x)), is asked for",
        "归一化的位置不对：这是 pre-norm 的结果，x + f(LN(x))；要的是 post-norm，LN(x + f(x))",
        {"plan": "pre"},
    ),
    Mistake(
        "normed residual",
        "the residual starts from LN(x): x = ln(x); x + f(x) norms the residual path too;"
        " pre-norm is"
        " x + f(LN(x)), with the plain x outside",
        "残差是从 LN(x) 出发的：写成 x = ln(x); x + f(x) 就把残差通路也归一化了；pre-norm 是"
        " x + f(LN(x))，外面是原来的 x",
        {"plan": "normed residual"},
    ),
    Mistake(
        "residual 1 missing",
        "the residual around the attention is missing: a = x + attn(LN_1(x))",
        "漏了注意力外面的残差：a = x + attn(LN_1(x))",
        {"plan": "no residual 1"},
    ),
    Mistake(
        "residual 2 missing",
        "the residual around the feed-forward network is missing: a + ffn(LN_2(a))",
        "漏了前馈网络外面的残差：a + ffn(LN_2(a))",
        {"plan": "no residual 2"},
    ),
    Mistake(
        "residuals missing",
        "both residuals are missing: a = x + attn(LN_1(x)), then a + ffn(LN_2(a))",
        "两处残差都漏了：a = x + attn(LN_1(x))，然后 a + ffn(LN_2(a))",
        {"plan": "no residual"},
    ),
    Mistake(
        "post, residual 1 missing",
        "the residual around the attention is missing: LN_1(x + attn(x))",
        "漏了注意力外面的残差：LN_1(x + attn(x))",
        {"plan": "post, no residual 1"},
    ),
    Mistake(
        "post, residual 2 missing",
        "the residual around the feed-forward network is missing: LN_2(a + ffn(a))",
        "漏了前馈网络外面的残差：LN_2(a + ffn(a))",
        {"plan": "post, no residual 2"},
    ),
    Mistake(
        "norm 1 missing",
        "the attention reads x without LN_1",
        "注意力读的是没有过 LN_1 的 x",
        {"plan": "no norm 1"},
    ),
    Mistake(
        "norm 2 missing",
        "the feed-forward network reads a without LN_2",
        "前馈网络读的是没有过 LN_2 的 a",
        {"plan": "no norm 2"},
    ),
    Mistake(
        "parallel",
        "the feed-forward network reads x: it reads a = x + attn(LN_1(x)), after the attention",
        "前馈网络读的是 x：应读注意力之后的 a = x + attn(LN_1(x))",
        {"plan": "parallel"},
    ),
    Mistake(
        "second residual from x",
        "the second residual adds x: it adds a = x + attn(LN_1(x))",
        "第二处残差加的是 x：应加 a = x + attn(LN_1(x))",
        {"plan": "residual from x"},
    ),
    Mistake(
        "one norm for both",
        "LN_1 is used in both places: LN_2 norms the feed-forward network's input",
        "两处都用了 LN_1：前馈网络的输入应过 LN_2",
        {"plan": "one norm"},
    ),
    Mistake(
        "norm on the branch",
        "the norm sits on the branch's output, x + LN(f(x)); pre-norm is x + f(LN(x)), post-norm"
        " LN(x + f(x))",
        "归一化放在了分支的输出上，x + LN(f(x))；pre-norm 是 x + f(LN(x))，post-norm 是 LN(x +"
        " f(x))",
        {"plan": "res-post"},
    ),
    Mistake(
        "feed-forward first",
        "the feed-forward network comes before the attention: attention first",
        "前馈网络放在了注意力前面：先注意力，后前馈",
        {"plan": "ffn first"},
    ),
    Mistake(
        "unbiased variance",
        "LayerNorm divides by the standard deviation with d - 1 (unbiased, the default of"
        " torch's std"
        " and var): it takes the one with d, unbiased=False",
        "LayerNorm 用了除以 d - 1 的（无偏）标准差，那是 torch 里 std 和 var 的默认：应除以 d，"
        "unbiased=False",
        {"ln": {"unbiased": True}},
    ),
    Mistake(
        "RMSNorm",
        "LayerNorm does not subtract the mean (that is RMSNorm)",
        "LayerNorm 没有减均值（那是 RMSNorm）",
        {"ln": {"centre": False}},
    ),
    Mistake(
        "norm over positions",
        "LayerNorm runs over the wrong axis: over positions and dimensions together (dim=(-2, -1));"
        " each position is normed by itself, over its d numbers",
        "LayerNorm 的维度错了：位置和维度一起做了（dim=(-2, -1)）；每个位置各自在 d 个数上归一化",
        {"ln": {"dims": (-2, -1)}},
    ),
    Mistake(
        "norm over time",
        "LayerNorm runs over the wrong axis: over the positions (dim=1); each position is normed by"
        " itself, over its d numbers (dim=-1)",
        "LayerNorm 的维度错了：在位置（dim=1）上做了；每个位置各自在 d 个数（dim=-1）上归一化",
        {"ln": {"dims": (1,)}},
    ),
    Mistake(
        "variance without root",
        "LayerNorm divides by the variance: divide by its root, the standard deviation",
        "LayerNorm 除以了方差：应除以它的平方根，即标准差",
        {"ln": {"root": False}},
    ),
]


def gpt(
    w, blocks, ids, h, norm="pre", table="learned", shift=0, add=1, by_batch=False, scaled=False,
    final=True, order=1, head=lambda logits: logits, plan=None, first_only=False,
):  # fmt: skip
    """ids (B, T) → logits (B, T, V). table: learned, sinusoidal, none; blocks: weights of each."""
    B, T = ids.shape
    tokens = w["token_embedding"]  # (V, d)
    d = tokens.shape[1]
    x = tokens[ids] * (math.sqrt(d) if scaled else 1)  # (B, T, d)
    if table != "none" and add:
        p = w["position_embedding"] if table == "learned" else sinusoids(T + 9, d, 10000.0)
        x = x + (p[:B, None] if by_batch else p[shift : T + shift])
    for one in [blocks[0]] * len(blocks) if first_only else blocks[::order]:
        x = block(one, x, h, norm, plan)
    if norm == "pre" and final:
        x = layer_norm(x, w["final_norm.weight"], w["final_norm.bias"])
    return head(x @ tokens.T)


GPT = [
    Mistake(
        "final norm missing",
        "the final LayerNorm is missing: a pre-norm GPT norms once more before the output",
        "漏了末端 LayerNorm：pre-norm 的 GPT 在输出之前还要归一化一次",
        {"final": False},
    ),
    Mistake(
        "positions shifted",
        "positions are shifted by one: the first token takes row 0 of the table",
        "位置错开了一位：第一个 token 取位置表的第 0 行",
        {"shift": 1},
    ),
    Mistake(
        "positions missing",
        "the position vectors are never added to the token vectors",
        "没有把位置向量加到词向量上",
        {"add": 0},
    ),
    Mistake(
        "positions by batch",
        "positions are counted along the batch (ids.shape[0]): they count along the sequence,"
        " arange(ids.shape[1])",
        "位置是沿批（ids.shape[0]）数的：应沿序列数，arange(ids.shape[1])",
        {"by_batch": True},
    ),
    Mistake(
        "embedding scaled",
        "the token vectors are multiplied by √d (as in the 2017 paper): a GPT takes them as they"
        " are",
        "词向量乘了 √d（2017 年论文的做法）：GPT 直接用原来的词向量",
        {"scaled": True},
    ),
    Mistake(
        "probabilities",
        "forward returns probabilities: return the logits, before the softmax",
        "forward 返回的是概率：应返回 softmax 之前的 logits",
        {"head": lambda x: torch.softmax(x, -1)},
    ),
    Mistake(
        "log-probabilities",
        "forward returns log-probabilities: return the logits, before the log_softmax",
        "forward 返回的是对数概率：应返回 log_softmax 之前的 logits",
        {"head": lambda x: torch.log_softmax(x, -1)},
    ),
    Mistake(
        "blocks reversed",
        "the blocks run in reverse order",
        "各块的先后次序反了",
        {"order": -1},
    ),
    Mistake(
        "first block repeated",
        "one block is run n_layers times: each layer has its own weights",
        "同一个块跑了 n_layers 次：每层应有自己的权重",
        {"first_only": True},
    ),
    Mistake(
        "norm ignored",
        "the argument norm does not reach the blocks",
        "参数 norm 没有传到各块",
        {"plan": "pre"},
    ),
]
