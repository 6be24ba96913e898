"""Reading the log: from any position, and on as it grows.

Theory of operation. A window of positions is a range of keys, so reading costs what is read and not
what lies behind it (a limit would make the store count to the end of the log on every page).
A reader first ranges up to the head at one pinned revision, then watches from the next revision.
Whatever ends the watch, and an entry that does not follow the last one, leads back to ranging from
the last position; a position that is missing although the head is past it is damage, and said so.
A consumer slower than the log loses the watch, not entries: the buffer is bounded, and when it is
full the watch is dropped, and the rest read when there is room, at the consumer's pace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final, Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from controlplane.eventlog.errors import (
    Archived,
    Compacted,
    EventLogError,
    LogCorrupt,
    Retry,
    TooLarge,
)
from controlplane.eventlog.items import Entry, entries_of
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.leadership import read_head
from controlplane.eventlog.retention import read_mark
from controlplane.eventlog.settle import pause_s
from controlplane.eventlog.store import KeyValue, Store, WatchBatch
from controlplane.eventlog.view import QUIET_S, running
from statemachine.events import Recorded
from statemachine.ids import Position

WINDOW: Final = 1_000
"""Positions read at a time."""

BUFFER_BATCHES: Final = 64
"""Batches that a follower may lag behind its watch before the watch is dropped."""


async def pin(store: Store, keys: Keys) -> tuple[int, Position]:
    """Return a store revision, and the head of the log as of it."""
    found = await store.range(keys.head)
    return found.revision, read_head(found.kvs)


async def windows(
    store: Store, keys: Keys, start: Position, last: Position, revision: int
) -> AsyncGenerator[tuple[Entry, ...], None]:
    """Yield entries from `start` to `last`, both included, in windows at a pinned revision."""
    size = WINDOW
    position = start
    while position <= last:
        end = min(position + size, last + 1)
        try:
            page = await store.range(
                keys.log(position), keys.log(end), revision=revision, replay=True
            )
        except Compacted:
            revision, _ = await pin(store, keys)  # live keys outlive compaction
            continue
        except TooLarge:
            if size == 1:
                raise
            size //= 2
            continue
        try:
            entries = _dense(keys, page.kvs, position, end)
        except LogCorrupt as hole:
            oldest = await oldest_of(store, keys)
            if hole.position >= oldest:
                raise
            raise Archived(position, oldest) from hole
        yield entries
        position = Position(end)


async def oldest_of(store: Store, keys: Keys) -> Position:
    """Return the first position that is not archived."""
    found = await store.range(keys.archived)
    return Position(read_mark(found.kvs).position + 1)


def _dense(keys: Keys, kvs: tuple[KeyValue, ...], start: int, end: int) -> tuple[Entry, ...]:
    entries = entries_of(keys, kvs)
    for expected, entry in zip(range(start, end), entries, strict=False):
        if entry.position != expected:
            raise LogCorrupt(expected, "no entry, though the head is past it")
    if len(entries) != end - start:
        raise LogCorrupt(start + len(entries), "no entry, though the head is past it")
    return entries


class Follower:
    """The log from a position on, without end. Iterate to get entries one by one."""

    def __init__(
        self, store: Store, keys: Keys, start: Position, buffer: int, quiet_s: float
    ) -> None:
        self.watch_drops = 0
        """How often the watch was dropped because the consumer was slower than the log."""
        self._store = store
        self._keys = keys
        self._start = self._next = start
        self._quiet_s = quiet_s
        self._send: MemoryObjectSendStream[tuple[Entry, ...]]
        self._receive: MemoryObjectReceiveStream[tuple[Entry, ...]]
        self._send, self._receive = anyio.create_memory_object_stream(buffer)
        self._fatal: EventLogError | None = None
        self._taken: deque[Entry] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._send.close()
        self._receive.close()

    @property
    def lag_batches(self) -> int:
        """Batches that wait for the consumer now."""
        return self._receive.statistics().current_buffer_used

    async def next_batch(self) -> tuple[Entry, ...]:
        """Wait for entries; several at a time, as they were appended or read."""
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            assert self._fatal is not None
            raise self._fatal from None

    def __aiter__(self) -> AsyncIterator[Recorded]:
        return self

    async def __anext__(self) -> Recorded:
        """Wait for the next entry and decode it."""
        while not self._taken:
            self._taken.extend(await self.next_batch())
        return self._taken.popleft().recorded()

    async def pump(self) -> None:
        """Follow until cancelled; an error that cannot heal goes to the consumer."""
        tries = 0
        async with self._send:
            while True:
                before = self._next
                try:
                    await self._range_then_watch()
                except Compacted:
                    continue
                except Retry:
                    tries = 0 if self._next > before else tries + 1
                    await anyio.sleep(pause_s(tries))
                except EventLogError as error:
                    self._fatal = error
                    return

    async def _range_then_watch(self) -> None:
        """Return when it is time to range again."""
        revision = await self._range()
        start, end = self._keys.log(self._next), self._keys.log_all[1]
        async with self._store.watch(start, end, revision + 1) as changes:
            while True:
                batch = None
                with anyio.move_on_after(self._quiet_s):
                    batch = await anext(changes)
                if batch is None or not self._took(batch):
                    return

    async def _range(self) -> int:
        """Read up to the head, until it is near; return the revision of the last look."""
        while True:
            before = self._next
            revision, head = await pin(self._store, self._keys)
            if before > self._start and head < before - 1:
                raise LogCorrupt(head + 1, f"the log ends here; it was read up to {before - 1}")
            pages = windows(self._store, self._keys, before, head, revision)
            async with aclosing(pages):
                async for entries in pages:
                    await self._send.send(entries)
                    self._next = Position(entries[-1].position + 1)
            if self._next - before < WINDOW:
                return revision

    def _took(self, batch: WatchBatch) -> bool:
        """Pass on what a watch says; False if there is a gap, or no room."""
        kvs = [change.kv for change in batch.changes if not change.deleted]
        entries = entries_of(self._keys, kvs)
        if not self._follows(entries):
            return False
        if entries:
            try:
                self._send.send_nowait(entries)
            except anyio.WouldBlock:
                self.watch_drops += 1
                return False
            self._next = Position(entries[-1].position + 1)
        return True

    def _follows(self, entries: tuple[Entry, ...]) -> bool:
        return all(entry.position == position for position, entry in enumerate(entries, self._next))


@asynccontextmanager
async def following(
    store: Store,
    keys: Keys,
    start: Position,
    *,
    buffer: int = BUFFER_BATCHES,
    quiet_s: float = QUIET_S,
) -> AsyncIterator[Follower]:
    """Follow the log from a position for as long as the body runs."""
    follower = Follower(store, keys, start, buffer, quiet_s)
    with follower:
        async with running(follower.pump):
            yield follower
