"""The store port in memory: the only fake in the repository, and the store of one-process use.

What belongs here: the same semantics as etcd, held to the same contract suite: revisions, guards,
leases, watches, compaction, limits. Faults are injected through `MemoryStore.faults`.

Theory of operation. One list holds every change since the last compaction; `_history` holds, per
key, the states it went through. Nothing runs in the background: leases expire when somebody looks
(every call does) and whoever waits on a watch wakes when the next lease would end. With a clock of
your own, call `tick` after moving it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
import anyio.lowlevel
import msgspec

from controlplane.eventlog.errors import (
    Compacted,
    LeaseLost,
    NoSpace,
    OutcomeUnknown,
    Refused,
    StoreUnavailable,
    TooLarge,
    WatchLost,
)
from controlplane.eventlog.store import (
    REQUEST_BYTES_MAX,
    TXN_OPS_MAX,
    Change,
    Compare,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    RangeResult,
    ServerInfo,
    Target,
    TxnResult,
    Watch,
    WatchBatch,
)

RETAIN_REVISIONS: Final = 10_000
"""Revisions of history kept by default, as etcd's automatic compaction is set."""

_WATCH_BACKLOG_MAX: Final = 10_000
_NOWHERE: Final = KeyValue(b"", b"", 0, 0, 0)


class Faults:
    """What goes wrong next. Counters count down as calls meet them."""

    def __init__(self) -> None:
        self.refuse_calls = 0
        """Calls that fail with StoreUnavailable and change nothing."""
        self.lose_answers = 0
        """Transactions that are applied and then raise OutcomeUnknown."""
        self.lose_requests = 0
        """Transactions that are not applied and raise OutcomeUnknown."""
        self.away = False
        """The whole store is unreachable until this is False again."""
        self.black_hole = False
        """Open watches fall silent; they miss for good what happens meanwhile."""
        self.full = False
        """The quota is used up: puts and grants raise NoSpace."""

    def meet_call(self) -> None:
        """Raise what a call meets now."""
        if self.away:
            raise StoreUnavailable("the store in memory is away (injected)")
        if self.refuse_calls:
            self.refuse_calls -= 1
            raise StoreUnavailable("the store in memory refused a call (injected)")


class _Lease(msgspec.Struct):
    ttl_s: float
    ends_at: float
    keys: set[bytes]


class _Watcher:
    """One open watch: what it has not yet delivered. Waiting lets leases end in time."""

    def __init__(self, start: bytes, end: bytes, tick: Callable[[], float]) -> None:
        self._start = start
        self._end = end or start + b"\x00"
        self._tick = tick
        self._pending: list[Change] = []
        self._lost: Exception | None = None
        self._wake = anyio.Event()

    def offer(self, changes: Sequence[Change]) -> None:
        """Keep what the watch asked for; a watch too far behind is ended."""
        wanted = [each for each in changes if self._start <= each.kv.key < self._end]
        if len(self._pending) + len(wanted) > _WATCH_BACKLOG_MAX:
            self.end_with(WatchLost("a watch fell too far behind"))
        elif wanted:
            self._pending.extend(wanted)
            self._wake.set()

    def end_with(self, error: Exception) -> None:
        """Let the next look raise."""
        self._lost = error
        self._pending.clear()
        self._wake.set()

    def __aiter__(self) -> AsyncIterator[WatchBatch]:
        return self

    async def __anext__(self) -> WatchBatch:
        """Sleep until something is pending, or until the next lease would end."""
        while True:
            await anyio.lowlevel.checkpoint()
            next_end_s = self._tick()
            if self._lost is not None:
                raise self._lost
            if self._pending:
                changes, self._pending = tuple(self._pending), []
                return WatchBatch(changes[-1].kv.mod_revision, changes)
            self._wake = anyio.Event()
            with anyio.move_on_after(max(next_end_s, 0.001)):
                await self._wake.wait()


class MemoryStore:
    """A store of one process. `now` is a clock in seconds; by default the event loop's."""

    def __init__(
        self,
        now: Callable[[], float] | None = None,
        retain_revisions: int = RETAIN_REVISIONS,
    ) -> None:
        self.faults = Faults()
        self._now = now or anyio.current_time
        self._retain_revisions = retain_revisions
        self._revision = 1
        self._compacted = 0
        self._live: dict[bytes, KeyValue] = {}
        self._keys: list[bytes] = []  # sorted: every key that has a history
        self._history: dict[bytes, list[tuple[int, KeyValue | None]]] = {}
        self._changes: list[Change] = []
        self._leases: dict[int, _Lease] = {}
        self._lease_last = 0
        self._watchers: list[_Watcher] = []

    # --- the port -----------------------------------------------------------------------------

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op] = ()
    ) -> TxnResult:
        """See `Store.txn`."""
        await self._enter()
        if self.faults.lose_requests:
            self.faults.lose_requests -= 1
            raise OutcomeUnknown("a request to the store in memory was lost (injected)")
        _check_limits(compares, success, failure)
        succeeded = all(map(self._holds, compares))
        ops = success if succeeded else failure
        self._check_ops(ops)
        responses = self._apply(ops)
        if self.faults.lose_answers:
            self.faults.lose_answers -= 1
            raise OutcomeUnknown("an answer of the store in memory was lost (injected)")
        return TxnResult(succeeded, self._revision, responses)

    async def range(
        self,
        start: bytes,
        end: bytes = b"",
        *,
        revision: int = 0,
        limit: int = 0,
        keys_only: bool = False,
        replay: bool = False,
    ) -> RangeResult:
        """See `Store.range`."""
        await self._enter()
        if revision and revision < self._compacted:
            raise Compacted(self._compacted)
        if revision > self._revision:
            raise Refused(f"revision {revision} is in the future; now is {self._revision}")
        found: list[KeyValue] = []
        for kv in self._select(start, end, revision):
            if limit and len(found) == limit:
                return RangeResult(self._revision, tuple(found), more=True)
            found.append(msgspec.structs.replace(kv, value=b"") if keys_only else kv)
        return RangeResult(self._revision, tuple(found), more=False)

    def watch(self, start: bytes, end: bytes, from_revision: int) -> Watch:
        """See `Store.watch`."""
        if from_revision < 1:
            msg = f"a watch starts at a definite revision, not {from_revision}"
            raise ValueError(msg)
        return self._watching(start, end, from_revision)

    async def grant(self, ttl_s: float) -> int:
        """See `Store.grant`."""
        await self._enter()
        if self.faults.full:
            raise NoSpace("the store in memory is full (injected)")
        self._lease_last += 1
        self._leases[self._lease_last] = _Lease(ttl_s, self._now() + ttl_s, set())
        return self._lease_last

    async def keep_alive(self, lease: int) -> float:
        """See `Store.keep_alive`."""
        await self._enter()
        held = self._leases.get(lease)
        if held is None:
            return 0.0
        held.ends_at = self._now() + held.ttl_s
        return held.ttl_s

    async def revoke(self, lease: int) -> None:
        """See `Store.revoke`."""
        await self._enter()
        self._end_lease(lease)

    async def server_info(self) -> ServerInfo:
        """See `Store.server_info`."""
        await self._enter()
        size = sum(len(kv.key) + len(kv.value) for kv in self._live.values())
        return ServerInfo("memory", size, 1, self._revision)

    async def compact(self, revision: int) -> None:
        """See `Store.compact`."""
        await self._enter()
        if revision > self._revision:
            raise Refused(f"revision {revision} is in the future; now is {self._revision}")
        self._compact(revision)

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        self.drop_watches()

    # --- faults and time ----------------------------------------------------------------------

    def drop_watches(self) -> None:
        """End every open watch, as a broken connection would."""
        for watcher in self._watchers:
            watcher.end_with(WatchLost("the watch was dropped (injected)"))

    def expire(self, lease: int) -> None:
        """End a lease at once, as if nobody had renewed it."""
        self._end_lease(lease)

    def tick(self) -> float:
        """Let leases end whose time has come; return the seconds until the next one would.

        For use after moving a clock of your own.
        """
        now = self._now()
        for lease in [each for each, held in self._leases.items() if held.ends_at <= now]:
            self._end_lease(lease)
        return min((held.ends_at - now for held in self._leases.values()), default=math.inf)

    # --- inside -------------------------------------------------------------------------------

    async def _enter(self) -> None:
        """Give others their turn, so that callers interleave as they do over a network."""
        await anyio.lowlevel.checkpoint()
        self.tick()
        self.faults.meet_call()

    def _holds(self, compare: Compare) -> bool:
        kv = self._live.get(compare.key)
        actual: int | bytes
        match compare.target:
            case Target.CREATE_REVISION:
                actual = kv.create_revision if kv else 0
            case Target.MOD_REVISION:
                actual = kv.mod_revision if kv else 0
            case Target.VALUE:
                if kv is None:
                    return False
                actual = kv.value
        return (actual == compare.operand) is not compare.negated

    def _check_ops(self, ops: Sequence[Op]) -> None:
        """Refuse, before anything is done, what etcd would refuse as a whole."""
        for op in ops:
            if isinstance(op, Put):
                if self.faults.full:
                    raise NoSpace("the store in memory is full (injected)")
                if op.lease and op.lease not in self._leases:
                    raise LeaseLost(f"lease {op.lease} is gone")

    def _apply(self, ops: Sequence[Op]) -> tuple[tuple[KeyValue, ...], ...]:
        revision = self._revision + 1
        changes: list[Change] = []
        responses: list[tuple[KeyValue, ...]] = []
        for op in ops:
            match op:
                case Put():
                    changes.append(Change(self._put(op, revision), deleted=False))
                    responses.append(())
                case Delete(key, end):
                    doomed = [kv.key for kv in self._select(key, end, 0)]
                    changes += [Change(self._delete(each, revision), True) for each in doomed]
                    responses.append(())
                case Get(key, end):
                    responses.append(tuple(self._select(key, end, 0)))
        self._publish(changes, revision)
        return tuple(responses)

    def _publish(self, changes: list[Change], revision: int) -> None:
        if not changes:
            return
        self._revision = revision
        self._changes.extend(changes)
        if not self.faults.black_hole:
            for watcher in self._watchers:
                watcher.offer(changes)
        if self._revision - self._compacted > 2 * self._retain_revisions:
            self._compact(self._revision - self._retain_revisions)

    def _put(self, op: Put, revision: int) -> KeyValue:
        old = self._live.get(op.key, _NOWHERE)
        if old.lease in self._leases:
            self._leases[old.lease].keys.discard(op.key)
        if op.lease:
            self._leases[op.lease].keys.add(op.key)
        created = old.create_revision or revision
        kv = KeyValue(op.key, op.value, created, revision, old.version + 1, op.lease)
        self._live[op.key] = kv
        self._remember(op.key, revision, kv)
        return kv

    def _delete(self, key: bytes, revision: int) -> KeyValue:
        old = self._live.pop(key)
        if old.lease in self._leases:
            self._leases[old.lease].keys.discard(key)
        self._remember(key, revision, None)
        return KeyValue(key, b"", 0, revision, 0)

    def _remember(self, key: bytes, revision: int, kv: KeyValue | None) -> None:
        states = self._history.get(key)
        if states is None:
            self._history[key] = states = []
            insort(self._keys, key)
        if states and states[-1][0] == revision:
            states.pop()
        states.append((revision, kv))

    def _select(self, start: bytes, end: bytes, revision: int) -> Iterator[KeyValue]:
        """Yield keys in order as of a revision; 0 is now."""
        if not end:
            names: Sequence[bytes] = (start,)
        else:
            names = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, end)]
        for name in names:
            kv = self._live.get(name) if not revision else self._as_of(name, revision)
            if kv is not None:
                yield kv

    def _as_of(self, key: bytes, revision: int) -> KeyValue | None:
        found = None
        for at, kv in self._history.get(key, ()):
            if at > revision:
                break
            found = kv
        return found

    def _end_lease(self, lease: int) -> None:
        held = self._leases.pop(lease, None)
        if held is None or not held.keys:
            return
        revision = self._revision + 1
        changes = [Change(self._delete(key, revision), deleted=True) for key in sorted(held.keys)]
        self._publish(changes, revision)

    def _compact(self, revision: int) -> None:
        """Forget superseded states and deletions before a revision; live keys stay."""
        if revision <= self._compacted:
            return
        self._compacted = revision
        self._changes = [each for each in self._changes if each.kv.mod_revision >= revision]
        for key in list(self._keys):
            states = self._history[key]
            kept = [state for state in states if state[0] > revision]
            floor = self._as_of(key, revision)
            if floor is not None:
                kept.insert(0, (floor.mod_revision, floor))
            if kept:
                self._history[key] = kept
            else:
                del self._history[key]
        self._keys = [key for key in self._keys if key in self._history]

    @asynccontextmanager
    async def _watching(
        self, start: bytes, end: bytes, from_revision: int
    ) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        await self._enter()
        if from_revision < self._compacted:
            raise Compacted(self._compacted)
        watcher = _Watcher(start, end, self.tick)
        watcher.offer([each for each in self._changes if each.kv.mod_revision >= from_revision])
        self._watchers.append(watcher)
        try:
            yield watcher
        finally:
            self._watchers.remove(watcher)


def _check_limits(
    compares: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op]
) -> None:
    if max(len(compares), len(success), len(failure)) > TXN_OPS_MAX:
        raise TooLarge(f"a transaction holds at most {TXN_OPS_MAX} operations")
    size = 0
    for ops in (success, failure):
        written: set[bytes] = set()
        for op in ops:
            size += len(op.key) + (len(op.value) if isinstance(op, Put) else 0)
            if isinstance(op, Put):
                if op.key in written:
                    raise Refused(f"a transaction writes {op.key!r} twice")
                written.add(op.key)
        _check_overlap(ops, written)
    if size > REQUEST_BYTES_MAX:
        raise TooLarge(f"a request of {size} bytes; the limit is {REQUEST_BYTES_MAX}")


def _check_overlap(ops: Sequence[Op], written: set[bytes]) -> None:
    for op in ops:
        if isinstance(op, Delete):
            end = op.end or op.key + b"\x00"
            for key in written:
                if op.key <= key < end:
                    raise Refused(f"a transaction both writes and deletes {key!r}")
