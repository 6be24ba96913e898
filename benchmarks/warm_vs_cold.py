"""What a rehearsed standby saves: from promotion to the end of the first step, warm beside cold.

A pipeline of three stages and two replicas trains for real (tests/integration/loop/train_stages.py;
the control plane is the pure core in this process). For each role nodes are killed: --losses of
them while a general standby that has rehearsed every role is there, --cold of them while nobody is.
Then a new process is started at the same instant, as a machine that is held ready but runs nothing
would, and takes the slot without a rehearsal. Tables have medians.

Warm is from the plan to the end of the joiner's first committed step. Cold is from the start of the
process to the same point. Both say where the time went. A GPU adds its context and its kernels to
``build`` and ``prime``; on a CPU the allocator's share is within them. With --compile every stage
is compiled by torch. Members and standbys share a cache of compiled code; a cold process has an
empty one of its own, as on a machine that never ran the job.

A joiner's first step is compared with its next ones in three ways. By the clock: it is in its step
while members still compute theirs, which was lost or goes on in the new epoch, and waits for them.
Together: from when the last member is in the step until the joiner commits it. By its own work:
without waiting for peers. --slow-ms is slept in each step, as a device computes; the last two are
given without it, for it would flatter them.

The last lines measure what a warm-up beside the run costs the run: the step time while a machine
joins, primes and rehearses all roles, beside the step time before.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from statemachine import events as e
from tests.integration.loop.core_fleet import JOB, CoreFleet
from tests.integration.loop.zygote import EXAMPLES, ROOT, Forked

SCRIPT = ROOT / "tests" / "integration" / "loop" / "train_stages.py"
AXES = {"pp": 3, "dp": 2}
ROLES = {"first": 1, "middle": 3, "last": 5}
"""A slot of each role."""
NEAR_STEPS = 20
PATIENCE_S = 240.0
NO_PHASES = {"whole", "ordinary step"} | {
    f"{which} {what}" for which in ("first", "ordinary") for what in ("work", "together")
}


class Spawner:
    """Starts whole processes, imports and all, where the tests fork one that has torch loaded."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[bytes]] = []

    def fork(
        self,
        script: Path,
        arguments: list[str],
        environment: dict[str, str],
        log: Path,
        fd: int,
        **_: Any,
    ) -> Forked:
        """Start a process; named as the zygote's method."""
        path = f"{ROOT}{os.pathsep}{EXAMPLES}"
        told = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "CHANGEOVER_AGENT_FD": str(fd)}
        cache = log.with_suffix(".cache") if log.name.startswith("c-") else log.parent / "cache"
        told |= {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        with log.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, str(script), *arguments],
                pass_fds=(fd,),
                env={**os.environ, **environment, **told},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._children.append(child)
        return Forked(child.pid)

    def close(self) -> None:
        """Collect every process."""
        for child in self._children:
            child.kill()
            child.wait()


async def settled(fleet: CoreFleet) -> None:
    """Wait until the run goes on at full size and has done some ordinary steps."""
    await fleet.until("it runs", fleet.idle, PATIENCE_S)
    before = fleet.state.position
    one = fleet.nodes[fleet.holder(0)]
    count = len(one.steps()) + NEAR_STEPS
    await fleet.until("steps", lambda: len(one.steps()) > count, PATIENCE_S)
    assert fleet.state.position >= before


async def warm(fleet: CoreFleet, name: str) -> None:
    """Start a standby and wait until it has rehearsed every role."""
    await fleet.start(name)
    await fleet.until("warm", lambda: name in fleet.warm(), PATIENCE_S)
    await fleet.until("in every role", lambda: not fleet.state.unready, PATIENCE_S)


async def lose(fleet: CoreFleet, role: str, joiner: str, *, cold: bool) -> dict[str, float]:
    """Kill the holder of a role's slot; what the joiner needed until its first step, in ms."""
    slot = ROLES[role]
    start = len(fleet.log)
    fleet.kill(fleet.holder(slot))
    if cold:
        await fleet.until("it is lost", lambda: bool(fleet.state.jobs[JOB].vacant), PATIENCE_S)
        await fleet.start(joiner)
    await fleet.until(
        f"{joiner} trains", lambda: _first(fleet, start, e.StepResumed, joiner) is not None,
        PATIENCE_S,
    )  # fmt: skip
    await settled(fleet)
    planned = _plan_of(fleet, start, joiner)
    prepared = _first(fleet, start, e.TransitionPrepared, joiner)
    applied = _first(fleet, start, e.TransitionApplied, joiner)
    resumed = _first(fleet, start, e.StepResumed, joiner)
    ready = _first(fleet, 0, e.WorkerReady, joiner)
    assert prepared
    assert applied
    assert resumed
    assert ready
    found: dict[str, float] = {}
    if cold:
        found |= ready.event.phases_ms
    phases = applied.event.phases_ms
    found["parts"] = phases.get("parts", 0.0)
    found["links"] = prepared.event.took_ms
    found["transfer"] = phases.get("transfer", 0.0)
    found["switch"] = phases.get("switch", 0.0)
    found["first step"] = resumed.event.step_ms
    joined = _first(fleet, start, e.NodeJoined, joiner)
    began_ms = joined.at_ms if cold and joined else planned.at_ms
    found["whole"] = resumed.event.committed_at_ms - began_ms
    found["rest"] = found["whole"] - sum(v for k, v in found.items() if k != "whole")
    first, *near = fleet.nodes[joiner].steps()[: NEAR_STEPS + 1]
    found["ordinary step"] = statistics.median(line["step_ms"] for line in near)
    found["first together"] = together_ms(fleet, first)
    found["ordinary together"] = statistics.median(together_ms(fleet, line) for line in near)
    found["first work"] = work_ms(first)
    found["ordinary work"] = statistics.median(work_ms(line) for line in near)
    return found


def together_ms(fleet: CoreFleet, line: dict[str, Any]) -> float:
    """From when the last member was in a step until a node had committed it."""
    same = [
        one
        for node in fleet.nodes.values()
        for one in node.steps()
        if (one["step"], one["epoch"]) == (line["step"], line["epoch"])
    ]
    return float(line["at_ms"] - max(one["at_ms"] - one["step_ms"] for one in same))


def work_ms(line: dict[str, Any]) -> float:
    """What a node did itself in a step, without waiting for its peers."""
    return float(line["step_ms"] - line["waited_ms"])


def _first(fleet: CoreFleet, start: int, kind: Any, node: str) -> Any:
    entries: list[Any] = [r for r in fleet.log[start:] if isinstance(r.event, kind)]
    return next((r for r in entries if r.event.node == node), None)


def _plan_of(fleet: CoreFleet, start: int, joiner: str) -> Any:
    plans: list[Any] = [r for r in fleet.log[start:] if isinstance(r.event, e.TransitionPlanned)]
    return next(r for r in plans if any(c.joiner == joiner for c in r.event.changes))


async def beside(fleet: CoreFleet, name: str) -> dict[str, float]:
    """The step time before and while a machine joins and rehearses every role."""
    await settled(fleet)
    watched = fleet.nodes[fleet.holder(0)]
    before = [line["step_ms"] for line in watched.steps()[-NEAR_STEPS:]]
    count = len(watched.steps())
    await warm(fleet, name)
    while_ms = [line["step_ms"] for line in watched.steps()[count:]]
    return {
        "before": statistics.median(before),
        "while": statistics.median(while_ms),
        "steps": float(len(while_ms)),
    }


async def run(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Lose nodes of each role, to warm standbys and to cold processes."""
    extra = ["--width", str(asked.width), "--slow-ms", str(asked.slow_ms)]
    extra += ["--compile"] if asked.compile else []
    spawner = Spawner()
    declared = e.JobDeclared(job=JOB, axes=AXES, standbys=0, seed=7, steps=1_000_000)
    fleet = CoreFleet(spawner, folder, declared, extra, SCRIPT)
    found: dict[str, Any] = {}
    try:
        fleet.say(fleet.declared)
        await fleet.start("n0")
        await fleet.until("one is ready", lambda: bool(fleet.events(e.WorkerReady)), PATIENCE_S)
        for index in range(1, 6):  # they find the code of the first in the cache
            await fleet.start(f"n{index}")
        await fleet.until("launched", fleet.idle, PATIENCE_S)
        recorded = fleet.events
        await fleet.until("recorded", lambda: len(recorded(e.RecordingMade)) == 3, PATIENCE_S)
        found["recordings"] = {
            r.event.role: {"nbytes": r.event.nbytes, "took_ms": r.event.took_ms}
            for r in recorded(e.RecordingMade)
        }
        found["beside"] = await beside(fleet, "w-first-0")
        for role in ROLES:
            found[role] = await each(fleet, role, asked)
    finally:
        await fleet.stop()
        spawner.close()
    return found


async def each(
    fleet: CoreFleet, role: str, asked: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """What every loss of one role cost."""
    found: dict[str, list[dict[str, float]]] = {"warm": [], "cold": []}
    for kind, count in (("warm", asked.losses), ("cold", asked.cold)):
        for number in range(count):
            joiner = f"{kind[0]}-{role}-{number}"
            if kind == "warm" and joiner not in fleet.nodes:
                await warm(fleet, joiner)
            one = await lose(fleet, role, joiner, cold=kind == "cold")
            found[kind].append(one)
            share = one["first step"] / one["ordinary step"]
            told = f"{one['whole']:.0f} ms, first step {share:.2f}x"
            print(f"  {role} {kind}: {told}", file=sys.stderr)
    return found


def middle_of(losses: list[dict[str, float]]) -> dict[str, float]:
    """The medians of what several losses cost."""
    names = list(dict.fromkeys(name for one in losses for name in one))
    return {name: statistics.median(one.get(name, 0.0) for one in losses) for name in names}


def shares(losses: list[dict[str, float]], slept_ms: float) -> dict[str, list[float]]:
    """First steps over ordinary ones; see above for the three ways."""

    def share(name: str, less_ms: float = slept_ms) -> list[float]:
        return [(x[f"first {name}"] - less_ms) / (x[f"ordinary {name}"] - less_ms) for x in losses]

    return {
        "by the clock": share("step", 0.0),
        "together": share("together"),
        "by its own work": share("work"),
    }


def show(found: dict[str, Any], slept_ms: float) -> None:
    """Print a table per role, and the ratios."""
    for role in ROLES:
        one, two = middle_of(found[role]["warm"]), middle_of(found[role]["cold"])
        print(f"{role}: ms             warm      cold")
        for name in [n for n in two if n not in NO_PHASES]:
            print(f"  {name:14}{one.get(name, 0.0):10.1f}{two.get(name, 0.0):10.1f}")
        print(f"  {'whole':14}{one['whole']:10.1f}{two['whole']:10.1f}", end="")
        print(f"   cold / warm {two['whole'] / one['whole']:.1f}x")
        print(f"  warm first step, of an ordinary one ({one['ordinary step']:.1f} ms):")
        for how, found_shares in shares(found[role]["warm"], slept_ms).items():
            middle, worst = statistics.median(found_shares), max(found_shares)
            print(f"    {how:22} median {middle:.2f}x  worst {worst:.2f}x of {len(found_shares)}")
    made = found["recordings"]
    sizes = ", ".join(
        f"{r} {m['nbytes'] / 1e3:.0f} kB {m['took_ms']:.0f} ms" for r, m in made.items()
    )
    print(f"recordings: {sizes}")
    beside_run = found["beside"]
    share = beside_run["while"] / beside_run["before"]
    print(
        f"step while a machine joins and rehearses beside the run, on the same cores: "
        f"{beside_run['while']:.1f} ms, before {beside_run['before']:.1f} ms: {share:.2f}x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--slow-ms", type=float, default=50.0, help="least duration of a step")
    parser.add_argument("--losses", type=int, default=4, help="losses of each role, warm")
    parser.add_argument("--cold", type=int, default=1, help="losses of each role, cold")
    parser.add_argument("--compile", action="store_true", help="compile every stage")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.losses < 1 or asked.cold < 1:
        parser.error("--losses and --cold: at least 1 each")
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(asked, Path(folder)))
    found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{found['machine']}; width {asked.width}, compiled: {asked.compile}")
    show(found, asked.slow_ms)


if __name__ == "__main__":
    main()
