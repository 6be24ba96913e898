"""Every decision says why, what for, from where and under which policy; on every script."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from statemachine import events as e
from statemachine.invariants_step import DECISIONS
from tests.datadriven.stage import Stage
from tests.datadriven.test_scripts import SCRIPTS, play

DECIDED = (
    *DECISIONS,
    e.VerdictWithdrawn,
    e.SweepExtended,
    e.CertificateIssued,
    e.RemedyRequested,
)
"""What is decided, with what follows from a decision in the same breath."""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_each_decision_of_a_script_names_what_it_rests_on(path: Path, stage: Stage) -> None:
    """A reason in words, entries before it as evidence, the position and policy it is made from."""
    play(stage, path)

    for recorded in stage.log:
        event = recorded.event
        if not isinstance(event, DECIDED) or not recorded.decided_from:
            continue  # a script may state a decision itself, as another controller would
        told = f"{path.name}: {recorded}"
        assert event.reason, told
        assert event.evidence, told
        assert all(0 < at < recorded.position for at in event.evidence), told
        assert recorded.decided_from < recorded.position, told
        if not any(isinstance(each.event, e.PolicyChanged) for each in stage.log):
            assert recorded.policy_version == stage.state.policy_version, told


def test_the_scripts_decide_all_that_is_ever_decided() -> None:
    """Else the test above would say nothing about the kinds that no script has."""
    seen = Counter[type]()
    for path in SCRIPTS:
        stage = Stage()
        play(stage, path)
        seen.update(type(each.event) for each in stage.log if each.decided_from)

    never = {kind.__name__ for kind in DECIDED} - {kind.__name__ for kind in seen}
    assert never == {"ChangesDrafted", "SourcesChosen", "RemedyRequested", "SweepExtended"}, (
        "parts of large plans have the evidence of their whole; triage has tests of its own"
    )


def test_what_is_decided_says_so_in_its_shape() -> None:
    """No kind of decision lacks the field."""
    for kind in DECIDED:
        assert {"reason", "evidence"} <= set(kind.__struct_fields__), kind.__name__
