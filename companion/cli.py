"""The command line that all scripts share: `main(__doc__, PARTS)`."""

import argparse
import ast
import json
import locale
import math
import os
import re
import signal
import sys
import time
from companion.edits import chosen, edit
from companion.ledger import ROOT, edited, load_claims, load_constants, plain
from companion.processes import cluster
from companion.show import Said, Show, write_beside
from pathlib import Path


def scripts():
    """Every script that claims numbers, in the order of the lectures."""
    found = sorted(ROOT.glob("[0-9][0-9]_*.py")) + [ROOT / "w1day2_checks.py"]
    return [path for path in found + sorted(ROOT.glob("code/w1d2_*.py")) if path.exists()]


class Parser(argparse.ArgumentParser):
    def error(self, message):
        """One line that says what is wrong and what there is."""
        message = " ".join(message.split())  # what was typed may hold a line break
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        flags = [one for action in shown for one in action.option_strings[-1:]]
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
    text = "let the processes of that Dask cluster do it, e.g. tcp://127.0.0.1:8786"
    p.add_argument("--dask", metavar="ADDRESS", help=text)
    p.add_argument("--lang", choices=("en", "zh"), help="default: from the locale")
    figures = "where figures go (default: figures/ beside the scripts)"
    p.add_argument("--figures", metavar="DIR", type=Path, default=ROOT / "figures", help=figures)
    p.add_argument("--no-figures", action="store_true", help="draw none")
    p.add_argument("--json", metavar="FILE", type=Path, help="write the claims there as well")
    p.add_argument("--report", metavar="FILE", type=Path, help="write a page to look at: FILE.html")
    p.add_argument("--record", metavar="FILE", type=Path, help=argparse.SUPPRESS)  # for run_all.py
    p.add_argument("--strict", action="store_true", help="exit with 1 if a number differs")
    p.add_argument(
        "--quick", action="store_true", help="shortest training, not judged; figures anew"
    )
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

    argv: the flags, default: the command line's. extra: a function that adds the script's own flags
    to the argparse parser; what the reader chose is in show.options.

    In a cell of a notebook it returns instead, and takes flags from argv only:
    main(__doc__, [part2_latch], ["--seeds", "3"]).
    """
    namespace = parts[0].__globals__
    script = script_of(parts)
    cell = in_cell(script)
    if cell:  # a notebook has no docstring either
        doc, argv = ast.get_docstring(ast.parse(script.read_text("utf-8"))), argv or []
    p = parser(doc, script.name)
    text = "run with another value of a constant, e.g. STEPS=50; more than once for more"
    p.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help=text)
    if extra:
        extra(p)
    options = p.parse_args(argv)
    numbers = [int(re.match(r"part(\d+)_", part.__name__)[1]) for part in parts]
    if options.part and options.part not in numbers:
        there = f"{numbers[0]} to {numbers[-1]}"
        p.error(f"argument --part: no part {options.part}, {script.name} has {there}")
    if options.set:
        try:
            if cell:
                raise ValueError("in a notebook, edit the constant in its cell")
            edit(script, namespace, chosen(options.set, namespace))
        except Exception as error:  # also one of a line that the script computes from the constant
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            print(f"{script.name}: --set: {kind}{error}", file=sys.stderr)
            sys.exit(2)
        parts = [namespace[part.__name__] for part in parts]
    if cell:
        with cluster(options.dask):
            run(script, doc, dict(zip(numbers, parts)), options, cell)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` blocks run
    try:
        with cluster(options.dask):
            code = run(script, doc, dict(zip(numbers, parts)), options)
        sys.exit(code)
    except KeyboardInterrupt:
        print(f"\n{script.name}: interrupted", file=sys.stderr)
        sys.exit(130)


def script_of(parts):
    """The script that these parts are from; a notebook has no __file__, so there by their titles"""
    file = parts[0].__globals__.get("__file__")
    if file:
        return Path(file).resolve()
    title = parts[0].__doc__.splitlines()[0]
    found = [path for path in scripts() if title in path.read_text(encoding="utf-8")]
    if not found:
        raise ValueError(f"no script here has a part {title!r}")
    return found[0]


def in_cell(script):
    """Is this a cell in IPython or Jupyter? There the command line is not ours."""
    ipython = sys.modules.get("IPython")
    return bool(ipython and ipython.get_ipython()) and Path(sys.argv[0]).resolve() != script


def run(script, doc, parts, options, cell=False):
    """The exit code: 0; 1 under --strict if a number differs; 2 if it could not be done."""
    start = time.perf_counter()
    name = script.relative_to(ROOT).with_suffix("").as_posix()
    namespace = next(iter(parts.values())).__globals__
    if cell:  # cells that were not run yet have not changed a constant
        namespace = load_constants().get(name, {}) | namespace
    changes = edited(name, namespace)
    if options.report and not can_write(options.report):
        return 2
    show = Show(
        page=bool(options.report or options.record),
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
        english = f"edited: {'; '.join(changes)}; quantities are named by the published values"
        chinese = f"已改动：{'；'.join(changes)}；各量的名称里仍是原来的值"
        show.note((english, chinese))
    for number, part in parts.items():
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
    numbers = show.say(("numbers" if len(verdicts) != 1 else "number", "个数"))
    show.out.print(f"\n{len(verdicts)} {numbers}: {counted} · {seconds:.1f} s")
    if options.json or show.page:
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
        if options.json and not write_json(options.json, report):
            return 2
        record = report | {"edited": changes, "shown": on_page(show.shown)} if show.page else None
        if options.record and not write_json(options.record, record):
            return 2
        if options.report and not write_report(options.report, [record], show.lang):
            return 2
    return 1 if options.strict and "differs" in verdicts else 0


def finite(value):
    """JSON has no infinity and no NaN: those become text, so that nothing vanishes."""
    if isinstance(value, list):
        return [finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def on_page(thing):
    """What was shown, for JSON: a text in two languages becomes {"en": …, "zh": …}."""
    if isinstance(thing, Said):
        return dict(zip(("en", "zh"), thing.both))
    if isinstance(thing, dict):
        return {key: on_page(value) for key, value in thing.items()}
    thing = plain(thing)
    return [on_page(one) for one in thing] if isinstance(thing, list) else finite(thing)


def can_write(path):
    """Before a long run: could this file be written? If not, False and a line that says why."""
    folder = Path(os.path.realpath(path)).parent
    if path.is_dir():
        why = "it is a directory"
    elif not folder.is_dir():
        why = f"there is no directory {folder}"
    elif not os.access(folder, os.W_OK):
        why = f"the directory {folder} is read-only"
    else:
        return True
    print(f"cannot write {path}: {why}", file=sys.stderr)
    return False


def write_json(path, report):
    """Write it whole or not at all; False, and a line that names the path, if it cannot be done."""
    return write_text(path, json.dumps(report, ensure_ascii=False, indent=1) + "\n")


def write_report(path, records, lang):
    """The page about these runs, whole or not at all, as write_json does."""
    from companion.report import page  # it needs Jinja2, which runs without a page do not

    return write_text(path, page(records, lang))


def write_text(path, text):
    try:
        with write_beside(path) as file:
            file.write(text.encode())
    except OSError as error:
        print(f"cannot write {path}: {error.strerror or error}", file=sys.stderr)
        return False
    return True
