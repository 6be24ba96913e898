"""What others build on is pinned: a name goes, or a new one comes, only where this file says so."""

import ast
from pathlib import Path

import pytest

NAMES = {
    "statemachine": {
        "AnyEvent",
        "BadLayout",
        "BadName",
        "BadPolicy",
        "Breach",
        "ChangeoverError",
        "CheckedFold",
        "CodecError",
        "Decision",
        "Difference",
        "Event",
        "EventCorrupt",
        "EventTooLarge",
        "Fact",
        "FleetState",
        "History",
        "INVARIANTS",
        "Incident",
        "InvariantBroken",
        "Job",
        "Layout",
        "Node",
        "NodeState",
        "NotInHistory",
        "Phase",
        "Policy",
        "Recorded",
        "SchemaTooNew",
        "Settled",
        "Transition",
        "UnknownEvent",
        "UsageError",
        "Warmth",
        "check",
        "check_step",
        "decide",
        "decode_event",
        "decode_recorded",
        "diff",
        "encode_event",
        "encode_recorded",
        "evolve",
        "fold",
        "incidents",
        "knobs_of",
        "line_of_entry",
        "lines_of_difference",
        "lines_of_state",
        "next_deadline",
        "policy_of",
        "settle",
        "state_at",
    },
    "worker": {"Run", "Step", "join"},
}
MEMBERS = {
    "Run": {"coordinate", "group", "register", "size", "steps"},
    "Step": {"record", "vote"},
}
FURTHER = {
    "Run": {"checkpoint", "outside", "per_role", "present", "resume_with"},
    "Step": set[str](),
}
"""What only some loops need: stages that differ, replicas that come and go, side effects, and a
checkpoint to begin with."""
LOOP_NAMES_MAX = 5
"""How many names a researcher can be asked to learn."""


def declared(tree: ast.Module) -> set[str]:
    """The names in `__all__` of a module."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return set(ast.literal_eval(value))
            case _:
                pass
    return set()


def methods(tree: ast.Module, name: str) -> set[str]:
    """The public methods of a class."""
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    assert found, f"class {name} is gone"
    return {
        node.name
        for node in found[0].body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
    }


@pytest.mark.parametrize("package", sorted(NAMES))
def test_a_facade_shows_its_pinned_names(trees: dict[Path, ast.Module], package: str) -> None:
    """A package that others import from shows exactly the names that are pinned for it."""
    assert declared(trees[Path(package, "__init__.py")]) == NAMES[package]


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_the_loop_api_has_its_pinned_methods(trees: dict[Path, ast.Module], name: str) -> None:
    """What a training loop may call on a run and on a step is exactly what is pinned."""
    homes = {
        "Run": {"worker/loop.py": "Run", "worker/place.py": "Place"},
        "Step": {"worker/step.py": "Step"},
    }[name]
    found = {method for home, kind in homes.items() for method in methods(trees[Path(home)], kind)}

    assert found == MEMBERS[name] | FURTHER[name]


def test_the_loop_api_is_small() -> None:
    """A training loop needs five names at most."""
    assert len(NAMES["worker"]) <= LOOP_NAMES_MAX


def test_the_readme_shows_the_loop_api(root: Path) -> None:
    """README's loop calls every method that each loop needs, and none besides."""
    text = (root / "README.md").read_text(encoding="utf-8")
    loop = ast.parse(text.partition("```python\n")[2].partition("```")[0])
    called = {
        (node.value.id, node.attr)
        for node in ast.walk(loop)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }

    assert {attribute for name, attribute in called if name == "run"} == MEMBERS["Run"] | {"seed"}
    assert {attribute for name, attribute in called if name == "step"} <= MEMBERS["Step"] | {
        "index"
    }
    assert ("step", "vote") in called
