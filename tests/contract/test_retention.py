"""What leaves the store is in an archive, what an archive lost is named, and a fold goes on."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from controlplane.archiving import archive_log, import_log, refold, snapshot_now
from controlplane.errors import LogRefuted
from controlplane.eventlog import (
    Archived,
    Batch,
    Entry,
    EventLog,
    LogCorrupt,
    Mark,
    Refused,
    Store,
)
from controlplane.eventlog.archive import chain_of, read_segment, write_segment
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.store import Delete, Put
from controlplane.folding import fold_to_head
from controlplane.imaging import Image, encode_image
from controlplane.leadership import Preview
from controlplane.logstats import stats_of
from controlplane.verifying import verify_archive, verify_log
from statemachine.codec import encode_recorded
from statemachine.events import AnyEvent, DecisionsPaused, NodeJoined, Recorded
from statemachine.ids import Incarnation, NodeId, Position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from controlplane.eventlog import Leadership
    from tests.contract.conftest import World


def event(number: int) -> AnyEvent:
    """Nodes join, again and again."""
    node = NodeId(f"n{number % 7}")
    return NodeJoined(node=node, incarnation=Incarnation(1 + number // 7), host="h")


def entries_of(first: int, count: int) -> tuple[bytes, ...]:
    """Entries from a position on."""
    return tuple(
        encode_recorded(
            Recorded(
                position=Position(position),
                at_ms=1_000 + position,
                writer=f"n{position % 7}",
                incarnation=Incarnation(1 + position // 7),
                counter=1,
                event=event(position),
            )
        )
        for position in range(first, first + count)
    )


async def grow(leadership: Leadership, count: int) -> None:
    """Append so many entries."""
    while count:
        some = min(count, 100)
        entries = entries_of(leadership.head + 1, some)
        await leadership.append(Batch(after=leadership.head, entries=entries))
        count -= some


@asynccontextmanager
async def led(log: EventLog) -> AsyncIterator[Leadership]:
    """Lead a log for as long as the body runs."""
    leadership = await log.campaign("c0", 60)
    try:
        yield leadership
    finally:
        await leadership.resign()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 100 entries, chunks of 100 bytes, 30 entries deleted at a time."""
    monkeypatch.setattr("controlplane.archiving.SEGMENT_ENTRIES", 100)
    monkeypatch.setattr("controlplane.eventlog.retention.CHUNK_BYTES", 100)
    monkeypatch.setattr("controlplane.eventlog.retention.DELETE_ENTRIES", 30)


async def test_a_fold_from_snapshot_and_tail_is_the_fold(log: EventLog, tmp_path: Path) -> None:
    """Whatever has left the store, a takeover knows exactly what the whole log says."""
    async with led(log) as leadership:
        await grow(leadership, 330)
        whole = (await fold_to_head(log)).image

        done = await archive_log(log, tmp_path, now_ms=5, keep=20)

        assert (done.entries, done.last, len(done.segments)) == (310, 310, 4)
        assert await log.oldest() == 311
        await grow(leadership, 3)  # not every writer is heard of again
        folded = await fold_to_head(log)
        ledger = await Preview(log).complete()
        refolded = await refold(log, tmp_path)

    assert folded.began_at == 330
    assert folded.image == refolded
    assert whole.state.position == 330
    assert (ledger.state, ledger.counters) == (refolded.state, refolded.counters)


async def test_what_is_archived_is_said_to_be(log: EventLog, tmp_path: Path) -> None:
    """Reading and following from an archived position name the first position that is left."""
    async with led(log) as leadership:
        await grow(leadership, 150)
        await archive_log(log, tmp_path, now_ms=5, keep=50)

        with pytest.raises(Archived, match=r"position 1 .* archived, the store begins at 101"):
            _ = [each async for each in log.read(Position(1))]
        with pytest.raises(Archived):
            async with log.follow(Position(100)) as entries:
                await anext(entries)
        assert [each.position async for each in log.read()] == list(range(101, 151))


async def test_an_archive_goes_on_where_it_stopped(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off after a file was written, or in the middle of deleting, the next run takes it up."""
    async with led(log) as leadership:
        await grow(leadership, 250)
        monkeypatch.setattr("controlplane.eventlog.retention._step", _refusing)
        with pytest.raises(RuntimeError, match="power cut"):
            await archive_log(log, tmp_path, now_ms=5, keep=0)
        monkeypatch.undo()
        assert await log.oldest() == 1
        (segment,) = chain_of(tmp_path, log.fleet)
        await log.forget(Mark(), Mark(Position(30), segment.digest))

        done = await archive_log(log, tmp_path, now_ms=6, keep=0)

        assert done.last == 250
        assert (await verify_log(log, tmp_path)).entries == 250
        assert [each async for each in log.read()] == []


async def _refusing(*_: object) -> None:
    raise RuntimeError("power cut")


async def test_two_archivers_cannot_both_move_the_mark(log: EventLog) -> None:
    """The second is refused, and nothing has left the store on its account."""
    async with led(log) as leadership:
        await grow(leadership, 10)
        await log.forget(Mark(), Mark(Position(5), "one"))
        with pytest.raises(Refused, match="archived up to 5, not 0"):
            await log.forget(Mark(), Mark(Position(9), "two"))
        assert await log.oldest() == 6
        await log.forget(Mark(Position(5), "one"), Mark(Position(7), "three"))
        for stale in (Mark(Position(5), "one"), Mark(Position(7), "another")):
            with pytest.raises(Refused, match="archived up to 7, not"):
                await log.forget(stale, Mark(Position(9), "two"))
        assert await log.oldest() == 8


async def test_the_answer_to_a_deletion_may_be_lost(world: World, log: EventLog) -> None:
    """The mark tells that it was applied."""
    async with led(log) as leadership:
        await grow(leadership, 10)
        await world.lose_next_answer()
        await log.forget(Mark(), Mark(Position(5), "one"))
        assert await log.mark() == Mark(Position(5), "one")


async def test_a_damaged_snapshot_costs_time_only(
    log: EventLog, store: Store, tmp_path: Path
) -> None:
    """The one before it serves; if none does, the log is folded; if that is gone, it is said."""
    keys = Keys(log.fleet)
    async with led(log) as leadership:
        await grow(leadership, 40)
        await snapshot_now(log, (await fold_to_head(log)).image, 1)
        await grow(leadership, 40)
        await snapshot_now(log, (await fold_to_head(log)).image, 2)
        assert (await fold_to_head(log)).began_at == 80, "the newest one saves the most"
        await store.txn((), (Put(keys.snapshot_chunk(80, 0), b"?" * 100),))
        folded = await fold_to_head(log)
        assert folded.began_at == 40
        with pytest.raises(LogRefuted, match=r"damaged at position 80: its snapshot"):
            await verify_log(log)
        await store.txn((), (Delete(keys.snapshot_chunk(40, 1)),))
        assert (await fold_to_head(log)).began_at == 0
        await archive_log(log, tmp_path, now_ms=3, keep=0)
        await store.txn((), (Delete(*keys.snapshots_all),))
        with pytest.raises(Archived):
            await fold_to_head(log)
        again = await archive_log(log, tmp_path, now_ms=4, keep=0, again=True)
        assert again.snapshot == 80
        assert (await fold_to_head(log)).image == folded.image


async def test_a_snapshot_that_tells_another_story_is_found(log: EventLog) -> None:
    """A snapshot that is whole, and is not what the log folds to, is refuted by name."""
    async with led(log) as leadership:
        await grow(leadership, 40)
        image = (await fold_to_head(log)).image
        state = msgspec.structs.replace(image.state, paused_by="nobody")
        blob = encode_image(log.fleet, Image(state=state, counters=image.counters))
        await log.put_snapshot(Position(40), blob, 1)
        with pytest.raises(LogRefuted, match="position 40: its snapshot is not what the log fold"):
            await verify_log(log)


@pytest.fixture
async def archive(log: EventLog, tmp_path: Path) -> Path:
    """An archive of 330 entries in four segments."""
    async with led(log) as leadership:
        await grow(leadership, 330)
        await archive_log(log, tmp_path, now_ms=5, keep=0)
    return tmp_path


def segments(folder: Path) -> list[Path]:
    """Files of an archive, in order."""
    return sorted(folder.glob("*.segment"))


@pytest.mark.parametrize("where", [10, 200, -5])
async def test_a_flipped_bit_is_found(log: EventLog, archive: Path, where: int) -> None:
    """In a header or among the entries: file and position are named."""
    path = segments(archive)[1]
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)

    with pytest.raises(LogRefuted, match=rf"position 101: {path.name}: .* does not match"):
        verify_archive(archive, log.fleet)


@pytest.mark.parametrize(("number", "words"), [(0, "1 to 100"), (2, "201 to 300")])
async def test_a_missing_segment_is_found(
    log: EventLog, archive: Path, number: int, words: str
) -> None:
    """Its positions are named."""
    segments(archive)[number].unlink()
    with pytest.raises(LogRefuted, match=f"a segment is missing: none has positions {words}"):
        verify_archive(archive, log.fleet)


async def test_a_missing_last_segment_is_found(log: EventLog, archive: Path) -> None:
    """The store knows how far the archive must reach; so does the next run of archive."""
    segments(archive)[-1].unlink()
    assert verify_archive(archive, log.fleet).last == 300
    for attempt in (verify_log(log, archive), archive_log(log, archive, now_ms=1)):
        with pytest.raises(LogRefuted, match=r"missing: the archive ends at position 300, .* 330"):
            await attempt


async def test_a_re_ordered_event_is_found(log: EventLog, tmp_path: Path) -> None:
    """Even in a segment whose digests are right, because its writer was wrong."""
    raws = list(entries_of(1, 10))
    raws[3], raws[4] = raws[4], raws[3]
    entries = [Entry(Position(number), raw) for number, raw in enumerate(raws, 1)]
    with pytest.raises(LogCorrupt, match=r"position 4: .* an entry that says 5 stands here"):
        write_segment(tmp_path, log.fleet, Mark(), entries)
    assert segments(tmp_path) == []


async def test_a_segment_in_anothers_place_is_found(log: EventLog, tmp_path: Path) -> None:
    """A segment with the right positions that follows another history is refused."""
    here, there = tmp_path / "here", tmp_path / "there"
    marks = []
    for folder, change in ((here, 0), (there, 1)):
        folder.mkdir()
        first = [Entry(Position(n), raw) for n, raw in enumerate(entries_of(1, 5), 1)]
        if change:
            paused = DecisionsPaused(by="eve")
            told = Recorded(position=Position(1), at_ms=0, writer="operator.eve", event=paused)
            first[0] = Entry(Position(1), encode_recorded(told))
        marks.append(write_segment(folder, log.fleet, Mark(), first).mark)
    second = [Entry(Position(n), raw) for n, raw in enumerate(entries_of(6, 5), 6)]
    foreign = write_segment(there, log.fleet, marks[1], second)
    foreign.path.rename(here / foreign.path.name)
    with pytest.raises(LogCorrupt, match=r"position 6: .* does not follow the segment before it"):
        chain_of(here, log.fleet)


async def test_an_archive_of_another_fleet_is_refused(log: EventLog, archive: Path) -> None:
    """Nobody archives two fleets into one folder."""
    other = EventLog(log.store, f"{log.fleet}-b")
    with pytest.raises(LogCorrupt, match=f"a segment of fleet {log.fleet}"):
        await archive_log(other, archive, now_ms=1)


async def test_an_import_is_the_same_log(log: EventLog, archive: Path) -> None:
    """Byte for byte, into a fleet that has none; a second import is refused."""
    other = EventLog(log.store, f"{log.fleet}-b")

    async def archived() -> AsyncIterator[Entry]:
        for segment in chain_of(archive, log.fleet):
            for entry in read_segment(segment):
                yield entry

    async with led(other) as leadership:
        assert await import_log(other, leadership, archived()) == 330
        with pytest.raises(LogRefuted, match="not empty"):
            await import_log(other, leadership, archived())
    imported = [entry.raw async for page in other.read_entries() for entry in page]
    assert imported == [entry.raw async for entry in archived()]
    assert (await verify_log(other)).last == 330


async def test_stats_say_what_is_kept_where(log: EventLog, archive: Path) -> None:
    """Numbers of the log, and an alarm at 60 % of the quota."""
    stats = await stats_of(log, now_ms=10_005, quota_bytes=2**40)
    assert (stats.head, stats.oldest, stats.live_entries) == (330, 331, 0)
    assert (stats.snapshot_position, stats.snapshot_age_s, stats.archived_to) == (330, 10.0, 330)
    assert stats.alarm == ""
    full = await stats_of(log, now_ms=1, quota_bytes=max(int(stats.store_bytes / 0.6), 1))
    assert "refuses leases too" in full.alarm
