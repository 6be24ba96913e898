"""Folding transitions: planned, prepared, committed, applied, and how they end.

Rule: an event that leaves out what is too much to list is made whole here, so that whoever reads
the state finds every change, every required member and every source in it.
"""

from msgspec.structs import replace

from statemachine import events as e
from statemachine.answers import Answers, numbered
from statemachine.evolve_jobs import live_holders
from statemachine.evolve_nodes import moved
from statemachine.ids import JobId, NodeId, Slot
from statemachine.indexes import (
    put_job,
    put_node,
    put_nodes,
    put_pending,
    refresh_pool,
)
from statemachine.lifecycle import AWAY_STATES, Phase, next_phase
from statemachine.state import Draft, FleetState, Job, Node, Transition
from statemachine.transition import required_members


def planned(state: FleetState, event: e.TransitionPlanned) -> FleetState:
    """Phase one begins; it takes the place of a pending transition that it replaces."""
    job = state.jobs.get(event.job)
    if job is None or job.finished or event.transition <= job.last_transition:
        return state
    plan = _whole(state, job, event)
    if plan is None:
        return state
    members = numbered(plan.required)
    pending = Transition(
        plan=plan,
        phase=Phase.PREPARING,
        planned_at_ms=state.at_ms,
        position=state.position,
        members=members,
        prepared=Answers.among(members),
        harmful=_count_harmful(state, plan),
    )
    if pending.harmful:
        horizon = state.at_ms - round(state.policy.harmful_window_s * 1000)
        recent = (at for at in state.harmful_at_ms if at > horizon)
        taken = (state.at_ms for _ in range(pending.harmful))
        state = replace(state, harmful_at_ms=(*recent, *taken))
    job = replace(job, last_transition=event.transition, draft=None)
    return put_pending(state, job, pending)


def _whole(state: FleetState, job: Job, plan: e.TransitionPlanned) -> e.TransitionPlanned | None:
    """The plan with all its changes and everybody whom it requires; None if parts of it lack."""
    if plan.parts:
        draft = job.draft
        if draft is None or (draft.transition, draft.parts) != (plan.transition, plan.parts):
            return None
        changes, drops = (*draft.changes, *plan.changes), (*draft.drops, *plan.drops)
        plan = replace(plan, changes=changes, drops=drops)
    return replace(plan, required=required_of(state, job, plan)) if plan.implied else plan


def required_of(state: FleetState, job: Job, plan: e.TransitionPlanned) -> tuple[NodeId, ...]:
    """Who must acknowledge a plan, by its motive, the layout, and who holds which slot."""
    needed = tuple(giver for giver in plan.givers if not _has_replica(job, giver.slot))
    return required_members(
        plan.motive,
        job.layout,
        plan.changes,
        live_holders(state, job),
        drops=plan.drops,
        givers=needed,
    )


def _has_replica(job: Job, slot: Slot) -> bool:
    """Whether a live member that has the state holds the same as a slot."""
    lacking = (job.vacant, job.unproven, job.idle)
    return any(
        not any(other in slots for slots in lacking) for other in job.layout.replicas_of(slot)
    )


def may_lack_state(job: Job) -> bool:
    """Whether some slot's state may be with nobody who lives: it has no holder that is known to
    have it, and no replica that is.
    """
    lacking = {*job.vacant, *job.unproven}
    return any(not _has_replica(job, slot) for slot in lacking)


def drafted(state: FleetState, event: e.ChangesDrafted) -> FleetState:
    """A part of the plan to come; the first one begins a new draft."""
    job = state.jobs.get(event.job)
    if job is None or job.finished or event.transition <= job.last_transition:
        return state
    before = job.draft if event.part > 1 else Draft(transition=event.transition)
    if before is None or (before.transition, before.parts + 1) != (event.transition, event.part):
        return state
    draft = Draft(
        transition=event.transition,
        parts=event.part,
        changes=(*before.changes, *event.changes),
        drops=(*before.drops, *event.drops),
    )
    return put_job(state, replace(job, draft=draft))


def sources_chosen(state: FleetState, event: e.SourcesChosen) -> FleetState:
    """A part of the handovers of the commit to come; the first one begins anew."""
    found = _pending(state, event.job, event.transition)
    if found is None or found[1].phase is not Phase.PREPARING:
        return state
    job, pending = found
    chosen = pending.chosen if event.part > 1 else ()
    parts = pending.chosen_parts if event.part > 1 else 0
    if event.part != parts + 1:
        return state
    handovers = (*chosen, *event.handovers)
    return put_pending(state, job, replace(pending, chosen=handovers, chosen_parts=event.part))


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
    if event.parts:
        if pending.chosen_parts != event.parts:
            return state
        event = replace(event, handovers=(*pending.chosen, *event.handovers))
    plan, launched = pending.plan, job.launched
    holders, vacant, idle, unproven = job.holders, job.vacant, job.idle, job.unproven
    records: dict[NodeId, Node] = {}
    for drop in plan.drops:
        _leave(state, records, drop.node, drop.incarnation)
        holders, vacant = holders.discard(drop.slot), vacant.discard(drop.slot)
        idle, unproven = idle.insert(drop.slot), unproven.discard(drop.slot)
    for change in plan.changes:
        slot = change.slot
        _leave(state, records, change.leaver, change.leaver_incarnation)
        idle = idle.discard(slot) if slot in idle else idle
        if not _enter(state, records, job, change):
            vacant = vacant.insert(slot)
        elif slot in vacant:
            vacant = vacant.discard(slot)
    state = put_nodes(state, records)
    leavers = {change.leaver for change in plan.changes} | {g.node for g in plan.givers}
    members = numbered(name for name in plan.required if name not in leavers)
    pending = replace(
        pending,
        phase=next_phase(pending.phase, e.TransitionCommitted),
        members=members,
        applied=Answers.among(members),
        chosen=(),
        committed=event,
        committed_at_ms=state.at_ms,
        committed_position=state.position,
    )
    job = replace(
        job,
        epoch=event.epoch,
        reached=max(job.reached, event.resume_step - 1),
        launched=True,
        stalled="",
        holders=holders.update({change.slot: change.joiner for change in plan.changes}),
        vacant=vacant,
        idle=idle,
        unproven=unproven.update(change.slot for change in plan.changes),
        givers=job.givers.update({c.slot: c.leaver for c in plan.changes if c.leaver}),
        pending=pending,
        broken=None,
    )
    state = put_job(state, job)
    return state if launched else refresh_pool(state, job)


def _leave(state: FleetState, records: dict[NodeId, Node], name: NodeId, incarnation: int) -> None:
    leaver = records.get(name) or state.nodes.get(name)
    if leaver is None or leaver.incarnation != incarnation or leaver.slot < 0:
        return
    moves = moved(state, leaver, e.TransitionCommitted)
    records[name] = replace(moves, slot=Slot(-1), blocked=0, placed_position=state.position)


def _enter(state: FleetState, records: dict[NodeId, Node], job: Job, change: e.Change) -> bool:
    joiner = records.get(change.joiner) or state.nodes.get(change.joiner)
    if joiner is None or joiner.incarnation != change.joiner_incarnation:
        return False
    if joiner.state in AWAY_STATES:
        return False
    records[change.joiner] = replace(
        moved(state, joiner, e.TransitionCommitted),
        job=job.job,
        slot=change.slot,
        promotions=joiner.promotions + 1,
        blocked=0,
    )
    return True


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
            givers=job.givers.discard(node.slot) if len(job.givers) else job.givers,
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
        saves_asked=event.stalls and pending.plan.asks_saves,
        reached=max(job.reached, reached_by(pending)) if event.stalls else job.reached,
    )
    for name in event.blockers:
        node = state.nodes.get(name)
        if node is not None:
            state = put_node(state, replace(node, blocked=node.blocked + 1), node)
    return put_job(_give_back(state, pending), job)


def reached_by(pending: Transition) -> int:
    """The last step that is in the weights of anybody who is parked; -1: none."""
    reports = (ack.report for _, ack in pending.prepared.items())
    return max((r.applied for r in reports if r is not None and r.has_state), default=-1)


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
