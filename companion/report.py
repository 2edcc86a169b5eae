"""The report page: one file that shows what the scripts printed, by section of the lectures.

Its looks are in report.html (a Jinja2 template), report.css and report.js, all put into the page.
"""

import math
import os
import platform
import re
import statistics
import tomllib
from companion.ledger import NO_YES, ROOT, judge, load_claims, written
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

VERDICTS = {  # what stands in the page, and what it means
    "ok": (("ok", "一致"), ("agrees with the lecture", "与讲义一致")),
    "differs": (("differs", "不一致"), ("does not agree: please report it", "与讲义不符，请反馈")),
    "erratum": (("erratum", "勘误"), ("the lecture's number is wrong", "讲义的数有误")),
    "timing": (("timing", "计时"), ("depends on the machine, not judged", "因机器而异，不判定")),
    "edited": (("edited", "已改动"), ("a constant was edited", "常数改动过")),
    "quick": (("quick", "快速模式"), ("trained too briefly to judge", "训练太短，不判定")),
}
NUMBER = re.compile(r"[-+−]?[\d,.]+(e[-+]?\d+)?%?|—|-|")


@cache
def template():
    environment = Environment(
        loader=FileSystemLoader(ROOT / "companion"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"both": both, "numeric": numeric, "cell": cell}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return environment.get_template("report.html")


def page(records, lang="en"):
    """The page as text. records: what each script wrote with --record, or {"script", "failed"}."""
    done = [record for record in records if "failed" not in record]
    rows = [claim_row(claim, record) for record in done for claim in record["claims"]]
    verdicts = [row["verdict"] for row in rows]
    return template().render(
        lang=lang,
        css=Markup((ROOT / "companion" / "report.css").read_text("utf-8")),
        js=Markup((ROOT / "companion" / "report.js").read_text("utf-8")),
        lectures=lectures(rows, done),
        counts={word: verdicts.count(word) for word in VERDICTS if word in verdicts},
        verdicts=VERDICTS,
        trained=sum(row["trained"] for row in rows),
        records=records,
        seconds=sum(record["seconds"] for record in done),
        machine=machine(),
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    )


# ── by section ───────────────────────────────────────────────────────────────────────────────────
LECTURES = {"L2": ("Lecture 2", "第 2 讲"), "W1D2": ("Week 1 Day 2", "Week 1 Day 2")}


def lectures(rows, records):
    """[(id, title, sections)]; a section is {"anchor", "name", "title", "claims", "parts"}."""
    found = {lecture: {} for lecture in LECTURES}

    def section(lecture, name):
        empty = {"anchor": anchor(lecture, name), "name": heading(name), "claims": [], "parts": []}
        en, zh = titles()[lecture].get(name, (None, None))
        empty["title"] = {"en": en, "zh": zh} if en else None
        return found[lecture].setdefault(name, empty)

    for row in rows:
        section(row["lecture_of"], row["section"])["claims"].append(row)
    for record in records:
        lecture = "W1D2" if "w1d" in record["script"] else "L2"
        for part in parts(record):
            section(lecture, part["section"])["parts"].append(part)
    for sections in found.values():
        for one in sections.values():
            one["title"] = one["parts"][0]["title"] if one["parts"] else one["title"]
    return [
        (lecture, LECTURES[lecture], [sections[name] for name in sorted(sections, key=in_order)])
        for lecture, sections in found.items()
        if sections
    ]


@cache
def titles():
    """lecture → section → its title in English and Chinese, where it has no part of its own."""
    with open(ROOT / "companion" / "sections.toml", "rb") as file:
        return tomllib.load(file)


def parts(record):
    """The parts of a run; a part stands where the first section in its title does."""
    found = []
    for shown in record["shown"][1:]:  # the first is the script's own title
        title = re.match(r"(\d+) · (§([\w.]+)( 之外)?.*?) · (.*) · (.*)", shown.get("title", ""))
        if title:
            number, sections, section, beyond, zh, en = title.groups()
            name = section + "+" if beyond else section
            found.append({"section": name, "number": number, "script": record["script"]})
            found[-1] |= {"sections": in_both(sections), "title": {"en": en, "zh": zh}}
            found[-1]["shown"] = []
        elif found:
            found[-1]["shown"].append(shown)
    return found


def in_both(sections):
    """ "§4.3、练习 5" in either language."""
    words = {"、": ", ", "练习": "exercise", " 之外": ", beyond"}
    en, zh = sections, sections
    for chinese, english in words.items():
        en, zh = en.replace(chinese, english), zh.replace(english, chinese)
    return {"en": en, "zh": zh}


def in_order(name):
    """A key that sorts 2.10 behind 2.9, appendix A behind the numbers, exercises at the end."""
    if name == "header":
        return (0,)
    if name.startswith("ex"):
        return (3, int(name[2:]))
    first, *rest = name.rstrip("+").split(".")
    kind = (1, int(first)) if first.isdecimal() else (2, ord(first))
    return (*kind, *map(int, rest), *([math.inf] if name.endswith("+") else []))


def anchor(lecture, name):
    """s5.4, s-ex3, s-header, s6-beyond; w5.1 for Week 1 Day 2."""
    letter = "s" if lecture == "L2" else "w"
    if name.startswith(("ex", "header")):
        return f"{letter}-{name}"
    return letter + name.replace("+", "-beyond")


def heading(name):
    if name == "header":
        return {"en": "Header", "zh": "开头"}
    if name.startswith("ex"):
        return {"en": f"Exercise {name[2:]}", "zh": f"练习 {name[2:]}"}
    if name.endswith("+"):
        return {"en": f"§{name[:-1]}, more", "zh": f"§{name[:-1]} 之外"}
    return f"§{name}"


# ── a claim ──────────────────────────────────────────────────────────────────────────────────────
def claim_row(measured, record):
    """What the page shows of one claim of a record."""
    claim = load_claims()[measured["id"]]
    value = numbers_back(measured["measured"])
    seeds = numbers_back(measured.get("seeds", []))
    return {
        "id": claim.id,
        "lecture_of": claim.id.partition("-")[0],
        "section": claim.section,
        "script": record["script"],
        "label": {"en": claim.en, "zh": claim.zh},
        "measured": {lang: written(claim, value, lang) for lang in ("en", "zh")},
        "lecture": {"en": claim.lecture, "zh": claim.lecture_zh or claim.lecture},
        "allowed": claim.bounds,
        "why": {"en": claim.why_en, "zh": claim.why_zh} if claim.why_en else None,
        "verdict": measured["verdict"],
        "trained": claim.random == "trained",
        "spread": spread(claim, seeds),
        "strip": strip(claim, seeds),
    }


def numbers_back(value):
    """JSON has no infinity and no NaN: they were written as text."""
    if isinstance(value, list):
        return [numbers_back(one) for one in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def spread(claim, seeds):
    """Min, median and max over the seeds, and how many agree by themselves; None for one seed."""
    if len(seeds) < 2:
        return None
    agree = sum(judge(claim, value) in ("ok", "erratum") for value in seeds)
    en, zh = f"{agree} of {len(seeds)} seeds agree", f"{len(seeds)} 个种子中 {agree} 个一致"
    if claim.check == "erratum":  # they agree with the correction, not with the lecture
        en, zh = f"{agree} of {len(seeds)} seeds show this", f"{len(seeds)} 个种子中 {agree} 个如此"
    if claim.check == "timing":
        en, zh = f"{len(seeds)} runs", f"{len(seeds)} 次"
    if not any(isinstance(value, bool | list | str) for value in seeds):
        three = min(seeds), statistics.median(seeds), max(seeds)
        text = " / ".join(written(claim, float(value)) for value in three)
        en, zh = f"{text}; {en}", f"{text}；{zh}"
    return {"en": en, "zh": zh}


def strip(claim, seeds):
    """The seeds as dots on a line, in percent of its length, with the allowed range behind."""
    plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in seeds)
    if len(seeds) < 2 or not plain or not all(map(math.isfinite, seeds)):
        return None
    ends = [end for end in (claim.low, claim.high) if math.isfinite(end)]
    low, high = min(*seeds, *ends), max(*seeds, *ends)
    if low == high:
        return None

    def place(value):
        return round(4 + 92 * (min(max(value, low), high) - low) / (high - low), 1)

    band = [place(claim.low), place(claim.high)] if ends else None
    return {"dots": [place(value) for value in seeds], "band": band}


# ── texts and cells ──────────────────────────────────────────────────────────────────────────────
def both(text):
    """A text, or {"en", "zh"}: then both, of which the page shows the reader's."""
    if not isinstance(text, dict):
        return escape(text)
    if text["en"] == text["zh"]:
        return escape(text["en"])
    return Markup('<span lang="en">{}</span><span lang="zh">{}</span>').format(
        text["en"], text["zh"]
    )


def cell(value):
    """A cell of a table, as the scripts print it."""
    if isinstance(value, bool):
        return both({lang: words[value] for lang, words in NO_YES.items()})
    if isinstance(value, float):
        return escape(f"{value:.4g}")
    return escape(f"{value:,}") if isinstance(value, int) else both(value)


def numeric(rows, column):
    """Does this column hold numbers alone? Then it is set flush right."""
    return all(NUMBER.fullmatch(str(cell(row[column]))) for row in rows)


# ── where it ran ─────────────────────────────────────────────────────────────────────────────────
def machine():
    """[(name, value)]: processor, system, Python and the pinned packages."""
    pinned = (ROOT / "requirements.txt").read_text("utf-8").split()
    packages = [line.partition("==")[0] for line in pinned if "==" in line]
    return [
        (("processor", "处理器"), f"{processor()}, {os.cpu_count()} ×"),
        (("system", "系统"), f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("Python", platform.python_version()),
        *((name, installed(name)) for name in packages),
    ]


def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "—"


def processor():
    """Its name: Linux keeps it in a file, the others tell it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2] for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return (names + [platform.processor()])[0].strip() or platform.machine()
