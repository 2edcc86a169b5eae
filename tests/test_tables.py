"""All that every part hands over, at small sizes, beside what it was when somebody read it.

Tables, notes and claims: here a changed row turns red that no other test looks at. After a change
that is meant: RECORD=1 python -m pytest tests/test_tables.py, and read the difference.
"""

import json
import math
import os
import re
from argparse import Namespace
from companion import Recorder
from companion.show import _cell
from pathlib import Path

import pytest
import torch
from conftest import load_script

SMALL = {  # parts; constants that differ from the script's, so that it takes a second
    "01_forgetful_rnn": ([1, 2, 3, 4], {"RUNS": 64}),
    "02_lstm": (
        [1, 2, 3, 4],
        {"E": 5, "H": 8, "BEFORE": 9, "DISTANCES": [0, 1, 9, 20], "FAR": 20, "SEEDS": 3},
    ),
    "03_attention": ([1, 3, 4, 5, 6], {"QUERIES": 640, "LONG_QUERIES": 320}),
    "04_transformer_block": (
        [1, 2, 3, 4], {"STEPS": 2, "WIDTH": 16, "EXAMPLES": 64, "NORM_DEPTHS": [2, 8]}
    ),
    "05_long_range_recall": (
        range(1, 8),
        {"QUICK_STEPS": 4, "BATCH": 16, "NEAR": 4, "LONG_ONLY": 5, "FAR": 9, "TESTED": [1, 3, 9],
         "TEST_SEQUENCES": 80, "GRADIENT_FROM": 3, "GRADIENT_BATCH": 4, "INSIDE": [3, 9],
         "OPENED": 24, "SWEEP_RATES": [1e-3, 1e-2]},
    ),
    "06_farm_transformer": (
        range(1, 9), {"TRAINING": 800, "TEST": 300, "SENTENCES": 20, "SAMPLED": 8, "BATCH": 8},
    ),
    "w1day2_checks": (range(1, 13), {}),
    "code/w1d2_block": (range(1, 7), {}),
}  # fmt: skip
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def lines_of(script, folder, monkeypatch):
    """What the parts hand over, as text."""
    module, (parts, constants) = load_script(script), SMALL[script]
    for name, value in constants.items():
        monkeypatch.setattr(module, name, value)
    if script.startswith("06"):
        for name, value in {"CACHE": folder, "KEPT": {}, "steps": lambda show, kind: 12}.items():
            monkeypatch.setattr(module, name, value)
    if script.startswith("05"):
        monkeypatch.setattr(module, "RUNS", {})
    seeds = 2 if script[:2] in ("04", "05", "06") else None
    options = Namespace(sweep_lr=True)  # 05's part 7
    show = Recorder(seeds=seeds, quick=script.startswith("05"), options=options)
    for number in parts:
        module.PARTS[number - 1](show)
    for title, (header, rows) in show.tables.items():
        yield f"# {title}"
        for row in [header, *rows]:
            yield " | ".join(map(_cell, row)).rstrip()
    yield "# notes"
    yield from show.notes
    yield "# claims"
    for id, value in show.claims.items():
        if show.verdicts[id] != "timing":
            yield f"{id}: {json.dumps([value, show.seeds_of.get(id)])}"


def same(one, other):
    """The same words; numbers to a thousandth, residues of rounding only both tiny."""
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(*([float(x.replace(",", "")) for x in NUMBER.findall(t)] for t in (one, other)))
    return all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-9) for a, b in pairs)


@pytest.mark.parametrize("script", SMALL)
def test_everything_is_as_it_was_read(script, tmp_path, monkeypatch):
    found = "\n".join(lines_of(script, tmp_path, monkeypatch)).replace(torch.__version__, "2.13.0")
    file = Path(__file__).parent / "tables" / f"{script.replace('/', '_')}.txt"
    if os.environ.get("RECORD"):
        file.write_text(found + "\n", encoding="utf-8")
    recorded, found = file.read_text(encoding="utf-8").splitlines(), found.splitlines()
    changed = [(was, is_now) for was, is_now in zip(recorded, found) if not same(was, is_now)]
    assert not changed and len(found) == len(recorded)


def test_what_counts_as_the_same():
    assert same("0.1234 (3 / 4)", "0.12345 (3 / 4)") and same("3e-16", "-7.1e-15")
    assert same("1,234 a", "1,235 a") and same("", "")
    for one, other in ("1.00", "1.01"), ("3 of 4", "4 of 4"), ("-2", "2"), ("a 1", "b 1"):
        assert not same(one, other)
    assert not same("2.5 ± 1", "2.5") and not same("1 2", "1 3")
