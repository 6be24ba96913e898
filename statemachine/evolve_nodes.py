"""Folding what nodes say of themselves and of each other: membership, evidence, warm-up."""

from typing import Final

from msgspec.structs import replace

from statemachine import events as e
from statemachine.ids import Incarnation, NodeId
from statemachine.indexes import end_member, put_job, put_node
from statemachine.lifecycle import AWAY_STATES, NODE_TABLE, NodeState, Warmth, next_warmth
from statemachine.state import Accusation, FleetState, Node, Rehearsal


def moved(state: FleetState, node: Node, kind: type[e.Event]) -> Node:
    """The node after an event of `kind`, by the lifecycle table."""
    after = NODE_TABLE[node.state].get(kind)
    if after is None or after is node.state:
        return node
    return replace(node, state=after, since_at_ms=state.at_ms)


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
        serves=tuple(sorted(set(event.serves))),
    )
    if before is not None:
        lived = before.state not in AWAY_STATES
        if lived:
            state = end_member(state, before)
        node = replace(
            node,
            quarantine=before.quarantine,
            drained_by=before.drained_by,
            quarantined_at_ms=before.quarantined_at_ms,
            retired=before.retired,
            promotions=before.promotions,
            certificate=before.certificate,
            remedy=before.remedy,
            remedies=before.remedies,
            sweep_due=before.sweep_due,
            placed_position=before.placed_position,
            ended_position=state.position if lived else before.ended_position,
        )
    return put_node(state, node, before)


def ended(state: FleetState, event: e.NodeLeft | e.NodeLost) -> FleetState:
    """An incarnation is over: fenced, or given back."""
    before = state.current(event.node, event.incarnation)
    if before is None:
        return state
    state = end_member(state, before)
    node = replace(
        moved(state, before, type(event)),
        accusations=(),
        ended_position=state.position,
        verdict=None,
        withheld="",
        wanted_out="",
        worker=None,
    )
    state = put_node(state, node, before)
    if isinstance(event, e.NodeLost):
        state = _void(not_lent(state, event.node), event.node)
    return state


def _void(state: FleetState, reporter: NodeId) -> FleetState:
    """What a fenced node said of its peers counts no more: of two that accuse each other, the one
    that was accused first is lost, and the other stays.
    """
    if reporter not in state.accusers:  # else a thousand that end at once would be a million looks
        return state
    state = replace(state, accusers=state.accusers.discard(reporter))
    for name in sorted(state.accused):
        before = state.nodes[name]
        kept = tuple(said for said in before.accusations if said.by != reporter)
        if len(kept) < len(before.accusations):
            state = put_node(state, replace(before, accusations=kept), before)
    return state


def assigned(state: FleetState, event: e.NodeAssigned) -> FleetState:
    """A node serves another job from here on; what it rehearsed was of another process."""
    before, job = state.current(event.node, event.incarnation), state.jobs.get(event.job)
    if before is None or job is None or job.finished or before.slot >= 0:
        return state
    after = moved(state, before, e.NodeAssigned)
    if after.state is not NodeState.JOINING:
        return state
    state = not_lent(state, event.node)
    job = state.jobs[event.job]
    state = put_job(state, replace(job, lent=(*job.lent, event.node)))
    node = replace(after, job=event.job, worker=None, rehearsals=(), blocked=0)
    return put_node(state, node, before)


def not_lent(state: FleetState, name: NodeId) -> FleetState:
    """Nobody waits any more for a node that was assigned: it is ready, or lost. One that left in
    good order is waited for: its agent may come back as another incarnation to start afresh.
    """
    for job_id in state.open_jobs:
        job = state.jobs[job_id]
        if name in job.lent:
            lent = tuple(other for other in job.lent if other != name)
            state = put_job(state, replace(job, lent=lent))
    return state


def worker_ready(state: FleetState, event: e.WorkerReady) -> FleetState:
    """A training process is ready; what an earlier process rehearsed counts no more. A life serves
    the job that it began with, unless it is assigned to another: it may hold a slot of it.
    """
    before = state.current(event.node, event.incarnation)
    if before is None or before.job not in ("", event.job):
        return state
    state = not_lent(state, event.node)
    stale = before.rehearsals and tuple(
        replace(entry, warmth=next_warmth(entry.warmth, e.WorkerReady))
        for entry in before.rehearsals
    )
    node = moved(state, before, e.WorkerReady)
    at = state.position
    node = replace(node, worker=event, job=event.job, rehearsals=stale, ready_position=at)
    if before.state is NodeState.JOINING and must_qualify(state, node):
        node = replace(node, sweep_wanted=QUALIFY, sweep_wanted_position=at)
    job = state.jobs.get(event.job)
    if job is not None and event.reached > job.reached:
        state = put_job(state, replace(job, reached=event.reached))
    return put_node(state, node, before)


QUALIFY: Final = "it qualifies before its first duty"


def must_qualify(state: FleetState, node: Node) -> bool:
    """Whether a node may have no duty before it has passed a sweep."""
    certificate = node.certificate
    valid = certificate is not None and certificate.expires_at_ms > state.at_ms
    return state.policy.sweep.qualify and not valid


_Evidence = e.WorkerExited | e.LeaseExpired | e.PeerReset | e.PeerWaited


def accused(state: FleetState, event: _Evidence) -> FleetState:
    """Evidence that an incarnation is gone, if both ends of it are the present ones."""
    target, incarnation, by, text = _accusation(state, event)
    before = state.current(target, incarnation)
    if before is None or by is None:
        return state
    kind, due_at_ms = type(event).__name__, 0
    entries = before.accusations
    if isinstance(event, e.PeerWaited):
        entries = tuple(entry for entry in entries if (entry.kind, entry.by) != (kind, by))
        due_at_ms = state.at_ms + round(state.policy.silence_deadline_s * 1000)
        if not event.silent_ms:
            return put_node(state, replace(before, accusations=entries), before)
    if by != target:
        state = replace(state, accusers=state.accusers.insert(by))
    entry = Accusation(position=state.position, kind=kind, by=by, text=text, due_at_ms=due_at_ms)
    return put_node(state, replace(before, accusations=(*entries, entry)), before)


def _accusation(
    state: FleetState, event: _Evidence
) -> tuple[NodeId, Incarnation, NodeId | None, str]:
    match event:
        case e.WorkerExited():
            text = f"its agent saw the training process end ({event.reason})"
            return event.node, event.incarnation, event.node, text
        case e.LeaseExpired():
            return event.node, event.incarnation, event.node, "its lease expired"
        case e.PeerReset() | e.PeerWaited():
            reporter = state.current(event.node, event.incarnation)
            by = event.node if reporter is not None and event.node != event.peer else None
            text = f"{event.node} saw its link reset"
            if isinstance(event, e.PeerWaited):
                text = f"{event.node} waits for it, and it gives no sign of life"
            return event.peer, event.peer_incarnation, by, text


def rehearsed(
    state: FleetState, event: e.WarmupStarted | e.WarmupPassed | e.WarmupFailed
) -> FleetState:
    """One step in the warm-up of one (job, role) on one node."""
    before = state.current(event.node, event.incarnation)
    if before is None:
        return state
    old = before.rehearsal(event.job, event.role)
    entry = _rehearsal(state, old, event)
    node = replace(moved(state, before, type(event)), rehearsals=_with(before, old, entry))
    if isinstance(event, e.WarmupFailed) or _is_of_other_code(node, event):
        pause_ms = round(state.policy.retry_cooldown_s * 1000)
        node = replace(node, cooldown_until_ms=state.at_ms + pause_ms)
    return _keep(put_node(state, node, before), event)


KEEPERS_MAX: Final = 16
"""How many nodes are remembered to have a recording."""


def _keep(
    state: FleetState, event: e.RecordingMade | e.WarmupStarted | e.WarmupPassed | e.WarmupFailed
) -> FleetState:
    """Remember who has the job's recording of a role; those that are gone are forgotten."""
    job = state.jobs.get(event.job)
    if job is None or not isinstance(event, e.RecordingMade | e.WarmupPassed):
        return state
    made = job.recordings.get(event.role)
    if made is None or not event.recording or made.recording != event.recording:
        return state
    mine = event.node, event.incarnation
    kept = [one for one in job.keepers.get(event.role, ()) if one != mine]
    alive = [one for one in kept if state.current(*one) is not None]
    keepers = (*alive[-(KEEPERS_MAX - 1) :], mine)
    return put_job(state, replace(job, keepers=job.keepers.insert(event.role, keepers)))


def recorded(state: FleetState, event: e.RecordingMade) -> FleetState:
    """A role has a recording; what the pool rehearsed with another one is stale."""
    job = state.jobs.get(event.job)
    if job is None or job.finished or state.current(event.node, event.incarnation) is None:
        return state
    known = job.recordings.get(event.role)
    if known is None or known.recording != event.recording:
        keepers = job.keepers.discard(event.role)
        recordings = job.recordings.insert(event.role, event)
        state = put_job(state, replace(job, recordings=recordings, keepers=keepers))
    state = _keep(state, event)
    for name in sorted(state.pool):
        node = state.nodes[name]
        old = node.rehearsal(event.job, event.role)
        if old is None or old.warmth is not Warmth.WARM or old.recording == event.recording:
            continue
        entry = replace(old, warmth=next_warmth(old.warmth, e.RecordingMade))
        state = put_node(state, replace(node, rehearsals=_with(node, old, entry)), node)
    return state


def _is_of_other_code(node: Node, event: e.WarmupStarted | e.WarmupPassed) -> bool:
    """Whether a rehearsal was one of other code than the node's process runs: worth nothing, and
    not to be repeated at once.
    """
    if not isinstance(event, e.WarmupPassed) or node.worker is None:
        return False
    return node.worker.digest != event.digest


def _with(node: Node, old: Rehearsal | None, entry: Rehearsal) -> tuple[Rehearsal, ...]:
    """The node's rehearsals with `entry` in the place of `old`, sorted by job and role."""
    if old is not None:
        return tuple(entry if kept is old else kept for kept in node.rehearsals)
    if not node.rehearsals:
        return (entry,)
    return tuple(sorted((*node.rehearsals, entry), key=lambda kept: (kept.job, kept.role)))


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
        recording=event.recording if isinstance(event, e.WarmupPassed) else "",
        first_step_ms=event.first_step_ms if isinstance(event, e.WarmupPassed) else 0.0,
        reason=event.reason if isinstance(event, e.WarmupFailed) else "",
    )
