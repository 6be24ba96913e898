"""Deciding who takes which slot: the lost are replaced, the unwanted are swapped out."""

from statemachine import events as e
from statemachine.choose import Choice, choose_joiner
from statemachine.decision import Decision
from statemachine.ids import NodeId
from statemachine.lifecycle import Phase
from statemachine.planning import abort_of, change_of, gone_members, open_jobs, plan_of
from statemachine.policy import Policy
from statemachine.state import FleetState, Job, Node, Transition


def replace_lost(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Fill the slots of lost nodes; a further loss while one is pending is planned in."""
    for job in open_jobs(state):
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


def mend_groups(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Give every member new groups where one broke although nobody died: all park, agree on the
    step, and go on with the same members.
    """
    for job in open_jobs(state):
        if job.broken is None or job.vacant or now_ms < job.cooldown_until_ms:
            continue
        events: list[e.AnyEvent] = []
        if job.pending is not None:
            if job.pending.phase is Phase.COMMITTED or _is_unplanned(job.pending):
                continue
            events += abort_of(job, job.pending, "overtaken by a broken group").events
        reason = f"new groups for all: {job.broken.node} is parked ({job.broken.cause})"
        plan = plan_of(
            state,
            job,
            e.Motive.UNPLANNED,
            (),
            now_ms,
            deadline_s=policy.prepare_deadline_s,
            reason=reason,
            evidence=(job.broken_position,),
        )
        return Decision((*events, plan), reason)
    return None


def _is_unplanned(pending: Transition) -> bool:
    return pending.plan.motive is not e.Motive.PLANNED


def _overtaken(state: FleetState, job: Job, pending: Transition) -> bool:
    covered = {c.slot for c in pending.plan.changes}
    if pending.phase is Phase.COMMITTED:
        return bool(gone_members(state, pending))
    return any(slot not in covered for slot in job.vacant)


def _replace_vacant(state: FleetState, job: Job, now_ms: int, policy: Policy) -> Decision | None:
    taken: set[NodeId] = set()
    changes: list[e.Change] = []
    choices: list[Choice] = []
    words: list[str] = []
    evidence: list[int] = []
    for slot in sorted(job.vacant):
        choice = choose_joiner(state, job, slot, taken, cold=policy.cold_promotion)
        if choice.node is None:
            return None  # wait: the next node that becomes ready wakes this rule
        lost = state.nodes.get(job.holders[slot]) if slot in job.holders else None
        if lost is not None and lost.ended_position:
            evidence.append(lost.ended_position)
        taken.add(choice.node.node)
        choices.append(choice)
        changes.append(change_of(slot, choice.node))
        gone = lost.node if lost is not None else "nobody"
        words.append(f"{choice.node.node} takes slot {slot} of {gone} ({choice.reason})")
    events: list[e.AnyEvent] = []
    if job.pending is not None and job.pending.phase is Phase.PREPARING:
        events += abort_of(job, job.pending, "overtaken by a further loss").events
    reason = "; ".join(words)
    events.append(
        plan_of(
            state,
            job,
            e.Motive.UNPLANNED,
            tuple(changes),
            now_ms,
            deadline_s=policy.prepare_deadline_s,
            reason=reason,
            evidence=tuple(evidence),
            choices=tuple(choices),
        )
    )
    return Decision(tuple(events), reason)


def swap_unwanted(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Give away the slots of nodes that an operator or a verdict wants out, within the budget."""
    for job in open_jobs(state):
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
        choice = choose_joiner(state, job, node.slot, taken, cold=False, only=node.wanted_to)
        if choice.node is None:
            continue
        taken.add(choice.node.node)
        choices.append(choice)
        changes.append(change_of(node.slot, choice.node, node))
        evidence.append(node.verdict_position)
        words.append(f"{choice.node.node} takes slot {node.slot} of {name}: {why}")
    if not changes:
        return None
    reason = "; ".join(words)
    plan = plan_of(
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
