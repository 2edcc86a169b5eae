"""The same numbers everywhere: what should not matter is changed all at once, and nothing moves.

A run from the checkout is held against one that differs in working directory, path, clock,
PYTHONHASHSEED, --jobs, threads, language and encoding, and against every part alone
(tests/surroundings.py).
"""

import pytest
from surroundings import NAMES, run_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", NAMES)
def test_the_same_numbers_in_other_surroundings(name, request):
    here, there = run_of("plain", name, request), run_of("odd", name, request)
    assert here.report["script"] == there.report["script"] == name
    assert here.numbers, "there is something to compare"
    assert here.numbers == there.numbers


@pytest.mark.parametrize("name", NAMES)
def test_a_part_alone_measures_what_it_measures_after_the_others(name, request):
    together = run_of("plain", name, request).numbers
    parts = run_of("alone", name, request)["parts"]
    assert [number for part in parts for number in part.numbers] == together
