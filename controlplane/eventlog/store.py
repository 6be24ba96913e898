"""The store port: the few verbs of a revisioned key-value store that the event log stands on.

What belongs here: value types and the protocol. What does not: keys, events, retries of writes,
reconnection of watches. Two implementations (`etcd`, `memory`) are held to one contract suite.

Theory of operation. Every change of the store has a *revision*; all operations of one transaction
share it. A key lives from its `create_revision` until it is deleted; re-creating it gives a new
one, which is why a create revision serves as a fencing token. A *lease* deletes its keys when it
is not renewed in time. A watch delivers every change of a key range from a revision on, in order,
or raises; it never skips and never resumes by itself: whoever watches must be able to read again.

Writes are tried once. A lost answer is `OutcomeUnknown`; only the caller knows which guard makes
the transaction safe to repeat. Reads repeat themselves within a budget.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from enum import IntEnum
from typing import Protocol

import msgspec

TXN_OPS_MAX = 128
"""Operations that one transaction may hold; etcd's default limit."""

REQUEST_BYTES_MAX = 1536 * 1024
"""Bytes that one request may hold; etcd's default limit."""


class KeyValue(msgspec.Struct, frozen=True, gc=False):
    """One key as it was at some revision; `version` counts writes since creation, from 1."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


class Target(IntEnum):
    """What a comparison looks at; numbers are etcd's."""

    CREATE_REVISION = 1
    MOD_REVISION = 2
    VALUE = 3


class Compare(msgspec.Struct, frozen=True, gc=False):
    """One guard of a transaction. A key that does not exist has revision 0 and no value."""

    key: bytes
    target: Target
    operand: int | bytes
    negated: bool = False


def exists(key: bytes) -> Compare:
    """Guard: the key exists."""
    return Compare(key, Target.CREATE_REVISION, 0, negated=True)


def absent(key: bytes) -> Compare:
    """Guard: the key does not exist."""
    return Compare(key, Target.CREATE_REVISION, 0)


def created_at(key: bytes, revision: int) -> Compare:
    """Guard: the key was created at this revision and has lived since."""
    return Compare(key, Target.CREATE_REVISION, revision)


def modified_at(key: bytes, revision: int) -> Compare:
    """Guard: the key was last written at this revision."""
    return Compare(key, Target.MOD_REVISION, revision)


def value_is(key: bytes, value: bytes) -> Compare:
    """Guard: the key exists and holds exactly these bytes."""
    return Compare(key, Target.VALUE, value)


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write a key, bound to a lease unless that is 0."""

    key: bytes
    value: bytes
    lease: int = 0


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Delete one key, or all keys in `[key, end)`."""

    key: bytes
    end: bytes = b""


class Get(msgspec.Struct, frozen=True, gc=False):
    """Read one key, or all keys in `[key, end)`."""

    key: bytes
    end: bytes = b""


Op = Put | Delete | Get


class TxnResult(msgspec.Struct, frozen=True):
    """What a transaction did: per operation the keys read (`Get`), or nothing."""

    succeeded: bool
    revision: int
    responses: tuple[tuple[KeyValue, ...], ...]


class RangeResult(msgspec.Struct, frozen=True):
    """Keys in order, the store revision of the answer, and whether a limit cut it short."""

    revision: int
    kvs: tuple[KeyValue, ...]
    more: bool


class Change(msgspec.Struct, frozen=True, gc=False):
    """One change of a key; of a deleted key only `kv.key` and `kv.mod_revision` are known."""

    kv: KeyValue
    deleted: bool


class WatchBatch(msgspec.Struct, frozen=True):
    """Changes in order, up to `revision`. Without changes it is a sign that the watch lives."""

    revision: int
    changes: tuple[Change, ...]


class ServerInfo(msgspec.Struct, frozen=True):
    """What the member that answered says; `leader` is 0 while the cluster has none."""

    version: str
    db_bytes: int
    member: int
    leader: int
    revision: int


Watch = AbstractAsyncContextManager[AsyncIterator[WatchBatch]]


class Store(Protocol):
    """A revisioned key-value store. Every method may raise `StoreUnavailable`."""

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op] = ()
    ) -> TxnResult:
        """Perform `success` if all guards hold, else `failure`, in one revision. Tried once.

        Raises OutcomeUnknown, LeaseLost (a put names a lease that is gone), NoSpace, TooLarge,
        PermissionDenied, Refused.
        """
        ...

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
        """Read `start`, or all keys in `[start, end)`, as of a revision (0: now).

        `replay` marks bulk reads, which must not delay small ones. Raises Compacted.
        """
        ...

    def watch(self, start: bytes, end: bytes, from_revision: int) -> Watch:
        """Deliver changes of `[start, end)` from a revision on, until an error.

        Entering returns once the store has accepted the watch. Entering and iterating raise
        Compacted and WatchLost.
        """
        ...

    async def grant(self, ttl_s: float) -> int:
        """Create a lease of at least `ttl_s` seconds and return its id. Raises NoSpace."""
        ...

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease; the seconds it now has, or 0.0 if it is gone. Tried once."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys; ending one that is gone is no error."""
        ...

    async def server_info(self) -> ServerInfo:
        """Ask the server for its version, size and leader."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget history before a revision; live keys stay. Repeating it is no error."""
        ...

    async def reclaim(self) -> None:
        """Give back what deletion and compaction freed, and lift the alarm of a full store.

        Goes member by member; each answers nobody else meanwhile, for about a second per 100 MiB.
        """
        ...

    async def aclose(self) -> None:
        """Close connections; idempotent."""
        ...


def prefix_end(prefix: bytes) -> bytes:
    """Return the end of the range that holds exactly the keys that start with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        msg = "a prefix needs a byte below 0xff"
        raise ValueError(msg)
    return stripped[:-1] + bytes([stripped[-1] + 1])
