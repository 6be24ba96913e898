"""Snapshots in the store, and the mark up to which the log has left it.

What belongs here: bytes of a snapshot in chunks, and moving the mark. What does not: what the bytes
mean (`controlplane.imaging`), and where archived entries went (`archive`).

Theory of operation. A snapshot is what the log folds to at a position, so it may be written by
anybody, twice, and never changes: chunks first, the manifest last and only once. A reader that
finds a manifest finds all of it, or damage, which the digest tells. Entries leave the store in the
transaction that moves the mark, guarded by the mark's own old value: two archivers cannot both
move it, and whoever misses an entry learns from the mark whether it is archived or lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from controlplane.eventlog.errors import LogCorrupt, Refused
from controlplane.eventlog.items import Entry, entries_of
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.settle import settle
from controlplane.eventlog.store import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    Store,
    absent,
    exists,
    modified_at,
    value_is,
)
from statemachine.ids import Position

CHUNK_BYTES: Final = 512 * 1024
"""Size of one part of a snapshot; a third of what one request may hold."""

DELETE_ENTRIES: Final = 5_000
"""Entries that leave the store in one transaction; more would keep others waiting."""


class Mark(msgspec.Struct, frozen=True):
    """Up to where the log is in archives only, and the digest of the last segment there."""

    position: Position = Position(0)
    digest: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot consists of. `written_at_ms` is Unix time, `size` in bytes."""

    position: Position
    chunks: int
    size: int
    sha256: str
    written_at_ms: int = 0


def read_mark(found: Sequence[KeyValue]) -> Mark:
    """Read the mark's value; a log of which nothing is archived has none. Raises LogCorrupt."""
    try:
        return msgspec.json.decode(found[0].value, type=Mark) if found else Mark()
    except msgspec.MsgspecError as error:
        raise LogCorrupt(0, f"the mark of its archive says {found[0].value[:40]!r}") from error


# --- snapshots ------------------------------------------------------------------------------------


async def put_snapshot(
    store: Store, keys: Keys, position: Position, blob: bytes, written_at_ms: int
) -> Manifest:
    """Write a snapshot. What stands at this position already stays if it is the same.

    One that is damaged, or of a release that folds otherwise, is replaced.

    Raises:
        StoreUnavailable, OutcomeUnknown: do it again.
        NoSpace.
    """
    parts = [blob[at : at + CHUNK_BYTES] for at in range(0, len(blob), CHUNK_BYTES)]
    manifest = Manifest(
        position=position,
        chunks=len(parts),
        size=len(blob),
        sha256=hashlib.sha256(blob).hexdigest(),
        written_at_ms=written_at_ms,
    )
    name = keys.snapshot(position)
    present = await store.range(name)
    if present.kvs:
        with suppress(LogCorrupt, msgspec.MsgspecError):
            stands = msgspec.json.decode(present.kvs[0].value, type=Manifest)
            if await get_snapshot(store, keys, stands) == blob:
                return stands
        was = (modified_at(name, present.kvs[0].mod_revision),)
        await store.txn(was, (Delete(name, keys.snapshot(position + 1)),))
    for number, part in enumerate(parts):
        await settle(store, (absent(name),), (Put(keys.snapshot_chunk(position, number), part),))
    last = keys.snapshot_chunk(position, max(len(parts) - 1, 0))
    await settle(store, (absent(name), exists(last)), (Put(name, msgspec.json.encode(manifest)),))
    return manifest


async def list_snapshots(store: Store, keys: Keys) -> tuple[Manifest, ...]:
    """Every complete snapshot, the oldest first."""
    start, end = keys.snapshots_all
    names = await store.range(start, end, keys_only=True)
    found: list[Manifest] = []
    for kv in names.kvs:
        if len(keys.parts(kv.key)) != 2:
            continue
        answer = await store.range(kv.key)
        try:
            found.extend(msgspec.json.decode(each.value, type=Manifest) for each in answer.kvs)
        except msgspec.MsgspecError:
            continue  # nobody of ours wrote it; what it would have saved is folded instead
    return tuple(found)


async def get_snapshot(store: Store, keys: Keys, manifest: Manifest) -> bytes:
    """Read a snapshot back.

    Raises:
        LogCorrupt: a part is missing, or the digest is not that of the manifest.
    """
    parts = []
    for number in range(manifest.chunks):
        key = keys.snapshot_chunk(manifest.position, number)
        answer = await store.range(key, replay=True)
        if not answer.kvs:
            raise LogCorrupt(manifest.position, f"chunk {number} of its snapshot is missing")
        parts.append(answer.kvs[0].value)
    blob = b"".join(parts)
    if hashlib.sha256(blob).hexdigest() != manifest.sha256:
        raise LogCorrupt(manifest.position, "its snapshot does not have the digest it should")
    return blob


async def prune_snapshots(store: Store, keys: Keys, keep: int) -> int:
    """Delete all but the newest `keep` snapshots, and parts without a manifest before them."""
    kept = (await list_snapshots(store, keys))[-keep:]
    if not kept:
        return 0
    before = await store.range(keys.snapshots_all[0], keys.snapshot(kept[0].position), limit=1)
    if before.kvs:
        await store.txn((), (Delete(keys.snapshots_all[0], keys.snapshot(kept[0].position)),))
    return len(before.kvs)


# --- the mark -------------------------------------------------------------------------------------


async def forget(store: Store, keys: Keys, old: Mark, new: Mark) -> None:
    """Delete the entries between two marks from the store, and move the mark.

    Goes in steps; interrupted, it is to be called again with the mark that it reached.

    Raises:
        Refused: the mark is not where it was thought; somebody else archives.
        StoreUnavailable, OutcomeUnknown.
    """
    at = old
    while at.position < new.position:
        position = Position(min(at.position + DELETE_ENTRIES, new.position))
        step = Mark(position, new.digest)
        await _step(store, keys, at, step)
        at = step


async def drop(store: Store, keys: Keys, mark: Mark, last: Position) -> None:
    """Delete entries up to `last` and leave the mark, for a store too full to take a new one.

    Raises:
        Refused: the mark is not where it was thought.
        StoreUnavailable, OutcomeUnknown.
    """
    at = mark.position
    while at < last:
        upto = Position(min(at + DELETE_ENTRIES, last))
        result = await settle(
            store, (_stands(keys, mark),), (Delete(keys.log(at + 1), keys.log(upto + 1)),)
        )
        if not result.succeeded:
            raise Refused(f"the log is no longer archived up to {mark.position}: look again")
        at = upto


async def left_of(
    store: Store, keys: Keys, start: Position, stop: Position
) -> AsyncIterator[Entry]:
    """Yield what the store still has of positions `start` to `stop`; holes are passed over."""
    for at in range(start, stop + 1, DELETE_ENTRIES):
        end = min(at + DELETE_ENTRIES, stop + 1)
        page = await store.range(keys.log(at), keys.log(end), replay=True)
        for entry in entries_of(keys, page.kvs):
            yield entry


def _stands(keys: Keys, mark: Mark) -> Compare:
    if not mark.position:
        return absent(keys.archived)
    return value_is(keys.archived, msgspec.json.encode(mark))


async def _step(store: Store, keys: Keys, old: Mark, new: Mark) -> None:
    wanted = msgspec.json.encode(new)
    ops: tuple[Op, ...] = (
        Put(keys.archived, wanted),
        Delete(keys.log(old.position + 1), keys.log(new.position + 1)),
    )
    result = await settle(store, (_stands(keys, old),), ops, (Get(keys.archived),))
    if not result.succeeded:
        found = result.responses[0]
        if not (result.unsure and found and found[0].value == wanted):
            stands = read_mark(found).position
            raise Refused(f"the log is archived up to {stands}, not {old.position}: look again")
