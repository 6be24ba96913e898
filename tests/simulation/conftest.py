"""A fleet in one process: the controller that ships, agents whose training process is scripted.

The agents' half of the protocol is `statemachine.participant`, the log is the real one over the
store in memory or over etcd; only what a training process would answer is made up here.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import pytest
from anyio.abc import TaskGroup

from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import Deposed, EventLog, EventLogError, open_store
from controlplane.eventlog.memory import MemoryStore
from controlplane.eventlog.session import NodeSession
from controlplane.term import Term, unix_ms
from statemachine import events as e
from statemachine import messages as m
from statemachine import participant as p
from statemachine.evolve import evolve
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Slot
from statemachine.state import FleetState
from statemachine.topology import Desired, decode_desired, decode_orders

TTL_S = 2.0
WAIT_S = 20.0
JOB = JobId("job")

E = TypeVar("E", bound=e.Event)

Condition = Callable[[FleetState], bool]


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


class ScriptedNode:
    """An agent around a scripted worker: the real session, the real participant."""

    def __init__(self, log: EventLog, node: NodeId, port: int, clock_ms: Callable[[], int]) -> None:
        self.log = log
        self.clock_ms = clock_ms
        self.node = node
        self.worker = ScriptedWorker(port)
        self.rounds: Callable[[str], dict[str, float]] = lambda _: {"gemm_gflops_best": 1.0}
        self.session: NodeSession
        self.joined = anyio.Event()
        self.ended = anyio.Event()
        self.fenced = False
        self.desired: Desired | None = None
        self._me: p.Participant
        self._scope = anyio.CancelScope()
        self._turn = anyio.Lock()

    async def run(self) -> None:
        """Live until killed or fenced."""
        try:
            with self._scope:
                await self._live()
        except* EventLogError:
            self.fenced = True
        finally:
            self.ended.set()

    async def _live(self) -> None:
        self.session = await self.log.join(self.node, b"{}", TTL_S)
        self._me = p.Participant(node=self.node, incarnation=self.session.incarnation, job=JOB)
        await self.submit(
            e.NodeJoined(
                node=self.node,
                incarnation=self.session.incarnation,
                host="127.0.0.1",
                hardware="cpu",
                probe_port=1,
            )
        )
        self.joined.set()
        async with (
            self.log.watch_desired(JOB) as desired,
            self.log.watch_orders(self.node) as orders,
            anyio.create_task_group() as group,
        ):
            group.start_soon(self.session.run_renewal)
            await self.hear(self.worker.ready())
            group.start_soon(self._follow_desired, desired)
            group.start_soon(self._follow_orders, orders)

    async def _follow_desired(self, view: object) -> None:
        async for delta in view:  # type: ignore[attr-defined]
            for item in delta.updated:
                self.desired = decode_desired(item.value)
                async with self._turn:
                    await self._perform(p.on_desired(self._me, self.desired))

    async def _follow_orders(self, view: object) -> None:
        async for delta in view:  # type: ignore[attr-defined]
            for item in delta.updated:
                async with self._turn:
                    await self._perform(p.on_orders(self._me, decode_orders(item.value)))

    async def hear(self, said: m.FromWorker) -> None:
        """Let the training process say something."""
        async with self._turn:
            await self._perform(p.on_message(self._me, said))

    async def _perform(self, outcome: p.Outcome) -> None:
        self._me, instructions = outcome
        for instruction in instructions:
            match instruction:
                case p.Submit(event):
                    await self.submit(event)
                case p.Tell(message):
                    for said in self.worker.answer(message):
                        await self._perform(p.on_message(self._me, said))
                case p.RunRound(sweep, name):
                    await self.submit(
                        e.SweepRoundFinished(
                            sweep=sweep.sweep,
                            node=sweep.node,
                            incarnation=sweep.incarnation,
                            round=name,
                            measurements=self.rounds(name),
                            partner=sweep.partner,
                        )
                    )

    async def submit(self, event: e.AnyEvent) -> None:
        """State a fact."""
        await self.session.submit(event, self.clock_ms())

    async def saw_reset(self, peer: ScriptedNode) -> None:
        """Let the training process see that a peer's process is gone."""
        epoch = self.desired.epoch if self.desired is not None else 0
        await self.hear(
            m.PeerGone(
                peer=peer.node,
                peer_incarnation=peer.session.incarnation,
                group="dp[0]",
                epoch=Epoch(epoch),
                step=self.worker.step,
            )
        )

    async def unmute(self) -> None:
        """Let the training process answer again, and what it owes first."""
        self.worker.mute = False
        owed, self.worker.unanswered = self.worker.unanswered, []
        for message in owed:
            for said in self.worker.answer(message):
                await self.hear(said)

    def kill(self) -> None:
        """End at once: nothing is said, nothing is given back."""
        self._scope.cancel()


class Fleet:
    """Nodes and controllers over one store."""

    def __init__(self, log: EventLog, group: TaskGroup, clock_ms: Callable[[], int]) -> None:
        self.log = log
        self.clock_ms = clock_ms
        self.nodes: dict[str, ScriptedNode] = {}
        self.state = FleetState()
        self.recorded: list[e.Recorded] = []
        self._group = group
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._grown = anyio.Event()
        self._ports = iter(range(1, 10_000, 2))

    # --- controllers --------------------------------------------------------------------------

    async def start_controller(self, name: str, knobs: dict[str, object] | None = None) -> Term:
        """Have a controller campaign and lead; returns once it leads."""
        leadership = await self.log.campaign(name, TTL_S)
        term = Term(self.log, leadership, clock_ms=self.clock_ms, knobs=knobs)
        scope = self._scopes[name] = anyio.CancelScope()

        async def lead() -> None:
            with scope:
                try:
                    await term.run()
                except* Deposed:
                    pass

        self._group.start_soon(lead)
        await term.leading.wait()
        return term

    def kill_controller(self, name: str) -> None:
        """End a controller at once; its leadership stays until its lease ends."""
        self._scopes.pop(name).cancel()

    # --- nodes --------------------------------------------------------------------------------

    async def start_node(self, name: str) -> ScriptedNode:
        """Have a node join; returns once it did."""
        node = ScriptedNode(self.log, NodeId(name), next(self._ports), self.clock_ms)
        self.nodes[name] = node
        self._group.start_soon(node.run)
        await node.joined.wait()
        return node

    async def kill_node(self, name: str, *, seen_by: Sequence[str]) -> ScriptedNode:
        """Kill a node; the peers named see their links reset."""
        victim = self.nodes[name]
        victim.kill()
        await victim.ended.wait()
        for peer in seen_by:
            await self.nodes[peer].saw_reset(victim)
        return victim

    async def declare(self, slots: int, standbys: int = 0) -> None:
        """Declare the job."""
        await self.act(e.JobDeclared(job=JOB, axes={"dp": slots}, standbys=standbys))

    async def act(self, event: e.AnyEvent) -> None:
        """State an operator's act."""
        await self.log.submit_operator("op", event, self.clock_ms())

    # --- what the log says --------------------------------------------------------------------

    async def follow(self) -> None:
        """Fold the log as it grows, until cancelled."""
        async with self.log.follow() as entries:
            async for recorded in entries:
                self.recorded.append(recorded)
                self.state = evolve(self.state, recorded)
                self._grown.set()

    async def until(self, condition: Condition, what: str) -> FleetState:
        """Wait until the folded log fulfils a condition."""
        with anyio.move_on_after(WAIT_S):
            while not condition(self.state):
                self._grown = anyio.Event()
                await self._grown.wait()
            return self.state
        story = "\n".join(f"{r.position} {r.event}" for r in self.recorded)
        raise AssertionError(f"not within {WAIT_S} s: {what}; the log:\n{story}")

    def said(self, kind: type[E]) -> list[E]:
        """Events of one kind, in order."""
        return [r.event for r in self.recorded if isinstance(r.event, kind)]

    def holder(self, slot: int) -> str:
        """Who holds a slot by the fold."""
        return self.state.jobs[JOB].holders[Slot(slot)]

    def incarnation(self, name: str) -> Incarnation:
        """The incarnation of a node by the fold."""
        return self.state.nodes[NodeId(name)].incarnation


# --- where it plays ---------------------------------------------------------------------------


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing else can run.

    For what does no real I/O: a scenario of minutes takes milliseconds, and twice the same way.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


class _Jumping(selectors.SelectSelector):
    """Never waits: it moves the clock by as much as it was asked to wait."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits for ever: a deadlock"
            self._loop.jump(timeout)
        return ready


EPOCH_MS = 1_800_000_000_000


def virtual_ms() -> int:
    """Unix time of a scenario on virtual time."""
    return EPOCH_MS + round(asyncio.get_running_loop().time() * 1000)


Scenario = Callable[[Fleet], Awaitable[None]]
Play = Callable[[Scenario], None]


async def _play(scenario: Scenario, log: EventLog, clock_ms: Callable[[], int]) -> None:
    """Play a scenario on a fleet; whatever it started ends with it."""
    async with anyio.create_task_group() as group:
        fleet = Fleet(log, group, clock_ms)
        group.start_soon(fleet.follow)
        try:
            await scenario(fleet)
        finally:
            group.cancel_scope.cancel()


def play_virtually(scenario: Scenario, store: MemoryStore | None = None) -> None:
    """Play a scenario over the store in memory, on virtual time."""

    async def play() -> None:
        await _play(scenario, EventLog(store or MemoryStore(), "virtual"), virtual_ms)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())


@pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.etcd)])
def play(request: pytest.FixtureRequest, fleet: str) -> Play:
    """Plays a scenario: over memory on virtual time, or over a real etcd in real time."""
    if request.param == "memory":
        return play_virtually
    server: EtcdServer = request.getfixturevalue("etcd")

    async def play_really(scenario: Scenario) -> None:
        store = await open_store(server.url)
        try:
            await _play(scenario, EventLog(store, fleet), unix_ms)
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()

    return lambda scenario: asyncio.run(play_really(scenario))
