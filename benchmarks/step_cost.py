"""What a step costs more under Changeover than under plain gloo, in the same processes.

Four ranks train two copies of one small network in turns, one step each: one over a managed group
with everything that a run does per step (vote, pulse, snapshot of what is volatile), one over
`DistributedDataParallel` on gloo with nothing. The network is tiny, so that what differs is not
hidden. The vote is timed by itself too. Medians over the ranks' medians of three parts of the run,
with their range.

This file is also the script that each rank runs.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

PARTS = 7


def train(steps: int, folder: Path) -> None:
    """One rank: both steps in turns; leaves behind its times."""
    import torch
    import torch.distributed as torch_distributed
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import worker

    dist: Any = torch_distributed  # whose stubs leave out what every program uses

    torch.set_num_threads(1)
    run = worker.join()
    torch.manual_seed(run.seed)
    ours, theirs = nn.Linear(16, 16), nn.Linear(16, 16)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in (ours, theirs)]
    run.register(model=ours, optimizer=optimizers[0])
    managed = DistributedDataParallel(ours, process_group=run.group("dp"))
    plain: Any = None
    place = 0
    x = torch.ones(8, 16)
    times: dict[str, list[float]] = {"ours": [], "gloo": [], "vote": []}
    ended_s = time.perf_counter()
    for step in run.steps(steps):
        if plain is None and not step.rehearsal:  # only now is this rank's place known
            place = run.coordinate("dp")
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder / 'store'}",
                rank=place,
                world_size=run.size("dp"),
            )
            plain = DistributedDataParallel(theirs)
            ended_s = time.perf_counter()
        managed(x).sum().backward()
        voting_s = time.perf_counter()
        passed = step.vote()
        voted_s = time.perf_counter()
        if passed:
            optimizers[0].step()
        optimizers[0].zero_grad()
        if step.rehearsal:
            continue
        began_s = time.perf_counter()
        plain(x).sum().backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        times["gloo"].append(time.perf_counter() - began_s)
        times["ours"].append(began_s - ended_s)
        times["vote"].append(voted_s - voting_s)
        ended_s = time.perf_counter()  # what the run does between two steps counts as its own
    (folder / f"{place}.json").write_text(json.dumps(times))


async def run(steps: int, ranks: int) -> dict[str, list[float]]:
    """Let a fleet run this file; milliseconds of each kind by part of the run."""
    from statemachine import events as e
    from tests.integration.loop.core_fleet import JOB, CoreFleet
    from tests.integration.loop.zygote import Zygote

    zygote = Zygote()
    declared = e.JobDeclared(job=JOB, axes={"dp": ranks}, standbys=0, seed=7, steps=steps)
    with tempfile.TemporaryDirectory() as folder:
        fleet = CoreFleet(zygote, Path(folder), declared, [], Path(__file__))
        try:
            fleet.say(declared)
            for index in range(ranks):
                await fleet.start(f"n{index}")
            await fleet.until("it ends", lambda: fleet.state.jobs[JOB].finished, 300.0)
            for node in fleet.nodes.values():
                await node.process.wait()
            files = [Path(folder) / f"{index}.json" for index in range(ranks)]
            found = [json.loads(path.read_text()) for path in files]
        finally:
            await fleet.stop()
            zygote.close()
    return {kind: _parts([one[kind] for one in found]) for kind in found[0]}


def _parts(ranks: list[list[float]]) -> list[float]:
    """Median over ranks and steps of each part of the run, in ms; the first part warms up."""
    length = len(ranks[0]) // (PARTS + 1)
    return [
        statistics.median(s for one in ranks for s in one[part * length :][:length]) * 1e3
        for part in range(1, PARTS + 1)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", type=Path, help="given to a rank: where it leaves its times")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.out is not None:
        train(asked.steps, asked.out)
        return
    found = asyncio.run(run(asked.steps, asked.ranks))
    found["cost"] = [a - b for a, b in zip(found["ours"], found["gloo"], strict=True)]
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{asked.ranks} ranks, {asked.steps} steps, {PARTS} parts")
    names = {"gloo": "plain gloo DDP", "ours": "Changeover", "vote": "of it the vote"}
    for kind, words in (names | {"cost": "Changeover less gloo"}).items():
        took = found[kind]
        spread = f"{min(took):6.3f} to {max(took):6.3f}"
        print(f"{words:22} {statistics.median(took):6.3f} ms  ({spread})")
    print(f"of a 100 ms step: {statistics.median(found['cost']):.2f} %")


if __name__ == "__main__":
    main()
