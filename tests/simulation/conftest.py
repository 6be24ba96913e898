"""A fleet in one process: the controller that ships, agents whose training process is scripted.

The agents' half of the protocol is `statemachine.participant`, the log is the real one over the
store in memory or over etcd; only what a training process would answer is made up here.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
import pytest_asyncio
from anyio.abc import TaskGroup

from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import Deposed, EventLog, EventLogError, open_store
from controlplane.eventlog.memory import MemoryStore
from controlplane.eventlog.session import NodeSession
from controlplane.term import Term, unix_ms
from statemachine import events as e
from statemachine import messages as m
from statemachine import participant as p
from statemachine.ids import Incarnation, JobId, NodeId
from statemachine.state import FleetState
from statemachine.topology import Desired, decode_desired, decode_orders

TTL_S = 2.0
WAIT_S = 20.0
JOB = JobId("job")

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
        return m.Prepared(
            transition=message.transition, links_opened=2, took_ms=1.0, report=report
        )

    def _committed(self, message: m.Commit) -> list[m.FromWorker]:
        if message.leave:
            return []
        if message.resume_step >= 0:
            self.step = message.resume_step - 1
        self.has_state, self.pending = True, -1
        applied = m.Applied(
            transition=message.transition, epoch=message.epoch, step=self.step + 1
        )
        if self.holds_commit:
            return [applied]
        resumed = m.Resumed(
            transition=message.transition, step=self.step + 1, step_ms=1.0, committed_at_ms=0.0
        )
        return [applied, resumed]


class ScriptedNode:
    """An agent around a scripted worker: the real session, the real participant."""

    def __init__(self, log: EventLog, node: NodeId, port: int) -> None:
        self.log = log
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
        self._me = p.Participant(
            node=self.node, incarnation=self.session.incarnation, job=JOB
        )
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
        await self.session.submit(event, unix_ms())

    async def saw_reset(self, peer: "ScriptedNode") -> None:
        """Let the training process see that a peer's process is gone."""
        epoch = self.desired.epoch if self.desired is not None else 0
        await self.hear(
            m.PeerGone(
                peer=peer.node,
                peer_incarnation=peer.session.incarnation,
                group="dp[0]",
                epoch=e.Epoch(epoch),
                step=self.worker.step,
            )
        )

    def kill(self) -> None:
        """End at once: nothing is said, nothing is given back."""
        self._scope.cancel()


class Fleet:
    """Nodes and controllers over one store."""

    def __init__(self, log: EventLog, group: TaskGroup) -> None:
        self.log = log
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
        term = Term(self.log, leadership, knobs=knobs)
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
        node = ScriptedNode(self.log, NodeId(name), next(self._ports))
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
        await self.log.submit_operator("op", event, unix_ms())

    # --- what the log says --------------------------------------------------------------------

    async def follow(self) -> None:
        """Fold the log as it grows, until cancelled."""
        from statemachine.evolve import evolve

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

    def said(self, kind: type[e.Event]) -> list[e.Event]:
        """Events of one kind, in order."""
        return [r.event for r in self.recorded if isinstance(r.event, kind)]

    def holder(self, slot: int) -> str:
        """Who holds a slot by the fold."""
        return self.state.jobs[JOB].holders[e.Slot(slot)]

    def incarnation(self, name: str) -> Incarnation:
        """The incarnation of a node by the fold."""
        return self.state.nodes[NodeId(name)].incarnation


MakeFleet = Callable[[], Awaitable[Fleet]]


@asynccontextmanager
async def fleet_over(log: EventLog) -> AsyncIterator[Fleet]:
    """A fleet over a log; everything it started ends with the body."""
    async with anyio.create_task_group() as group:
        fleet = Fleet(log, group)
        group.start_soon(fleet.follow)
        try:
            yield fleet
        finally:
            group.cancel_scope.cancel()


@pytest_asyncio.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.etcd)])
async def log(request: pytest.FixtureRequest, fleet: str) -> AsyncIterator[EventLog]:
    """A log over each of both stores."""
    if request.param == "memory":
        yield EventLog(MemoryStore(), fleet)
        return
    server: EtcdServer = request.getfixturevalue("etcd")
    store = await open_store(server.url)
    yield EventLog(store, fleet)
    with suppress(EventLogError):
        await store.aclose()
