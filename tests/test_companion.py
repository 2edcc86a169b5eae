"""The plumbing: when a number agrees, what is printed where, what happens when things go wrong."""

import ast
import io
import json
import math
import os
import re
import signal
import stat
import subprocess
import sys
import time
from companion import ROOT, Recorder, cli, in_processes, load_claims, processes, scripts
from companion.cli import default_language
from companion.ledger import (
    Claim,
    constants,
    edited,
    judge,
    load_constants,
    numbers,
    plain,
    rounds_to,
    written,
)
from companion.show import Printer, Show, has_chinese, write_beside
from concurrent.futures import BrokenExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

EXAMPLE = ROOT / "tests" / "example_script.py"


def run(*arguments, script=EXAMPLE, **settings):
    """The script in a process of its own, output as bytes."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", **settings.pop("env", {})}
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env=environment, timeout=60, **settings)


# ── agreement ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "value, printed, agrees",
    [
        (0.1619, "0.162", True),
        (0.16149, "0.162", False),
        (0.16251, "0.162", False),
        (12, "12", True),
        (13, "12", False),
        (37.04, "37", True),
        (37.51, "37", False),
        (2.228e-115, "2e-115", True),
        (2.6e-115, "2e-115", False),
        (1.2e-5, "1.2e-5", True),
        (1.26e-5, "1.2e-5", False),
        (-8.36293, "-8.36", True),
        (8.36293, "-8.36", False),
        (0.125, "1/8", True),
        (0.1250001, "1/8", False),
        (25088, "25088", True),
        (25089, "25088", False),
        (math.nan, "1", False),
        (math.inf, "1", False),
        (True, "1", False),
        ("1", "1", False),
    ],
)
def test_rounding_to_what_is_printed(value, printed, agrees):
    assert rounds_to(value, printed) is agrees


def test_slack_is_one_in_the_last_digit():
    assert rounds_to(0.1634, "0.162", slack=1)
    assert not rounds_to(0.1636, "0.162", slack=1)


@given(st.integers(-(10**6), 10**6), st.integers(0, 6))
def test_a_number_agrees_with_its_own_rounding(n, decimals):
    value = n / 997
    assert rounds_to(value, f"{value:.{decimals}f}")
    assert not rounds_to(value + 2 * 10.0**-decimals, f"{value:.{decimals}f}")


def test_numbers_in_a_text():
    assert numbers("[0.29, 0.162] and 25,088; 2e-115, -8.36 or 12/102 = 2.7%") == [
        *("0.29", "0.162", "25088", "2e-115", "-8.36", "12/102", "2.7")
    ]
    assert numbers("1, 2, 300") == ["1", "2", "300"]


def claim(check, lecture="2", **fields):
    reason = {"why_en": "because", "why_zh": "因为"}
    return Claim("T-1", "1", "a", "甲", lecture, check, **reason, **fields)


@pytest.mark.parametrize(
    "entry, value, verdict",
    [
        (claim("digits"), 2, "ok"),
        (claim("digits"), 3, "differs"),
        (claim("digits"), [2, 2], "differs"),
        (claim("digits", "[2, 3]"), [2, 3], "ok"),
        (claim("digits", "[2, 3]"), [[2], [3]], "ok"),
        (claim("digits", "[2, 3]"), [3, 2], "differs"),
        (claim("digits", "[2, 3]"), [2], "differs"),
        (claim("digits"), [], "differs"),
        (claim("fact"), 2, "ok"),
        (claim("fact"), 3, "differs"),
        (claim("residue", "1e-16"), 1e-15, "ok"),
        (claim("residue", "1e-16"), -1.1e-15, "differs"),
        (claim("residue", "1e-16"), [0.0, 2e-15], "differs"),
        (claim("residue", "1e-16"), math.nan, "differs"),
        (claim("range", low=1, high=2), 1, "ok"),
        (claim("range", low=1, high=2), 2, "ok"),
        (claim("range", low=1, high=2), 2.01, "differs"),
        (claim("range", low=1, high=2), [1.5, 0.9], "differs"),
        (claim("range", low=1), 1e9, "ok"),
        (claim("range", high=1), -1e9, "ok"),
        (claim("range", low=1, high=2), math.nan, "differs"),
        (claim("range", low=0, high=2), True, "differs"),
        (claim("range", low=0, high=2), [], "differs"),
        (claim("holds"), True, "ok"),
        (claim("holds"), False, "differs"),
        (claim("holds"), 1, "differs"),
        (claim("timing"), 1e9, "timing"),
        (claim("erratum", right="3"), 3, "erratum"),
        (claim("erratum", right="3"), 2, "differs"),
        (claim("erratum", low=3, high=4), 3.5, "erratum"),
        (claim("erratum", low=3, high=4), 2, "differs"),
        (claim("erratum"), False, "erratum"),
        (claim("erratum"), True, "differs"),
        (claim("erratum"), 5, "differs"),
        (claim("erratum", low=3), [], "differs"),
        (claim("erratum", low=3), False, "differs"),
        (claim("residue", "1e-16"), [], "differs"),
    ],
)
def test_verdicts(entry, value, verdict):
    assert judge(entry, value) == verdict


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"check": "guess"}, "check is 'guess'"),
        ({"check": "digits", "lecture": "many"}, "has no number"),
        ({"check": "range"}, "a range needs low, high"),
        ({"check": "range", "low": 1}, "why_en and why_zh"),
        ({"check": "erratum", "right": "1"}, "why_en and why_zh"),
        ({"check": "digits", "slack": 1}, "why_en and why_zh"),
    ],
)
def test_a_ledger_entry_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValueError, match=f"T-2: .*{message}"):
        Claim(**{"id": "T-2", "section": "1", "en": "a", "zh": "甲", "lecture": "2", **fields})


def test_plain_numbers_come_out_of_tensors_and_arrays():
    value = [torch.tensor([1.5]), np.float64(2.5), (np.int64(3), torch.tensor(4)), True]
    assert plain(value) == [[1.5], 2.5, [3, 4], True]


def test_measured_values_show_two_digits_more():
    assert written(claim("digits", "1.58"), 1.58114) == "1.5811"
    assert written(claim("digits", "25,088"), 25088) == "25,088"
    assert written(claim("digits", "2e-115"), 2.228e-115) == "2.228e-115"
    assert written(claim("digits", "[0.29, 0.162]"), [0.28981, 0.161]) == "[0.28981, 0.16100]"
    assert written(claim("digits", "0.05"), 0.0001) == "0.0001"
    assert written(claim("holds"), True) == "yes"
    assert written(claim("range", low=0), math.nan) == "nan"


# ── recorder ─────────────────────────────────────────────────────────────────────────────────────
def test_a_recorder_refuses_unknown_ids_and_second_claims():
    show = Recorder()
    with pytest.raises(ValueError, match="'L2-999' is not in the ledger"):
        show.claim("L2-999", 1)
    show.claim("L2-015", 12)
    with pytest.raises(ValueError, match="'L2-015' is claimed twice"):
        show.claim("L2-015", 12)
    with pytest.raises(ValueError, match="header"):
        show.table("a table", ["one", "two"], [[1]])


def test_edited_and_quick_are_no_failures():
    show = Recorder(edited=["DECAY = 0.9 (was 0.5)"])
    show.claim("L2-015", 65)
    show.claim("L2-016", -1)
    assert show.verdicts == {"L2-015": "edited", "L2-016": "ok"}
    trained = next(c.id for c in load_claims().values() if c.random == "trained")
    quick = Recorder(quick=True)
    quick.claim(trained, -1)
    quick.claim("L2-015", 65)
    assert quick.verdicts == {trained: "quick", "L2-015": "differs"}


def test_what_was_edited_is_named(script):
    module = script("01_forgetful_rnn")
    assert edited("01_forgetful_rnn", vars(module)) == []
    changed = {**vars(module), "DECAY": 0.9, "EXTRA": (1, 2)}
    assert edited("01_forgetful_rnn", changed) == [
        "DECAY = 0.9 (was 0.5)",
        "EXTRA = [1, 2] (was not there)",
    ]
    assert constants({"A": 1, "b": 2, "C": object(), "D": (1, "x"), "E": [object()]}) == {
        "A": 1,
        "D": [1, "x"],
    }


# ── the ledger itself ────────────────────────────────────────────────────────────────────────────
def test_the_ledger_holds_all_250_numbers():
    ids = [re.fullmatch(r"(L2|W1D2)-(\d{3})[a-z]?", id).groups() for id in load_claims()]
    assert sorted({int(n) for seed, n in ids if seed == "L2"}) == list(range(1, 179))
    assert sorted({int(n) for seed, n in ids if seed == "W1D2"}) == list(range(1, 73))
    assert ids == sorted(ids), "in the order of the texts"


def test_every_entry_says_what_it_is_in_both_languages():
    for c in load_claims().values():
        assert re.search("[\u4e00-\u9fff]|[A-Za-z=]", c.zh), c.id
        assert c.en, c.id
        assert not re.search("[\u4e00-\u9fff]", c.en + c.why_en), c.id
        assert bool(c.why_en) == bool(c.why_zh), c.id
        assert c.script or c.check == "fact", f"{c.id}: no script measures it"


OVER_SEEDS = re.compile(
    r"python (\S+)\.py (?:--part \d )?(?:--seeds |--set SEEDS=|--set SEED=0(?:, … |、…、))(\d+)"
)


@pytest.mark.parametrize(
    "id", [c.id for c in load_claims().values() if c.random and c.check == "range"]
)
def test_a_range_names_the_command_that_gave_it_and_the_lectures_place_in_it(id):
    c = load_claims()[id]
    commands = OVER_SEEDS.findall(c.why_en)
    assert commands == OVER_SEEDS.findall(c.why_zh) != []
    for script, seeds in commands:
        assert script == c.script
        assert int(seeds) >= (10 if script.startswith("06") else 19)  # SEED=0, … 19 are twenty
    assert not c.lecture or re.search(r"lecture.*(inside|outside|edge)", c.why_en)


@pytest.mark.parametrize(
    "lecture, low, high, outside",
    [
        ("0.71", 0.6, 0.69, True),
        ("0.71", 0.6, 0.705, False),  # as rounded
        ("0.5", 0.6, 0.7, True),
        ("90%", 92, 96.5, True),
        ("3%", 1.6, 2.9, False),
        ("1, 9", 0, 5, True),
        ("4,000", 0, 5000, False),
        ("1/8", 0.2, 1, True),
        ("near 9", 0, 5, False),  # words
        ("d = 9", 0, 5, False),
    ],
)
def test_where_the_lectures_own_value_lies(lecture, low, high, outside):
    assert claim("range", lecture, low=low, high=high).lecture_is_outside is outside
    assert claim("digits", lecture).lecture_is_outside is False


def test_the_reason_is_printed_where_the_lectures_value_lies_outside(capsys):
    show = Show(lang="en")
    show.claim("L2-124a", 0.65)
    show.claim("L2-124b", 0.65)
    show.end_part()
    said = capsys.readouterr().out
    assert "L2-124a, the lecture's value lies outside: python 05" in said.replace("\n", " ")
    assert "L2-124b," not in said


@pytest.mark.parametrize(
    ("lecture", "low", "high", "value", "far"),
    [
        ("0.62", 0.59, 0.725, 0.714, True),
        ("0.62", 0.59, 0.725, 0.66, False),
        ("0.62", 0.59, 0.725, 0.595, True),  # towards the other bound
        ("0.050", -math.inf, 0.5, 0.495, True),
        ("0.050", -math.inf, 0.5, 0.0, False),  # no bound on that side
        ("1, 9", 0, 17, [1, 16], True),
        ("1, 9", 0, 17, [1, 9], False),
        ("near 9", 0, 10, 1, False),  # words
    ],
)
def test_how_far_from_the_lectures_value_is_far(lecture, low, high, value, far):
    assert claim("range", lecture, low=low, high=high).is_far(value) is far
    assert claim("digits", lecture).is_far(value) is False


def test_the_reason_is_printed_where_we_are_far_from_the_lecture(capsys):
    show = Show(lang="en")
    show.claim("L2-142", 0.495)
    show.claim("L2-124b", 0.71)
    show.claim("L2-148a", 0.3)
    show.end_part()
    said = capsys.readouterr().out.replace("\n", " ")
    for id in ("L2-142", "L2-124b"):
        assert f"{id}, far from the lecture's value: " in said
    assert "L2-148a," not in said


# ── a whole script ───────────────────────────────────────────────────────────────────────────────
def test_output_of_a_script():
    done = run("--no-figures", "--lang", "en")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert "99 · 示例 · An example of a script" in text
    assert "1 · §5.1 · 数 · Numbers with √, σ and ½" in text
    assert "\x1b" not in text, "no colours in a pipe"
    row = next(line for line in text.splitlines() if line.startswith("L2-104b"))
    assert re.search(r"2\.07944 \(2\.00000 / 2\.07944 / 2\.10000; 1 / 3 seeds\) +2\.079 +ok", row)
    assert "L2-073 erratum: " in text
    assert "numbers: 1 ok, 1 erratum" in text
    assert done.stdout.count(b"\n\n\n") == 0


def test_chinese_output():
    text = run("--no-figures", "--lang", "zh").stdout.decode()
    assert "√n 与 σ 的表" in text
    assert load_claims()["L2-073"].why_zh in text
    assert "完成" in run("--no-figures", env={"LC_ALL": "zh_CN.UTF-8"}).stdout.decode()
    assert "done" in run("--no-figures", env={"LC_ALL": "C"}).stdout.decode()


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "encoding", ["ascii", "gbk", *(pytest.param(e, marks=slow) for e in ("cp1252", "latin-1"))]
)
def test_any_encoding_takes_the_output(encoding):
    for lang in "en", "zh":
        done = run("--no-figures", "--lang", lang, env={"PYTHONIOENCODING": encoding})
        text = done.stdout.decode(encoding)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr.decode()
        assert "An example of a script" in text
        assert "\\" not in text
        assert "?" not in text
        assert ("示例" in text) == (encoding == "gbk")
        assert "erratum" in text


def test_every_symbol_that_is_printed_has_a_plain_form(monkeypatch):
    """In scripts and ledger: what ASCII lacks is in the table, is Greek, or decomposes (é, ₂)."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    printer = Printer()
    texts = [c.en + c.lecture + c.why_en for c in load_claims().values()]
    for path in scripts():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
        texts += [text for text in constants if isinstance(text, str) and not has_chinese(text)]
    for symbol in sorted({c for text in texts for c in text if not c.isascii()}):
        is_emoji = symbol > "\U0001f000"  # input for the tokenizers: ASCII shows its code
        assert is_emoji or "\\" not in printer.plainer(symbol), f"{symbol} U+{ord(symbol):04X}"


def test_nothing_is_wrapped_in_a_pipe_whatever_the_width():
    wide = run("--no-figures", "--lang", "en").stdout
    narrow = run("--no-figures", "--lang", "en", env={"COLUMNS": "20"}).stdout
    assert re.sub(rb"[\d.]+ s\n", b"", narrow) == re.sub(rb"[\d.]+ s\n", b"", wide)


@pytest.mark.slow
def test_a_closed_pipe_ends_the_talk_and_not_the_work(tmp_path):
    report = tmp_path / "out.json"
    command = [sys.executable, str(EXAMPLE), "--json", str(report), "--figures", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert len(json.loads(report.read_text())["claims"]) == 2
    assert (tmp_path / "99_example.png").exists()


def test_json_and_figures(tmp_path):
    done = run("--json", "out.json", "--figures", "pictures", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert report["script"] == "tests/example_script"
    assert report["seconds"] > 0
    assert report["claims"][1] == {
        "id": "L2-073",
        "section": "3.9",
        "measured": [15.3136492, 15.3136492, 15.3136492],
        "lecture": load_claims()["L2-073"].lecture,
        "verdict": "erratum",
    }
    assert report["claims"][0]["seeds"] == [math.log(8), 2.0, 2.1]
    assert (tmp_path / "pictures" / "99_example.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "pictures"]
    assert f"figure: {os.path.join('pictures', '99_example.png')}" in done.stdout.decode()


def test_a_json_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    done = run("--no-figures", "--json", tmp_path / "no" / "out.json")
    assert done.returncode == 2
    assert f"cannot write {tmp_path / 'no' / 'out.json'}: No such file" in done.stderr.decode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a disk always full")
def test_a_full_disk(tmp_path):
    full = "/dev/full"
    if os.geteuid() == 0:  # one of our own: root's broken code could replace the machine's
        full = str(tmp_path / "full")
        os.mknod(full, stat.S_IFCHR | 0o666, os.stat("/dev/full").st_rdev)
    done = run("--no-figures", "--json", full)
    assert done.returncode == 2
    assert done.stderr.decode() == f"cannot write {full}: No space left on device\n"
    assert stat.S_ISCHR(os.stat(full).st_mode)


@pytest.mark.slow
def test_figures_that_cannot_be_saved_are_a_note(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    done = run("--figures", tmp_path / "file")
    assert done.returncode == 0
    assert "figure 99_example not saved: " in done.stdout.decode()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--colour"], "unrecognized arguments: --colour; there is .*--part .*--json .*--quick"),
        (["--part", "9"], "no part 9, example_script.py has 1 to 3"),
        (["--part", "0"], "'0' is not a whole number, 1 or more"),
        (["--lang", "fr"], "invalid choice: 'fr' .*en.*zh"),
        (["--jobs", "two"], "'two' is not a whole number"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, words):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == b""
    assert re.fullmatch(f"example_script.py: .*{words}.*\n", done.stderr.decode())


def test_one_part_alone():
    text = run("--no-figures", "--part", "2").stdout.decode()
    assert "L2-073" in text
    assert "L2-104b" not in text


def test_an_edited_constant_is_said_and_nonsense_in_it_is_one_line(tmp_path):
    """A copy of the checkout's plumbing with the constant edited, as a student would."""
    (tmp_path / "companion").symlink_to(ROOT / "companion", target_is_directory=True)
    copy = tmp_path / "script.py"
    source = EXAMPLE.read_text(encoding="utf-8").replace(".parent.parent", ".parent")
    main = "from companion import cli; cli.ROOT = Path(__file__).resolve().parent; main("
    source = source.replace("main(__doc__", f"{main}__doc__")
    copy.write_text(source.replace("WORDS = 3", "WORDS = 4"), encoding="utf-8")
    done = run("--no-figures", "--lang", "en", script=copy)
    assert "edited: WORDS = 4 (was not there)" in done.stdout.decode()
    copy.write_text(source.replace("WORDS = 3", "WORDS = 0"), encoding="utf-8")
    done = run("--no-figures", script=copy)
    assert done.returncode == 2
    assert done.stderr.decode() == "script.py: part 1: WORDS must be at least 1, got 0\n"
    copy.write_text(source.replace("WORDS = 3", "WORDS = 2.5"), encoding="utf-8")
    done = run("--no-figures", script=copy)
    assert done.returncode == 2
    words = r"script.py: part 1: TypeError: .*; edited: WORDS = 2.5 \(was not there\)\n"
    assert re.fullmatch(words, done.stderr.decode())


@pytest.mark.parametrize(
    "sent, code", [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=slow)]
)
def test_interrupted(tmp_path, sent, code):
    report = tmp_path / "out.json"
    command = [sys.executable, "-u", str(EXAMPLE), "--json", str(report), "--part", "3"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while b"3 " not in process.stdout.readline():
        pass
    time.sleep(0.5)
    process.send_signal(sent)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.decode() == ("\nexample_script.py: interrupted\n" if code == 130 else "")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_one_line(tmp_path):
    """Whatever script needs a package that is not there says how to install it."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    done = run(script=ROOT / "01_forgetful_rnn.py", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    line = r"torch is not installed; run: .* -m pip install -r requirements.txt\n"
    assert re.fullmatch(line, done.stderr.decode())


def test_constants_as_published(script):
    """The ledger of constants matches the scripts, so that "edited" means edited."""
    for name, published in load_constants().items():
        assert constants(vars(script(name))) == published, name


def test_a_file_is_replaced_whole_or_stays(tmp_path):
    path, link = tmp_path / "a.json", tmp_path / "link"
    path.write_text("old")
    link.symlink_to(path)
    with pytest.raises(KeyError), write_beside(link) as file:
        file.write(b"half")
        file.flush()
        assert path.read_text() == "old"
        assert len(list(tmp_path.iterdir())) == 3  # beside it, so that the rename is atomic
        raise KeyError
    assert path.read_text() == "old"
    with write_beside(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert len(list(tmp_path.iterdir())) == 2


def a_copy(tmp_path, old, new):
    (tmp_path / "companion").symlink_to(ROOT / "companion", target_is_directory=True)
    main = "from companion import cli; cli.ROOT = Path(__file__).resolve().parent; main("
    source = EXAMPLE.read_text(encoding="utf-8").replace(".parent.parent", ".parent")
    source = source.replace("main(__doc__", f"{main}__doc__").replace("WORDS = 3\n", "")
    source = source.replace("WORDS > 0", "True").replace("WORDS", "3")
    copy = tmp_path / "script.py"
    copy.write_text(source.replace(old, new), encoding="utf-8")
    return copy


def test_strict_is_1_where_a_number_differs_and_only_then(tmp_path):
    wrong = a_copy(tmp_path, "math.log(8), seeds", "math.inf, seeds")
    assert run("--no-figures", "--strict").returncode == 0
    assert run("--no-figures", script=wrong).returncode == 0
    assert run("--no-figures", "--strict", "--json", tmp_path / "o", script=wrong).returncode == 1
    report = json.loads((tmp_path / "o").read_text(), parse_constant=pytest.fail)  # no Infinity
    assert [c["verdict"] for c in report["claims"]] == ["differs", "erratum"]


def test_a_fault_of_ours_is_shown_in_full(tmp_path):
    done = run("--no-figures", script=a_copy(tmp_path, "require(True", "require(False"))
    assert done.returncode == 1
    assert b"Traceback" in done.stderr


def test_bounds_as_text():
    assert claim("residue", "1e-16").bounds == "≤ 1e-15"
    assert claim("range", low=1).bounds == "≥ 1"
    assert claim("range", high=2).bounds == "≤ 2"
    assert claim("range", low=0.55, high=0.65).bounds == "0.55 … 0.65"
    assert claim("range", low=1 - 1e-9, high=1 + 1e-9).bounds == "1 ± 1e-09"
    assert claim("erratum", right="3").bounds == "3"
    assert written(claim("holds"), True, "zh") == "是"
    assert written(claim("erratum", "2", right="3.14"), 3.14159) == "3.1416"
    assert written(claim("digits", "0.05"), 0.0) == "0.0000"
    assert numbers("2e+5") == ["2e+5"]
    assert rounds_to(0.125, "0.12")
    assert rounds_to(0.125, "0.13")
    assert not rounds_to(0.125 + 1e-9, "1/8")
    assert judge(claim("residue", "2"), True) == "differs"
    assert constants({"Az": 1}) == {}


@pytest.mark.parametrize("why", [{"why_en": "a"}, {"why_zh": "甲"}])
def test_reason_in_both(why):
    with pytest.raises(ValueError, match="why_en and why_zh"):
        Claim("T-2", "1", "a", "甲", "2", "range", low=1, **why)


def test_residue_needs_number():
    with pytest.raises(ValueError, match="no number"):
        Claim("T-2", "1", "a", "甲", "tiny", "residue")


def test_recorder_more():
    assert [*Recorder(seeds=2).seeds(10)] == [0, 1]
    assert [*Recorder().seeds(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="header"):
        Recorder().table("t", ["one"], [[1, 2]])
    other = next(c.id for c in load_claims().values() if c.random not in ("", "trained"))
    quick = Recorder(quick=True)
    quick.claim(other, -1e9)
    assert quick.verdicts[other] != "quick"


def test_gone():
    assert edited("01_forgetful_rnn", {})[0].endswith("= gone (was 0.5)")


def test_locale(monkeypatch):
    for name, value, lang in (
        ("LANG", "zh_CN", "zh"),
        ("LC_MESSAGES", "C", "en"),
        ("LC_ALL", "zh_TW", "zh"),
    ):
        monkeypatch.delenv("LC_ALL", raising=False) if name != "LC_ALL" else None
        if name == "LANG":
            monkeypatch.delenv("LC_MESSAGES", raising=False)
        monkeypatch.setenv(name, value)
        assert default_language() == lang


def test_abbrev():
    assert run("--no-fig").returncode == 2


# ── work spread over processes ───────────────────────────────────────────────────────────────────
def double(task):
    return 2 * task


class Watched(Recorder):
    """Takes results as a busy machine gives them, in any order, and keeps the bar's label."""

    def progress(self, items, total, label):
        self.label, self.total = label, total
        return reversed(list(items))


def test_results_come_in_the_order_of_the_tasks():
    show = Watched(lang="zh")
    assert in_processes(show, double, [3, 1, 2], ("doubling", "加倍")) == [6, 2, 4]
    assert (show.label, show.total) == ("加倍", 3)
    assert in_processes(show, double, [], ("doubling", "加倍")) == []  # all are there already


def test_a_lost_process_is_one_line_that_says_what_helps(monkeypatch):
    def lose(items, total, label):
        raise BrokenExecutor

    show = Recorder()
    monkeypatch.setattr(show, "progress", lose)
    with pytest.raises(SystemExit, match="^a worker process was killed .*; try --jobs 1$"):
        in_processes(show, double, [1], ("doubling", "加倍"))


def test_ctrl_c_is_not_heard_while_processes_start_and_heard_again_afterwards():
    def deaf():
        return signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    assert not deaf()
    with pytest.raises(KeyError), processes._deaf_to_ctrl_c():
        assert deaf()
        with processes._deaf_to_ctrl_c():
            assert deaf()
        assert deaf()  # as it was found, not simply off
        raise KeyError
    assert not deaf()


# ── the ledger's entries ─────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "bounds",
    [{"low": 2, "high": 1}, {"low": math.inf}, {"high": -math.inf}, {"low": math.nan}]
    + [{"low": 10**400}, {"low": True}, {"high": "1"}],
)
def test_bounds_that_make_no_sense_are_refused(bounds):
    with pytest.raises(ValueError, match="^T-1: "):
        claim("range", **({"low": 0} | bounds))


def test_bounds_may_be_one_number():
    assert judge(claim("range", low=2, high=2), 2) == "ok"
    assert judge(claim("range", low=2, high=2), 2.0001) == "differs"


def test_a_wide_erratum_takes_no_truth_value_for_a_number():
    """0 is a number and False a statement that does not hold: neither stands for the other."""
    assert judge(claim("erratum"), 0) == "differs"
    assert judge(claim("erratum", "2", right="3"), [3, 3]) == "differs"
    assert judge(claim("digits", "1"), True) == "differs"


def test_slack_counts_in_the_verdict():
    assert judge(claim("digits", "0.162", slack=1), 0.1634) == "ok"
    assert judge(claim("digits", "0.162"), 0.1634) == "differs"


# ── what is typed, and the exit code ─────────────────────────────────────────────────────────────
def run_here(values, *flags):
    """A script of one part that claims these values, in this process → exit code, its `show`."""
    shows = []

    def part(show):
        """1 · a part"""
        shows.append(show)
        for id, value in values.items():
            show.claim(id, value)

    options = cli.parser("a script", "a.py").parse_args(["--no-figures", "--lang", "en", *flags])
    code = cli.run(Path(__file__).resolve(), "a script", {1: part}, options)
    return code, shows[0]


def test_flags_reach_the_parts():
    _, show = run_here({}, "--seeds", "7", "--jobs", "5", "--quick")
    assert (show.n_seeds, show.jobs, show.quick) == (7, 5, True)
    _, show = run_here({})
    assert (show.n_seeds, show.jobs, show.quick) == (None, cli.cores(), False)


def test_exit_codes_and_counts(capsys):
    """1 under --strict alone, and neither for an erratum nor for what --quick left untrained."""
    trained = next(c.id for c in load_claims().values() if c.random == "trained")
    right, wrong = {"L2-016": -1, "L2-073": [15.3136492] * 3}, {"L2-015": 65, trained: -1}
    assert run_here(right, "--strict")[0] == 0
    assert run_here(wrong)[0] == 0
    assert run_here(wrong, "--strict")[0] == 1
    assert run_here({trained: -1}, "--strict")[0] == 1
    assert run_here({trained: -1}, "--strict", "--quick")[0] == 0
    assert run_here(wrong, "--strict", "--quick")[0] == 1
    said = [line for line in capsys.readouterr().out.splitlines() if " numbers: " in line]
    assert [line.rpartition(" ·")[0] for line in said[1:3]] == ["2 numbers: 2 differs"] * 2
    assert said[-1].startswith("2 numbers: 1 differs, 1 quick")
