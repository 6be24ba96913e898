"""Documents are part of the program: what they name exists, and what they promise runs."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TARGET = re.compile(r"^([a-z]+):.*## ", re.MULTILINE)
MAKE = re.compile(r"(?:^\s*|`)make ([a-z]+)\b", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE_PATH = re.compile(
    r"`((?:statemachine|controlplane|worker|simulator|tests|examples|benchmarks|docs)/[\w./-]*)`"
)


@pytest.fixture(scope="module")
def documents(root: Path, files: list[Path]) -> dict[Path, str]:
    """Every Markdown file of the tree."""
    return {
        path: (root / path).read_text(encoding="utf-8") for path in files if path.suffix == ".md"
    }


@pytest.fixture(scope="module")
def targets(root: Path) -> set[str]:
    """The documented targets of the Makefile."""
    return set(TARGET.findall((root / "Makefile").read_text(encoding="utf-8")))


def not_planned(text: str) -> Iterator[str]:
    """The lines of a document, but those that say of themselves that they are planned."""
    return (line for line in text.splitlines() if "planned" not in line.lower())


def test_the_two_commands_of_the_readme_exist(
    documents: dict[Path, str], targets: set[str]
) -> None:
    """The first code block of README is `make env`, `make demo`, and the Makefile has both."""
    first = FENCE.search(documents[Path("README.md")])

    assert first is not None
    assert MAKE.findall(first.group()) == ["env", "demo"]
    assert {"env", "demo"} <= targets


def test_every_target_that_a_document_names_exists(
    documents: dict[Path, str], targets: set[str]
) -> None:
    """A document never names a make target that the Makefile lacks."""
    unknown = {
        f"{path}: make {name}"
        for path, text in documents.items()
        for name in MAKE.findall(text)
        if name not in targets
    }

    assert unknown == set()


def test_every_link_leads_somewhere(root: Path, documents: dict[Path, str]) -> None:
    """Each relative link of a document leads to a file of the tree."""
    dead = {
        f"{path}: {link}"
        for path, text in documents.items()
        for link in LINK.findall(FENCE.sub("", text))
        if "://" not in link and not (root / path.parent / link).exists()
    }

    assert dead == set()


def test_every_path_that_a_document_names_exists(root: Path, documents: dict[Path, str]) -> None:
    """A path in backticks exists, unless its line says that it is planned."""
    missing = {
        f"{path}: {name}"
        for path, text in documents.items()
        for line in not_planned(text)
        for name in CODE_PATH.findall(line)
        if not (root / name).exists()
    }

    assert missing == set()


def test_every_test_that_a_document_names_exists(
    root: Path, documents: dict[Path, str], files: list[Path]
) -> None:
    """A promise that names its proof is one only as long as the proof is there."""
    tests = "\n".join(
        (root / path).read_text(encoding="utf-8")
        for path in files
        if path.suffix == ".py" and path.parts[0] == "tests"
    )
    known = set(re.findall(r"def (test_\w+)\(", tests))
    named = {
        (path, name)
        for path, text in documents.items()
        for name in re.findall(r"`(test_\w+)`", text)
    }

    assert named
    assert {f"{path}: {name}" for path, name in named if name not in known} == set()


def test_every_target_is_documented(root: Path) -> None:
    """Each phony target of the Makefile has its line in `make help`."""
    text = (root / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)

    assert phony is not None
    assert set(phony.group(1).split()) == set(TARGET.findall(text))


def test_the_lifecycle_page_shows_the_tables(root: Path) -> None:
    """The diagrams in docs/internals are those that the tables of today give."""
    drawing = subprocess.run(
        [sys.executable, "docs/internals/draw.py", "--check"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )

    assert drawing.returncode == 0, drawing.stderr
