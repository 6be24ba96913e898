"""Deciding which free node serves another job: the pool of standbys is one for all jobs of a fleet.

Theory of operation. A training process is of one job, so a node stands by for the job whose process
it runs. Where a job has a slot to fill and none of its own nodes is free, a free node of another
job is assigned to it: its agent ends the process it has and starts one of that job, which then is
like any other: it may take the slot cold, or rehearses first, as the policy says. A node says when
it joins which jobs it can serve. Nobody is taken who is needed where it is, and no more than it
takes; among several the choice is a minimum over a literal key.
"""

from typing import Final

from statemachine import events as e
from statemachine.decision import Decision
from statemachine.ids import JobId, NodeId
from statemachine.lifecycle import Phase
from statemachine.parts import evidence
from statemachine.planning import is_engaged, losses_of, open_jobs
from statemachine.policy import Policy
from statemachine.state import FleetState, Job, Node, is_harmful


def lend_standbys(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Assign a free node of another job to one that has a slot to fill and nobody for it."""
    if len(state.jobs) < 2:
        return None
    for job in open_jobs(state):
        wanted = _slots_to_fill(job)
        if not wanted or job.stalled:
            continue
        free = [state.nodes[name] for name in sorted(state.pool)]
        own = sum(1 for node in free if node.job == job.job and _is_of_use(node))
        if own + _on_their_way(state, job, now_ms, policy) >= wanted:
            continue
        keys = [(_key(state, free, node), node) for node in free if _may_lend(state, job, node)]
        if job.launched and not len(job.vacant):  # a shrunk job trains: it takes what is left over
            keys = [(key, node) for key, node in keys if key[0] < _LAST]
        if keys:
            return _assign(state, job, min(keys, key=lambda found: found[0])[1])
    return None


def _slots_to_fill(job: Job) -> int:
    """How many slots nobody holds, nor is about to take."""
    if not job.launched:
        return job.layout.slot_count if job.pending is None else 0
    pending = job.pending
    if not len(job.vacant):
        return len(job.idle) if pending is None and not len(job.finished_nodes) else 0
    if pending is None:
        return len(job.vacant)
    if pending.phase is Phase.COMMITTED:
        return len(job.vacant) if pending.gone else 0
    covered = {c.slot for c in pending.plan.changes} | {d.slot for d in pending.plan.drops}
    return sum(1 for slot in job.vacant if slot not in covered)


def _on_their_way(state: FleetState, job: Job, now_ms: int, policy: Policy) -> int:
    """How many nodes were assigned to a job and may still become ready in time."""
    patience_ms = round(policy.warmup_deadline_s * 1000)
    since = (state.nodes[name].since_at_ms for name in job.lent if name in state.nodes)
    return sum(1 for at_ms in since if now_ms < at_ms + patience_ms)


def _is_of_use(node: Node) -> bool:
    kept = node.quarantine or node.retired or node.wanted_out or node.sweep_wanted
    return node.worker is not None and not kept and not is_harmful(node.verdict)


def _may_lend(state: FleetState, job: Job, node: Node) -> bool:
    if node.job == job.job or job.job not in node.serves or not _is_of_use(node):
        return False
    home = state.jobs.get(node.job)
    if home is None or home.finished:
        return True
    return home.launched and not len(home.vacant) and not is_engaged(home, node)


_LAST: Final = 2
"""Rank of a node that is one of the standbys that its own job asked for."""


def _key(state: FleetState, free: list[Node], node: Node) -> tuple[int, int, int, NodeId]:
    """Whose job is over first; then who is beyond the standbys that its job asked for; the less it
    has rehearsed and been used, the less is lost; by id.
    """
    home = state.jobs.get(node.job)
    rank = 0
    if home is not None and not home.finished:
        stands_by = sum(1 for other in free if other.job == home.job and _is_of_use(other))
        rank = 1 if stands_by > home.declared.standbys else _LAST
    return rank, len(node.rehearsals), node.promotions, node.node


def _assign(state: FleetState, job: Job, node: Node) -> Decision:
    home = state.jobs.get(node.job)
    of = f"{node.job or 'no job'}{', which is over' if home is not None and home.finished else ''}"
    why = "a slot of it is vacant" if len(job.vacant) else "it runs without some replicas"
    if not job.launched:
        why = "it has too few nodes for its launch"
    reason = f"{job.job} takes {node.node} of {of}: {why}, and no node of its own is free"
    event = e.NodeAssigned(
        node=node.node,
        incarnation=node.incarnation,
        job=JobId(job.job),
        reason=reason,
        evidence=evidence(losses_of(state, job) or (job.declared_position,)),
    )
    return Decision((event,), reason)
