"""Deciding what follows an ambiguous pair, and what is done about a node that failed its sweep.

Theory of operation. A node that failed is mended by the policy's remedies, the lightest first, each
followed by a sweep; a sweep that could not tell costs no remedy. The last remedy that did not help
retires the node. Whoever carries a remedy out reports whether it was done, never whether it helped.
"""

from statemachine import events as e
from statemachine.choose import sweep_partner
from statemachine.decision import Decision
from statemachine.lifecycle import NodeState
from statemachine.parts import evidence
from statemachine.policy import Policy
from statemachine.state import FleetState, Node, Sweep
from statemachine.sweep import PAIR, THIRD, needs_third_party, usual


def ask_third_party(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Have the node of a slow pair measured with somebody else, while there is time and somebody.

    Without a third party the sweep is inconclusive: neither end is blamed.
    """
    for number in sorted(state.sweeps):
        sweep = state.sweeps[number]
        if not sweep.rounds or sweep.third is not None or sweep.open_rounds():
            continue
        request = sweep.request
        node = state.current(request.node, request.incarnation)
        if node is None or now_ms >= request.deadline_at_ms or not _is_open(state, sweep, node):
            continue
        active = policy.sweep_partner_active
        third = sweep_partner(state, node, active=active, but=frozenset(sweep.parties()))
        if third is None:
            continue
        pair = f"the link of {node.node} and {request.partner} is slow"
        reason = f"{pair}: {third.node} tells on whose side"
        extended = e.SweepExtended(
            sweep=request.sweep,
            node=node.node,
            incarnation=node.incarnation,
            round=THIRD,
            partner=third.node,
            partner_host=third.host,
            partner_port=third.probe_port,
            reason=reason,
            evidence=evidence(sweep.heard),
        )
        return Decision((extended,), reason)
    return None


def _is_open(state: FleetState, sweep: Sweep, node: Node) -> bool:
    """Whether only a third party can tell."""
    if not any(done.round == PAIR for done in sweep.rounds):
        return False
    history = state.reference.get(node.hardware) or ()
    baseline = usual(node.hardware, history, sweep.rounds, state.policy.sweep)
    return needs_third_party(sweep.rounds, baseline, state.policy.sweep)


def mend(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Begin the next remedy of a node whose sweep failed, or end one that took too long."""
    for name in sorted(state.unsettled):
        node = state.nodes[name]
        remedy = node.remedy
        if remedy is not None and now_ms >= remedy.deadline_at_ms:
            return _gave_up(remedy)
        if not policy.sweep.remedies or node.state is not NodeState.QUARANTINED:
            continue
        if remedy is None and not (node.sweep or node.sweep_due or node.sweep_wanted):
            return _next(node, now_ms, policy)
    return None


def _gave_up(remedy: e.RemedyRequested) -> Decision:
    detail = "it was not done in time"
    finished = e.RemedyFinished(
        node=remedy.node, remedy=remedy.remedy, number=remedy.number, is_done=False, detail=detail
    )
    return Decision((finished,), f"{remedy.node}: {remedy.remedy}: {detail}")


def _next(node: Node, now_ms: int, policy: Policy) -> Decision:
    known, because = policy.sweep.remedies, evidence((node.placed_position,))
    if node.remedies >= len(known):
        reason = f"no remedy helped ({', '.join(known)}): {node.quarantine}"
        retired = e.NodeRetired(
            node=node.node, incarnation=node.incarnation, reason=reason, evidence=because
        )
        return Decision((retired,), f"{node.node}: {reason}")
    remedy = e.RemedyRequested(
        node=node.node,
        remedy=known[node.remedies],
        number=node.remedies,
        reason=node.quarantine,
        deadline_at_ms=now_ms + round(policy.sweep.remedy_deadline_s * 1000),
        evidence=because,
    )
    return Decision((remedy,), f"{node.node}: {remedy.remedy}, since {node.quarantine}")
