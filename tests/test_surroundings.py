"""Every script where surroundings are hostile: it ends well, and with the same numbers.

tests/surroundings.py says which surroundings come together. All tests that look at those runs stand
in this file, so that each run is made once also where several processes share the tests.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from companion import ROOT

import pytest
from surroundings import (
    COLUMNS,
    NAMES,
    SMALL_DISK,
    copy_of_the_checkout,
    odd_environment,
    run_of,
    session_of,
    width,
)

every_script = pytest.mark.parametrize("name", NAMES)
slow = pytest.mark.slow


@slow
@every_script
def test_ascii_no_home_and_warnings_as_errors(name, request):
    run = run_of("plain", name, request)
    assert run.err == ""
    assert run.code == 0
    text = run.out.decode("ascii")
    assert "numbers: " in text.splitlines()[-1]
    assert run.left == []


@slow
@every_script
def test_a_read_only_copy_in_a_chinese_path_on_a_narrow_gbk_terminal_in_1970(name, request):
    run = run_of("odd", name, request)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", run.out.decode("gbk"))
    assert run.code == 0, text[-3000:]
    assert "Traceback" not in text
    lines = re.split(r"[\r\n]+", text)
    assert [line for line in lines if width(line.rstrip()) > COLUMNS] == []
    assert re.search(r"个数: .*\d s", " ".join(lines[-4:]))
    assert run.left == []


@slow
@every_script
def test_cp1252(name, request):
    for part in run_of("alone", name, request)["parts"]:
        assert (part.code, part.err, part.left) == (0, "", [])
        assert re.match(r"\d+ numbers?: ", part.out.decode("cp1252").splitlines()[-1])


@slow
@every_script
def test_nobody_listens_and_the_disk_takes_no_figure(name, request):
    runs = run_of("alone", name, request)
    closed = runs["closed"]
    assert (closed.code, closed.err, closed.out) == (0, "", b"")
    assert closed.numbers in [part.numbers for part in runs["parts"]]
    assert closed.left == [], f"figures of less than {SMALL_DISK} bytes, or half ones"


@slow
@every_script
def test_a_full_disk(name, request):
    full = run_of("alone", name, request)["full"]
    assert full.code == 2
    assert re.fullmatch(r"cannot write .*full.*: No space left on device\n", full.err)


@slow
@every_script
@pytest.mark.parametrize(
    "sent, code, words", [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "")]
)
def test_interrupted(name, sent, code, words, request):
    run = run_of("alone", name, request)[sent]
    assert (run.code, run.report, run.left) == (code, None, [])
    assert run.err == (f"\n{name.split('/')[-1]}.py: {words}\n" if words else "")


# ── the same numbers: what should not matter is changed all at once, and nothing moves ───────────
@slow
@every_script
def test_the_same_numbers_in_other_surroundings(name, request):
    here, there = run_of("plain", name, request), run_of("odd", name, request)
    assert here.report["script"] == there.report["script"] == name
    assert here.numbers, "there is something to compare"
    assert here.numbers == there.numbers


@slow
@every_script
def test_a_part_alone_measures_what_it_measures_after_the_others(name, request):
    together = run_of("plain", name, request).numbers
    parts = run_of("alone", name, request)["parts"]
    assert [number for part in parts for number in part.numbers] == together


# ── in the middle of a training with several processes ───────────────────────────────────────────
def gone(leader, seconds):
    """Do all processes of that session end within so many seconds?"""
    deadline = time.monotonic() + seconds
    while session_of(leader) and time.monotonic() < deadline:
        time.sleep(0.2)
    return session_of(leader) == []


@slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="counts processes in /proc")
@pytest.mark.parametrize(
    "script, part, sent",
    [
        ("05_long_range_recall", 2, "SIGTERM"),
        ("05_long_range_recall", 2, "SIGKILL"),
        ("06_farm_transformer", 5, "SIGINT"),
        ("06_farm_transformer", 5, "SIGTERM"),
    ],
)
def test_a_training_ends_whole(script, part, sent, tmp_path):
    """No process stays, no half file; Ctrl-C reaches all of them, the others the script alone."""
    command = [sys.executable, str(ROOT / f"{script}.py"), "--jobs", "2", "--part", str(part)]
    command += ["--json", str(tmp_path / "out.json"), "--figures", str(tmp_path)]
    with open(tmp_path.parent / f"{tmp_path.name}.txt", "w+") as said:
        ends = {"stdout": subprocess.DEVNULL, "stderr": said, "start_new_session": True}
        process = subprocess.Popen(command, **ends)
        deadline = time.monotonic() + 120
        while len(session_of(process.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)  # two workers and joblib's tracker
        time.sleep(3)
        kill = os.killpg if sent == "SIGINT" else os.kill
        kill(process.pid, getattr(signal, sent))
        code = process.wait(60)
        assert gone(process.pid, 30)
        said.seek(0)
        words = said.read()
    assert code == {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}[sent]
    if sent != "SIGKILL":  # after that, joblib's tracker says what it cleans up
        assert words == (f"\n{script}.py: interrupted\n" if sent == "SIGINT" else "")
    assert list(tmp_path.iterdir()) == []
    assert list((ROOT / ".cache").glob(".*")) == []


@slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="counts processes in /proc")
def test_run_all_ends_the_script_that_it_runs():
    command = [sys.executable, str(ROOT / "run_all.py"), "--quick", "--no-figures"]
    ends = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(command, **ends, start_new_session=True)
    deadline = time.monotonic() + 60
    while not session_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert session_of(process.pid)
    process.terminate()
    assert process.wait(30) == 143
    assert gone(process.pid, 10)


def test_ctrl_c_while_torch_is_imported_is_one_line(tmp_path):
    code = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    (tmp_path / "torch.py").write_text(code)
    done = subprocess.run(
        [sys.executable, str(ROOT / "01_forgetful_rnn.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGINT
    assert (done.stdout, done.stderr) == ("", "\n01_forgetful_rnn.py: interrupted\n")


# ── two at once ──────────────────────────────────────────────────────────────────────────────────
@slow
def test_two_copies_at_once_on_the_same_cache(tmp_path):
    """Both train, both write, nobody reads half a file; a third one finds what they left."""
    checkout = copy_of_the_checkout(tmp_path / "checkout")
    script = str(checkout / "06_farm_transformer.py")
    flags = ["--quick", "--no-figures", "--lang", "en", "--part", "1", "--jobs", "1", "--json"]

    def start(name):
        command = [sys.executable, script, *flags, str(tmp_path / name)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    both = [start("0.json"), start("1.json")]
    said = [process.communicate()[0] for process in both]
    said.append(start("2.json").communicate()[0])
    assert not any("cache" in words for words in said), said
    reports = [json.loads((tmp_path / f"{n}.json").read_text("utf-8"))["claims"] for n in range(3)]
    assert reports[0] == reports[1] == reports[2] != []
    assert [p.name for p in (checkout / ".cache").glob("*.pt")] == ["farm_rnn_40_steps.pt"]
    assert list((checkout / ".cache").glob(".*")) == []


# ── the surroundings themselves ──────────────────────────────────────────────────────────────────
def test_the_odd_surroundings_are_what_they_claim_to_be(tmp_path):
    code = """if True:
        import os, socket, sys, time
        assert 0 <= time.time() < 60 and time.localtime().tm_year in (1969, 1970)
        for connect in (socket.create_connection, lambda to: socket.socket().connect(to)):
            try:
                connect(("192.0.2.1", 80))
            except OSError as error:
                assert "unreachable" in str(error), error
            else:
                raise AssertionError("there is a network")
        assert sys.stdout.encoding == "gbk" and not os.path.isdir(os.path.expanduser("~"))
        """
    done = subprocess.run([sys.executable, "-c", code], env=odd_environment(tmp_path))
    assert done.returncode == 0
