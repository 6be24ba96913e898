"""A live campaign: a scenario of the simulator, played on the local fleet.

What belongs here: doing to processes, at the times given, what `simctl campaign` says: kill, make
slow, drain, and let back. Who is hurt and when is drawn there, in a process of its own, since this
package and the simulator do not know each other; what the fleet does about it is its own affair.
What was really done, and when, is left in `campaign.json`, beside the scenario: `simctl validate`
simulates the run again from them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from math import prod
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace

from controlplane.demo.options import BadDemo
from controlplane.demo.plot import GREY, KILL, STEPS_S, Hurt, Plot, Say, write_fault
from controlplane.demo.stage import JOB, OPERATOR, Stage
from statemachine import events as e
from statemachine.campaign import Campaign, Injection, Played
from statemachine.ids import NodeId, Slot
from statemachine.lifecycle import NodeState

DRAIN: Final = "drain"
SETTLED_S: Final = 120.0
ANSWER_S: Final = 60.0


def read_campaign(path: Path) -> Campaign:
    """Ask the simulator what a scenario comes to.

    Raises:
        BadDemo: the scenario cannot be played here; says why, in the simulator's own line.
    """
    command = [sys.executable, "-m", "simulator", "campaign", str(path), "--json"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise BadDemo(f"--scenario {asked.stderr.strip().removeprefix('simctl: ')}")
    return msgspec.json.decode(asked.stdout, type=Campaign)


class Director(Plot):
    """Plays a campaign instead of the demo's own plot."""

    def __init__(self, stage: Stage, say: Say, campaign: Campaign) -> None:
        super().__init__(stage, say)
        self.campaign = campaign
        self.done: list[Injection] = []
        self.launched_at_ms = 0.0
        self.ended_at_ms = 0.0

    async def play(self) -> None:
        """Play from the declaration to the stop.

        Raises:
            Overdue: the job did not come to rest after the last fault.
        """
        options, stage = self._stage.options, self._stage
        await stage.declare(options.everyone, options.standbys)
        self._say(f"waiting for {len(options.everyone)} nodes: torch is being imported")
        await stage.launched()
        self.launched_at_ms = time.time() * 1000
        self._say(f"launched; {len(self.campaign.injections)} faults in {self._seconds:g} s")
        async with anyio.create_task_group() as group:
            for injection in self.campaign.injections:
                await self._sleep_until(injection.at_s)
                await self._inject(injection, group)
            await self._sleep_until(self._seconds)
            await self._until(self._at_rest, SETTLED_S, "the job to come to rest")
            group.cancel_scope.cancel()
        await stage.submit(e.JobStopRequested(job=JOB, by=OPERATOR))
        await stage.finished(STEPS_S)
        self.ended_at_ms = time.time() * 1000
        self._say("the campaign is over")

    @property
    def _seconds(self) -> float:
        return self.campaign.seconds

    async def _sleep_until(self, at_s: float) -> None:
        left_s = self.launched_at_ms / 1000 + at_s - time.time()
        await anyio.sleep(max(0.0, left_s))

    def _at_rest(self) -> bool:
        job = self._chronicle.job
        return job is not None and job.pending is None and not job.vacant

    async def _inject(self, injection: Injection, group: TaskGroup) -> None:
        at_s = time.time() - self.launched_at_ms / 1000
        match injection.kind:
            case "kill":
                happened = await self._kill(injection, group)
            case "grey":
                happened = await self._slow_down(injection, group)
            case _:
                happened = await self._drain(injection, group)
        if happened:
            self.done.append(replace(injection, at_s=at_s))
        else:
            self._say(f"{injection.kind} at {at_s:.1f} s has nothing to hit")

    async def _kill(self, injection: Injection, group: TaskGroup) -> bool:
        node = NodeId(f"n{injection.machine}")
        child = self._stage.fleet.nodes.get(node)
        if child is None or child.exit_code is not None:
            return False
        self._stage.hurt.add(node)
        hurt = Hurt(KILL, node, time.time() * 1000, self._identities())
        child.kill_group()
        self.hurts.append(hurt)
        self._say(f"killed {node} (SIGKILL to its process group)")
        await self._stated(hurt, "SIGKILL to its process group")

        async def again() -> None:
            await anyio.sleep(injection.away_s)
            self._stage.start_node(node)
            self._say(f"{node} was started again")

        group.start_soon(again)
        return True

    async def _slow_down(self, injection: Injection, group: TaskGroup) -> bool:
        node = NodeId(f"n{injection.machine}")
        if self._chronicle.state_of(node) is not NodeState.ACTIVE:
            return False
        path = self._stage.fleet.folder.fault_file(node)
        write_fault(path, injection.factor)
        hurt = Hurt(GREY, node, time.time() * 1000, self._identities())
        self.hurts.append(hurt)
        self._say(f"made {node} grey: its own work takes {injection.factor:g} times as long")
        await self._stated(hurt, f"slow_factor {injection.factor:g}")

        async def repaired() -> None:
            at = len(self._chronicle.entries)
            await self._chronicle.until(lambda: self._failed(node, at), ANSWER_S, "a failed sweep")
            await anyio.sleep(injection.away_s)
            path.unlink(missing_ok=True)
            await self._stage.submit(e.FaultLifted(node=node, kind=GREY))
            self._say(f"lifted the fault of {node}")

        group.start_soon(repaired)
        return True

    def _failed(self, node: NodeId, after: int) -> bool:
        def failed(event: e.AnyEvent) -> bool:
            if not isinstance(event, e.SweepFinished) or event.node != node:
                return False
            return event.outcome is not e.SweepOutcome.PASSED

        return self._chronicle.found(failed, after) is not None

    async def _drain(self, injection: Injection, group: TaskGroup) -> bool:
        job = self._chronicle.job
        node = job.holders.get(Slot(injection.slot)) if job is not None else None
        if node is None or self._chronicle.state_of(node) is not NodeState.ACTIVE:
            return False
        await self._stage.submit(e.DrainRequested(node=node, by=OPERATOR))
        self._say(f"drained {node} from slot {injection.slot}")

        async def released() -> None:
            await self._chronicle.until(
                lambda: self._chronicle.state_of(node) is NodeState.DRAINED, ANSWER_S, "a drain"
            )
            await anyio.sleep(injection.away_s)
            await self._stage.submit(e.ReleaseRequested(node=node, by=OPERATOR))
            self._say(f"released {node}")

        group.start_soon(released)
        return True


def leave(director: Director, scenario: Path, folder: Path, step_ms: float, steps: int) -> None:
    """Leave what `simctl validate` needs: the scenario, and what was done when."""
    shutil.copyfile(scenario, folder / "scenario.toml")
    played = Played(
        launched_at_ms=director.launched_at_ms,
        ended_at_ms=director.ended_at_ms,
        step_ms=step_ms,
        steps=steps,
        injections=tuple(director.done),
    )
    (folder / "campaign.json").write_bytes(msgspec.json.encode(played) + b"\n")


def options_of(campaign: Campaign, scenario: Path) -> dict[str, Any]:
    """The knobs of a demo that the campaign sets."""
    return {
        "scenario": scenario,
        "nodes": prod(campaign.axes.values()),
        "layout": tuple(campaign.axes.items()),
        "standbys": campaign.standbys,
        "seed": campaign.seed,
        "train_s": campaign.seconds,
    }
