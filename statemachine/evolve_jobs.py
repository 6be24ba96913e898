"""Folding jobs and their transitions."""

from msgspec.structs import replace

from statemachine import events as e
from statemachine.errors import BadLayout
from statemachine.evolve_nodes import moved, put_node
from statemachine.ids import JobId, NodeId, Slot
from statemachine.layout import Layout
from statemachine.lifecycle import NodeState, Phase, next_phase
from statemachine.state import FleetState, Job, Node, Transition


def put_job(state: FleetState, job: Job) -> FleetState:
    """Store a job's record."""
    return replace(state, jobs=state.jobs.insert(job.job, job))


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
    job = Job(job=event.job, declared=event, layout=layout, declared_at_ms=state.at_ms)
    return put_job(state, job)


def group_broken(state: FleetState, event: e.GroupBroken) -> FleetState:
    """A member of the present epoch is parked in a broken group; its first word counts."""
    job = state.jobs.get(event.job)
    node = state.current(event.node, event.incarnation)
    if job is None or node is None or event.epoch != job.epoch or job.broken is not None:
        return state
    if job.holders.get(node.slot) != node.node:
        return state
    return put_job(state, replace(job, broken=event, broken_position=state.position))


def worker_finished(state: FleetState, event: e.WorkerFinished) -> FleetState:
    """A slot's node committed the last step."""
    job = state.jobs.get(event.job)
    node = state.current(event.node, event.incarnation)
    if job is None or node is None or job.holders.get(node.slot) != node.node:
        return state
    finished = job.finished_nodes.insert(node.node, event.step)
    return put_job(state, replace(job, finished_nodes=finished))


def finished(state: FleetState, event: e.JobFinished) -> FleetState:
    """The job is over; its nodes belong to the pool."""
    job = state.jobs.get(event.job)
    if job is None:
        return state
    for slot, holder in sorted(job.holders.items()):
        node = state.nodes.get(holder)
        if node is not None and node.slot == slot and node.job == job.job:
            state = put_node(state, replace(moved(state, node, e.JobFinished), slot=Slot(-1)))
    return put_job(state, replace(job, finished=True, pending=None))


def planned(state: FleetState, event: e.TransitionPlanned) -> FleetState:
    """Phase one begins; it takes the place of a pending transition that it replaces."""
    job = state.jobs.get(event.job)
    if job is None or event.transition <= job.last_transition:
        return state
    pending = Transition(
        plan=event,
        phase=Phase.PREPARING,
        planned_at_ms=state.at_ms,
        position=state.position,
    )
    if event.motive is e.Motive.PLANNED:
        horizon = state.at_ms - round(state.policy.harmful_window_s * 1000)
        recent = tuple(at for at in state.harmful_at_ms if at > horizon)
        state = replace(state, harmful_at_ms=(*recent, state.at_ms))
    return put_job(state, replace(job, pending=pending, last_transition=event.transition))


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
    if pending.phase is not Phase.PREPARING or event.node not in pending.plan.required:
        return state
    acks = pending.prepared.insert(event.node, event)
    return put_job(state, replace(job, pending=replace(pending, prepared=acks)))


def refused(state: FleetState, event: e.TransitionRefused) -> FleetState:
    """A required node cannot prepare."""
    found = _pending(state, event.job, event.transition)
    if found is None or state.current(event.node, event.incarnation) is None:
        return state
    job, pending = found
    pending = replace(pending, refused=(*pending.refused, event))
    return put_job(state, replace(job, pending=pending))


def committed(state: FleetState, event: e.TransitionCommitted) -> FleetState:
    """The new epoch is the job's epoch: joiners hold the slots, leavers are leaving."""
    found = _pending(state, event.job, event.transition)
    if found is None:
        return state
    job, pending = found
    holders, vacant = job.holders, job.vacant
    for change in pending.plan.changes:
        state = _hand_over(state, job, change)
        holders = holders.insert(change.slot, change.joiner)
        joiner = state.current(change.joiner, change.joiner_incarnation)
        if change.slot in vacant and joiner is not None:
            vacant = vacant.remove(change.slot)
    pending = replace(
        pending,
        phase=next_phase(pending.phase, e.TransitionCommitted),
        committed=event,
        committed_at_ms=state.at_ms,
    )
    job = replace(
        job, epoch=event.epoch, holders=holders, vacant=vacant, pending=pending, broken=None
    )
    return put_job(state, job)


def _hand_over(state: FleetState, job: Job, change: e.Change) -> FleetState:
    leaver = state.current(change.leaver, change.leaver_incarnation)
    if leaver is not None:
        state = put_node(state, replace(moved(state, leaver, e.TransitionCommitted), slot=Slot(-1)))
    joiner = state.current(change.joiner, change.joiner_incarnation)
    if joiner is not None:
        joiner = moved(state, joiner, e.TransitionCommitted)
        state = put_node(
            state,
            replace(joiner, job=job.job, slot=change.slot, promotions=joiner.promotions + 1),
        )
    return state


def applied(state: FleetState, event: e.TransitionApplied) -> FleetState:
    """One member trains inside the new group."""
    found = _pending(state, event.job, event.transition)
    if found is None or state.current(event.node, event.incarnation) is None:
        return state
    job, pending = found
    if pending.phase is not Phase.COMMITTED:
        return state
    acks = pending.applied.insert(event.node, event)
    return put_job(state, replace(job, pending=replace(pending, applied=acks)))


def transition_finished(state: FleetState, event: e.TransitionFinished) -> FleetState:
    """Done: nothing is pending."""
    found = _pending(state, event.job, event.transition)
    return state if found is None else put_job(state, replace(found[0], pending=None))


def aborted(state: FleetState, event: e.TransitionAborted) -> FleetState:
    """Given up before its commit; the next attempt waits for a moment."""
    found = _pending(state, event.job, event.transition)
    if found is None or found[1].phase is not Phase.PREPARING:
        return state
    until = state.at_ms + event.retry_after_ms
    return put_job(state, replace(found[0], pending=None, cooldown_until_ms=until))


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
