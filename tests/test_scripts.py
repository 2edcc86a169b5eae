"""Every script: it claims its rows of the ledger, all agree, and its figures can be drawn."""

import json
import os
import re
import subprocess
import sys
from companion import ROOT, load_claims, scripts

import pytest
from conftest import load_script, run_parts

NAMES = [path.relative_to(ROOT).with_suffix("").as_posix() for path in scripts()]


def rows_of(name):
    return {c.id for c in load_claims().values() if c.script == name}


def test_no_script_is_missing():
    """Ledger rows whose script is not written yet; the list must end up empty."""
    missing = {c.script for c in load_claims().values() if c.script} - set(NAMES)
    if missing:
        rows = sum(len(rows_of(name)) for name in missing)
        pytest.xfail(f"{rows} numbers wait for {', '.join(sorted(missing))}")


@pytest.mark.parametrize("name", NAMES)
def test_a_script_names_its_own_rows_and_no_others(name):
    source = (ROOT / f"{name}.py").read_text(encoding="utf-8")
    named = set(re.findall(r'"((?:L2|W1D2)-\d{3}[a-z]?)"', source))
    assert named == rows_of(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_number_agrees(name, tmp_path):
    """The script as a reader runs it, figures included: each row once, ok, erratum or timing."""
    report = tmp_path / "report.json"
    command = [sys.executable, str(ROOT / f"{name}.py"), "--json", str(report), "--strict"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--figures", str(tmp_path)], capture_output=True, env=environment, cwd=tmp_path
    )
    assert done.stderr.decode() == ""
    assert done.returncode == 0, done.stdout.decode()[-3000:]
    verdicts = {c["id"]: c["verdict"] for c in json.loads(report.read_text("utf-8"))["claims"]}
    assert set(verdicts) == rows_of(name)
    assert {v: id for id, v in verdicts.items() if v not in ("ok", "erratum", "timing")} == {}
    assert {id for id, v in verdicts.items() if v == "erratum"} == {
        id for id in rows_of(name) if load_claims()[id].check == "erratum"
    }
    figures = set(re.findall(r'show\.figure\("(\w+)"', (ROOT / f"{name}.py").read_text("utf-8")))
    assert {path.stem for path in tmp_path.glob("*.png")} >= figures
    assert all(path.stat().st_size > 5000 for path in tmp_path.glob("*.png"))


@pytest.mark.parametrize("name", NAMES)
def test_anatomy(name):
    """Bilingual titles with their section, parts that never print or see the ledger."""
    module = load_script(name)
    assert re.match(r"\w+ · .*[\u4e00-\u9fff].* · .+", module.__doc__.splitlines()[0])
    for part in module.PARTS:
        title = part.__doc__.splitlines()[0]
        assert re.match(r"§[\w.–,、§ ]+ · .+ · .+", title), title
    source = (ROOT / f"{name}.py").read_text(encoding="utf-8")
    assert not re.search(r"\bprint\(|load_claims|claims\.toml|\.lecture\b", source)
    assert len(re.findall(r"^# %% ", source, re.M)) >= len(module.PARTS)


@pytest.mark.slow
def test_a_part_alone_measures_what_it_measures_among_all(monkeypatch):
    module = load_script("01_forgetful_rnn")
    monkeypatch.setattr(module, "LONG", 50)
    together = run_parts(module).claims
    for number in range(1, len(module.PARTS) + 1):
        for id, value in run_parts(module, [number]).claims.items():
            assert value == together[id], id
