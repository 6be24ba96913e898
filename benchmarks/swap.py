"""From a kill to the first step that a full world committed, and where that time goes.

Four ranks and a warm standby train for real, over real links; the control plane is the pure core in
this process, so that this is the floor of what the agents and etcd add to. One member after the
other is killed. Every phase ends with the last of those it waits for:

- detect: the kernel ends the victim's sockets, until a peer's word has arrived here;
- prepare: until all are parked and the joiner's links are there;
- transfer and switch: until the last member trains inside the new groups;
- first step: until the last member has committed one.

`beyond a step` takes an ordinary step off the whole: it would have been due anyway.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from statemachine import events as e
from tests.integration.loop.core_fleet import JOB, CoreFleet
from tests.integration.loop.zygote import Zygote

PHASES = ("detect", "prepare", "switch", "first step", "whole", "beyond a step")


async def one_kill(fleet: CoreFleet, slot: int) -> dict[str, float]:
    """Kill the holder of a slot; milliseconds of each phase."""
    await fleet.until("a standby is warm", lambda: bool(fleet.warm()) and fleet.idle(), 60.0)
    steps = len(fleet.nodes[fleet.holder(slot)].steps())
    victim = fleet.holder(slot)
    await fleet.until("it trains", lambda: len(fleet.nodes[victim].steps()) > steps + 20, 60.0)
    step_ms = ordinary_step_ms(fleet, victim)
    start = len(fleet.log)
    killed_at_ms = time.time() * 1000
    fleet.kill(victim)

    def resumed() -> list[e.StepResumed]:
        found = [r.event for r in fleet.log[start:]]
        return [event for event in found if isinstance(event, e.StepResumed)]

    await fleet.until("all resumed", lambda: len(resumed()) == len(fleet.state.jobs[JOB].holders))
    ends = {
        "detect": _last(fleet, start, e.TransitionPlanned),
        "prepare": _last(fleet, start, e.TransitionCommitted),
        "switch": _last(fleet, start, e.TransitionApplied),
        "first step": max(event.committed_at_ms for event in resumed()),
    }
    whole_ms = ends["first step"] - killed_at_ms
    found = {"whole": whole_ms, "beyond a step": whole_ms - step_ms, "an ordinary step": step_ms}
    before_ms = killed_at_ms
    for phase, at_ms in ends.items():
        found[phase] = at_ms - before_ms
        before_ms = at_ms
    return found


def _last(fleet: CoreFleet, start: int, kind: type[e.Event]) -> float:
    return float(max(r.at_ms for r in fleet.log[start:] if isinstance(r.event, kind)))


def ordinary_step_ms(fleet: CoreFleet, name: str) -> float:
    """Median distance of a node's recent steps."""
    at = [line["at_ms"] for line in fleet.nodes[name].steps()[-40:]]
    return float(statistics.median(b - a for a, b in itertools.pairwise(at)))


async def run(kills: int, ranks: int, extra: list[str]) -> list[dict[str, float]]:
    """Kill `kills` members, one after the other."""
    zygote = Zygote()
    declared = e.JobDeclared(job=JOB, axes={"dp": ranks}, standbys=1, seed=7, steps=1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        fleet = CoreFleet(zygote, Path(folder), declared, extra)
        try:
            fleet.say(declared)
            for index in range(ranks + 1):
                await fleet.start(f"n{index}")
            found = []
            for number in range(kills):
                found.append(await one_kill(fleet, number % ranks))
                await fleet.add_standby()
        finally:
            await fleet.stop()
            zygote.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--width", type=int, default=4096, help="of the model: 240 bytes each")
    parser.add_argument("--slow-ms", type=float, default=40.0, help="least duration of a step")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    extra = ["--width", str(asked.width), "--slow-ms", str(asked.slow_ms)]
    rows = asyncio.run(run(asked.kills, asked.ranks, extra))
    if asked.json:
        print(json.dumps(rows))
        return
    step_ms = statistics.median(row["an ordinary step"] for row in rows)
    print(f"{asked.ranks} ranks, {asked.kills} kills, an ordinary step takes {step_ms:.1f} ms")
    for phase in PHASES:
        show(phase, [row[phase] for row in rows], step_ms)


def show(name: str, took: list[Any], step_ms: float) -> None:
    """Print median, range, and the median in ordinary steps."""
    middle = statistics.median(took)
    spread = f"{min(took):7.1f} to {max(took):7.1f}"
    print(f"{name:16} {middle:7.1f} ms  ({spread})  {middle / step_ms:5.2f} x a step")


if __name__ == "__main__":
    main()
