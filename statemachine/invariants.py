"""The safety properties, numbered, in English and in code.

What belongs here: what must hold of any log, whoever wrote it. A breach is a fault of ours: of a
rule, of a fold, or of a log that was tampered with. Two kinds: `check` looks at one state and costs
as much as the fleet is large; `check_step` looks at one event between two states and costs as much
as the event concerns. `CheckedFold` does both and tells the story of a breach.

Two more properties are not of one log, and are proven in tests/properties: to fold a prefix and
then the rest is to fold the whole; a decision is the same on every machine and hash seed.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from statemachine import events as e
from statemachine.errors import InvariantBroken
from statemachine.evolve import evolve
from statemachine.ids import JobId, NodeId
from statemachine.indexes import (
    ACCUSED,
    POOLED,
    PRESENT,
    UNREADY,
    UNSETTLED,
    memberships,
)
from statemachine.invariants_step import step_breaches
from statemachine.lifecycle import AWAY_STATES, NodeState, Phase
from statemachine.notation import line_of_entry
from statemachine.state import FleetState, Job, Node, Transition

INVARIANTS: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "a slot has one node, a node at most one slot, and a node that is active holds one",
        2: "a slot is vacant exactly when its holder is no more; an idle slot has no holder",
        3: "every index agrees with the records that it is about",
        4: "a pending transition is about its job's epoch, and knows who answered and who is gone",
        5: "a finished job has no members and nothing pending",
        10: "positions are dense",
        11: "time never decreases along a log",
        12: "a job has one committed epoch, and epochs increase by one, at a commit and only there",
        13: "nothing commits without the answer of every required member, of its present life",
        14: "a run resumes behind the last step that any survivor applied, and all members with it",
        15: "nobody is given a slot who is in quarantine, retired, drained, or under a verdict",
        16: "a leaver is released only after the commit that took its slot was carried out",
        17: "every decision has a reason",
        18: "nothing is decided about a job that is finished",
        19: "until the commit a transition may be given up; after it, only forward",
        20: "a node's lives are numbered upwards, and who is lost was accused before",
        21: "a decision about a node moves it: none is without effect",
        22: "transitions of a job are numbered one by one, from the epoch in force",
        23: "acts on health keep to the budget, and rest in shadow mode and while paused",
        24: "a decision names a position that it was decided from, and the policy in force there",
    }
)
"""Number -> what must hold. Numbers are never reused."""


class Breach(Struct, frozen=True, kw_only=True):
    """A property that does not hold."""

    number: int
    detail: str

    @property
    def title(self) -> str:
        """The property in English."""
        return INVARIANTS[self.number]

    def __str__(self) -> str:
        """Number, property and what breaks it."""
        return f"invariant {self.number} ({self.title}): {self.detail}"


def check(state: FleetState) -> list[Breach]:
    """What does not hold of a state; its cost grows with the fleet."""
    found = [*_slots(state), *_indexes(state), *_jobs(state)]
    return [Breach(number=number, detail=detail) for number, detail in found]


def check_step(before: FleetState, recorded: e.Recorded, after: FleetState) -> list[Breach]:
    """What does not hold of one event between two states; its cost is that of the event."""
    found = step_breaches(before, recorded, after)
    return [Breach(number=number, detail=detail) for number, detail in found]


Found = Iterator[tuple[int, str]]


def _slots(state: FleetState) -> Found:
    held: dict[NodeId, str] = {}
    for name in sorted(state.jobs):
        job = state.jobs[name]
        if job.finished:
            continue
        for slot in sorted(job.holders):
            holder = job.holders[slot]
            place = f"slot {slot} of {name}"
            if holder in held and slot not in job.vacant:
                yield 1, f"{holder} holds {held[holder]} and {place}"
            node = state.nodes.get(holder)
            holds = node is not None and (node.job, node.slot) == (name, slot)
            if holds and node is not None and node.state not in AWAY_STATES:
                held[holder] = place
                if slot in job.vacant:
                    yield 2, f"{place} is vacant, but {holder} lives and holds it"
            elif slot not in job.vacant:
                yield 2, f"{place} is not vacant, but {holder} does not hold it"
        for slot in sorted(job.idle):
            if slot in job.holders or slot in job.vacant:
                yield 2, f"slot {slot} of {name} is idle and held"
        for slot in sorted(job.unproven):
            if slot not in job.holders:
                yield 2, f"slot {slot} of {name} has nobody to prove that it has the state"
    for name_of in sorted(state.nodes):
        node = state.nodes[name_of]
        is_holder = held.get(name_of) == f"slot {node.slot} of {node.job}"
        if (node.state is NodeState.ACTIVE) != is_holder:
            yield (
                1,
                f"{name_of} is {node.state} with slot {node.slot}, and holds {held.get(name_of)}",
            )


def _indexes(state: FleetState) -> Found:
    sets = {
        POOLED: ("pool", state.pool),
        ACCUSED: ("accused", state.accused),
        UNSETTLED: ("unsettled", state.unsettled),
        UNREADY: ("unready", state.unready),
    }
    present = 0
    counts = dict.fromkeys(sets, 0)
    for name in sorted(state.nodes):
        node = state.nodes[name]
        belongs = memberships(state, node)
        present += belongs & PRESENT
        if node.indexed != belongs:
            yield 3, f"{name} is indexed as {node.indexed}, and belongs to {belongs}"
        for bit, (title, members) in sets.items():
            counts[bit] += bool(belongs & bit)
            if (name in members) != bool(belongs & bit):
                yield 3, f"{title} {'holds' if name in members else 'lacks'} {name}"
    for bit, (title, members) in sets.items():
        if len(members) != counts[bit]:
            yield 3, f"{title} has {len(members)} members, and {counts[bit]} belong to it"
    if state.present != present:
        yield 3, f"{state.present} nodes are counted as present, and {present} are"
    unfinished = tuple(name for name in sorted(state.jobs) if not state.jobs[name].finished)
    if state.open_jobs != unfinished:
        yield 3, f"open jobs are {state.open_jobs}, and {unfinished} are not finished"


def _jobs(state: FleetState) -> Found:
    for name in sorted(state.jobs):
        job = state.jobs[name]
        if job.finished:
            if job.pending is not None:
                yield 5, f"{name} is finished, and t{job.pending.plan.transition} is pending"
            continue
        if job.pending is not None:
            yield from _pending(state, job, job.pending)


def _pending(state: FleetState, job: Job, pending: Transition) -> Found:
    plan = pending.plan
    at = f"t{plan.transition} of {job.job}"
    ahead = int(pending.phase is Phase.COMMITTED)
    if job.epoch != plan.from_epoch + ahead:
        yield 4, f"{at} is {pending.phase} from epoch {plan.from_epoch}, and the job at {job.epoch}"
    if (pending.committed is not None) != (pending.phase is Phase.COMMITTED):
        yield 4, f"{at} is {pending.phase}, and its commit is {pending.committed}"
    leavers = {change.leaver for change in plan.changes} | {g.node for g in plan.givers}
    leavers = leavers if ahead else set()
    wanted = sorted(set(plan.required) - leavers)
    if sorted(pending.members) != wanted:
        yield 4, f"{at} waits for {sorted(pending.members)} of {wanted}"
    strangers = sorted(name for name in pending.answers if name not in pending.members)
    if strangers:
        yield 4, f"{at} counts the answers of {strangers}, who are no members"
    lives = {c.joiner: c.joiner_incarnation for c in plan.changes}
    lives |= {c.leaver: c.leaver_incarnation for c in plan.changes if c.leaver}
    lives |= {giver.node: giver.incarnation for giver in plan.givers}
    for name in sorted(pending.members):
        node = state.nodes.get(name)
        if (name in pending.gone) != _is_gone(node, lives.get(name), job.job):
            known = "is said to be gone" if name in pending.gone else "is not known to be gone"
            yield 4, f"{name} of {at} {known}, and is {node.state if node else 'unknown'}"


def _is_gone(node: Node | None, incarnation: int | None, job: JobId) -> bool:
    if node is None or node.state in AWAY_STATES:
        return True
    if incarnation is None:  # a member that stays: whoever is called so now may serve another job
        return node.slot < 0 or node.job != job
    return node.incarnation != incarnation


class CheckedFold:
    """A fold that checks as it goes. `every` is how often, in events, the whole state is checked.

    `state` is what is folded so far.
    """

    STORY_LINES: Final = 40

    def __init__(self, state: FleetState | None = None, *, every: int = 1) -> None:
        self.state = state if state is not None else FleetState()
        self._every = every
        self._told: list[str] = []

    def take(self, recorded: e.Recorded) -> FleetState:
        """Fold the next event.

        Raises:
            InvariantBroken: the first breach, with the events that led to it.
        """
        before, self.state = self.state, evolve(self.state, recorded)
        self._told = [*self._told[1 - self.STORY_LINES :], line_of_entry(recorded)]
        breaches = check_step(before, recorded, self.state)
        if not breaches and recorded.position % self._every == 0:
            breaches = check(self.state)
        if breaches:
            first = breaches[0]
            raise InvariantBroken(
                first.number, first.title, recorded.position, first.detail, tuple(self._told)
            )
        return self.state
