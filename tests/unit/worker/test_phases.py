"""Phases of a script: which windows say them, and who is told when one begins."""

import pytest

from statemachine.errors import BadName
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.vitals import TRAINING
from worker import phases
from worker.phases import phase
from worker.pulse import Pulse


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told, and nothing was said yet."""
    monkeypatch.setattr(phases, "_told", lambda: None)
    phases.taken()


def pulse() -> Pulse:
    """Of one process, without groups."""
    return Pulse(NodeId("n0"), Incarnation(1), JobId("j"), 0.0, [])


def closed(of: Pulse) -> str:
    """Close the window; its phase."""
    return of.close(Slot(0), Role("only"), Epoch(1)).phase


def test_the_window_in_which_a_phase_was_says_so_and_no_other() -> None:
    """Whether it took the whole window or a part of one step."""
    beats = pulse()
    assert closed(beats) == TRAINING
    beats.begin_step()
    with phase("evaluation"):
        pass
    beats.end_step(0)

    assert closed(beats) == "evaluation"
    assert closed(beats) == TRAINING


def test_whoever_is_told_closes_a_window_before_the_phase_and_another_after_it() -> None:
    """So the fleet knows what is waited for; the step that holds the phase is of it, too."""
    beats = pulse()
    said: list[str] = []
    phases.tell(lambda: said.append(closed(beats)))
    beats.begin_step()
    with phase("checkpoint"):
        assert said == ["checkpoint"]
    beats.end_step(0)

    assert closed(beats) == "checkpoint"
    assert closed(beats) == TRAINING


def test_of_phases_within_each_other_the_outer_one_counts() -> None:
    """An evaluation that writes a file is an evaluation; and one that fails is over."""
    told: list[str] = []
    phases.tell(lambda: told.append("began"))

    def fails() -> None:
        with phase("evaluation"):
            with phase("checkpoint"):
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()

    assert phases.taken() == "evaluation"
    assert told == ["began"]
    with phase("checkpoint"):
        pass
    assert phases.taken() == "checkpoint"


def test_a_phase_is_a_plain_word() -> None:
    """It becomes a part of pages and files."""
    with pytest.raises(BadName), phase("an evaluation/of all"):
        pass
