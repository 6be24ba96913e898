"""Folding verdicts, operators' acts, quarantine, sweeps and certificates."""

from msgspec.structs import replace

from statemachine import events as e
from statemachine.evolve_nodes import QUALIFY, moved, must_qualify
from statemachine.ids import NodeId, Position, SweepId
from statemachine.indexes import put_node
from statemachine.lifecycle import AWAY_STATES, NodeState, next_warmth
from statemachine.state import FleetState, Node, Sweep, is_harmful
from statemachine.successors import why_nobody

REFERENCE_KEPT = 32
"""Passed sweeps kept per hardware kind as the fleet's own baseline."""

ENTRIES_KEPT = 16
"""Entries into quarantine kept per node."""

_SWEPT_FIRST = frozenset({NodeState.QUARANTINED, NodeState.DRAINED})
_OUT_STATES = frozenset(
    {
        NodeState.LEAVING,
        NodeState.DRAINED,
        NodeState.QUARANTINED,
        NodeState.SWEEPING,
        NodeState.RETIRED,
    }
)


def verdict_issued(state: FleetState, event: e.VerdictIssued) -> FleetState:
    """The standing verdict of a node. A healthy one clears it; unknown is no verdict: it neither
    speaks against a node nor for it.
    """
    before = state.current(event.node, event.incarnation)
    if before is None or event.verdict is e.Verdict.UNKNOWN:
        return state
    if event.verdict is e.Verdict.HEALTHY:
        return put_node(state, replace(before, verdict=None, withheld=""), before)
    node = replace(before, verdict=event, verdict_position=state.position)
    return put_node(state, node, before)


def verdict_withdrawn(state: FleetState, event: e.VerdictWithdrawn) -> FleetState:
    """Later evidence took the verdict back."""
    before = state.current(event.node, event.incarnation)
    if before is None:
        return state
    return put_node(state, replace(before, verdict=None, withheld=""), before)


def withheld(state: FleetState, event: e.ActWithheld) -> FleetState:
    """Nothing was done about a verdict; that is said once."""
    before = state.current(event.node, event.incarnation)
    if before is None or before.verdict is None:
        return state
    said = withheld_mark(before.verdict, event.cause)
    return put_node(state, replace(before, withheld=said), before)


def withheld_mark(verdict: e.VerdictIssued, cause: str) -> str:
    """What tells one reason for doing nothing about a verdict from another."""
    return f"{verdict.verdict} {cause}"


# --- operators' acts --------------------------------------------------------------------------


def wanted_out(
    state: FleetState,
    event: e.DrainRequested | e.SwitchoverRequested | e.QuarantineRequested,
) -> FleetState:
    """An operator wants a node out of its slot."""
    before = state.nodes.get(event.node)
    if before is None:
        return state
    away = before.state in AWAY_STATES
    match event:
        case e.QuarantineRequested():
            reason = f"{event.by}: {event.comment}".rstrip(": ")
            at = state.position if away else before.placed_position
            node = replace(before, quarantine=reason, placed_position=at)
            wants = _out(state, node, "quarantine", event.by)
            return put_node(state, node if away else wants, before)
        case e.DrainRequested():
            node = _out(state, before, "drain", event.by)
            return state if away else put_node(state, node, before)
        case e.SwitchoverRequested():
            node = _out(state, before, "switchover", event.by, to=event.to)
            return state if away else put_node(state, node, before)


def _out(state: FleetState, before: Node, what: str, by: str, *, to: NodeId | None = None) -> Node:
    """The node as it is wanted out; notes if there is nobody for its slot at this moment, since an
    act that was taken on waits, whoever is lost meanwhile.
    """
    node = _wants(before, what, by, at=state.position, to=to)
    return replace(node, wanted_alone=bool(why_nobody(state, node)))


def _wants(
    node: Node,
    what: str,
    by: str,
    *,
    at: int = 0,
    to: NodeId | None = None,
    force: bool = False,
) -> Node:
    return replace(
        node,
        wanted_out=what,
        wanted_out_by=by,
        wanted_position=Position(at),
        wanted_to=to or NodeId(""),
        wanted_force=force,
        wanted_alone=False,
    )


def asked(state: FleetState, event: e.ReleaseRequested | e.SweepAsked) -> FleetState:
    """An operator gives a node back, or wants it swept."""
    before = state.nodes.get(event.node)
    if before is None:
        return state
    match event:
        case e.SweepAsked():
            wants = _wants_sweep(before, f"{event.by} asked for it", state.position)
            return put_node(state, wants, before)
        case e.ReleaseRequested():
            return put_node(state, _released(before, event, state.position), before)


def _released(node: Node, event: e.ReleaseRequested, at: Position) -> Node:
    """What a release does to a record: an act that was not carried out yet is taken back; a node
    that is out goes back at once, or, if it is in quarantine and not forced, by way of a sweep.
    """
    if node.state in AWAY_STATES:  # it may come back clean
        node = replace(node, drained_by="")
        return replace(node, quarantine="", retired="") if event.force else node
    if node.state not in _OUT_STATES and node.wanted_out not in ("", "release"):
        kept = "" if node.wanted_out == "quarantine" else node.quarantine
        return replace(_wants(node, "", ""), quarantine=kept)
    if node.state is NodeState.SWEEPING and not event.force:
        return node  # it comes back by passing
    if node.state in _SWEPT_FIRST and node.quarantine and not event.force:
        return replace(_wants_sweep(node, f"{event.by} asked for release", at), drained_by="")
    return _wants(node, "release", event.by, at=at, force=event.force)


def _wants_sweep(node: Node, why: str, at: Position) -> Node:
    """A sweep that a person wants does not wait for the pause after the last one."""
    return replace(node, sweep_wanted=why, sweep_wanted_position=at, cooldown_until_ms=0)


def refused(state: FleetState, event: e.ActRefused) -> FleetState:
    """An act that the state forbids is forgotten."""
    before = state.nodes.get(event.node)
    if before is None:
        return state
    cleared = replace(before, sweep_wanted="") if event.act == "sweep" else _wants(before, "", "")
    if event.act == "quarantine" and before.slot >= 0:
        cleared = replace(cleared, quarantine="")
    return put_node(state, cleared, before)


# --- where nodes go ---------------------------------------------------------------------------


def is_new_entry(node: Node) -> bool:
    """Whether a node that goes into quarantine now enters it, rather than staying in it."""
    return node.wanted_out == "quarantine" or not (node.quarantine or node.retired)


_FULFILS = {
    e.NodeQuarantined: ("quarantine",),
    e.NodeDrained: ("drain",),
    e.NodePooled: ("release", "switchover"),
    e.NodeRetired: ("quarantine", "drain", "switchover"),
}
"""The wishes of an operator that are fulfilled, or done with, by where a node goes."""


def placed(
    state: FleetState,
    event: e.NodeQuarantined | e.NodeDrained | e.NodePooled | e.NodeRetired,
) -> FleetState:
    """Where a node that left its slot belongs now."""
    before = state.current(event.node, event.incarnation)
    if before is None:
        return state
    node = replace(moved(state, before, type(event)), placed_position=state.position)
    entries = node.quarantined_at_ms
    if isinstance(event, e.NodeQuarantined | e.NodeRetired) and is_new_entry(node):
        entries = (*entries[1 - ENTRIES_KEPT :], state.at_ms)
        if before.state is not NodeState.SWEEPING:
            node = replace(node, sweep_due=True)
    if node.wanted_out in _FULFILS[type(event)]:
        node = _wants(node, "", "")
    match event:
        case e.NodeQuarantined():
            node = replace(node, quarantine=event.reason, verdict=None, withheld="")
        case e.NodeRetired():
            node = replace(node, retired=event.reason, verdict=None, withheld="", sweep_wanted="")
        case e.NodePooled():
            if before.state is NodeState.RETIRED:
                entries = ()
            node = replace(
                stale(node, e.NodePooled),
                quarantine="",
                retired="",
                drained_by="",
                verdict=None,
                withheld="",
                sweeps_failed=node.sweeps_failed if node.sweep_wanted == QUALIFY else 0,
                cooldown_until_ms=node.cooldown_until_ms if node.sweep_wanted == QUALIFY else 0,
                remedy=None,
                remedies=0,
            )
        case e.NodeDrained():
            node = replace(node, drained_by=event.reason)
            if node.verdict is not None and is_harmful(node.verdict):  # it is not forgotten
                node = replace(node, quarantine=node.verdict.reason, verdict=None, withheld="")
    return put_node(state, replace(node, quarantined_at_ms=entries), before)


def stale(node: Node, kind: type[e.Event]) -> Node:
    """The node once what it rehearsed counts no more: by `kind` it comes back to the pool."""
    rehearsals = tuple(
        replace(entry, warmth=next_warmth(entry.warmth, kind)) for entry in node.rehearsals
    )
    return replace(node, rehearsals=rehearsals)


# --- sweeps -----------------------------------------------------------------------------------


def sweep_requested(state: FleetState, event: e.SweepRequested) -> FleetState:
    """A sweep is open."""
    before = state.current(event.node, event.incarnation)
    if before is None or event.sweep <= state.last_sweep:
        return state
    sweep = Sweep(request=event, position=state.position, started_at_ms=state.at_ms)
    state = replace(state, sweeps=state.sweeps.insert(event.sweep, sweep), last_sweep=event.sweep)
    node = replace(moved(state, before, e.SweepRequested), sweep=event.sweep, sweep_wanted="")
    return put_node(state, node, before)


def sweep_round_finished(state: FleetState, event: e.SweepRoundFinished) -> FleetState:
    """One round's measurements arrived; a second report of a round changes nothing."""
    sweep = state.sweeps.get(event.sweep)
    if sweep is None or any(done.round == event.round for done in sweep.rounds):
        return state
    heard = (*sweep.heard, state.position)
    sweep = replace(sweep, rounds=(*sweep.rounds, event), heard=heard)
    return replace(state, sweeps=state.sweeps.insert(event.sweep, sweep))


def sweep_extended(state: FleetState, event: e.SweepExtended) -> FleetState:
    """A third party takes part; a second one changes nothing."""
    sweep = state.sweeps.get(event.sweep)
    if sweep is None or sweep.third is not None:
        return state
    sweep = replace(sweep, third=event)
    return replace(state, sweeps=state.sweeps.insert(event.sweep, sweep))


def remedied(state: FleetState, event: e.RemedyRequested | e.RemedyFinished) -> FleetState:
    """A remedy is under way, or over; of a node that is away as well, since it may be a restart."""
    before = state.nodes.get(event.node)
    if before is None:
        return state
    if isinstance(event, e.RemedyRequested):
        if event.number != before.remedies:
            return state
        node = replace(before, remedy=event, remedies=before.remedies + 1, sweep_due=False)
        return put_node(state, node, before)
    if before.remedy is None or before.remedy.number != event.number:
        return state
    node = replace(before, remedy=None, sweep_due=event.is_done, cooldown_until_ms=0)
    return put_node(state, node, before)


def sweep_finished(state: FleetState, event: e.SweepFinished) -> FleetState:
    """The judgement closes the sweep."""
    if event.sweep not in state.sweeps:
        return state
    state = replace(state, sweeps=state.sweeps.remove(event.sweep))
    before = state.current(event.node, event.incarnation)
    if before is None:
        return state
    failed = event.outcome is not e.SweepOutcome.PASSED
    failures = before.sweeps_failed + 1 if failed else 0
    pause_s = state.policy.sweep_pause_s(failures) if failed else 0.0
    node = replace(
        before,
        sweep=SweepId(0),
        sweeps_failed=failures,
        sweep_due=event.outcome is e.SweepOutcome.INCONCLUSIVE,
        cooldown_until_ms=state.at_ms + round(pause_s * 1000),
    )
    if event.outcome is e.SweepOutcome.INCONCLUSIVE and must_qualify(state, node):
        node = replace(node, sweep_wanted=QUALIFY, sweep_wanted_position=state.position)
    return put_node(state, node, before)


def certified(state: FleetState, event: e.CertificateIssued) -> FleetState:
    """The way out of quarantine; its numbers join the fleet's baseline."""
    before = state.current(event.node, event.incarnation)
    if before is None:
        return state
    state = _remember(state, before, event)
    node = replace(
        stale(moved(state, before, e.CertificateIssued), e.CertificateIssued),
        certificate=event,
        remedy=None,
        remedies=0,
        quarantine="",
        verdict=None,
        withheld="",
    )
    if node.wanted_out == "release":
        node = _wants(node, "", "")
    return put_node(state, node, before)


def _remember(state: FleetState, node: Node, event: e.CertificateIssued) -> FleetState:
    kept = state.reference.get(node.hardware) or ()
    kept = (*kept[-(REFERENCE_KEPT - 1) :], event.measurements)
    return replace(state, reference=state.reference.insert(node.hardware, kept))
