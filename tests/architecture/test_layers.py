"""Who may import whom: the contracts of pyproject.toml, and what they cannot say."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

TORCH_MAY_LIVE_IN = (
    "worker.device",
    "worker.groups",
    "worker.loop",
    "worker.probes",
    "worker.state",
    "worker.transfer",
    "worker.warmup",
)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts over `folder`, as `make contracts` does."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def imported(tree: ast.Module) -> Iterator[str]:
    """Every module that a file imports, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"relative import in line {node.lineno}"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    """The dotted name of a file of one of our packages."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within(module: str, parent: str) -> bool:
    """Whether `module` is `parent` or lies below it."""
    return module == parent or module.startswith(parent + ".")


def test_contracts_hold(root: Path) -> None:
    """Every layer contract is kept by the tree as it is."""
    outcome = lint_imports(root)

    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_contracts_catch_what_they_forbid(
    root: Path, packages: tuple[str, ...], tmp_path: Path
) -> None:
    """Each contract breaks in a copy of the tree in which somebody crossed its line."""
    shutil.copy(root / "pyproject.toml", tmp_path)
    for package in packages:
        shutil.copytree(root / package, tmp_path / package)
    crossings = {
        "statemachine/crossed.py": "import time\n",
        "controlplane/crossed.py": "import grpc\nimport torch\nimport simulator\n",
        "worker/crossed.py": "import controlplane.crossed\n",
        "simulator/crossed.py": "import asyncio\n",
    }
    for name, text in crossings.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    names = {contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]}

    outcome = lint_imports(tmp_path)

    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    broken = {name for name in names if f"{name} BROKEN" in outcome.stdout}
    assert broken == names, outcome.stdout


def test_the_event_log_stands_alone(trees: dict[Path, ast.Module]) -> None:
    """Importing the event log brings in nothing else of the control plane."""
    crossings = [
        f"{path}: {name}"
        for path, tree in trees.items()
        if path.parts[:2] == ("controlplane", "eventlog")
        for name in imported(tree)
        if within(name, "controlplane") and not within(name, "controlplane.eventlog")
        if name != "controlplane"
    ]

    assert crossings == []


def test_controlplane_init_is_empty(trees: dict[Path, ast.Module]) -> None:
    """The control plane's __init__ holds a docstring only, since importing the log runs it."""
    body = trees[Path("controlplane/__init__.py")].body

    assert len(body) == 1
    assert ast.get_docstring(trees[Path("controlplane/__init__.py")])


def test_torch_stays_where_tensors_are(trees: dict[Path, ast.Module]) -> None:
    """Within the worker, only the modules that hold tensors import torch."""
    strays = sorted(
        str(path)
        for path, tree in trees.items()
        if path.parts[0] == "worker"
        if not any(within(module_name(path), home) for home in TORCH_MAY_LIVE_IN)
        if any(within(name, "torch") for name in imported(tree))
    )

    assert strays == []


def test_etcd_is_spoken_by_files_named_for_it(trees: dict[Path, ast.Module]) -> None:
    """Only controlplane/eventlog/etcd*.py import gRPC and protobuf."""
    speakers = sorted(
        str(path)
        for path, tree in trees.items()
        if path.parts[0] in {"statemachine", "controlplane", "worker", "simulator"}
        if any(within(name, "grpc") or within(name, "google") for name in imported(tree))
        if not str(path).startswith("controlplane/eventlog/etcd")
    )

    assert speakers == []
