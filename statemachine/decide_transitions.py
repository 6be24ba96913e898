"""Deciding about a pending transition: commit, give up, finish, or name who blocks it."""

from statemachine import events as e
from statemachine.decision import Decision
from statemachine.evolve_jobs import live_holders
from statemachine.ids import Epoch, NodeId, Slot
from statemachine.lifecycle import Phase
from statemachine.planning import abort_of, gone_members, open_jobs
from statemachine.policy import Policy
from statemachine.state import FleetState, Job, Transition
from statemachine.transition import planned_handovers, resume_point, target_members


def advance_transition(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Commit when every required member is prepared, finish when every member applied; give up,
    or name who blocks, at the deadline.
    """
    for job in open_jobs(state):
        pending = job.pending
        if pending is None:
            continue
        if pending.phase is Phase.PREPARING:
            decision = _advance_preparing(state, job, pending, now_ms, policy)
        else:
            decision = _advance_committed(state, job, pending, now_ms)
        if decision is not None:
            return decision
    return None


def _advance_preparing(
    state: FleetState, job: Job, pending: Transition, now_ms: int, policy: Policy
) -> Decision | None:
    gone = gone_members(state, pending)
    if gone:
        return abort_of(job, pending, f"{', '.join(gone)} went away while preparing", gone)
    if pending.refused:
        first = pending.refused[0]
        if pending.plan.motive is not e.Motive.UNPLANNED or not first.blames:
            return abort_of(
                job,
                pending,
                f"{first.node} refused: {first.reason}",
                (first.blames or first.node,),
                retry_after_s=policy.retry_cooldown_s,
            )
    awaited = pending.awaited()
    if awaited and now_ms >= pending.plan.deadline_at_ms:
        return _blocked(state, job, pending, awaited, policy)
    if awaited:
        return None
    return _commit(state, job, pending, now_ms, policy)


def _blocked(
    state: FleetState,
    job: Job,
    pending: Transition,
    awaited: tuple[NodeId, ...],
    policy: Policy,
) -> Decision:
    waited_s = (pending.plan.deadline_at_ms - pending.planned_at_ms) / 1000
    reason = f"no answer from {', '.join(awaited)} within {waited_s:.1f} s"
    if pending.plan.motive is e.Motive.PLANNED:
        pause_s = policy.retry_cooldown_s
        reason = f"prepare deadline: {reason}"
        return abort_of(job, pending, reason, awaited, retry_after_s=pause_s)
    return _lose(
        state,
        _culprits(pending, awaited),
        f"prepare deadline of transition {pending.plan.transition}",
    )


def _culprits(pending: Transition, awaited: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Whoever is awaited and did not itself wait for another that is: refusals name whom."""
    waited = {r.node for r in pending.refused if r.blames in awaited}
    return tuple(name for name in awaited if name not in waited) or awaited


def _lose(state: FleetState, names: tuple[NodeId, ...], reason: str) -> Decision:
    events = tuple(
        e.NodeLost(
            node=name,
            incarnation=state.nodes[name].incarnation,
            reason=f"no answer: {reason}",
            evidence=(state.position,),
        )
        for name in names
    )
    return Decision(events, f"lost: {', '.join(names)}: {reason}")


def _commit(
    state: FleetState, job: Job, pending: Transition, now_ms: int, policy: Policy
) -> Decision:
    plan = pending.plan
    resume_step, apply = -1, tuple[Slot, ...]()
    if plan.motive is e.Motive.PLANNED:
        handovers = planned_handovers(plan.changes)
        reason = f"all of {len(plan.required)} members are prepared; the vote picks the boundary"
    else:
        members = target_members(live_holders(state, job), plan)
        reports = {
            slot: ack.report
            for slot, name in members.items()
            if (ack := pending.prepared.get(name)) is not None and ack.report is not None
        }
        resume = resume_point(job.layout, members, reports)
        if resume.missing or (job.launched and not any(r.has_state for r in reports.values())):
            reason = f"cannot resume from memory: {resume.reason}"
            return abort_of(job, pending, reason, retry_after_s=policy.retry_cooldown_s)
        resume_step, apply, handovers = resume.step, resume.apply, resume.handovers
        reason = resume.reason
    event = e.TransitionCommitted(
        job=job.job,
        transition=plan.transition,
        epoch=Epoch(plan.from_epoch + 1),
        resume_step=resume_step,
        apply=apply,
        handovers=handovers,
        deadline_at_ms=now_ms + round(policy.commit_deadline_s * 1000),
        reason=reason,
    )
    return Decision((event,), reason)


def _advance_committed(
    state: FleetState, job: Job, pending: Transition, now_ms: int
) -> Decision | None:
    commit = pending.committed
    if commit is None or gone_members(state, pending):
        return None  # `replace_lost` plans anew from the committed epoch
    awaited = pending.awaited()
    if awaited and now_ms >= commit.deadline_at_ms:
        return _lose(state, awaited, f"commit deadline of transition {commit.transition}")
    if awaited:
        return None
    reason = f"epoch {commit.epoch}: every member trains inside the new groups"
    event = e.TransitionFinished(
        job=job.job, transition=commit.transition, epoch=commit.epoch, reason=reason
    )
    return Decision((event,), reason)
