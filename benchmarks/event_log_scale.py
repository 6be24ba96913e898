"""What grows with the fleet and with the log: fan-out to a thousand watchers, and a takeover.

- `fan-out`: a decision until each of so many watchers of one job has the new topology, against a
  bare put until each of as many bare watches has it (design: p99 within 3x). All watchers run in
  this one process, on a few connections, so the figures are those of one busy machine.
- `takeover`: what a new leader does between winning and its first turn, on a log of so many events
  of 8,192 nodes: from the newest snapshot and a tail of 10,000 (design: under 2 s), and, with
  `--whole`, by folding the whole log.

`--events 1000000` is the design's own size; it needs half a gigabyte of disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from controlplane.archiving import snapshot_now
from controlplane.etcd_binary import find_etcd
from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import Batch, EventLog, Leadership, Store, open_store
from controlplane.eventlog.store import Put
from controlplane.folding import BLANK, fold_on
from controlplane.leadership import Preview
from statemachine.codec import encode_recorded
from statemachine.events import AnyEvent, NodeJoined, Recorded, StepResumed
from statemachine.ids import Incarnation, JobId, NodeId, Position, TransitionId

JOB = JobId("j0")
NODES = 8_192
TAIL = 10_000
CONNECTIONS = 8
TRIES = 30
GIB = 1024**3


def show(name: str, took: list[float]) -> float:
    """Print p50, p90 and p99 of milliseconds; return the p99."""
    took = sorted(took)
    at = [took[int(len(took) * q)] for q in (0.5, 0.9, 0.99)]
    print(f"{name:34} p50 {at[0]:7.1f}  p90 {at[1]:7.1f}  p99 {at[2]:7.1f} ms", flush=True)
    return at[2]


class Crowd:
    """So many watchers; each notes when it has seen a value."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.took: list[float] = []
        self._seen = 0
        self._began = 0.0
        self._all = anyio.Event()

    def saw(self) -> None:
        """One of them has the new value."""
        self.took.append((time.perf_counter() - self._began) * 1e3)
        self._seen += 1
        if self._seen == self.size:
            self._all.set()

    async def tell(self, act: Callable[[], Awaitable[object]]) -> None:
        """Do what they wait for, and wait until each of them has it."""
        self._seen, self._all = 0, anyio.Event()
        self._began = time.perf_counter()
        await act()
        await self._all.wait()


async def bare_fan_out(stores: list[Store], size: int) -> float:
    """Bare watches of one key."""
    crowd = Crowd(size)
    key = b"/bare/fan-out"
    start = (await stores[0].server_info()).revision + 1

    async def watch(store: Store, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with store.watch(key, b"", start) as batches:
            task_status.started()
            async for batch in batches:
                for _ in batch.changes:
                    crowd.saw()

    async with anyio.create_task_group() as group:
        for number in range(size):
            await group.start(watch, stores[number % len(stores)])
        for number in range(TRIES):
            await crowd.tell(lambda n=number: stores[0].txn((), (Put(key, b"%300d" % n),)))  # type: ignore[misc]
        group.cancel_scope.cancel()
    return show(f"bare put to {size} watches", crowd.took)


async def fan_out(stores: list[Store], leadership: Leadership, fleet: str, size: int) -> float:
    """Watchers of a job's topology."""
    crowd = Crowd(size)

    async def watch(store: Store, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with EventLog(store, fleet).watch_desired(JOB) as view:
            await anext(view)
            task_status.started()
            async for delta in view:
                for _ in delta.updated:
                    crowd.saw()

    async with anyio.create_task_group() as group:
        for number in range(size):
            await group.start(watch, stores[number % len(stores)])
        await anyio.sleep(1)  # a view has read before it watches; let the last ones get there
        for number in range(TRIES):
            batch = Batch(after=leadership.head, entries=(), desired=((JOB, b"%300d" % number),))
            await crowd.tell(lambda batch=batch: leadership.append(batch))  # type: ignore[misc]
        group.cancel_scope.cancel()
    return show(f"decision to {size} watchers", crowd.took)


def events(count: int) -> Iterator[AnyEvent]:
    """Every node joins; then they say that they go on, in turn."""
    for number in range(count):
        node = NodeId(f"n{number % NODES}")
        if number < NODES:
            yield NodeJoined(node=node, incarnation=Incarnation(1), host=f"host-{number}")
        else:
            yield StepResumed(
                job=JOB,
                transition=TransitionId(1),
                node=node,
                incarnation=Incarnation(1),
                step=number,
                step_ms=12.5,
            )


async def grow(leadership: Leadership, count: int) -> None:
    """Append so many events, as a sequencer does."""
    waiting: list[bytes] = []
    for number, event in enumerate(events(count), 1):
        counter = 1 + (number - 1) // NODES
        writer = f"n{(number - 1) % NODES}"
        waiting.append(
            encode_recorded(
                Recorded(
                    position=Position(number),
                    at_ms=1_800_000_000_000 + number,
                    writer=writer,
                    incarnation=Incarnation(1),
                    counter=counter,
                    event=event,
                )
            )
        )
        if len(waiting) == 120 or number == count:
            await leadership.append(Batch(after=leadership.head, entries=tuple(waiting)))
            waiting = []


async def takeover(log: EventLog, leadership: Leadership, count: int, *, whole: bool) -> None:
    """From a snapshot and its tail; and from the beginning."""
    began = time.perf_counter()
    await grow(leadership, count)
    took_s = time.perf_counter() - began
    print(f"appended {count} events in {took_s:.0f} s, {count / took_s:.0f}/s", flush=True)
    image = await fold_on(log, BLANK, Position(max(count - TAIL, 0)))
    began = time.perf_counter()
    manifest = await snapshot_now(log, image, 0)
    took_s = time.perf_counter() - began
    print(f"snapshot of {NODES} nodes: {manifest.size / 2**20:.2f} MiB, written in {took_s:.2f} s")
    for name, cold in (("snapshot and tail", Preview(log)), *([("whole", None)] if whole else [])):
        began = time.perf_counter()
        if cold is not None:
            ledger = await cold.complete()
            assert ledger.position == count
        else:
            await fold_on(log, BLANK)
        took_s = time.perf_counter() - began
        print(f"takeover by {name:17}: {took_s:6.2f} s on {count} events", flush=True)


async def measure(watchers: int, count: int, *, whole: bool) -> None:
    """Start an etcd, measure, stop it."""
    with tempfile.TemporaryDirectory() as folder:
        server = EtcdServer(find_etcd(), Path(folder), quota_bytes=4 * GIB)
        async with server, AsyncExitStack() as stack:
            stores: list[Store] = []
            for _ in range(CONNECTIONS):
                store = await open_store(server.url)
                stack.push_async_callback(store.aclose)
                stores.append(store)
            log = EventLog(stores[0], "scale")
            leadership = await log.campaign("c0", 3600)
            if watchers:
                await leadership.append(Batch(after=Position(0), entries=(), desired=((JOB, b""),)))
                bare = await bare_fan_out(stores, watchers)
                ours = await fan_out(stores, leadership, "scale", watchers)
                print(f"p99 {ours / bare:.2f} x bare")
            if count:
                await takeover(log, leadership, count, whole=whole)


def main() -> None:
    """Read arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--watchers", type=int, default=1000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    anyio.run(lambda: measure(options.watchers, options.events, whole=options.whole))


if __name__ == "__main__":
    main()
