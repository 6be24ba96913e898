"""An index answers as the fold does, at every position, and is not believed when it is stale."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from controlplane.postmortem.index import index_path, make_index, open_index
from controlplane.postmortem.logfile import LogFile
from controlplane.postmortem.moments import Moment
from statemachine.errors import NotInHistory
from statemachine.evolve import evolve
from statemachine.ids import Position
from statemachine.state import FleetState


@pytest.fixture
def log(demo_log: Path, tmp_path: Path) -> Path:
    """A log in a folder of its own."""
    return Path(shutil.copy(demo_log, tmp_path / "log.jsonl"))


def test_an_index_gives_every_state_that_the_fold_gives(log: Path) -> None:
    """By position and by time, from an image or from the beginning."""
    index = make_index(LogFile(log), every=16)
    assert index is not None
    state = FleetState()

    for recorded in LogFile(log).entries():
        state = evolve(state, recorded)
        assert index.state_at(Moment(position=recorded.position)) == state
    assert index.state_at(Moment(at_ms=state.at_ms + 5)) == state
    assert index.span == (1795992577610, 1795992635355)


def test_an_index_is_found_again_and_not_for_another_log(log: Path) -> None:
    """A log that grew since is not answered from what it was."""
    make_index(LogFile(log), every=16)
    assert open_index(log) is not None

    with log.open("ab") as file:
        file.write(b"\n")

    assert open_index(log) is None


def test_a_damaged_index_is_passed_over(log: Path) -> None:
    """Garbage in its place is no index."""
    make_index(LogFile(log), every=16)
    index_path(log).write_bytes(b"garbage\n")

    assert open_index(log) is None


def test_a_damaged_log_is_not_indexed(log: Path) -> None:
    """Damage must be said each time, and an index would hide it."""
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:20] + lines[21:]))

    assert make_index(LogFile(log), every=16) is None
    assert not index_path(log).exists()


def test_a_moment_that_the_log_does_not_reach_is_refused(log: Path) -> None:
    """Neither before its beginning nor behind its end."""
    index = make_index(LogFile(log), every=16)
    assert index is not None

    with pytest.raises(NotInHistory):
        index.state_at(Moment(position=Position(93)))
    with pytest.raises(NotInHistory):
        index.state_at(Moment(at_ms=1))
