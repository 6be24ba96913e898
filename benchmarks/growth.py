"""What one swap costs as the group grows: sockets, messages and time, beside a rebuilt gloo group.

Groups of 2 to 64 ranks, each rank a process (many per core: what counts is operations, not only
seconds). In each, the member in the middle is replaced by a joiner, again and again; both ways are
prepared in the same processes:

- `delta` opens links at the joiner and the leaver's neighbours, and nothing elsewhere;
- `gloo` is built anew by all, as a full mesh, on a store that is already there.

Sockets are those that the kernel lists before and after, in every process. Messages of `delta` are
three for each connection (hello) and a goodbye for each end of a closed link; of gloo, what the
members ask the store for. Times are the slowest member's: `ready` until the new group can be used,
`switch` the pause itself.
"""

import argparse
import json
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch.distributed as torch_distributed
from parts.ranks import Ranks, endpoint_of, own_socket_inodes, plan_of

from worker.groups.delta import DeltaBackend
from worker.groups.port import GroupPlan

dist: Any = torch_distributed  # whose stubs leave out what every program uses

SIZES = (2, 4, 8, 16, 32, 64)
HELLO_MESSAGES = 3
SOCKETS_PER_LINK_END = 2


class Rank:
    """One process of a group."""

    def __init__(self, index: int) -> None:
        self.endpoint = endpoint_of(index)
        self.delta = DeltaBackend("dp", self.endpoint)
        self.store: Any = None
        self.gloo: Any = None
        self.before: set[str] = set()

    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self.endpoint.address

    def prepare(self, plan: GroupPlan) -> dict[str, float]:
        """Prepare a plan."""
        prepared = self.delta.prepare(plan, 30.0)
        return {"ready_ms": prepared.took_s * 1e3, "links": prepared.links_opened}

    def switch(self, plan: GroupPlan) -> dict[str, float]:
        """Switch to a plan."""
        began_s = time.perf_counter()
        self.delta.switch(plan)
        took_ms = (time.perf_counter() - began_s) * 1e3
        closed = self.delta.counts.closed_by_transition.get(plan.transition, 0)
        return {"switch_ms": took_ms, "closed": closed}

    def mark(self) -> None:
        """Remember which sockets are open."""
        self.before = own_socket_inodes()

    def opened(self) -> int:
        """How many sockets are open that were not when they were marked."""
        return len(own_socket_inodes() - self.before)

    def leave(self) -> None:
        """Give the place up."""
        self.delta.detach()

    def meet(self, port: int) -> None:
        """Connect to the store."""
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)

    def rebuild(self, me: int, size: int, prefix: str) -> dict[str, float]:
        """Build a gloo group anew."""
        began_s = time.perf_counter()
        self.gloo = None
        store = dist.PrefixStore(prefix, self.store)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=60)
        self.gloo = dist.ProcessGroupGloo(store, me, size, options)
        took_ms = (time.perf_counter() - began_s) * 1e3
        return {"ready_ms": took_ms}

    def drop(self) -> None:
        """Leave gloo."""
        self.gloo = None


def one_size(size: int, rounds: int, port: int) -> dict[str, float]:
    """Swap the middle member of one group `rounds` times each way; medians."""
    with Ranks(size + 1, Rank) as ranks:
        addresses = ranks.all("address")
        members, spare, out = list(range(size)), size, size // 2
        _carry_out(ranks, addresses, members, 1)
        rows = []
        for number in range(rounds):
            leaver, members[out] = members[out], spare
            rows.append(_carry_out(ranks, addresses, members, number + 2))
            ranks.each("leave", {leaver: ()})
            spare = leaver
        ranks.all("meet", port)
        theirs = [_rebuild(ranks, members, f"{size}.{number}") for number in range(rounds + 1)][1:]
    return {**_of_delta(rows), **_of_gloo(theirs, size)}


def _carry_out(ranks: Ranks, addresses: Any, members: list[int], epoch: int) -> dict[str, Any]:
    plans = {rank: [plan_of("dp", addresses, members, rank, epoch)] for rank in members}
    ranks.all("mark")
    prepared = ranks.each("prepare", plans)
    opened = ranks.each("opened", dict.fromkeys(members, ()))
    return {"prepared": prepared, "sockets": opened, "switched": ranks.each("switch", plans)}


def _rebuild(ranks: Ranks, members: list[int], prefix: str) -> dict[str, Any]:
    size = len(members)
    ranks.all("mark")
    built = ranks.each("rebuild", {r: (i, size, prefix) for i, r in enumerate(members)})
    opened = ranks.each("opened", dict.fromkeys(members, ()))
    ranks.all("drop")
    return {"built": built, "sockets": opened}


def _of_delta(rows: list[dict[str, Any]]) -> dict[str, float]:
    links = [sum(one["links"] for one in row["prepared"].values()) for row in rows]
    closed = [sum(one["closed"] for one in row["switched"].values()) for row in rows]
    sockets = [row["sockets"].values() for row in rows]
    connections = statistics.median(links) / 2 * SOCKETS_PER_LINK_END
    return {
        "delta_sockets": statistics.median(sum(one) for one in sockets),
        "delta_ranks_that_open": statistics.median(sum(n > 0 for n in one) for one in sockets),
        "delta_messages": HELLO_MESSAGES * connections + 2 * statistics.median(closed),
        "delta_ready_ms": _slowest([row["prepared"] for row in rows], "ready_ms"),
        "delta_switch_ms": _slowest([row["switched"] for row in rows], "switch_ms"),
    }


def _of_gloo(rows: list[dict[str, Any]], size: int) -> dict[str, float]:
    return {
        "gloo_sockets": statistics.median(sum(row["sockets"].values()) for row in rows),
        "gloo_messages": size * size,  # each sets its addresses, and asks for everybody else's
        "gloo_ready_ms": _slowest([row["built"] for row in rows], "ready_ms"),
    }


def _slowest(rows: list[dict[int, Any]], name: str) -> float:
    return float(statistics.median(max(one[name] for one in row.values()) for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with Ranks(1, Store) as store:  # of its own process: forking beside its threads is unsafe
        port = store.all("port")[0]
        found = {size: one_size(size, asked.rounds, port) for size in asked.sizes}
    if asked.json:
        print(json.dumps(found))
        return
    columns = list(next(iter(found.values())))
    print(f"one swap, medians of {asked.rounds}")
    print("members  " + "  ".join(columns))
    for size, row in found.items():
        cells = [f"{row[name]:{len(name)}.{2 * name.endswith('_ms')}f}" for name in columns]
        print(f"{size:7}  " + "  ".join(cells))


class Store:
    """The one store of all gloo groups."""

    def __init__(self, _index: int) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def port(self) -> int:
        """Where it listens."""
        return int(self.store.port)


if __name__ == "__main__":
    main()
