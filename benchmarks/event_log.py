"""What the event log costs over the bare store, on one etcd, in one run.

Each row is a distribution in ms and a ratio to the limit it is up against:
- `append`, `submit`: against one bare put, the least that any durable write costs;
- `desired`: an append that overwrites a projection until a watcher has it, against a bare put until
  a bare watch has it;
- `fact to desired`: a node states a fact, the controller sequences it and projects, the node has
  the new topology: three writes and two watches in a row, against the same bare put to watch;
- `64 writers`: facts per second from statement to their place in the log, against bare puts per
  second by as many tasks.

Everything runs in one process, so rates are floors. `--runs` repeats the whole.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from controlplane.etcd_binary import find_etcd
from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import Batch, EventLog, InboxItem, Leadership, Store, View, open_store
from controlplane.eventlog.store import Put
from statemachine.codec import encode_recorded, sequence
from statemachine.events import NodeJoined, Recorded
from statemachine.ids import Incarnation, JobId, NodeId, Position

TRIES = 400
WRITERS = 64
FACTS_EACH = 40
JOB = JobId("j0")


def event(number: int) -> NodeJoined:
    """About 300 bytes once it is in the log."""
    return NodeJoined(node=NodeId("n0"), incarnation=Incarnation(number + 1), host="h" * 120)


async def timed(action: Callable[[int], Awaitable[object]], tries: int = TRIES) -> list[float]:
    """Milliseconds of each try, sorted."""
    took = []
    for number in range(tries):
        began = time.perf_counter()
        await action(number)
        took.append((time.perf_counter() - began) * 1e3)
    return sorted(took)


def show(name: str, took: list[float], limit: list[float] | None = None) -> None:
    """Print p50, p90, p99 and, against a limit, the ratio of the medians."""
    at = [took[int(len(took) * q)] for q in (0.5, 0.9, 0.99)]
    ratio = f"  {at[0] / limit[len(limit) // 2]:5.2f} x bare" if limit else ""
    print(f"{name:18} p50 {at[0]:6.2f}  p90 {at[1]:6.2f}  p99 {at[2]:6.2f} ms{ratio}")


async def bare_put_to_watch(store: Store) -> list[float]:
    """One put until an open watch has it."""
    start = (await store.server_info()).revision + 1
    async with store.watch(b"/bare/watched", b"", start) as batches:

        async def once(number: int) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(store.txn, (), (Put(b"/bare/watched", b"%d" % number),))
                await anext(batches)

        return await timed(once)


async def bare_rate(store: Store) -> float:
    """Puts per second of as many tasks as there are writers."""

    async def write(writer: int) -> None:
        for number in range(FACTS_EACH):
            await store.txn((), (Put(b"/bare/%d/%d" % (writer, number), bytes(300)),))

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for writer in range(WRITERS):
            group.start_soon(write, writer)
    return WRITERS * FACTS_EACH / (time.perf_counter() - began)


async def run_sequencer(leadership: Leadership, view: View[InboxItem]) -> None:
    """Give facts their place as a controller does, and project the head."""
    async for delta in view:
        for start in range(0, len(delta.updated), 50):
            items = delta.updated[start : start + 50]
            first = leadership.head + 1
            entries = tuple(
                sequence(item.raw, Position(first + number), 0) for number, item in enumerate(items)
            )
            await leadership.append(
                Batch(
                    after=leadership.head,
                    entries=entries,
                    consumed=items,
                    desired=((JOB, b"%d" % (leadership.head + len(entries))),),
                )
            )


async def append_rows(log: EventLog, leadership: Leadership, put: list[float]) -> None:
    """Single appends and single statements."""

    async def append(number: int) -> None:
        position = Position(leadership.head + 1)
        recorded = Recorded(position=position, at_ms=0, writer="c", event=event(number))
        await leadership.append(Batch(after=leadership.head, entries=(encode_recorded(recorded),)))

    show("append", await timed(append), put)
    session = await log.join(NodeId("single"), b"", 60)
    show("submit", await timed(lambda number: session.submit(event(number), number)), put)
    while items := (await log.inbox())[:50]:
        entries = tuple(
            sequence(item.raw, Position(leadership.head + 1 + number), 0)
            for number, item in enumerate(items)
        )
        await leadership.append(Batch(after=leadership.head, entries=entries, consumed=items))


async def desired_rows(log: EventLog, leadership: Leadership, put_to_watch: list[float]) -> None:
    """From a decision, and from a fact, to who waits for the topology."""
    session = await log.join(NodeId("waiting"), b"", 60)
    async with log.watch_desired(JOB) as desired, log.watch_inbox() as inbox:
        await anext(desired)

        async def decided(number: int) -> None:
            batch = Batch(after=leadership.head, entries=(), desired=((JOB, b"%d" % number),))
            async with anyio.create_task_group() as group:
                group.start_soon(leadership.append, batch)
                await anext(desired)

        async def stated(number: int) -> None:
            await session.submit(event(number), number)
            await anext(desired)

        show("desired", await timed(decided), put_to_watch)
        async with anyio.create_task_group() as group:
            group.start_soon(run_sequencer, leadership, inbox)
            show("fact to desired", await timed(stated), put_to_watch)
            group.cancel_scope.cancel()
    await leadership.refresh_head()  # the last append may have been cut off before its answer


async def writers_row(log: EventLog, leadership: Leadership, bare: float) -> None:
    """Many nodes that state facts at once."""
    sessions = [await log.join(NodeId(f"w{each}"), b"", 120) for each in range(WRITERS)]
    last = Position(leadership.head + WRITERS * FACTS_EACH)
    began = time.perf_counter()
    async with log.watch_inbox() as inbox, anyio.create_task_group() as group:
        group.start_soon(run_sequencer, leadership, inbox)
        for session in sessions:
            group.start_soon(
                timed, lambda number, to=session: to.submit(event(number), number), FACTS_EACH
            )
        async with log.follow(last) as entries:
            await anext(entries)
        group.cancel_scope.cancel()
    rate = WRITERS * FACTS_EACH / (time.perf_counter() - began)
    print(
        f"{WRITERS} writers         {rate:6.0f} facts/s  {rate / bare:.2f} x {bare:.0f} bare puts/s"
    )


async def measure(store: Store, number: int) -> None:
    """One run over everything."""
    log = EventLog(store, f"bench{number}")
    leadership = await log.campaign("c0", 120)
    put = await timed(lambda each: store.txn((), (Put(b"/bare/put", b"%300d" % each),)))
    show("bare put", put)
    put_to_watch = await bare_put_to_watch(store)
    show("bare put to watch", put_to_watch)
    await append_rows(log, leadership, put)
    await desired_rows(log, leadership, put_to_watch)
    await writers_row(log, leadership, await bare_rate(store))
    await leadership.resign()


async def main() -> None:
    """Start an etcd, measure, stop it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        async with EtcdServer(find_etcd(), Path(folder)) as server:
            store = await open_store(server.url)
            for number in range(runs):
                await measure(store, number)
            await store.aclose()


if __name__ == "__main__":
    anyio.run(main)
