"""Deciding where leavers go, which sweeps run, what they prove, and what operators may do."""

from statemachine import events as e
from statemachine.choose import sweep_partner
from statemachine.decision import Decision
from statemachine.evolve_health import is_new_entry
from statemachine.evolve_nodes import QUALIFY
from statemachine.ids import NodeId, Position, SweepId
from statemachine.lifecycle import NodeState
from statemachine.parts import evidence
from statemachine.planning import because, is_engaged
from statemachine.policy import Policy
from statemachine.state import FleetState, Node, Sweep, is_harmful
from statemachine.successors import why_nobody
from statemachine.sweep import PAIR, REFERENCE, SOLO, judge_sweep, should_retire, usual


def _unsettled(state: FleetState) -> list[Node]:
    return [state.nodes[name] for name in sorted(state.unsettled)]


def place_leavers(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """After the transition that took its slot, a node goes where the reason says: to quarantine
    (verdict), to the operator (drain), or back to the pool (switchover).

    Whoever takes part in a pending transition is placed when that is over: a joiner that is drained
    meanwhile would get a slot in a state in which it may hold none.
    """
    for node in _unsettled(state):
        if is_engaged(state.jobs.get(node.job), node):
            continue
        decision = _place(node, now_ms, policy)
        if decision is not None:
            return decision
    return None


_IDLE = frozenset({NodeState.SPARE, NodeState.STANDBY, NodeState.WARMING})
_BACK = frozenset({NodeState.DRAINED, NodeState.QUARANTINED, NodeState.RETIRED})


def _place(node: Node, now_ms: int, policy: Policy) -> Decision | None:
    """Where a node without a slot belongs, if not where it is."""
    wants, by = node.wanted_out, node.wanted_out_by
    at = node.state
    if at is NodeState.LEAVING:
        return _place_leaver(node, now_ms, policy)
    if at in _BACK:
        if wants == "release" and (node.wanted_force or at is NodeState.DRAINED):
            return _pool(node, f"released by {by}")
        if wants == "quarantine" and at is NodeState.DRAINED:
            return _quarantine(node, node.quarantine, now_ms, policy)
        return None
    if at is not NodeState.JOINING and at not in _IDLE:
        return None
    if node.retired:
        return _retire(node, node.retired)
    if node.quarantine or wants == "quarantine":
        return _quarantine(node, node.quarantine or f"by {by}", now_ms, policy)
    if at in _IDLE and (wants == "drain" or node.drained_by):
        return _drain(node)
    return None


def _place_leaver(node: Node, now_ms: int, policy: Policy) -> Decision:
    if node.wanted_out == "drain":
        return _drain(node)
    if node.wanted_out == "quarantine":
        return _quarantine(node, node.quarantine or "by operator", now_ms, policy)
    forced = node.wanted_out == "release" and node.wanted_force
    if node.verdict is not None and is_harmful(node.verdict) and not forced:
        return _quarantine(node, f"{node.verdict.verdict}: {node.verdict.reason}", now_ms, policy)
    return _pool(node, "healthy leaver")


_Positions = tuple[Position, ...]


def _drain(node: Node, said: _Positions = ()) -> Decision:
    reason = node.drained_by or f"drained by {node.wanted_out_by}"
    drained = e.NodeDrained(
        node=node.node, incarnation=node.incarnation, reason=reason, evidence=said or because(node)
    )
    return Decision((drained,), f"{node.node}: {reason}")


def _pool(node: Node, reason: str, said: _Positions = ()) -> Decision:
    pooled = e.NodePooled(
        node=node.node, incarnation=node.incarnation, reason=reason, evidence=said or because(node)
    )
    return Decision((pooled,), f"{node.node}: {reason}")


def _retire(node: Node, reason: str, said: _Positions = ()) -> Decision:
    retired = e.NodeRetired(
        node=node.node, incarnation=node.incarnation, reason=reason, evidence=said or because(node)
    )
    return Decision((retired,), f"{node.node}: {reason}")


def _quarantine(
    node: Node, reason: str, now_ms: int, policy: Policy, said: _Positions = ()
) -> Decision:
    """Into quarantine, or out of the fleet for good if it enters once too often."""
    if is_new_entry(node) and should_retire(node.quarantined_at_ms, now_ms, policy.sweep):
        entry = f"entry {len(node.quarantined_at_ms) + 1} into quarantine: {reason}"
        return _retire(node, entry, said)
    event = e.NodeQuarantined(
        node=node.node, incarnation=node.incarnation, reason=reason, evidence=said or because(node)
    )
    return Decision((event,), f"{node.node}: {reason}")


# --- sweeps -----------------------------------------------------------------------------------


def start_sweeps(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Sweep what is in quarantine, and what an operator asked to have swept.

    Whoever serves in a sweep is swept after it: so a whole fleet is measured in two rounds.
    """
    serving = {party for number in state.sweeps for party in state.sweeps[number].parties()}
    for node in _unsettled(state):
        due = (node.state is NodeState.QUARANTINED and _tells_more(node, policy)) or (
            bool(node.sweep_wanted)
            and node.state in (NodeState.SPARE, NodeState.STANDBY, NodeState.DRAINED)
        )
        if (
            not due
            or node.sweep
            or node.node in serving
            or now_ms < node.cooldown_until_ms
            or is_engaged(state.jobs.get(node.job), node)
        ):
            continue
        partner = sweep_partner(state, node, active=policy.sweep_partner_active)
        if partner is None and policy.sweep.partner_needed and node.sweep_wanted == QUALIFY:
            continue  # it has time until there is somebody to measure with
        reason = node.sweep_wanted or f"quarantine: {node.quarantine}"
        return Decision((_request(state, node, partner, now_ms, policy, reason=reason),), reason)
    return None


def _tells_more(node: Node, policy: Policy) -> bool:
    """Whether a sweep of a node in quarantine may end otherwise than the last one."""
    if not policy.sweep.remedies:
        return True
    return node.remedy is None and node.sweep_due


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
        evidence=_why_swept(node),
    )


def _why_swept(node: Node) -> tuple[Position, ...]:
    """Where somebody asked for a sweep, or it became necessary; else where it was quarantined."""
    return evidence((node.sweep_wanted_position if node.sweep_wanted else node.placed_position,))


def judge_sweeps(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Close every sweep whose rounds are in, or those alone of a node that failed them; whose node
    is gone, or whose deadline is over.
    """
    for number in sorted(state.sweeps):
        sweep = state.sweeps[number]
        request = sweep.request
        node = state.current(request.node, request.incarnation)
        if not sweep.rounds and node is not None and now_ms < request.deadline_at_ms:
            continue  # nothing is in yet: most open sweeps, most of the time
        over = node is None or now_ms >= request.deadline_at_ms or not sweep.open_rounds()
        if over or (sweep.is_alone_done() and _judged(state, sweep, node, policy)[0] is _FAILED):
            return _judge(state, sweep, node, now_ms, policy)
    return None


_FAILED = e.SweepOutcome.FAILED


def _judged(
    state: FleetState, sweep: Sweep, node: Node | None, policy: Policy
) -> tuple[e.SweepOutcome, str]:
    """Outcome and reason by the rounds that are in."""
    hardware = node.hardware if node is not None else ""
    history = state.reference.get(hardware) or ()
    baseline = usual(hardware, history, sweep.rounds, policy.sweep)
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
        evidence=evidence((sweep.position, *sweep.heard)),
    )
    events: list[e.AnyEvent] = [finished]
    if node is not None and node.state is NodeState.SWEEPING:
        events.append(_after_sweep(sweep, node, finished, now_ms, policy))
    return Decision(tuple(events), f"sweep {request.sweep} of {request.node}: {outcome}: {reason}")


def _after_sweep(
    sweep: Sweep, node: Node, finished: e.SweepFinished, now_ms: int, policy: Policy
) -> e.AnyEvent:
    """Where a node goes from its sweep: a pass clears it, a fail is an entry into quarantine. What
    could not tell changes nothing: a node that was in no quarantine goes back to where it was. One
    that does not pass again and again is an operator's.
    """
    reason = f"sweep {finished.sweep} {finished.outcome}: {finished.reason}"
    if finished.outcome is e.SweepOutcome.PASSED:
        return _certificate(sweep, node, now_ms, policy, f"sweep {finished.sweep} passed")
    if finished.outcome is e.SweepOutcome.FAILED or node.quarantine:
        tries = node.sweeps_failed + 1
        if tries >= policy.sweep_tries_max:
            why = f"{tries} sweeps in a row without a pass: {reason}"
            return _retire(node, why, finished.evidence).events[0]
        return _quarantine(node, reason, now_ms, policy, finished.evidence).events[0]
    if node.drained_by:
        return _drain(node, finished.evidence).events[0]
    return _pool(node, reason, finished.evidence).events[0]


def _certificate(
    sweep: Sweep, node: Node, now_ms: int, policy: Policy, reason: str
) -> e.CertificateIssued:
    numbers: dict[str, float] = {}
    for finished_round in sweep.rounds:
        if finished_round.round != REFERENCE:
            numbers.update(finished_round.measurements)
    return e.CertificateIssued(
        sweep=sweep.request.sweep,
        node=node.node,
        incarnation=node.incarnation,
        measurements=dict(sorted(numbers.items())),
        expires_at_ms=now_ms + round(policy.sweep.certificate_ttl_s * 1000),
        reason=reason,
        evidence=evidence((sweep.position, *sweep.heard)),
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
        event = e.VerdictWithdrawn(
            node=node.node,
            incarnation=node.incarnation,
            reason=reason,
            evidence=evidence((node.verdict_position,)),
        )
        return Decision((event,), f"{node.node}: verdict {reason}")
    return None


def answer_acts(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:  # noqa: ARG001
    """Refuse an operator's act that the state forbids, with the reason."""
    for node in _unsettled(state):
        refused = why_nobody(state, node) if node.wanted_alone else ""
        refused = refused or _why_refused(node)
        act, by = node.wanted_out, node.wanted_out_by
        if not refused and node.sweep_wanted and node.state in (_S.ACTIVE, _S.RETIRED):
            duty = "holds a slot: drain it first" if node.state is _S.ACTIVE else "is retired"
            act, by, refused = "sweep", node.sweep_wanted.partition(" ")[0], f"it {duty}"
        if refused:
            at = node.sweep_wanted_position if act == "sweep" else node.wanted_position
            said = evidence((at,))
            event = e.ActRefused(act=act, node=node.node, by=by, reason=refused, evidence=said)
            return Decision((event,), f"{act} of {node.node} refused: {refused}")
    return None


_S = NodeState


def _why_refused(node: Node) -> str:
    wants, at = node.wanted_out, node.state
    match wants:
        case "switchover" if at not in (_S.ACTIVE, _S.LEAVING):
            return f"it holds no slot (it is {at})"
        case "release" if at is _S.RETIRED and not node.wanted_force:
            return f"it is retired ({node.retired}): that takes force, and a comment"
        case "release" if at not in _BACK and at not in (_S.LEAVING, _S.SWEEPING):
            return f"it is {at}: only a drained, quarantined or retired node is released"
        case "drain" if at in _BACK:
            return f"it is out already ({at})"
        case "quarantine" if at in (_S.QUARANTINED, _S.RETIRED):
            return f"it is out already ({at})"
        case _:
            return ""
