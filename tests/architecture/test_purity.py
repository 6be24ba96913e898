"""The state machine is pure: what an import contract cannot see is read off the syntax tree.

Python's hidden clocks are `id`, `hash` of a string, and the order in which a set is walked: all
three change from one process to the next, and with them a replay.
"""

import ast
from pathlib import Path

import pytest

# What the core may build on. Anything else, even a harmless module, is added here by intent.
MAY_IMPORT = {
    "__future__",
    "abc",
    "array",
    "bisect",
    "collections",
    "dataclasses",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "msgspec",
    "operator",
    "re",
    "rpds",
    "statemachine",
    "statistics",
    "string",
    "types",
    "typing",
    "zlib",
}
MAY_NOT_CALL = {
    "__import__",
    "breakpoint",
    "compile",
    "eval",
    "exec",
    "globals",
    "hash",
    "id",
    "input",
    "open",
    "print",
    "vars",
}
ORDER_IS_LOST_IN = {"set", "frozenset"}
ORDER_IS_TAKEN_BY = {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "next"}


def called(node: ast.AST) -> str:
    """The bare name that a call calls, or an empty string."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    return ""


def unordered(node: ast.AST) -> bool:
    """Whether an expression is a set where it stands."""
    return isinstance(node, ast.Set | ast.SetComp) or called(node) in ORDER_IS_LOST_IN


def impurities(tree: ast.Module) -> list[str]:
    """Name each impure construct of a module, with its line."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                found += [
                    (node.lineno, f"import {alias.name}")
                    for alias in node.names
                    if alias.name.partition(".")[0] not in MAY_IMPORT
                ]
            case ast.ImportFrom(module=module):
                if (module or "").partition(".")[0] not in MAY_IMPORT:
                    found.append((node.lineno, f"from {module} import"))
            case ast.Call() if called(node) in MAY_NOT_CALL:
                found.append((node.lineno, f"{called(node)}()"))
            case ast.Call() if called(node) in ORDER_IS_TAKEN_BY:
                if any(unordered(argument) for argument in node.args):
                    found.append((node.lineno, f"{called(node)}() of a set"))
            case ast.For() | ast.comprehension() if unordered(node.iter):
                found.append((node.iter.lineno, "walks a set"))
            case ast.Global():
                found.append((node.lineno, "global"))
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                found.append((node.lineno, "async"))
            case _:
                pass
    return [f"line {line}: {what}" for line, what in sorted(found)]


def test_the_core_is_pure(trees: dict[Path, ast.Module]) -> None:
    """No module of the state machine does I/O, awaits, or depends on the order of a set."""
    found = {
        str(path): impurities(tree)
        for path, tree in trees.items()
        if path.parts[0] == "statemachine"
    }

    assert found
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from os import environ",
        "print(1)",
        "key = hash('n7')",
        "for node in {'n7', 'n8'}: pass",
        "first = next(iter(set(nodes)))",
        "names = [node for node in frozenset(nodes)]",
        "def f():\n    global x\n    x = 1",
        "async def f(): pass",
    ],
)
def test_an_impurity_is_seen(text: str) -> None:
    """The reader of syntax trees finds each kind of impurity it is meant to find."""
    assert len(impurities(ast.parse(text))) >= 1


@pytest.mark.parametrize(
    "text", ["for node in sorted({'n7', 'n8'}): pass", "import msgspec", "state.open(1)"]
)
def test_pure_code_is_left_alone(text: str) -> None:
    """What is pure is not reported."""
    assert impurities(ast.parse(text)) == []
