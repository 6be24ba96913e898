"""Moving the beginning of a log out of the store, and back; and what the store holds of it.

What belongs here: the order of steps, each of which may be the last one before a power cut. First a
snapshot is written and read back; then entries below it are written to segments and read back;
only then do they leave the store. A run that was interrupted is taken up where it stands: the
store's mark says what has left, the folder what was written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread
from msgspec import Struct
from msgspec.structs import replace

from controlplane.errors import LeaderPresent, LogRefuted
from controlplane.eventlog import (
    Batch,
    Entry,
    EventLog,
    Leadership,
    LogCorrupt,
    Manifest,
    Mark,
    OutcomeUnknown,
    Retry,
)
from controlplane.eventlog.archive import Segment, chain_of, read_segment, write_segment
from controlplane.folding import BLANK, fold_on, newest_image
from controlplane.imaging import Image, encode_image
from controlplane.turn import count
from statemachine.errors import UsageError
from statemachine.evolve import evolve
from statemachine.ids import Position

SEGMENT_ENTRIES: Final = 20_000
"""Entries of one segment."""

KEEP_ENTRIES: Final = 10_000
"""Entries that stay in the store by default, for those who look at what happened last."""

KEEP_SNAPSHOTS: Final = 2
"""Snapshots that stay in the store."""

_IMPORT_ENTRIES: Final = 100
_IMPORT_BYTES: Final = 1024 * 1024


class Archived(Struct, frozen=True, kw_only=True):
    """What a run did. `last` is the last position that has left the store."""

    snapshot: Position
    segments: tuple[str, ...]
    entries: int
    last: Position

    def __str__(self) -> str:
        """One line for people."""
        if not self.entries:
            return f"nothing to archive; snapshot at position {self.snapshot}"
        return (
            f"{self.entries} events in {len(self.segments)} segments; the store begins at position "
            f"{self.last + 1}; snapshot at position {self.snapshot}"
        )

    def as_values(self) -> dict[str, Any]:
        """For `--json`."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


# --- snapshots ------------------------------------------------------------------------------------


async def snapshot_now(log: EventLog, image: Image, now_ms: int) -> Manifest:
    """Write a snapshot of what is known, prove it by reading it back, and drop old ones.

    Raises:
        LogCorrupt: what was read back is not what was written.
        StoreUnavailable, OutcomeUnknown, NoSpace.
    """
    blob = await to_thread.run_sync(encode_image, log.fleet, image)
    manifest = await log.put_snapshot(image.state.position, blob, now_ms)
    if await log.get_snapshot(manifest) != blob:
        raise LogCorrupt(image.state.position, "its snapshot is not what was written")
    await log.prune_snapshots(KEEP_SNAPSHOTS)
    return manifest


async def refold(log: EventLog, folder: Path) -> Image:
    """Fold the archive, then the store: for a release that cannot use the snapshots there are.

    Raises:
        LogCorrupt: names the first fault.
    """
    image = await to_thread.run_sync(fold_archive, chain_of(folder, log.fleet))
    return await fold_on(log, image)


def fold_archive(chain: Iterable[Segment]) -> Image:
    """Fold all segments. Raises LogCorrupt."""
    state, counters = BLANK.state, BLANK.counters
    for segment in chain:
        for entry in read_segment(segment):
            recorded = entry.recorded()
            state = evolve(state, recorded)
            counters = count(counters, recorded.writer, recorded.incarnation, recorded.counter)
    return Image(state=state, counters=counters)


# --- out of the store -----------------------------------------------------------------------------


async def archive_log(
    log: EventLog, folder: Path, *, now_ms: int, keep: int = KEEP_ENTRIES, again: bool = False
) -> Archived:
    """Move all but the last `keep` entries to segments in a folder.

    `again` folds from the archive instead of from the snapshots in the store.

    Raises:
        LogCorrupt: the archive or the log is damaged; nothing has left the store since.
        Refused: somebody else archives this log.
        UsageError: the folder cannot be written, or holds less than has left the store.
        StoreUnavailable, OutcomeUnknown: do it again.
    """
    mark = await _take_up(log, folder)
    image = await (refold(log, folder) if again else _image_at_head(log))
    position = image.state.position
    snapshot = (await snapshot_now(log, image, now_ms)).position if position else position
    names: list[str] = []
    first, last = mark.position, Position(min(position - keep, snapshot))
    while mark.position < last:
        segment = await _write_next(log, folder, mark, last)
        await log.forget(mark, segment.mark)
        mark = segment.mark
        names.append(segment.path.name)
    await _release(log)
    return Archived(
        snapshot=snapshot,
        segments=tuple(names),
        entries=mark.position - first,
        last=mark.position,
    )


async def rescue_log(
    log: EventLog, folder: Path, *, now_ms: int, keep: int = KEEP_ENTRIES
) -> Archived:
    """Archive a log whose store is full, and bring the store back.

    A full store takes neither a snapshot nor a new mark. So entries are written to segments, then
    deleted under the old mark; space is given back and the alarm lifted; then mark and snapshot
    follow, folded from the archive. Cut off anywhere, it is to be run again.

    Raises: see `archive_log`.
    """
    await _make_folder(folder)
    chain = await to_thread.run_sync(chain_of, folder, log.fleet)
    mark = await log.mark()
    check_against_mark(chain, mark, folder)
    written = chain[-1].mark if chain else mark
    last = Position(await log.head() - keep)
    names: list[str] = []
    while written.position < last:
        segment = await _write_next(log, folder, written, last)
        written = segment.mark
        names.append(segment.path.name)
    await log.drop(mark, written.position)
    await _release(log)
    await log.store.reclaim()
    done = await archive_log(log, folder, now_ms=now_ms, keep=keep, again=True)
    return replace(done, segments=tuple(names), entries=done.last - mark.position)


async def _write_next(log: EventLog, folder: Path, before: Mark, last: Position) -> Segment:
    """Write the segment that follows a mark."""
    start, stop = before.position + 1, min(before.position + SEGMENT_ENTRIES, last)
    pages = log.read_entries(Position(start), Position(stop))
    entries = [entry async for page in pages for entry in page]
    write = partial(write_segment, folder, log.fleet, before, entries)
    return await to_thread.run_sync(write)


async def _image_at_head(log: EventLog) -> Image:
    return await fold_on(log, await newest_image(log))


async def _make_folder(folder: Path) -> None:
    try:
        await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from error


async def _take_up(log: EventLog, folder: Path) -> Mark:
    """Compare folder and mark; let leave what was written but has not left yet."""
    await _make_folder(folder)
    chain = await to_thread.run_sync(chain_of, folder, log.fleet)
    mark = await log.mark()
    check_against_mark(chain, mark, folder)
    if not chain or chain[-1].header.last == mark.position:
        return mark
    for segment in chain:
        if segment.header.last > mark.position:
            await _compare(log, segment, Position(mark.position + 1))
            await log.forget(mark, segment.mark)
            mark = segment.mark
    return mark


async def _compare(log: EventLog, segment: Segment, start: Position) -> None:
    """Make sure that what the store still has of a segment says the same.

    A rescue deletes before it can move the mark; then the store has less, or nothing.
    """
    written = {entry.position: entry for entry in read_segment(segment)}
    async for entry in log.left_of(start, segment.header.last):
        if written[entry.position] != entry:
            name = segment.path.name
            raise LogCorrupt(entry.position, f"{name} does not hold what the store does")


def check_against_mark(chain: tuple[Segment, ...], mark: Mark, folder: Path) -> None:
    """Make sure that a folder holds all that has left the store.

    Raises:
        LogRefuted: a segment at the end is missing, or another one.
    """
    if not mark.position:
        return
    for segment in chain:
        if segment.header.first <= mark.position <= segment.header.last:
            if segment.digest != mark.digest:
                name = segment.path.name
                raise LogRefuted(f"{folder}: {name} is not the segment that the store knows of")
            return
    last = chain[-1].header.last if chain else 0
    raise LogRefuted(
        f"{folder}: a segment is missing: the archive ends at position {last}, "
        f"but the log has left the store up to {mark.position}"
    )


async def _release(log: EventLog) -> None:
    """Let the store forget revisions that only held what is deleted; watchers read again."""
    answer = await log.server_info()
    await log.store.compact(answer.revision)


# --- into a store ---------------------------------------------------------------------------------


async def check_importable(log: EventLog) -> None:
    """Make sure that a fleet has no log yet, and nobody who is about to write one.

    Raises:
        LogRefuted: it has.
        LeaderPresent: a controller leads it.
    """
    if await log.head():
        raise LogRefuted(f"fleet {log.fleet}: its log is not empty; import into another fleet")
    leader = await log.leader()
    if leader is not None:
        raise LeaderPresent(f"fleet {log.fleet} is led by controller {leader[0]}: stop that one")


async def import_log(log: EventLog, leadership: Leadership, entries: AsyncIterator[Entry]) -> int:
    """Append entries byte for byte to a log that is empty; return how many.

    Raises:
        LogRefuted: the log is not empty, or the entries do not begin with position 1.
        LogCorrupt: an entry does not decode, or not where it says.
        Deposed, NoSpace.
    """
    if await leadership.refresh_head():
        raise LogRefuted(f"fleet {log.fleet}: its log is not empty; import into another fleet")
    waiting: list[bytes] = []
    size = 0
    async for entry in entries:
        expected = leadership.head + len(waiting) + 1
        if entry.recorded().position != expected:
            raise LogCorrupt(expected, f"an entry that says {entry.position} stands here")
        if waiting and (len(waiting) == _IMPORT_ENTRIES or size + len(entry.raw) > _IMPORT_BYTES):
            await _append(leadership, waiting)
            waiting, size = [], 0
        waiting.append(entry.raw)
        size += len(entry.raw)
    if waiting:
        await _append(leadership, waiting)
    return leadership.head


async def _append(leadership: Leadership, entries: list[bytes]) -> None:
    batch = Batch(after=leadership.head, entries=tuple(entries))
    while True:
        try:
            await leadership.append(batch)
            return
        except (Retry, OutcomeUnknown):
            await anyio.sleep(0.1)
