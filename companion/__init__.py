"""The plumbing of the suite: the ledger of the lectures' numbers, printing, figures, command line.

It holds no lecture maths and never imports torch. A script needs `main`, and `require` to refuse
a constant that makes no sense; its parts are handed a `show`. Read ledger.py, show.py, cli.py.
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - whoever has an older Python should read why
    sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}")


def _say_in_one_line(kind, error, traceback):
    """A package that is not installed, Ctrl-C while torch is imported: no traceback for these."""
    packages = (
        "torch",
        "numpy",
        "matplotlib",
        "rich",
        "joblib",
        "cloudpickle",
        "tokenizers",
        "sentencepiece",
    )
    packages += ("jinja2",)
    if issubclass(kind, ModuleNotFoundError) and error.name in packages:
        install = f"{sys.executable} -m pip install -r requirements.txt"
        print(f"{error.name} is not installed; run: {install}", file=sys.stderr)
    elif issubclass(kind, KeyboardInterrupt):
        print(f"\n{os.path.basename(sys.argv[0])}: interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = _say_in_one_line

# These tensors are small: a second thread mostly waits for the first, for ever on a busy machine.
# And several would round sums differently: whatever the environment says, the numbers stay. It has
# to be said before torch and NumPy are imported; a script that wants more threads asks.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from companion.cli import cores, main, scripts  # noqa: E402
from companion.ledger import ROOT, load_claims  # noqa: E402
from companion.processes import in_processes  # noqa: E402
from companion.show import Recorder, require  # noqa: E402

__all__ = ["ROOT", "Recorder", "cores", "in_processes", "load_claims", "main", "require", "scripts"]
