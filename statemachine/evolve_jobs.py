"""Folding jobs: declared, launched anew, finished; and who holds which slot."""

from msgspec.structs import replace

from statemachine import events as e
from statemachine.errors import BadLayout
from statemachine.evolve_nodes import moved
from statemachine.ids import NodeId, Role, Slot
from statemachine.indexes import put_job, put_node, refresh_pool
from statemachine.layout import FIRST, LAST, MIDDLE, ONLY, STAGE_AXIS, Layout
from statemachine.lifecycle import NodeState, Phase
from statemachine.state import FleetState, Job, Node, Transition


def declared(state: FleetState, event: e.JobDeclared) -> FleetState:
    """A job is declared once; a second declaration, or an impossible layout, changes nothing."""
    if event.job in state.jobs:
        return state
    try:
        layout = Layout.of(
            event.axes,
            ranks_per_node=event.ranks_per_node,
            groups=event.groups,
            rank_sets=event.rank_sets,
            replica_axis=event.replica_axis,
        )
    except BadLayout:
        return state
    job = Job(
        job=event.job,
        declared=event,
        layout=layout,
        roles=roles_of(layout),
        declared_at_ms=state.at_ms,
        declared_position=state.position,
    )
    state = replace(state, open_jobs=tuple(sorted((*state.open_jobs, event.job))))
    return refresh_pool(put_job(state, job), job)


def roles_of(layout: Layout) -> tuple[Role, ...]:
    """The roles that a standby rehearses, the one it stays in last."""
    stages = dict(layout.axes).get(STAGE_AXIS, 1)
    if stages == 1:
        return (ONLY,)
    stride = layout.rank_at({name: int(name == STAGE_AXIS) for name, _ in layout.axes})
    if stride % layout.ranks_per_node == 0:  # no slot holds ranks of two stages
        return (FIRST, LAST) if stages == 2 else (FIRST, LAST, MIDDLE)
    found = {layout.role_of(slot) for slot in range(layout.slot_count)}
    return tuple(role for role in (FIRST, LAST, ONLY, MIDDLE) if role in found)


def group_broken(state: FleetState, event: e.GroupBroken) -> FleetState:
    """A member of the present epoch is parked in a broken group; its first word counts."""
    job = state.jobs.get(event.job)
    node = state.current(event.node, event.incarnation)
    if job is None or node is None or job.broken is not None:
        return state
    before_boundary = job.pending is not None and _is_before_boundary(job.pending, event)
    if event.epoch != job.epoch and not before_boundary:
        return state
    if job.holders.get(node.slot) != node.node and not before_boundary:
        return state
    return put_job(state, replace(job, broken=event, broken_position=state.position))


def _is_before_boundary(pending: Transition, event: e.GroupBroken) -> bool:
    """Whether a broken group is the one that a committed planned transition waits in."""
    plan = pending.plan
    if pending.phase is not Phase.COMMITTED or plan.motive is not e.Motive.PLANNED:
        return False
    return event.epoch == plan.from_epoch and event.node not in pending.applied


def worker_finished(state: FleetState, event: e.WorkerFinished) -> FleetState:
    """A slot's node committed the last step."""
    job = state.jobs.get(event.job)
    node = state.current(event.node, event.incarnation)
    if job is None or node is None or job.holders.get(node.slot) != node.node:
        return state
    finished = job.finished_nodes.insert(node.node, event.step)
    ended = replace(job, finished_nodes=finished, ended_position=state.position)
    return put_job(state, ended)


def stop_requested(state: FleetState, event: e.JobStopRequested) -> FleetState:
    """A job that runs is to end at a boundary that its ranks agree on."""
    job = state.jobs.get(event.job)
    if job is None or job.finished:
        return state
    return put_job(state, replace(job, stop_requested=True, ended_position=state.position))


def finished(state: FleetState, event: e.JobFinished) -> FleetState:
    """The job is over; its nodes belong to the pool."""
    job = state.jobs.get(event.job)
    if job is None or job.finished:
        return state
    over = replace(job, finished=True, pending=None)
    open_jobs = tuple(name for name in state.open_jobs if name != event.job)
    state = refresh_pool(put_job(replace(state, open_jobs=open_jobs), over), over)
    for slot, holder in sorted(job.holders.items()):
        node = state.nodes.get(holder)
        if node is not None and node.slot == slot and node.job == job.job:
            freed = replace(moved(state, node, e.JobFinished), slot=Slot(-1))
            state = put_node(state, freed, node)
    return state


def restarted(state: FleetState, event: e.JobRestarted) -> FleetState:
    """The job is to be launched anew: nobody holds a slot, and there is no state to lose."""
    job = state.jobs.get(event.job)
    if job is None or job.finished:
        return state
    fresh = Job(
        job=job.job,
        declared=job.declared,
        layout=job.layout,
        roles=job.roles,
        declared_at_ms=job.declared_at_ms,
        epoch=job.epoch,
        last_transition=job.last_transition,
        reached=job.reached,
    )
    return refresh_pool(put_job(state, fresh), fresh)


# --- questions --------------------------------------------------------------------------------


def holder_of(state: FleetState, job: Job, slot: Slot) -> Node | None:
    """The live node that holds a slot, if it is live."""
    name = job.holders.get(slot)
    node = state.nodes.get(name) if name is not None else None
    if node is None or node.slot != slot or node.job != job.job:
        return None
    return None if node.state in (NodeState.LOST, NodeState.GONE) else node


def live_holders(state: FleetState, job: Job) -> dict[Slot, NodeId]:
    """Slot -> node for every slot whose holder is live, in slot order."""
    found = {}
    holders, vacant = job.holders, job.vacant
    # To look each up is faster than to walk the map, unless few are held: in a simulation, most
    # holders have no record.
    sparse = 2 * len(holders) < job.layout.slot_count
    for slot in sorted(holders) if sparse else map(Slot, range(job.layout.slot_count)):
        name = holders.get(slot)
        if name is None or slot in vacant:
            continue
        node = state.nodes.get(name)
        if node is None or node.slot != slot or node.job != job.job:
            continue
        if node.state is not NodeState.LOST and node.state is not NodeState.GONE:
            found[slot] = name
    return found
