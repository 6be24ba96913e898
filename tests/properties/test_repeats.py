"""Delivered twice, or too late: what was said already says nothing more."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from statemachine import events as e
from statemachine.evolve import evolve
from statemachine.ids import NodeId, Position, TransitionId
from statemachine.state import FleetState
from tests.properties.test_fold_laws import SEEDS, log_of

ANSWERS = (e.TransitionPrepared, e.TransitionApplied)
"""Acknowledgements: what a member may say again if it does not know that it was heard."""

REPEATED = (
    *ANSWERS,
    e.TransitionRefused,
    e.WarmupPassed,
    e.SweepRoundFinished,
    e.NodeLeft,
    e.NodeLost,
    e.GroupBroken,
)

ACTS = (
    e.DrainRequested,
    e.SwitchoverRequested,
    e.QuarantineRequested,
    e.ReleaseRequested,
    e.SweepAsked,
    e.DecisionsPaused,
    e.DecisionsResumed,
)
"""What people want: nobody counts how often it was said, only when it was said last."""


def unplaced(state: FleetState) -> FleetState:
    """A state without when it was reached."""
    return replace(state, position=Position(0), at_ms=0)


def said(state: FleetState, event: e.AnyEvent) -> FleetState:
    """The state after one more fact."""
    position = Position(state.position + 1)
    return evolve(state, e.Recorded(position=position, at_ms=state.at_ms, writer="w", event=event))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_said_twice_counts_once(seed: int) -> None:
    """An acknowledgement, the end of a rehearsal, of a round or of a life: said again it changes
    nothing.
    """
    state, count = FleetState(), 0
    for entry in log_of(seed).log:
        state = evolve(state, entry)
        if not isinstance(entry.event, REPEATED):
            continue
        count += 1
        again = said(state, entry.event)
        where = f"seed {seed}, position {entry.position}: {entry.event}"
        assert unplaced(again) == unplaced(state), where

    assert count > 10


def timeless(state: FleetState, name: NodeId) -> FleetState:
    """A state without when somebody said what about a node."""
    zero = Position(0)
    node = replace(
        state.nodes[name], wanted_position=zero, sweep_wanted_position=zero, placed_position=zero
    )
    return unplaced(replace(state, nodes=state.nodes.insert(name, node)))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_act_that_is_stated_twice_is_wanted_once(seed: int) -> None:
    """Who types a command again, before anything came of it, wants what was wanted."""
    state = FleetState()
    for entry in log_of(seed).log:
        state = evolve(state, entry)
        if isinstance(entry.event, ACTS):
            name = getattr(entry.event, "node", min(state.nodes))
            again = said(state, entry.event)
            where = f"seed {seed}, position {entry.position}: {entry.event}"
            assert timeless(again, name) == timeless(state, name), where


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_said_too_late_counts_for_nothing(seed: int) -> None:
    """An acknowledgement of another transition than the pending one, or of another life of its
    node, changes nothing, whenever it comes.
    """
    state, count = FleetState(), 0
    for entry in log_of(seed).log:
        state = evolve(state, entry)
        event = entry.event
        if not isinstance(event, ANSWERS) or event.job not in state.jobs:
            continue
        job = state.jobs[event.job]
        stale = replace(event, transition=TransitionId(job.last_transition - 1))
        ghost = replace(event, incarnation=state.nodes[event.node].incarnation + 1)
        for late in (stale, ghost):
            count += 1
            where = f"seed {seed}, position {entry.position}: {late}"
            after = said(state, late)
            assert unplaced(after) == unplaced(state), where

    assert count > 10
