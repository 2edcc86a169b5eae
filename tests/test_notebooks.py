"""Every script as a notebook: its cells run in a Jupyter kernel and show numbers and figures."""

import re
from companion import ROOT, load_claims, scripts

import jupytext
import pytest
from nbclient import NotebookClient

NAMES = [path.relative_to(ROOT).with_suffix("").as_posix() for path in scripts()]
LONG = ("04_transformer_block", "05_long_range_recall", "06_farm_transformer")
pytestmark = pytest.mark.slow


def run(notebook, name):
    """Execute it in the script's folder → all its text, and how many pictures it shows."""
    folder = {"metadata": {"path": str((ROOT / name).parent)}}
    NotebookClient(notebook, kernel_name="python3", timeout=300, resources=folder).execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"display_data"}  # no traceback, no stderr
    text = "".join(output.data.get("text/plain", "") for output in outputs)
    return text, sum("image/png" in output.data for output in outputs)


def with_flags(cell, flags):
    """The cell that ends the script, with flags as README shows them."""
    call = "main(__doc__, PARTS"
    assert call in cell.source
    cell.source = cell.source.replace(call, f"{call}, {flags!r}")


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_a_notebook(name, tmp_path):
    notebook, source = jupytext.read(ROOT / f"{name}.py"), (ROOT / f"{name}.py").read_text("utf-8")
    parts = re.findall(r"^def (part\d+_\w+)\(show\)", source, re.M)
    with_part = [cell for cell in notebook.cells if re.search(r"^def part\d+_", cell.source, re.M)]
    assert len(with_part) == len(parts)
    with_flags(notebook.cells[-1], ["--figures", str(tmp_path)] + ["--quick"] * (name in LONG))
    text, pictures = run(notebook, name)
    assert {c.id for c in load_claims().values() if c.script == name} <= set(text.split())
    figures = set(re.findall(r'show\.figure\("(\w+)"', source))
    assert pictures == len(list(tmp_path.iterdir())) >= len(figures) >= 1
    assert " edited" not in text


def test_one_part_alone_and_a_line_of_magic():
    """The cells down to the part define what it needs; then the part, as README shows it."""
    notebook = jupytext.read(ROOT / "01_forgetful_rnn.py")
    last = next(n for n, cell in enumerate(notebook.cells) if "def part3_latch" in cell.source)
    lines = ["main(__doc__, [part3_latch])"]
    lines += ["%run 01_forgetful_rnn.py --part 1 --no-figures --set DECAY=0.9"]
    notebook.cells = notebook.cells[: last + 1] + [jupytext.reads(x, "py").cells[0] for x in lines]
    text, pictures = run(notebook, "01_forgetful_rnn")
    alone, by_magic = text.split("edited: DECAY = 0.9 (was 0.5)")
    assert "3 · §2.3" in alone
    assert "L2-025" in alone
    assert " edited" not in alone
    assert "L2-015" in by_magic
    assert pictures == 0
