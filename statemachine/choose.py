"""Choosing nodes for slots: deterministic, explained, and blind to the order of arrival.

Rule: a choice is a minimum over a literal key; every candidate that was passed over is named with
the reason, so that `explain` can say what was considered and not chosen.
"""

from msgspec import Struct

from statemachine.ids import NodeId, Slot
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState, Job, Node, is_harmful

FABRIC_LABEL = "fabric"
"""Label that says which part of the network a node sits in."""


class Choice(Struct, frozen=True):
    """The chosen node, why, and what was considered."""

    node: Node | None
    reason: str
    considered: tuple[str, ...]


def choose_joiner(
    state: FleetState,
    job: Job,
    slot: Slot,
    taken: set[NodeId],
    *,
    cold: bool,
    only: NodeId | None = None,
) -> Choice:
    """The best free node for a slot: warm and fresh for its role, one that blocked no transition,
    near, least used, by id.

    With `cold`, a ready node that has not rehearsed is better than none. With `only`, that node or
    none.
    """
    role = job.layout.role_of(slot)
    fabric = _fabric_of(state, job, slot)
    candidates: list[tuple[tuple[int, int, int, int, str], Node, str]] = []
    considered = []
    for name in sorted(state.pool):
        node = state.nodes[name]
        warm = node.warm_for(job.job, role)
        why_not = _unfit(node, job, warm, taken, cold=cold, only=only)
        if why_not:
            considered.append(f"{name}: {why_not}")
            continue
        far = int(bool(fabric) and dict(node.labels).get(FABRIC_LABEL, "") != fabric)
        key = (0 if warm else 1, node.blocked, far, node.promotions, str(name))
        candidates.append((key, node, _words(node, role, warm=warm, fabric=fabric, far=bool(far))))
    if not candidates:
        return Choice(None, f"no free node for role {role}", tuple(considered))
    candidates.sort(key=lambda candidate: candidate[0])
    considered += [f"{node.node}: {words}" for _, node, words in candidates[1:]]
    return Choice(candidates[0][1], candidates[0][2], tuple(considered))


def _words(node: Node, role: str, *, warm: bool, fabric: str, far: bool) -> str:
    parts = [f"{'warm' if warm else 'cold'} for role {role}"]
    if node.blocked:
        parts.append(f"blocked {node.blocked} transitions")
    if fabric:
        parts.append(f"{'outside' if far else 'in'} fabric {fabric}")
    parts.append(f"promoted {node.promotions} times")
    return ", ".join(parts)


def _unfit(
    node: Node,
    job: Job,
    warm: bool,
    taken: set[NodeId],
    *,
    cold: bool,
    only: NodeId | None = None,
) -> str:
    if only and node.node != only:
        return f"{only} is asked for"
    if node.node in taken:
        return "taken by another slot"
    if node.worker is None or node.job != job.job:
        return "no training process of this job"
    if node.quarantine or node.retired:
        return "quarantined"
    if node.wanted_out:
        return "wanted out"
    if node.sweep_wanted:
        return "about to be swept"
    if is_harmful(node.verdict):
        return "under a verdict"
    return "" if warm or cold else "not warm"


def _fabric_of(state: FleetState, job: Job, slot: Slot) -> str:
    holder = state.nodes.get(job.holders[slot]) if slot in job.holders else None
    return dict(holder.labels).get(FABRIC_LABEL, "") if holder is not None else ""


def launch_candidates(state: FleetState, job: Job) -> list[Node]:
    """Nodes that can take a slot at the launch, those that blocked one last, by id; a late or
    extra one becomes a standby.
    """
    free = (state.nodes[name] for name in state.pool)
    fit = [node for node in free if not _unfit(node, job, warm=False, taken=set(), cold=True)]
    return sorted(fit, key=lambda node: (node.blocked, node.node))


def sweep_partner(
    state: FleetState, subject: Node, *, active: bool, but: frozenset[NodeId] = frozenset()
) -> Node | None:
    """A known-good partner: a standby first, then a spare, then (if allowed) a node in duty; of
    these one that is in the fewest sweeps, since it measures for one after the other. Not one of
    `but`, who took part already.
    """
    order = {NodeState.STANDBY: 0, NodeState.SPARE: 1}
    if active:
        order[NodeState.ACTIVE] = 2
    found = []
    taken = [party for number in state.sweeps for party in state.sweeps[number].parties()]
    names = state.pool if not active else state.nodes
    for name in names:
        node = state.nodes[name]
        if node.state not in order or node.node == subject.node or not node.probe_port:
            continue
        if name in but:
            continue
        if node.quarantine or node.verdict is not None or node.hardware != subject.hardware:
            continue
        found.append((order[node.state], taken.count(name), str(name), node))
    return min(found, key=lambda entry: entry[:3])[3] if found else None
