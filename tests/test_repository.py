"""Promises about the files themselves."""

import ast
import re
import subprocess
import sys
import tomllib
from companion import ROOT, load_claims, scripts

import pytest

OURS = ("lm_models", "farm_language", "needs", "run_all")  # a student's own files may lie beside
TOP = [path for path in scripts() if path.parent == ROOT] + [ROOT / f"{name}.py" for name in OURS]


def imports(path):
    """The top-level modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add(node.module.split(".")[0])
    return found


def test_code_is_no_package():
    """With an __init__.py it would shadow the standard library's code module and break pdb."""
    assert not (ROOT / "code" / "__init__.py").exists()
    subprocess.run([sys.executable, "-c", "import pdb, code; code.interact"], check=True, cwd=ROOT)


def test_imports_run_one_way():
    ours = {path.stem for path in TOP} | {"companion"}
    for path in TOP:
        allowed = {"lm_models", "farm_language", "companion"}
        if path.stem in ("lm_models", "farm_language"):
            allowed = {"needs"}  # which refuses wrong input, and imports nothing of ours
        if path.stem == "needs":
            allowed = set()
        assert imports(path) & ours <= allowed, path.name
    for path in (ROOT / "companion").glob("*.py"):
        assert imports(path) & ours <= {"companion"}
        assert "torch" not in imports(path)


def test_the_models_can_be_read_in_one_sitting():
    assert len((ROOT / "lm_models.py").read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("module", ["companion", "w1day2_checks"])
def test_no_torch_and_no_matplotlib_before_they_are_needed(module):
    if not (ROOT / module).exists() and not (ROOT / f"{module}.py").exists():
        pytest.skip(f"{module} is not written yet")
    code = f"import sys, {module}; print(sorted({{'torch', 'matplotlib'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"[]\n" or done.stdout == b"[]\r\n"


def test_requirements_are_pinned_exactly():
    for name in "requirements.txt", "requirements-cluster.txt", "tests/requirements.txt":
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if line.startswith("-r "):
                assert (ROOT / name).parent.joinpath(line[3:]).resolve().parent == ROOT
            else:
                assert not line or line[0] == "#" or re.fullmatch(r"[\w-]+==[\w.]+", line), line


def readme_commands():
    """The lines of README's code blocks that set up and run."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if re.match(r"(python3|py) -m venv ", line)]


def test_readme_has_two_commands_in_two_forms():
    unix = [line for line in readme_commands() if line.startswith("python3")]
    windows = [line for line in readme_commands() if line.startswith("py ")]
    assert len(unix) == len(windows) == 2
    assert unix[0].endswith("run_all.py")
    assert unix[1].endswith("-m pytest")
    for line in (*unix, *windows):
        assert "-r requirements.txt" in line
    chinese = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
    for line in (*unix, *windows):
        assert line in chinese


def test_the_two_readmes_name_the_same_files():
    names = [
        sorted(
            set(re.findall(r"`([\w./]+\.(?:py|toml|txt|png|md))", (ROOT / name).read_text("utf-8")))
        )
        for name in ("README.md", "README.zh-CN.md")
    ]
    assert [n for n in names[0] if "README" not in n] == [n for n in names[1] if "README" not in n]
    for name in names[0]:
        assert (ROOT / name).exists() or name.startswith("figures/"), name


def test_pytest_turns_warnings_into_errors():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["pytest"]["ini_options"]["filterwarnings"][0] == "error"


def test_the_readmes_list_every_erratum_and_every_script():
    errata = [c.id for c in load_claims().values() if c.check == "erratum"]
    for name in "README.md", "README.zh-CN.md":
        text = (ROOT / name).read_text(encoding="utf-8")
        assert re.findall(r"^\| ((?:L2|W1D2)-\w+) \|", text, re.M) == errata
        for c in map(load_claims().get, errata):
            assert (c.why_zh if "zh" in name else c.why_en) in text, c.id
        for path in scripts():
            assert f"`{path.relative_to(ROOT).as_posix()}`" in text
        for figure in re.findall(r"`figures/(\w+)\.png`", text):
            assert any(f'"{figure}"' in path.read_text(encoding="utf-8") for path in scripts())
    tables = [
        [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
        for text in ((ROOT / n).read_text("utf-8") for n in ("README.md", "README.zh-CN.md"))
    ]
    assert tables[0] == tables[1]


def test_the_two_readmes_are_built_alike():
    """Headings by level, and code blocks word for word, which are the same in any language."""
    english, chinese = ((ROOT / n).read_text("utf-8") for n in ("README.md", "README.zh-CN.md"))
    assert re.findall(r"^```.*?^```", english, re.M | re.S) == re.findall(
        r"^```.*?^```", chinese, re.M | re.S
    )
    levels = [re.findall(r"^#+(?= )", text, re.M) for text in (english, chinese)]
    assert levels[0] == levels[1]
    assert sorted(re.findall(r"`[\w./]+ [^`]*--\w[^`]*`", english)) == sorted(
        re.findall(r"`[\w./]+ [^`]*--\w[^`]*`", chinese)
    )


@pytest.mark.parametrize("name, lang", [("README.md", "en"), ("README.zh-CN.md", "zh")])
def test_the_map_names_every_part_with_its_figures(name, lang):
    row = re.compile(
        r"^\| (?:L2|W1D2) (.+) \| `(.+\.py)` (\d+): (.+?) \| (.*?) *\|(?:.*\|)?$", re.M
    )
    rows, figures = row.findall((ROOT / name).read_text(encoding="utf-8")), set()
    parts = []
    for path in scripts():
        source = path.read_text(encoding="utf-8")
        titles = re.findall(r'^def part(\d+)_\w+\(show\):\n    """(.+?)(?:"""|\n)', source, re.M)
        for number, title in titles:
            section, chinese, english = title.split(" · ", 2)
            said = english if lang == "en" else chinese
            parts.append((path.relative_to(ROOT).as_posix(), number, said))
        figures |= set(re.findall(r'"((?:\d\d|w1d\w*?)_[a-z_]+)"', source))
    assert [(script, number, title) for _, script, number, title, _ in rows] == parts
    in_map = [figure for row in rows for figure in re.findall(r"figures/(\w+)\.png", row[-1])]
    assert sorted(in_map) == sorted(figures)


def test_the_citation_file_says_what_the_readme_says():
    title = re.search(r'^title: "(.+)"$', (ROOT / "CITATION.cff").read_text("utf-8"), re.M)[1]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert readme.startswith(f"# {title}\n")
    assert f"*{title}." in readme
