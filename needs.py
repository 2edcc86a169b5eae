"""Wrong input ends in a ValueError that names the argument, what it got and what it takes.

needs.whole(d_model=d) in lm_models and farm_language reads: this needs a whole number. So these two
hold formulas and little else, and what passes here gives neither NaN nor a silent zero.
"""

from numbers import Integral

import torch


def that(holds, message):
    if not holds:
        raise ValueError(message)


def shown(value):
    """What was given instead: its repr in one line, cut short."""
    try:
        text = repr(value)
    except Exception:  # such as an int of 5000 digits
        text = object.__repr__(value)
    return " ".join(text.split())[:60]


def whole(least=1, **sizes):
    """whole(d_model=d): a whole number, `least` or more."""
    for name, value in sizes.items():
        fits = isinstance(value, Integral) and not isinstance(value, bool) and value >= least
        that(fits, f"{name} must be a whole number, {least} or more, got {shown(value)}")


def listed(name, value):
    """The value as a list."""
    try:
        return list(value)
    except TypeError:
        raise ValueError(f"{name} must be a list, got {shown(value)}") from None


def is_number(value):
    """One that float32 can hold, normal or 0: others would become infinite on the way."""
    number, limits = isinstance(value, int | float), torch.finfo(torch.float32)
    return number and (value == 0 or limits.tiny <= abs(value) <= limits.max)


def number(name, value):
    that(is_number(value), f"{name} must be a number, got {shown(value)}")


def positive(name, value):
    that(
        is_number(value) and value > 0,
        f"{name} must be a finite number above 0, got {shown(value)}",
    )


def divisor(name, value, of, total):
    that(total % value == 0, f"{name} must divide {of}, got {shown(value)} and {shown(total)}")


def float_dtype(dtype):
    floats = getattr(dtype, "is_floating_point", False)
    that(floats, f"dtype must be one of torch's float dtypes, got {shown(dtype)}")


def choice(name, value, choices):
    that(value in list(choices), f"{name} must be one of {', '.join(choices)}, got {shown(value)}")


def is_like(x, W):
    return isinstance(x, torch.Tensor) and x.dtype == W.dtype


def seen(value):
    """What was given instead, in short."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"{type(value).__name__} {shown(value)}"


def has_values(tensor):
    """False on the meta device and while torch compiles or exports."""
    return not (tensor.is_meta or torch.compiler.is_compiling())


def sequence(x, W):
    """x must be a sequence that the matrix W (·, size) can take."""
    size = W.shape[1]
    fits = is_like(x, W) and x.dim() == 3 and x.shape[1] > 0 and x.shape[2] == size
    wanted = f"shape (B, T, {size}) with T >= 1 and {W.dtype}"
    that(fits, f"x must have {wanted}, got {seen(x)}")


def ids(ids, vocab_size):
    integers = getattr(ids, "dtype", None) in (torch.int64, torch.int32)
    fits = integers and ids.dim() == 2 and ids.shape[1] > 0
    that(fits, f"ids must be integers (B, T) with T >= 1, got {seen(ids)}")
    if has_values(ids) and ids.numel():
        low, high = ids.min().item(), ids.max().item()
        inside = low >= 0 and high < vocab_size
        that(inside, f"ids must lie in 0 … {vocab_size - 1}, got {low} … {high}")


# These two run at every step of a sequence, so they write a message only when it is needed.
def step(x, state, W):
    """One step's x must be (B, E), as W (·, E) takes it; its state a pair (h, c), or None."""
    if not (is_like(x, W) and x.shape[1:] == W.shape[1:]):
        raise ValueError(f"x must be (B, {W.shape[1]}) and {W.dtype}, got {seen(x)}")
    if state is not None and not (isinstance(state, tuple | list) and len(state) == 2):
        raise ValueError(f"state must be a pair (h, c), got {seen(state)}")


def state(name, state, x, size):
    """The state to start from, (B, size): zeros for None; x (B, ·) gives B, dtype and device."""
    state = x.new_zeros(x.shape[0], size) if state is None else state
    if not is_like(state, x):
        raise ValueError(f"{name} must be a {x.dtype} tensor, got {seen(state)}")
    if state.shape != (x.shape[0], size):
        wanted, got = (x.shape[0], size), tuple(state.shape)
        raise ValueError(f"{name} must have shape {wanted}, got {got}")
    return state


def mask(extra, S):
    """A mask to add to the scores S (B, h, T, T). Bools mean "cut" here and "may look" there."""
    kind = extra.dtype if isinstance(extra, torch.Tensor) else type(extra)
    floats = getattr(kind, "is_floating_point", False)
    that(floats, f"extra_mask must be a float tensor, 0 = may look, -inf = cut, got {kind}")
    fits = all(m in (1, s) for m, s in zip(extra.shape[::-1], S.shape[::-1])) and extra.dim() <= 4
    that(fits, f"extra_mask {tuple(extra.shape)} does not broadcast to {tuple(S.shape)}")


def sight(M):
    """Every query, a row of the mask M (…, T, T), must be left a key, or its softmax is NaN → M."""
    if has_values(M):
        odd = M.isnan().any() or M.isposinf().any()
        that(not odd, "extra_mask must hold finite numbers or -inf, got NaN or +inf")
        blind = M.isneginf().all(dim=-1).nonzero()[:, -1]
        row = blind[0].item() if len(blind) else None
        that(row is None, f"extra_mask cuts query row {row} off from every key")
    return M


def draws(n_new, T, max_len, temperature, top_k, vocab_size):
    """What GPT.generate may be asked for after T tokens."""
    sane = is_number(temperature) and temperature >= 0
    that(sane, f"temperature must be 0 or a positive number, got {shown(temperature)}")
    fits = isinstance(top_k, Integral) and 0 < top_k <= vocab_size
    that(fits, f"top_k must be in 1 … {vocab_size}, got {shown(top_k)}")
    fits = isinstance(n_new, Integral) and 0 <= n_new <= max_len - T
    that(fits, f"n_new must be in 0 … {max_len - T} (max_len {max_len} - T), got {shown(n_new)}")


def state_dict(state_dict):
    """A dict from names to float tensors, old checkpoints' mask buffers (bools) aside."""
    named = isinstance(state_dict, dict) and all(isinstance(name, str) for name in state_dict)
    if not named:
        raise ValueError(f"state_dict must be a dict from names to tensors, got {seen(state_dict)}")
    for name, value in state_dict.items():
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        fits = floats or name.endswith((".attn.bias", ".attn.masked_bias"))
        that(fits, f"state_dict: {name!r} must be a float tensor, got {seen(value)}")


def same_shapes(state_dict, wanted):
    """Neither may have a name or a shape that the other has not."""
    wanted, got = ({name: t.shape for name, t in d.items()} for d in (wanted, state_dict))
    for name in sorted(wanted.keys() | got.keys()):
        need, have = wanted.get(name), got.get(name)
        that(have == need, f"state_dict: this GPT has {need} for {name}, got {have}")


def places(name, where, size):
    """An int, several ints or a slice, as a bool vector (size,) that is True at those places."""
    several = where.tolist() if isinstance(where, torch.Tensor) else where
    try:
        if isinstance(several, slice):
            at = list(range(size)[several])
        else:
            several = [several] if isinstance(several, Integral) else list(several)
            at = [range(size)[p] for p in several if not isinstance(p, bool)]  # -1: the last
        fits = isinstance(several, slice) or len(at) == len(several)
    except (IndexError, TypeError, ValueError):
        fits = False
    that(fits, f"{name} must be ints in 0 … {size - 1} or a slice, got {shown(where)}")
    vector = torch.zeros(size, dtype=torch.bool)
    vector[torch.tensor(at, dtype=torch.int64)] = True
    return vector
