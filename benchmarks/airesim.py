"""AIReSim's default experiment, here and by AIReSim itself: the same answer, and how much sooner.

4,096 servers, 256 days of work, about 11,000 failures. Both run in this process, one replication
after the other in turns, and processor time is counted. AIReSim (arXiv 2603.07041) is a public
program that is not part of this project: `--airesim` names a folder that holds its package
`airesim`, and `simpy` (or a folder `lib` with it). Goal: 20 times faster.
"""

import argparse
import json
import platform
import sys
import time
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any

from msgspec.structs import replace

from simulator.compare import one
from simulator.paper.fleets import AIRESIM


def ours(number: int) -> dict[str, float]:
    """One replication here; the repairs are those that its paper describes."""
    began = time.process_time()
    found = one(replace(AIRESIM, seed=7), "hot-spares", number)
    took_s = time.process_time() - began
    return {
        "seconds": took_s,
        "hours": found.wall_s / 3600,
        "failures": found.losses,
        "selections": found.chosen + 1,
    }


def theirs(number: int, params: Any, simulator: Any) -> dict[str, float]:
    """One replication by AIReSim."""
    began = time.process_time()
    found = simulator(params(), seed=1000 + number).run()
    took_s = time.process_time() - began
    return {
        "seconds": took_s,
        "hours": found.training_time_hours,
        "failures": found.total_failures,
        "selections": found.host_selection_count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--airesim", type=Path, help="folder with its package")
    parser.add_argument("--replications", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    peer: tuple[Any, Any] | None = None
    if asked.airesim is not None:
        sys.path[:0] = [str(asked.airesim), str(asked.airesim / "lib")]
        peer = (
            import_module("airesim.params").Params,
            import_module("airesim.simulator").Simulator,
        )
    here, there = [], []
    for number in range(asked.replications):
        here.append(ours(number))
        if peer is not None:
            there.append(theirs(number, *peer))
    rows = {"here": here, "airesim": there} if there else {"here": here}
    found: dict[str, Any] = {
        who: {name: mean(run[name] for run in runs) for name in runs[0]}
        for who, runs in rows.items()
    }
    found["machine"], found["replications"] = platform.processor() or platform.machine(), len(here)
    if there:
        found["ratio"] = found["airesim"]["seconds"] / found["here"]["seconds"]
        found["hours_error"] = found["here"]["hours"] / found["airesim"]["hours"] - 1
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    for who in rows:
        numbers = ", ".join(f"{value:.2f} {name}" for name, value in found[who].items())
        print(f"{who:8} {numbers}")
    if there:
        print(f"{found['ratio']:.1f}x faster (goal 20x), hours {found['hours_error']:+.2%}")


if __name__ == "__main__":
    main()
