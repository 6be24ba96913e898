"""A bench for one agent: a real etcd, a controller's pen, and agents as real processes.

The bench plays the controller by hand: it puts the desired topology and orders that a test wants,
fences whom a test wants fenced, and reads the facts that agents state. What follows from facts is
tested elsewhere.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from msgspec.structs import replace

from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import Batch, EventLog, Leadership
from controlplane.eventlog.etcd import EtcdStore
from statemachine import events as e
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Position
from statemachine.topology import Desired, Orders, encode_projection
from worker.tripwire import ending_status

TRAINEE = Path(__file__).with_name("trainee.py")
NODE = NodeId("n0")
JOB = JobId("gpt")
DECLARED = e.JobDeclared(job=JOB, axes={"dp": 1}, steps=10)
WAIT_S = 15.0

T = TypeVar("T", bound=e.Event)


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that is taken down, or waits to be collected, does not."""
    try:
        if ending_status(pid):
            return False
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class AgentRun:
    """One agent process in a session of its own, and what may be seen of it."""

    def __init__(self, popen: "subprocess.Popen[bytes]", log: Path, worker_log: Path) -> None:
        self.popen = popen
        self.pid = popen.pid
        self.log = log
        self.worker_log = worker_log

    def members(self) -> list[psutil.Process]:
        """Living processes of the node's process group."""
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError):
                if os.getpgid(process.pid) == self.pid and is_alive(process.pid):
                    found.append(process)
        return found

    def words(self) -> list[str]:
        """Lines that the trainee printed."""
        with suppress(FileNotFoundError):
            return self.worker_log.read_text().splitlines()
        return []

    def story(self) -> str:
        """What both wrote, for a failure to show."""
        return f"{self.log.read_text()}\n--- trainee\n" + "\n".join(self.words())

    async def heard(self, line: str, times: int = 1) -> None:
        """Wait until the trainee printed lines that begin so."""
        await self.until(
            lambda: sum(word.startswith(line) for word in self.words()) >= times, f"{line!r}"
        )

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition, with a bound."""
        give_up_at = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < give_up_at, f"never happened: {what}\n{self.story()}"
            await asyncio.sleep(0.005)

    async def ended(self) -> int:
        """Wait for the agent's end; its exit code."""
        await self.until(lambda: self.popen.poll() is not None, "the agent's end")
        return self.popen.returncode

    def kill_node(self) -> None:
        """Kill the whole node: agent and training process."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()


class Bench:
    """Plays the controller; starts agents."""

    def __init__(self, etcd: EtcdServer, fleet: str, store: EtcdStore, folder: Path) -> None:
        self.etcd = etcd
        self.fleet = fleet
        self.log = EventLog(store, fleet)
        self.folder = folder
        self.secret = folder / "fleet.secret"
        self.secret.write_bytes(os.urandom(32))
        self.secret.chmod(0o600)
        self.agents: list[AgentRun] = []
        self._pen: Leadership

    async def open(self) -> None:
        """Take the controller's pen."""
        self._pen = await self.log.campaign("bench", 60)

    async def put(self, *, desired: Desired | None = None, orders: Orders | None = None) -> None:
        """Project."""
        await self._pen.append(
            Batch(
                after=self._pen.head,
                entries=(),
                desired=((desired.job, encode_projection(desired)),) if desired else (),
                orders=((orders.node, encode_projection(orders)),) if orders else (),
            )
        )

    async def declare(self, position: int = 1, **fields: Any) -> None:
        """Project the topology of the declared job, with what differs from an idle one."""
        idle = Desired(
            job=JOB, position=Position(position), epoch=Epoch(0), declared=DECLARED, members=()
        )
        await self.put(desired=replace(idle, **fields))

    async def fence(self, incarnation: int) -> None:
        """Declare an incarnation of the node lost."""
        await self._pen.append(
            Batch(after=self._pen.head, entries=(), fenced=((NODE, Incarnation(incarnation)),))
        )

    async def facts(self) -> list[e.Fact]:
        """Facts that were stated, in order of arrival."""
        return [item.fact() for item in await self.log.inbox()]

    async def fact(self, kind: type[T], incarnation: int = 1, **fields: object) -> T:
        """Wait for a fact of a kind, with these fields, by an incarnation of the node."""
        try:
            async with asyncio.timeout(WAIT_S), self.log.watch_inbox() as view:
                async for delta in view:
                    for item in delta.updated:
                        fact = item.fact()
                        event = fact.event
                        if not isinstance(event, kind) or fact.incarnation != incarnation:
                            continue
                        if all(getattr(event, name) == fields[name] for name in fields):
                            return event
        except TimeoutError:
            stories = "\n".join(agent.story() for agent in self.agents)
            pytest.fail(f"no {kind.__name__} of incarnation {incarnation}:\n{stories}")
        raise AssertionError

    def start(self, *trainee: str, options: tuple[str, ...] = (), node: NodeId = NODE) -> AgentRun:
        """Start an agent whose training process is the trainee with these options."""
        number = len(self.agents)
        log = self.folder / f"agent-{number}.log"
        run_dir = self.folder / f"run-{number}"
        command = [
            *(sys.executable, "-m", "worker.agent"),
            *("--node", node, "--fleet", self.fleet, "--job", JOB, "--etcd", self.etcd.url),
            *("--run-dir", str(run_dir), "--secret-file", str(self.secret)),
            *("--lease-ttl-s", "4", "--stop-grace-s", "0.5"),
            *options,
            *("--", "python", str(TRAINEE), *trainee),
        ]
        with log.open("wb") as output:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.fspath(TRAINEE.parents[3])},
            )
        agent = AgentRun(popen, log, run_dir / f"worker-{node}.log")
        self.agents.append(agent)
        return agent
