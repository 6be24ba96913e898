"""Reading and following: every entry once, in order, whatever happens on the way."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import anyio
import pytest

from controlplane.eventlog import Batch, EventLog, Leadership, LogCorrupt, NodeAlreadyAlive
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.reading import following
from controlplane.eventlog.store import Delete, Put, Store, WatchBatch
from controlplane.eventlog.view import viewing
from statemachine.codec import encode_recorded
from statemachine.events import Recorded
from statemachine.ids import JobId, NodeId, Position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.contract.conftest import Eventually, Facts, World

J0 = JobId("j0")


async def grow(leadership: Leadership, fact: Facts, count: int, size: int = 50) -> None:
    """Append entries in batches."""
    while count:
        start, number = leadership.head + 1, min(size, count)
        entries = tuple(
            encode_recorded(
                Recorded(position=Position(each), at_ms=1, writer="controller.c0", event=fact(each))
            )
            for each in range(start, start + number)
        )
        await leadership.append(Batch(after=leadership.head, entries=entries))
        count -= number


async def project(leadership: Leadership, value: bytes) -> None:
    """Overwrite the desired topology of the job."""
    await leadership.append(Batch(after=leadership.head, entries=(), desired=((J0, value),)))


async def test_reading_from_a_position(log: EventLog, fact: Facts) -> None:
    """A log is read from any position to any other, both included, or to its head."""
    await grow(await log.campaign("c0", 30), fact, 120)

    assert [each.position async for each in log.read()] == list(range(1, 121))
    assert [each.position async for each in log.read(Position(118))] == [118, 119, 120]
    assert [each.position async for each in log.read(Position(5), Position(7))] == [5, 6, 7]
    assert [each.position async for each in log.read(Position(121))] == []
    assert [each.position async for each in log.read(Position(119), Position(500))] == [119, 120]


async def test_an_empty_log_is_empty(log: EventLog) -> None:
    """A fleet that nobody has written has head 0 and nothing to read."""
    assert await log.head() == 0
    assert [each async for each in log.read()] == []


async def test_reading_spans_windows(log: EventLog, fact: Facts) -> None:
    """A log longer than one window is read whole."""
    await grow(await log.campaign("c0", 30), fact, 2_300, size=100)

    assert [each.position async for each in log.read()] == list(range(1, 2_301))


async def test_large_entries_are_read(log: EventLog, store: Store) -> None:
    """A window that is too large for one answer is read in smaller ones."""
    keys = Keys(log.fleet)
    raw = bytes(1024 * 1024)
    for position in range(1, 81):
        await store.txn((), (Put(keys.log(position), raw),))
    await store.txn((), (Put(keys.head, b"%020d" % 80),))

    sizes = [len(entries) async for entries in log.read_entries()]

    assert sum(sizes) == 80
    assert max(sizes) >= 40, "an answer may be 64 MiB large, and is asked for in halves beyond"


@pytest.mark.parametrize("missing", [1, 7, 10])
async def test_a_hole_is_named(log: EventLog, store: Store, fact: Facts, missing: int) -> None:
    """A missing entry below the head is reported by its position, not passed over."""
    await grow(await log.campaign("c0", 30), fact, 10)
    await store.txn((), (Delete(Keys(log.fleet).log(missing)),))

    with pytest.raises(LogCorrupt) as caught:
        _ = [each async for each in log.read()]
    async with log.follow() as entries:
        with anyio.fail_after(5), pytest.raises(LogCorrupt) as followed:
            _ = [each async for each in entries]

    assert caught.value.position == followed.value.position == missing


async def test_garbage_is_named(log: EventLog, store: Store, fact: Facts) -> None:
    """An entry that does not decode, or claims another position, is reported by its position."""
    await grow(await log.campaign("c0", 30), fact, 3)
    keys = Keys(log.fleet)
    other = (await store.range(keys.log(1))).kvs[0].value

    await store.txn((), (Put(keys.log(2), b"garbage"),))
    with pytest.raises(LogCorrupt) as garbage:
        _ = [each async for each in log.read()]
    await store.txn((), (Put(keys.log(2), other),))
    with pytest.raises(LogCorrupt, match="says position 1") as swapped:
        _ = [each async for each in log.read()]

    assert garbage.value.position == swapped.value.position == 2


async def test_following_sees_old_and_new(log: EventLog, fact: Facts) -> None:
    """A follower gets what is there, then what comes, each entry once and in order."""
    leadership = await log.campaign("c0", 30)
    await grow(leadership, fact, 5)
    seen: list[int] = []

    async with log.follow(Position(3)) as entries:
        with anyio.fail_after(10):
            while len(seen) < 3:
                seen.append((await anext(entries)).position)
            await grow(leadership, fact, 5, size=2)
            while len(seen) < 8:
                seen.append((await anext(entries)).position)

    assert seen == list(range(3, 11))


async def test_following_survives_broken_watches(world: World, log: EventLog, fact: Facts) -> None:
    """A follower whose watch breaks again and again misses nothing and repeats nothing."""
    leadership = await log.campaign("c0", 60)
    seen: list[int] = []

    async with log.follow() as entries:
        with anyio.fail_after(30):
            for round_ in range(1, 6):
                await grow(leadership, fact, 10, size=3)
                await world.cut_watches()
                await grow(leadership, fact, 10, size=3)
                while len(seen) < 20 * round_:
                    seen.append((await anext(entries)).position)

    assert seen == list(range(1, 101))


async def test_following_survives_compaction(
    world: World, log: EventLog, fact: Facts, store: Store
) -> None:
    """A follower whose next revision is compacted away while it is cut off reads on."""
    leadership = await log.campaign("c0", 60)
    await grow(leadership, fact, 5)
    seen: list[int] = []

    async with log.follow() as entries:
        with anyio.fail_after(20):
            while len(seen) < 5:
                seen.append((await anext(entries)).position)
            await world.cut_watches()
            await grow(leadership, fact, 50, size=5)
            await store.compact((await store.server_info()).revision)
            await grow(leadership, fact, 5)
            while len(seen) < 60:
                seen.append((await anext(entries)).position)

    assert seen == list(range(1, 61))


async def test_a_slow_reader_loses_the_watch_not_entries(log: EventLog, fact: Facts) -> None:
    """A follower slower than the log drops its watch, holds little, and still gets everything."""
    leadership = await log.campaign("c0", 60)
    seen: list[int] = []

    async with following(log.store, log._keys, Position(1), buffer=4) as entries:
        with anyio.fail_after(30):
            await grow(leadership, fact, 1)
            seen.append((await anext(entries)).position)
            while not entries.watch_drops:
                await grow(leadership, fact, 10, size=1)
                await anyio.sleep(0.01)
            held = entries.lag_batches
            while len(seen) < leadership.head:
                seen.append((await anext(entries)).position)

    assert held <= 4
    assert seen == list(range(1, leadership.head + 1))


class Deaf:
    """A store whose watches are opened, and never tell anything."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    @asynccontextmanager
    async def watch(self, *span: object) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        """Open it, and hear nothing."""

        async def silence() -> AsyncIterator[WatchBatch]:
            await anyio.sleep_forever()
            yield WatchBatch(0, ())

        async with self._store.watch(*span):  # type: ignore[arg-type]
            yield silence()


async def test_a_silent_watch_is_not_believed(store: Store, log: EventLog, root: bytes) -> None:
    """A view reads again after a silence, so that even a watch that lies loses nothing for long."""
    deaf, span = cast("Store", Deaf(store)), (root, root + b"\xff")
    async with viewing(deaf, span, lambda kv: kv.value, quiet_s=0.2) as view:
        first = await anext(view)
        await store.txn((), (Put(root + b"a", b"1"),))
        with anyio.fail_after(5):
            second = await anext(view)

    assert first.updated == ()
    assert second.updated == (b"1",)


async def test_a_follower_does_not_believe_a_silent_watch(log: EventLog, fact: Facts) -> None:
    """What its watch never told it reads after a silence, each entry once."""
    leadership = await log.campaign("c0", 60)
    deaf, seen = cast("Store", Deaf(log.store)), list[int]()
    async with following(deaf, log._keys, Position(1), quiet_s=0.2) as entries:
        with anyio.fail_after(10):
            for head in (3, 8):
                await grow(leadership, fact, head - leadership.head)
                while len(seen) < head:
                    seen.append((await anext(entries)).position)

    assert seen == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_log_that_lost_its_end_is_noticed(
    world: World, log: EventLog, store: Store, fact: Facts
) -> None:
    """A follower that read further than the log now goes, as after a restored backup, says so."""
    await grow(await log.campaign("c0", 60), fact, 10)

    async with log.follow() as entries:
        with anyio.fail_after(10):
            while (await anext(entries)).position < 10:
                pass
            await store.txn((), (Put(Keys(log.fleet).head, b"%020d" % 6),))
            with pytest.raises(LogCorrupt) as caught:  # noqa: PT012 - each cut needs a look
                while True:  # the first cut may come before there is a watch
                    await world.cut_watches()
                    with anyio.move_on_after(0.5):
                        await anext(entries)

    assert caught.value.position == 7


async def test_desired_tells_now_then_changes(log: EventLog) -> None:
    """A watcher of a desired topology gets what it is, then every later value or a later one."""
    leadership = await log.campaign("c0", 30)
    await project(leadership, b"1")

    async with log.watch_desired(J0) as view:
        with anyio.fail_after(5):
            now = await anext(view)
            await project(leadership, b"2")
            then = await anext(view)

    assert [item.value for item in now.updated] == [b"1"]
    assert [item.value for item in then.updated] == [b"2"]


async def test_desired_says_that_there_is_none(log: EventLog) -> None:
    """A watcher of a job without a topology learns at once that there is none yet."""
    async with log.watch_desired(J0) as view:
        with anyio.fail_after(5):
            first = await anext(view)

    assert first.updated == first.removed == ()
    assert view.items == {}


async def test_desired_coalesces_for_the_slow(log: EventLog, eventually: Eventually) -> None:
    """A watcher that looks away for a hundred changes sees the last one, once."""
    leadership = await log.campaign("c0", 30)

    async with log.watch_desired(J0) as view:
        await anext(view)
        for number in range(100):
            await project(leadership, b"%d" % number)

        async def arrived() -> bool:
            return [item.value for item in view.items.values()] == [b"99"]

        await eventually(arrived)
        delta = await anext(view)

    assert [item.value for item in delta.updated] == [b"99"]


async def test_desired_survives_a_cut_and_compaction(
    world: World, log: EventLog, store: Store
) -> None:
    """A watcher cut off while the topology changes, and history goes, gets the topology."""
    leadership = await log.campaign("c0", 60)
    await project(leadership, b"1")

    async with log.watch_desired(J0) as view:
        with anyio.fail_after(20):
            await anext(view)
            await world.cut_watches()
            await project(leadership, b"2")
            await project(leadership, b"3")
            await store.compact((await store.server_info()).revision)
            values: list[bytes] = []
            while values[-1:] != [b"3"]:
                values += [item.value for item in (await anext(view)).updated]

    assert values in ([b"3"], [b"2", b"3"])


async def test_a_view_tells_what_went_while_it_was_cut_off(world: World, log: EventLog) -> None:
    """A node that left while the watch was broken is reported as gone when it heals."""
    stays = await log.join(NodeId("n0"), b"", 60)
    leaves = await log.join(NodeId("n1"), b"", 60)

    async with log.watch_nodes() as view:
        with anyio.fail_after(20):
            await anext(view)
            await world.cut_watches()
            await leaves.leave()
            gone = await anext(view)

    assert [item.node for item in gone.removed] == [NodeId("n1")]
    assert stays.is_alive


async def test_foreign_keys_are_passed_over(log: EventLog, store: Store, fact: Facts) -> None:
    """What somebody else put under our prefixes disturbs no reader, and nobody who joins."""
    keys = Keys(log.fleet)
    for name in (b"x", b"a/b/c/d", b"n0/zero/1", b"n0/1/1", b"\xff\xfe"):
        await store.txn(
            (), (Put(keys.inbox_all[0] + name, b"?"), Put(keys.nodes_all[0] + name, b"?"))
        )
    session = await log.join(NodeId("n0"), b"", 30)
    with pytest.raises(NodeAlreadyAlive, match="incarnation 1"):
        await log.join(NodeId("n0"), b"", 30)

    async with log.watch_nodes() as view:
        with anyio.fail_after(5):
            delta = await anext(view)

    assert await log.inbox() == ()
    assert [item.incarnation for item in await log.nodes()] == [session.incarnation]
    assert [item.incarnation for item in delta.updated] == [session.incarnation]


async def test_foreign_keys_among_the_entries_are_passed_over(
    log: EventLog, store: Store, fact: Facts
) -> None:
    """A key that names no position is no entry: it ends no reader, whether read or watched."""
    leadership = await log.campaign("c0", 30)
    await grow(leadership, fact, 3)
    start = Keys(log.fleet).log_all[0]
    foreign = (b"%020dx" % 2, b"\xff", b"what/is/this")
    seen: list[int] = []

    async with log.follow() as entries:
        with anyio.fail_after(5):
            while len(seen) < 3:
                seen.append((await anext(entries)).position)
            for name in foreign:
                await store.txn((), (Put(start + name, b"?"),))
            await grow(leadership, fact, 2)
            while len(seen) < 5:
                seen.append((await anext(entries)).position)

    assert seen == [1, 2, 3, 4, 5]
    assert [each.position async for each in log.read()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("value", [b"", b"?", b"\xff", b"-1", b"1.x.y"])
async def test_a_value_that_is_not_ours_under_our_own_key_is_named(
    log: EventLog, store: Store, fact: Facts, value: bytes
) -> None:
    """Who counts on it is told which it is, by an error of ours; nothing is made up instead."""
    keys, node = Keys(log.fleet), NodeId("n0")
    session = await log.join(node, b"", 30)
    await store.txn((), (Put(keys.counter(node), value),))
    with pytest.raises(LogCorrupt, match="counter of the facts of node n0"):
        await session.submit(fact(1), 0)
    await session.leave()
    await store.txn((), (Put(keys.incarnations(node), value),))
    with pytest.raises(LogCorrupt, match="count of incarnations of node n0"):
        await log.join(node, b"", 30)
    await store.txn((), (Put(keys.leader, value),))

    assert await log.leader() is not None
    assert await log.inbox() == ()
