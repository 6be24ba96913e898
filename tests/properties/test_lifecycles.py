"""The tables are the truth: no node, transition or rehearsal moves but along them.

The logs are those of the fold laws, in which everything may be said, in any order, by whoever is
dead; and those of all stories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

from statemachine import events as e
from statemachine.evolve import evolve
from statemachine.ids import JobId, NodeId, Role
from statemachine.lifecycle import (
    NODE_TABLE,
    TRANSITION_TABLE,
    WARMUP_TABLE,
    NodeState,
    Phase,
    Warmth,
)
from statemachine.state import FleetState, Node
from tests.datadriven.stage import Stage
from tests.datadriven.test_scripts import SCRIPTS, play
from tests.properties.test_fold_laws import SEEDS, log_of

NODE_MOVES_MIN = 40
"""Different moves of nodes that the logs are known to hold, of the 65 that the table has."""

WARMUP_MOVES_MIN = 7
"""Likewise of rehearsals, of 9."""

Step = tuple[str, FleetState, e.Recorded, FleetState]


@cache
def logs() -> dict[str, list[e.Recorded]]:
    """Every log, by what makes it again."""
    found = {f"seed {seed}": log_of(seed).log for seed in SEEDS}
    for path in SCRIPTS:
        stage = Stage()
        play(stage, path)
        found[path.name] = stage.log
    return found


def steps() -> Iterator[Step]:
    """Every event of every log between the states before and after it, and where that is."""
    for name, log in logs().items():
        state = FleetState()
        for entry in log:
            before, state = state, evolve(state, entry)
            yield f"{name}, position {entry.position}: {entry.event}", before, entry, state


def node_moves(
    before: FleetState, after: FleetState
) -> Iterator[tuple[NodeId, NodeState, NodeState]]:
    """Nodes whose state an event changed."""
    for name in sorted(after.nodes):
        old, new = before.nodes.get(name), after.nodes[name]
        if old is not None and old.state is not new.state:
            yield name, old.state, new.state


def warmths_of(node: Node | None) -> dict[tuple[JobId, Role], Warmth]:
    """How far a node has rehearsed each role."""
    return {(r.job, r.role): r.warmth for r in node.rehearsals} if node is not None else {}


def test_a_node_moves_along_its_table_only() -> None:
    """A state changes by an event, and to a state, that stand together in the table; and a new
    life begins at the beginning, whether anybody missed the one before or not.
    """
    moves: Counter[tuple[NodeState, NodeState, str]] = Counter()
    for where, before, entry, after in steps():
        kind = type(entry.event)
        for name, old, new in node_moves(before, after):
            if before.nodes[name].incarnation != after.nodes[name].incarnation:
                assert (kind, new) == (e.NodeJoined, NodeState.JOINING), where
                continue
            assert NODE_TABLE[old].get(kind) is new, f"{name} {old} -> {new}; {where}"
            moves[old, new, kind.__name__] += 1
        for name in [name for name in after.nodes if name not in before.nodes]:
            assert (kind, after.nodes[name].state) == (e.NodeJoined, NodeState.JOINING), where

    print(f"{len(moves)} of {sum(map(len, NODE_TABLE.values()))} moves")
    assert len(moves) >= NODE_MOVES_MIN, sorted(moves)


def test_a_transition_moves_along_its_table_only() -> None:
    """It begins by a plan, and each phase follows from the one before by the table's event."""
    moves: set[tuple[Phase, type[e.Event]]] = set()
    for where, before, entry, after in steps():
        kind = type(entry.event)
        for name in after.jobs:
            job = before.jobs.get(name)
            old = job.pending if job is not None else None
            new = after.jobs[name].pending
            if old is new:
                continue
            if new is None:
                assert old is not None
                moves.add((old.phase, kind))
                ends = (Phase.FINISHED, Phase.ABORTED)
                assert TRANSITION_TABLE[old.phase].get(kind) in ends, where
            elif old is None or old.plan.transition != new.plan.transition:
                assert (kind, new.phase) == (e.TransitionPlanned, Phase.PREPARING), where
            elif old.phase is not new.phase:
                moves.add((old.phase, kind))
                assert TRANSITION_TABLE[old.phase].get(kind) is new.phase, where

    assert moves >= {(phase, kind) for phase in Phase for kind in TRANSITION_TABLE[phase]}


def test_a_rehearsal_moves_along_its_table_only() -> None:
    """How warm a role of a node is changes by the table, as long as it is the same life."""
    moves: set[tuple[Warmth, type[e.Event]]] = set()
    for where, before, entry, after in steps():
        kind = type(entry.event)
        for name in after.nodes:
            was, now = before.nodes.get(name), after.nodes[name]
            if was is None or was is now or was.incarnation != now.incarnation:
                continue
            old = warmths_of(was)
            for role, warmth in warmths_of(now).items():
                begun = old.get(role, Warmth.NONE)
                if begun is not warmth:
                    moves.add((begun, kind))
                    assert WARMUP_TABLE[begun].get(kind) is warmth, f"{name} {role}; {where}"

    assert len(moves) >= WARMUP_MOVES_MIN, moves


def test_incumbents_keep_their_slots() -> None:
    """Who holds a slot that a change does not name goes on holding it: nobody is moved about."""
    kept = 0
    for where, before, entry, after in steps():
        if not isinstance(entry.event, e.TransitionCommitted):
            continue
        old, new = before.jobs[entry.event.job], after.jobs[entry.event.job]
        assert old.pending is not None
        named = {change.slot for change in old.pending.plan.changes}
        for slot in old.holders:
            if slot not in named and slot not in old.vacant and slot not in new.idle:
                kept += 1
                assert new.holders.get(slot) == old.holders[slot], f"slot {slot}; {where}"

    assert kept > 100
