"""Nothing runs that was not meant to: exact pins, checkpoints as numbers, one known download."""

import ast
import re
from companion import ROOT
from functools import cache

import pytest

SOURCES = [
    path
    for folder in ("", "companion", "code", "benchmarks", "tests")
    for path in sorted((ROOT / folder).glob("*.py"))
]
RUN = [path for path in SOURCES if path.parent.name != "tests"]  # what a reader runs


@cache
def calls(path):
    """Every call in the file as (dotted name, node), e.g. ("torch.load", …)."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]


def test_every_requirement_is_pinned_exactly():
    files = [*ROOT.glob("requirements*.txt"), *ROOT.glob("*/requirements*.txt")]
    assert len(files) >= 2
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            pinned = re.fullmatch(r"[\w.-]+(\[\w+\])?==\d[\w.]*", line.partition("#")[0].strip())
            other_file = re.fullmatch(r"-r [\w./-]+\.txt", line)
            assert not line or line.startswith("#") or pinned or other_file, f"{path.name}: {line}"


def test_checkpoints_are_loaded_as_numbers_only():
    found = 0
    for path in (p for p in SOURCES if "torch.load" in p.read_text(encoding="utf-8")):
        for name, node in calls(path):
            if name == "torch.load":
                only = {k.arg: ast.unparse(k.value) for k in node.keywords}.get("weights_only")
                assert only == "True", f"{path.name}:{node.lineno}"
                found += 1
    assert found, "the cache of script 06"


# Ways to run what a file or the network holds; open(…), json and tomllib cannot.
RUNS_DATA = re.compile(
    r"(eval|exec|compile|__import__|(?!re\.)\w+\.compile"
    r"|(pickle|cPickle|dill|cloudpickle|marshal|shelve|joblib|yaml)\.(loads?|open|Unpickler|full_load"
    r"|unsafe_load)|(os|subprocess)\.(system|popen|getoutput|getstatusoutput)|runpy\.\w+"
    r"|torch\.(package|jit\.load|hub)\b.*|numpy\.load|np\.load|\w+\.from_pretrained)"
)
ALLOWED = {("edits.py", "exec"), ("edits.py", "compile")}  # the script's own lines, for --set


@pytest.mark.parametrize("path", RUN, ids=lambda p: p.name)
def test_no_data_is_executed(path):
    for name, node in calls(path):
        where = f"{path.name}:{node.lineno}: {name}"
        assert not RUNS_DATA.fullmatch(name) or (path.name, name) in ALLOWED, where
        shell = any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords)
        assert not shell, where


NETWORK = re.compile(r"(.*\.)?(urlopen|urlretrieve|create_connection|HTTPS?Connection|Session)")


def test_the_one_download_is_verified():
    """One place opens an address, one function calls it, and it holds the bytes against a hash."""
    found = [
        (path.name, name) for path in RUN for name, _ in calls(path) if NETWORK.fullmatch(name)
    ]
    assert found == [("w1d2_tokenizers.py", "urllib.request.urlopen")]
    modules = {"requests", "httpx", "aiohttp", "ftplib", "socket", "urllib3", "huggingface_hub"}
    for path in RUN:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not modules & {name.split(".")[0] for name in names}, path.name
    source = (ROOT / "code" / "w1d2_tokenizers.py").read_text(encoding="utf-8")
    functions = {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)}
    users = [n for n, f in functions.items() if re.search(r"\bdownload\(", ast.unparse(f))]
    assert sorted(users) == ["default_corpus", "download"]
    assert "genuine(data)" in ast.unparse(functions["default_corpus"])
    assert "sha256(data).hexdigest() == CORPUS_SHA256" in ast.unparse(functions["genuine"])
    assert re.search(r'^CORPUS_SHA256 = "[0-9a-f]{64}"$', source, re.M)
