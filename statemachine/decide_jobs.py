"""Deciding about jobs: launch, replace the lost, swap the unwanted, commit or give up, finish."""

from statemachine import events as e
from statemachine.choose import Choice, choose_joiner, launch_candidates
from statemachine.decision import Decision
from statemachine.evolve_jobs import live_holders
from statemachine.ids import Epoch, Incarnation, NodeId, Position, Role, Slot, TransitionId
from statemachine.lifecycle import NodeState, Phase, Warmth
from statemachine.policy import Policy
from statemachine.state import FleetState, Job, Node, Transition
from statemachine.transition import (
    planned_handovers,
    required_members,
    resume_point,
    target_members,
)


def _jobs(state: FleetState) -> list[Job]:
    return [state.jobs[name] for name in sorted(state.jobs) if not state.jobs[name].finished]


def _change(slot: Slot, joiner: Node, leaver: Node | None = None) -> e.Change:
    return e.Change(
        slot=slot,
        joiner=joiner.node,
        joiner_incarnation=joiner.incarnation,
        leaver=leaver.node if leaver is not None else NodeId(""),
        leaver_incarnation=leaver.incarnation if leaver is not None else Incarnation(0),
    )


def _plan(
    state: FleetState,
    job: Job,
    motive: e.Motive,
    changes: tuple[e.Change, ...],
    now_ms: int,
    *,
    deadline_s: float,
    reason: str,
    evidence: tuple[int, ...] = (),
    choices: tuple[Choice, ...] = (),
) -> e.TransitionPlanned:
    return e.TransitionPlanned(
        job=job.job,
        transition=TransitionId(job.last_transition + 1),
        motive=motive,
        from_epoch=job.epoch,
        changes=changes,
        required=required_members(motive, job.layout, changes, live_holders(state, job)),
        deadline_at_ms=now_ms + round(deadline_s * 1000),
        reason=reason,
        evidence=tuple(Position(position) for position in evidence),
        replaces=job.pending.plan.transition if job.pending is not None else TransitionId(0),
        considered=tuple(line for choice in choices for line in choice.considered),
    )


# --- launch and finish ------------------------------------------------------------------------


def launch(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Fill every slot of a declared job, once its standbys are there or patience is over."""
    for job in _jobs(state):
        if job.launched or job.pending is not None:
            continue
        ready = launch_candidates(state, job)
        slots = job.layout.slot_count
        patience_over = now_ms >= job.declared_at_ms + round(policy.launch_patience_s * 1000)
        if len(ready) < slots or (len(ready) < slots + job.declared.standbys and not patience_over):
            continue
        changes = tuple(_change(Slot(slot), ready[slot]) for slot in range(slots))
        reason = f"launch: {len(ready)} nodes are ready for {slots} slots"
        deadline_s = policy.prepare_deadline_s
        plan = _plan(
            state, job, e.Motive.LAUNCH, changes, now_ms, deadline_s=deadline_s, reason=reason
        )
        return Decision((plan,), reason)
    return None


def finish_job(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:  # noqa: ARG001
    """A job is finished when the holder of every slot committed the last step."""
    for job in _jobs(state):
        if not job.launched or len(job.finished_nodes) < job.layout.slot_count:
            continue
        held = live_holders(state, job)
        steps = [job.finished_nodes.get(held[slot]) for slot in held]
        if len(held) == job.layout.slot_count and all(step is not None for step in steps):
            step = max(step for step in steps if step is not None)
            reason = f"every slot committed step {step}"
            return Decision((e.JobFinished(job=job.job, step=step, reason=reason),), reason)
    return None


# --- a pending transition ---------------------------------------------------------------------


def advance_transition(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Commit when every required member is prepared, finish when every member applied; give up,
    or name who blocks, at the deadline.
    """
    for job in _jobs(state):
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


def _gone_members(state: FleetState, pending: Transition) -> tuple[NodeId, ...]:
    plan = pending.plan
    expected = {change.joiner: change.joiner_incarnation for change in plan.changes}
    expected |= {c.leaver: c.leaver_incarnation for c in plan.changes if c.leaver}
    leavers = {c.leaver for c in plan.changes}
    gone = []
    for name in plan.required:
        if name in leavers and pending.phase is Phase.COMMITTED:
            continue
        node = state.nodes.get(name)
        away = node is None or node.state in (NodeState.LOST, NodeState.GONE)
        reborn = node is not None and expected.get(name, node.incarnation) != node.incarnation
        if away or reborn or (node is not None and _left_its_slot(node, name, expected)):
            gone.append(name)
    return tuple(gone)


def _left_its_slot(node: Node, name: NodeId, expected: dict[NodeId, Incarnation]) -> bool:
    return name not in expected and node.slot < 0


def _abort(
    job: Job,
    pending: Transition,
    reason: str,
    blockers: tuple[NodeId, ...] = (),
    *,
    retry_after_s: float = 0.0,
) -> Decision:
    event = e.TransitionAborted(
        job=job.job,
        transition=pending.plan.transition,
        reason=reason,
        blockers=blockers,
        retry_after_ms=round(retry_after_s * 1000),
    )
    return Decision((event,), reason)


def _advance_preparing(
    state: FleetState, job: Job, pending: Transition, now_ms: int, policy: Policy
) -> Decision | None:
    gone = _gone_members(state, pending)
    if gone:
        return _abort(job, pending, f"{', '.join(gone)} went away while preparing", gone)
    if pending.refused:
        first = pending.refused[0]
        if pending.plan.motive is not e.Motive.UNPLANNED or not first.blames:
            return _abort(
                job,
                pending,
                f"{first.node} refused: {first.reason}",
                (first.node,),
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
        return _abort(job, pending, reason, awaited, retry_after_s=pause_s)
    return _lose(state, awaited, f"prepare deadline of transition {pending.plan.transition}")


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
            return _abort(job, pending, reason, retry_after_s=policy.retry_cooldown_s)
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
    if commit is None or _gone_members(state, pending):
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


# --- changes of slots -------------------------------------------------------------------------


def replace_lost(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Fill the slots of lost nodes; a further loss while one is pending is planned in."""
    for job in _jobs(state):
        if not job.vacant or not job.launched:
            continue
        if job.pending is not None and not _overtaken(state, job, job.pending):
            continue
        if now_ms < job.cooldown_until_ms:
            continue
        decision = _replace_vacant(state, job, now_ms, policy)
        if decision is not None:
            return decision
    return None


def _overtaken(state: FleetState, job: Job, pending: Transition) -> bool:
    covered = {c.slot for c in pending.plan.changes}
    if pending.phase is Phase.COMMITTED:
        return bool(_gone_members(state, pending))
    return any(slot not in covered for slot in job.vacant)


def _replace_vacant(state: FleetState, job: Job, now_ms: int, policy: Policy) -> Decision | None:
    taken: set[NodeId] = set()
    changes: list[e.Change] = []
    choices: list[Choice] = []
    words: list[str] = []
    for slot in sorted(job.vacant):
        choice = choose_joiner(state, job, slot, taken, cold=policy.cold_promotion)
        if choice.node is None:
            return None  # wait: the next node that becomes ready wakes this rule
        lost = state.nodes.get(job.holders[slot]) if slot in job.holders else None
        taken.add(choice.node.node)
        choices.append(choice)
        changes.append(_change(slot, choice.node))
        gone = lost.node if lost is not None else "nobody"
        words.append(f"{choice.node.node} takes slot {slot} of {gone} ({choice.reason})")
    events: list[e.AnyEvent] = []
    if job.pending is not None and job.pending.phase is Phase.PREPARING:
        events += _abort(job, job.pending, "overtaken by a further loss").events
    reason = "; ".join(words)
    events.append(
        _plan(
            state,
            job,
            e.Motive.UNPLANNED,
            tuple(changes),
            now_ms,
            deadline_s=policy.prepare_deadline_s,
            reason=reason,
            choices=tuple(choices),
        )
    )
    return Decision(tuple(events), reason)


def swap_unwanted(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Give away the slots of nodes that an operator or a verdict wants out, within the budget."""
    for job in _jobs(state):
        if job.pending is not None or job.vacant or not job.launched or job.finished_nodes:
            continue
        if now_ms < job.cooldown_until_ms:
            continue
        decision = _swap(state, job, now_ms, policy)
        if decision is not None:
            return decision
    return None


def _swap(state: FleetState, job: Job, now_ms: int, policy: Policy) -> Decision | None:
    taken: set[NodeId] = set()
    changes: list[e.Change] = []
    choices: list[Choice] = []
    words: list[str] = []
    evidence: list[int] = []
    allowance = _budget_left(state, now_ms, policy)
    for name in sorted(state.unsettled):
        node = state.nodes[name]
        why = _why_out(state, node, policy)
        if not why or node.job != job.job or node.slot < 0:
            continue
        harmful = not node.wanted_out
        if harmful and len(changes) >= allowance:
            continue
        choice = choose_joiner(state, job, node.slot, taken, cold=False)
        if choice.node is None:
            continue
        taken.add(choice.node.node)
        choices.append(choice)
        changes.append(_change(node.slot, choice.node, node))
        evidence.append(node.verdict_position)
        words.append(f"{choice.node.node} takes slot {node.slot} of {name}: {why}")
    if not changes:
        return None
    reason = "; ".join(words)
    plan = _plan(
        state,
        job,
        e.Motive.PLANNED,
        tuple(changes),
        now_ms,
        deadline_s=policy.prepare_deadline_s,
        reason=reason,
        evidence=tuple(position for position in evidence if position),
        choices=tuple(choices),
    )
    return Decision((plan,), reason)


def _why_out(state: FleetState, node: Node, policy: Policy) -> str:
    if node.wanted_out in ("drain", "switchover", "quarantine"):
        return f"{node.wanted_out} by {node.wanted_out_by}"
    verdict = node.verdict
    if verdict is None or state.paused_by or policy.shadow:
        return ""
    if verdict.verdict in (e.Verdict.DEGRADED, e.Verdict.FAULTY):
        return f"{verdict.verdict}: {verdict.reason}"
    return ""


def _budget_left(state: FleetState, now_ms: int, policy: Policy) -> int:
    horizon = now_ms - round(policy.harmful_window_s * 1000)
    used = sum(1 for at in state.harmful_at_ms if at > horizon)
    allowed = max(policy.harmful_nodes_max, int(policy.harmful_share_max * state.present))
    return max(0, allowed - used)


# --- rehearsals -------------------------------------------------------------------------------


def start_rehearsals(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Have every free node rehearse every role of its job, one at a time."""
    for name in sorted(state.pool):
        node = state.nodes[name]
        job = state.jobs.get(node.job)
        if job is None or job.finished or not job.launched or node.worker is None:
            continue
        if node.state is NodeState.WARMING:
            failed = _overdue_rehearsal(node, now_ms, policy)
            if failed is not None:
                return failed
            continue
        if now_ms < node.cooldown_until_ms or _is_joining_a_slot(job, name):
            continue
        for role in roles_of(job):
            if not node.warm_for(job.job, role):
                reason = f"{name} has not rehearsed role {role} of {job.job}"
                event = e.WarmupStarted(
                    node=node.node,
                    incarnation=node.incarnation,
                    job=job.job,
                    role=role,
                    reason=reason,
                )
                return Decision((event,), reason)
    return None


def _overdue_rehearsal(node: Node, now_ms: int, policy: Policy) -> Decision | None:
    for entry in node.rehearsals:
        if entry.warmth is not Warmth.WARMING:
            continue
        if now_ms >= entry.since_at_ms + round(policy.warmup_deadline_s * 1000):
            reason = f"no end of the rehearsal within {policy.warmup_deadline_s:.0f} s"
            event = e.WarmupFailed(
                node=node.node,
                incarnation=node.incarnation,
                job=entry.job,
                role=entry.role,
                reason=reason,
            )
            return Decision((event,), f"{node.node}: {reason}")
    return None


def _is_joining_a_slot(job: Job, name: NodeId) -> bool:
    return job.pending is not None and any(c.joiner == name for c in job.pending.plan.changes)


def roles_of(job: Job) -> tuple[Role, ...]:
    """The roles that a standby of a job rehearses, the first slot of each deciding the order."""
    stages = dict(job.layout.axes).get("pp", 1)
    if stages == 1:
        return (job.layout.role_of(0),)
    names = ("first", "last") if stages == 2 else ("first", "last", "middle")
    return tuple(Role(name) for name in names)
