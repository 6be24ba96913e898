"""Deciding who is swapped out although it lives: whom operators and verdicts want out."""

from statemachine import events as e
from statemachine.choose import Choice, choose_joiner
from statemachine.decision import Decision
from statemachine.evolve_health import withheld_mark
from statemachine.ids import NodeId
from statemachine.lifecycle import NodeState
from statemachine.parts import brief
from statemachine.planning import because, budget_left, change_of, open_jobs, plan_of, why_out
from statemachine.policy import Policy
from statemachine.state import FleetState, Job, Node, Transition, is_harmful


def swap_unwanted(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Give away the slots of nodes that an operator or a verdict wants out, within the budget."""
    for job in open_jobs(state):
        if job.pending is not None or job.vacant or not job.launched or job.finished_nodes:
            continue
        if now_ms < job.cooldown_until_ms or job.stalled:
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
    allowance = budget_left(state, now_ms, policy)
    for name in sorted(state.unsettled):
        node = state.nodes[name]
        why = why_out(state, node, policy)
        if not why or node.job != job.job or node.slot < 0:
            continue
        if not node.wanted_out and not allowance:
            continue
        choice = choose_joiner(
            state, job, node.slot, taken, cold=False, only=node.wanted_to or None
        )
        if choice.node is None:
            continue
        allowance -= not node.wanted_out
        taken.add(choice.node.node)
        choices.append(choice)
        changes.append(change_of(node.slot, choice.node, node))
        evidence.append(node.wanted_position if node.wanted_out else node.verdict_position)
        words.append(f"{choice.node.node} takes slot {node.slot} of {name}: {why}")
    if not changes:
        return None
    reason = brief(words)
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
    return Decision(plan, reason)


def withhold_acts(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Record once per verdict what is not done about it, and why."""
    for name in sorted(state.unsettled):
        node = state.nodes[name]
        verdict = node.verdict
        if verdict is None or not is_harmful(verdict) or node.state is not NodeState.ACTIVE:
            continue
        cause = _why_withheld(state, node, now_ms, policy)
        if not cause or node.withheld == withheld_mark(verdict, cause):
            continue
        reason = f"{verdict.verdict}: {verdict.reason}"
        job = state.jobs[node.job]
        choice = choose_joiner(state, job, node.slot, set(), cold=False)
        joiner = choice.node.node if choice.node is not None else "nobody"
        event = e.ActWithheld(
            node=name,
            incarnation=node.incarnation,
            job=node.job,
            act=f"swap slot {node.slot} to {joiner}",
            cause=cause,
            reason=reason,
            evidence=because(node),
        )
        return Decision((event,), f"{name}: {event.act} withheld ({cause}): {reason}")
    return None


def _why_withheld(state: FleetState, node: Node, now_ms: int, policy: Policy) -> str:
    if node.wanted_out or _leaves(state, node):
        return ""
    if policy.shadow:
        return "shadow"
    if state.paused_by:
        return "paused"
    return "" if budget_left(state, now_ms, policy) else "budget"


def _leaves(state: FleetState, node: Node) -> bool:
    pending: Transition | None = state.jobs[node.job].pending
    return pending is not None and any(c.leaver == node.node for c in pending.plan.changes)
