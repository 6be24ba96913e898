"""Time travel over logs that were recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from statemachine import events as e
from statemachine.codec import decode_recorded
from statemachine.errors import NotInHistory
from statemachine.evolve import evolve
from statemachine.history import History, state_at
from statemachine.ids import Position
from statemachine.state import FleetState

RECORDED = sorted((Path(__file__).parents[2] / "history").glob("*.events.jsonl"))


def entries_of(path: Path) -> list[e.Recorded]:
    """The entries of a recorded log."""
    return [decode_recorded(raw) for raw in path.read_bytes().splitlines()]


def states_of(log: list[e.Recorded]) -> list[FleetState]:
    """The state before the log and after each of its entries."""
    states = [FleetState()]
    for entry in log:
        states.append(evolve(states[-1], entry))
    return states


@pytest.mark.parametrize("keep_every", [1, 3, 8, 1000])
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.partition(".")[0])
def test_every_position_has_its_state(path: Path, keep_every: int) -> None:
    """The state at any position is the one that the fold went through, however few are kept."""
    log = entries_of(path)
    states = states_of(log)
    history = History(log, keep_every=keep_every)

    assert [history.state_at(position) for position in range(len(log) + 1)] == states
    assert list(history.states()) == states
    assert history.state_at() == history.head == states[-1]
    assert len(history) == len(log)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.partition(".")[0])
def test_every_time_has_its_state(path: Path) -> None:
    """The state at a time holds every event that is not later, and no other."""
    log = entries_of(path)
    history = History(log)
    times = {entry.at_ms + shift for entry in log for shift in (-1, 0, 1)}

    for at_ms in sorted(at for at in times if at >= log[0].at_ms):
        until = [entry.position for entry in log if entry.at_ms <= at_ms]
        assert history.position_at(at_ms) == len(until)
        assert history.state_at(at_ms=at_ms).position == len(until), f"at {at_ms} ms"
        assert state_at(log, at_ms=at_ms) == history.state_at(at_ms=at_ms)


def test_asked_once_it_is_the_same() -> None:
    """The state that is asked for once, with nothing kept, is that of the history."""
    log = entries_of(RECORDED[0])
    history = History(log)

    for position in (0, 1, len(log) // 2, len(log)):
        assert state_at(log, position) == history.state_at(position)
    assert state_at(log) == history.head


def test_a_history_that_begins_at_a_snapshot() -> None:
    """From a snapshot on, positions and times behind it are those of the whole log."""
    log = entries_of(RECORDED[0])
    states = states_of(log)
    cut = len(log) // 3
    history = History(log[cut:], start=states[cut], keep_every=4)

    assert [history.state_at(at) for at in range(cut, len(log) + 1)] == states[cut:]
    assert history.start is states[cut]
    with pytest.raises(NotInHistory, match=f"position {cut - 1}: the log holds {cut} to"):
        history.state_at(cut - 1)
    with pytest.raises(NotInHistory, match="the log begins at"):
        history.state_at(at_ms=states[cut].at_ms - 1)


def test_what_lies_between() -> None:
    """The entries between two positions are those behind the first, up to the second."""
    log = entries_of(RECORDED[0])
    history = History(log)

    assert history.entries(3, 7) == log[3:7]
    assert history.entries() == log
    assert history.entries(len(log)) == history.entries(7, 3) == []


@pytest.mark.parametrize(
    ("position", "at_ms"), [(-1, None), (10**6, None), (None, 1), (1, 1)], ids=str
)
def test_what_no_log_holds_is_refused(position: int | None, at_ms: int | None) -> None:
    """Neither a position behind the end, nor a time before the log, nor both gives a state."""
    log = entries_of(RECORDED[0])

    with pytest.raises(NotInHistory, match=r"position|time"):
        History(log).state_at(position, at_ms=at_ms)
    with pytest.raises(NotInHistory, match=r"position|time"):
        state_at(log, position, at_ms=at_ms)


def test_an_empty_log_has_no_time() -> None:
    """Before its first event a log knows the empty fleet, at position 0 and at no time."""
    history = History()

    assert history.state_at(0) == history.state_at() == FleetState()
    with pytest.raises(NotInHistory):
        history.state_at(at_ms=1)


def test_entries_come_once_and_in_order() -> None:
    """An entry that was folded already is refused, and changes nothing."""
    log = entries_of(RECORDED[0])
    history = History(log)

    with pytest.raises(NotInHistory, match="does not follow"):
        history.append(log[3])
    assert history.head == History(log).head


def test_a_hole_belongs_to_the_state_before_it() -> None:
    """A position that a log lacks, as one of which a part was lost, has the state before it."""
    log = entries_of(RECORDED[0])
    cut = log[:4] + log[6:]
    history = History(cut)

    assert history.state_at(5) == history.state_at(6) == history.state_at(4)
    assert history.state_at(7).position == Position(7)


def test_states_share_what_they_agree_in() -> None:
    """Two states of one log hold the same record, not an equal one, of a node in which they
    agree.
    """
    log = entries_of(next(path for path in RECORDED if "demo" in path.name))
    history = History(log, keep_every=1)
    of_one_node = e.WorkerReady | e.WarmupPassed | e.VerdictIssued
    seen = 0
    for entry in log:
        if isinstance(entry.event, of_one_node):
            a, b = history.state_at(entry.position - 1), history.state_at(entry.position)
            others = [name for name in a.nodes if name != entry.event.node]
            seen += len(others)
            assert all(a.nodes[name] is b.nodes[name] for name in others), entry.position
    assert seen
