"""A fleet whose training processes are real and whose control plane is the pure core, in memory.

The test process plays the agents (with real participants over real local sockets) and the
controller (evolve and settle); links, transfers, votes, kills and weights are real. What this
leaves out is etcd and the agents' own process, which have tests of their own.
"""

import asyncio
import contextlib
import itertools
import json
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from statemachine import events as e
from statemachine import messages as m
from statemachine.decide import next_deadline, settle
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, JobId, NodeId, Position, Slot
from statemachine.lifecycle import NodeState
from statemachine.participant import (
    Instruction,
    Participant,
    RunRound,
    Submit,
    Tell,
    on_desired,
    on_message,
    on_orders,
)
from statemachine.state import FleetState
from statemachine.topology import desired_of, orders_of, patience_of
from worker.agent_abort import AbortWatch
from worker.channel import AgentChannel, ChannelClosed, open_pair
from worker.diary import STEPS_VARIABLE
from worker.faultpoints import FAULTPOINTS_VARIABLE, Act, arm, reached
from worker.standing_back import Newcomer

SCRIPT = Path(__file__).with_name("train_tiny.py")
JOB = JobId("tiny")
WITHIN_S = 40.0
"""How long a thing that was set going may take: on a busy machine a newcomer stands back, for up to
ten seconds at its start and ten in each rehearsal.
"""


class Machine(NamedTuple):
    """Where a training process runs: a network namespace (by file; none: that of the tests) and the
    address that it has there.
    """

    host: str = "127.0.0.1"
    namespace: str = ""


class PlayedNode:
    """One node: a real training process and the participant that speaks for it."""

    def __init__(self, name: str, incarnation: int, reached: int = -1) -> None:
        self.name = NodeId(name)
        self.incarnation = Incarnation(incarnation)
        self.me = Participant(
            node=self.name, incarnation=self.incarnation, job=JOB, reached=reached
        )
        self.process: Any = None
        self.channel: AgentChannel | None = None
        self.faults = Path()
        self.diary = Path()
        self.finished = False
        self.watch: AbortWatch | None = None
        self.newcomer: Newcomer | None = None
        self.killed_for = ""

    def kill(self, reason: str) -> None:
        """End its training process, as its agent does to one that does not leave a collective."""
        self.killed_for = f"killed: it {reason}"
        self.process.signal(signal.SIGKILL)

    def steps(self) -> list[dict[str, Any]]:
        """The steps that this node committed, as it noted them."""
        if not self.diary.exists():
            return []
        return [json.loads(line) for line in self.diary.read_text().splitlines()]


class CoreFleet:
    """Nodes, and the folded state that steers them."""

    def __init__(
        self,
        zygote: Any,
        folder: Path,
        declared: e.JobDeclared,
        extra: list[str],
        script: Path = SCRIPT,
    ) -> None:
        self.zygote, self.script = zygote, script
        self.folder, self.declared, self.extra = folder, declared, extra
        self.agents_tell = True
        """Whether agents state that their training process ended; else only peers notice."""
        self.state = FleetState()
        self.log: list[e.Recorded] = []
        self.nodes: dict[str, PlayedNode] = {}
        self.changed = asyncio.Event()
        self.secret = folder / "secret"
        self.secret.write_bytes(secrets.token_bytes(32))
        self.tasks: set[asyncio.Task[None]] = set()
        self.hold: Callable[[e.AnyEvent], bool] = lambda _: False
        self.held: list[e.AnyEvent] = []
        self.records = True
        """Whether nodes record their first step, each in a folder of its own."""
        self.machines: dict[str, Machine] = {}
        """Where a node runs, if not in the network that all share."""
        self.fault: Exception | None = None
        self.stopped = False

    # --- the control plane, played by the core ------------------------------------------------

    def say(self, event: e.AnyEvent) -> None:
        """A fact reaches the log; whatever follows is decided and told at once."""
        if self.hold(event):
            self.held.append(event)
            return
        entry = e.Recorded(
            position=Position(self.state.position + 1),
            at_ms=round(time.time() * 1000),
            writer="test",
            event=event,
        )
        self.state = evolve(self.state, entry)
        self.log.append(entry)
        self.settle()

    def settle(self) -> None:
        """Decide what follows from the state and the time."""
        settled = settle(self.state, round(time.time() * 1000), "test")
        self.state = settled.state
        self.log += settled.recorded
        for name, incarnation in settled.fences:
            node = self.nodes.get(name)
            if node is not None and node.incarnation == incarnation:
                self.kill(name)
        self._tell_all()
        self.changed.set()

    def _tell_all(self) -> None:
        job = self.state.jobs.get(JOB)
        if job is None:
            return
        desired = desired_of(self.state, job)
        for node in list(self.nodes.values()):
            record = self.state.nodes.get(node.name)
            if record is None or record.incarnation != node.incarnation:
                continue
            was_member = node.me.member
            if node.newcomer is not None:
                node.newcomer.heed(desired)
            node.me, told = on_desired(node.me, desired)
            node.me, more = on_orders(node.me, orders_of(self.state, record))
            self._perform(node, (*told, *more), was_member)

    def _perform(self, node: PlayedNode, told: tuple[Instruction, ...], was_member: bool) -> None:
        for instruction in told:
            match instruction:
                case Tell(message):
                    if node.channel is not None:
                        node.channel.send(message)
                    if node.watch is not None:
                        node.watch.told(message, was_member=was_member)
                case Submit(event):
                    self.say(event)
                case RunRound():
                    pass

    # --- nodes --------------------------------------------------------------------------------

    async def start(self, name: str, incarnation: int = 1) -> PlayedNode:
        """Start one node's training process, on the machine that is its own if it has one."""
        machine = self.machines.get(name, Machine())
        before = self.nodes[name].steps() if name in self.nodes else []
        node = PlayedNode(name, incarnation, before[-1]["step"] if before else -1)
        channel, theirs = await open_pair()
        node.channel = channel
        node.faults = self.folder / f"{name}.{incarnation}.fault"
        node.diary = self.folder / f"{name}.{incarnation}.steps"
        node.process = self.zygote.fork(
            self.script,
            ["--steps", str(self.declared.steps), "--out", str(self.folder), *self.extra],
            {FAULTPOINTS_VARIABLE: str(node.faults), STEPS_VARIABLE: str(node.diary)},
            self.folder / f"{name}.{incarnation}.log",
            theirs.fileno(),
            namespace=machine.namespace,
        )
        theirs.close()
        self.nodes[name] = node
        node.newcomer = Newcomer(node.process.pid)
        node.watch = AbortWatch(self.state.policy.abort_deadline_s, node.kill)
        self.say(e.NodeJoined(node=node.name, incarnation=node.incarnation, host=machine.host))
        channel.send(
            m.Hello(
                node=node.name,
                incarnation=node.incarnation,
                declared=self.declared,
                secret_path=str(self.secret),
                host=machine.host,
                recordings=str(self.folder / "recordings" / name) if self.records else "",
                patience=patience_of(self.state.policy),
            )
        )
        task = asyncio.create_task(self._hear(node))
        self.tasks.add(task)
        return node

    async def _hear(self, node: PlayedNode) -> None:
        assert node.channel is not None
        try:
            while True:
                said = await node.channel.receive()
                if node.watch is not None:
                    node.watch.said(said)
                was_member = node.me.member
                node.me, told = on_message(node.me, said)
                self._perform(node, told, was_member)
                node.finished = node.finished or isinstance(said, m.Finished)
                if isinstance(said, m.Ready):
                    if node.newcomer is not None:
                        node.newcomer.settle()
                    self._tell_all()
        except ChannelClosed:
            self._ended(node)
        except Exception as error:
            self.fault = error
            self.changed.set()
            raise

    def _ended(self, node: PlayedNode) -> None:
        self.changed.set()
        if node.newcomer is not None:
            node.newcomer.settle()
        if node.watch is not None:
            node.watch.disarm()
        if node.finished or node.me.stopped or not self.agents_tell:
            return  # it was to end
        if self.nodes.get(node.name) is not node:
            return
        self.say(
            e.WorkerExited(
                node=node.name,
                incarnation=node.incarnation,
                job=JOB,
                reason=node.killed_for or "it ended",
            )
        )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a real signal to a real process."""
        self.nodes[name].process.signal(number)

    # --- faults and facts ---------------------------------------------------------------------

    def holder(self, slot: int) -> str:
        """Who holds a slot."""
        return str(self.state.jobs[JOB].holders[Slot(slot)])

    def arm(self, name: str, points: Sequence[str], act: Act = Act.KILL) -> None:
        """Let a node meet a fault at the end of a path of points."""
        arm(self.nodes[name].faults, points, act)

    def met(self, name: str) -> bool:
        """Whether the armed fault was met."""
        return reached(self.nodes[name].faults).exists()

    def release(self, name: str) -> None:
        """Let a held thread go on."""
        reached(self.nodes[name].faults).unlink()

    def lost(self) -> list[str]:
        """Nodes declared lost, in order."""
        return [str(r.event.node) for r in self.log if isinstance(r.event, e.NodeLost)]

    def warm(self) -> list[str]:
        """Warm standbys."""
        nodes = self.state.nodes.values()
        return sorted(node.node for node in nodes if node.state is NodeState.STANDBY)

    async def add_standby(self) -> str:
        """Start one more node and wait until it is warm."""
        name = f"n{len(self.nodes)}"
        await self.start(name)
        await self.until(f"{name} is warm", lambda: name in self.warm())
        return name

    def idle(self) -> bool:
        """Whether the job runs with every slot filled and nothing pending."""
        job = self.state.jobs[JOB]
        return job.launched and job.pending is None and not job.vacant

    def hurry(self) -> None:
        """Let the steps go at full speed from now on."""
        (self.folder / "hurry").touch()

    async def digests(self, within_s: float = 60.0) -> dict[int, str]:
        """Let the job end, and return the digest of each slot's weights."""
        self.hurry()
        await self.until("the job finishes", lambda: self.state.jobs[JOB].finished, within_s)
        held = dict(self.state.jobs[JOB].holders)
        said = {r.event.node: str(r.event.weights_digest) for r in self.events(e.WorkerFinished)}
        return {int(slot): said[held[slot]] for slot in sorted(held)}

    async def digest(self, within_s: float = 60.0) -> str:
        """Let the job end, and return the one digest of everybody's weights."""
        digests = set((await self.digests(within_s)).values())
        assert len(digests) == 1, self.story()
        return digests.pop()

    def losses(self) -> dict[tuple[int, int], set[float]]:
        """Losses by (slot, step), from every node's own notes; while it holds a slot, each node's
        steps are without gaps, unless all go back to what was saved.
        """
        slots = self._slots()
        commits = [r.event for r in self.events(e.TransitionCommitted)]
        loads = {event.epoch: event.resume_step for event in commits if event.loads}
        found: dict[tuple[int, int], set[float]] = {}
        for name, node in self.nodes.items():
            lines = node.steps()
            for before, after in itertools.pairwise(lines):
                between = range(before["epoch"], after["epoch"])
                away = any((epoch, name) not in slots for epoch in between)
                step = after["step"]
                back = [loads[epoch + 1] for epoch in between if epoch + 1 in loads]
                follows = step > before["step"] if away else step == before["step"] + 1
                assert step == back[-1] if back else follows, (
                    f"{name} lost or repeated a step: {before}, {after}"
                )
            for line in lines:
                key = slots[line["epoch"], name], line["step"]
                found.setdefault(key, set()).add(line["loss"])
        return found

    def _slots(self) -> dict[tuple[int, str], int]:
        """(epoch, node) -> slot, for every member of every epoch."""
        slots: dict[tuple[int, str], int] = {}
        members: dict[int, str] = {}
        plans = {r.event.transition: r.event for r in self.events(e.TransitionPlanned)}
        for entry in self.events(e.TransitionCommitted):
            plan = plans[entry.event.transition]
            members |= {int(c.slot): str(c.joiner) for c in plan.changes}
            for drop in plan.drops:
                members.pop(int(drop.slot), None)
            slots |= {(entry.event.epoch, node): slot for slot, node in members.items()}
        return slots

    async def until(self, what: str, holds: Callable[[], bool], within_s: float = WITHIN_S) -> None:
        """Wait for a condition on the folded state, or fail and print the log."""
        ends_at = time.monotonic() + within_s
        while not holds() and time.monotonic() < ends_at:
            if self.fault is not None:
                raise self.fault
            due = next_deadline(self.state, round(time.time() * 1000), self.state.policy)
            wait_s = 1.0 if due is None else max(0.0, due / 1000 - time.time())
            self.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), min(wait_s + 0.001, 1.0))
            self.settle()
        if not holds():
            for name in self.nodes:
                self.kill(name, signal.SIGUSR1)  # every thread's stack, into the node's log
            await asyncio.sleep(0.5)
            # the stacks are written by the processes themselves, whenever they are scheduled
            raise AssertionError(f"not within {within_s} s: {what}\n{self.story()}")

    def traffic(self, name: str) -> list[dict[str, Any]]:
        """What a node's connections had carried and its files held, around each of its steps."""
        lines = (self.folder / f"{name}.traffic").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def crossed(self, seen: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
        """The rehearsed steps around which traffic, packets or files differ."""
        rehearsed = [line for line in seen if line["rehearsal"]]
        pairs = zip(rehearsed[::2], rehearsed[1::2], strict=True)
        kept = ("sockets", "written", "packets")
        return [(a, b) for a, b in pairs if any(a.get(key) != b.get(key) for key in kept)]

    def events(self, kind: type[e.Event]) -> list[Any]:
        """Every recorded event of a type."""
        return [entry for entry in self.log if isinstance(entry.event, kind)]

    def story(self) -> str:
        """The log, one line per event, and the ends of the nodes' own logs."""
        lines = [f"{r.position} {r.at_ms % 100000} {str(r.event)[:220]}" for r in self.log[-60:]]
        for path in sorted(self.folder.glob("*.log")):
            lines += [f"--- {path.name}", *path.read_text().splitlines()[-60:]]
        return "\n".join(lines)

    async def stop(self) -> None:
        """Kill whatever still runs; once."""
        if self.stopped:
            return
        self.stopped = True
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for node in self.nodes.values():
            node.process.signal(signal.SIGKILL)
            await node.process.wait()
            node.process.close()
            assert node.channel is not None
            node.channel.close()
