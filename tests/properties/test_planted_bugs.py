"""A test of the tests: with a bug planted in the core, the proof must fail, and say what is wrong.

Each bug is one that somebody could write on a bad day. It is planted for one test only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import pytest
from msgspec.structs import replace

from statemachine import (
    decide_slots,
    decide_transitions,
    evolve_nodes,
    evolve_transitions,
    participant,
    state,
)
from statemachine import events as e
from statemachine.errors import InvariantBroken
from statemachine.ids import JobId, NodeId, Slot
from statemachine.layout import Layout
from statemachine.state import FleetState, Job, Node, Transition
from statemachine.topology import Desired
from statemachine.transition import Resume, resume_point
from tests.properties.test_any_order import play
from tests.properties.test_interleavings import DRAIN, SWITCHOVER, explore

Plant = Callable[[pytest.MonkeyPatch], None]
Members = Mapping[Slot, NodeId]
Reports = Mapping[Slot, e.Report]


def commits_without_one(patch: pytest.MonkeyPatch) -> None:
    """A transition counts as answered when one member has not answered yet."""

    def is_answered(pending: Transition) -> bool:
        return len(pending.answers) >= len(pending.members) - 1

    patch.setattr(state.Transition, "is_answered", property(is_answered))


def skips_a_step(patch: pytest.MonkeyPatch) -> None:
    """A run resumes one step further than it should."""

    def one_further(*arguments: Any) -> Resume:
        found = resume_point(*arguments)
        return Resume(found.step + 1, found.apply, found.handovers, found.missing, found.reason)

    patch.setattr(decide_transitions, "resume_point", one_further)


def takes_gradients_for_weights(patch: pytest.MonkeyPatch) -> None:
    """Whoever holds the gradients of a step counts as having applied it."""

    def hopeful(layout: Layout, members: Members, reports: Reports, *rest: Any) -> Resume:
        said = {s: replace(r, applied=max(r.applied, r.pending)) for s, r in reports.items()}
        return resume_point(layout, members, said, *rest)

    patch.setattr(decide_transitions, "resume_point", hopeful)


def answers_for_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Who is gone is not noticed while a transition is prepared."""

    def unnoticed(fleet: FleetState, _: Node) -> FleetState:
        return fleet

    patch.setattr(evolve_nodes, "end_member", unnoticed)


def forgets_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """A commit does not raise the epoch."""
    committed = evolve_transitions.committed

    def same_epoch(fleet: FleetState, event: e.TransitionCommitted) -> FleetState:
        after = committed(fleet, event)
        job = replace(after.jobs[event.job], epoch=fleet.jobs[event.job].epoch)
        return replace(after, jobs=after.jobs.insert(event.job, job))

    patch.setattr(evolve_transitions, "committed", same_epoch)
    patch.setattr(import_module("statemachine.evolve"), "_FOLDERS", {})


def believes_ghosts(patch: pytest.MonkeyPatch) -> None:
    """What any life of a node acknowledges counts for its present one."""
    prepared = evolve_transitions.prepared

    def of_any_life(fleet: FleetState, event: e.TransitionPrepared) -> FleetState:
        node = fleet.nodes.get(event.node)
        known = node.incarnation if node is not None else event.incarnation
        after = prepared(fleet, replace(event, incarnation=known))
        pending = after.jobs[event.job].pending if event.job in after.jobs else None
        if pending is None or event.node not in pending.prepared:
            return after
        acks = pending.prepared.insert(event.node, event)
        job = replace(after.jobs[event.job], pending=replace(pending, prepared=acks))
        return replace(after, jobs=after.jobs.insert(event.job, job))

    patch.setattr(evolve_transitions, "prepared", of_any_life)
    patch.setattr(import_module("statemachine.evolve"), "_FOLDERS", {})


def guards_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """What is said of any transition counts for the one that is pending."""

    def pending_of(fleet: FleetState, name: JobId, _: int) -> tuple[Job, Transition] | None:
        job = fleet.jobs.get(name)
        return None if job is None or job.pending is None else (job, job.pending)

    patch.setattr(evolve_transitions, "_pending", pending_of)


def leaves_the_leaver_behind(patch: pytest.MonkeyPatch) -> None:
    """A leaver whose transition was replaced is never told that it holds no slot."""
    on_desired = participant.on_desired

    def without_release(me: participant.Participant, desired: Desired) -> participant.Outcome:
        after, told = on_desired(me, desired)
        kept = tuple(t for t in told if "Release" not in str(t))
        return after, kept

    patch.setattr(participant, "on_desired", without_release)


def waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A joiner whose only source is gone is waited for."""
    patch.setattr(decide_slots, "_why_hopeless", lambda *_: "")


def by_orders_of_losses() -> None:
    """The proof by enumeration, of losses alone."""
    explore(2, 1, 1)


def by_orders_of_a_drain() -> None:
    """The proof by enumeration, of a planned swap with a loss."""
    explore(2, 1, 1, DRAIN)


def by_orders_of_a_switchover() -> None:
    """The proof by enumeration, of a swap whose leaver is of use again."""
    explore(2, 2, 1, SWITCHOVER)


def by_seeds() -> None:
    """The proof by random facts."""
    for seed in range(170):
        play(seed)


@pytest.mark.parametrize(
    ("plant", "proof"),
    [
        (commits_without_one, by_orders_of_losses),
        (skips_a_step, by_orders_of_losses),
        (takes_gradients_for_weights, by_orders_of_losses),
        (answers_for_the_dead, by_orders_of_losses),
        (forgets_the_epoch, by_orders_of_losses),
        (believes_ghosts, by_seeds),
        (guards_no_epoch, by_seeds),
        (leaves_the_leaver_behind, by_orders_of_a_switchover),
        (waits_for_ever, by_orders_of_a_drain),
    ],
    ids=lambda value: value.__name__,
)
def test_a_planted_bug_is_found(
    plant: Plant, proof: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this bug in the core, the proof fails."""
    plant(monkeypatch)

    with pytest.raises((InvariantBroken, AssertionError, pytest.fail.Exception)) as found:
        proof()
    print(str(found.value).splitlines()[0])


@pytest.mark.parametrize("proof", [by_orders_of_losses, by_seeds])
def test_without_a_bug_the_same_proof_holds(proof: Callable[[], None]) -> None:
    """It is the bug that makes the proof fail."""
    proof()
