"""What the boundary vote costs by itself: composed along the axes, as a run composes it.

No training and no gradients: ranks vote again and again, each all-reducing four integers over one
group of each of its axes in turn, which is what the loop does at the end of a step. In the same
processes, in turns: gloo's all_reduce of the same integers over one group of all ranks, and the
floor, a ping-pong of as many bytes between two of the processes over a bare local socket.

Medians over the ranks, of seven parts of the run, with their range; microseconds.
"""

import argparse
import itertools
import json
import math
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as torch_distributed
from parts.ranks import Ranks, endpoint_of, plan_of

from worker.groups.delta import DeltaBackend

dist: Any = torch_distributed  # whose stubs leave out what every program uses

PARTS = 7
LAYOUTS = ({"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2, "tp": 2}, {"dp": 8})
VALUES = [1, 1, 0, 1]


def groups_of(rank: int, sizes: dict[str, int]) -> dict[str, list[int]]:
    """The ranks of each group that `rank` is in, by axis; the last axis varies fastest."""
    places = list(itertools.product(*(range(size) for size in sizes.values())))
    mine = places[rank]
    return {
        axis: [
            other
            for other, place in enumerate(places)
            if all(place[i] == mine[i] for i in range(len(mine)) if i != number)
        ]
        for number, axis in enumerate(sizes)
    }


class Rank:
    """One voting process."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.endpoint = endpoint_of(index)
        self.groups: list[DeltaBackend] = []
        self.gloo: Any = None

    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self.endpoint.address

    def make(self, addresses: list[tuple[str, int]], sizes: dict[str, int], store: str) -> None:
        """Join the groups of a layout, and one gloo group of all."""
        for axis, members in groups_of(self.index, sizes).items():
            group = DeltaBackend(axis, self.endpoint)
            plan = plan_of(axis, addresses, members, self.index)
            group.prepare(plan, 30.0)
            group.switch(plan)
            self.groups.append(group)
        self.gloo = dist.ProcessGroupGloo(
            dist.FileStore(store, len(addresses)), self.index, len(addresses)
        )

    def vote(self) -> None:
        """One vote, composed."""
        values: list[int] | None = VALUES
        for group in self.groups:
            values = group.vote(values or VALUES)
        if values != VALUES:
            raise RuntimeError(f"the vote came out as {values}")

    def all_reduce(self) -> None:
        """The same over gloo."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self.gloo.allreduce([torch.tensor(VALUES)], options).wait()

    def measure(self, count: int) -> dict[str, list[float]]:
        """Microseconds of each, call by call, in turns."""
        times: dict[str, list[float]] = {"vote": [], "gloo": []}
        for _ in range(count):
            times["vote"].append(_timed(self.vote))
            times["gloo"].append(_timed(self.all_reduce))
        return times


def _timed(call: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1e6


def floor_us(count: int) -> list[float]:
    """There and back between two processes, over a bare local socket."""
    ours, theirs = socket.socketpair()
    with Ranks(1, lambda _: Echo(theirs)) as ranks:
        theirs.close()
        answering = ranks.start("answer", count)
        times = []
        for _ in range(count):
            began_s = time.perf_counter()
            ours.send(bytes(64))
            ours.recv(64)
            times.append((time.perf_counter() - began_s) * 1e6)
        answering()
    return times


class Echo:
    """Sends back what it gets."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def answer(self, count: int) -> None:
        """Do it so many times."""
        for _ in range(count):
            self._sock.send(self._sock.recv(64))


def one_layout(sizes: dict[str, int], count: int) -> dict[str, list[float]]:
    """Medians of each part, over all ranks."""
    ranks_count = math.prod(sizes.values())
    with tempfile.TemporaryDirectory() as folder, Ranks(ranks_count, Rank) as ranks:
        ranks.all("make", ranks.all("address"), sizes, str(Path(folder) / "store"))
        found = ranks.all("measure", count)
    return {kind: parts([one[kind] for one in found]) for kind in ("vote", "gloo")}


def parts(ranks: list[list[float]]) -> list[float]:
    """Medians of the parts of a run; what comes before the first warms up."""
    length = len(ranks[0]) // (PARTS + 1)
    return [
        statistics.median(time for one in ranks for time in one[part * length :][:length])
        for part in range(1, PARTS + 1)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=800, help="votes of each layout")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    floor = parts([floor_us(asked.count)])
    found = {
        " ".join(f"{axis}={size}" for axis, size in sizes.items()): one_layout(sizes, asked.count)
        for sizes in LAYOUTS
    }
    if asked.json:
        print(json.dumps({"floor": floor, "layouts": found}))
        return
    print(f"{'a round trip':24} {_shown(floor)}")
    for name, times in found.items():
        ratio = statistics.median(times["gloo"]) / statistics.median(times["vote"])
        print(f"{'vote, ' + name:24} {_shown(times['vote'])}")
        print(f"{'  gloo, one group of all':24} {_shown(times['gloo'])}   {ratio:.1f} x the vote")


def _shown(times: list[float]) -> str:
    return f"{statistics.median(times):8.0f} us ({min(times):.0f} to {max(times):.0f})"


if __name__ == "__main__":
    main()
