"""What vitals cost: a node's step, and the store of a fleet of 10,000 nodes.

- `step`: what timing a step and closing a window take, of a step of 100 ms (goal: below 0.3 %), and
  what the agent's reading of gauges takes of a processor.
- `store`: every node overwrites its key once per window, guarded by its own incarnation and bound
  to a lease, as agents do. Put as fast as the store takes them (its limit), then spread over
  windows as in a fleet: how long a put takes, what etcd uses of a processor, and how large its file
  grows while it compacts by itself. A controller follows them and judges every window.

All clients run in this one process; leases are kept alive elsewhere (`event_log_scale`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
import psutil

from controlplane.etcd_binary import find_etcd
from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import EventLog, Store, open_store
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.store import Put, created_at
from simulator.grey.fleet import FleetSpec, windows
from statemachine.detector import DetectorPolicy, DetectorState, observe
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.vitals import Vitals, decode_vitals, encode_vitals
from worker.gauges.sampler import INTERVAL_S, Sampler
from worker.pulse import Pulse

ONE = Incarnation(1)
STEP_MS = 100.0
CONNECTIONS = 4
AT_ONCE = 64


class _Group:
    """A group that waited: what a pulse asks it for."""

    def __init__(self, label: str) -> None:
        self.label = label

    def waited_s(self) -> float:
        return 0.001

    def carried(self) -> dict[str, tuple[int, float]]:
        return {"n1": (1 << 24, 0.01), "n2": (1 << 24, 0.01)}

    def take_costs(self) -> dict[str, list[float]]:
        return {}


def step_cost(steps: int = 20_000) -> dict[str, float]:
    """Microseconds per step of timing it, and of a window of 300 steps closed, encoded and read."""
    pulse = Pulse(NodeId("n0"), ONE, JobId("j"), 0.0, [_Group(name) for name in ("dp", "tp", "pp")])
    began_s = time.perf_counter()
    for step in range(steps):
        pulse.begin_step()
        pulse.end_step(step)
    timed_us = (time.perf_counter() - began_s) / steps * 1e6
    per_window = 300
    closed_us = []
    for window in range(50):
        pulse.drop()
        for step in range(per_window):
            pulse.begin_step()
            pulse.end_step(window * per_window + step)
        began_s = time.perf_counter()
        encode_vitals(pulse.close(Slot(0), Role("only"), Epoch(1)))
        closed_us.append((time.perf_counter() - began_s) * 1e6)
    whole_us = timed_us + sorted(closed_us)[25] / per_window
    return {
        "us_per_step": timed_us,
        "us_per_window": sorted(closed_us)[25],
        "share_of_a_100_ms_step": whole_us / (STEP_MS * 1000),
    }


def gauges_cost(times: int = 50) -> dict[str, float]:
    """What reading this machine's gauges takes of a processor, at one reading every few seconds."""
    sampler = Sampler.from_environment()
    sampler.read_once()
    began_s = time.process_time()
    for _ in range(times):
        sampler.read_once()
    took_s = (time.process_time() - began_s) / times
    return {"ms_per_reading": took_s * 1000, "share_of_a_processor": took_s / INTERVAL_S}


class Fleet:
    """Nodes that put their vitals, on a few connections."""

    def __init__(self, stores: Sequence[Store], nodes: int) -> None:
        self._stores = stores
        self._keys = Keys("load")
        self._nodes = nodes
        self._tokens: list[int] = []
        self._lease = 0
        self._batches = windows(FleetSpec(nodes=nodes, links=False, gauges=True), 1, 10**6)

    async def join(self) -> None:
        """Every node takes its incarnation."""
        self._lease = await self._stores[0].grant(600)
        for number in range(self._nodes):
            key = self._keys.node(NodeId(f"n{number}"), ONE)
            done = await self._stores[0].txn((), (Put(key, b"{}", self._lease),))
            self._tokens.append(done.revision)

    async def window(self, over_s: float) -> tuple[list[float], int]:
        """Put one window of every node, spread over so many seconds; ms of each, bytes of one."""
        raw = [encode_vitals(vitals) for vitals in next(self._batches)]
        took_ms: list[float] = []
        began_s = anyio.current_time()
        todo = iter(range(self._nodes))

        async def some(store: Store) -> None:
            for number in todo:
                due_s = began_s + over_s * number / self._nodes
                if (left_s := due_s - anyio.current_time()) > 0:
                    await anyio.sleep(left_s)
                name = NodeId(f"n{number}")
                guard = created_at(self._keys.node(name, ONE), self._tokens[number])
                put = Put(self._keys.vitals(name, ONE), raw[number], self._lease)
                before_s = time.perf_counter()
                assert (await store.txn((guard,), (put,))).succeeded
                took_ms.append((time.perf_counter() - before_s) * 1000)

        async with anyio.create_task_group() as group:
            for number in range(AT_ONCE):
                group.start_soon(some, self._stores[number % len(self._stores)])
        return took_ms, len(raw[0])


class Follower:
    """A controller's part: every window decoded and judged."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._state = DetectorState()
        self.seen = 0
        self.busy_s = 0.0

    async def run(self) -> None:
        """Follow until cancelled."""
        policy = DetectorPolicy()
        async with self._log.watch_vitals() as view:
            async for delta in view:
                began_s = time.process_time()
                batch: list[Vitals] = [decode_vitals(item.value) for item in delta.updated]
                self._state = observe(self._state, batch, 0, policy).state
                self.busy_s += time.process_time() - began_s
                self.seen += len(batch)


async def store_load(nodes: int, window_s: float, count: int) -> dict[str, Any]:
    """Everything about the store."""
    with tempfile.TemporaryDirectory() as folder:
        server = EtcdServer(find_etcd(), Path(folder))
        server.start_blocking()
        stores = [await open_store(server.url) for _ in range(CONNECTIONS)]
        try:
            return await _loaded(server, stores, nodes, window_s, count)
        finally:
            for store in stores:
                await store.aclose()
            server.stop_blocking()


async def _loaded(
    server: EtcdServer, stores: Sequence[Store], nodes: int, window_s: float, count: int
) -> dict[str, Any]:
    fleet, follower = Fleet(stores, nodes), Follower(EventLog(stores[0], "load"))
    etcd = psutil.Process(server.pid)
    await fleet.join()
    began_s = time.perf_counter()
    burst_ms, size = await fleet.window(0)
    burst_s = time.perf_counter() - began_s
    sizes = []
    paced_ms: list[float] = []
    used_s = -sum(etcd.cpu_times()[:2])
    began_s = time.perf_counter()
    async with anyio.create_task_group() as group:
        group.start_soon(follower.run)
        for _ in range(count):
            took_ms, _ = await fleet.window(window_s)
            paced_ms += took_ms
            sizes.append((await stores[0].server_info()).db_bytes / 1e6)
        group.cancel_scope.cancel()
    used_s += sum(etcd.cpu_times()[:2])
    return {
        "nodes": nodes,
        "window_s": window_s,
        "bytes_per_window": size,
        "burst_puts_per_s": nodes / burst_s,
        "needed_puts_per_s": nodes / window_s,
        "headroom": nodes / burst_s / (nodes / window_s),
        "put_ms_p50": _at(paced_ms, 0.5),
        "put_ms_p99": _at(paced_ms, 0.99),
        "burst_put_ms_p99": _at(burst_ms, 0.99),
        "etcd_processors": used_s / (time.perf_counter() - began_s),
        "file_mb_by_window": sizes,
        "growth_mb_last_window": [b - a for a, b in pairwise(sizes)][-1:],
        "controller_us_per_node_window": follower.busy_s / max(1, follower.seen) * 1e6,
        "controller_seen": follower.seen,
    }


def _at(took: Sequence[float], share: float) -> float:
    return sorted(took)[int(len(took) * share)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--window-s", type=float, default=30.0)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found: dict[str, Any] = {"machine": {"cores": os.cpu_count()}}
    found["step"], found["gauges"] = step_cost(), gauges_cost()
    found["store"] = anyio.run(store_load, asked.nodes, asked.window_s, asked.windows)
    if asked.json:
        print(json.dumps(found))
        return
    for part, values in found.items():
        print(part)
        for name, value in values.items():
            said = f"{value:14.5g}" if isinstance(value, float) else f"{value!s:>14}"
            print(f"  {name:32} {said}")


if __name__ == "__main__":
    main()
