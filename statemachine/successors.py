"""Who could take a slot if its holder left: what an operator's act is held against.

Rule: a node that is not warm yet, joins, or is being measured counts, since it may be warm soon:
an act waits for it. Where there is no such node the act would wait for a machine that nobody has
promised, so it is refused, and the reason names everybody who was considered.
"""

from statemachine.ids import NodeId, Slot
from statemachine.lifecycle import NodeState
from statemachine.parts import brief
from statemachine.state import FleetState, Job, Node, is_harmful

_MAY_COME = frozenset(
    {
        NodeState.JOINING,
        NodeState.SPARE,
        NodeState.WARMING,
        NodeState.STANDBY,
        NodeState.SWEEPING,
        NodeState.LEAVING,
    }
)
_NO_MORE = (NodeState.LOST, NodeState.GONE)


def why_nobody(state: FleetState, node: Node) -> str:
    """Why nobody could take the slot of a node, not even later; empty if somebody can, or if its
    slot is given away already, or it has none, or its job is about to end.
    """
    job = state.jobs.get(node.job)
    if job is None or node.slot < 0 or job.finished or not job.launched or job.finished_nodes:
        return ""
    changes = job.pending.plan.changes if job.pending is not None else ()
    if any(change.leaver == node.node for change in changes):
        return ""
    engaged = {change.joiner: change.slot for change in changes}
    if node.wanted_to:
        return _why_not_this_one(state, job, node, engaged)
    why_not = {
        name: _why_not(other, job, engaged)
        for name in sorted(state.nodes)
        if (other := state.nodes[name]).slot < 0 and other.state not in _NO_MORE
    }
    if not all(why_not.values()):
        return ""
    passed = brief((f"{name} {why}" for name, why in why_not.items() if why != _OTHERS), ", ")
    told = passed or "no node stands by or joins"
    return f"nobody can take slot {node.slot} of {job.job}: {told}{_alone(job, node.slot)}"


_OTHERS = "serves another job"


def _why_not_this_one(state: FleetState, job: Job, node: Node, engaged: dict[NodeId, Slot]) -> str:
    other = state.nodes.get(node.wanted_to)
    if other is None:
        why = "never joined"
    elif other.slot >= 0:
        why = f"holds slot {other.slot}"
    else:
        why = _why_not(other, job, engaged)
    return f"{node.wanted_to} cannot take slot {node.slot} of {job.job}: it {why}" if why else ""


def _why_not(node: Node, job: Job, engaged: dict[NodeId, Slot]) -> str:
    """Why a node without a slot will not take one of a job, as words that follow its name."""
    if node.job not in ("", job.job) and job.job not in node.serves:
        return _OTHERS
    if node.node in engaged:
        return f"is about to take slot {engaged[node.node]}"
    if node.state not in _MAY_COME:
        return f"is {node.state}"
    if node.quarantine or node.retired or node.drained_by:
        return "is kept out"
    if node.wanted_out not in ("", "switchover"):
        return "is wanted out"
    return "is under a verdict" if is_harmful(node.verdict) else ""


def _alone(job: Job, slot: Slot) -> str:
    """Said where no other holder has the same state: it would be gone from memory as well."""
    lacking = (job.vacant, job.unproven, job.idle)
    for other in job.layout.replicas_of(slot):
        if other != slot and not any(other in slots for slots in lacking):
            return ""
    return "; it is the last replica of its state"
