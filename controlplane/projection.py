"""From the fold to the keys that agents watch: which of them may change, and which do. Pure.

What belongs here: the delta between what the projected keys say and what the fold asks for. The
values themselves are `statemachine.topology`; writing them is the reconciler's.

A projection is recomputed and never edited. Its `position` says from where it was computed and is
no difference by itself: a key is written when anything else in it changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace
from rpds import HashTrieMap

from controlplane.eventlog import DesiredItem, OrdersItem
from statemachine import events as e
from statemachine.errors import CodecError
from statemachine.ids import JobId, NodeId, Position
from statemachine.state import FleetState
from statemachine.topology import (
    Desired,
    Orders,
    decode_desired,
    decode_orders,
    desired_of,
    encode_projection,
    orders_of,
    subjects,
)

NOWHERE: Final = Position(0)

P = TypeVar("P", Desired, Orders)


class Projected(Struct, frozen=True):
    """What the projected keys say, without their positions."""

    desired: HashTrieMap[JobId, Desired] = field(default_factory=HashTrieMap)
    orders: HashTrieMap[NodeId, Orders] = field(default_factory=HashTrieMap)


class Writes(Struct, frozen=True):
    """Keys to be written: values by job and by node, in order of name."""

    desired: tuple[tuple[JobId, bytes], ...] = ()
    orders: tuple[tuple[NodeId, bytes], ...] = ()


class Touched(Struct, frozen=True):
    """Jobs and nodes whose keys may have changed."""

    jobs: frozenset[JobId] = frozenset()
    nodes: frozenset[NodeId] = frozenset()

    def plus(self, other: Touched) -> Touched:
        """Both."""
        return Touched(self.jobs | other.jobs, self.nodes | other.nodes)


def touched_by(before: FleetState, event: e.AnyEvent) -> Touched:
    """Say whose keys an event may change, given the state that it is folded into."""
    jobs, names = subjects(event)
    nodes = set(names)
    match event:
        case e.TransitionCommitted() | e.TransitionFinished() | e.TransitionAborted():
            job = before.jobs.get(event.job)
            if job is not None and job.pending is not None:
                nodes |= {n for c in job.pending.plan.changes for n in (c.leaver, c.joiner) if n}
        case e.JobFinished():
            job = before.jobs.get(event.job)
            nodes |= set(job.holders.values()) if job is not None else set()
        case e.SweepRoundFinished() | e.SweepFinished():
            sweep = before.sweeps.get(event.sweep)
            pair = (sweep.request.node, sweep.request.partner) if sweep is not None else ()
            nodes |= {name for name in pair if name}
        case e.PolicyChanged():
            jobs = tuple(before.jobs)
        case _:
            pass
    of_nodes = {before.nodes[name].job for name in nodes if name in before.nodes} - {JobId("")}
    return Touched(frozenset(jobs) | of_nodes, frozenset(nodes))


def everything(state: FleetState) -> Touched:
    """Every job and node of a fleet: what a controller that takes over looks at."""
    return Touched(frozenset(state.jobs), frozenset(state.nodes))


def project(known: Projected, state: FleetState, touched: Touched) -> tuple[Projected, Writes]:
    """Recompute the touched keys; return what the keys will say, and those that must be written."""
    desired, orders = known.desired, known.orders
    jobs, nodes = [], []
    for job in sorted(name for name in touched.jobs if name in state.jobs):
        wanted = desired_of(state, state.jobs[job])
        if _unplaced(wanted) != desired.get(job):
            desired = desired.insert(job, _unplaced(wanted))
            jobs.append((job, encode_projection(wanted)))
    for node in sorted(name for name in touched.nodes if name in state.nodes):
        due = orders_of(state, state.nodes[node])
        if _unplaced(due) != orders.get(node):
            orders = orders.insert(node, _unplaced(due))
            nodes.append((node, encode_projection(due)))
    return Projected(desired, orders), Writes(tuple(jobs), tuple(nodes))


def as_found(desired: Iterable[DesiredItem], orders: Iterable[OrdersItem]) -> Projected:
    """What stands in the store; a value that does not decode counts as none, and is rewritten."""
    jobs: HashTrieMap[JobId, Desired] = HashTrieMap()
    nodes: HashTrieMap[NodeId, Orders] = HashTrieMap()
    for item in desired:
        try:
            jobs = jobs.insert(item.job, _unplaced(decode_desired(item.value)))
        except CodecError:
            continue
    for each in orders:
        try:
            nodes = nodes.insert(each.node, _unplaced(decode_orders(each.value)))
        except CodecError:
            continue
    return Projected(jobs, nodes)


def _unplaced(value: P) -> P:
    return replace(value, position=NOWHERE)
