"""How long a planned swap keeps a run from its next step, beyond an ordinary one.

Four ranks train for real; the control plane is the pure core in this process. One member after the
other is drained and its slot taken by a warm standby. The pause is the distance of the two steps
around the boundary, as each stayer noted them, the longest of all stayers, less an ordinary step.
Nothing else of the transition is in anybody's way: preparation runs beside the steps.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from statemachine import events as e
from statemachine.ids import NodeId
from tests.integration.loop.core_fleet import JOB, CoreFleet
from tests.integration.loop.zygote import Zygote


async def one_drain(fleet: CoreFleet, slot: int) -> dict[str, float]:
    """Drain the holder of a slot; milliseconds."""
    await fleet.until("a standby is warm", lambda: bool(fleet.warm()) and fleet.idle(), 60.0)
    leaver = fleet.holder(slot)
    stayers = [fleet.holder(other) for other in fleet.state.jobs[JOB].holders if other != slot]
    before = len(fleet.nodes[leaver].steps())
    await fleet.until("it trains", lambda: len(fleet.nodes[leaver].steps()) > before + 20, 60.0)
    start = len(fleet.log)
    fleet.say(e.DrainRequested(node=NodeId(leaver), by="benchmark"))
    await fleet.until("it left", lambda: fleet.idle() and fleet.holder(slot) != leaver, 60.0)
    epoch = int(fleet.state.jobs[JOB].epoch)
    await fleet.until(
        "steps go on",
        lambda: all(fleet.nodes[name].steps()[-1]["epoch"] == epoch for name in stayers),
        60.0,
    )
    applied = [r.event for r in fleet.log[start:] if isinstance(r.event, e.TransitionApplied)]
    took = [_around(fleet, name, epoch) for name in stayers]
    step_ms = statistics.median(step for _, step in took)
    whole_ms = max(gap for gap, _ in took)
    return {
        "an ordinary step": step_ms,
        "around the boundary": whole_ms,
        "beyond a step": whole_ms - step_ms,
        "state transfer": max(one.phases_ms.get("transfer", 0.0) for one in applied),
        "switch": max(one.phases_ms.get("switch", 0.0) for one in applied),
        "megabytes": sum(one.bytes_received for one in applied) / 1e6,
    }


def _around(fleet: CoreFleet, name: str, epoch: int) -> tuple[float, float]:
    """Distance of the steps around the beginning of `epoch`, and of ordinary ones, in ms."""
    lines = fleet.nodes[name].steps()
    first = next(i for i, line in enumerate(lines) if line["epoch"] == epoch)
    at = [line["at_ms"] for line in lines[max(0, first - 40) : first]]
    usual = statistics.median(b - a for a, b in itertools.pairwise(at))
    return lines[first]["at_ms"] - lines[first - 1]["at_ms"], float(usual)


async def run(drains: int, ranks: int, extra: list[str]) -> list[dict[str, float]]:
    """Drain `drains` members, one after the other."""
    zygote = Zygote()
    declared = e.JobDeclared(job=JOB, axes={"dp": ranks}, standbys=1, seed=7, steps=1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        fleet = CoreFleet(zygote, Path(folder), declared, extra)
        try:
            fleet.say(e.PolicyChanged(version=1, knobs={"harmful_nodes_max": 1000}, by="benchmark"))
            fleet.say(declared)
            for index in range(ranks + 1):
                await fleet.start(f"n{index}")
            found = []
            for number in range(drains):
                found.append(await one_drain(fleet, number % ranks))
                await fleet.add_standby()
        finally:
            await fleet.stop()
            zygote.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drains", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--width", type=int, default=4096, help="of the model: 240 bytes each")
    parser.add_argument("--slow-ms", type=float, default=40.0, help="least duration of a step")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    extra = ["--width", str(asked.width), "--slow-ms", str(asked.slow_ms)]
    rows = asyncio.run(run(asked.drains, asked.ranks, extra))
    if asked.json:
        print(json.dumps(rows))
        return
    print(f"{asked.ranks} ranks, {asked.drains} drains, {rows[0]['megabytes']:.1f} MB of state")
    for name in ("an ordinary step", "around the boundary", "beyond a step"):
        took = [row[name] for row in rows]
        spread = f"{min(took):7.1f} to {max(took):7.1f}"
        print(f"{name:20} {statistics.median(took):7.1f} ms  ({spread})")


if __name__ == "__main__":
    main()
