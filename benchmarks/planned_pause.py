"""How long a planned swap keeps a run from its next step, beyond an ordinary one.

Four ranks train for real; the control plane is the pure core in this process. One member after the
other is drained and its slot taken by a warm standby. The pause is the distance of the two steps
around the boundary, as each stayer noted them, the longest of all stayers, less an ordinary step.
Nothing else of the transition is in anybody's way: preparation runs beside the steps.

`--at-once 1,2,3` drains so many members at one boundary, and shows if the pause grows with them.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from statemachine import events as e
from statemachine.ids import NodeId
from tests.integration.loop.core_fleet import JOB, CoreFleet
from tests.integration.loop.zygote import Zygote

PLANNED = "planned to finished"


async def drain(fleet: CoreFleet, slots: list[int]) -> dict[str, float]:
    """Drain the holders of slots at one boundary; milliseconds."""
    count = len(slots)
    await fleet.until(
        "standbys are warm", lambda: len(fleet.warm()) >= count and fleet.idle(), 60.0
    )
    leavers = [fleet.holder(slot) for slot in slots]
    stayers = [fleet.holder(slot) for slot in fleet.state.jobs[JOB].holders if slot not in slots]
    first = fleet.nodes[leavers[0]]
    before = len(first.steps())
    await fleet.until("it trains", lambda: len(first.steps()) > before + 20, 60.0)
    start = len(fleet.log)
    with _undecided(fleet):
        for name in leavers:
            fleet.say(e.DrainRequested(node=NodeId(name), by="benchmark"))
    fleet.settle()
    held = [(slot, name) for slot, name in zip(slots, leavers, strict=True)]
    await fleet.until(
        "they left", lambda: fleet.idle() and all(fleet.holder(s) != n for s, n in held), 60.0
    )
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
    planned = [r for r in fleet.log[start:] if isinstance(r.event, e.TransitionPlanned)]
    finished = [r for r in fleet.log[start:] if isinstance(r.event, e.TransitionFinished)]
    assert len(planned) == 1, "the swaps were not done in one transition"
    return {
        "at once": float(count),
        PLANNED: float(finished[-1].at_ms - planned[0].at_ms),
        "an ordinary step": step_ms,
        "around the boundary": whole_ms,
        "beyond a step": whole_ms - step_ms,
        "state transfer": max(one.phases_ms.get("transfer", 0.0) for one in applied),
        "switch": max(one.phases_ms.get("switch", 0.0) for one in applied),
        "megabytes": sum(one.bytes_received for one in applied) / 1e6,
    }


@contextlib.contextmanager
def _undecided(fleet: CoreFleet) -> Iterator[None]:
    """Let several facts arrive before anything is decided, as one batch of a controller's."""
    settle = fleet.settle
    fleet.settle = lambda: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        fleet.settle = settle  # type: ignore[method-assign]


def _around(fleet: CoreFleet, name: str, epoch: int) -> tuple[float, float]:
    """Distance of the steps around the beginning of `epoch`, and of ordinary ones, in ms."""
    lines = fleet.nodes[name].steps()
    first = next(i for i, line in enumerate(lines) if line["epoch"] == epoch)
    at = [line["at_ms"] for line in lines[max(0, first - 40) : first]]
    usual = statistics.median(b - a for a, b in itertools.pairwise(at))
    return lines[first]["at_ms"] - lines[first - 1]["at_ms"], float(usual)


async def run(
    drains: int, ranks: int, counts: list[int], extra: list[str]
) -> list[dict[str, float]]:
    """Drain members `drains` times for each of `counts`, taking turns."""
    zygote = Zygote()
    most = max(counts)
    declared = e.JobDeclared(job=JOB, axes={"dp": ranks}, standbys=most, seed=7, steps=1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        fleet = CoreFleet(zygote, Path(folder), declared, extra)
        try:
            fleet.say(e.PolicyChanged(version=1, knobs={"harmful_nodes_max": 1000}, by="benchmark"))
            fleet.say(declared)
            for index in range(ranks + most):
                await fleet.start(f"n{index}")
            found = []
            for number in range(drains):
                for count in counts:
                    slots = [(number + offset) % ranks for offset in range(count)]
                    found.append(await drain(fleet, slots))
                    for _ in range(count):
                        await fleet.add_standby()
        finally:
            await fleet.stop()
            zygote.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drains", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--at-once", default="1", metavar="N,N", help="members at one boundary")
    parser.add_argument("--width", type=int, default=4096, help="of the model: 240 bytes each")
    parser.add_argument("--slow-ms", type=float, default=40.0, help="least duration of a step")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    extra = ["--width", str(asked.width), "--slow-ms", str(asked.slow_ms)]
    counts = [int(count) for count in asked.at_once.split(",")]
    if not 1 <= min(counts) <= max(counts) < asked.ranks:
        parser.error(f"--at-once {asked.at_once}: from 1 to {asked.ranks - 1}, somebody must stay")
    rows = asyncio.run(run(asked.drains, asked.ranks, counts, extra))
    if asked.json:
        print(json.dumps(rows))
        return
    for count in counts:
        mine = [row for row in rows if row["at once"] == count]
        share = mine[0]["megabytes"] / count
        print(f"{asked.ranks} ranks, {asked.drains} times {count} at once, {share:.1f} MB each")
        for name in ("an ordinary step", "around the boundary", "beyond a step", PLANNED):
            took = [row[name] for row in mine]
            spread = f"{min(took):7.1f} to {max(took):7.1f}"
            print(f"{name:20} {statistics.median(took):7.1f} ms  ({spread})")


if __name__ == "__main__":
    main()
