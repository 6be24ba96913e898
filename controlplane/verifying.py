"""Proving a log: what must hold of every log, whoever wrote it, wherever it stands.

What belongs here: walking a log and stopping at the first fault. Checked are: positions are dense
and begin with 1 (in a file: with whatever its first line says); every entry decodes and says its
own position; `at_ms` never decreases; no step and no state breaks an invariant; what a writer
numbered stands once and in order of its numbers; every snapshot that is passed holds what the log
folds to. Of an archive also: the chain of its segments, and that it holds all that left the store.

To look at a whole state costs as much as the fleet is large. So one in as many is looked at as the
fleet has nodes, which costs every event the same; a fault is then found between two by halving.

A number that is missing is told and is no fault: a fact that could not enter leaves such a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
from msgspec import Struct

from controlplane.archiving import check_against_mark
from controlplane.errors import LogRefuted
from controlplane.eventlog import EventLog, LogCorrupt, Manifest
from controlplane.eventlog.archive import chain_of, read_segment
from controlplane.eventlog.log import OPERATOR_PREFIX
from controlplane.folding import BLANK, image_of
from controlplane.imaging import Image, SnapshotUnusable
from controlplane.turn import count
from statemachine.checksums import has_checksum, without_checksum
from statemachine.codec import decode_recorded
from statemachine.errors import EventCorrupt, UsageError
from statemachine.events import Recorded, UnknownEvent
from statemachine.evolve import evolve, fold
from statemachine.ids import Position
from statemachine.invariants import check, check_step
from statemachine.state import FleetState

LOOK_EVERY_MIN: Final = 32
"""Events between two looks at the whole state, at least."""

GAPS_MAX: Final = 100
"""Missing facts that are named one by one, for each gap."""


class Findings(Struct, frozen=True, kw_only=True):
    """What a log that holds consists of. Times are Unix ms."""

    entries: int
    first: int
    last: int
    began_at_ms: int
    ended_at_ms: int
    kinds: dict[str, int]
    unknown: int
    gaps: tuple[str, ...] = ()
    """Facts whose writers numbered them and that are not here: ``writer/incarnation/number``."""
    segments: int = 0
    snapshots: int = 0

    def __str__(self) -> str:
        """One line for people."""
        if not self.entries:
            return "the log is empty"
        took_s = (self.ended_at_ms - self.began_at_ms) / 1000
        newer = (
            f"; {self.unknown} events of a newer release were not folded" if self.unknown else ""
        )
        return (
            f"ok: {self.entries} events at positions {self.first} to {self.last} over "
            f"{took_s:.1f} s; dense, readable, times in order{newer}{self._proven()}"
        )

    def _proven(self) -> str:
        """What else was compared with the events."""
        segments = f"; {self.segments} segments in one chain" if self.segments else ""
        snapshots = f"; {self.snapshots} snapshots as folded" if self.snapshots else ""
        some = ", ".join(self.gaps[:5])
        gaps = f"; facts that are missing: {len(self.gaps)}, such as {some}" if some else ""
        return segments + snapshots + gaps

    def as_values(self) -> dict[str, Any]:
        """The same as JSON values."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {"ok": True, **fields}


class Verifier:
    """Walks one log. `first` is the position that it must begin with, None for any."""

    def __init__(
        self, source: str, first: Position | None = None, image: Image | None = BLANK
    ) -> None:
        self.segments = self.snapshots = 0
        self.image = image
        """The fold so far; None before the first snapshot of a log whose beginning is gone."""
        self._source = source
        self._first = first
        self._next = first
        self._last = Position(0)
        self._began_at_ms = self._ended_at_ms = 0
        self._kinds: Counter[str] = Counter()
        self._numbers: dict[tuple[str, int], int] = {}
        self._gaps: list[str] = []
        self._sound = image.state if image is not None else None
        self._since: list[tuple[Recorded, str]] = []  # behind the last state that was looked at

    def take(self, recorded: Recorded, where: str = "") -> None:
        """Check the next entry.

        Raises:
            LogRefuted: names the position and what is wrong there.
        """
        position = recorded.position
        if self._next is None:
            self._first = position
        elif position != self._next:
            raise self._refuted(position, where, f"position {self._next} was expected here")
        if recorded.at_ms < self._ended_at_ms:
            back_ms = self._ended_at_ms - recorded.at_ms
            raise self._refuted(position, where, f"its time is {back_ms} ms before the last one's")
        if self._next is None or position == self._first:
            self._began_at_ms = recorded.at_ms
        self._next = Position(position + 1)
        self._ended_at_ms = recorded.at_ms
        self._kinds[type(recorded.event).__name__] += 1
        self._last = position
        self._check_number(recorded, where)
        if self.image is not None:
            before, after = self.image.state, evolve(self.image.state, recorded)
            for breach in check_step(before, recorded, after):
                raise self._refuted(position, where, str(breach))
            self.image = Image(
                state=after,
                counters=count(
                    self.image.counters, recorded.writer, recorded.incarnation, recorded.counter
                ),
            )
            self._since.append((recorded, where))
            if len(self._since) >= max(LOOK_EVERY_MIN, len(after.nodes)):
                self._look(after)

    def _look(self, state: FleetState) -> None:
        """Check a whole state, and find the event that broke what does not hold of it."""
        if self._since and check(state):
            sound, suspects = self._sound or FleetState(), self._since
            while len(suspects) > 1:
                half = suspects[: len(suspects) // 2]
                middle = fold(sound, [recorded for recorded, _ in half])
                if check(middle):
                    suspects = half
                else:
                    sound, suspects = middle, suspects[len(half) :]
            ((recorded, where),) = suspects
            breach = check(evolve(sound, recorded))[0]
            raise self._refuted(recorded.position, where, str(breach))
        self._sound, self._since = state, []

    def _check_number(self, recorded: Recorded, where: str) -> None:
        """Check that a fact follows its writer's last one; note those that are missing between."""
        counter, life = recorded.counter, (recorded.writer, recorded.incarnation)
        if not counter or recorded.writer.startswith(OPERATOR_PREFIX):
            return  # what controllers state has no number, and an act is the only one of its kind
        last = self._numbers.get(life, 0 if self._first == 1 else counter - 1)
        name = f"{life[0]}/{life[1]}"
        if counter <= last:
            fault = f"fact {counter} of {name} stands behind fact {last} of the same writer"
            raise self._refuted(recorded.position, where, fault)
        self._gaps += [f"{name}/{missing}" for missing in range(last + 1, counter)[:GAPS_MAX]]
        self._numbers[life] = counter

    def compare(self, manifest: Manifest, found: Image) -> None:
        """Check a snapshot of the last position taken; begin with it if nothing was folded.

        Raises:
            LogRefuted: it is not what the log folds to.
        """
        if self.image is not None and found != self.image:
            fault = "its snapshot is not what the log folds to"
            raise self._refuted(manifest.position, "", fault)
        if self.image is None:
            self._sound = found.state
            for breach in check(found.state):
                raise self._refuted(manifest.position, "", f"its snapshot: {breach}")
        self.image = found
        self.snapshots += 1

    def _refuted(self, position: int, where: str, fault: str) -> LogRefuted:
        at = f" ({where})" if where else ""
        return LogRefuted(f"{self._source}: position {position}{at}: {fault}")

    def findings(self) -> Findings:
        """What was found, once every entry was taken.

        Raises:
            LogRefuted: the last state does not hold.
        """
        if self.image is not None:
            self._look(self.image.state)
        return Findings(
            entries=self._kinds.total(),
            first=self._first if self._first is not None and self._kinds else 0,
            last=self._last,
            began_at_ms=self._began_at_ms,
            ended_at_ms=self._ended_at_ms,
            kinds=dict(sorted(self._kinds.items())),
            unknown=self._kinds[UnknownEvent.__name__],
            gaps=tuple(self._gaps),
            segments=self.segments,
            snapshots=self.snapshots,
        )


async def verify_log(log: EventLog, folder: Path | None = None) -> Findings:
    """Verify the log of a fleet: its archive, if a folder is named, then what the store has.

    Raises:
        LogRefuted: the first fault.
        StoreUnavailable.
    """
    oldest = await log.oldest()
    source = f"fleet {log.fleet}"
    verifier = Verifier(source, oldest, BLANK if oldest == 1 else None)
    try:
        if folder is not None:
            verifier = Verifier(source, Position(1))
            mark = await log.mark()
            await anyio.to_thread.run_sync(_take_archive, verifier, folder, log.fleet)
            check_against_mark(chain_of(folder, log.fleet), mark, folder)
        manifests = {each.position: each for each in await log.snapshots()}
        await _compare_at(log, verifier, manifests.get(Position(oldest - 1)))
        async for recorded in log.read(oldest):
            verifier.take(recorded)
            await _compare_at(log, verifier, manifests.get(recorded.position))
    except LogCorrupt as error:
        raise LogRefuted(f"fleet {log.fleet}: {error}") from error
    return verifier.findings()


async def _compare_at(log: EventLog, verifier: Verifier, manifest: Manifest | None) -> None:
    """Compare with the snapshot of this position, if there is one that this release can read."""
    if manifest is not None:
        with suppress(SnapshotUnusable):
            verifier.compare(manifest, await image_of(log, manifest))


def verify_archive(folder: Path, fleet: str) -> Findings:
    """Verify an archive alone.

    Raises:
        LogRefuted: the first fault, with its file and position.
    """
    verifier = Verifier(str(folder), Position(1))
    try:
        _take_archive(verifier, folder, fleet)
    except LogCorrupt as error:
        raise LogRefuted(f"{folder}: {error}") from error
    return verifier.findings()


def _take_archive(verifier: Verifier, folder: Path, fleet: str) -> None:
    for segment in chain_of(folder, fleet):
        for entry in read_segment(segment):
            verifier.take(entry.recorded(), segment.path.name)
        verifier.segments += 1


def verify_file(path: Path) -> Findings:
    """Verify an exported log.

    Raises:
        LogRefuted: the first fault, with its line.
        UsageError: the file cannot be read.
    """
    verifier = Verifier(str(path))
    has: bool | None = None
    for where, raw in _lines(path):
        if has is not None and has_checksum(raw) is not has:
            which = f"the lines before {where} have" if has_checksum(raw) else f"{where} has"
            raise LogRefuted(f"{path}: {where}: {which} lost a checksum: altered since written")
        has = has_checksum(raw)
        try:
            recorded = decode_recorded(without_checksum(raw))
        except EventCorrupt as error:
            raise LogRefuted(f"{path}: {where}: {error}") from error
        verifier.take(recorded, where)
    return verifier.findings()


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                where = f"line {number}"
                if not raw.endswith(b"\n"):
                    raise LogRefuted(f"{path}: {where}: the file ends within it")
                yield where, raw[:-1]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
