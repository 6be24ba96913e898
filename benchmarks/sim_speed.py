"""What a simulated week costs in processor seconds, and whether it grows with events or ranks.

Rows:
- `week`: 65,536 GPUs for a week with standbys and Guard, one replication on one core; goal 1.5 s;
- `scale`: the same number of faults at 8,192 and at 131,072 GPUs; goal: within 1.5 times;
- `compare`: six strategies at 65,536 GPUs, processor seconds per replication of all six, and what
  200 replications would take on two cores; goal 180 s.

Processor time is counted, not wall time: the machine may be shared.
"""

import argparse
import time

from msgspec.structs import replace

from simulator.compare import replication
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    weeks = {gpus: [week(gpus, n) for n in range(runs)] for gpus in (8192, 65_536, 131_072)}
    seconds = {gpus: sorted(took for took, _ in found)[runs // 2] for gpus, found in weeks.items()}
    per_event = {
        gpus: sum(took for took, _ in found) / sum(entries for _, entries in found) * 1e6
        for gpus, found in weeks.items()
    }
    for gpus, found in weeks.items():
        entries = sum(entries for _, entries in found) // runs
        print(f"week    {gpus:7} GPUs: {seconds[gpus]:.2f} s, {entries} entries")
    ratio = per_event[131_072] / per_event[8192]
    print(f"scale   128K over 8K, per entry: {ratio:.2f}x (goal 1.5x)")
    read = replace(scenario(65_536, 373.0), replications=runs)
    began = time.process_time()
    for number in range(runs):
        replication((read, SIX, number))
    each = (time.process_time() - began) / runs
    print(
        f"compare {each:.2f} s for six strategies; 200 on two cores: {each * 100:.0f} s (goal 180)"
    )


if __name__ == "__main__":
    main()
