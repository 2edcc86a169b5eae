"""Run every script in surroundings that differ in whatever should not matter, two at a time.

Each runs three times, with --quick:

  plain   from the checkout, in a pipe: ASCII, no HOME, one job, one thread, python -W error
  odd     from a read-only copy whose path has spaces and Chinese, started elsewhere, on a terminal
          of 40 columns that speaks GBK, HOME no directory, the year 1970, no network, two jobs, two
          threads, another hash seed, python -O
  alone   part by part, each in a process of its own that has run nothing else: cp1252; then one
          part with its reader gone and a disk that takes no figure, one with a full disk, and all
          of them interrupted
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import pty
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from companion import ROOT, main, scripts
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

NAMES = [path.relative_to(ROOT).with_suffix("").as_posix() for path in scripts()]
COLUMNS = 40
SMALL_DISK = 10_000  # bytes that a file may have: enough for the numbers, too few for a figure
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

SITE = '''
import errno, os, sys, time

def no_network(event, arguments):
    """Refuse to look up and to connect, but for sockets of this machine's own file system."""
    if event == "socket.getaddrinfo" or event == "socket.gethostbyname":
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
    if event == "socket.connect" and not isinstance(arguments[1], (str, bytes)):
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

sys.addaudithook(no_network)
clock, clock_ns, local, utc = time.time, time.time_ns, time.localtime, time.gmtime
start = clock()
time.time, time.time_ns = lambda: clock() - start, lambda: clock_ns() - int(start * 10**9)
time.localtime = lambda seconds=None: local(time.time() if seconds is None else seconds)
time.gmtime = lambda seconds=None: utc(time.time() if seconds is None else seconds)
'''


class Run(NamedTuple):
    """How it ended. report: the JSON file, None if there is none. left: other files it left."""

    code: int
    out: bytes
    err: str
    report: dict | None
    left: list

    @property
    def numbers(self):
        """The claims, apart from what a clock measured."""
        timed = [c["verdict"] == "timing" for c in self.report["claims"]]
        return [
            (c["id"], c["verdict"], None if by_clock else (c["measured"], c.get("seeds")))
            for c, by_clock in zip(self.report["claims"], timed)
        ]


# ── plain ────────────────────────────────────────────────────────────────────────────────────────
def plain(name, folder):
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "LANG", "LC_ALL")}
    environment |= {"PYTHONIOENCODING": "ascii", "PYTHONHASHSEED": "0", "PYTHONPATH": ""}
    environment |= dict.fromkeys(THREADS, "1")
    command = [sys.executable, "-W", "error", f"{name}.py", "--quick", "--no-figures"]
    command += ["--jobs", "1", "--json", str(folder / "out.json")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, stdin=subprocess.DEVNULL
    )
    return finished(done.returncode, done.stdout, done.stderr.decode(), folder)


def finished(code, out, err, folder):
    path = folder / "out.json"
    report = json.loads(path.read_text("utf-8")) if path.exists() else None
    left = sorted(p.name for p in folder.rglob("*") if p != path)
    return Run(code, out, err, report, left)


# ── odd ──────────────────────────────────────────────────────────────────────────────────────────
def copy_of_the_checkout(folder):
    """What a reader has, in a folder of that name; without caches and figures."""
    folder.mkdir(parents=True)
    for path in [*ROOT.glob("*.py"), *ROOT.glob("requirements.txt")]:
        shutil.copy(path, folder)
    for name in "companion", "code":
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    corpus = ROOT / ".cache" / "tinyshakespeare.txt"  # the same text, or none, for all runs
    if corpus.exists():
        (folder / ".cache").mkdir()
        shutil.copy(corpus, folder / ".cache")
    return folder


def read_only(folder, yes=True):
    for path in [folder, *folder.rglob("*")]:
        path.chmod((0o555 if yes else 0o755) if path.is_dir() else 0o444)


def bound_by_permissions():
    """What to put before a command so that permissions hold for it, also where root runs it."""
    no = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={no}"] if os.geteuid() == 0 else []


def odd_environment(folder):
    (folder / "sitecustomize.py").write_text(SITE)
    environment = {**os.environ, "PYTHONIOENCODING": "gbk", "PYTHONHASHSEED": "1", "TERM": "xterm"}
    environment |= {"HOME": os.devnull, "PYTHONPATH": str(folder)} | dict.fromkeys(THREADS, "2")
    for name in "COLUMNS", "LINES", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR":
        environment.pop(name, None)
    return environment


def on_a_terminal(command, **settings):
    """→ exit code, what stands on the terminal: stdout and stderr."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = subprocess.Popen(command, **ends, **settings)
    os.close(theirs)
    said = []
    with contextlib.suppress(OSError):  # the other side is closed
        while piece := os.read(ours, 65536):
            said.append(piece)
    os.close(ours)
    return process.wait(), b"".join(said)


def odd(name, folder, checkout):
    site, elsewhere, out = (folder / one for one in ("site", "elsewhere", "out"))
    for one in site, elsewhere, out:
        one.mkdir()
    command = [*bound_by_permissions(), sys.executable, "-O", str(checkout / f"{name}.py")]
    command += ["--quick", "--jobs", "2", "--lang", "zh", "--json", str(out / "out.json")]
    code, said = on_a_terminal(command, cwd=elsewhere, env=odd_environment(site))
    run = finished(code, said, "", out)
    return run._replace(left=run.left + [p.name for p in elsewhere.iterdir()])


def width(line):
    """Columns that a line takes on a terminal."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


# ── alone ────────────────────────────────────────────────────────────────────────────────────────
def alone(name, folder):
    """→ {"parts": [Run, …], "closed": Run, "full": Run, "SIGINT": Run, "SIGTERM": Run}."""
    environment = {**os.environ, "PYTHONHASHSEED": "2", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, name, str(folder)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    runs = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            code = int((path / "code").read_text())
            out, err = (path / "stdout").read_bytes(), (path / "stderr").read_text("utf-8")
            runs[path.name] = finished(code, out, err, path / "files")
    parts = [runs.pop(one) for one in list(runs) if one.isdecimal()]
    return {"parts": parts, **runs}


def serve(name, folder):
    """Import the script once, then fork a process for everything that is to be run alone."""
    spec = importlib.util.spec_from_file_location(Path(name).name, ROOT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def run(label, *arguments, before=lambda: None, sent=None):
        place = folder / label
        (place / "files").mkdir(parents=True)
        child = os.fork()
        if not child:
            in_a_child(module, place, arguments, before)
        if sent:
            while not (place / "stdout").exists() or not (place / "stdout").stat().st_size:
                time.sleep(0.01)
            time.sleep(0.3)
            os.kill(child, sent)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (place / "code").write_text(str(code))

    seconds = {}
    for number in range(1, len(module.PARTS) + 1):
        start = time.perf_counter()
        run(f"{number:02}", "--no-figures", "--part", str(number))
        seconds[number] = time.perf_counter() - start
    drawn = [n for n, p in enumerate(module.PARTS, 1) if "figure" in p.__code__.co_names]
    quick, figured = min(seconds, key=seconds.get), min(drawn or seconds, key=seconds.get)
    run("closed", "--part", str(figured), before=nobody_listens_and_the_disk_is_small)
    run("full", "--no-figures", "--part", str(quick), "--json", full_device(folder))
    for sent in signal.SIGINT, signal.SIGTERM:
        run(sent.name, "--no-figures", sent=sent)


def in_a_child(module, place, arguments, before):
    code = 99
    try:
        os.dup2(os.open(place / "stderr", os.O_WRONLY | os.O_CREAT), 2)
        sys.stdout = open(place / "stdout", "w", encoding="cp1252")  # noqa: SIM115
        before()
        files = ["--json", str(place / "files" / "out.json"), "--figures", str(place / "files")]
        main(module.__doc__, module.PARTS, ["--quick", "--jobs", "1", *files, *arguments])
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def nobody_listens_and_the_disk_is_small():
    reader, writer = os.pipe()
    os.close(reader)
    sys.stdout = open(writer, "w", encoding="cp1252")  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_DISK, SMALL_DISK))


def full_device(folder):
    """A device that is always full; root makes its own, as its broken code could replace /dev's."""
    if os.geteuid():
        return "/dev/full"
    path = folder / "full device"
    os.mknod(path, stat.S_IFCHR | 0o666, os.stat("/dev/full").st_rdev)
    return str(path)


def session_of(leader):
    """The living processes of the session that this process leads, but not itself."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            text = Path(f"/proc/{entry}/stat").read_text()
            state, _, _, session = text.rpartition(")")[2].split()[:4]
            if int(session) == leader != int(entry) and state != "Z":
                found.append(int(entry))
    return found


# ── all of it, two at a time ─────────────────────────────────────────────────────────────────────
POOL = ThreadPoolExecutor(2)
RUNS = {}  # (kind, script) → what will be its Run


def run_of(kind, name, request):
    """The first to ask starts the runs of all scripts whose tests were selected."""
    if not RUNS:
        request.config.add_cleanup(lambda: POOL.shutdown(cancel_futures=True))
        parameters = [getattr(item, "callspec", None) for item in request.session.items]
        wanted = {spec.params.get("name") for spec in parameters if spec}
        factory = request.getfixturevalue("tmp_path_factory")
        checkout = factory.mktemp("odd") / "讲义 代码" / "a copy"
        read_only(copy_of_the_checkout(checkout))
        request.config.add_cleanup(lambda: read_only(checkout, False))
        for each in filter(wanted.__contains__, NAMES):
            for start, *more in (plain,), (odd, checkout), (alone,):
                folder = factory.mktemp(start.__name__)
                RUNS[start.__name__, each] = POOL.submit(start, each, folder, *more)
    return RUNS[kind, name].result()


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
