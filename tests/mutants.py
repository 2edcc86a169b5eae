"""Which small changes of a script do its tests not notice? Each in a fork: not on Windows.

python -m pytest -s -m "not slow" -p tests.mutants tests/test_03_attention.py
"""

import ast
import importlib
import inspect
import os
import resource

from _pytest.runner import runtestprotocol

SWAPS = "Add Sub,Mult Div,Pow Mult,FloorDiv Div,Mod Mult,MatMult Mult,Lt LtE,Gt GtE,Eq NotEq,"
SWAPS += "In NotIn,Is IsNot,And Or,BitOr BitAnd,RShift LShift,max min,amax amin,argmax argmin,"
SWAPS += "all any,sum mean,sin cos,triu tril,ceil floor"
SWAPS = dict(pair for a, b in map(str.split, SWAPS.split(",")) for pair in ((b, a), (a, b)))
MODULES = ("torch", "np", "nn", "F", "math")  # x.abs() may become x, but torch.abs(x) not torch


def changes(node):  # what may stand in its place
    def new(**fields):
        return type(node)(**dict(ast.iter_fields(node)) | fields)

    def other(operator):
        return getattr(ast, SWAPS[type(operator).__name__])()

    match node:
        case ast.Name(id=x) | ast.Attribute(attr=x) if x in SWAPS:
            yield new(**{"id" if isinstance(node, ast.Name) else "attr": SWAPS[x]})
        case ast.Constant(value=bool(x)):
            yield new(value=not x)
        case ast.Constant(value=int(x) | float(x)):
            yield from (new(value=x + 1), new(value=x - 1 if isinstance(x, int) else 2 * x))
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op):
            yield new(op=other(op))
        case ast.Compare(ops=ops):
            yield from (new(ops=[*ops[:n], other(op), *ops[n + 1 :]]) for n, op in enumerate(ops))
        case ast.UnaryOp(operand=x):
            yield x
        case ast.If(test=x) | ast.IfExp(test=x) | ast.While(test=x):
            yield new(test=ast.UnaryOp(ast.Not(), x))
        case ast.Call(func=f, args=x):
            yield from [new(args=[x[1], x[0], *x[2:]])] if len(x) > 1 else []
            if isinstance(f, ast.Attribute) and getattr(f.value, "id", "") not in MODULES:
                yield f.value
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield ast.Pass()


def pytest_runtestloop(session):
    """On each mutant, in place of one run: what has been collected, up to the first red test."""
    module = importlib.import_module(session.items[0].path.stem.removeprefix("test_"))
    tree, outcomes = ast.parse(inspect.getsource(module)), []

    def survives():
        if child := os.fork():
            return os.waitpid(child, 0)[1] == 0
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))  # seconds, for a loop without end
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        try:
            exec(compile(ast.fix_missing_locations(tree), "mutant", "exec"), vars(module))
            tests = zip(session.items, [*session.items[1:], None])
            runs = (runtestprotocol(test, log=False, nextitem=after) for test, after in tests)
            os._exit(any(report.failed for reports in runs for report in reports))
        finally:
            os._exit(1)

    assert survives(), "unchanged, all have to be green"
    for name, node in [(f.name, n) for f in tree.body if hasattr(f, "name") for n in ast.walk(f)]:
        kept, before, line = (type(node), vars(node)), ast.unparse(node), getattr(node, "lineno", 0)
        for new in (new for new in changes(node) if ast.unparse(new) != before):
            node.__class__, node.__dict__ = type(new), vars(new)
            outcomes.append(survives())
            if outcomes[-1]:
                print(f"{name}, line {line}: {before}  →  {ast.unparse(node)}")
            node.__class__, node.__dict__ = kept
    print(f"{len(outcomes)} changes, {sum(outcomes)} not noticed")
    return True
