"""A test of the invariants: each of them is broken once on purpose, and says so by its number."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from statemachine import events as e
from statemachine.evolve import evolve, fold
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Position, Slot, TransitionId
from statemachine.invariants import INVARIANTS, CheckedFold, check, check_step
from statemachine.state import FleetState, Job
from tests.properties.fleet import JOB, begun

N0, N1, N3 = NodeId("n0"), NodeId("n1"), NodeId("n3")
ONE = Incarnation(1)


@cache
def story() -> tuple[e.Recorded, ...]:
    """A job trains; n1 is lost and replaced; n0 is drained and replaced. Everything holds."""
    fleet = begun(lambda choices: choices[0])
    fleet.say(e.WorkerExited(node=N1, incarnation=ONE, job=JOB, reason="signal 9"))
    for _ in range(2):
        fleet.members_answer()
    fleet.all_rehearse()
    fleet.say(e.DrainRequested(node=N0, by="ann"))
    for _ in range(2):
        fleet.members_answer()
    assert fleet.job.epoch == 3
    return tuple(fleet.log)


def at(kind: type[e.Event], number: int) -> tuple[FleetState, e.Recorded]:
    """An entry of the story, of a kind, and the state before it."""
    found = [index for index, entry in enumerate(story()) if isinstance(entry.event, kind)]
    index = found[number]
    return fold(FleetState(), story()[:index]), story()[index]


# --- of a state -------------------------------------------------------------------------------


def with_job(state: FleetState, **changes: Any) -> FleetState:
    """A state with its job altered."""
    return replace(state, jobs=state.jobs.insert(JOB, replace(state.jobs[JOB], **changes)))


def pending() -> tuple[FleetState, Job]:
    """The state in which the loss is about to be committed, and its job."""
    state, _ = at(e.TransitionCommitted, 1)
    return state, state.jobs[JOB]


def two_slots_of_one() -> FleetState:
    """n0 holds two slots."""
    state = fold(FleetState(), story())
    holders = state.jobs[JOB].holders
    return with_job(state, holders=holders.insert(Slot(1), holders[Slot(0)]))


def a_slot_vacant_for_nothing() -> FleetState:
    """Its holder lives."""
    state = fold(FleetState(), story())
    return with_job(state, vacant=state.jobs[JOB].vacant.insert(Slot(0)))


def an_index_that_lacks_one() -> FleetState:
    """A node that may take a slot is not in the pool."""
    state = fold(FleetState(), story())
    return replace(state, pool=state.pool.remove(min(state.pool)))


def a_plan_of_another_epoch() -> FleetState:
    """What is pending begins where the job is not."""
    state, job = pending()
    assert job.pending is not None
    plan = replace(job.pending.plan, from_epoch=Epoch(7))
    return with_job(state, pending=replace(job.pending, plan=plan))


def finished_in_the_middle() -> FleetState:
    """A job that is over has something pending."""
    state, _ = pending()
    return with_job(state, finished=True)


STATES: dict[int, Callable[[], FleetState]] = {
    1: two_slots_of_one,
    2: a_slot_vacant_for_nothing,
    3: an_index_that_lacks_one,
    4: a_plan_of_another_epoch,
    5: finished_in_the_middle,
}


# --- of a step --------------------------------------------------------------------------------

Step = tuple[FleetState, e.Recorded]


def altered(kind: type[e.Event], number: int, **changes: Any) -> Step:
    """An entry of the story whose event says something else."""
    state, entry = at(kind, number)
    return state, replace(entry, event=replace(entry.event, **changes))


def out_of_place(kind: type[e.Event], number: int, **changes: Any) -> Step:
    """An entry of the story with another position, time or origin."""
    state, entry = at(kind, number)
    return state, replace(entry, **changes)


def forged(state: FleetState, event: e.AnyEvent) -> Step:
    """An event that nobody decided, behind a state."""
    told = e.Recorded(
        position=Position(state.position + 1), at_ms=state.at_ms, writer="core", event=event
    )
    return state, told


def too_early() -> Step:
    """The commit of the loss, before the last of its members has answered."""
    _, entry = at(e.TransitionCommitted, 1)
    state = fold(FleetState(), [r for r in story() if r.position < entry.position - 1])
    return forged(state, entry.event)


def promoted(name: NodeId) -> Step:
    """The plan of the loss gives the slot to somebody else."""
    _, entry = at(e.TransitionPlanned, 1)
    assert isinstance(entry.event, e.TransitionPlanned)
    (change,) = entry.event.changes
    return altered(e.TransitionPlanned, 1, changes=(replace(change, joiner=name),))


def taken_out_for_nothing() -> Step:
    """A planned swap of somebody whom nobody complained about."""
    state, entry = at(e.TransitionPlanned, 2)
    node = replace(state.nodes[N0], wanted_out="", wanted_out_by="")
    return replace(state, nodes=state.nodes.insert(N0, node)), entry


def rest() -> FleetState:
    """The state after the story."""
    return fold(FleetState(), story())


STEPS: tuple[tuple[int, Callable[[], Step]], ...] = (
    (10, lambda: out_of_place(e.NodeLost, 0, position=Position(10_000))),
    (11, lambda: out_of_place(e.NodeLost, 0, at_ms=1)),
    (12, lambda: altered(e.TransitionCommitted, 1, epoch=Epoch(9))),
    (13, too_early),
    (14, lambda: altered(e.TransitionCommitted, 1, resume_step=9)),
    (14, lambda: altered(e.TransitionCommitted, 1, handovers=())),
    (15, lambda: promoted(NodeId("n2"))),
    (15, lambda: promoted(N1)),
    (16, lambda: forged(rest(), e.NodePooled(node=NodeId("n2"), incarnation=ONE, reason="r"))),
    (17, lambda: altered(e.TransitionPlanned, 1, reason="")),
    (18, lambda: altered(e.TransitionFinished, 1, job=JobId("zz"))),
    (
        19,
        lambda: forged(
            at(e.TransitionFinished, 1)[0],
            e.TransitionAborted(job=JOB, transition=TransitionId(2), reason="r"),
        ),
    ),
    (20, lambda: forged(rest(), e.NodeJoined(node=N3, incarnation=ONE, host="h"))),
    (20, lambda: altered(e.NodeLost, 0, evidence=())),
    (21, lambda: altered(e.NodeLost, 0, node=N1, incarnation=Incarnation(9))),
    (22, lambda: altered(e.TransitionPlanned, 1, transition=TransitionId(9))),
    (23, taken_out_for_nothing),
    (24, lambda: out_of_place(e.TransitionPlanned, 1, decided_from=Position(10_000))),
    (24, lambda: out_of_place(e.TransitionPlanned, 1, policy_version=7)),
)


def test_the_story_itself_breaks_nothing() -> None:
    """What is broken below is broken by what is altered below."""
    checked = CheckedFold()
    for entry in story():
        checked.take(entry)

    assert check(checked.state) == []


def named(each: object) -> str:
    """An id that is the same in every process."""
    return getattr(each, "__name__", str(each))


@pytest.mark.parametrize(("number", "state"), STATES.items(), ids=named)
def test_a_state_that_breaks_a_property_is_named(
    number: int, state: Callable[[], FleetState]
) -> None:
    """By the number of the property, with what breaks it."""
    found = check(state())

    assert number in {breach.number for breach in found}, found
    assert all(breach.detail for breach in found)


@pytest.mark.parametrize(("number", "step"), STEPS)
def test_a_step_that_breaks_a_property_is_named(number: int, step: Callable[[], Step]) -> None:
    """Likewise for one event between two states."""
    before, recorded = step()
    found = check_step(before, recorded, evolve(before, recorded))

    assert number in {breach.number for breach in found}, found
    assert all(breach.detail for breach in found)


def test_every_property_is_broken_once() -> None:
    """A property that nobody can break may as well not be there."""
    assert {*STATES, *(number for number, _ in STEPS)} == set(INVARIANTS)
