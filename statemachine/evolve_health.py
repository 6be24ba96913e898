"""Folding verdicts, operators' acts, quarantine, sweeps and certificates."""

from msgspec.structs import replace

from statemachine import events as e
from statemachine.evolve_nodes import moved, put_node
from statemachine.ids import NodeId, SweepId
from statemachine.lifecycle import NodeState, next_warmth
from statemachine.state import FleetState, Node, Sweep

REFERENCE_KEPT = 32
"""Passed sweeps kept per hardware kind as the fleet's own baseline."""


def verdict_issued(state: FleetState, event: e.VerdictIssued) -> FleetState:
    """The standing verdict of a node; a healthy one clears it."""
    node = state.current(event.node, event.incarnation)
    if node is None:
        return state
    standing = None if event.verdict is e.Verdict.HEALTHY else event
    return put_node(state, replace(node, verdict=standing, verdict_position=state.position))


def verdict_withdrawn(state: FleetState, event: e.VerdictWithdrawn) -> FleetState:
    """Later evidence took the verdict back."""
    node = state.current(event.node, event.incarnation)
    return state if node is None else put_node(state, replace(node, verdict=None))


def wanted_out(
    state: FleetState,
    event: e.DrainRequested | e.SwitchoverRequested | e.QuarantineRequested,
) -> FleetState:
    """An operator wants a node out of its slot."""
    node = state.nodes.get(event.node)
    if node is None:
        return state
    kind = {
        e.DrainRequested: "drain",
        e.SwitchoverRequested: "switchover",
        e.QuarantineRequested: "quarantine",
    }[type(event)]
    if node.state in (NodeState.LOST, NodeState.GONE) and kind != "quarantine":
        return state
    to = event.to if isinstance(event, e.SwitchoverRequested) else NodeId("")
    node = replace(node, wanted_out=kind, wanted_out_by=event.by, wanted_to=to)
    if kind == "quarantine":
        node = replace(node, quarantine=f"{event.by}: {event.comment}".rstrip(": "))
    return put_node(state, node)


def asked(state: FleetState, event: e.ReleaseRequested | e.SweepAsked) -> FleetState:
    """An operator gives a node back, or wants it swept."""
    node = state.nodes.get(event.node)
    if node is None:
        return state
    match event:
        case e.SweepAsked():
            return put_node(state, replace(node, sweep_wanted=f"{event.by} asked for it"))
        case e.ReleaseRequested():
            if node.quarantine and not event.force:
                wish = f"{event.by} asked for release"
                return put_node(state, replace(node, sweep_wanted=wish, drained_by=""))
            return put_node(
                state,
                replace(
                    node,
                    quarantine="",
                    wanted_out="release",
                    wanted_out_by=event.by,
                    drained_by="",
                    verdict=None,
                ),
            )


def refused(state: FleetState, event: e.ActRefused) -> FleetState:
    """An act that the state forbids is forgotten."""
    node = state.nodes.get(event.node)
    if node is None:
        return state
    cleared = replace(node, wanted_out="", wanted_out_by="")
    if event.act == "sweep":
        cleared = replace(cleared, sweep_wanted="")
    return put_node(state, cleared)


def placed(
    state: FleetState,
    event: e.NodeQuarantined | e.NodeDrained | e.NodePooled | e.NodeRetired,
) -> FleetState:
    """Where a node that left its slot belongs now."""
    node = state.current(event.node, event.incarnation)
    if node is None:
        return state
    before = node.state
    node = replace(moved(state, node, type(event)), wanted_out="", wanted_out_by="")
    if isinstance(event, e.NodeQuarantined):
        entries = node.quarantined_at_ms
        if before is not NodeState.SWEEPING and not node.quarantine:
            entries = (*entries[-15:], state.at_ms)
        node = replace(node, quarantine=event.reason, quarantined_at_ms=entries, verdict=None)
    if isinstance(event, e.NodeDrained):
        node = replace(node, drained_by=event.reason)
        if node.verdict is not None:  # what was seen of it is not forgotten by taking it away
            node = replace(node, quarantine=node.verdict.reason, verdict=None)
    if isinstance(event, e.NodePooled):
        node = replace(stale(node), quarantine="", drained_by="", verdict=None)
    return put_node(state, node)


def sweep_requested(state: FleetState, event: e.SweepRequested) -> FleetState:
    """A sweep is open."""
    node = state.current(event.node, event.incarnation)
    if node is None or event.sweep <= state.last_sweep:
        return state
    sweep = Sweep(request=event, position=state.position, started_at_ms=state.at_ms)
    state = replace(state, sweeps=state.sweeps.insert(event.sweep, sweep), last_sweep=event.sweep)
    node = replace(moved(state, node, e.SweepRequested), sweep=event.sweep, sweep_wanted="")
    return put_node(state, node)


def sweep_round_finished(state: FleetState, event: e.SweepRoundFinished) -> FleetState:
    """One round's measurements arrived; a second report of a round changes nothing."""
    sweep = state.sweeps.get(event.sweep)
    if sweep is None or any(done.round == event.round for done in sweep.rounds):
        return state
    sweep = replace(sweep, rounds=(*sweep.rounds, event))
    return replace(state, sweeps=state.sweeps.insert(event.sweep, sweep))


def sweep_finished(state: FleetState, event: e.SweepFinished) -> FleetState:
    """The judgement closes the sweep."""
    if event.sweep not in state.sweeps:
        return state
    state = replace(state, sweeps=state.sweeps.remove(event.sweep))
    node = state.current(event.node, event.incarnation)
    if node is None:
        return state
    failed = event.outcome is not e.SweepOutcome.PASSED
    pause_ms = round(state.policy.retry_cooldown_s * 1000) if failed else 0
    node = replace(node, sweep=SweepId(0), cooldown_until_ms=state.at_ms + pause_ms)
    return put_node(state, node)


def certified(state: FleetState, event: e.CertificateIssued) -> FleetState:
    """The way out of quarantine; its numbers join the fleet's baseline."""
    node = state.current(event.node, event.incarnation)
    if node is None:
        return state
    state = _remember(state, node, event)
    node = replace(
        stale(moved(state, node, e.CertificateIssued)),
        certificate=event,
        quarantine="",
        verdict=None,
    )
    return put_node(state, node)


def stale(node: Node) -> Node:
    """The node once what it rehearsed counts no more: it was away from the pool."""
    rehearsals = tuple(
        replace(entry, warmth=next_warmth(entry.warmth, e.NodePooled)) for entry in node.rehearsals
    )
    return replace(node, rehearsals=rehearsals)


def _remember(state: FleetState, node: Node, event: e.CertificateIssued) -> FleetState:
    kept = state.reference.get(node.hardware) or ()
    kept = (*kept[-(REFERENCE_KEPT - 1) :], event.measurements)
    return replace(state, reference=state.reference.insert(node.hardware, kept))
