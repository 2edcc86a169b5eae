"""Load a script by name and run its parts without printing."""

import importlib
import importlib.util
import signal
import sys
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
