"""What a person means by a moment of a log: a position, a time, or a distance from its beginning.

What may be written:

- ``17``: the state after position 17;
- ``+93.5s``: 93.5 seconds after the first entry (ms, s, m, h);
- ``03:12`` or ``03:12:07.250``: time of day here, on the log's first day, or the next if the log
  spans midnight;
- ``2026-03-01T03:12:07Z``: a date with a time; without a zone it is local time;
- ``1795992577614``: Unix time in ms.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from statemachine.errors import UsageError
from statemachine.ids import Position

UNIX_MS_MIN: Final = 100_000_000_000
"""Numbers from here on are times (1973 and later), below it positions."""

_DISTANCE: Final = re.compile(r"\+(\d+(?:\.\d+)?)(ms|s|m|h)?\Z")
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?\Z")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, None: 1_000}


class Moment(Struct, frozen=True, kw_only=True):
    """Either a position or a time in Unix ms."""

    position: Position | None = None
    at_ms: int | None = None


def moment_of(text: str, first_at_ms: int, last_at_ms: int) -> Moment:
    """Read a moment; the times are those of the log's first and last entry, Unix ms.

    Raises:
        UsageError: no such moment; says what may be written.
    """
    if text.isdigit():
        number = int(text)
        return Moment(at_ms=number) if number >= UNIX_MS_MIN else Moment(position=Position(number))
    distance = _DISTANCE.match(text)
    if distance is not None:
        return Moment(at_ms=first_at_ms + round(float(distance[1]) * _UNIT_MS[distance[2]]))
    of_day = _CLOCK.match(text)
    if of_day is not None:
        return Moment(at_ms=_on_the_day(of_day, first_at_ms, last_at_ms, text))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise _no_moment(text) from None
    return Moment(at_ms=round(when.astimezone().timestamp() * 1000))


def _on_the_day(of_day: re.Match[str], first_at_ms: int, last_at_ms: int, text: str) -> int:
    first = datetime.fromtimestamp(first_at_ms / 1000, UTC).astimezone()
    try:
        when = first.replace(
            hour=int(of_day[1]),
            minute=int(of_day[2]),
            second=int(of_day[3] or 0),
            microsecond=int((of_day[4] or "").ljust(6, "0")),
        )
    except ValueError:
        raise _no_moment(text) from None
    last = datetime.fromtimestamp(last_at_ms / 1000, UTC).astimezone()
    if when.timestamp() * 1000 < first_at_ms and when + timedelta(days=1) <= last:
        when += timedelta(days=1)
    return round(when.timestamp() * 1000)


def _no_moment(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is no moment: a position (17), a distance from the beginning (+93.5s), a "
        "time of day (03:12:07), a date with a time (2026-03-01T03:12:07Z), or Unix ms"
    )
