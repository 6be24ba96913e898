"""What must not be in the tree: a machine's own paths, registry hosts, words that say nothing."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

# Spelled in pieces, so that this file does not find itself.
MACHINE_PATHS = tuple(f"/{name}/" for name in ("home", "root", "Users", "work", "opt/pypi"))
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("debian", "org"),
        ("ubuntu", "com"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("pytorch", "org/whl"),
    )
)
WORDS_WE_AVOID = ("manager", "helper", "utils", "util", "handler", "slave")
NOT_TEXT = {".png", ".jpg", ".gif", ".ico", ".gz", ".zst", ".woff2", ".parquet"}


@pytest.fixture(scope="module")
def texts(root: Path, files: list[Path]) -> dict[Path, str]:
    """Every text file of the tree."""
    return {
        path: (root / path).read_text(encoding="utf-8")
        for path in files
        if path.suffix not in NOT_TEXT
    }


def lines_with(texts: dict[Path, str], words: tuple[str, ...]) -> list[str]:
    """Every line that holds one of `words` where no path or name goes on before it."""
    pattern = re.compile(r"(?<![\w.$}>)-])(?:" + "|".join(map(re.escape, words)) + ")")
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_machine_is_special(texts: dict[Path, str]) -> None:
    """No file names an absolute path of somebody's machine."""
    assert lines_with(texts, MACHINE_PATHS) == []


def test_no_registry_is_named(texts: dict[Path, str]) -> None:
    """No file names a package registry: pip and apt know theirs, and a mirror must do as well."""
    found = [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if any(host in line for host in REGISTRY_HOSTS)
    ]

    assert found == []


def test_a_machine_path_is_seen() -> None:
    """The search finds a path on its own and leaves the middle of a longer one alone."""
    one, two = Path("one"), Path("two")
    text = {one: f'open("{MACHINE_PATHS[0]}x")', two: f"a$HOME{MACHINE_PATHS[0]}x"}

    assert [line.partition(":")[0] for line in lines_with(text, MACHINE_PATHS)] == ["one"]


def named(path: Path, tree: ast.Module) -> Iterator[str]:
    """The names of a module and of the classes in it, as words."""
    yield from path.stem.split("_")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (word.lower() for word in re.findall(r"[A-Z]?[a-z]+", node.name))


def test_names_say_what_a_thing_is(trees: dict[Path, ast.Module]) -> None:
    """No module or class is named with a word that could name anything."""
    vague = {
        f"{path}: {word}"
        for path, tree in trees.items()
        for word in named(path, tree)
        if word in WORDS_WE_AVOID
    }

    assert vague == set()


def test_every_file_opens_with_its_rules(trees: dict[Path, ast.Module]) -> None:
    """Each Python file that holds code says first what belongs in it."""
    silent = [
        str(path) for path, tree in trees.items() if tree.body and ast.get_docstring(tree) is None
    ]

    assert silent == []


def test_tests_are_never_a_package(files: list[Path]) -> None:
    """The test tree has no __init__.py: it is imported by path and never installed."""
    assert [path for path in files if path.parts[0] == "tests" and path.name == "__init__.py"] == []


def test_every_test_reads_as_a_specification(trees: dict[Path, ast.Module]) -> None:
    """Each test has a docstring of one sentence that says what must hold."""
    bare = [
        f"{path}::{node.name}"
        for path, tree in trees.items()
        if path.parts[0] == "tests"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_")
        and not (ast.get_docstring(node) or "").strip().endswith(".")
    ]

    assert bare == []
