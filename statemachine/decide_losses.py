"""Deciding who is lost, from evidence; and when to look again although nothing happens."""

from statemachine import events as e
from statemachine.decision import Decision
from statemachine.ids import JobId, NodeId
from statemachine.lifecycle import NodeState, Phase, Warmth
from statemachine.parts import brief, evidence
from statemachine.policy import Policy
from statemachine.state import Accusation, FleetState, Node


def declare_losses(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:  # noqa: ARG001
    """Fence every accused incarnation: a reset link, its agent's word or its lease suffices.

    That peers wait for it and that it is silent suffices at a deadline, until which it may answer.
    A false accusation costs a swap and never two writers, since `NodeLost` deletes the
    incarnation's key in the transaction that records it. Accusations count in the order of the log:
    what a node says after it was accused itself is void, so that of two that accuse each other one
    stays.
    """
    condemned: dict[NodeId, list[Accusation]] = {}
    for name, entry in _in_order(state, now_ms):
        if entry.by == name or entry.by not in condemned:
            condemned.setdefault(name, []).append(entry)
    if not condemned:
        return None
    lost = tuple(
        e.NodeLost(
            node=name,
            incarnation=state.nodes[name].incarnation,
            reason=brief(dict.fromkeys(entry.text for entry in entries)),
            evidence=evidence(entry.position for entry in entries),
        )
        for name, entries in condemned.items()
    )
    return Decision(lost, f"lost: {brief(condemned, ', ')}")


def _in_order(state: FleetState, now_ms: int) -> list[tuple[NodeId, Accusation]]:
    """Every accusation that counts now, in the order of the log."""
    found = []
    for name in state.accused:
        node = state.nodes[name]
        due = [entry for entry in node.accusations if now_ms >= entry.due_at_ms]
        if due and not _only_by_whom_it_accuses(state, node, due):
            found += [(entry.position, name, entry) for entry in due]
    found.sort(key=lambda said: said[:2])
    return [(name, entry) for _, name, entry in found]


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
    due = [job_due for job in state.open_jobs for job_due in _job_deadlines(state, job, policy)]
    for name in state.unsettled:
        node = state.nodes[name]
        due.append(node.cooldown_until_ms)
        if node.verdict is not None and node.verdict.expires_at_ms:
            due.append(node.verdict.expires_at_ms)
        if node.remedy is not None:
            due.append(node.remedy.deadline_at_ms)
        if node.withheld:  # perhaps for want of budget
            due += [at + round(policy.harmful_window_s * 1000) for at in state.harmful_at_ms]
    for name in state.unready:
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
    patience_ms = round(policy.warmup_deadline_s * 1000)
    due += [state.nodes[name].since_at_ms + patience_ms for name in job.lent]
    if job.vacant:
        due.append(job.vacant_since_ms + round(policy.loss_wait_s * 1000))
    return due
