"""What the event log costs over the bare store, on one etcd, in one run.

Each row is measured beside its limit, one try of either in turn, so that a busy machine is busy for
both. Ratios are of medians, where not said otherwise:
- `append`: one entry, against the same guarded transaction made with the client alone, and against
  one bare put, the least that any durable write costs (budget: 1.3 x the client's);
- `submit`: a node's fact in its inbox, against the same two;
- `append to follower`: from the append until who follows the log has the entry, against a bare put
  until a bare watch has it (budget: p99 within 2 x);
- `desired`: an append that overwrites a topology until its watcher has it, against the same;
- `fact to desired`: a node states a fact, the controller sequences it and projects, the node has
  the new topology: three writes and two watches in a row, against the same;
- `batch append`: so many writers hand entries to the sequencer, which commits what is there
  (budget: 5,000 events/s with 64 writers), against bare puts by as many tasks;
- `facts`: so many nodes state facts, one at a time or 25 at a time, and the controller that ships
  sequences, folds and decides; per second from the first statement to the last place in the log.

Everything runs in one process, so rates are floors; the processor time per event says what they
would be on a machine of one's own. `--runs` repeats the whole, `--json` prints one object a run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio

from controlplane.etcd_binary import find_etcd
from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import Batch, EventLog, InboxItem, Leadership, Store, View, open_store
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.store import Get, Put, absent, created_at, value_is
from controlplane.reconciler import Reconciler
from controlplane.term import unix_ms
from controlplane.turn import Ledger
from statemachine.codec import encode_recorded, sequence
from statemachine.events import NodeJoined, Recorded, StepResumed
from statemachine.ids import Incarnation, JobId, NodeId, Position, TransitionId

TRIES = 400
WRITERS = 64
FACTS_EACH = 40
EVENTS_EACH = 400
JOB = JobId("j0")
ONE = Incarnation(1)

Act = Callable[[int], Awaitable[object]]


class Rows:
    """What was measured so far; printed as it comes."""

    def __init__(self, *, as_json: bool) -> None:
        self.values: dict[str, dict[str, float]] = {}
        self._quiet = as_json

    def add(self, name: str, took_ms: Sequence[float], limits: dict[str, Sequence[float]]) -> None:
        """A distribution in ms, and its ratios to what it is up against."""
        row = {f"p{q}_ms": at(took_ms, q / 100) for q in (50, 90, 99)}
        for limit, ms in limits.items():
            row[f"p50 / {limit}"] = at(took_ms, 0.5) / at(ms, 0.5)
            row[f"p99 / {limit}"] = at(took_ms, 0.99) / at(ms, 0.99)
        self._take(name, row)

    def rate(self, name: str, events: int, took_s: float, cpu_s: float, bare: float) -> None:
        """Events per second, against bare puts per second."""
        row = {"per_s": events / took_s, "cpu_us": cpu_s / events * 1e6}
        self._take(name, row | ({"x bare puts": events / took_s / bare} if bare else {}))

    def _take(self, name: str, row: dict[str, float]) -> None:
        self.values[name] = {each: round(value, 3) for each, value in row.items()}
        if not self._quiet:
            cells = "  ".join(f"{each} {value:,.2f}" for each, value in row.items())
            print(f"{name:28} {cells}", flush=True)


def at(took_ms: Sequence[float], share: float) -> float:
    """A quantile."""
    return sorted(took_ms)[int(len(took_ms) * share)]


async def in_turn(*acts: Act, tries: int = TRIES) -> list[list[float]]:
    """Do each of them, again and again; milliseconds of each try by act."""
    took: list[list[float]] = [[] for _ in acts]
    for number in range(tries):
        for act, times in zip(acts, took, strict=True):
            began = time.perf_counter()
            await act(number)
            times.append((time.perf_counter() - began) * 1e3)
    return took


def event(number: int) -> NodeJoined:
    """About 300 bytes once it is in the log."""
    return NodeJoined(node=NodeId("n0"), incarnation=Incarnation(number + 1), host="h" * 120)


def entry(number: int) -> bytes:
    """An entry of the log at a position."""
    told = Recorded(position=Position(number), at_ms=0, writer="c", event=event(number))
    return encode_recorded(told)


# --- one at a time --------------------------------------------------------------------------------


class Bare:
    """The client alone: one put, and the transactions that an append and a submission are."""

    def __init__(self, store: Store, lease_key: bytes, token: int) -> None:
        self._store = store
        self._keys = Keys("bare")
        self._guard = created_at(lease_key, token)
        self._head = self._count = 0
        self._raw = entry(1)

    async def put(self, _: int) -> None:
        """One put of as many bytes."""
        await self._store.txn((), (Put(b"/bare/put", self._raw),))

    async def append(self, _: int) -> None:
        """Guards, one entry, the head; what was there if it is refused."""
        keys, head = self._keys, b"%020d" % self._head
        stands = value_is(keys.head, head) if self._head else absent(keys.head)
        self._head += 1
        puts = (Put(keys.log(self._head), self._raw), Put(keys.head, b"%020d" % self._head))
        gets = (Get(keys.leader), Get(keys.head), Get(keys.log(self._head)))
        assert (await self._store.txn((self._guard, stands), puts, gets)).succeeded

    async def submit(self, _: int) -> None:
        """Guards, one fact, the counter."""
        keys, last = self._keys, b"%020d" % self._count
        counter = keys.counter("n0")
        stands = value_is(counter, last) if self._count else absent(counter)
        self._count += 1
        puts = (
            Put(keys.inbox("n0", 1, self._count), self._raw),
            Put(counter, b"%020d" % self._count),
        )
        assert (await self._store.txn((self._guard, stands), puts, (Get(counter),))).succeeded


async def append_rows(log: EventLog, leadership: Leadership, rows: Rows) -> None:
    """Single appends and single statements, each beside the same with the client alone."""
    keys = Keys(log.fleet)
    bare = Bare(log.store, keys.leader, leadership.term)

    async def append(_: int) -> None:
        head = leadership.head
        await leadership.append(Batch(after=head, entries=(entry(head + 1),)))

    put, raw, ours = await in_turn(bare.put, bare.append, append)
    rows.add("bare put", put, {})
    rows.add("append", ours, {"client": raw, "bare put": put})
    session = await log.join(NodeId("single"), b"", 60)

    async def submit(number: int) -> None:
        await session.submit(event(number), number)

    put, raw, ours = await in_turn(bare.put, bare.submit, submit)
    rows.add("submit", ours, {"client": raw, "bare put": put})
    await sequence_all(log, leadership)


async def sequence_all(log: EventLog, leadership: Leadership) -> None:
    """Give what waits its place."""
    while items := (await log.inbox())[:50]:
        await leadership.append(placed(leadership, items))


def placed(leadership: Leadership, items: Sequence[InboxItem], **more: Any) -> Batch:
    """The batch that gives facts their place."""
    first = leadership.head + 1
    entries = tuple(
        sequence(item.raw, Position(first + number), 0) for number, item in enumerate(items)
    )
    return Batch(after=leadership.head, entries=entries, consumed=tuple(items), **more)


async def watched_rows(log: EventLog, leadership: Leadership, rows: Rows) -> None:
    """From an append, a decision and a fact to who waits for it."""
    store = log.store
    session = await log.join(NodeId("waiting"), b"", 60)
    start = (await store.server_info()).revision + 1
    async with (
        store.watch(b"/bare/watched", b"", start) as batches,
        log.follow(Position(leadership.head + 1)) as follower,
        log.watch_desired(JOB) as desired,
        log.watch_inbox() as inbox,
    ):
        await anext(desired)

        async def bare(_: int) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(store.txn, (), (Put(b"/bare/watched", entry(1)),))
                await anext(batches)

        async def followed(_: int) -> None:
            head = leadership.head
            batch = Batch(after=head, entries=(entry(head + 1),))
            async with anyio.create_task_group() as group:
                group.start_soon(leadership.append, batch)
                await follower.next_batch()

        async def decided(number: int) -> None:
            batch = Batch(after=leadership.head, entries=(), desired=((JOB, b"%d" % number),))
            async with anyio.create_task_group() as group:
                group.start_soon(leadership.append, batch)
                await anext(desired)

        async def stated(number: int) -> None:
            await session.submit(event(number), number)
            await anext(desired)

        await in_turn(bare, followed, decided, tries=20)  # the follower is watching by now
        limit, ours, wanted = await in_turn(bare, followed, decided)
        rows.add("bare put to watch", limit, {})
        rows.add("append to follower", ours, {"bare": limit})
        rows.add("desired", wanted, {"bare": limit})
        async with anyio.create_task_group() as group:
            group.start_soon(run_sequencer, leadership, inbox)
            limit, ours = await in_turn(bare, stated)
            rows.add("fact to desired", ours, {"bare": limit})
            group.cancel_scope.cancel()
    await leadership.refresh_head()  # the last append may have been cut off before its answer


async def run_sequencer(leadership: Leadership, view: View[InboxItem]) -> None:
    """Give facts their place as a controller does, and project the head."""
    async for delta in view:
        for start in range(0, len(delta.updated), 50):
            batch = placed(leadership, delta.updated[start : start + 50])
            head = leadership.head + len(batch.entries)
            projected = ((JOB, b"%d" % head),)
            await leadership.append(
                Batch(
                    after=batch.after,
                    entries=batch.entries,
                    consumed=batch.consumed,
                    desired=projected,
                )
            )


# --- many at once ---------------------------------------------------------------------------------


async def timed(act: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Seconds, and seconds of processor time, of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    await act()
    return time.perf_counter() - wall, time.process_time() - cpu


async def bare_rate(store: Store, rows: Rows) -> float:
    """Puts per second of as many tasks as there are writers."""

    async def write(writer: int) -> None:
        for number in range(FACTS_EACH):
            await store.txn((), (Put(b"/bare/%d/%d" % (writer, number), bytes(300)),))

    async def all_of_them() -> None:
        async with anyio.create_task_group() as group:
            for writer in range(WRITERS):
                group.start_soon(write, writer)

    took_s, cpu_s = await timed(all_of_them)
    rows.rate("bare puts", WRITERS * FACTS_EACH, took_s, cpu_s, 0)
    return WRITERS * FACTS_EACH / took_s


class Sequencer:
    """Commits what is there: writers hand in entries and wait until theirs is in the log."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._waiting: list[tuple[NodeJoined, anyio.Event]] = []
        self._wake = anyio.Event()

    async def hand_in(self, told: NodeJoined) -> None:
        """Return once it is in the log."""
        done = anyio.Event()
        self._waiting.append((told, done))
        self._wake.set()
        await done.wait()

    async def run(self) -> None:
        """Commit until cancelled."""
        while True:
            if not self._waiting:
                self._wake = anyio.Event()
                await self._wake.wait()
            taken, self._waiting = self._waiting[:100], self._waiting[100:]
            head = self._leadership.head
            entries = tuple(
                encode_recorded(
                    Recorded(position=Position(number), at_ms=0, writer="c", event=each)
                )
                for number, (each, _) in enumerate(taken, head + 1)
            )
            await self._leadership.append(Batch(after=head, entries=entries))
            for _, done in taken:
                done.set()


async def batch_row(leadership: Leadership, bare: float, rows: Rows) -> None:
    """Many writers before one sequencer."""
    sequencer = Sequencer(leadership)

    async def write() -> None:
        for number in range(EVENTS_EACH):
            await sequencer.hand_in(event(number))

    async def all_of_them() -> None:
        async with anyio.create_task_group() as writers:
            for _ in range(WRITERS):
                writers.start_soon(write)

    async with anyio.create_task_group() as group:
        group.start_soon(sequencer.run)
        took_s, cpu_s = await timed(all_of_them)
        group.cancel_scope.cancel()
    rows.rate(f"batch append, {WRITERS} writers", WRITERS * EVENTS_EACH, took_s, cpu_s, bare)


async def facts_row(store: Store, fleet: str, at_a_time: int, bare: float, rows: Rows) -> None:
    """Many nodes, and the controller that ships."""
    log = EventLog(store, fleet)
    leadership = await log.campaign("c0", 120)
    sessions = [await log.join(NodeId(f"w{each}"), b"", 120) for each in range(WRITERS)]
    each_states = FACTS_EACH * at_a_time if at_a_time == 1 else 16 * at_a_time
    total = WRITERS * each_states

    async def state(number: int) -> None:
        session = sessions[number]
        told = StepResumed(
            node=session.node,
            incarnation=ONE,
            job=JOB,
            transition=TransitionId(0),
            step=1,
            step_ms=1.0,
        )
        for step in range(each_states // at_a_time):
            await session.submit_all([told] * at_a_time, step)

    async def all_of_them() -> None:
        async with anyio.create_task_group() as writers:
            for number in range(WRITERS):
                writers.start_soon(state, number)
        while reconciler.state.position < total:  # noqa: ASYNC110 - a number has no event
            await anyio.sleep(0.002)

    reconciler = Reconciler(leadership, Ledger(), unix_ms)
    async with log.watch_inbox() as inbox, anyio.create_task_group() as group:
        group.start_soon(reconciler.run_inbox, inbox)
        group.start_soon(reconciler.run)
        took_s, cpu_s = await timed(all_of_them)
        group.cancel_scope.cancel()
    name = f"facts, {WRITERS} nodes, {at_a_time} at a time"
    rows.rate(name, total, took_s, cpu_s, bare)
    await leadership.resign()


async def measure(store: Store, number: int, rows: Rows) -> None:
    """One run over everything."""
    log = EventLog(store, f"bench{number}")
    leadership = await log.campaign("c0", 600)
    await append_rows(log, leadership, rows)
    await watched_rows(log, leadership, rows)
    bare = await bare_rate(store, rows)
    await batch_row(leadership, bare, rows)
    await leadership.resign()
    for at_a_time in (1, 25):
        await facts_row(store, f"bench{number}-{at_a_time}", at_a_time, bare, rows)


async def run(runs: int, *, as_json: bool, durable: bool) -> None:
    """Start an etcd, measure, stop it."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    with tempfile.TemporaryDirectory() as folder:
        binary = find_etcd()
        async with EtcdServer(binary, Path(folder), durable=durable) as server:
            store = await open_store(server.url)
            for number in range(runs):
                load = os.getloadavg()[0]
                head = f"etcd {binary.version} on {machine}, load {load:.1f}, fsync {durable}"
                rows = Rows(as_json=as_json)
                if not as_json:
                    print(head, flush=True)
                await measure(store, number, rows)
                if as_json:
                    print(json.dumps({"machine": head, "rows": rows.values}), flush=True)
            await store.aclose()


def main() -> None:
    """Read arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object a run")
    parser.add_argument("--no-fsync", action="store_true", help="leave the disk out of it")
    options = parser.parse_args()
    anyio.run(lambda: run(options.runs, as_json=options.json, durable=not options.no_fsync))


if __name__ == "__main__":
    main()
