"""Proving a log: what must hold of every log, whoever wrote it, wherever it stands.

What belongs here: walking a log and stopping at the first fault. Checked are: positions are dense
and begin with 1 (in a file: with whatever its first line says); every entry decodes and says its
own position; `at_ms` never decreases; the numbered invariants hold after every event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from controlplane.errors import LogRefuted
from controlplane.eventlog import EventLog, LogCorrupt
from statemachine.codec import decode_recorded
from statemachine.errors import EventCorrupt, UsageError
from statemachine.events import Recorded, UnknownEvent
from statemachine.evolve import evolve
from statemachine.ids import Position
from statemachine.state import FleetState


class Findings(Struct, frozen=True, kw_only=True):
    """What a log that holds consists of. Times are Unix ms."""

    entries: int
    first: int
    last: int
    began_at_ms: int
    ended_at_ms: int
    kinds: dict[str, int]
    unknown: int

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
            f"{took_s:.1f} s; dense, readable, times in order{newer}"
        )

    def as_values(self) -> dict[str, Any]:
        """The same as JSON values."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {"ok": True, **fields}


class Verifier:
    """Walks one log. `first` is the position that it must begin with, None for any."""

    def __init__(self, source: str, first: Position | None = None) -> None:
        self._source = source
        self._first = first
        self._next = first
        self._state = FleetState()
        self._began_at_ms = self._ended_at_ms = 0
        self._kinds: Counter[str] = Counter()

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
        self._state = evolve(self._state, recorded)

    def _refuted(self, position: int, where: str, fault: str) -> LogRefuted:
        at = f" ({where})" if where else ""
        return LogRefuted(f"{self._source}: position {position}{at}: {fault}")

    def findings(self) -> Findings:
        """What was found, once every entry was taken."""
        return Findings(
            entries=self._kinds.total(),
            first=self._first if self._first is not None and self._kinds else 0,
            last=self._state.position,
            began_at_ms=self._began_at_ms,
            ended_at_ms=self._ended_at_ms,
            kinds=dict(sorted(self._kinds.items())),
            unknown=self._kinds[UnknownEvent.__name__],
        )


async def verify_log(log: EventLog) -> Findings:
    """Verify the live log of a fleet.

    Raises:
        LogRefuted: the first fault.
        StoreUnavailable.
    """
    verifier = Verifier(f"fleet {log.fleet}", Position(1))
    try:
        async for recorded in log.read():
            verifier.take(recorded)
    except LogCorrupt as error:
        raise LogRefuted(f"fleet {log.fleet}: {error}") from error
    return verifier.findings()


def verify_file(path: Path) -> Findings:
    """Verify an exported log.

    Raises:
        LogRefuted: the first fault, with its line.
        UsageError: the file cannot be read.
    """
    verifier = Verifier(str(path))
    for where, raw in _lines(path):
        try:
            recorded = decode_recorded(raw)
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
