"""What `explain` prints: each decision carries its reason, its position, the policy in force."""

from __future__ import annotations

from typing import Any

import pytest

from statemachine import events as e
from statemachine.evolve import evolve
from statemachine.state import FleetState
from tests.properties.test_fold_laws import SEEDS, log_of

EVIDENT = (e.NodeLost, e.NodeQuarantined, e.NodeDrained, e.ActWithheld)
"""Decisions that always rest on something that the log says."""


def decided(seed: int) -> list[tuple[FleetState, e.Recorded]]:
    """Every decision of a seed's log, with the state that it was entered into."""
    state, found = FleetState(), []
    for entry in log_of(seed).log:
        if entry.writer == "core":
            found.append((state, entry))
        state = evolve(state, entry)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_decision_explains_itself(seed: int) -> None:
    """Whatever the core decides names a reason, the position that it was decided from, and the
    version of the policy that was in force there.
    """
    for state, entry in decided(seed):
        where = f"seed {seed}, position {entry.position}: {entry.event}"
        event: Any = entry.event
        assert event.reason.strip(), where
        assert 0 < entry.decided_from <= state.position, where
        assert entry.policy_version == state.policy_version, where


@pytest.mark.parametrize("seed", SEEDS)
def test_evidence_is_in_the_log_before_the_decision(seed: int) -> None:
    """Evidence is a position that the log held by then, and a node is taken out on evidence only,
    unless it came back to what it was out for already.
    """
    for state, entry in decided(seed):
        event: Any = entry.event
        where = f"seed {seed}, position {entry.position}: {entry.event}"
        evidence = getattr(event, "evidence", ())
        assert all(0 < at <= state.position for at in evidence), where
        if isinstance(entry.event, EVIDENT):
            node = state.nodes[entry.event.node]
            assert evidence or node.quarantine or node.drained_by or node.retired, where


def test_the_logs_hold_every_kind_of_decision() -> None:
    """The seeds lead to most kinds of decisions, so that what holds of them says something."""
    kinds = {type(entry.event).__name__ for seed in SEEDS for _, entry in decided(seed)}

    print(sorted(kinds))
    assert len(kinds) >= 15, sorted(kinds)
