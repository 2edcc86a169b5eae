"""Load a script by name, run its parts without printing; --models FILE checks another file."""

import importlib
import importlib.util
import signal
import sys
import traceback
from companion import ROOT, Recorder
from functools import cache

import pytest
import torch

torch.set_num_threads(1)  # small tensors: a second thread only waits for the first

# A shell's background job ignores Ctrl-C, and the scripts that tests interrupt would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def load_script(name):
    """The module of "01_forgetful_rnn", "run_all" or "code/w1d2_block"; importing runs nothing."""
    if "/" not in name:  # by its own name, so that worker processes can import it too
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), ROOT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script():
    return load_script


def run_parts(module, parts=None, **settings):
    """Run the parts (numbers from 1; None: all) → the Recorder with what they handed over."""
    show = Recorder(**settings)
    for number, part in enumerate(module.PARTS, start=1):
        if parts is None or number in parts:
            part(show)
    return show


# ── --models FILE: the contract of lm_models, or of W1D2's block, run on a student's own file ────
def pytest_addoption(parser):
    help = "check the models in FILE in place of ours (test_lm_models.py, test_w1d2_block.py)"
    parser.addoption("--models", metavar="FILE", help=help)


def pytest_configure(config):
    config.own_models = own_models(config) if config.getoption("models") else None


def own_models(config):
    """The module in FILE, from where the student stands; a file that will not do is one line."""
    path = (config.invocation_params.dir / config.getoption("models")).resolve()
    if not path.is_file():
        raise pytest.UsageError(f"--models: there is no file {path}")
    spec = importlib.util.spec_from_file_location("own_models", path)
    if spec is None:
        raise pytest.UsageError(f"--models: {path.name} is no Python file (its name ends in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.append(str(path.parent))  # for what it imports beside it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        inside = getattr(error, "filename", None) == str(path)  # a SyntaxError in it, not beside it
        line = error.lineno if inside else (lines[-1] if lines else None)
        where = f"line {line}: " if line else ""
        reason = (str(getattr(error, "msg", None) or error).splitlines() or [""])[0]
        name = type(error).__name__
        raise pytest.UsageError(
            f"--models: {path.name} does not import: {where}{name}: {reason}"
        ) from None
    return module


@pytest.fixture
def own_file(request):
    """The student's module, None without --models."""
    return request.config.own_models


def pytest_collection_modifyitems(config, items):
    """With --models only the tests that look at `models` have something to say."""
    if config.own_models is None:
        return
    chosen = [item for item in items if "models" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
    for item in chosen:
        item.add_marker(pytest.mark.filterwarnings("default"))  # their warnings are theirs


def pytest_terminal_summary(terminalreporter, config):
    """What the student's file does not have yet, and what waits for something to be put right."""
    if config.own_models is None:
        return
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])]
    reasons = list(dict.fromkeys(reason.removeprefix("Skipped: ") for reason in reasons))
    for start, shown in (
        ("not there yet: ", "not there yet · 还没有写: "),
        ("first ", "the rest is checked once this is right · 其余的等它改对再查: "),
    ):
        found = [one.removeprefix(start) for one in reasons if one.startswith(start)]
        if found:
            terminalreporter.write_line(shown + ", ".join(found))
    if not any(terminalreporter.stats.get(kind) for kind in ("passed", "failed", "error")):
        terminalreporter.write_line("nothing here to check · 没有可检查的内容")


def pytest_sessionfinish(session):
    """A file without a model to check is no success."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    said = [reporter.stats.get(kind) for kind in ("passed", "failed", "error")] if reporter else [1]
    if session.config.own_models is not None and not any(said):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
