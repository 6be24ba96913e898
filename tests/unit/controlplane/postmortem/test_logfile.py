"""A log from a file: damage is named with its place, and nothing behind it is taken for true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.postmortem.logfile import LogFile
from statemachine.errors import UsageError

Change = Callable[[list[bytes]], list[bytes]]


def without(number: int) -> Change:
    """Lose the line of a position."""
    return lambda lines: lines[: number - 1] + lines[number:]


def flipped(number: int) -> Change:
    """Flip a bit of the brace that opens a line."""
    return lambda lines: [
        bytes([raw[0] ^ 1]) + raw[1:] if n == number else raw for n, raw in enumerate(lines, 1)
    ]


def exchanged(number: int) -> Change:
    """Exchange a line with the next."""
    return lambda lines: [
        *lines[: number - 1],
        lines[number],
        lines[number - 1],
        *lines[number + 1 :],
    ]


def test_a_whole_log_is_whole(demo_log: Path) -> None:
    """Every entry comes, in order, and there is nothing to be said first."""
    log = LogFile(demo_log)

    positions = [recorded.position for recorded in log.entries()]

    assert positions == list(range(1, 93))
    assert log.is_whole
    assert log.notes() == []


@pytest.mark.parametrize(
    ("change", "kind", "trusted", "words"),
    [
        (without(40), "hole", 39, "position 40 is missing"),
        (lambda lines: lines[:39] + lines[45:], "hole", 39, "position 40 to 45 are missing"),
        (flipped(40), "unreadable", 39, "line 40"),
        (exchanged(40), "hole", 39, "position 40 is missing"),
        (lambda lines: [*lines[:40], lines[39], *lines[40:]], "disorder", 40, "comes again"),
        (lambda lines: [*lines[:40], lines[40][:50]], "cut", 40, "the file ends within this line"),
        (without(1), "beginning", 91, "begins with position 2"),
    ],
)
def test_damage_is_named_and_what_is_before_it_is_trusted(
    damaged: Callable[[Change], Path], change: Change, kind: str, trusted: int, words: str
) -> None:
    """A hole, a flipped bit, disorder, a cut end, a lost beginning: each by its own name."""
    log = LogFile(damaged(change))

    entries = list(log.entries())

    assert len(entries) == trusted
    assert [each.kind for each in log.damage] == [kind]
    assert words in log.notes()[0]
    assert not log.is_whole


def test_who_insists_reads_on_behind_a_hole(damaged: Callable[[Change], Path]) -> None:
    """With `beyond` the rest is read too, and the damage is still told."""
    log = LogFile(damaged(without(40)), beyond=True)

    assert len(list(log.entries())) == 91
    assert [each.kind for each in log.damage] == ["hole"]


def test_events_of_a_newer_release_are_said_and_passed(damaged: Callable[[Change], Path]) -> None:
    """An unknown tag is no damage, but what it changed is missing, so it is said."""
    log = LogFile(damaged(lambda ls: [raw.replace(b'"PeerReset"', b'"PeerMelted"') for raw in ls]))

    assert len(list(log.entries())) == 92
    assert log.is_whole
    assert log.newer == {"PeerMelted": 2}
    assert "2 PeerMelted" in log.notes()[0]


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_a_file_without_a_log_is_refused(tmp_path: Path, content: bytes) -> None:
    """An empty file is not an empty fleet."""
    target = tmp_path / "empty.jsonl"
    target.write_bytes(content)

    with pytest.raises(UsageError, match="no entry"):
        list(LogFile(target).entries())
