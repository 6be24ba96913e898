"""Deciding where leavers go, which sweeps run, what they prove, and what operators may do."""

from statemachine import events as e
from statemachine.choose import sweep_partner
from statemachine.decision import Decision
from statemachine.ids import NodeId, SweepId
from statemachine.lifecycle import NodeState
from statemachine.policy import Policy
from statemachine.state import FleetState, Node, Sweep
from statemachine.sweep import PAIR, REFERENCE, SOLO, baseline_of, judge_sweep, should_retire


def _unsettled(state: FleetState) -> list[Node]:
    return [state.nodes[name] for name in sorted(state.unsettled)]


def place_leavers(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """After the transition that took its slot, a node goes where the reason says: to quarantine
    (verdict), to the operator (drain), or back to the pool (switchover).

    Whoever takes part in a pending transition is placed when that is over: a joiner that is drained
    meanwhile would get a slot in a state in which it may hold none.
    """
    for node in _unsettled(state):
        if _takes_part(state, node):
            continue
        if node.state is NodeState.JOINING and node.quarantine:
            return _quarantine(node, f"still in quarantine: {node.quarantine}", now_ms, policy)
        if node.state is NodeState.LEAVING:
            return _place(node, now_ms, policy)
        if node.state in _IDLE and node.wanted_out:
            return _place(node, now_ms, policy)
        if node.state in _IDLE and node.drained_by:
            back = e.NodeDrained(
                node=node.node, incarnation=node.incarnation, reason=node.drained_by
            )
            return Decision((back,), f"{node.node}: still {node.drained_by}")
        if node.state in _IDLE and node.quarantine:
            return _quarantine(node, node.quarantine, now_ms, policy)
        if node.state in _BACK and node.wanted_out == "release":
            reason = f"released by {node.wanted_out_by}"
            event = e.NodePooled(node=node.node, incarnation=node.incarnation, reason=reason)
            return Decision((event,), f"{node.node}: {reason}")
    return None


_IDLE = (NodeState.SPARE, NodeState.STANDBY, NodeState.WARMING)
_BACK = (NodeState.DRAINED, NodeState.QUARANTINED, NodeState.RETIRED)


def _takes_part(state: FleetState, node: Node) -> bool:
    """Whether this incarnation gets or gives a slot in the pending transition of its job."""
    job = state.jobs.get(node.job)
    if job is None or job.pending is None:
        return False
    life = node.node, node.incarnation
    return any(
        life in ((c.joiner, c.joiner_incarnation), (c.leaver, c.leaver_incarnation))
        for c in job.pending.plan.changes
    )


def _place(node: Node, now_ms: int, policy: Policy) -> Decision:
    if node.wanted_out == "drain":
        reason = f"drained by {node.wanted_out_by}"
        drained = e.NodeDrained(node=node.node, incarnation=node.incarnation, reason=reason)
        return Decision((drained,), f"{node.node}: {reason}")
    if node.wanted_out == "quarantine":
        return _quarantine(node, node.quarantine or "by operator", now_ms, policy)
    if node.verdict is not None:
        return _quarantine(node, f"{node.verdict.verdict}: {node.verdict.reason}", now_ms, policy)
    reason = "healthy leaver"
    pooled = e.NodePooled(node=node.node, incarnation=node.incarnation, reason=reason)
    return Decision((pooled,), f"{node.node}: {reason}")


def _quarantine(node: Node, reason: str, now_ms: int, policy: Policy) -> Decision:
    event: e.AnyEvent = e.NodeQuarantined(
        node=node.node, incarnation=node.incarnation, reason=reason
    )
    if should_retire(node.quarantined_at_ms, now_ms, policy.sweep):
        reason = f"entry {len(node.quarantined_at_ms) + 1} into quarantine: {reason}"
        event = e.NodeRetired(node=node.node, incarnation=node.incarnation, reason=reason)
    return Decision((event,), f"{node.node}: {reason}")


# --- sweeps -----------------------------------------------------------------------------------


def start_sweeps(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Sweep what is in quarantine, and what an operator asked to have swept."""
    for node in _unsettled(state):
        due = node.state is NodeState.QUARANTINED or (
            bool(node.sweep_wanted)
            and node.state in (NodeState.SPARE, NodeState.STANDBY, NodeState.DRAINED)
        )
        if not due or node.sweep or now_ms < node.cooldown_until_ms or _takes_part(state, node):
            continue
        partner = sweep_partner(state, node, active=policy.sweep_partner_active)
        reason = node.sweep_wanted or f"quarantine: {node.quarantine}"
        return Decision((_request(state, node, partner, now_ms, policy, reason=reason),), reason)
    return None


def _request(
    state: FleetState,
    node: Node,
    partner: Node | None,
    now_ms: int,
    policy: Policy,
    *,
    reason: str,
) -> e.SweepRequested:
    rounds = (SOLO, REFERENCE, PAIR) if partner is not None else (SOLO,)
    return e.SweepRequested(
        sweep=SweepId(state.last_sweep + 1),
        node=node.node,
        incarnation=node.incarnation,
        rounds=rounds,
        reason=reason,
        partner=partner.node if partner is not None else NodeId(""),
        partner_host=partner.host if partner is not None else "",
        partner_port=partner.probe_port if partner is not None else 0,
        deadline_at_ms=now_ms + round(policy.sweep.deadline_s * 1000),
    )


def judge_sweeps(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Close every sweep whose rounds are in, or those alone of a node that failed them; whose node
    is gone, or whose deadline is over.
    """
    for number in sorted(state.sweeps):
        sweep = state.sweeps[number]
        request = sweep.request
        node = state.current(request.node, request.incarnation)
        over = node is None or now_ms >= request.deadline_at_ms or not sweep.open_rounds()
        if over or (sweep.is_alone_done() and _judged(state, sweep, node, policy)[0] is _FAILED):
            return _judge(state, sweep, node, now_ms, policy)
    return None


_FAILED = e.SweepOutcome.FAILED


def _judged(
    state: FleetState, sweep: Sweep, node: Node | None, policy: Policy
) -> tuple[e.SweepOutcome, str]:
    """Outcome and reason by the rounds that are in."""
    reference = [r.measurements for r in sweep.rounds if r.round == REFERENCE and not r.failure]
    history = state.reference.get(node.hardware) if node is not None else None
    baseline = baseline_of((*(history or ()), *reference))
    return judge_sweep(sweep.request, sweep.rounds, baseline, policy.sweep)


def _judge(
    state: FleetState, sweep: Sweep, node: Node | None, now_ms: int, policy: Policy
) -> Decision:
    request = sweep.request
    outcome, reason = _judged(state, sweep, node, policy)
    if node is None:
        outcome, reason = e.SweepOutcome.INCONCLUSIVE, "the node went away"
    finished = e.SweepFinished(
        sweep=request.sweep,
        node=request.node,
        incarnation=request.incarnation,
        outcome=outcome,
        reason=reason,
    )
    events: list[e.AnyEvent] = [finished]
    if node is not None and node.state is NodeState.SWEEPING:
        events.append(_after_sweep(sweep, node, finished, now_ms, policy))
    return Decision(tuple(events), f"sweep {request.sweep} of {request.node}: {outcome}: {reason}")


def _after_sweep(
    sweep: Sweep, node: Node, finished: e.SweepFinished, now_ms: int, policy: Policy
) -> e.AnyEvent:
    if finished.outcome is e.SweepOutcome.PASSED:
        numbers: dict[str, float] = {}
        for finished_round in sweep.rounds:
            if finished_round.round != REFERENCE:
                numbers.update(finished_round.measurements)
        return e.CertificateIssued(
            sweep=finished.sweep,
            node=node.node,
            incarnation=node.incarnation,
            measurements=dict(sorted(numbers.items())),
            expires_at_ms=now_ms + round(policy.sweep.certificate_ttl_s * 1000),
        )
    return e.NodeQuarantined(
        node=node.node,
        incarnation=node.incarnation,
        reason=f"sweep {finished.sweep} {finished.outcome}: {finished.reason}",
    )


# --- verdicts and acts ------------------------------------------------------------------------


def expire_verdicts(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:  # noqa: ARG001
    """A verdict that was not renewed in time counts no more; recovering is never limited."""
    for node in _unsettled(state):
        verdict = node.verdict
        if verdict is None or not verdict.expires_at_ms or now_ms < verdict.expires_at_ms:
            continue
        if node.state is NodeState.LEAVING:
            continue
        reason = "expired without being renewed"
        event = e.VerdictWithdrawn(node=node.node, incarnation=node.incarnation, reason=reason)
        return Decision((event,), f"{node.node}: verdict {reason}")
    return None


def answer_acts(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:  # noqa: ARG001
    """Refuse an operator's act that the state forbids, with the reason."""
    for node in _unsettled(state):
        refused = _why_refused(state, node)
        if refused:
            event = e.ActRefused(
                act=node.wanted_out, node=node.node, by=node.wanted_out_by, reason=refused
            )
            return Decision((event,), f"{node.wanted_out} of {node.node} refused: {refused}")
    return None


def _why_refused(state: FleetState, node: Node) -> str:
    if node.wanted_out == "switchover" and node.state is not NodeState.ACTIVE:
        return "" if _still_leaving(node) else f"it holds no slot (it is {node.state})"
    if node.wanted_out == "release" and node.state not in _BACK:
        return f"it is {node.state}: only a drained, quarantined or retired node is released"
    job = state.jobs.get(node.job)
    if node.wanted_out in ("drain", "switchover") and job is not None and job.finished:
        return ""
    return ""


def _still_leaving(node: Node) -> bool:
    return node.state is NodeState.LEAVING
