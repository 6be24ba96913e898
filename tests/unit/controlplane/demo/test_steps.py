"""The steps of a job are put together from its nodes' diaries."""

from pathlib import Path

import pytest

from controlplane.demo.steps import StepLine, job_steps, ordinary_ms, pause_ms, read_diary


def line(step: int, at_ms: float, loss: float | None = None) -> StepLine:
    """One node's note of a step."""
    return StepLine(step=step, at_ms=at_ms, step_ms=1.0, loss=loss)


def test_a_step_is_committed_when_the_last_rank_has_it() -> None:
    """Gaps are between commits of the job, and the loss is the mean over ranks."""
    steps = job_steps([[line(0, 10, 4.0), line(1, 20, 2.0)], [line(0, 12, 2.0), line(1, 19, 3.0)]])
    assert [(s.step, s.at_ms, s.gap_ms, s.loss) for s in steps] == [
        (0, 12, None, 3.0),
        (1, 20, 8, 2.5),
    ]


def test_a_missing_step_leaves_no_gap_to_measure() -> None:
    """A diary with a hole says nothing about the time in the hole."""
    steps = job_steps([[line(0, 10), line(2, 30)]])
    assert [s.gap_ms for s in steps] == [None, None]


def test_a_pause_is_what_exceeds_an_ordinary_step() -> None:
    """Ordinary steps of 10 ms, and one gap of 75 ms before step 3."""
    diary = [line(0, 0), line(1, 10), line(2, 20), line(3, 95), line(4, 105)]
    steps = job_steps([diary])
    assert ordinary_ms(steps) == 10
    assert pause_ms(steps, 3) == pytest.approx(65)
    assert pause_ms(steps, 4) == 0
    assert pause_ms(steps, 99) is None


def test_nothing_noted_is_nothing_known() -> None:
    """No diary, no steps, no ordinary step."""
    assert job_steps([]) == []
    assert ordinary_ms([]) is None


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    """What was written before it counts, and a node that never trained has no diary."""
    diary = tmp_path / "n0.jsonl"
    diary.write_text('{"step": 0, "at_ms": 1.5, "step_ms": 2}\n{"step": 1, "at_')
    assert [noted.step for noted in read_diary(diary)] == [0]
    assert read_diary(tmp_path / "n9.jsonl") == []
