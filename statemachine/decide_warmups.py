"""Deciding who rehearses which role, and when a rehearsal has taken too long."""

from statemachine import events as e
from statemachine.decision import Decision
from statemachine.ids import NodeId, Role
from statemachine.lifecycle import NodeState, Warmth
from statemachine.parts import evidence
from statemachine.policy import Policy
from statemachine.state import FleetState, Job, Node


def start_rehearsals(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Have every free node rehearse every role of its job, one at a time."""
    if not any(state.jobs[name].launched for name in state.open_jobs):
        return None
    for name in sorted(state.unready):
        node = state.nodes[name]
        job = state.jobs.get(node.job)
        if job is None or not job.launched:
            continue
        if node.state is NodeState.WARMING:
            failed = _overdue_rehearsal(node, now_ms, policy)
            if failed is not None:
                return failed
            continue
        if now_ms < node.cooldown_until_ms or _is_joining_a_slot(job, name):
            continue
        for role in job.roles:
            if not node.warm_for(job.job, role) and not _is_being_recorded(job, node, role):
                reason = f"{name} has not rehearsed role {role} of {job.job}"
                event = e.WarmupStarted(
                    node=node.node,
                    incarnation=node.incarnation,
                    job=job.job,
                    role=role,
                    reason=reason,
                    evidence=evidence((node.ready_position,)),
                )
                return Decision((event,), reason)
    return None


def _is_being_recorded(job: Job, node: Node, role: Role) -> bool:
    """Whether a recording to rehearse with is still to come: it is made in the first step."""
    records = node.worker is not None and node.worker.records
    return records and role not in job.recordings


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
