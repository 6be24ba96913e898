"""What a simulated week costs in processor seconds, and whether it grows with events or ranks.

Rows:
- `week`: 65,536 GPUs for a week with standbys and Guard, one replication on one core; goal 1.5 s;
- `scale`: the same number of faults at 8,192 and at 131,072 GPUs; goal: within 1.5 times;
- `compare`: six strategies at 65,536 GPUs, processor seconds per replication of all six, and what
  200 replications would take on two cores; goal 180 s. With `--whole` they are really run, in two
  processes, and the wall time is counted.

Else processor time is counted, not wall time: the machine may be shared.
"""

import argparse
import json
import platform
import time
from typing import Any

from msgspec.structs import replace

from simulator.compare import compare, replication
from simulator.faults import draw
from simulator.parts import STRATEGIES
from simulator.scenario import FaultsTable, FleetTable, GreyTable, JobTable, Scenario
from simulator.world import World

SIX = (
    "checkpoint-restart",
    "hot-spares",
    "in-process",
    "drop-replica",
    "oobleck",
    "standby-swap-guard",
)


def scenario(gpus: int, faults_a_week: float) -> Scenario:
    """A week at a scale, with a number of hard faults that does not depend on it."""
    axes = {"pp": 16, "cp": gpus // 8192, "dp": 64, "tp": 8}
    rate = faults_a_week / 7 / (gpus / 8) * 1000
    grey = 0.3 * 8192 / (gpus / 8)
    return Scenario(
        job=JobTable(axes=axes),
        fleet=FleetTable(standbys=8, spares=900),
        faults=FaultsTable(per_1000_node_days=rate),
        grey=GreyTable(per_1000_node_days=grey),
    )


def week(gpus: int, number: int) -> tuple[float, int]:
    """Processor seconds and entries of the log of one replication."""
    read = scenario(gpus, 373.0)
    began = time.process_time()
    world = World(read, STRATEGIES["standby-swap-guard"], draw(read, number), number)
    world.run()
    return time.process_time() - began, world.core.entries


def six(runs: int) -> float:
    """Processor seconds of one replication of all six strategies at 65,536 GPUs."""
    read = scenario(65_536, 373.0)
    began = time.process_time()
    for number in range(runs):
        replication((read, SIX, number))
    return (time.process_time() - began) / runs


def whole() -> float:
    """Wall seconds of 200 replications of six strategies, in two processes."""
    began = time.monotonic()
    compare(replace(scenario(65_536, 373.0), replications=200), SIX, workers=2)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--whole", action="store_true", help="run all 200 replications")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    runs = asked.runs

    def say(words: str) -> None:
        if not asked.json:
            print(words, flush=True)

    found: dict[str, Any] = {"machine": platform.processor() or platform.machine()}
    weeks = {gpus: [week(gpus, n) for n in range(runs)] for gpus in (8192, 65_536, 131_072)}
    for gpus, rows in weeks.items():
        took_s = found[f"week_{gpus}_s"] = sorted(took for took, _ in rows)[runs // 2]
        entries = found[f"entries_{gpus}"] = sum(count for _, count in rows) // runs
        goal = " (goal 1.5 s)" if gpus == 65_536 else ""
        say(f"week    {gpus:7} GPUs: {took_s:.2f} s{goal}, {entries} entries")
    each = {gpus: sum(took for took, _ in rows) for gpus, rows in weeks.items()}
    counts = {gpus: sum(count for _, count in rows) for gpus, rows in weeks.items()}
    ratio = each[131_072] / counts[131_072] / (each[8192] / counts[8192])
    found["scale_128k_over_8k"] = ratio
    say(f"scale   128K over 8K, per entry: {ratio:.2f}x (goal 1.5x)")
    each_s = found["six_strategies_s"] = six(runs)
    found["six_strategies_200_on_two_cores_s"] = each_s * 100
    say(f"compare {each_s:.2f} s for six strategies; 200 on two cores: {each_s * 100:.0f} s (180)")
    if asked.whole:
        found["whole_wall_s"] = whole()
        say(f"compare 200 replications in two processes: {found['whole_wall_s']:.0f} s (180)")
    if asked.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
