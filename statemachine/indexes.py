"""Storing a record and keeping every index of the state in step with it; nobody else stores one.

What belongs here: which index a record belongs to, as a function of the record alone (and of the
roles of its job). Theory of operation: a record carries, as bits, the indexes it stands in, so an
event that moves it in no index costs one insertion and no look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from msgspec.structs import replace
from rpds import HashTrieSet

from statemachine.ids import NodeId
from statemachine.lifecycle import AWAY_STATES, NodeState, Warmth
from statemachine.state import FleetState, Job, Node, Transition

POOLED_STATES: Final = frozenset({NodeState.SPARE, NodeState.WARMING, NodeState.STANDBY})
"""A node in one of these may take a slot or rehearse."""

_OUT_STATES: Final = frozenset({NodeState.DRAINED, NodeState.RETIRED})
"""A node in one of these rests until an operator wants something of it."""

_BUSY_STATES: Final = frozenset({NodeState.LEAVING, NodeState.QUARANTINED, NodeState.SWEEPING})

PRESENT: Final = 1
POOLED: Final = 2
ACCUSED: Final = 4
UNSETTLED: Final = 8
UNREADY: Final = 16

_SETS: Final[Mapping[int, str]] = {
    POOLED: "pool",
    ACCUSED: "accused",
    UNSETTLED: "unsettled",
    UNREADY: "unready",
}
_IN_SETS: Final = POOLED | ACCUSED | UNSETTLED | UNREADY


def _by_state(at: NodeState) -> int:
    if at in AWAY_STATES:
        return 0
    pooled = POOLED if at in POOLED_STATES else 0
    return PRESENT | pooled | (UNSETTLED if at in _BUSY_STATES else 0)


_BY_STATE: Final[Mapping[NodeState, int]] = {at: _by_state(at) for at in NodeState}


def memberships(state: FleetState, node: Node) -> int:
    """The indexes that a record belongs to, as bits."""
    found = _BY_STATE[node.state]
    if not found:
        return 0
    if node.accusations:
        found |= ACCUSED
    if found & POOLED and _is_unready(state, node):
        found |= UNREADY
    if not found & UNSETTLED and _is_unsettled(node):
        found |= UNSETTLED
    return found


def _is_unsettled(node: Node) -> bool:
    """Whether something other than a loss may be to be decided about a node that is present."""
    if node.wanted_out or node.sweep_wanted:
        return True
    if node.verdict is not None or node.quarantine or node.retired or node.drained_by:
        return node.state not in _OUT_STATES
    return False


def _is_unready(state: FleetState, node: Node) -> bool:
    """Whether a node of the pool rehearses, or has not rehearsed every role of its job."""
    worker = node.worker
    if worker is None:
        return False
    job = state.jobs.get(node.job)
    if job is None or job.finished or not job.launched:  # before the launch there is no time for it
        return False
    rehearsals = node.rehearsals
    if node.state is NodeState.WARMING or len(rehearsals) < len(job.roles):
        return True
    warm = 0
    for entry in rehearsals:
        if entry.warmth is Warmth.WARM and entry.digest == worker.digest:
            warm += entry.job == node.job
    return warm < len(job.roles)


def put_node(state: FleetState, node: Node, before: Node | None) -> FleetState:
    """Store a node's record in the place of `before`, and keep every index in step with it."""
    was = 0 if before is None else before.indexed
    now = memberships(state, node)
    if now == was and now == node.indexed:
        return replace(state, nodes=state.nodes.insert(node.node, node))
    name = node.node
    changed = was ^ now
    pool, accused, unsettled, unready = state.pool, state.accused, state.unsettled, state.unready
    if changed & POOLED:
        pool = pool.insert(name) if now & POOLED else pool.discard(name)
    if changed & ACCUSED:
        accused = accused.insert(name) if now & ACCUSED else accused.discard(name)
    if changed & UNSETTLED:
        unsettled = unsettled.insert(name) if now & UNSETTLED else unsettled.discard(name)
    if changed & UNREADY:
        unready = unready.insert(name) if now & UNREADY else unready.discard(name)
    return replace(
        state,
        nodes=state.nodes.insert(name, replace(node, indexed=now)),
        present=state.present + (now & PRESENT) - (was & PRESENT),
        pool=pool,
        accused=accused,
        unsettled=unsettled,
        unready=unready,
    )


def put_nodes(state: FleetState, records: Mapping[NodeId, Node]) -> FleetState:
    """Store many records at once: what `put_node` does for each, at the cost of one for a few."""
    entered: dict[int, list[NodeId]] = {bit: [] for bit in _SETS}
    left: dict[int, set[NodeId]] = {bit: set() for bit in _SETS}
    stored, present = {}, state.present
    for name, node in records.items():
        before = state.nodes.get(name)
        was = 0 if before is None else before.indexed
        now = memberships(state, node)
        stored[name] = node if node.indexed == now else replace(node, indexed=now)
        present += (now & PRESENT) - (was & PRESENT)
        changed = was ^ now
        for bit in _SETS if changed & _IN_SETS else ():
            if changed & now & bit:
                entered[bit].append(name)
            elif changed & bit:
                left[bit].add(name)
    sets = {
        title: _without(getattr(state, title), left[bit]).update(entered[bit])
        for bit, title in _SETS.items()
        if left[bit] or entered[bit]
    }
    return replace(state, nodes=state.nodes.update(stored), present=present, **sets)


def _without(names: HashTrieSet[NodeId], gone: set[NodeId]) -> HashTrieSet[NodeId]:
    """A set without some names, at the cost of one new set for all of them."""
    if not gone:
        return names
    return cast("HashTrieSet[NodeId]", names.difference(HashTrieSet(gone)))


def put_job(state: FleetState, job: Job) -> FleetState:
    """Store a job's record."""
    return replace(state, jobs=state.jobs.insert(job.job, job))


def put_pending(state: FleetState, job: Job, pending: Transition) -> FleetState:
    """Store a job's record with its pending transition."""
    return replace(state, jobs=state.jobs.insert(job.job, replace(job, pending=pending)))


def refresh_pool(state: FleetState, job: Job) -> FleetState:
    """Look at the pool again after a job was launched or ended: who has something to rehearse."""
    for name in sorted(state.pool):
        node = state.nodes[name]
        if node.job == job.job:
            state = put_node(state, node, node)
    return state


def end_member(state: FleetState, node: Node) -> FleetState:
    """Take note in its job that an incarnation is over: its slot is vacant, its answers void.

    The slot keeps its last holder by name, so that whoever is looked for is known by it.
    """
    job = state.jobs.get(node.job)
    if job is None or job.finished:
        return state
    pending = job.pending
    if pending is not None and _is_awaited(pending, node):
        job = replace(job, pending=replace(pending, gone=(*pending.gone, node.node)))
    if node.slot >= 0 and job.holders.get(node.slot) == node.node:
        job = replace(
            job,
            vacant=job.vacant.insert(node.slot),
            vacant_since_ms=job.vacant_since_ms if job.vacant else state.at_ms,
            finished_nodes=job.finished_nodes.discard(node.node),
        )
    return put_job(state, job)


def _is_awaited(pending: Transition, node: Node) -> bool:
    """Whether this incarnation is one that the plan means, and was not known to be gone."""
    if node.node not in pending.members or node.node in pending.gone:
        return False
    for change in pending.plan.changes:
        if change.joiner == node.node:
            return change.joiner_incarnation == node.incarnation
        if change.leaver == node.node:
            return change.leaver_incarnation == node.incarnation
    return True
