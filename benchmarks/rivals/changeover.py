"""Changeover as a contender: the product whole, with agents, controller and etcd.

Each kill is answered by a warm standby; the node that was killed comes back and is the next one.
"""

import random
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from rivals.contenders import JOBS, Row
from rivals.course import Course, full_world_at_s, kill, ordinary_step_s, redone
from rivals.floors import floors

from controlplane.config import Settings
from controlplane.demo.chronicle import Chronicle
from controlplane.etcd_binary import find_etcd
from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import EventLog
from controlplane.localfleet.fleet import LocalFleet
from controlplane.localfleet.folder import RunFolder
from controlplane.server import opened
from statemachine import events as e
from statemachine.ids import JobId, NodeId, Slot
from statemachine.incidents import incidents
from statemachine.lifecycle import NodeState

JOB = JobId("rivals")
KNOBS = {"harmful_nodes_max": 1000, "retry_cooldown_s": 0.2}
"""The node that was killed may come back at once, again and again; nothing else is tuned."""


class Ours:
    """A running fleet, and what its processes noted."""

    def __init__(self, course: Course, fleet: LocalFleet, log: EventLog, ranks: int) -> None:
        self.course, self.fleet, self.log, self.ranks = course, fleet, log, ranks
        self.chronicle = Chronicle(log, fleet.folder, JOB)
        self.state_bytes = 0
        """Bytes of state that the last newcomer received."""

    def start_node(self, name: str) -> None:
        """Start a node: its agent, and the training process below it."""
        command = [sys.executable, str(JOBS / "changeover_job.py")]
        self.fleet.start_node(NodeId(name), JOB, command, self.course.environment)

    def holder(self, slot: int) -> str:
        """Who holds a slot."""
        job = self.chronicle.job
        assert job is not None
        return str(job.holders[Slot(slot)])

    def pid_of(self, node: str) -> int:
        """The training process of a node."""
        return self.course.latest(int(node.lstrip("n")))

    async def ready(self) -> None:
        """Wait for a full world in its stride and a warm standby."""

        def whole() -> bool:
            job = self.chronicle.job
            nodes = self.chronicle.state.nodes.values()
            warm = any(node.state is NodeState.STANDBY for node in nodes)
            idle = job is not None and job.launched and job.pending is None and not job.vacant
            return warm and idle

        await self.chronicle.until(whole, 120.0, "a full world and a warm standby")
        members = [self.holder(slot) for slot in range(self.ranks)]

        def pids() -> list[int]:
            return [self.pid_of(name) for name in members]

        await anyio.to_thread.run_sync(self.course.until_stride, pids)

    async def lose_one(self, number: int, chance: random.Random, *, whole_node: bool) -> Row:
        """Kill the holder of one slot after the other, and wait for the full world."""
        await self.ready()
        name = self.holder(number % self.ranks)
        victim = self.pid_of(name)
        entries = len(self.chronicle.entries)
        if whole_node:
            await anyio.sleep(chance.uniform(0.0, 0.1))
            killed_at_s = time.time()
            self.fleet.nodes[NodeId(name)].kill_group(signal.SIGKILL)
        else:
            killed_at_s = await anyio.to_thread.run_sync(kill, victim, chance)

        def full() -> float | None:
            return full_world_at_s(self.course, killed_at_s, victim, self.ranks)

        try:
            full_at_s = await anyio.to_thread.run_sync(
                self.course.until, "a full world has committed a step", full, 60.0
            )
        except TimeoutError as error:
            error.add_note(self.chronicle.situation())
            raise
        if whole_node:
            self.start_node(name)
        await self.ready()
        step_s = ordinary_step_s(self.course.notes(), killed_at_s)
        whole_s = full_at_s - killed_at_s
        return {
            "whole_s": whole_s,
            "step_s": step_s,
            "beyond_s": whole_s - step_s,
            "redone": redone(self.course.notes(), killed_at_s),
            **self._phases(entries, killed_at_s),
        }

    def _phases(self, entries: int, killed_at_s: float) -> Row:
        """Where the time went, in seconds, as the log tells it."""
        news = self.chronicle.entries[entries:]
        lost = next(r for r in news if isinstance(r.event, e.NodeLost))
        told = incidents(self.chronicle.entries)[-1]
        phases = {name: ms / 1000 for name, ms in told.phases_ms.items() if name != "detect"}
        self.state_bytes = told.bytes_received or self.state_bytes
        return {"detect": lost.at_ms / 1000 - killed_at_s, **phases}

    def losses(self) -> int:
        """How many nodes were declared lost so far."""
        return sum(isinstance(r.event, e.NodeLost) for r in self.chronicle.entries)


@asynccontextmanager
async def running(folder: Path, ranks: int) -> AsyncIterator[Ours]:
    """A fleet of `ranks` members and a standby; gone with the block."""
    files = RunFolder.made(folder / "run")
    files.write_secret()
    with Course(folder) as course:
        async with EtcdServer(find_etcd(), folder / "etcd") as etcd:
            settings = Settings(etcd=etcd.url, fleet="rivals")
            async with opened(settings) as log, LocalFleet(files, "rivals", etcd.url) as fleet:
                ours = Ours(course, fleet, log, ranks)
                async with anyio.create_task_group() as group:
                    group.start_soon(ours.chronicle.follow_log)
                    fleet.start_controller()
                    await _declare(log, ranks)
                    for index in range(ranks + 1):
                        ours.start_node(f"n{index}")
                    yield ours
                    group.cancel_scope.cancel()


async def _declare(log: EventLog, ranks: int) -> None:
    facts: Sequence[e.AnyEvent] = (
        e.PolicyChanged(version=1, knobs=dict(KNOBS), by="benchmark"),
        e.JobDeclared(
            job=JOB, axes={"dp": ranks}, standbys=1, seed=7, steps=1_000_000, by="benchmark"
        ),
    )
    for fact in facts:
        await log.submit_operator("benchmark", fact, round(time.time() * 1000))


async def kills(
    folder: Path,
    ranks: int,
    count: int,
    chance: random.Random,
    tell: Callable[[Row], None],
    *,
    whole_node: bool,
) -> None:
    """Kill one member after the other; `tell` gets a row for each, with the floor of each phase."""
    rows: list[Row] = []
    async with running(folder, ranks) as ours:
        for number in range(count):
            rows.append(await ours.lose_one(number, chance, whole_node=whole_node))
            print(f"  ours: {rows[-1]['whole_s']:.3f} s", file=sys.stderr, flush=True)
        state_bytes = ours.state_bytes
    step_s = statistics.median(row["step_s"] for row in rows)
    async with (
        EtcdServer(find_etcd(), folder / "idle") as etcd,
        opened(Settings(etcd=etcd.url, fleet="floors")) as log,
    ):
        least = await floors(log.store, folder, state_bytes, step_s)
    for row in rows:
        tell(row | {f"floor {name}": took_s for name, took_s in least.items()})
