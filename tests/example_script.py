"""99 · 示例 · An example of a script · for the tests of the plumbing

It claims numbers that the arithmetic gives, so that the printing can be tested without training.
"""

import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from companion import main, require  # noqa: E402

WORDS = 3


def part1_numbers(show):
    """§5.1 · 数 · Numbers with √, σ and ½"""
    require(WORDS > 0, f"WORDS must be at least 1, got {WORDS}")
    show.table(
        ("a table of √n × σ", "√n 与 σ 的表"), ["n", "√n"], [[n, n**0.5] for n in range(WORDS)]
    )
    show.claim("L2-104b", math.log(8), seeds=[math.log(8), 2.0, 2.1])
    show.note(("done ½ ∂ ✓", "完成"))


def part2_figure(show):
    """§3.9 · 图 · A figure and an erratum"""
    show.claim("L2-073", [15.3136492, 15.3136492, 15.3136492])
    with show.figure("99_example", columns=2) as (left, right):
        left.plot([1, 2], [3, 4])
        right.plot([1, 2], [4, 3])


def part3_slow(show):
    """§0 · 慢 · Something that takes a while"""
    if "--part" in sys.argv and sys.argv[-1] == "3":
        for _ in show.progress(range(600), 600, "waiting"):
            time.sleep(0.1)


PARTS = [part1_numbers, part2_figure, part3_slow]

if __name__ == "__main__":
    main(__doc__, PARTS)
