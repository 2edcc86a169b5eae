"""The command line that all scripts share: `main(__doc__, PARTS)`."""

import argparse
import json
import locale
import math
import os
import signal
import sys
import time
from companion.ledger import ROOT, edited, load_claims
from companion.show import Show, write_beside
from pathlib import Path


def scripts():
    """Every script that claims numbers, in the order of the lectures."""
    found = sorted(ROOT.glob("[0-9][0-9]_*.py")) + [ROOT / "w1day2_checks.py"]
    return [path for path in found + sorted(ROOT.glob("code/w1d2_*.py")) if path.exists()]


class Parser(argparse.ArgumentParser):
    def error(self, message):
        """One line that says what is wrong and what there is."""
        flags = [one for action in self._actions for one in action.option_strings[-1:]]
        print(f"{self.prog}: {message}; there is {' '.join(flags)}", file=sys.stderr)
        sys.exit(2)


def whole(text):
    """A whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)


def parser(doc, prog):
    p = Parser(
        prog=prog,
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--part", type=whole, metavar="N", help="run only part N")
    p.add_argument("--seeds", type=whole, metavar="N", help="random seeds 0 … N-1 where it matters")
    p.add_argument("--jobs", type=whole, metavar="N", help="processes (default: the cores)")
    p.add_argument("--lang", choices=("en", "zh"), help="default: from the locale")
    figures = "where figures go (default: figures/ beside the scripts)"
    p.add_argument("--figures", metavar="DIR", type=Path, default=ROOT / "figures", help=figures)
    p.add_argument("--no-figures", action="store_true", help="draw none")
    p.add_argument("--json", metavar="FILE", type=Path, help="write the claims there as well")
    p.add_argument("--strict", action="store_true", help="exit with 1 if a number differs")
    p.add_argument("--quick", action="store_true", help="shortest training, not judged")
    return p


def default_language():
    """zh where the locale is Chinese."""
    names = [os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG")]
    name = next((n for n in names if n), None) or locale.getlocale()[0] or ""
    return "zh" if name.lower().startswith(("zh", "chinese")) else "en"


def cores():
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main(doc, parts, argv=None, extra=None):
    """Run a script's parts, or the one that --part names, and exit.

    extra: a function that adds the script's own flags to the argparse parser; what the reader chose
    is in show.options.
    """
    script = Path(parts[0].__globals__["__file__"]).resolve()
    p = parser(doc, script.name)
    if extra:
        extra(p)
    options = p.parse_args(argv)
    if options.part and options.part > len(parts):
        p.error(f"argument --part: no part {options.part}, {script.name} has 1 to {len(parts)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` blocks run
    try:
        sys.exit(run(script, doc, parts, options))
    except KeyboardInterrupt:
        print(f"\n{script.name}: interrupted", file=sys.stderr)
        sys.exit(130)


def run(script, doc, parts, options):
    """The exit code: 0; 1 under --strict if a number differs; 2 if it could not be done."""
    start = time.perf_counter()
    name = script.relative_to(ROOT).with_suffix("").as_posix()
    changes = edited(name, parts[0].__globals__)
    show = Show(
        directory=None if options.no_figures else options.figures,
        seeds=options.seeds,
        jobs=options.jobs or cores(),
        quick=options.quick,
        lang=options.lang or default_language(),
        edited=changes,
        options=options,
    )
    show.title(" ".join(doc.splitlines()[0].split()))
    if changes:
        show.note(("edited: ", "已改动：")[show.lang == "zh"] + "; ".join(changes))
    for number, part in enumerate(parts, start=1):
        if options.part in (None, number):
            show.title(f"{number} · {part.__doc__.splitlines()[0]}")
            try:
                part(show)
            except Exception as error:
                if not changes:  # nobody touched a constant: a fault of ours, shown in full
                    raise
                if not isinstance(error, ValueError):  # nobody foresaw it: say what was edited
                    error = f"{type(error).__name__}: {error}; edited: {'; '.join(changes)}"
                print(f"{script.name}: part {number}: {error}", file=sys.stderr)
                return 2
            show.end_part()
    seconds = time.perf_counter() - start
    verdicts = list(show.verdicts.values())
    counts = {word: verdicts.count(word) for word in dict.fromkeys(verdicts)}
    counted = ", ".join(f"{count} {word}" for word, count in counts.items()) or "0"
    numbers = ("numbers", "个数")[show.lang == "zh"]
    show.note(f"{len(verdicts)} {numbers}: {counted} · {seconds:.1f} s")
    if options.json:
        claims = [
            {
                "id": id,
                "section": load_claims()[id].section,
                "measured": finite(value),
                "lecture": load_claims()[id].lecture,
                "verdict": show.verdicts[id],
            }
            | ({"seeds": finite(show.seeds_of[id])} if id in show.seeds_of else {})
            for id, value in show.claims.items()
        ]
        report = {"script": name, "seconds": round(seconds, 3), "claims": claims}
        if not write_json(options.json, report):
            return 2
    return 1 if options.strict and "differs" in verdicts else 0


def finite(value):
    """JSON has no infinity and no NaN: those become text, so that nothing vanishes."""
    if isinstance(value, list):
        return [finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path, report):
    """Write it whole or not at all; False, and a line that names the path, if it cannot be done."""
    text = json.dumps(report, ensure_ascii=False, indent=1) + "\n"
    try:
        with write_beside(path) as file:
            file.write(text.encode())
    except OSError as error:
        print(f"cannot write {path}: {error.strerror or error}", file=sys.stderr)
        return False
    return True
