"""A fleet whose training processes are real and whose control plane is the pure core, in memory.

The test process plays the agents (with real participants over real local sockets) and the
controller (evolve and settle); links, transfers, votes, kills and weights are real. What this
leaves out is etcd and the agents' own process, which have tests of their own.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from statemachine import events as e
from statemachine import messages as m
from statemachine.decide import next_deadline, settle
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, JobId, NodeId, Position
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
from statemachine.topology import desired_of, orders_of
from worker.channel import FD_VARIABLE, AgentChannel, ChannelClosed, open_pair

SCRIPT = Path(__file__).with_name("train_tiny.py")
JOB = JobId("tiny")


class PlayedNode:
    """One node: a real training process and the participant that speaks for it."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = NodeId(name)
        self.incarnation = Incarnation(incarnation)
        self.me = Participant(node=self.name, incarnation=self.incarnation, job=JOB)
        self.process: asyncio.subprocess.Process | None = None
        self.channel: AgentChannel | None = None
        self.lines: list[str] = []


class CoreFleet:
    """Nodes, and the folded state that steers them."""

    def __init__(self, folder: Path, declared: e.JobDeclared, extra: list[str]) -> None:
        self.folder, self.declared, self.extra = folder, declared, extra
        self.state = FleetState()
        self.log: list[e.Recorded] = []
        self.nodes: dict[str, PlayedNode] = {}
        self.changed = asyncio.Event()
        self.secret = folder / "secret"
        self.secret.write_bytes(secrets.token_bytes(32))
        self.tasks: set[asyncio.Task[None]] = set()
        self.hold: Callable[[e.AnyEvent], bool] = lambda _: False
        self.held: list[e.AnyEvent] = []
        self.fault: Exception | None = None

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
            node.me, told = on_desired(node.me, desired)
            node.me, more = on_orders(node.me, orders_of(self.state, record))
            self._perform(node, (*told, *more))

    def _perform(self, node: PlayedNode, told: tuple[Instruction, ...]) -> None:
        for instruction in told:
            match instruction:
                case Tell(message):
                    if node.channel is not None:
                        node.channel.send(message)
                case Submit(event):
                    self.say(event)
                case RunRound():
                    pass

    # --- nodes --------------------------------------------------------------------------------

    async def start(self, name: str, incarnation: int = 1) -> PlayedNode:
        """Start one node's training process."""
        node = PlayedNode(name, incarnation)
        channel, theirs = await open_pair()
        node.channel = channel
        environment = {
            **os.environ,
            FD_VARIABLE: str(theirs.fileno()),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parents[3]),
        }
        arguments = ["--steps", str(self.declared.steps), "--out", str(self.folder), *self.extra]
        log = (self.folder / f"{name}.{incarnation}.log").open("wb")
        node.process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            *arguments,
            pass_fds=(theirs.fileno(),),
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        theirs.close()
        self.nodes[name] = node
        self.say(e.NodeJoined(node=node.name, incarnation=node.incarnation, host="127.0.0.1"))
        channel.send(
            m.Hello(
                node=node.name,
                incarnation=node.incarnation,
                declared=self.declared,
                secret_path=str(self.secret),
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
                node.me, told = on_message(node.me, said)
                self._perform(node, told)
                if isinstance(said, m.Ready):
                    self._tell_all()
        except ChannelClosed:
            self.changed.set()
        except Exception as error:
            self.fault = error
            self.changed.set()
            raise

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a real signal to a real process."""
        process = self.nodes[name].process
        assert process is not None
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # ended, and not yet waited for
                os.killpg(process.pid, number)

    async def until(self, what: str, holds: Callable[[], bool], within_s: float = 20.0) -> None:
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
            pytest.fail(f"not within {within_s} s: {what}\n{self.story()}")

    def events(self, kind: type[e.Event]) -> list[e.Recorded]:
        """Every recorded event of a type."""
        return [entry for entry in self.log if isinstance(entry.event, kind)]

    def story(self) -> str:
        """The log, one line per event, and the ends of the nodes' own logs."""
        lines = [f"{r.position} {r.at_ms % 100000} {str(r.event)[:220]}" for r in self.log[-60:]]
        for path in sorted(self.folder.glob("*.log")):
            lines += [f"--- {path.name}", *path.read_text().splitlines()[-60:]]
        return "\n".join(lines)

    async def stop(self) -> None:
        """Kill whatever still runs."""
        for name, node in self.nodes.items():
            self.kill(name)
            assert node.process is not None
            await node.process.wait()
            assert node.channel is not None
            node.channel.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


Launch = Callable[..., "Awaitable[CoreFleet]"]


@pytest.fixture
async def launch(tmp_path: Path) -> AsyncIterator[Launch]:
    """A function that launches a fleet of real training processes."""
    fleets: list[CoreFleet] = []

    async def start(
        nodes: int = 4,
        standbys: int = 1,
        steps: int = 20,
        axes: dict[str, int] | None = None,
        extra: list[str] | None = None,
    ) -> CoreFleet:
        folder = tmp_path / f"fleet{len(fleets)}"
        folder.mkdir()
        declared = e.JobDeclared(
            job=JOB, axes=axes or {"dp": nodes}, standbys=standbys, seed=7, steps=steps
        )
        fleet = CoreFleet(folder, declared, extra or [])
        fleets.append(fleet)
        fleet.say(fleet.declared)
        for index in range(nodes + standbys):
            await fleet.start(f"n{index}")
        return fleet

    try:
        yield start
    finally:
        for fleet in fleets:
            await fleet.stop()
