"""Deciding who is lost, from evidence; and when to look again although nothing happens."""

from statemachine import events as e
from statemachine.decision import Decision
from statemachine.ids import JobId
from statemachine.lifecycle import NodeState, Phase, Warmth
from statemachine.policy import Policy
from statemachine.state import Accusation, FleetState, Node


def declare_losses(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:  # noqa: ARG001
    """Fence every accused incarnation: a reset link, its agent's word or its lease suffices.

    That peers wait for it and that it is silent suffices at a deadline, until which it may answer.
    A false accusation costs a swap and never two writers, since `NodeLost` deletes the
    incarnation's key in the transaction that records it.
    """
    lost = []
    for name in sorted(state.accused):
        node = state.nodes[name]
        due = [entry for entry in node.accusations if _counts(state, entry, now_ms)]
        if not due or _only_by_whom_it_accuses(state, node, due):
            continue
        reasons = dict.fromkeys(entry.text for entry in due)
        lost.append(
            e.NodeLost(
                node=node.node,
                incarnation=node.incarnation,
                reason="; ".join(reasons),
                evidence=tuple(entry.position for entry in due),
            )
        )
    if not lost:
        return None
    return Decision(tuple(lost), f"lost: {', '.join(event.node for event in lost)}")


def _counts(state: FleetState, entry: Accusation, now_ms: int) -> bool:
    """Whether an accusation suffices now. The word of a node that is itself lost means nothing
    where it is about waiting: it was the one that could not hear.
    """
    if not entry.due_at_ms:
        return True
    by = state.nodes.get(entry.by)
    gone = by is None or by.state in (NodeState.LOST, NodeState.GONE)
    return now_ms >= entry.due_at_ms and not gone


def _only_by_whom_it_accuses(state: FleetState, node: Node, due: list[Accusation]) -> bool:
    """Whether two nodes call each other silent and the other one shall go: a cut cable between two
    live machines must not cost both. Whom more accuse goes, then the later name.
    """
    if any(not entry.due_at_ms for entry in due):
        return False
    accusers = {entry.by for entry in due}
    for other in sorted(accusers):
        theirs = {entry.by for entry in state.nodes[other].accusations}
        if node.node in theirs and (len(theirs), other) > (len(accusers), node.node):
            return True
    return False


def next_deadline(state: FleetState, now_ms: int, policy: Policy) -> int | None:
    """Unix ms at which `decide` must run again even if no event arrives; None if never."""
    due = [job_due for job in state.jobs for job_due in _job_deadlines(state, job, policy)]
    for name in state.unsettled:
        node = state.nodes[name]
        due.append(node.cooldown_until_ms)
        if node.verdict is not None and node.verdict.expires_at_ms:
            due.append(node.verdict.expires_at_ms)
    for name in state.pool:
        node = state.nodes[name]
        due.append(node.cooldown_until_ms)
        if node.state is NodeState.WARMING:
            due += [
                r.since_at_ms + round(policy.warmup_deadline_s * 1000)
                for r in node.rehearsals
                if r.warmth is Warmth.WARMING
            ]
    due += [entry.due_at_ms for name in state.accused for entry in state.nodes[name].accusations]
    due += [state.sweeps[number].request.deadline_at_ms for number in state.sweeps]
    later = [at for at in due if at > now_ms]
    return min(later, default=None)


def _job_deadlines(state: FleetState, name: JobId, policy: Policy) -> list[int]:
    job = state.jobs[name]
    due = [job.cooldown_until_ms]
    if job.pending is not None:
        commit = job.pending.committed
        waiting_for_commit = job.pending.phase is Phase.PREPARING
        plan_due = job.pending.plan.deadline_at_ms
        due.append(plan_due if waiting_for_commit or commit is None else commit.deadline_at_ms)
    if not job.launched:
        due.append(job.declared_at_ms + round(policy.launch_patience_s * 1000))
    return due
