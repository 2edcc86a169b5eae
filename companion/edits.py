"""`--set NAME=VALUE`: a script with its constants edited for one run, its file left as it is."""

import ast
from companion.ledger import constants


def chosen(pairs, namespace):
    """["DECAY=0.9", …] → {"DECAY": 0.9, …}; ValueError, in one line, for what does not fit."""
    names, values = constants(namespace), {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if name not in names:
            raise ValueError(f"there is no constant {name or pair!r}; there is {', '.join(names)}")
        now = namespace[name]
        try:
            value = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = text
        if isinstance(now, str) and not isinstance(value, str):
            value = text  # 1984 is a word too
        if not equals or not fits(value, now):
            raise ValueError(f"{name} takes {kind(now)} like {now!r}, got {text!r}")
        values[name] = value
    return values


def fits(value, model):
    """Is it of the model's type? A whole number will do for a float; lists go element by element"""
    if isinstance(model, list | tuple):
        same = type(value) is type(model)
        return same and all(any(fits(one, m) for m in model) for one in value)
    return type(value) is type(model) or (type(value) is int and type(model) is float)


def kind(value):
    """What to call a value of this type in a message."""
    words = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}
    return words.get(type(value), f"a {type(value).__name__}")


def edit(script, namespace, values):
    """Run the script's file again, to the letter, each chosen constant set after its own line.

    Whatever is computed from the constants, further constants, tables, default arguments, is
    computed from the chosen values, as if the file had been edited.
    """
    body = ast.parse(script.read_text(encoding="utf-8")).body
    lines = {name: n for n, line in enumerate(body) for name in assigned(line) if name in values}
    for n, line in enumerate(body):
        if isinstance(line, ast.If):
            continue  # if __name__ == "__main__": that is where we come from
        exec(compile(ast.Module([line], []), script, "exec", dont_inherit=True), namespace)
        namespace.update({name: values[name] for name in lines if lines[name] == n})


def assigned(line):
    """The names that a statement at the top of a script assigns: two in `A, B = 1, 2`."""
    if not isinstance(line, ast.Assign | ast.AugAssign):
        return set()
    return {
        n.id for n in ast.walk(line) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
