"""Run every script, in the order of the lectures, and add up what agrees. 运行全部脚本并汇总。

python run_all.py             everything, as each script prints it, then one table
python run_all.py --strict    and exit with 1 if a number differs or a script fails
python run_all.py --report report.html    and write one page to look at, figures included
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from companion import ROOT, scripts
from companion.cli import can_write, default_language, parser, write_json, write_report
from companion.show import Show


def main(argv=None):
    p = parser(__doc__, "run_all.py")
    p.add_argument("--set", action="append", help=argparse.SUPPRESS)  # said below in other words
    options = p.parse_args(argv)
    if options.set:
        p.error("argument --set: a constant belongs to one script; run that script with it")
    if options.part:
        p.error("argument --part: the parts are counted script by script; run one script")
    if options.report and not can_write(options.report):
        return 2
    show = Show(lang=options.lang or default_language())
    rows, reports, failed = [], [], False
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, path in enumerate(todo := scripts(), start=1):
                name = path.relative_to(ROOT).as_posix()
                print(f"[{number}/{len(todo)}] {name}", file=sys.stderr, flush=True)
                report_file = f"{folder}/{number}.json"
                kind = "--record" if options.report else "--json"
                command = [sys.executable, str(path), *passed_on(options), kind, report_file]
                code = subprocess.run(command, check=False).returncode
                report = read(report_file)
                reports.append(report or {"script": name, "failed": code})
                failed |= code != 0 or report is None
                rows.append(row(name, report, code))
        except KeyboardInterrupt:  # the script itself has said so
            sys.exit(130)
    sums = [sum(r[n] for r in rows if r[n] != "") for n in range(1, 7)]
    show.title("全部脚本 · All scripts")
    header = [("script", "脚本"), ("numbers", "个数"), ("ok", "一致"), ("differs", "不一致")]
    header += [("errata", "勘误"), ("not judged", "不判定"), ("seconds", "秒"), ""]
    show.table(("numbers against the lectures", "与讲义数字对照"), header, [*rows, ["", *sums, ""]])
    if options.report and not write_report(options.report, reports, show.lang):
        return 2
    if options.report:
        show.out.print(f"\n{show.say(('page', '报告页'))}: {options.report}")
    for report in reports:  # what was shown is for the page
        report.pop("shown", None)
    if options.json and not write_json(options.json, {"scripts": reports}):
        return 2
    return 1 if options.strict and failed else 0


def passed_on(options):
    """The shared flags, as the reader gave them, for the scripts."""
    flags = ["--figures", str(options.figures.absolute())]
    for name in ("seeds", "jobs", "dask", "lang"):
        if (value := getattr(options, name)) is not None:
            flags += [f"--{name}", str(value)]
    return flags + [
        f"--{n}" for n in ("no-figures", "strict", "quick") if getattr(options, n.replace("-", "_"))
    ]


def read(path):
    """A script's report, None if it did not get as far as writing one."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def row(name, report, code):
    """script, numbers, ok, differs, errata, not judged, seconds, what went wrong."""
    if report is None:
        return [name, "", "", "", "", "", "", f"failed, exit code {code}"]
    verdicts = [claim["verdict"] for claim in report["claims"]]
    judged = [verdicts.count(word) for word in ("ok", "differs", "erratum")]
    others = len(verdicts) - sum(judged)
    return [name, len(verdicts), *judged, others, round(report["seconds"], 1), ""]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end the script that is running
    sys.exit(main())
