"""The node's half of the protocol, pure: what its agent must do when it sees or hears something.

An agent feeds in the desired topology of its job, its own orders, and what its training process
says; out come instructions: tell the process something, state a fact, run a round of a sweep.
Level-triggered: every input may come twice, late, or not at all, as long as the last one comes.
Each transition is told to the process once per phase; what concerns another incarnation, or a
transition that is no longer pending, is dropped here.
"""

from msgspec import Struct
from msgspec.structs import replace

from statemachine import events as e
from statemachine import messages as m
from statemachine.ids import Epoch, GroupName, Incarnation, JobId, NodeId, Role, Slot, TransitionId
from statemachine.lifecycle import NodeState, Phase
from statemachine.topology import Desired, Holder, Orders, Pending


class Tell(Struct, frozen=True):
    """Say this to the training process."""

    message: m.ToWorker


class Submit(Struct, frozen=True):
    """State this fact."""

    event: e.AnyEvent


class RunRound(Struct, frozen=True):
    """Measure one round of a sweep and state the result."""

    sweep: e.SweepRequested
    round: str


Instruction = Tell | Submit | RunRound


class Participant(Struct, frozen=True, kw_only=True):
    """What one agent knows of its part."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    reached: int = -1
    """The last step that the training process of this node's life before committed."""
    ready: m.Ready | None = None
    epoch: Epoch = Epoch(0)
    slot: Slot = Slot(-1)
    pending: Pending | None = None
    told_prepare: TransitionId = TransitionId(0)
    told_commit: TransitionId = TransitionId(0)
    acked: TransitionId = TransitionId(0)
    member: bool = False
    """Whether the training process was told to hold a slot, and did not say that it left."""
    rehearsing: tuple[Role, int] = (Role(""), 0)
    """The rehearsal that was told last: its role and when it began, Unix ms."""
    rounds_begun: tuple[tuple[int, str], ...] = ()
    told_stop_requested: bool = False
    stopped: bool = False


Outcome = tuple[Participant, tuple[Instruction, ...]]


# --- the desired topology ---------------------------------------------------------------------


def on_desired(me: Participant, desired: Desired) -> Outcome:
    """React to the desired topology as it is now."""
    if desired.job != me.job or me.ready is None:
        return me, ()
    if desired.finished:
        return _on_finished(me)
    told: list[Instruction] = []
    if desired.stop_requested and not me.told_stop_requested:
        me = replace(me, told_stop_requested=True)
        told.append(Tell(m.StopRequested()))
    me = replace(me, epoch=desired.epoch, slot=_slot_in(me, desired.members))
    before, now = me.pending, desired.pending
    if before is not None and _was_given_up(me, before, now):
        told.append(Tell(m.Cancel(transition=before.transition)))
    me = replace(me, pending=now)
    if now is not None and _concerns(me, now):
        me = _tell_phase(me, now, told)
    elif me.member and me.slot < 0:
        if me.told_commit and me.told_commit == me.told_prepare:
            # Told to leave at a boundary that may never come, since its transition was replaced.
            told.append(Tell(m.Cancel(transition=me.told_commit)))
        told.append(Tell(m.Release()))
        me = replace(me, member=False)
    return me, tuple(told)


def _was_given_up(me: Participant, before: Pending, now: Pending | None) -> bool:
    replaced = now is None or now.transition != before.transition
    told = me.told_prepare == before.transition
    return replaced and told and before.phase is Phase.PREPARING


def _on_finished(me: Participant) -> Outcome:
    if me.stopped:
        return me, ()
    return replace(me, stopped=True), (Tell(m.Stop(reason="the job is finished")),)


def _slot_in(me: Participant, holders: tuple[Holder, ...]) -> Slot:
    for holder in holders:
        if holder.node == me.node and holder.incarnation == me.incarnation:
            return holder.slot
    return Slot(-1)


def _is_leaver(me: Participant, pending: Pending) -> bool:
    return _slot_in(me, pending.leavers) >= 0


def _concerns(me: Participant, pending: Pending) -> bool:
    return _slot_in(me, pending.members) >= 0 or _is_leaver(me, pending)


def _tell_phase(me: Participant, pending: Pending, told: list[Instruction]) -> Participant:
    if me.told_prepare != pending.transition:
        told.append(Tell(_prepare(me, pending)))
        me = replace(me, told_prepare=pending.transition)
    if pending.phase is Phase.COMMITTED and me.told_commit != pending.transition:
        told.append(Tell(_commit(me, pending)))
        me = replace(me, told_commit=pending.transition, member=True)
    return me


def _prepare(me: Participant, pending: Pending) -> m.Prepare:
    return m.Prepare(
        transition=pending.transition,
        motive=pending.motive,
        epoch=pending.to_epoch,
        slot=_slot_in(me, pending.members),
        members=pending.members,
        leavers=pending.leavers,
        deadline_at_ms=pending.answer_by_ms or pending.deadline_at_ms,
        idle=pending.idle,
        asks_saves=pending.asks_saves,
    )


def _commit(me: Participant, pending: Pending) -> m.Commit:
    slot = _slot_in(me, pending.members)
    receive = next((h for h in pending.handovers if h.joiner == me.node), None)
    everyone = {holder.node: holder for holder in (*pending.leavers, *pending.members)}
    sources = tuple(everyone[n] for n in receive.sources if n in everyone) if receive else ()
    send = tuple(
        everyone[h.joiner]
        for h in pending.handovers
        if me.node in h.sources and h.joiner in everyone
    )
    return m.Commit(
        transition=pending.transition,
        motive=pending.motive,
        epoch=pending.to_epoch,
        resume_step=pending.resume_step,
        apply=_applies(me, pending, slot, receives=receive is not None),
        receive=receive,
        sources=sources,
        send=send,
        leave=slot < 0,
        loads=pending.loads and slot >= 0 and receive is None,
    )


def _applies(me: Participant, pending: Pending, slot: Slot, *, receives: bool) -> bool:
    """Whether this node holds the gradients that its slot's state lacks: as the slot's member, or
    as the one who gave the slot away and is asked for its state.
    """
    if slot >= 0:
        return slot in pending.apply and not receives
    gives = any(me.node in handover.sources for handover in pending.handovers)
    return gives and _slot_in(me, pending.leavers) in pending.apply


# --- orders -----------------------------------------------------------------------------------


def on_orders(me: Participant, orders: Orders) -> Outcome:
    """React to this node's orders as they are now."""
    if orders.node != me.node or orders.incarnation != me.incarnation:
        return me, ()
    told: list[Instruction] = []
    wanted = (Role(orders.rehearse), orders.rehearse_since_ms)
    if me.ready is not None and wanted != me.rehearsing:
        me = replace(me, rehearsing=wanted)
        if orders.rehearse and orders.state is NodeState.WARMING:
            rehearse = m.Rehearse(
                job=orders.job,
                role=wanted[0],
                recording=orders.recording,
                recording_from=orders.recording_from,
                caps=orders.caps,
            )
            told.append(Tell(rehearse))
    if orders.sweep is not None:
        for name in orders.rounds:
            mark = (int(orders.sweep.sweep), name)
            if mark not in me.rounds_begun:
                me = replace(me, rounds_begun=(*me.rounds_begun[-63:], mark))
                told.append(RunRound(orders.sweep, name))
    return me, tuple(told)


# --- what the training process says -----------------------------------------------------------


def on_message(me: Participant, said: m.FromWorker) -> Outcome:
    """React to the training process's word."""
    match said:
        case m.Ready():
            return _on_ready(me, said)
        case m.Recorded():
            return me, (Submit(_recorded(me, said)),)
        case m.Saved():
            return me, (Submit(_saved(me, said)),)
        case m.Rehearsed():
            return _on_rehearsed(me, said)
        case m.PeerGone():
            return me, (Submit(_reset(me, said)),)
        case m.PeerSilent():
            return me, (Submit(_waited(me, said)),)
        case m.Broken():
            return me, (Submit(_broken(me, said)),)
        case m.Prepared():
            return _on_prepared(me, said)
        case m.Refused():
            return _on_refused(me, said)
        case m.Applied():
            return _on_applied(me, said)
        case m.Resumed():
            return me, (Submit(_resumed(me, said)),)
        case m.Finished():
            return me, (Submit(_finished(me, said)),)
        case m.Window() | m.Parked():
            return me, ()


def _on_ready(me: Participant, said: m.Ready) -> Outcome:
    fact = e.WorkerReady(
        node=me.node,
        incarnation=me.incarnation,
        job=me.job,
        host=said.host,
        port=said.port,
        transfer_port=said.transfer_port,
        pid=said.pid,
        digest=said.digest,
        state_bytes=said.state_bytes,
        records=said.records,
        phases_ms=said.phases_ms,
        reached=me.reached,
    )
    return replace(me, ready=said), (Submit(fact),)


def _on_rehearsed(me: Participant, said: m.Rehearsed) -> Outcome:
    fact: e.AnyEvent = e.WarmupPassed(
        node=me.node,
        incarnation=me.incarnation,
        job=said.job,
        role=said.role,
        digest=said.digest,
        first_step_ms=said.first_step_ms,
        steady_step_ms=said.steady_step_ms,
        took_ms=said.took_ms,
        recording=said.recording,
        allocate_bytes=said.allocate_bytes,
    )
    if said.failure:
        fact = e.WarmupFailed(
            node=me.node,
            incarnation=me.incarnation,
            job=said.job,
            role=said.role,
            reason=said.failure,
        )
    return me, (Submit(fact),)


def _recorded(me: Participant, said: m.Recorded) -> e.RecordingMade:
    return e.RecordingMade(
        node=me.node,
        incarnation=me.incarnation,
        job=said.job,
        role=said.role,
        recording=said.recording,
        digest=said.digest,
        step=said.step,
        nbytes=said.nbytes,
        tensors=said.tensors,
        took_ms=said.took_ms,
        failure=said.failure,
    )


def _saved(me: Participant, said: m.Saved) -> e.CheckpointWritten:
    return e.CheckpointWritten(
        node=me.node,
        incarnation=me.incarnation,
        job=me.job,
        slot=me.slot,
        step=said.step,
        nbytes=said.nbytes,
        copy_ms=said.copy_ms,
        write_ms=said.write_ms,
        failure=said.failure,
    )


def _reset(me: Participant, said: m.PeerGone) -> e.PeerReset:
    return e.PeerReset(
        node=me.node,
        incarnation=me.incarnation,
        job=me.job,
        epoch=said.epoch,
        peer=said.peer,
        peer_incarnation=said.peer_incarnation,
        group=GroupName(said.group),
        step=said.step,
    )


def _waited(me: Participant, said: m.PeerSilent) -> e.PeerWaited:
    return e.PeerWaited(
        node=me.node,
        incarnation=me.incarnation,
        job=me.job,
        epoch=said.epoch,
        peer=said.peer,
        peer_incarnation=said.peer_incarnation,
        waited_ms=said.waited_ms,
        silent_ms=said.silent_ms,
    )


def _broken(me: Participant, said: m.Broken) -> e.GroupBroken:
    return e.GroupBroken(
        node=me.node,
        incarnation=me.incarnation,
        job=me.job,
        epoch=said.epoch,
        cause=said.cause,
    )


def _is_pending(me: Participant, transition: TransitionId, phase: Phase) -> bool:
    now = me.pending
    return now is not None and now.transition == transition and now.phase is phase


def _on_prepared(me: Participant, said: m.Prepared) -> Outcome:
    if not _is_pending(me, said.transition, Phase.PREPARING) or me.acked == said.transition:
        return me, ()
    me = replace(me, acked=said.transition)
    if me.pending is not None and me.node not in me.pending.required:
        return me, ()
    fact = e.TransitionPrepared(
        job=me.job,
        transition=said.transition,
        node=me.node,
        incarnation=me.incarnation,
        report=said.report,
        links_opened=said.links_opened,
        took_ms=said.took_ms,
        quiesce_ms=said.quiesce_ms,
    )
    return me, (Submit(fact),)


def _on_refused(me: Participant, said: m.Refused) -> Outcome:
    if not _is_pending(me, said.transition, Phase.PREPARING):
        return me, ()
    fact = e.TransitionRefused(
        job=me.job,
        transition=said.transition,
        node=me.node,
        incarnation=me.incarnation,
        reason=said.reason,
        blames=said.blames,
    )
    return me, (Submit(fact),)


def _on_applied(me: Participant, said: m.Applied) -> Outcome:
    if said.transition == me.told_commit and me.slot < 0:
        me = replace(me, member=False)
    if not _is_pending(me, said.transition, Phase.COMMITTED):
        return me, ()
    fact = e.TransitionApplied(
        job=me.job,
        transition=said.transition,
        epoch=said.epoch,
        node=me.node,
        incarnation=me.incarnation,
        step=said.step,
        peers=said.peers,
        phases_ms=said.phases_ms,
        bytes_received=said.bytes_received,
        keeps_step=said.keeps_step,
    )
    return me, (Submit(fact),)


def _resumed(me: Participant, said: m.Resumed) -> e.StepResumed:
    return e.StepResumed(
        job=me.job,
        transition=said.transition,
        node=me.node,
        incarnation=me.incarnation,
        step=said.step,
        step_ms=said.step_ms,
        committed_at_ms=said.committed_at_ms,
        previous_at_ms=said.previous_at_ms,
    )


def _finished(me: Participant, said: m.Finished) -> e.WorkerFinished:
    return e.WorkerFinished(
        node=me.node,
        incarnation=me.incarnation,
        job=me.job,
        step=said.step,
        weights_digest=said.weights_digest,
        loss=said.loss,
    )
