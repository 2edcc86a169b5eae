"""The ledger: what the lectures print (claims.toml), and when a measured value agrees with it."""

import math
import re
import sys
import tomllib
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKS = ("digits", "residue", "range", "holds", "timing", "fact", "erratum")
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d{1,3}(?!\d))?(?:/[1-9]\d*)?", re.A)


@dataclass(frozen=True)
class Claim:
    """One number of the texts; claims.toml's first lines explain the fields."""

    id: str
    section: str
    en: str
    zh: str
    lecture: str
    check: str
    script: str = ""
    random: str = ""
    low: float = -math.inf
    high: float = math.inf
    right: str = ""
    slack: int = 0
    why_en: str = ""
    why_zh: str = ""
    lecture_zh: str = ""  # the lecture's own words, where `lecture` is words

    def __post_init__(self):
        for field in fields(self):
            value, kinds = getattr(self, field.name), {float: (int, float)}
            fits = isinstance(value, kinds.get(field.type, field.type))
            if not fits or isinstance(value, bool):
                what = f"must be of type {field.type.__name__}, got {value!r:.60}"
                raise ValueError(f"{self.id}: {field.name} {what}")
        largest = sys.float_info.max
        if not self.low <= self.high or any(
            abs(bound) > largest and bound != default
            for bound, default in ((self.low, -math.inf), (self.high, math.inf))
        ):
            raise ValueError(f"{self.id}: low and high must be finite, low not above high")
        if self.check not in CHECKS:
            raise ValueError(f"{self.id}: check is {self.check!r}, not one of {', '.join(CHECKS)}")
        if self.check in ("digits", "residue") and not numbers(self.lecture):
            raise ValueError(f"{self.id}: lecture = {self.lecture!r} has no number to compare with")
        if self.check == "range" and self.low == -math.inf and self.high == math.inf:
            raise ValueError(f"{self.id}: a range needs low, high or both")
        if (self.check in ("range", "erratum") or self.slack) and not (self.why_en and self.why_zh):
            raise ValueError(f"{self.id}: why_en and why_zh must give the reason")

    @property
    def in_numbers(self):
        """The lecture's numbers, as printed, if a range is all that they are held against."""
        printed = re.fullmatch(rf"({NUMBER.pattern})(, ({NUMBER.pattern}))*[%x]?", self.lecture)
        return numbers(self.lecture) if self.check == "range" and printed else []

    @property
    def lecture_is_outside(self):
        """Is it a number, or several, of which one as printed lies outside low … high?"""
        for one in self.in_numbers:
            digit = 0 if "/" in one else Decimal(1).scaleb(Decimal(one).as_tuple().exponent)
            half = float(digit) / 2
            if not self.low - half <= as_float(one) <= self.high + half:
                return True
        return False

    def is_far(self, value):
        """Is it more than three quarters of the way from the lecture's number to the bound?"""
        pairs = list(zip(flat(value), map(as_float, self.in_numbers)))
        bounds = [self.high if v > one else self.low for v, one in pairs]
        return any(
            math.isfinite(bound) and abs(v - one) > 0.75 * abs(bound - one)
            for (v, one), bound in zip(pairs, bounds)
        )

    @property
    def bounds(self):
        """How it is judged, as text: "0.55 … 0.65" for a range, "" where it goes by digits."""
        if self.check == "residue":
            return f"≤ {10 * as_float(numbers(self.lecture)[0]):.0e}"
        if self.low == -math.inf and self.high == math.inf:
            return self.right
        if self.high == math.inf:
            return f"≥ {self.low:g}"
        if self.low == -math.inf:
            return f"≤ {self.high:g}"
        low, high = f"{self.low:g}", f"{self.high:g}"
        return f"{low} ± {(self.high - self.low) / 2:.0e}" if low == high else f"{low} … {high}"


@cache
def load_claims(path=ROOT / "companion" / "claims.toml"):
    """id → Claim, in the order of the texts."""
    with open(path, "rb") as file:
        return claims_of(tomllib.load(file))


def claims_of(table):
    """{id: fields} → {id: Claim}; an entry that makes no sense is a ValueError that names it."""
    claims = {}
    for id, entry in table.items():
        try:
            claims[id] = Claim(id, **entry)
        except TypeError as error:  # a field is missing or unknown, or it is no table at all
            raise ValueError(f"{id}: {error}") from None
    return claims


@cache
def load_constants(path=ROOT / "companion" / "constants.toml"):
    """script → its constants as published, {name: value}; a script that differs is "edited"."""
    with open(path, "rb") as file:
        return tomllib.load(file)


def constants(namespace):
    """The constants at the top of a script: its upper-case names of plain type."""

    def is_plain(value):
        if isinstance(value, list | tuple):
            return all(is_plain(one) for one in value)
        return isinstance(value, bool | int | float | str)

    found = {k: v for k, v in namespace.items() if k.isupper() and is_plain(v)}
    return {name: plain(value) for name, value in found.items()}


def edited(script, namespace):
    """What differs from the published constants, as "DECAY = 0.9 (was 0.5)"."""
    now, published = constants(namespace), load_constants().get(script, {})
    names = [name for name in {**published, **now} if now.get(name) != published.get(name)]
    return [f"{n} = {now.get(n, 'gone')} (was {published.get(n, 'not there')})" for n in names]


def numbers(text):
    """The numbers printed in a text, as strings without thousands' commas."""
    return [found.replace(",", "") for found in NUMBER.findall(text)]


def as_float(printed):
    """The value of a printed number, "1e-7" or "1/2"."""
    numerator, _, denominator = printed.partition("/")
    return float(numerator) / float(denominator or 1)


def plain(value):
    """Python numbers out of tensors, arrays, tuples and their scalars."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def flat(value):
    """A plain value as a flat list."""
    return [x for one in value for x in flat(one)] if isinstance(value, list) else [value]


def rounds_to(value, printed, slack=0):
    """Is the value, rounded to the digits of the printed number, that number?"""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if "/" in printed:
        return abs(value - Fraction(printed)) < 1e-12
    last_digit = Decimal(1).scaleb(Decimal(printed).as_tuple().exponent)
    return abs(Decimal(value) - Decimal(printed)) <= (Decimal("0.5") + slack) * last_digit


def judge(claim, value):
    """The verdict on a plain value: ok, differs, timing or erratum."""
    values = flat(value)

    def digits(text):
        printed = numbers(text)
        same_length = len(values) == len(printed) > 0
        return same_length and all(map(rounds_to, values, printed, [claim.slack] * len(values)))

    is_number = [isinstance(v, int | float) and not isinstance(v, bool) for v in values]
    in_range = all(is_number) and all(claim.low <= v <= claim.high for v in values)
    match claim.check:
        case "timing":
            return "timing"
        case "digits" | "fact":
            agrees = digits(claim.lecture)
        case "residue":
            largest = max(map(abs, values), default=math.inf) if all(is_number) else math.inf
            agrees = largest <= 10 * as_float(numbers(claim.lecture)[0])
        case "range":
            agrees = in_range
        case "holds":
            agrees = value is True
        case "erratum":  # the right value must come out here, else something is wrong with ours
            if not claim.right and claim.low == -math.inf and claim.high == math.inf:
                agrees = value is False  # a statement that does not hold
            else:
                agrees = digits(claim.right) if claim.right else in_range
            return "erratum" if agrees and values else "differs"
    return "ok" if agrees and values else "differs"


NO_YES = {"en": ("no", "yes"), "zh": ("否", "是")}


def written(claim, value, lang="en"):
    """A measured value as text, with two digits more than the lecture prints."""
    if isinstance(value, list):
        return "[" + ", ".join(written(claim, one, lang) for one in value) + "]"
    if isinstance(value, bool):
        return NO_YES[lang][value]
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    printed = numbers(claim.right or claim.lecture)
    if not printed or any("e" in p or "/" in p for p in printed):
        return f"{value:.4g}"
    decimals = max(-Decimal(p).as_tuple().exponent for p in printed)
    return (
        f"{value:,.{decimals + 2}f}"
        if round(abs(value), decimals + 2) >= 10**-decimals or not value
        else f"{value:.3g}"
    )
