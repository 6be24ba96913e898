"""What `diff` says of two states."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from statemachine import difference
from statemachine import events as e
from statemachine.codec import decode_recorded
from statemachine.difference import NOT_SHOWN, FieldChange, diff, lines_of_difference
from statemachine.evolve import fold
from statemachine.history import History
from statemachine.ids import Incarnation, NodeId, Position
from statemachine.state import FleetState, Job, Node, Sweep

RECORDED = sorted((Path(__file__).parents[2] / "history").glob("*.events.jsonl"))


def folded(*events: e.AnyEvent) -> list[FleetState]:
    """The states that these events give, one second apart, the empty one first."""
    entries = [
        e.Recorded(position=Position(i), at_ms=1000 * i, writer="w", event=event)
        for i, event in enumerate(events, 1)
    ]
    return [fold(FleetState(), entries[:i]) for i in range(len(entries) + 1)]


def join(name: str) -> e.NodeJoined:
    """A node joins."""
    return e.NodeJoined(node=NodeId(name), incarnation=Incarnation(1), host="h")


def test_nothing_differs_from_itself() -> None:
    """A state compared with itself, or with an equal one, differs in nothing."""
    log = [decode_recorded(raw) for raw in RECORDED[0].read_bytes().splitlines()]
    state, again = fold(FleetState(), log), fold(FleetState(), log)

    assert diff(state, state).records == ()
    assert diff(state, again).records == ()


def test_a_node_that_joins_and_is_drained() -> None:
    """What appears is new, what changes is told field by field, before and after."""
    states = folded(
        join("n1"),
        e.DrainRequested(node=NodeId("n1"), by="ada"),
        e.DecisionsPaused(by="bob"),
        e.PolicyChanged(version=3, knobs={"shadow": True, "sweep": {"tolerance": 1.5}}, by="bob"),
    )

    assert lines_of_difference(diff(states[0], states[1])) == [
        "node n1: new",
        "node n1: incarnation: - -> 1",
        "node n1: state: - -> joining",
        "node n1: host: - -> h",
    ]
    assert lines_of_difference(diff(states[1], states[4])) == [
        "fleet: policy.shadow: - -> yes",
        "fleet: policy.sweep.tolerance: 1.1 -> 1.5",
        "fleet: policy_version: 0 -> 3",
        "fleet: paused_by: - -> bob",
        "node n1: wanted_out: - -> drain",
        "node n1: wanted_out_by: - -> ada",
    ]
    assert lines_of_difference(diff(states[1], states[0])) == ["node n1: gone"]


def test_a_transition_from_end_to_end() -> None:
    """Between before and after a swap, slots change hands by slot, and nodes their state."""
    log = [
        decode_recorded(raw)
        for path in RECORDED
        if "demo" in path.name
        for raw in path.read_bytes().splitlines()
    ]
    history = History(log)
    plan = next(
        r for r in log if isinstance(r.event, e.TransitionPlanned) and r.event.motive == "unplanned"
    )
    done = next(
        r for r in log if isinstance(r.event, e.TransitionFinished) and r.position > plan.position
    )
    assert isinstance(plan.event, e.TransitionPlanned)
    change = plan.event.changes[0]

    found = diff(history.state_at(plan.position), history.state_at(done.position))
    said = {(r.kind, r.name, f.field): (f.before, f.after) for r in found.records for f in r.fields}
    assert (found.from_position, found.to_position) == (plan.position, done.position)
    job = str(plan.event.job)
    assert said["job", job, f"holders[{change.slot}]"][1] == change.joiner
    assert said["job", job, "epoch"] == (str(plan.event.from_epoch), str(plan.event.from_epoch + 1))
    assert said["job", job, "pending"][0].startswith(f"t{plan.event.transition} unplanned")
    assert said["job", job, "pending"][1] == ""
    assert said["node", change.joiner, "state"] == ("standby", "active")


def test_no_step_of_a_log_is_without_words() -> None:
    """Whatever changes between two positions of a recorded log is said in words, none of them the
    bare form of a record.
    """
    for path in RECORDED:
        history = History(decode_recorded(raw) for raw in path.read_bytes().splitlines())
        for before, after in pairwise(history.states()):
            for line in lines_of_difference(diff(before, after)):
                assert "\n" not in line
                assert "(" not in line.partition(": ")[0]
                assert "HashTrie" not in line, line
                assert "Struct" not in line, line


def test_every_field_is_shown_or_left_out_by_name() -> None:
    """A field that is left out exists, so that a renamed one is not silently shown."""
    fields = {
        field for record in (FleetState, Job, Node, Sweep) for field in record.__struct_fields__
    }

    assert fields >= NOT_SHOWN


def test_a_diff_costs_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand nodes, those that two states share are not read: one that differs costs one."""
    before = folded(*(join(f"n{i}") for i in range(1000)))[-1]
    node = before.nodes[NodeId("n7")]
    after = replace(before, nodes=before.nodes.insert(node.node, replace(node, pid=7)))
    read: list[Any] = []
    fields = difference._fields

    def counted(old: Any, new: Any) -> Iterator[FieldChange]:
        read.append(new.node)
        return fields(old, new)

    monkeypatch.setattr(difference, "_fields", counted)

    assert [record.name for record in diff(before, after).records] == ["n7"]
    assert read == ["n7"]
