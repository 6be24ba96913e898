"""The store port in memory: the only fake in the repository, and the store of one-process use.

What belongs here: the same semantics as etcd, held to the same contract suite: revisions, guards,
leases, watches, compaction, limits. Faults are injected through `MemoryStore.faults`.

Theory of operation. `memory_table` holds keys and their past; here are leases, watches and time.
Nothing runs in the background: leases end when somebody looks (every call does), and whoever waits
on a watch wakes when the next lease would end. With a clock of your own, call `tick` after moving
it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
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
    WatchLost,
)
from controlplane.eventlog.memory_table import Table, check_limits
from controlplane.eventlog.store import (
    Change,
    Compare,
    KeyValue,
    Op,
    Put,
    RangeResult,
    ServerInfo,
    TxnResult,
    Watch,
    WatchBatch,
)

RETAIN_REVISIONS: Final = 10_000
"""Revisions of history kept by default, as etcd's automatic compaction is set."""

_WATCH_BACKLOG_MAX: Final = 10_000


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


class _Watcher:
    """One open watch: what it has not yet delivered. Waiting lets leases end in time."""

    def __init__(self, start: bytes, end: bytes, tick: Callable[[], float]) -> None:
        self._start = start
        self._end = end or start + b"\x00"
        self._tick = tick
        self._pending: list[Change] = []
        self._lost: Exception | None = None
        self._woken = anyio.Event()

    def offer(self, changes: Sequence[Change]) -> None:
        """Keep what the watch asked for; a watch too far behind is ended."""
        wanted = [each for each in changes if self._start <= each.kv.key < self._end]
        if len(self._pending) + len(wanted) > _WATCH_BACKLOG_MAX:
            self.end_with(WatchLost("a watch fell too far behind"))
        elif wanted:
            self._pending.extend(wanted)
            self.wake()

    def wake(self) -> None:
        """Let whoever waits look again."""
        self._woken.set()

    def end_with(self, error: Exception) -> None:
        """Let the next look raise."""
        self._lost = error
        self._pending.clear()
        self.wake()

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
            self._woken = anyio.Event()
            with anyio.move_on_after(max(next_end_s, 0.001)):
                await self._woken.wait()


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
        self._table = Table()
        self._leases: dict[int, _Lease] = {}
        self._lease_last = 0
        self._ends_first = math.inf  # no lease ends before this
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
        check_limits(compares, success, failure)
        succeeded = all(map(self._table.holds, compares))
        ops = success if succeeded else failure
        self._check_leases(ops)
        changes, responses = self._table.apply(ops)
        self._publish(changes)
        if self.faults.lose_answers:
            self.faults.lose_answers -= 1
            raise OutcomeUnknown("an answer of the store in memory was lost (injected)")
        return TxnResult(succeeded, self._table.revision, responses)

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
        table = self._table
        if revision and revision < table.compacted:
            raise Compacted(table.compacted)
        self._check_known(revision)
        found: list[KeyValue] = []
        for kv in table.select(start, end, revision):
            if limit and len(found) == limit:
                return RangeResult(table.revision, tuple(found), more=True)
            found.append(msgspec.structs.replace(kv, value=b"") if keys_only else kv)
        return RangeResult(table.revision, tuple(found), more=False)

    def _check_known(self, revision: int) -> None:
        if revision > self._table.revision:
            raise Refused(f"revision {revision} is not yet; now is {self._table.revision}")

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
        ends_at = self._now() + ttl_s
        self._leases[self._lease_last] = _Lease(ttl_s, ends_at)
        if ends_at < self._ends_first:
            self._ends_first = ends_at
            for watcher in self._watchers:  # they sleep until a lease ends
                watcher.wake()
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
        size = sum(len(kv.key) + len(kv.value) for kv in self._table.live.values())
        return ServerInfo("memory", size, 1, 1, self._table.revision)

    async def compact(self, revision: int) -> None:
        """See `Store.compact`."""
        await self._enter()
        self._check_known(revision)
        self._table.compact(revision)

    async def reclaim(self) -> None:
        """See `Store.reclaim`."""
        await self._enter()
        self.faults.full = False

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
        if now >= self._ends_first:
            for lease in [each for each, held in self._leases.items() if held.ends_at <= now]:
                self._end_lease(lease)
            ends = (held.ends_at for held in self._leases.values())
            self._ends_first = min(ends, default=math.inf)
        return self._ends_first - now

    # --- inside -------------------------------------------------------------------------------

    async def _enter(self) -> None:
        """Give others their turn, so that callers interleave as they do over a network."""
        await anyio.lowlevel.checkpoint()
        self.tick()
        self.faults.meet_call()

    def _check_leases(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if isinstance(op, Put):
                if self.faults.full:
                    raise NoSpace("the store in memory is full (injected)")
                if op.lease and op.lease not in self._leases:
                    raise LeaseLost(f"lease {op.lease} is gone")

    def _publish(self, changes: list[Change]) -> None:
        if changes and not self.faults.black_hole:
            for watcher in self._watchers:
                watcher.offer(changes)
        table = self._table
        if table.revision - table.compacted > 2 * self._retain_revisions:
            table.compact(table.revision - self._retain_revisions)

    def _end_lease(self, lease: int) -> None:
        if self._leases.pop(lease, None) is not None:
            self._publish(self._table.end_lease(lease))

    @asynccontextmanager
    async def _watching(
        self, start: bytes, end: bytes, from_revision: int
    ) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        await self._enter()
        if from_revision < self._table.compacted:
            raise Compacted(self._table.compacted)
        watcher = _Watcher(start, end, self.tick)
        watcher.offer(self._table.since(from_revision))
        self._watchers.append(watcher)
        try:
            yield watcher
        finally:
            self._watchers.remove(watcher)
