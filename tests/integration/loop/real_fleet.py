"""A fleet as it is operated: etcd, controllers, agents and training, each a process of its own.

What belongs here: starting, hurting and reading such a fleet. What the training processes run is
the same script as elsewhere in this folder, so that a run here ends with the weights of one there.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from controlplane.config import Settings
from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import EventLog
from controlplane.localfleet.children import Child
from controlplane.localfleet.folder import RunFolder
from controlplane.server import opened
from statemachine import events as e
from statemachine.evolve import evolve
from statemachine.ids import NodeId, Position, Slot
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState
from tests.integration.loop.core_fleet import JOB, SCRIPT
from worker.diary import STEPS_VARIABLE
from worker.faultpoints import FAULTPOINTS_VARIABLE, Act, arm, reached

ROOT = Path(__file__).parents[3]
LEASE_TTL_S = 4.0
LEADER_TTL_S = 1.0
LOOK_S = 0.02


class RealFleet:
    """Made by `real_fleet`."""

    def __init__(
        self, server: EtcdServer, name: str, folder: Path, declared: e.JobDeclared
    ) -> None:
        self.server, self.name, self.declared = server, name, declared
        self.run = RunFolder.made(folder)
        self.run.write_secret()
        self.out = folder / "out"
        self.out.mkdir()
        self.children: dict[str, Child] = {}
        self.former: list[Child] = []
        """Those whose name another has taken over."""
        self.state = FleetState()
        self.log: list[e.Recorded] = []
        self._environment = {"CHANGEOVER_ETCD": server.url, "CHANGEOVER_FLEET": name}

    # --- its parts --------------------------------------------------------------------------------

    def start_controller(self, name: str) -> None:
        """Start a controller; a second one stands by."""
        command = [sys.executable, "-m", "controlplane", "controller", "--name", name]
        command += ["--leader-ttl-s", str(LEADER_TTL_S)]
        log_path = self.run.logs / f"{name}.log"
        self.children[name] = Child.started(name, command, log_path, self._environment)

    def start_node(self, name: str, extra: Sequence[str] = ()) -> None:
        """Start an agent, and under it the training process, as one process group."""
        command = [sys.executable, "-m", "worker.agent", "--node", name, "--fleet", self.name]
        command += ["--etcd", self.server.url, "--job", JOB, "--run-dir", str(self.run.logs)]
        command += ["--secret-file", str(self.run.secret), "--lease-ttl-s", str(LEASE_TTL_S)]
        command += ["--rejoin"]
        command += ["--", sys.executable, str(SCRIPT), "--steps", str(self.declared.steps)]
        command += ["--out", str(self.out), *extra]
        env = {
            FAULTPOINTS_VARIABLE: str(self._faults(name)),
            STEPS_VARIABLE: str(self.out / f"{name}.steps"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        if name in self.children:
            self.former.append(self.children[name])
        self.children[name] = Child.started(name, command, self.run.logs / f"agent-{name}.log", env)

    def _faults(self, name: str) -> Path:
        return self.out / f"{name}.fault"

    def arm(self, name: str, points: Sequence[str], act: Act) -> None:
        """Let a node meet a fault at the end of a path of points."""
        arm(self._faults(name), points, act)

    def release(self, name: str) -> None:
        """Let a held thread go on."""
        reached(self._faults(name)).unlink()

    def kill(self, name: str) -> None:
        """End a controller, or a node with its agent, as a power cut would."""
        self.children[name].kill_group(signal.SIGKILL)

    async def command(self, *words: str) -> str:
        """Run `changeover` as an operator; what it prints."""
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "controlplane", *words],
            env=os.environ | self._environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}\n{self.story()}"
        return done.stdout

    # --- what it is like --------------------------------------------------------------------------

    async def follow(self, log: EventLog) -> None:
        """Fold the log as it grows, until cancelled."""
        async with log.follow(Position(1)) as entries:
            async for recorded in entries:
                self.state = evolve(self.state, recorded)
                self.log.append(recorded)

    async def until(self, what: str, holds: Callable[[], bool], within_s: float = 30.0) -> None:
        """Wait for a condition, or fail and tell what happened."""
        ends_at = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < ends_at, f"not within {within_s} s: {what}\n{self.story()}"
            await asyncio.sleep(LOOK_S)

    def events(self, kind: type[e.Event]) -> list[Any]:
        """Every recorded event of a type."""
        return [entry.event for entry in self.log if isinstance(entry.event, kind)]

    def idle(self) -> bool:
        """Whether the job runs with every slot filled and nothing pending."""
        job = self.state.jobs.get(JOB)
        return job is not None and job.launched and job.pending is None and not job.vacant

    def holder(self, slot: int) -> str:
        """Who holds a slot."""
        return str(self.state.jobs[JOB].holders[Slot(slot)])

    def warm(self) -> list[str]:
        """Warm standbys."""
        nodes = self.state.nodes.values()
        return sorted(node.node for node in nodes if node.state is NodeState.STANDBY)

    def lost(self) -> list[str]:
        """Nodes declared lost, in order."""
        return [str(event.node) for event in self.events(e.NodeLost)]

    def step(self) -> int:
        """The highest step that any node committed, by their own notes."""
        last = -1
        for path in self.out.glob("*.steps"):
            lines = path.read_text().splitlines()
            with contextlib.suppress(IndexError, json.JSONDecodeError):
                last = max(last, json.loads(lines[-1])["step"])
        return last

    def steps_of(self, name: str) -> list[int]:
        """The steps that a node committed."""
        lines = (self.out / f"{name}.steps").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines]

    async def goes_on(self, steps: int = 3) -> None:
        """Wait until some more steps are committed."""
        began = self.step()
        await self.until(f"{steps} more steps", lambda: self.step() >= began + steps)

    async def digest(self, within_s: float = 90.0) -> str:
        """Let the job end; the one digest of everybody's weights."""
        (self.out / "hurry").touch()
        await self.until("the job finishes", lambda: self.state.jobs[JOB].finished, within_s)
        held = set(dict(self.state.jobs[JOB].holders).values())
        said = {event.weights_digest for event in self.events(e.WorkerFinished)}
        assert len(said) == 1, self.story()
        assert held <= {NodeId(event.node) for event in self.events(e.WorkerFinished)}
        return str(said.pop())

    def story(self) -> str:
        """The log, one line per event, and the ends of everybody's own logs."""
        lines = [f"{r.position} {r.at_ms % 100000} {str(r.event)[:220]}" for r in self.log[-60:]]
        for path in sorted(self.run.logs.glob("*.log")):
            lines += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-25:]]
        return "\n".join(lines)


@asynccontextmanager
async def real_fleet(
    server: EtcdServer,
    folder: Path,
    *,
    nodes: int,
    standbys: int,
    steps: int,
    extra: Sequence[str] = (),
    controllers: int = 1,
    knobs: dict[str, Any] | None = None,
) -> AsyncIterator[RealFleet]:
    """A fleet that trains, with its standbys warm; all of it is gone when the block is left."""
    declared = e.JobDeclared(
        job=JOB, axes={"dp": nodes}, standbys=standbys, seed=7, steps=steps, by="test"
    )
    fleet = RealFleet(server, f"loop{os.getpid()}", folder, declared)
    async with opened(Settings(etcd=server.url, fleet=fleet.name, demo=True)) as log:
        following = asyncio.create_task(fleet.follow(log))
        try:
            for number in range(controllers):
                fleet.start_controller(f"c{number}")
            policy = e.PolicyChanged(version=1, knobs=knobs or {}, by="test")
            for event in (policy, declared):
                await log.submit_operator("test", event, round(time.time() * 1000))
            for number in range(nodes + standbys):
                fleet.start_node(f"n{number}", extra)
            await fleet.until(
                "it trains", lambda: fleet.idle() and len(fleet.warm()) == standbys, 120.0
            )
            yield fleet
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            for child in (*fleet.children.values(), *fleet.former):
                await child.stop(0.2)
