"""One incarnation of a node: its loops, from the first fact to the last.

What belongs here: feeding the pure participant and performing what it returns. Every rule of the
protocol is in `statemachine.participant`; every rule of being alive is in the node's session.

Theory of operation. All loops run in one task group and end together, for one reason (`End`).
Level-triggered: the newest desired topology and orders are kept, and fed again when the training
process turns ready, since before that they mean nothing to it. Nothing here waits for the store:
facts and vitals are handed to queues, so that training goes on while etcd is away. A lease that
ended is taken again under the same incarnation and the training process never notices; only a
declared loss ends it, at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final

import anyio
import anyio.abc
import msgspec

from controlplane.eventlog import EventLog, EventLogError, Fenced, NodeSession
from statemachine import events as e
from statemachine import messages as m
from statemachine.errors import CodecError, EventCorrupt
from statemachine.ids import JobId
from statemachine.participant import (
    Instruction,
    Outcome,
    Participant,
    RunRound,
    Submit,
    Tell,
    on_desired,
    on_message,
    on_orders,
)
from statemachine.topology import Desired, Orders, decode_desired, decode_orders
from statemachine.vitals import encode_vitals
from worker.agent_abort import AbortWatch
from worker.agent_facts import FactQueue, VitalsOutlet
from worker.agent_lease import keep_lease, say_farewell
from worker.agent_settings import AgentSettings
from worker.channel import ChannelClosed, FrameTooLarge
from worker.gauges.sampler import Sampler
from worker.standing_back import Newcomer
from worker.supervise import HEADER, Exit, TrainingProcess, why_it_ended
from worker.sweeper import ProbePort, Sweeper

log = logging.getLogger("worker.agent")

LAST_WORDS_S: Final = 0.5
"""How long an ended process's channel is still listened to."""

FENCE_PATIENCE_S: Final = 3.0
"""How long a node whose training process ended waits to be declared lost before it gives up."""


NO_JOB: Final = JobId("")


class EndKind(StrEnum):
    """Why an incarnation is over."""

    FINISHED = "finished"
    """The job is finished."""
    STOPPED = "stopped"
    """The agent was asked to stop."""
    ASSIGNED = "assigned"
    """Its node shall serve another job."""
    FENCED = "fenced"
    """Declared lost by the controller."""
    CRASHED = "crashed"
    """The training process ended without being asked to."""
    FAILED = "failed"
    """The store refuses for good."""


class End(msgspec.Struct, frozen=True):
    """How an incarnation ended."""

    kind: EndKind
    reason: str
    was_ready: bool = False
    """Whether its training process ever reached its step loop."""
    job: JobId = JobId("")
    """The job that the node is assigned to, where that is why."""
    reached: int = -1
    """The last step of its job that its training process committed, or one before it."""
    in_duty: bool = False
    """Whether it took part in the run, or was about to."""


class NodeLife:
    """One incarnation. `run` it once."""

    def __init__(
        self,
        settings: AgentSettings,
        event_log: EventLog,
        session: NodeSession,
        probes: ProbePort,
        reached: int = -1,
    ) -> None:
        self._settings = settings
        self._event_log = event_log
        self._session = session
        self._probes = probes
        self._facts = FactQueue(session)
        self._vitals = VitalsOutlet(session)
        self._gauges = Sampler.from_environment()
        self._sweeper = Sweeper(self._facts.put, settings.secret_path, lambda: self.in_duty)
        self._me = Participant(
            node=session.node,
            incarnation=session.incarnation,
            job=settings.job,
            reached=reached,
        )
        self._desired: Desired | None = None
        self._orders: Orders | None = None
        self._greeted = False
        self._finished = False
        self._stopping = False
        self._job_over = anyio.Event()
        self._heard_all = anyio.Event()
        self._abort_watch = AbortWatch(settings.policy.abort_deadline_s, self._kill)
        self._killed_for = ""
        self._end: End | None = None
        self._process: TrainingProcess
        self._newcomer: Newcomer
        self._group: anyio.abc.TaskGroup

    @property
    def in_duty(self) -> bool:
        """Whether its training process takes part in the run, or may be about to."""
        return self._me.member or self._me.slot >= 0

    async def run(self, stop: anyio.Event) -> End:
        """Live until the job is over, `stop` is set, or this incarnation cannot go on."""
        self._facts.put(self._joined())
        self._process = await self._start_process()
        self._newcomer = Newcomer(self._process.child.pid)
        loops = (
            lambda: keep_lease(self._session),
            self._facts.run,
            self._vitals.run,
            self._gauges.run,
            self._follow_desired,
            self._follow_orders,
            self._hear,
            self._watch_process,
            lambda: self._await_stop(stop),
        )
        try:
            async with anyio.create_task_group() as self._group:
                for loop in loops:
                    self._group.start_soon(self._guarded, loop)
        finally:
            self._abort_watch.disarm()
            self._newcomer.settle()
            self._process.child.kill()
            self._process.channel.close()
        await self._process.child.wait()
        assert self._end is not None
        if self._end.kind is not EndKind.FENCED:
            in_order = self._end.kind in (EndKind.FINISHED, EndKind.STOPPED, EndKind.ASSIGNED)
            left_for = self._end.reason if in_order else ""
            await say_farewell(self._session, self._facts, left_for)
        reached = max(self._me.reached, self._process.reached)
        was_ready = self._me.ready is not None
        return msgspec.structs.replace(
            self._end, was_ready=was_ready, reached=reached, in_duty=self.in_duty
        )

    def _joined(self) -> e.NodeJoined:
        return e.NodeJoined(
            node=self._session.node,
            incarnation=self._session.incarnation,
            host=self._settings.host,
            hardware=self._settings.hardware,
            probe_port=self._probes.port,
            pid=os.getpid(),
            labels=self._settings.labels,
            serves=tuple(sorted(self._settings.also)),
        )

    async def _start_process(self) -> TrainingProcess:
        path = self._settings.log_path
        with path.open("a", encoding="utf-8") as output:
            output.write(f"{HEADER}{self._session.node} incarnation {self._session.incarnation}\n")
        process = await TrainingProcess.start(self._settings.command, log_path=path)
        log.info(
            "started training process %d: %s", process.child.pid, " ".join(self._settings.command)
        )
        return process

    # --- ends ---------------------------------------------------------------------------------

    async def _guarded(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop; what it raises on purpose ends this incarnation, anything else is a bug."""
        try:
            await loop()
        except Fenced as fenced:
            self._finish(EndKind.FENCED, str(fenced))
        except (EventLogError, CodecError) as error:
            self._finish(EndKind.FAILED, str(error))

    def _finish(self, kind: EndKind, reason: str, job: JobId = NO_JOB) -> None:
        """Let everything end; the first reason is the one. A fenced node stops training at once."""
        if self._end is not None:
            return
        if kind is EndKind.FENCED:
            self._process.child.kill()
            if self._killed_for:
                kind, reason = EndKind.CRASHED, self._killed_for
        self._end = End(kind, reason, job=job)
        self._group.cancel_scope.cancel()

    async def _await_stop(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._stopping = True
        reason = "the agent was asked to stop"
        self._process.channel.send(m.Stop(reason=reason))
        await self._process.child.stop(self._settings.stop_grace_s)
        self._finish(EndKind.STOPPED, reason)

    # --- what the fleet wants -----------------------------------------------------------------

    async def _follow_desired(self) -> None:
        async with self._event_log.watch_desired(self._settings.job) as view:
            async for delta in view:
                for item in delta.updated:
                    self._on_desired(item.value)
                if not self._greeted:
                    log.info("waiting for job %s to be declared", self._settings.job)

    def _on_desired(self, raw: bytes) -> None:
        try:
            self._desired = decode_desired(raw)
        except EventCorrupt as error:
            log.error("ignored: %s", error)
            return
        self._newcomer.heed(self._desired)
        if not self._greeted:
            self._greeted = True
            self._process.channel.send(
                m.Hello(
                    node=self._session.node,
                    incarnation=self._session.incarnation,
                    declared=self._desired.declared,
                    secret_path=str(self._settings.secret_path),
                    host=self._settings.host,
                    recordings=str(self._settings.recordings),
                    patience=self._desired.patience,
                )
            )
        self._take(on_desired(self._me, self._desired))

    async def _follow_orders(self) -> None:
        async with self._event_log.watch_orders(self._settings.node) as view:
            async for delta in view:
                for item in delta.updated:
                    self._on_orders(item.value)

    def _on_orders(self, raw: bytes) -> None:
        try:
            self._orders = decode_orders(raw)
        except EventCorrupt as error:
            log.error("ignored: %s", error)
            return
        self._take(on_orders(self._me, self._orders))
        job, mine = self._orders.job, self._orders.incarnation == self._session.incarnation
        if mine and job in self._settings.also:
            self._finish(EndKind.ASSIGNED, f"assigned to job {job}", job)

    def _take(self, outcome: Outcome) -> None:
        """Become what the participant became, and perform what it asks."""
        was_member = self._me.member
        self._me, instructions = outcome
        if self._me.stopped:
            self._job_over.set()
        self._perform(instructions, was_member)

    def _perform(self, instructions: Sequence[Instruction], was_member: bool) -> None:
        for instruction in instructions:
            match instruction:
                case Tell(message=message):
                    log.info("told the training process: %s", _brief(message))
                    self._process.channel.send(message)
                    self._abort_watch.told(message, was_member=was_member)
                case Submit(event=event):
                    self._facts.put(event)
                case RunRound(sweep=sweep, round=name):
                    self._group.start_soon(self._sweeper.run, sweep, name)

    # --- what the training process says -------------------------------------------------------

    async def _hear(self) -> None:
        try:
            while True:
                self._on_message(await self._process.channel.receive())
        except ChannelClosed:
            pass
        except (EventCorrupt, FrameTooLarge) as error:
            self._kill(f"spoke nonsense: {error}")
        finally:
            self._heard_all.set()
        if not (self._me.stopped or self._finished or self._stopping):
            await anyio.sleep(self._settings.policy.abort_deadline_s)
            self._kill("closed its channel and did not end")

    def _on_message(self, said: m.FromWorker) -> None:
        self._process.arm()
        if isinstance(said, m.Window):
            self._vitals.put(encode_vitals(self._gauges.with_gauges(said.vitals)))
            return
        self._abort_watch.said(said)
        self._finished = self._finished or isinstance(said, m.Finished)
        log.info("the training process said: %s", _brief(said))
        self._take(on_message(self._me, said))
        if isinstance(said, m.Ready):  # only now do these mean anything to it
            self._newcomer.settle()
            if self._desired is not None:
                self._take(on_desired(self._me, self._desired))
            if self._orders is not None:
                self._take(on_orders(self._me, self._orders))

    # --- a process that hangs, and one that ends ----------------------------------------------

    def _kill(self, reason: str) -> None:
        if self._process.child.exit is None:
            log.error("killing the training process: it %s", reason)
            self._killed_for = self._killed_for or f"killed: it {reason}"
            self._process.child.kill()

    async def _watch_process(self) -> None:
        ended = await self._process.ending()
        if self._process.child.exit is not None:
            with anyio.move_on_after(LAST_WORDS_S):
                await self._heard_all.wait()
        if self._stopping:
            return
        if ended.is_clean and (self._finished or self._me.stopped):
            await self._job_over.wait()
            self._finish(EndKind.FINISHED, "the job is finished")
            return
        await self._report_crash(ended)

    async def _report_crash(self, ended: Exit) -> None:
        """State it, and wait to be declared lost."""
        reason = self._killed_for or why_it_ended(ended, self._settings.log_path)
        self._killed_for = reason
        log.error("%s; its output is in %s", reason, self._settings.log_path)
        self._facts.put(
            e.WorkerExited(
                node=self._session.node,
                incarnation=self._session.incarnation,
                job=self._settings.job,
                reason=reason,
                exit_code=ended.code,
                signal=ended.signal,
            )
        )
        await self._facts.drained()
        await anyio.sleep(FENCE_PATIENCE_S)
        self._finish(EndKind.CRASHED, reason)


def _brief(message: m.ToWorker | m.FromWorker) -> str:
    """Name a message, and the transition that it belongs to."""
    transition = getattr(message, "transition", None)
    name = type(message).__name__
    return name if transition is None else f"{name}(transition {transition})"
