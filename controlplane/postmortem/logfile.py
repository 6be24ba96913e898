"""An exported log, entry by entry: what is wrong with it is told, what is before that is trusted.

What belongs here: bytes to entries, and damage. Theory of operation. What a log folds to depends on
every entry, so from the first hole or unreadable line on nothing is certain: reading stops there,
and `damage` says so. `beyond` reads on regardless, for who prefers a doubtful answer to none. An
event of a newer release is no damage, but whatever it changed is not in the fold: it is noted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from controlplane.eventlog import LogCorrupt
from controlplane.eventlog.archive import chain_of, read_segment
from statemachine.checksums import has_checksum, is_intact
from statemachine.codec import decode_recorded
from statemachine.errors import CodecError, UsageError
from statemachine.events import Recorded, UnknownEvent
from statemachine.ids import Position

_SHOWN: Final = 5
"""Places of damage that are named one by one."""

PAGE_BYTES: Final = 1 << 20
"""What is read of a file at a time: a call a line costs as much as decoding it."""

_SEGMENT: Final = re.compile(r"\d{20}-\d{20}-[0-9a-f]{16}\.segment\Z")


class Damage(Struct, frozen=True, kw_only=True):
    """One place where a log is not what it must be."""

    where: str
    after: Position
    """The last position before it; 0 if there is none."""
    kind: str
    """``altered``, ``unreadable``, ``hole``, ``disorder``, ``backwards``, ``cut``, ``beginning`` or
    ``impossible``."""
    words: str

    def __str__(self) -> str:
        """``line 17, after position 16: ...``."""
        after = f", after position {self.after}" if self.after else ""
        return f"{self.where}{after}: {self.words}"


class LogFile:
    """One log in a file of JSON lines, or in a folder of archive segments.

    `offset` is where to begin in the file, `after` the position before it: for whoever indexed it.
    """

    def __init__(
        self,
        path: Path,
        *,
        beyond: bool = False,
        fleet: str = "",
        offset: int = 0,
        after: int = 0,
    ) -> None:
        self.path = path
        self.damage: list[Damage] = []
        self.newer: dict[str, int] = {}
        """Tags of events that only a newer release can fold, and how many there were."""
        self.unread = 0
        """Lines behind the damage at which reading stopped."""
        self.offset = offset
        """Where the entry begins that was given last, in bytes of the file."""
        self.reads_on = beyond
        self._fleet = fleet
        self._begin = offset
        self._segment = ""
        self._has_checksums = False
        self._last = Position(after)
        self._at_ms = 0

    def entries(self) -> Iterator[Recorded]:
        """Every entry that can be trusted, in order.

        Raises:
            UsageError: the file cannot be read, or holds no log at all.
        """
        pages = self._segments() if self.path.is_dir() else self._pages()
        stopped = False
        for number, begin, lines in pages:
            offset = begin
            if stopped:
                self.unread += len(lines)
                continue
            for nth, raw in enumerate(lines):
                recorded = self._entry(raw, number + nth, offset)
                if recorded is not None:
                    self.offset = offset
                    yield recorded
                elif len(raw) > 1 and not self.reads_on:
                    stopped = True
                    self.unread += len(lines) - nth
                    break
                offset += len(raw)
        if not self._last and not self.damage:
            raise UsageError(f"{self.path}: no entry; 'changeover log export' writes one a line")

    def _entry(self, raw: bytes, number: int, offset: int) -> Recorded | None:
        """What a line says; None if it says nothing, or nothing that may be believed."""
        if len(raw) <= 1:
            return None
        if self._has_checksums and not is_intact(raw):
            words = "altered since it was written: its checksum differs, or is gone"
            self.hurt(self._where(number, offset), "altered", words)
            if not self.reads_on:
                return None
        try:
            recorded = decode_recorded(raw)
        except CodecError as error:
            self.hurt(self._where(number, offset), "unreadable", str(error))
            return None
        if recorded.position == self._last + 1 and recorded.at_ms >= self._at_ms and self._last:
            self._last, self._at_ms = recorded.position, recorded.at_ms
        elif not self._fits(self._where(number, offset), recorded):
            return None
        if type(recorded.event) is UnknownEvent:
            tag = recorded.event.tag
            self.newer[tag] = self.newer.get(tag, 0) + 1
        return recorded

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong with what was read so far."""
        return not self.damage

    def notes(self) -> list[str]:
        """What must be said before anything else, one line each."""
        said = [f"{self.path}: damaged: {each}" for each in self.damage[:_SHOWN]]
        if len(self.damage) > _SHOWN:
            said.append(f"{self.path}: and {len(self.damage) - _SHOWN} more places")
        if self.unread:
            said.append(
                f"{self.path}: what follows is of the {self._last or 'no'} entries before that; "
                f"{self.unread} lines behind it are left out (--beyond reads them regardless)"
            )
        if self.newer:
            tags = ", ".join(f"{count} {tag}" for tag, count in sorted(self.newer.items()))
            said.append(
                f"{self.path}: of a newer release: {tags}; what they changed is not in the answer"
            )
        return said

    def as_values(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "log": str(self.path),
            "whole": self.is_whole,
            "damage": [
                {"where": d.where, "after": d.after, "kind": d.kind, "words": d.words}
                for d in self.damage
            ],
            "lines_unread": self.unread,
            "newer_events": dict(sorted(self.newer.items())),
        }

    # --- bytes --------------------------------------------------------------------------------

    def _where(self, number: int, offset: int) -> str:
        if self.path.is_dir():
            return self._segment
        return f"byte {offset}" if self._begin else f"line {number}"

    def _pages(self) -> Iterator[tuple[int, int, list[bytes]]]:
        """Some lines at a time, with the number of the first, and the byte at which it begins."""
        number, offset = 1, self._begin
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                while lines := file.readlines(PAGE_BYTES):
                    if number == 1:
                        self._has_checksums = any(has_checksum(raw[:-1]) for raw in lines)
                    cut = lines.pop() if lines[-1][-1:] != b"\n" else b""
                    yield number, offset, lines
                    number += len(lines)
                    offset += sum(map(len, lines))
                    if cut:
                        where = self._where(number, offset)
                        self.hurt(where, "cut", "the file ends within this line")
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror}") from error

    def _segments(self) -> Iterator[tuple[int, int, list[bytes]]]:
        if not any(_SEGMENT.match(each.name) for each in self.path.iterdir()):
            raise UsageError(f"{self.path}: no archive segment in this folder")
        try:
            for segment in chain_of(self.path, self._fleet):
                self._segment = segment.path.name
                yield 0, 0, [entry.raw for entry in read_segment(segment)]
        except LogCorrupt as error:
            self.hurt(str(self.path), "unreadable", str(error))

    # --- entries ------------------------------------------------------------------------------

    def _fits(self, where: str, recorded: Recorded) -> bool:
        """Whether an entry may follow those before it; remembers it if so."""
        position, after = recorded.position, self._last
        fits = True
        if not after and position > 1:
            words = f"the log begins with position {position}: what was before is not in the answer"
            self.hurt(where, "beginning", words)
        elif position <= after:
            self.hurt(where, "disorder", f"position {position} comes again, or too late")
            fits = False
        elif after and position != after + 1:
            missing = f"position {after + 1}" + (
                f" to {position - 1} are" if position > after + 2 else " is"
            )
            self.hurt(where, "hole", f"{missing} missing")
            fits = self.reads_on
        if recorded.at_ms < self._at_ms:
            back_ms = self._at_ms - recorded.at_ms
            self.hurt(where, "backwards", f"its time is {back_ms} ms before the last one's")
            fits = fits and self.reads_on
        if fits:
            self._last, self._at_ms = position, max(self._at_ms, recorded.at_ms)
        return fits

    def hurt(self, where: str, kind: str, words: str) -> None:
        """Note a place of damage."""
        self.damage.append(Damage(where=where, after=self._last, kind=kind, words=words))
