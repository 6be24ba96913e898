"""What a person may write for a moment of a log."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controlplane.postmortem.moments import moment_of
from statemachine.errors import UsageError

FIRST_MS = 1_795_992_577_610
LAST_MS = FIRST_MS + 57_745


def local(at_ms: int, form: str) -> str:
    """A time as this machine's clock on the wall shows it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime(form)


@pytest.mark.parametrize(
    ("text", "position", "at_ms"),
    [
        ("17", 17, None),
        ("1795992577614", None, 1_795_992_577_614),
        ("+2.5s", None, FIRST_MS + 2_500),
        ("+250ms", None, FIRST_MS + 250),
        ("+3", None, FIRST_MS + 3_000),
        ("+1m", None, FIRST_MS + 60_000),
        (local(FIRST_MS + 9_390, "%H:%M:%S"), None, FIRST_MS + 9_390),
        ("2026-11-29T22:49:37.610Z", None, FIRST_MS),
        ("2026-11-29T23:49:37.610+01:00", None, FIRST_MS),
    ],
)
def test_a_moment_is_a_position_or_a_time(
    text: str, position: int | None, at_ms: int | None
) -> None:
    """Small numbers are positions; the rest are times, to the millisecond."""
    found = moment_of(text, FIRST_MS, LAST_MS)

    assert (found.position, found.at_ms) == (position, at_ms)


def test_a_time_of_day_before_the_log_began_is_of_the_next_day() -> None:
    """In a log that spans midnight, 00:30 comes after 22:49."""
    day_ms = 24 * 3_600_000

    found = moment_of(local(FIRST_MS - 60_000, "%H:%M"), FIRST_MS, FIRST_MS + 2 * day_ms)

    assert found.at_ms is not None
    assert found.at_ms > FIRST_MS


@pytest.mark.parametrize("text", ["", "soon", "25:00", "-3", "+s", "2026-13-01T00:00:00"])
def test_what_is_no_moment_is_refused_with_what_may_be_written(text: str) -> None:
    """The message has the four forms."""
    with pytest.raises(UsageError, match="a position"):
        moment_of(text, FIRST_MS, LAST_MS)
