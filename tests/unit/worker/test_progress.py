"""A run that a script holds back itself says so."""

import logging
from typing import Any, cast

import pytest

from statemachine import messages as m
from worker.progress import Progress
from worker.step import Step


def voted_down(index: int) -> Step:
    """A step for which some rank did not vote."""
    return Step(index, lambda _step, _ok: False, lambda _loss: None)


def test_a_step_that_the_script_votes_down_again_and_again_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as one whose loss is NaN each time: thrice, then ever more rarely, with its number."""
    progress = Progress(cast("Any", None))

    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            progress.declined(voted_down(7))

    said = [record.getMessage() for record in caplog.records]
    assert [line.split(",")[0] for line in said] == [
        "step 7 was voted down 3 times by the script",
        "step 7 was voted down 30 times by the script",
    ]


def test_a_scaler_that_fits_and_a_lost_rank_are_nothing_to_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two refusals of each step may be a loss scale that halves; a loss is told elsewhere."""
    progress = Progress(cast("Any", None))
    lost = voted_down(9)
    lost.order = (m.Release(), None)

    with caplog.at_level(logging.WARNING):
        for index in (1, 1, 2, 2, 3, 3):
            progress.declined(voted_down(index))
        for _ in range(5):
            progress.declined(lost)

    assert not caplog.records
