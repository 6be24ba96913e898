"""The four packages as an install: where they load from, who owns them, what they ship and need."""

import importlib.util
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def settings(root: Path) -> dict[str, Any]:
    """pyproject.toml, parsed."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def entries(text: str, opening: str, closing: str = "]") -> list[str]:
    """The lines of a TOML list, from the line that opens it to the one that closes it."""
    lines = text.splitlines()
    start = lines.index(opening) + 1
    return lines[start : start + [line.strip() for line in lines[start:]].index(closing)]


def test_all_four_load_from_one_parent(root: Path, packages: tuple[str, ...]) -> None:
    """Each package loads from this checkout, and not from a stranger with the same name."""
    code = "import importlib, sys; print(importlib.import_module(sys.argv[1]).__file__)"
    for package in packages:
        loaded = subprocess.run(
            [sys.executable, "-P", "-c", code, package],
            cwd="/",
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

        assert loaded == str(root / package / "__init__.py"), (
            f"'{package}' loads from {loaded}: another distribution owns that name."
            " Changeover wants a virtual environment of its own: make clean env"
        )


def test_each_package_has_one_owner(packages: tuple[str, ...]) -> None:
    """No other installed distribution claims one of our package names."""
    owners = packages_distributions()

    for package in packages:
        assert set(owners.get(package, ["changeover"])) == {"changeover"}, (
            f"'{package}' is owned by {owners[package]}: use a virtual environment of its own"
        )


def test_every_package_is_typed(root: Path, packages: tuple[str, ...]) -> None:
    """Each package tells type checkers that its annotations are meant."""
    assert [name for name in packages if not (root / name / "py.typed").is_file()] == []


def test_every_folder_with_code_is_a_package(files: list[Path], packages: tuple[str, ...]) -> None:
    """A folder without __init__.py would be missing from the installed distribution."""
    folders = {path.parent for path in files if path.suffix == ".py" and path.parts[0] in packages}
    bare = sorted(str(folder) for folder in folders if folder / "__init__.py" not in files)

    assert bare == []


def test_only_the_worker_needs_torch(settings: dict[str, Any]) -> None:
    """Log tools, simulation and embedding install without torch, numpy and NVML."""
    needed = " ".join(settings["project"]["dependencies"])

    assert not any(name in needed for name in ("torch", "numpy", "nvidia"))
    assert any(
        name.startswith("torch") for name in settings["project"]["optional-dependencies"]["worker"]
    )


@pytest.mark.parametrize("module", ["statemachine", "controlplane.cli", "worker", "simulator"])
def test_importing_it_does_not_import_torch(root: Path, module: str) -> None:
    """The command line and the packages themselves load without torch."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not written yet")
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    outcome = subprocess.run(
        [sys.executable, "-c", code], cwd=root, check=False, capture_output=True, text=True
    )

    assert outcome.returncode == 0, outcome.stderr or f"importing {module} imported torch"


@pytest.mark.parametrize("opening", ["dependencies = [", "worker = [", "dev = [", "ignore = ["])
def test_every_choice_is_justified(root: Path, opening: str) -> None:
    """Each dependency and each ruff rule that is off says why, beside it."""
    listed = entries((root / "pyproject.toml").read_text(encoding="utf-8"), opening)

    assert listed
    assert [line for line in listed if "  # " not in line and ", # " not in line] == []


def test_every_dependency_is_pinned(root: Path, settings: dict[str, Any]) -> None:
    """constraints.txt pins each direct dependency, so that a fresh machine gets what we run."""
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    extras = settings["project"]["optional-dependencies"]
    asked = settings["project"]["dependencies"] + extras["worker"] + extras["dev"]
    names = {text.partition(">=")[0].partition("[")[0].lower() for text in asked}

    assert names - pinned == set()
