"""Choosing nodes for slots: deterministic, explained, and blind to the order of arrival.

Rule: a choice is a minimum over a literal key; every candidate that was passed over is named with
the reason, so that `explain` can say what was considered and not chosen.
"""

from typing import Final

from msgspec import Struct

from statemachine.ids import NodeId, Slot
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState, Job, Node

FABRIC_LABEL = "fabric"
"""Label that says which part of the network a node sits in."""


NO_NODE: Final = NodeId("")


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
    only: NodeId = NO_NODE,
) -> Choice:
    """The best free node for a slot: warm and fresh for its role, near, least used, by id.

    With `cold`, a ready node that has not rehearsed is better than none. With `only`, nobody else
    will do.
    """
    role = job.layout.role_of(slot)
    fabric = _fabric_of(state, job, slot)
    candidates: list[tuple[tuple[int, int, int, str], Node, str]] = []
    considered = []
    for name in sorted(state.pool):
        node = state.nodes[name]
        warm = node.warm_for(job.job, role)
        why_not = _unfit(node, job, warm, taken, cold=cold)
        if not why_not and only not in (NO_NODE, name):
            why_not = f"the operator wants {only}"
        if why_not:
            considered.append(f"{name}: {why_not}")
            continue
        far = int(bool(fabric) and dict(node.labels).get(FABRIC_LABEL, "") != fabric)
        key = (0 if warm else 1, far, node.promotions, str(name))
        words = f"{'warm' if warm else 'cold'} for role {role}, promoted {node.promotions} times"
        candidates.append((key, node, words))
    if not candidates:
        return Choice(None, f"no free node for role {role}", tuple(considered))
    candidates.sort(key=lambda candidate: candidate[0])
    considered += [f"{node.node}: {words}" for _, node, words in candidates[1:]]
    return Choice(candidates[0][1], candidates[0][2], tuple(considered))


def _unfit(node: Node, job: Job, warm: bool, taken: set[NodeId], *, cold: bool) -> str:
    reasons = {
        "taken by another slot": node.node in taken,
        "no training process": node.worker is None or node.job != job.job,
        "quarantined": bool(node.quarantine),
        "wanted out": bool(node.wanted_out),
        "under a verdict": node.verdict is not None,
        "not warm": not warm and not cold,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _fabric_of(state: FleetState, job: Job, slot: Slot) -> str:
    holder = state.nodes.get(job.holders[slot]) if slot in job.holders else None
    return dict(holder.labels).get(FABRIC_LABEL, "") if holder is not None else ""


def launch_candidates(state: FleetState, job: Job) -> list[Node]:
    """Nodes that can take a slot at the launch, by id; a late or extra one becomes a standby."""
    return [
        state.nodes[name]
        for name in sorted(state.pool)
        if not _unfit(state.nodes[name], job, warm=False, taken=set(), cold=True)
    ]


def sweep_partner(state: FleetState, subject: Node, *, active: bool) -> Node | None:
    """A known-good partner: a standby first, then a spare, then (if allowed) a node in duty."""
    order = {NodeState.STANDBY: 0, NodeState.SPARE: 1}
    if active:
        order[NodeState.ACTIVE] = 2
    found = []
    names = state.pool if not active else state.nodes
    for name in names:
        node = state.nodes[name]
        if node.state not in order or node.node == subject.node or not node.probe_port:
            continue
        if node.quarantine or node.verdict is not None or node.hardware != subject.hardware:
            continue
        found.append((order[node.state], str(name), node))
    return min(found, key=lambda entry: entry[:2])[2] if found else None
