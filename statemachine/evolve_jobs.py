"""Folding jobs and their transitions."""

from msgspec.structs import replace
from rpds import HashTrieSet

from statemachine import events as e
from statemachine.errors import BadLayout
from statemachine.evolve_nodes import moved
from statemachine.ids import JobId, NodeId, Role, Slot
from statemachine.indexes import put_job, put_node, put_pending, refresh_pool
from statemachine.layout import FIRST, LAST, MIDDLE, ONLY, STAGE_AXIS, Layout
from statemachine.lifecycle import NodeState, Phase, next_phase
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
        )
    except BadLayout:
        return state
    job = Job(
        job=event.job,
        declared=event,
        layout=layout,
        roles=roles_of(layout),
        declared_at_ms=state.at_ms,
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
    return put_job(state, replace(job, finished_nodes=finished))


def stop_requested(state: FleetState, event: e.JobStopRequested) -> FleetState:
    """A job that runs is to end at a boundary that its ranks agree on."""
    job = state.jobs.get(event.job)
    if job is None or job.finished:
        return state
    return put_job(state, replace(job, stop_requested=True))


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
    )
    return put_job(state, fresh)


# --- transitions ------------------------------------------------------------------------------


def planned(state: FleetState, event: e.TransitionPlanned) -> FleetState:
    """Phase one begins; it takes the place of a pending transition that it replaces."""
    job = state.jobs.get(event.job)
    if job is None or job.finished or event.transition <= job.last_transition:
        return state
    pending = Transition(
        plan=event,
        phase=Phase.PREPARING,
        planned_at_ms=state.at_ms,
        position=state.position,
        members=HashTrieSet(event.required),
        harmful=_count_harmful(state, event),
    )
    if pending.harmful:
        horizon = state.at_ms - round(state.policy.harmful_window_s * 1000)
        recent = (at for at in state.harmful_at_ms if at > horizon)
        taken = (state.at_ms for _ in range(pending.harmful))
        state = replace(state, harmful_at_ms=(*recent, *taken))
    job = replace(job, last_transition=event.transition)
    return put_pending(state, job, pending)


def _count_harmful(state: FleetState, plan: e.TransitionPlanned) -> int:
    """How many leavers are taken out for their health: what an operator wants has no budget."""
    if plan.motive is not e.Motive.PLANNED:
        return 0
    leavers = (state.nodes.get(change.leaver) for change in plan.changes)
    return sum(1 for node in leavers if node is not None and not node.wanted_out)


def _pending(state: FleetState, job: JobId, transition: int) -> tuple[Job, Transition] | None:
    record = state.jobs.get(job)
    if record is None or record.pending is None:
        return None
    if record.pending.plan.transition != transition:
        return None
    return record, record.pending


def prepared(state: FleetState, event: e.TransitionPrepared) -> FleetState:
    """One required node holds its links (and is parked, if the transition is unplanned)."""
    found = _pending(state, event.job, event.transition)
    if found is None or state.current(event.node, event.incarnation) is None:
        return state
    job, pending = found
    if pending.phase is not Phase.PREPARING or event.node not in pending.members:
        return state
    if event.node in pending.gone:
        return state
    acks = pending.prepared.insert(event.node, event)
    return put_pending(state, job, replace(pending, prepared=acks))


def refused(state: FleetState, event: e.TransitionRefused) -> FleetState:
    """A required node cannot prepare."""
    found = _pending(state, event.job, event.transition)
    if found is None or state.current(event.node, event.incarnation) is None:
        return state
    job, pending = found
    if pending.phase is not Phase.PREPARING or event.node not in pending.members:
        return state
    return put_pending(state, job, replace(pending, refused=(*pending.refused, event)))


def committed(state: FleetState, event: e.TransitionCommitted) -> FleetState:
    """The new epoch is the job's epoch: joiners hold the slots, leavers are leaving."""
    found = _pending(state, event.job, event.transition)
    if found is None or found[1].phase is not Phase.PREPARING:
        return state
    job, pending = found
    plan = pending.plan
    holders, vacant, idle, unproven = job.holders, job.vacant, job.idle, job.unproven
    givers = job.givers
    for drop in plan.drops:
        state = _leave(state, drop.node, drop.incarnation)
        holders, vacant = holders.discard(drop.slot), vacant.discard(drop.slot)
        idle, unproven = idle.insert(drop.slot), unproven.discard(drop.slot)
    for change in plan.changes:
        state = _leave(state, change.leaver, change.leaver_incarnation)
        state, entered = _enter(state, job, change)
        holders, idle = holders.insert(change.slot, change.joiner), idle.discard(change.slot)
        vacant = vacant.discard(change.slot) if entered else vacant.insert(change.slot)
        unproven = unproven.insert(change.slot)
        if change.leaver:
            givers = givers.insert(change.slot, change.leaver)
    leavers = {change.leaver for change in plan.changes} | {g.node for g in plan.givers}
    members = HashTrieSet([name for name in plan.required if name not in leavers])
    pending = replace(
        pending,
        phase=next_phase(pending.phase, e.TransitionCommitted),
        members=members,
        committed=event,
        committed_at_ms=state.at_ms,
    )
    job = replace(
        job,
        epoch=event.epoch,
        launched=True,
        holders=holders,
        vacant=vacant,
        idle=idle,
        unproven=unproven,
        givers=givers,
        pending=pending,
        broken=None,
    )
    return put_job(state, job)


def _leave(state: FleetState, name: NodeId, incarnation: int) -> FleetState:
    leaver = state.nodes.get(name)
    if leaver is None or leaver.incarnation != incarnation or leaver.slot < 0:
        return state
    left = replace(moved(state, leaver, e.TransitionCommitted), slot=Slot(-1), blocked=0)
    return put_node(state, left, leaver)


def _enter(state: FleetState, job: Job, change: e.Change) -> tuple[FleetState, bool]:
    joiner = state.current(change.joiner, change.joiner_incarnation)
    if joiner is None:
        return state, False
    entered = replace(
        moved(state, joiner, e.TransitionCommitted),
        job=job.job,
        slot=change.slot,
        promotions=joiner.promotions + 1,
        blocked=0,
    )
    return put_node(state, entered, joiner), True


def applied(state: FleetState, event: e.TransitionApplied) -> FleetState:
    """One member trains inside the new group."""
    found = _pending(state, event.job, event.transition)
    node = state.current(event.node, event.incarnation)
    if found is None or node is None:
        return state
    job, pending = found
    if pending.phase is not Phase.COMMITTED or event.node not in pending.members:
        return state
    pending = replace(pending, applied=pending.applied.insert(event.node, event))
    if node.slot in job.unproven and job.holders.get(node.slot) == node.node:
        job = replace(
            job,
            began=True,
            unproven=job.unproven.discard(node.slot),
            givers=job.givers.discard(node.slot),
        )
    return put_pending(state, job, pending)


def transition_finished(state: FleetState, event: e.TransitionFinished) -> FleetState:
    """Done: nothing is pending."""
    found = _pending(state, event.job, event.transition)
    return state if found is None else put_job(state, replace(found[0], pending=None))


def aborted(state: FleetState, event: e.TransitionAborted) -> FleetState:
    """Given up before its commit; the next attempt waits for a moment, and what the plan took from
    the budget is given back.
    """
    found = _pending(state, event.job, event.transition)
    if found is None or found[1].phase is not Phase.PREPARING:
        return state
    job, pending = found
    job = replace(
        job,
        pending=None,
        cooldown_until_ms=state.at_ms + event.retry_after_ms,
        stalled=event.reason if event.stalls else "",
    )
    for name in event.blockers:
        node = state.nodes.get(name)
        if node is not None:
            state = put_node(state, replace(node, blocked=node.blocked + 1), node)
    return put_job(_give_back(state, pending), job)


def _give_back(state: FleetState, pending: Transition) -> FleetState:
    taken = pending.harmful
    if not taken:
        return state
    kept: list[int] = []
    for at in state.harmful_at_ms:
        if taken and at == pending.planned_at_ms:
            taken -= 1
        else:
            kept.append(at)
    return replace(state, harmful_at_ms=tuple(kept))


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
    for slot in sorted(job.holders):
        node = holder_of(state, job, slot)
        if node is not None and slot not in job.vacant:
            found[slot] = node.node
    return found
