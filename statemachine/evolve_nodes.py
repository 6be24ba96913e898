"""Folding what nodes say of themselves and of each other: membership, evidence, warm-up."""

from msgspec.structs import replace
from rpds import HashTrieSet

from statemachine import events as e
from statemachine.ids import Incarnation, NodeId
from statemachine.lifecycle import NodeState, Warmth, next_node_state, next_warmth
from statemachine.state import Accusation, FleetState, Node, Rehearsal

POOLED_STATES = frozenset({NodeState.SPARE, NodeState.WARMING, NodeState.STANDBY})
AWAY_STATES = frozenset({NodeState.LOST, NodeState.GONE})


def put_node(state: FleetState, node: Node) -> FleetState:
    """Store a node's record and keep every index in step with it."""
    before = state.nodes.get(node.node)
    was_present = before is not None and before.state not in AWAY_STATES
    is_present = node.state not in AWAY_STATES
    pool, accused = state.pool, state.accused
    if (node.state in POOLED_STATES) != (node.node in pool):
        pool = pool.insert(node.node) if node.state in POOLED_STATES else pool.remove(node.node)
    if bool(node.accusations) != (node.node in accused):
        accused = accused.insert(node.node) if node.accusations else accused.remove(node.node)
    return replace(
        state,
        nodes=state.nodes.insert(node.node, node),
        present=state.present + int(is_present) - int(was_present),
        pool=pool,
        accused=accused,
        unsettled=_unsettled(state, node),
    )


def _unsettled(state: FleetState, node: Node) -> "HashTrieSet[NodeId]":
    wants = is_unsettled(node)
    if wants == (node.node in state.unsettled):
        return state.unsettled
    return state.unsettled.insert(node.node) if wants else state.unsettled.remove(node.node)


def is_unsettled(node: Node) -> bool:
    """Whether something other than a loss is to be decided about a node."""
    if node.state in AWAY_STATES:
        return False
    if node.state in (NodeState.LEAVING, NodeState.QUARANTINED, NodeState.SWEEPING):
        return True
    reasons = (node.wanted_out, node.drained_by, node.sweep_wanted, node.quarantine)
    return any(reasons) or node.verdict is not None


def moved(state: FleetState, node: Node, kind: type[e.Event]) -> Node:
    """The node after an event of `kind`, by the lifecycle table."""
    after = next_node_state(node.state, kind)
    return node if after is node.state else replace(node, state=after, since_at_ms=state.at_ms)


def joined(state: FleetState, event: e.NodeJoined) -> FleetState:
    """A new incarnation; what the fleet remembers of the machine stays."""
    before = state.nodes.get(event.node)
    if before is not None and before.incarnation >= event.incarnation:
        return state
    node = Node(
        node=event.node,
        incarnation=event.incarnation,
        state=NodeState.JOINING,
        host=event.host,
        since_at_ms=state.at_ms,
        joined_at_ms=state.at_ms,
        hardware=event.hardware,
        probe_port=event.probe_port,
        pid=event.pid,
        labels=tuple(sorted(event.labels.items())),
    )
    if before is not None:
        state = vacate(state, before)
        node = replace(
            node,
            quarantine=before.quarantine,
            drained_by=before.drained_by,
            quarantined_at_ms=before.quarantined_at_ms,
            promotions=before.promotions,
        )
    return put_node(state, node)


def vacate(state: FleetState, node: Node) -> FleetState:
    """Mark the slot of a node that is no more as vacant; the slot keeps its last holder."""
    job = state.jobs.get(node.job) if node.slot >= 0 else None
    if job is None or job.finished or job.holders.get(node.slot) != node.node:
        return state
    job = replace(job, vacant=job.vacant.insert(node.slot))
    return replace(state, jobs=state.jobs.insert(job.job, job))


def ended(state: FleetState, event: e.NodeLeft | e.NodeLost) -> FleetState:
    """An incarnation is over: fenced, or given back."""
    node = state.current(event.node, event.incarnation)
    if node is None:
        return state
    state = vacate(state, node)
    node = moved(state, node, type(event))
    node = replace(node, accusations=(), verdict=None, wanted_out="", worker=None)
    return put_node(state, replace(node, ended_position=state.position))


def worker_ready(state: FleetState, event: e.WorkerReady) -> FleetState:
    """A training process is ready; what an earlier process rehearsed counts no more."""
    node = state.current(event.node, event.incarnation)
    if node is None:
        return state
    stale = tuple(
        replace(entry, warmth=next_warmth(entry.warmth, e.WorkerReady)) for entry in node.rehearsals
    )
    node = moved(state, node, e.WorkerReady)
    return put_node(state, replace(node, worker=event, job=event.job, rehearsals=stale))


def accused(
    state: FleetState, event: e.WorkerExited | e.LeaseExpired | e.PeerReset | e.PeerWaited
) -> FleetState:
    """Evidence that an incarnation is gone, if both ends of it are the present ones."""
    target, incarnation, by, text = _accusation(state, event)
    node = state.current(target, incarnation)
    if node is None or by is None:
        return state
    kind, due_at_ms = type(event).__name__, 0
    entries = node.accusations
    if isinstance(event, e.PeerWaited):
        entries = tuple(entry for entry in entries if (entry.kind, entry.by) != (kind, by))
        due_at_ms = state.at_ms + round(state.policy.silence_deadline_s * 1000)
        if not event.silent_ms:
            return put_node(state, replace(node, accusations=entries))
    entry = Accusation(position=state.position, kind=kind, by=by, text=text, due_at_ms=due_at_ms)
    return put_node(state, replace(node, accusations=(*entries, entry)))


def _accusation(
    state: FleetState, event: e.WorkerExited | e.LeaseExpired | e.PeerReset | e.PeerWaited
) -> tuple[NodeId, Incarnation, NodeId | None, str]:
    match event:
        case e.WorkerExited():
            text = f"its agent saw the training process end ({event.reason})"
            return event.node, event.incarnation, event.node, text
        case e.LeaseExpired():
            return event.node, event.incarnation, event.node, "its lease expired"
        case e.PeerReset() | e.PeerWaited():
            reporter = state.current(event.node, event.incarnation)
            by = event.node if reporter is not None else None
            text = f"{event.node} saw its link reset"
            if isinstance(event, e.PeerWaited):
                text = f"{event.node} waits for it, and it gives no sign of life"
            return event.peer, event.peer_incarnation, by, text


def rehearsed(
    state: FleetState, event: e.WarmupStarted | e.WarmupPassed | e.WarmupFailed
) -> FleetState:
    """One step in the warm-up of one (job, role) on one node."""
    node = state.current(event.node, event.incarnation)
    if node is None:
        return state
    old = node.rehearsal(event.job, event.role)
    entry = _rehearsal(state, old, event)
    others = tuple(x for x in node.rehearsals if (x.job, x.role) != (event.job, event.role))
    node = moved(state, node, type(event))
    if isinstance(event, e.WarmupFailed):
        pause_ms = round(state.policy.retry_cooldown_s * 1000)
        node = replace(node, cooldown_until_ms=state.at_ms + pause_ms)
    kept = sorted((*others, entry), key=lambda x: (x.job, x.role))
    return put_node(state, replace(node, rehearsals=tuple(kept)))


def _rehearsal(
    state: FleetState,
    old: Rehearsal | None,
    event: e.WarmupStarted | e.WarmupPassed | e.WarmupFailed,
) -> Rehearsal:
    before = old.warmth if old is not None else Warmth.NONE
    return Rehearsal(
        job=event.job,
        role=event.role,
        warmth=next_warmth(before, type(event)),
        since_at_ms=state.at_ms,
        digest=event.digest if isinstance(event, e.WarmupPassed) else "",
        first_step_ms=event.first_step_ms if isinstance(event, e.WarmupPassed) else 0.0,
        reason=event.reason if isinstance(event, e.WarmupFailed) else "",
    )
