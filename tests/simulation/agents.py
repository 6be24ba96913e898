"""Agents as they ship, around training that is scripted.

Only what a training process would answer, and what a probe would measure, is made up here; the
session, the participant, the lease and the queue of facts are the real ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio

from controlplane.eventlog import EventLog, NodeAlreadyAlive, Reread, Retry
from controlplane.eventlog.session import NodeSession
from controlplane.testkit import healthy_measurements
from statemachine import events as e
from statemachine import messages as m
from statemachine.ids import Epoch, JobId, NodeId
from statemachine.policy import policy_of
from statemachine.topology import Desired
from worker.agent_node import End, EndKind, NodeLife
from worker.agent_settings import AgentSettings
from worker.channel import ChannelClosed
from worker.gauges.sampler import Sampler
from worker.supervise import Exit

if TYPE_CHECKING:
    from worker.supervise import TrainingProcess
    from worker.sweeper import ProbePort, Sweeper

TTL_S = 5.0
"""Longer than a real etcd stalls where others use the machine: nobody here campaigns again."""

AGENT_KNOBS = {
    "store_try_s": 0.3,
    "renew_interval_s": 0.6,
    "self_fence_s": 1.6,
    "lease_ttl_s": TTL_S,
}
JOB = JobId("job")


class ScriptedWorker:
    """What a training process would answer. `step` is the last one it applied."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.has_state = False
        self.step = -1
        self.pending = -1
        self.holds_commit = False
        self.mute = False
        self.told: list[m.ToWorker] = []
        self.unanswered: list[m.ToWorker] = []

    def ready(self) -> m.Ready:
        """Its first word."""
        return m.Ready(
            pid=1000 + self.port,
            host="127.0.0.1",
            port=self.port,
            transfer_port=self.port + 1,
            digest="code-1",
            state_bytes=8,
        )

    def answer(self, message: m.ToWorker) -> list[m.FromWorker]:
        """Answer one message at once."""
        self.told.append(message)
        if self.mute:
            self.unanswered.append(message)
            return []
        match message:
            case m.Rehearse():
                return [m.Rehearsed(job=message.job, role=message.role, digest="code-1")]
            case m.Prepare():
                return [self._prepared(message)]
            case m.Commit():
                return self._committed(message)
            case _:
                return []

    def _prepared(self, message: m.Prepare) -> m.Prepared:
        report = None
        if message.motive is not e.Motive.PLANNED:
            report = e.Report(has_state=self.has_state, applied=self.step, pending=self.pending)
        return m.Prepared(transition=message.transition, links_opened=2, took_ms=1.0, report=report)

    def _committed(self, message: m.Commit) -> list[m.FromWorker]:
        if message.leave:
            return []
        if message.resume_step >= 0:
            self.step = message.resume_step - 1
        self.has_state, self.pending = True, -1
        applied = m.Applied(transition=message.transition, epoch=message.epoch, step=self.step + 1)
        if self.holds_commit:
            return [applied]
        resumed = m.Resumed(
            transition=message.transition, step=self.step + 1, step_ms=1.0, committed_at_ms=0.0
        )
        return [applied, resumed]


class ScriptedProcess:
    """In place of a training process: its channel to the agent, and its end."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self.worker = worker
        self.child = self
        self.channel = self
        self.pid = 1000 + worker.port
        self.exit: Exit | None = None
        self.reached = -1
        self._ended = anyio.Event()
        self._says: list[m.FromWorker] = []
        self._wake = anyio.Event()

    def say(self, said: m.FromWorker) -> None:
        """Let the training process say something."""
        self._says.append(said)
        self._wake.set()

    def end(self, ended: Exit) -> None:
        """Let it end."""
        if self.exit is None:
            self.exit = ended
            self._ended.set()
            self._wake.set()

    # --- as a channel -------------------------------------------------------------------------

    def send(self, message: m.ToWorker) -> None:
        """The agent says something."""
        if isinstance(message, m.Hello):
            self.say(self.worker.ready())
        for said in self.worker.answer(message):
            self.say(said)

    async def receive(self) -> m.FromWorker:
        """The agent waits for what it says."""
        while not self._says:
            if self.exit is not None:
                raise ChannelClosed
            self._wake = anyio.Event()
            await self._wake.wait()
        return self._says.pop(0)

    def close(self) -> None:
        """The agent hangs up."""

    def arm(self) -> None:
        """The agent wants to know of a violent end early."""

    async def ending(self) -> Exit:
        """The agent waits until it is known how it ends."""
        return await self.wait()

    # --- as a child ---------------------------------------------------------------------------

    async def wait(self) -> Exit:
        """The agent waits for its end."""
        await self._ended.wait()
        assert self.exit is not None
        return self.exit

    def kill(self) -> None:
        """The agent kills it."""
        self.end(Exit(signal=9))

    async def stop(self, grace_s: float) -> Exit:
        """The agent has asked it to stop."""
        self.end(Exit(code=0))
        return await self.wait()


class ScriptedLife(NodeLife):
    """One incarnation, as it ships, around a scripted training process and scripted probes."""

    def __init__(self, node: ScriptedNode, session: NodeSession) -> None:
        super().__init__(node.settings, node.log, session, cast("ProbePort", node))
        self._node = node
        self._sweeper = cast("Sweeper", ScriptedSweeper(self))
        self._gauges = Sampler(())  # those of the machine that the test runs on say another thing

    async def _start_process(self) -> TrainingProcess:
        return cast("TrainingProcess", self._node.process)

    async def run_round(self, sweep: e.SweepRequested, name: str) -> None:
        """State what a round measured."""
        measured = e.SweepRoundFinished(
            sweep=sweep.sweep,
            node=sweep.node,
            incarnation=sweep.incarnation,
            round=name,
            measurements=self._node.rounds(name),
            partner=sweep.partner,
        )
        self._facts.put(measured)


class ScriptedSweeper:
    """In place of probes: what the test says that they measure."""

    def __init__(self, life: ScriptedLife) -> None:
        self._life = life

    async def run(self, sweep: e.SweepRequested, name: str) -> None:
        """Run one round."""
        await self._life.run_round(sweep, name)


class ScriptedNode:
    """A machine: its agent, incarnation after incarnation, until it is killed or stopped."""

    def __init__(
        self,
        log: EventLog,
        node: NodeId,
        port: int,
        *,
        rejoins: bool,
        also: dict[JobId, tuple[str, ...]] | None = None,
    ) -> None:
        self.log = log
        self.node = node
        self.port = port
        self.settings = AgentSettings(
            node=node,
            fleet=log.fleet,
            job=JOB,
            etcd="",
            command=(),
            run_dir=Path(),
            secret_path=Path(),
            policy=policy_of(AGENT_KNOBS),
            also=also or {},
        )
        self.rounds = healthy_measurements
        self.worker: ScriptedWorker
        self.process: ScriptedProcess
        self.session: NodeSession
        self.life: ScriptedLife
        self.joined = anyio.Event()
        self.ended = anyio.Event()
        self._rejoins = rejoins
        self._stop = anyio.Event()
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        """Live until killed, stopped, or (unless it rejoins) fenced."""
        try:
            with self._scope:
                while True:
                    end = await self._live_once()
                    if end.kind is EndKind.ASSIGNED:
                        self.settings = self.settings.serving(end.job)
                        continue
                    if end.kind is EndKind.STOPPED or not self._rejoins:
                        return
        finally:
            self.ended.set()

    async def _live_once(self) -> End:
        self.worker = ScriptedWorker(self.port)
        self.process = ScriptedProcess(self.worker)
        self.session = await self._join()
        self.life = ScriptedLife(self, self.session)
        self.joined.set()
        return await self.life.run(self._stop)

    async def _join(self) -> NodeSession:
        while True:
            try:
                return await self.log.join(self.node, b"{}", TTL_S)
            except (NodeAlreadyAlive, Retry, Reread):
                await anyio.sleep(0.1)

    @property
    def desired(self) -> Desired | None:
        """The desired topology, as this node saw it last."""
        return self.life._desired

    def saw_reset(self, peer: ScriptedNode) -> None:
        """Let the training process see that a peer's process is gone."""
        epoch = self.desired.epoch if self.desired is not None else Epoch(0)
        self.process.say(
            m.PeerGone(
                peer=peer.node,
                peer_incarnation=peer.session.incarnation,
                group="dp[0]",
                epoch=epoch,
                step=self.worker.step,
            )
        )

    def unmute(self) -> None:
        """Let the training process answer again, and what it owes first."""
        self.worker.mute = False
        owed, self.worker.unanswered = self.worker.unanswered, []
        for message in owed:
            self.process.send(message)

    def kill(self) -> None:
        """End at once: nothing is said, nothing is given back."""
        self._scope.cancel()

    def stop(self) -> None:
        """Ask the agent to stop, as SIGTERM does."""
        self._stop.set()
