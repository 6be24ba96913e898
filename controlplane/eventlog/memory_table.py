"""Keys with their history: the pure half of the store in memory.

What belongs here: revisions, guards, ranges, compaction, and what etcd refuses as malformed. No
clock, no waiting, no faults.

Theory of operation. `changes` holds every change since the last compaction, in order; `_history`
holds, per key, the states it went through, None standing for its deletion. A transaction is checked
whole before it is applied, so that a refusal changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from controlplane.eventlog.errors import Refused, TooLarge
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
    Target,
)

_NOWHERE: Final = KeyValue(b"", b"", 0, 0, 0)


class Table:
    """Keys, their past, and the leases they hang on."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.live: dict[bytes, KeyValue] = {}
        self.bound: dict[int, set[bytes]] = {}
        """Keys by the lease they hang on."""
        self._changes: list[Change] = []
        self._keys: list[bytes] = []  # sorted: every key that has a history
        self._history: dict[bytes, list[tuple[int, KeyValue | None]]] = {}

    def holds(self, compare: Compare) -> bool:
        """Tell whether a guard holds."""
        kv = self.live.get(compare.key)
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

    def apply(self, ops: Sequence[Op]) -> tuple[list[Change], tuple[tuple[KeyValue, ...], ...]]:
        """Perform operations in one revision; return the changes and what was read."""
        revision = self.revision + 1
        changes: list[Change] = []
        responses: list[tuple[KeyValue, ...]] = []
        for op in ops:
            read: tuple[KeyValue, ...] = ()
            match op:
                case Put():
                    changes.append(Change(self._put(op, revision), deleted=False))
                case Delete(key, end):
                    doomed = [kv.key for kv in self.select(key, end)]
                    changes += self._delete_all(doomed, revision)
                case Get(key, end):
                    read = tuple(self.select(key, end))
            responses.append(read)
        self._commit(changes, revision)
        return changes, tuple(responses)

    def end_lease(self, lease: int) -> list[Change]:
        """Delete what hangs on a lease; return the changes."""
        revision = self.revision + 1
        changes = self._delete_all(sorted(self.bound.pop(lease, ())), revision)
        self._commit(changes, revision)
        return changes

    def _commit(self, changes: list[Change], revision: int) -> None:
        if changes:
            self.revision = revision
            self._changes.extend(changes)

    def since(self, revision: int) -> list[Change]:
        """Changes from a revision on, in order."""
        start = bisect_left(self._changes, revision, key=lambda each: each.kv.mod_revision)
        return self._changes[start:]

    def _put(self, op: Put, revision: int) -> KeyValue:
        old = self.live.get(op.key, _NOWHERE)
        self._unbind(old)
        if op.lease:
            self.bound.setdefault(op.lease, set()).add(op.key)
        created = old.create_revision or revision
        kv = KeyValue(op.key, op.value, created, revision, old.version + 1, op.lease)
        self.live[op.key] = kv
        self._remember(op.key, revision, kv)
        return kv

    def _delete_all(self, keys: Iterable[bytes], revision: int) -> list[Change]:
        changes = []
        for key in keys:
            self._unbind(self.live.pop(key))
            self._remember(key, revision, None)
            changes.append(Change(KeyValue(key, b"", 0, revision, 0), deleted=True))
        return changes

    def _unbind(self, kv: KeyValue) -> None:
        keys = self.bound.get(kv.lease)
        if keys is not None:
            keys.discard(kv.key)

    def _remember(self, key: bytes, revision: int, kv: KeyValue | None) -> None:
        states = self._history.get(key)
        if states is None:
            self._history[key] = states = []
            insort(self._keys, key)
        states.append((revision, kv))

    def select(self, start: bytes, end: bytes, revision: int = 0) -> Iterator[KeyValue]:
        """Yield keys in order as of a revision; 0 is now."""
        names: Sequence[bytes] = (start,)
        if end:
            names = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, end)]
        for name in names:
            kv = self._as_of(name, revision) if revision else self.live.get(name)
            if kv is not None:
                yield kv

    def _as_of(self, key: bytes, revision: int) -> KeyValue | None:
        found = None
        for at, kv in self._history.get(key, ()):
            if at > revision:
                break
            found = kv
        return found

    def compact(self, revision: int) -> None:
        """Forget superseded states and deletions before a revision; live keys stay."""
        if revision <= self.compacted:
            return
        self._changes = self.since(revision)
        for key in self._keys:
            states = self._history[key]
            floor = self._as_of(key, revision)
            kept = [state for state in states if state[0] > revision]
            self._history[key] = [(floor.mod_revision, floor), *kept] if floor else kept
        self._history = {key: states for key, states in self._history.items() if states}
        self._keys = sorted(self._history)
        self.compacted = revision


def check_limits(compares: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op]) -> None:
    """Raise what etcd would answer to a transaction that is too large or malformed."""
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
