"""Explaining a node: every decision about it, with the numbers and the entries that it rests on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controlplane.explaining import explain
from statemachine import events as e
from tests.datadriven.stage import Stage
from tests.datadriven.test_scripts import FOLDER, play


def told_of(script: str, subject: str) -> tuple[list[str], list[e.Recorded]]:
    """Why, of one subject of a script, and the log of it."""
    stage = Stage()
    play(stage, Path(FOLDER / f"{script}.txt"))
    return list(explain(stage.log, subject, "lab").why), stage.log


def test_a_sweep_that_failed_is_followed_back_to_the_verdict() -> None:
    """Quarantined by a verdict, swept for it, failed by its rounds: each names the one before."""
    why, log = told_of("grey_node_fails_sweep", "n1")
    named = {
        line.partition(":")[0].split()[0]: [
            type(log[int(at) - 1].event).__name__
            for at in re.findall(r"\d+", line.partition("rests on ")[2])
        ]
        for line in why
    }

    assert named["SweepRequested"] == ["NodeQuarantined"]
    assert named["NodeQuarantined"][0] in ("VerdictIssued", "SweepRequested")
    assert set(named["SweepFinished"]) == {"SweepRequested", "SweepRoundFinished"}


@pytest.mark.parametrize(
    ("script", "subject", "words", "rests_on"),
    [
        ("drain_the_last", "n0", "ActRefused: nobody can take slot 0", "DrainRequested"),
        ("verdict_expires", "n1", "VerdictWithdrawn: expired", "VerdictIssued"),
        ("drain", "n1", "NodeDrained: drained by ann", "DrainRequested"),
    ],
)
def test_what_was_decided_about_a_node_leads_to_who_said_what(
    script: str, subject: str, words: str, rests_on: str
) -> None:
    """The reason in words, then positions, which are entries of the same story."""
    why, log = told_of(script, subject)

    (line,) = [each for each in why if words in each][:1]
    (at,) = re.findall(r"rests on (\d+)", line)
    assert type(log[int(at) - 1].event).__name__ == rests_on
