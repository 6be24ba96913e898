"""What `--json` prints, field by field, beside docs/reference/json.md: neither has what the other
lacks, and no verb with `--json` is left out.

Programs are written against that page, so it is compared with what verbs print over a real store.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import pytest
from msgspec import Struct

from controlplane.acting import Acted
from controlplane.archiving import Archived
from controlplane.cli import VERBS
from controlplane.demo.outcome import (
    BaselineOutcome,
    ClaimOutcome,
    IncidentOutcome,
    Outcome,
    PaceOutcome,
)
from controlplane.demo.steps import Pace
from controlplane.health.sweeping import SweepReport, Swept
from statemachine.baselines import Usual
from statemachine.ids import NodeId
from statemachine.state import FleetState
from tests.integration.controlplane.test_operating import DEMO, ROOT, Run, offline, running

if TYPE_CHECKING:
    from controlplane.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd

FREE = {
    "nodes_by_state",
    "kinds",
    "newer_events",
    "axes",
    "knobs",
    "phases_ms",
    "affected_groups",
    "rounds",
    "left_out",
    "outcomes",
    "event",
}
"""Fields whose keys are names of the fleet's, or counted things."""

SECTIONS = {
    "timeline, history": (["timeline", "LOG"], ["history"]),
    "replay": (["replay", "LOG"],),
    "status, at": (["status"], ["nodes"], ["at", "LOG", "56"], ["at", "LOG", "69"]),
    "diff": (["diff", "LOG", "30", "50"],),
    "explain": (["explain", "n1"], ["explain", "e2"]),
    "Acts, and `--dry-run`": (
        ["quarantine", "n4", "--dry-run"],
        ["policy", "set", "loss_grace_s=1"],
        ["policy", "shadow", "off"],
    ),
    "topology, policy, doctor": (
        ["topology", "show"],
        ["topology", "diff", "1", "2"],
        ["policy", "show"],
        ["policy", "diff", "loss_grace_s=2"],
        ["doctor"],
    ),
    "log": (
        ["log", "tail", "-n", "100"],
        ["log", "stats"],
        ["log", "verify", "LOG"],
        ["log", "verify", "etcd"],
    ),
    "sweep, baselines": (["baselines"],),
    "demo, init": (["init", "FOLDER"],),
}

OF_TYPES: dict[str, tuple[type[Struct], ...]] = {
    "log": (Archived,),
    "sweep, baselines": (Usual,),
    "demo, init": (
        Outcome,
        IncidentOutcome,
        PaceOutcome,
        Pace,
        BaselineOutcome,
        ClaimOutcome,
    ),
}
"""What is printed as it is, by verbs that take a machine or a minute."""


MADE: dict[str, tuple[SweepReport | Acted, ...]] = {
    "Acts, and `--dry-run`": (Acted(act="DecisionsPaused", position=None, state=FleetState()),),
    "sweep, baselines": (SweepReport(fleet="f", nodes=[Swept(node=NodeId("n0"))], left_out={}),),
}
"""What verbs print that wait for others."""


def keys_of(value: Any) -> set[str]:
    """Every field of what was printed, at any depth."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    found = set(value)
    for name, inner in value.items():
        if name == "jobs" and isinstance(inner, dict):
            found |= keys_of(list(inner.values()))
        elif name not in FREE and not (name == "groups" and isinstance(inner, dict)):
            found |= keys_of(inner)
        elif name == "phases_ms":
            found |= set(inner)
    return found


def documented() -> dict[str, str]:
    """The sections of the page."""
    text = (ROOT / "docs" / "reference" / "json.md").read_text("utf-8")
    return dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


def fields_in(text: str) -> set[str]:
    """What stands in the quotes of code: fields, values, and verbs."""
    return set(re.findall(r"`(\w+)(?:\[\])?`", text))


def paths(name: str, command: click.Command) -> Iterator[str]:
    """A verb that takes `--json`, or those of its group."""
    if isinstance(command, click.Group):
        for inner, found in command.commands.items():
            yield from paths(f"{name} {inner}", found)
    elif any(each.name == "as_json" for each in command.params):
        yield name


@pytest.fixture(scope="module")
def still(etcd: EtcdServer) -> Run:
    """The log of a demo in the store; nobody leads."""
    return running(etcd, f"json-{os.getpid()}")


@pytest.mark.parametrize("section", SECTIONS)
def test_what_json_prints_is_documented(
    still: Run, section: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each field stands in its section of docs/reference/json.md, and each that does is printed."""
    parts = documented()
    folder = str(tmp_path_factory.getbasetemp() / "json-pki")
    places = {"LOG": str(DEMO), "FOLDER": folder}
    printed: set[str] = set()
    for words in SECTIONS[section]:
        asked = [places.get(word, word) for word in words]
        alone = "LOG" in words and words[0] != "log"
        done = offline(*asked, "--json") if alone else still(*asked, "--json")
        assert done.returncode in (0, 1), (words, done)
        for line in done.stdout.splitlines():
            value = json.loads(line)
            if words == ["baselines"]:  # by hardware and metric
                value = [each for metrics in value.values() for each in metrics.values()]
            printed |= keys_of(value)
    for kind in OF_TYPES.get(section, ()):
        printed |= set(kind.__struct_fields__)
    printed |= keys_of([each.as_values() for each in MADE.get(section, ())])

    known = fields_in(parts[section]) | fields_in(parts["Reading a log: all verbs"])
    assert printed - known == set(), "printed, and not documented"
    told = fields_in(re.sub(r"\((?:[^()]|\([^()]*\))*\)", " ", parts[section]))
    verbs = {word for path in VERBS for word in path.split()}
    assert told - printed - verbs == set(), "documented, and not printed"


def test_no_verb_with_json_is_left_out_of_the_page() -> None:
    """By its name, in the head or the text of a section."""
    page = " ".join(f"{head} {text}" for head, text in documented().items())
    with_json = [
        path
        for name, (module, attribute, _) in VERBS.items()
        for path in paths(name, getattr(importlib.import_module(module), attribute))
    ]
    assert len(with_json) > 25
    missing = [path for path in with_json if not re.search(rf"\b{path}\b", page)]

    assert missing == []
