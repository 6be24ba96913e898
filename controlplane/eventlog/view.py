"""A prefix of the store as it is now: read, watched, and read again whenever in doubt.

What belongs here: the level-triggered mirror of a key range. It knows no key and no event.

Theory of operation. The watch is a hint that keeps the mirror close to the store; what counts is
what was read. Whatever ends a watch (a broken connection, compaction, a cluster without a leader)
leads to reading the whole range again and comparing. A watch that says nothing for a while is
not believed either: it is dropped, and the range read again. A consumer sees, each time it asks,
what differs from the time before; it may be arbitrarily slow, since a key that changed five times
counts once, one that came and went since the last look not at all, and memory is bounded by the
range itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

import anyio
import msgspec

from controlplane.eventlog.errors import Compacted, EventLogError, Retry
from controlplane.eventlog.settle import pause_s
from controlplane.eventlog.store import Change, KeyValue, Store, WatchBatch

T = TypeVar("T")

QUIET_S: Final = 15.0
"""Seconds of silence after which a watch is no longer believed."""

_PAGE: Final = 2_000


class Delta(msgspec.Struct, Generic[T], frozen=True):
    """What differs from the last time: items new or overwritten, in order of writing; items gone.

    `revision` is the store revision up to which the view is complete.
    """

    revision: int
    updated: tuple[T, ...]
    removed: tuple[T, ...]


@asynccontextmanager
async def running(pump: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run a task beside the body, which must not raise; the body's own errors pass unwrapped."""
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(pump)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def read_all(store: Store, start: bytes, end: bytes) -> tuple[int, list[KeyValue]]:
    """Read a range in pages at one revision; return that revision and the keys in order."""
    while True:
        page = await store.range(start, end, limit=_PAGE)
        revision, kvs = page.revision, list(page.kvs)
        try:
            while page.more:
                after = kvs[-1].key + b"\x00"
                page = await store.range(after, end, revision=revision, limit=_PAGE, replay=True)
                kvs.extend(page.kvs)
        except Compacted:
            continue
        return revision, kvs


class View(Generic[T]):
    """The items of a key range. Iterate to get a `Delta` whenever there is one.

    `read` makes an item of a key and its value, or None of what nobody of ours can have put there.
    """

    def __init__(
        self,
        store: Store,
        span: tuple[bytes, bytes],
        read: Callable[[KeyValue], T | None],
        quiet_s: float = QUIET_S,
    ) -> None:
        self.is_watching = False
        """Whether the store is being watched now; False while it cannot be reached."""
        self._store = store
        self._start, self._end = span
        self._read = read
        self._quiet_s = quiet_s
        self._items: dict[bytes, T] = {}
        self._written: dict[bytes, int] = {}
        self._updated: dict[bytes, bool] = {}  # whether the consumer knows the key from before
        self._removed: dict[bytes, T] = {}
        self._revision = 0
        self._fresh = False
        self._fatal: EventLogError | None = None
        self._wake = anyio.Event()

    @property
    def items(self) -> Mapping[bytes, T]:
        """All items by store key, as of now; not a copy."""
        return self._items

    def __aiter__(self) -> AsyncIterator[Delta[T]]:
        return self

    async def __anext__(self) -> Delta[T]:
        """Wait until something differs; the first call returns once the range was read."""
        while not (self._fresh or self._updated or self._removed):
            if self._fatal is not None:
                raise self._fatal
            self._wake = anyio.Event()
            await self._wake.wait()
        order = sorted(self._updated, key=lambda key: (self._written[key], key))
        delta = Delta(
            self._revision,
            tuple(self._items[key] for key in order),
            tuple(self._removed.values()),
        )
        self._updated, self._removed, self._fresh = {}, {}, False
        return delta

    async def pump(self) -> None:
        """Follow the store until cancelled; an error that cannot heal goes to the consumer."""
        tries = 0
        while True:
            try:
                await self._read_then_watch()
                tries = 0
            except Compacted:
                continue
            except Retry:
                await anyio.sleep(pause_s(tries))
                tries = 0 if self.is_watching else tries + 1
            except EventLogError as error:
                self._fatal = error
                self._wake.set()
                return
            finally:
                self.is_watching = False

    async def _read_then_watch(self) -> None:
        """Return after a silence."""
        revision, kvs = await read_all(self._store, self._start, self._end)
        self._replace(revision, kvs)
        async with self._store.watch(self._start, self._end, revision + 1) as batches:
            self.is_watching = True
            while True:
                batch = None
                with anyio.move_on_after(self._quiet_s):
                    batch = await anext(batches)
                if batch is None:
                    return
                self._apply(batch)

    def _replace(self, revision: int, kvs: list[KeyValue]) -> None:
        present = {kv.key for kv in kvs}
        for key in [key for key in self._items if key not in present]:
            self._drop(key)
        for kv in kvs:
            if self._written.get(kv.key) != kv.mod_revision:
                self._set(kv)
        self._fresh = self._fresh or not self._revision
        self._revision = revision
        self._wake.set()

    def _apply(self, batch: WatchBatch) -> None:
        for change in batch.changes:
            self._change(change)
        self._revision = max(self._revision, batch.revision)
        if batch.changes:
            self._wake.set()

    def _change(self, change: Change) -> None:
        if change.deleted:
            self._drop(change.kv.key)
        else:
            self._set(change.kv)

    def _set(self, kv: KeyValue) -> None:
        item = self._read(kv)
        if item is None:
            self._drop(kv.key)
            return
        self._updated.setdefault(kv.key, kv.key in self._items)
        self._items[kv.key] = item
        self._written[kv.key] = kv.mod_revision

    def _drop(self, key: bytes) -> None:
        gone = self._items.pop(key, None)
        self._written.pop(key, None)
        is_known = self._updated.pop(key, True)
        if gone is not None and is_known:
            self._removed[key] = gone


@asynccontextmanager
async def viewing(
    store: Store,
    span: tuple[bytes, bytes],
    read: Callable[[KeyValue], T | None],
    quiet_s: float = QUIET_S,
) -> AsyncIterator[View[T]]:
    """Keep a view of a key range for as long as the body runs."""
    view = View(store, span, read, quiet_s)
    async with running(view.pump):
        yield view
