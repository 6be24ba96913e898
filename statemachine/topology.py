"""The desired topology: what the fold asks of a job's workers, and of one node, as values.

A projection, recomputed from the fold and never edited. Workers watch `Desired` (one key per job)
and `Orders` (one key per node), and react to what they say now, not to what changed: any value
may be missed as long as the last one is seen.
"""

from typing import cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from statemachine import events as e
from statemachine.errors import EventCorrupt
from statemachine.evolve_jobs import live_holders
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Position, Slot, TransitionId
from statemachine.lifecycle import NodeState, Phase, Warmth
from statemachine.packing import PACKED_FROM, is_packed, pack, unpack
from statemachine.policy import Policy
from statemachine.state import FleetState, Job, Node, Rehearsal, Transition
from statemachine.sweep import REFERENCE, TOGETHER
from statemachine.transition import target_members


class Holder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node in a slot, and where its training process may be reached."""

    slot: Slot
    node: NodeId
    incarnation: Incarnation
    host: str
    port: int
    transfer_port: int


class Pending(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The pending transition as its members must see it.

    `members` hold the slots at `to_epoch`; `leavers` held one and give it away. Who has answered so
    far is not in here: the key would be written, and wake every member, once per answer.
    """

    transition: TransitionId
    motive: e.Motive
    phase: Phase
    to_epoch: Epoch
    members: tuple[Holder, ...]
    required: tuple[NodeId, ...]
    joiners: tuple[NodeId, ...]
    leavers: tuple[Holder, ...]
    deadline_at_ms: int
    reason: str
    idle: tuple[Slot, ...] = ()
    """Slots that nobody holds at `to_epoch`, on purpose: groups are built without them."""
    answer_by_ms: int = 0
    """Until when a member that cannot prepare shall say so: before the deadline at which those who
    said nothing are given up, so that it is not taken for one of them."""
    resume_step: int = -1
    apply: tuple[Slot, ...] = ()
    handovers: tuple[e.Handover, ...] = ()
    asks_saves: bool = False
    """Whether a member shall say what it could load, too."""
    loads: bool = False
    """Whether a member that receives nothing loads the step before `resume_step`."""


class Patience(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long a training process waits: before it asks its peers, for their answers, for a
    collective in which nothing moves, and for the steps that prime it. The knobs of the same names
    in `policy`, in force for processes that start after they were set.
    """

    wait_floor_s: float = 1.0
    wait_steps: float = 10.0
    silence_s: float = 2.0
    hang_deadline_s: float = 600.0
    warmup_deadline_s: float = 300.0


class Desired(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job's workers shall be: the committed epoch, and what is pending."""

    job: JobId
    position: Position
    epoch: Epoch
    declared: e.JobDeclared
    members: tuple[Holder, ...]
    pending: Pending | None = None
    stop_requested: bool = False
    """Whether the ranks shall agree on a last step in their next vote."""
    finished: bool = False
    patience: Patience = Patience()


class WarmupCaps(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rehearsal may take before it is given up; zero: without limit.

    `memory_bytes` is of the whole training process, resident.
    """

    deadline_s: float = 0.0
    memory_bytes: int = 0


class Orders(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one node shall do beside, or instead of, holding a slot."""

    node: NodeId
    incarnation: Incarnation
    position: Position
    state: NodeState
    job: JobId = JobId("")
    rehearse: str = ""
    rehearse_since_ms: int = 0
    """Tells a rehearsal from an earlier one of the same role: a node may have missed what was
    between."""
    recording: str = ""
    """What to rehearse with; empty if nothing was recorded."""
    recording_from: tuple[Holder, ...] = ()
    """Who has it, the newest first; their slot is -1."""
    caps: WarmupCaps = WarmupCaps()
    """What the rehearsal may take."""
    sweep: e.SweepRequested | None = None
    rounds: tuple[str, ...] = ()
    """Rounds of the sweep that this node shall measure now, as subject or as partner."""


_DESIRED = msgspec.json.Decoder(Desired)
_ORDERS = msgspec.json.Decoder(Orders)


def encode_projection(value: Desired | Orders) -> bytes:
    """Encode a projected key's value; that of a large job is packed."""
    if isinstance(value, Desired):
        ahead = value.pending.members if value.pending is not None else ()
        if len(value.members) + len(ahead) >= PACKED_FROM:
            return pack(value)
    return msgspec.json.encode(value)


def decode_desired(raw: bytes) -> Desired:
    """Decode a job's desired topology.

    Raises:
        EventCorrupt: not a desired topology.
    """
    try:
        found = unpack(raw, _DESIRED.decode, Holder) if is_packed(raw) else _DESIRED.decode(raw)
    except msgspec.MsgspecError as error:
        raise EventCorrupt(f"no desired topology: {error}") from error
    return cast("Desired", found)


def decode_orders(raw: bytes) -> Orders:
    """Decode a node's orders.

    Raises:
        EventCorrupt: not a node's orders.
    """
    try:
        return _ORDERS.decode(raw)
    except msgspec.MsgspecError as error:
        raise EventCorrupt(f"no orders: {error}") from error


def desired_of(state: FleetState, job: Job) -> Desired:
    """The desired topology of a job by the fold."""
    held = live_holders(state, job)
    members = _holders(state, dict(held.items()))
    pending = job.pending
    return Desired(
        job=job.job,
        position=state.position,
        epoch=job.epoch,
        declared=job.declared,
        members=members,
        pending=_pending(state, job, pending) if pending is not None else None,
        stop_requested=job.stop_requested,
        finished=job.finished,
        patience=patience_of(state.policy),
    )


def patience_of(policy: Policy) -> Patience:
    """The knobs of a policy that a training process heeds."""
    return Patience(
        wait_floor_s=policy.wait_floor_s,
        wait_steps=policy.wait_steps,
        silence_s=policy.silence_s,
        hang_deadline_s=policy.hang_deadline_s,
        warmup_deadline_s=policy.warmup_deadline_s,
    )


def _pending(state: FleetState, job: Job, transition: Transition) -> Pending:
    plan, commit = transition.plan, transition.committed
    target = target_members(live_holders(state, job), plan)
    leavers = {change.slot: change.leaver for change in plan.changes if change.leaver}
    leavers |= {drop.slot: drop.node for drop in plan.drops if drop.node}
    leavers |= {giver.slot: giver.node for giver in plan.givers}
    return Pending(
        transition=plan.transition,
        motive=plan.motive,
        phase=transition.phase,
        to_epoch=Epoch(plan.from_epoch + 1),
        members=_holders(state, target),
        required=plan.required,
        joiners=tuple(change.joiner for change in plan.changes),
        leavers=_holders(state, leavers),
        deadline_at_ms=commit.deadline_at_ms if commit is not None else plan.deadline_at_ms,
        answer_by_ms=_answer_by_ms(transition),
        reason=plan.reason,
        idle=_idle_after(job, plan),
        resume_step=commit.resume_step if commit is not None else -1,
        apply=commit.apply if commit is not None else (),
        handovers=commit.handovers if commit is not None else (),
        asks_saves=plan.asks_saves or plan.motive is e.Motive.LAUNCH,
        loads=commit is not None and commit.loads,
    )


def _idle_after(job: Job, plan: e.TransitionPlanned) -> tuple[Slot, ...]:
    idle = set(job.idle) | {drop.slot for drop in plan.drops}
    return tuple(sorted(idle - {change.slot for change in plan.changes}))


ANSWER_SHARE = 0.7
"""Share of the time for preparing after which a member that cannot shall refuse."""


def _answer_by_ms(transition: Transition) -> int:
    began_at_ms, ends_at_ms = transition.planned_at_ms, transition.plan.deadline_at_ms
    return began_at_ms + round(ANSWER_SHARE * (ends_at_ms - began_at_ms))


def _holders(state: FleetState, held: dict[Slot, NodeId]) -> tuple[Holder, ...]:
    found = []
    for slot in sorted(held):
        node = state.nodes.get(held[slot])
        if node is None or node.worker is None:
            continue
        found.append(
            Holder(
                slot=slot,
                node=node.node,
                incarnation=node.incarnation,
                host=node.worker.host,
                port=node.worker.port,
                transfer_port=node.worker.transfer_port,
            )
        )
    return tuple(found)


def orders_of(state: FleetState, node: Node) -> Orders:
    """A node's orders by the fold."""
    under_way = node.rehearsals if node.state is NodeState.WARMING else ()
    rehearse = next((r for r in under_way if r.warmth is Warmth.WARMING), None)
    made = _recording_of(state, node, rehearse)
    sweep, rounds = _sweep_part(state, node)
    return Orders(
        node=node.node,
        incarnation=node.incarnation,
        position=state.position,
        state=node.state,
        job=node.job,
        rehearse=rehearse.role if rehearse is not None else "",
        rehearse_since_ms=rehearse.since_at_ms if rehearse is not None else 0,
        recording=made.recording if made is not None else "",
        recording_from=_who_has(state, node.job, made) if made is not None else (),
        caps=_caps(state.policy) if rehearse is not None else WarmupCaps(),
        sweep=sweep,
        rounds=rounds,
    )


TELL_SHARE = 0.9
"""Share of a rehearsal's time after which its own process gives up: it knows why, and says so
before the controller would have to guess."""


def _caps(policy: Policy) -> WarmupCaps:
    return WarmupCaps(
        deadline_s=TELL_SHARE * policy.warmup_deadline_s,
        memory_bytes=policy.warmup_memory_mib << 20,
    )


def _recording_of(
    state: FleetState, node: Node, under_way: Rehearsal | None
) -> e.RecordingMade | None:
    job = state.jobs.get(node.job)
    if job is None or under_way is None:
        return None
    return job.recordings.get(under_way.role)


GIVERS_MAX = 4
"""How many nodes that have a recording are named."""


def _who_has(state: FleetState, job: JobId, made: e.RecordingMade) -> tuple[Holder, ...]:
    """Where a recording may be fetched: from its maker, and from who rehearsed with it."""
    keepers = reversed(state.jobs[job].keepers.get(made.role, ()))
    alive = [name for name, incarnation in keepers if state.current(name, incarnation)]
    found = (_holders(state, {Slot(-1): name}) for name in alive[:GIVERS_MAX])
    return tuple(holder for one in found for holder in one)


def _sweep_part(state: FleetState, node: Node) -> tuple[e.SweepRequested | None, tuple[str, ...]]:
    """The sweep that a node takes part in, and the rounds that it shall measure now."""
    for number in sorted(state.sweeps):
        sweep = state.sweeps[number]
        if sweep.request.node == node.node:
            later = () if sweep.is_alone_done() else TOGETHER
            mine = tuple(r for r in sweep.open_rounds() if r != REFERENCE and r not in later)
        elif sweep.request.partner == node.node:
            mine = tuple(r for r in sweep.open_rounds() if r == REFERENCE)
        else:
            continue
        if mine and sweep.third is not None and sweep.third.round in mine:
            return _with_third(sweep.request, sweep.third), mine
        if mine:
            return sweep.request, mine
    return None, ()


def _with_third(request: e.SweepRequested, third: e.SweepExtended) -> e.SweepRequested:
    """The request as whoever measures with the third party reads it."""
    return replace(
        request,
        partner=third.partner,
        partner_host=third.partner_host,
        partner_port=third.partner_port,
    )


_UNSEEN = frozenset(
    {
        e.TransitionPrepared,
        e.TransitionRefused,
        e.TransitionApplied,
        e.StepResumed,
        e.PeerReset,
        e.PeerWaited,
        e.WorkerExited,
        e.LeaseExpired,
        e.GroupBroken,
        e.WorkerFinished,
        e.VerdictIssued,
        e.VerdictWithdrawn,
        e.ActWithheld,
        e.ChangesDrafted,
        e.SourcesChosen,
        e.FaultInjected,
        e.FaultLifted,
    }
)
"""Facts that no worker sees before something is decided upon them. There is one for every member in
every transition: to compare the key of a large job for each would cost more than deciding."""


def subjects(event: e.AnyEvent) -> tuple[tuple[JobId, ...], tuple[NodeId, ...]]:
    """Jobs and nodes whose projection an event may change."""
    if type(event) in _UNSEEN:
        return (), ()
    job = getattr(event, "job", "")
    nodes = {getattr(event, name, "") for name in ("node", "peer", "partner")}
    if isinstance(event, e.TransitionPlanned):
        nodes |= {n for c in event.changes for n in (c.leaver, c.joiner)}
    return (JobId(job),) if job else (), tuple(sorted(NodeId(n) for n in nodes if n))
