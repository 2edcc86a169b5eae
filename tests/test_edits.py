"""--set NAME=VALUE does what an edit of the file does; README's changes show what README says."""

import ast
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from companion import ROOT, load_claims, scripts
from companion.edits import assigned, chosen, edit, fits
from companion.ledger import flat, load_constants
from concurrent.futures import ThreadPoolExecutor

import pytest

CONSTANTS = {"N": 3, "RATE": 0.5, "WORD": "hugs", "ON": True, "SIZES": [1, 2], "PAIR": ("a", 1)}
NAMES = [path.relative_to(ROOT).with_suffix("").as_posix() for path in scripts()]


def run(command, folder=ROOT):
    """The command, run by this Python in the folder → CompletedProcess, with texts."""
    words = [sys.executable, *shlex.split(command)]
    return subprocess.run(words, cwd=folder, capture_output=True, encoding="utf-8")


# ── what is given ────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "pair, value",
    [
        ("N=-4", -4),
        ("N= 1_000 ", 1000),
        ("N=\u30007", 7),  # a full-width space, as a Chinese keyboard types it
        ("RATE=1e-3", 0.001),
        ("RATE=2", 2),
        ("WORD=pugs", "pugs"),
        ("WORD='a=b'", "a=b"),
        ("WORD=1984", "1984"),
        ("WORD=", ""),
        ("ON=False", False),
        ("SIZES=[5]", [5]),
        ("SIZES=[]", []),
        ("PAIR=('b', 2)", ("b", 2)),
    ],
)
def test_a_value_is_read(pair, value):
    (found,) = chosen([pair], CONSTANTS).values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "pair, message",
    [
        ("M=1", "there is no constant 'M'; there is N, RATE, WORD, ON, SIZES, PAIR"),
        ("M", "there is no constant 'M'; there is N, RATE, WORD, ON, SIZES, PAIR"),
        ("=1", "there is no constant '=1'; there is N, RATE, WORD, ON, SIZES, PAIR"),
        ("N", "N takes a whole number like 3, got ''"),
        ("WORD", "WORD takes a text like 'hugs', got ''"),
        ("N=4.0", "N takes a whole number like 3, got '4.0'"),
        ("N=True", "N takes a whole number like 3, got 'True'"),
        ("N=2+2", "N takes a whole number like 3, got '2+2'"),
        ("N=__import__('os')", "N takes a whole number like 3, got \"__import__('os')\""),
        ("RATE=fast", "RATE takes a number like 0.5, got 'fast'"),
        ("RATE=False", "RATE takes a number like 0.5, got 'False'"),
        ("ON=1", "ON takes True or False like True, got '1'"),
        ("SIZES=3", "SIZES takes a list like [1, 2], got '3'"),
        ("SIZES=[1.5]", "SIZES takes a list like [1, 2], got '[1.5]'"),
        ("SIZES=(1, 2)", "SIZES takes a list like [1, 2], got '(1, 2)'"),
        ("PAIR=['a', 1]", "PAIR takes a tuple like ('a', 1), got \"['a', 1]\""),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(pair, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        chosen([pair], CONSTANTS)


@pytest.mark.parametrize("text", ["-" * 5_000 + "1", "-" * 200_000 + "1"], ids=["deep", "deeper"])
def test_what_is_too_deep_for_python_is_refused_too(text):
    """Its parser gives up with MemoryError or RecursionError, not SyntaxError."""
    with pytest.raises(ValueError, match="^N takes a whole number like 3, got"):
        chosen([f"N={text}"], CONSTANTS)
    assert chosen([f"WORD={text}"], CONSTANTS) == {"WORD": text}  # a word may be anything


def test_a_whole_number_stands_for_a_float_and_nothing_else_does():
    assert fits(2, 0.5) and not fits(0.5, 2) and not fits(True, 0.5) and not fits("2", 0.5)
    assert fits([2, 0.5], [0.1]) and not fits([True], [0.1]) and not fits([[2]], [0.1])


def test_the_last_of_two_counts():
    assert chosen(["N=1", "RATE=1", "N=2"], CONSTANTS) == {"N": 2, "RATE": 1}


# ── what follows from it ─────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", NAMES)
def test_every_constant_can_be_set(name):
    body = ast.parse((ROOT / f"{name}.py").read_text(encoding="utf-8")).body
    assert set(load_constants()[name]) <= set().union(*map(assigned, body))


def edited(name, **values):
    """The script's names after the edit."""
    namespace = runpy.run_path(str(ROOT / f"{name}.py"))
    edit(ROOT / f"{name}.py", namespace, values)
    return namespace


def test_what_is_computed_from_a_constant_follows():
    five = edited("05_long_range_recall", KEYS=4, HIDDEN=48)
    assert [five[name] for name in ("KEYS", "QUERY", "VOCAB", "HIDDEN")] == [4, 12, 14, 48]
    assert five["EMBED"] == load_constants()["05_long_range_recall"]["EMBED"]  # beside HIDDEN
    assert five["new_model"]("Elman", 0).output.weight.shape == (14, 48)
    four = edited("04_transformer_block", EPSILON=0.25, D_MODEL=128)
    assert four["layer_norm"].__defaults__[-1] == 0.25
    assert four["MODELS"]["small GPT"][1] == 128
    assert edited("w1day2_checks", PIECES=[("a", 1)])["PIECES"] == [("a", 1)]  # after its last +=
    assert edited("05_long_range_recall", KEYS=4, VOCAB=20)["VOCAB"] == 20


def test_the_command_line():
    done = run("w1day2_checks.py --part 12 --no-figures --lang en --set WORD=hug")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nedited: WORD = hug (was hugs); quantities are named" in done.stdout
    assert re.search(r"^W1D2-047 .* 4 +7 +edited$", done.stdout.replace(" \n", "\n"), re.M)
    done = run("w1day2_checks.py --no-figures --set WARD=hug")
    assert done.returncode == 2
    words = r"w1day2_checks.py: --set: there is no constant 'WARD'; there is SEED, .* WORD, .*\n"
    assert re.fullmatch(words, done.stderr)
    for flags, why in (
        ("--set WORD=hug", "a constant belongs to one script"),
        ("--part 2", "script by script"),
    ):
        done = run(f"run_all.py {flags}")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"argument {flags.split()[0]}: " in done.stderr and why in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, flags, pair, line, as_edited",
    [
        ("01_forgetful_rnn", "", "INPUT_BIAS=-10", "40.0, -20.0", "40.0, -10"),
        ("01_forgetful_rnn", "--part 2", "NOISE=-1.0", "NOISE = 0.05", "NOISE = -1.0"),
        ("03_attention", "--part 5", "HEADS=[1, 2]", "HEADS = [1, 2, 4, 8]", "HEADS = [1, 2]"),
        ("04_transformer_block", "--part 1", "EPSILON=0.5", "EPSILON = 1e-5", "EPSILON = 0.5"),
        ("05_long_range_recall", "--part 4 --quick --jobs 2", "KEYS=4", "= 8, 8", "= 4, 8"),
        (
            "06_farm_transformer",
            "--part 4 --quick --jobs 2",
            "LAYERS=1",
            "D = 2, 4, 6",
            "D = 1, 4, 6",
        ),
        ("06_farm_transformer", "--part 1", "MAX_LEN=-1", "MAX_LEN = 120", "MAX_LEN = -1"),
        ("w1day2_checks", "", "WORD=hug", 'WORD = "hugs"', 'WORD = "hug"'),
        ("code/w1d2_block", "--part 3", "DROPOUT=0.5", "DROPOUT = 0.1", "DROPOUT = 0.5"),
    ],
)
def test_set_and_edit_measure_the_same(name, flags, pair, line, as_edited, tmp_path):
    """The file edited in a copy of the checkout, --set in the other: all output is the same."""
    outcome = []
    for folder in tmp_path / "edited", tmp_path / "set":
        ignored = shutil.ignore_patterns(".*", "figures", "tests", "__pycache__")
        shutil.copytree(ROOT, folder, ignore=ignored)
        command = f"{name}.py --no-figures --json {folder}.json {flags}"
        if folder.name == "edited":
            source = (folder / f"{name}.py").read_text(encoding="utf-8")
            assert source.count(line) == 1
            (folder / f"{name}.py").write_text(source.replace(line, as_edited), encoding="utf-8")
        else:
            command += f" --set {shlex.quote(pair)}"
        done = run(command, folder)
        report = folder.with_suffix(".json")
        claims = json.loads(report.read_text("utf-8"))["claims"] if report.exists() else None
        said = re.sub(r"[\d.]+ s\n", "", done.stdout)
        outcome.append((done.returncode, said, claims, done.stderr))
    timed = {id for id, claim in load_claims().items() if claim.check == "timing"}
    assert timed.isdisjoint(claim["id"] for claim in outcome[0][2] or [])
    assert outcome[0] == outcome[1]
    assert outcome[0][0] == (2 if pair in ("NOISE=-1.0", "MAX_LEN=-1") else 0)


# ── README's changes ─────────────────────────────────────────────────────────────────────────────
def near(low, high):
    return lambda value: low <= value <= high


def row(start, text):
    """The numbers in the table row that starts so."""
    line = re.search(rf"^ *{start} .*$", text, re.M)[0]
    return [float(number) for number in re.findall(r"[\d.]+(?:e-\d+)?", line)]


def from_1_to_3(text):
    """Gradients left at d = 100 for b_f = 1, 2, 3, each a multiple of the one before."""
    one, two, three = row("100", text)[-3:]
    return 1e3 * one < two < three / 3


def growth(text):
    """RMS after 256 blocks: unscaled, scaled."""
    unscaled, scaled = row("256", text)[-2:]
    return unscaled > 15 and scaled < 1.5


def drawn_alike(text):
    """The probabilities to the power of 0, all equal, and what was drawn, nearly so."""
    table = text[text.index("P^0 / Σ") :].split("\n\n")[0].splitlines()[2:]
    shares = [[float(x) for x in re.findall(r"\b[01]\.\d{4}\b", line)] for line in table]
    share = 1 / len(shares)
    return all(abs(p - share) < 1e-4 and abs(drawn - share) < 0.02 for p, drawn in shares)


def every_merge(text):
    found = re.search(r"merges, in order +(\d+) +(\d+)", text)
    return found[1] == found[2] and 100 < int(found[1]) < 500


# What README says that one sees: of a measured number, or of the text. Trainings cannot say it
# with --quick, so of theirs only what needs none.
SEEN = {
    "01_forgetful_rnn DECAY": {"L2-015": [68], "L2-016": [-1]},
    "01_forgetful_rnn GAIN": {"L2-024": [near(0.13, 0.15), near(0.85, 0.87)]}
    | {"L2-025": [near(0.61, 0.63)]},
    "01_forgetful_rnn FORGET_BIAS": {"L2-034": [near(0, 1e-20)]},
    "02_lstm EXERCISE": {"L2-159": [803_200]},
    "02_lstm FORGET_BIASES": from_1_to_3,
    "02_lstm H": {"L2-043": [near(0.25, 0.4)]},
    "03_attention WEIGHTS": {"L2-052": [0.25, 0.25, 0.5, 0.25]},
    "03_attention D_K_EXERCISE": {"L2-163": [near(1.95, 2.05), near(0, 2), near(0, 2)]}
    | {"L2-164": [near(0, 0.5), near(1, 4)]},
    "03_attention SHARPNESS": {"L2-070": [False]},
    "04_transformer_block INPUT_STD": {"L2-079": [near(0.16, 0.18)]},
    "04_transformer_block N_HEADS": {"L2-089": [105_152, 105_152]},
    "04_transformer_block D_MODEL": {"L2-089": [406_912, 406_912]},
    "05_long_range_recall KEYS": {"L2-104a": [0.25], "L2-104b": [near(1.386, 1.387)]}
    | {"L2-102": [4, 2, 8]},
    "05_long_range_recall NEAR": {},
    "05_long_range_recall LAYERS": lambda text: (
        "layer 1, head 1" in text and "head 2" not in text and "layer 2, head" not in text
    ),
    "06_farm_transformer LAYERS": {"L2-143b": [0.5]},
    "06_farm_transformer K": {"L2-138": [27]},
    "06_farm_transformer MOST_DISTRACTORS": lambda text: "k = 20" in text,
    "w1day2_checks BASE": {"W1D2-019": [near(543.5, 544.5)]},
    "w1day2_checks CORPUS": {"W1D2-044a": [False], "W1D2-044b": [52]}
    | {"W1D2-045b": [near(0.0495, 0.0505), near(0, 0.03)]},
    "w1day2_checks WORD": {"W1D2-047": [4]},
    "code/w1d2_block DROPOUT": lambda text: text.count(" 0.00 ") == 3,
    "code/w1d2_block DEPTHS": growth,
    "code/w1d2_block GPT2_SMALL": {"W1D2-035b": [354_823_168]},
    "code/w1d2_tokenizers ALPHA": drawn_alike,
    "code/w1d2_tokenizers COVERAGE": {"W1D2-066b": [False], "W1D2-067": [False]},
    "code/w1d2_tokenizers VOCAB_SIZE": every_merge,
}
ROW = re.compile(r"^\| `(\S+\.py --part \d+ --set .+?)` \|", re.M)
CHANGES = {  # "01_forgetful_rnn DECAY": the command
    re.sub(r"^(\S+)\.py .*?--set \"?(\w+)=.*$", r"\1 \2", command): command
    for command in ROW.findall((ROOT / "README.md").read_text(encoding="utf-8"))
}


def test_readme_has_three_changes_for_every_script():
    assert [change.split()[0] for change in CHANGES] == [name for name in NAMES for _ in range(3)]
    assert set(CHANGES) == set(SEEN)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_readme_is_right_about_what_one_sees(name, tmp_path):
    mine = [change for change in CHANGES if change.split()[0] == name]

    def outcome(change):
        report = tmp_path / f"{change.split()[1]}.json"
        flags = f"--quick --no-figures --lang en --jobs 1 --json {shlex.quote(str(report))}"
        done = run(f"{CHANGES[change]} {flags}")
        assert (done.returncode, done.stderr) == (0, ""), change
        return done.stdout, json.loads(report.read_text("utf-8"))["claims"]

    with ThreadPoolExecutor(2) as pool:
        outcomes = dict(zip(mine, pool.map(outcome, mine)))
    for change, (text, claims) in outcomes.items():
        assert f"\nedited: {change.split()[1]} = " in text.replace("; ", "\nedited: "), text
        assert "differs" not in {claim["verdict"] for claim in claims}
        if callable(SEEN[change]):
            assert SEEN[change](text), f"{change}: {text}"
            continue
        measured = {claim["id"]: flat(claim["measured"]) for claim in claims}
        for id, wanted in SEEN[change].items():
            values = measured[id]
            assert len(values) == len(wanted), (change, id, values)
            for value, right in zip(values, wanted):
                assert right(value) if callable(right) else value == right, (change, id, values)
