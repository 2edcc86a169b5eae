"""Every cell of the tables that need no training and no clock, beside those that were read once.

They were held against the lectures by eye; here a changed row turns red that no claim names. After
a change that is meant: RECORD=1 python -m pytest tests/test_tables.py, and read the difference.
"""

import math
import os
import re
from companion.show import _cell
from pathlib import Path

import pytest
from conftest import load_script, run_parts

PARTS = {  # without trainings, timings and, of 04's part 6, the numbers of lines
    "01_forgetful_rnn": [1, 2, 3, 4],
    "02_lstm": [1, 2, 4],
    "03_attention": [1, 3, 5, 6],
    "04_transformer_block": [1, 3, 4],
    "w1day2_checks": range(1, 13),
    "code/w1d2_block": [1, 2, 3, 4, 6],
}
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def lines_of(script):
    """The tables as text: a title, then a line for each row."""
    for title, (header, rows) in run_parts(load_script(script), PARTS[script]).tables.items():
        yield f"# {title}"
        for row in [header, *rows]:
            yield " | ".join(map(_cell, row)).rstrip()


def same(one, other):
    """The same words; numbers to a thousandth, residues of rounding only both tiny."""
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(*([float(x.replace(",", "")) for x in NUMBER.findall(t)] for t in (one, other)))
    return all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-9) for a, b in pairs)


@pytest.mark.parametrize("script", PARTS)
def test_every_cell_is_as_it_was_read(script):
    found = list(lines_of(script))
    file = Path(__file__).parent / "tables" / f"{script.replace('/', '_')}.txt"
    if os.environ.get("RECORD"):
        file.write_text("\n".join(found) + "\n", encoding="utf-8")
    recorded = file.read_text(encoding="utf-8").splitlines()
    changed = [(was, is_now) for was, is_now in zip(recorded, found) if not same(was, is_now)]
    assert not changed and len(found) == len(recorded)


def test_what_counts_as_the_same():
    assert same("0.1234 (3 / 4)", "0.12345 (3 / 4)") and same("3e-16", "-7.1e-15")
    assert same("1,234 a", "1,235 a") and same("", "")
    for one, other in ("1.00", "1.01"), ("3 of 4", "4 of 4"), ("-2", "2"), ("a 1", "b 1"):
        assert not same(one, other)
    assert not same("2.5 ± 1", "2.5") and not same("1 2", "1 3")
