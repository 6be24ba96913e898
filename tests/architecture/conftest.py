"""What the architecture tests look at: this checkout, its files, their syntax trees.

These tests read the tree as text. They import nothing of ours, except where how a package loads is
the very question, and they hold for files that are not committed yet.
"""

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGES = ("statemachine", "controlplane", "worker", "simulator")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout that these tests are part of."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def packages() -> tuple[str, ...]:
    """The four import packages that this repository ships."""
    return PACKAGES


@pytest.fixture(scope="session")
def files(root: Path) -> list[Path]:
    """Every file that git has or would take, as paths relative to the checkout."""
    if shutil.which("git") is None or not (root / ".git").exists():
        pytest.skip("needs a git checkout: the list of files comes from git ls-files")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    return sorted(Path(name) for name in set(listed) if name and (root / name).is_file())


@pytest.fixture(scope="session")
def trees(root: Path, files: list[Path]) -> dict[Path, ast.Module]:
    """The syntax tree of each Python file."""
    return {
        path: ast.parse((root / path).read_text(encoding="utf-8"), filename=str(path))
        for path in files
        if path.suffix == ".py"
    }
