"""all_reduce over our own links against gloo, in one run: medians and ratios for each size.

Four ranks (or `--ranks N`) are processes on loopback. For each size the two take turns, one call
each, between barriers, so that whatever else the machine does falls on both. A ratio above 1 means
that `delta` is faster. Prints a table, or one JSON object with `--json`.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from worker.groups.delta import DeltaBackend
from worker.groups.links import LinkEndpoint
from worker.groups.port import GroupPlan, Member, ReduceOp

SIZES = [32, 1 << 10, 8 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]


def calls_for(nbytes: int, scale: float) -> int:
    """How often a size is measured: about as many bytes for each, within reason."""
    return max(5, int(scale * min(200, (256 << 20) // nbytes)))


def rank_main(pipe: Connection, index: int, ranks: int, store: str, scale: float) -> None:
    """Measure as one rank; the first reports."""
    torch.set_num_threads(1)
    endpoint = LinkEndpoint("bench", f"n{index}", 1, b"a secret for one benchmark")
    pipe.send(endpoint.address)
    members = tuple(Member(i, i, f"n{i}", 1, *address) for i, address in enumerate(pipe.recv()))
    delta = DeltaBackend("dp", endpoint)
    plan = GroupPlan("dp", "bench", 1, 1, index, members)
    delta.prepare(plan, 10.0)
    delta.switch(plan)
    shared: Any = dist
    gloo = shared.ProcessGroupGloo(shared.FileStore(store, ranks), index, ranks)
    rows = [measure(delta, gloo, nbytes, calls_for(nbytes, scale)) for nbytes in SIZES]
    votes = timed(lambda: delta.vote([1, 2, 3]), delta, 200)
    pipe.send({"rows": rows, "vote_us": statistics.median(votes) * 1e6})
    delta.barrier()
    endpoint.close()


def timed(call: Callable[[], object], delta: DeltaBackend, count: int) -> list[float]:
    """Seconds of each call, all ranks starting together."""
    found = []
    for _ in range(count):
        delta.barrier()
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def measure(delta: DeltaBackend, gloo: Any, nbytes: int, count: int) -> dict[str, float]:
    """Medians of both for one size, in milliseconds."""
    tensor = torch.zeros(nbytes // 4)
    options = dist.AllreduceOptions()
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(count):
        ours += timed(lambda: delta.all_reduce(tensor, ReduceOp.SUM), delta, 1)
        theirs += timed(lambda: gloo.allreduce([tensor], options).wait(), delta, 1)
    mine, gloos = statistics.median(ours) * 1e3, statistics.median(theirs) * 1e3
    return {"bytes": nbytes, "delta_ms": mine, "gloo_ms": gloos, "ratio": gloos / mine}


def run(ranks: int, scale: float) -> dict[str, Any]:
    """Start the ranks and collect the first one's measurements."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        pipes, processes = [], []
        for index in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=rank_main, args=(theirs, index, ranks, store, scale), daemon=True
            )
            process.start()
            pipes.append(ours)
            processes.append(process)
        addresses = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(addresses)
        results = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join()
    found: dict[str, Any] = results[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer calls per size")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = run(asked.ranks, asked.scale)
    if asked.json:
        print(json.dumps({"ranks": asked.ranks, **found}))
        return
    print(f"all_reduce of float32, {asked.ranks} ranks, medians")
    for row in found["rows"]:
        print(
            f"{row['bytes']:>10} B  delta {row['delta_ms']:>9.3f} ms"
            f"  gloo {row['gloo_ms']:>9.3f} ms  ratio {row['ratio']:.2f}"
        )
    print(f"vote of three integers: {found['vote_us']:.0f} us")


if __name__ == "__main__":
    main()
