"""Deciding about a pending transition: commit, give up, finish, or name who blocks it."""

from msgspec.structs import replace

from statemachine import events as e
from statemachine.decision import Decision
from statemachine.evolve_jobs import live_holders
from statemachine.evolve_transitions import reached_by
from statemachine.ids import Epoch, NodeId, Slot
from statemachine.lifecycle import Phase
from statemachine.parts import brief, commit_in_parts
from statemachine.planning import abort_of, because, open_jobs, why_out
from statemachine.policy import Policy
from statemachine.state import FleetState, Job, Transition, is_harmful
from statemachine.transition import (
    Resume,
    load_point,
    planned_handovers,
    resume_point,
    target_members,
)


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
    if pending.gone:
        gone = tuple(sorted(pending.gone))
        reason = f"{brief(gone, ', ')} went away while preparing"
        known = [state.nodes[name] for name in gone if name in state.nodes]
        return abort_of(job, pending, reason, gone, evidence=because(*known))
    unwanted = _no_longer_wanted(state, pending, policy)
    if unwanted:
        return abort_of(job, pending, f"no reason is left to take {brief(unwanted, ', ')} out")
    unfit = [c.joiner for c in pending.plan.changes if _is_unfit(state, c.joiner)]
    if unfit:
        reason = f"{brief(unfit, ', ')} may not take a slot any more"
        return abort_of(job, pending, reason, evidence=because(*(state.nodes[n] for n in unfit)))
    if pending.refused and pending.plan.motive is not e.Motive.UNPLANNED:
        first = pending.refused[0]
        reason = f"{first.node} refused: {first.reason}"
        blockers = (first.blames or first.node,)
        pause_s = policy.retry_cooldown_s
        return abort_of(job, pending, reason, blockers, retry_after_s=pause_s)
    if pending.is_answered:
        return _commit(state, job, pending, now_ms, policy)
    if now_ms >= pending.plan.deadline_at_ms or _is_stuck(pending):
        return _blocked(state, job, pending, policy)
    return None


def _no_longer_wanted(state: FleetState, pending: Transition, policy: Policy) -> list[NodeId]:
    """Leavers of a planned transition whose reason to leave is gone; until the commit it may be
    given up, and nothing is done without a reason that holds.
    """
    if pending.plan.motive is not e.Motive.PLANNED:
        return []
    leavers = [c.leaver for c in pending.plan.changes if c.leaver]
    return [name for name in leavers if not why_out(state, state.nodes[name], policy)]


def _is_unfit(state: FleetState, joiner: NodeId) -> bool:
    """Whether somebody wants a joiner out before it is in."""
    node = state.nodes[joiner]
    return bool(node.wanted_out or node.quarantine or node.retired) or is_harmful(node.verdict)


def _refusers(pending: Transition) -> dict[NodeId, e.TransitionRefused]:
    """Whoever refused and did not prepare after all, with its first refusal."""
    found: dict[NodeId, e.TransitionRefused] = {}
    for said in pending.refused:
        if said.node not in pending.prepared:
            found.setdefault(said.node, said)
    return found


def _is_stuck(pending: Transition) -> bool:
    """Whether waiting on would change nothing: whoever did neither prepare nor refuse is named by a
    refusal, which comes only after much of the time for preparing.
    """
    if not pending.refused:
        return False
    refusers = _refusers(pending)
    blamed = {said.blames for said in refusers.values()}
    silent = len(pending.members) - len(pending.prepared) - len(refusers)
    if not refusers or silent > len(blamed):
        return False
    return all(name in refusers or name in blamed for name in pending.awaited())


def _blocked(state: FleetState, job: Job, pending: Transition, policy: Policy) -> Decision:
    plan, awaited = pending.plan, pending.awaited()
    waited_s = (plan.deadline_at_ms - pending.planned_at_ms) / 1000
    if plan.motive is e.Motive.PLANNED:
        reason = f"prepare deadline: no answer from {brief(awaited, ', ')} within {waited_s:.1f} s"
        return abort_of(job, pending, reason, awaited, retry_after_s=policy.retry_cooldown_s)
    refusers = _refusers(pending)
    silent = tuple(name for name in awaited if name not in refusers)
    if silent:  # whoever refuses is alive; it waited for one of those who say nothing
        return _lose(state, silent, f"no answer: prepare deadline of transition {plan.transition}")
    return _lose(state, (_blamed(pending, refusers),), "its peers cannot link to it")


def _blamed(pending: Transition, refusers: dict[NodeId, e.TransitionRefused]) -> NodeId:
    """The one to give up when two ends blame each other: a joiner first, it costs least; else the
    one whom most refusals name; by id.
    """
    named = [
        said.blames if said.blames in pending.members else said.node for said in refusers.values()
    ]
    joiners = {change.joiner for change in pending.plan.changes}
    return min(set(named), key=lambda name: (name not in joiners, -named.count(name), name))


def _lose(state: FleetState, names: tuple[NodeId, ...], reason: str) -> Decision:
    events = tuple(
        e.NodeLost(
            node=name,
            incarnation=state.nodes[name].incarnation,
            reason=reason,
            evidence=(state.position,),
        )
        for name in names
    )
    return Decision(events, f"lost: {brief(names, ', ')}: {reason}")


def _commit(
    state: FleetState, job: Job, pending: Transition, now_ms: int, policy: Policy
) -> Decision:
    plan = pending.plan
    held = live_holders(state, job)
    if plan.motive is e.Motive.PLANNED:
        reason = f"all of {len(plan.required)} members are prepared; the vote picks the boundary"
        handovers = planned_handovers(job.layout, plan.changes, held)
        resume = Resume(step=-1, apply=(), handovers=handovers, missing=(), reason=reason)
        repeats = 0
    else:
        resume = _resume(job, pending, held)
        if resume.missing:
            reason = f"cannot resume from memory: {resume.reason}"
            return abort_of(job, pending, reason, stalls=True)
        repeats = max(0, max(job.reached, reached_by(pending)) + 1 - resume.step)
    reason = resume.reason
    if repeats:
        reason += f"; {repeats} steps that were committed before are done again"
    event = e.TransitionCommitted(
        job=job.job,
        transition=plan.transition,
        epoch=Epoch(plan.from_epoch + 1),
        resume_step=resume.step,
        apply=resume.apply,
        handovers=resume.handovers,
        deadline_at_ms=now_ms + round(policy.commit_deadline_s * 1000),
        reason=reason,
        loads=resume.loads,
        repeats=repeats,
        evidence=(pending.position,),
    )
    return Decision(commit_in_parts(event), reason)


def _resume(job: Job, pending: Transition, held: dict[Slot, NodeId]) -> Resume:
    """Where a parked job goes on: from memory, else from what was saved, if that was asked for."""
    plan = pending.plan
    members = target_members(held, plan)
    reports = {
        slot: ack.report
        for slot, name in members.items()
        if (ack := pending.prepared.get(name)) is not None and ack.report is not None
    }
    givers = {
        giver.slot: (giver.node, ack.report)
        for giver in plan.givers
        if (ack := pending.prepared.get(giver.node)) is not None and ack.report is not None
    }
    found = resume_point(job.layout, members, reports, givers)
    known = (*reports.values(), *(report for _, report in givers.values()))
    if job.began and not any(report.has_state for report in known):
        every = tuple(sorted(members))
        found = replace(found, missing=every, reason="no state") if not found.loads else found
    if not found.missing or not plan.asks_saves:
        return found
    loading = load_point(job.layout, members, reports)
    if loading is None:
        return replace(found, reason=f"{found.reason}; nor was any step of every shard saved")
    return replace(loading, reason=f"{found.reason}; {loading.reason}")


def _advance_committed(
    state: FleetState, job: Job, pending: Transition, now_ms: int
) -> Decision | None:
    commit = pending.committed
    if commit is None or pending.gone:
        return None  # `replace_lost` plans anew from the committed epoch
    if pending.is_answered:
        reason = f"epoch {commit.epoch}: every member trains inside the new groups"
        event = e.TransitionFinished(
            job=job.job,
            transition=commit.transition,
            epoch=commit.epoch,
            reason=reason,
            evidence=(pending.committed_position,),
        )
        return Decision((event,), reason)
    if pending.plan.motive is e.Motive.PLANNED or now_ms < commit.deadline_at_ms:
        return None  # a boundary that does not come may be anybody's fault: all are parked instead
    reason = f"no answer: commit deadline of transition {commit.transition}"
    return _lose(state, pending.awaited(), reason)
