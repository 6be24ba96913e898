"""Logs again: told, decided anew, measured."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from simulator.calibrating import calibrate
from simulator.errors import BadLog
from simulator.faults import draw
from simulator.parts import STRATEGIES
from simulator.replay import read_log, replay, whatif
from simulator.scenario import FleetTable, JobTable, Scenario
from simulator.world import World
from statemachine import events as e
from statemachine.codec import encode_recorded
from statemachine.policy import Policy


def log_of(scenario: Scenario, strategy: str = "standby-swap") -> list[e.Recorded]:
    """A whole log, every node in it from its launch on."""
    kept: list[e.Recorded] = []
    trace = draw(scenario, 0)
    World(scenario, STRATEGIES[strategy], trace, explicit=True, keep=kept.append).run()
    return kept


def test_a_log_tells_its_incidents(small: Scenario) -> None:
    """Each loss of a simulated log is an incident, with the downtime that the world had."""
    found = replay(log_of(small))
    losses = [each for each in found.incidents if each.kind == "loss"]

    assert losses
    assert all(each.downtime_ms is not None and each.downtime_ms > 0 for each in losses[:3])


def test_the_same_policy_decides_the_same(small: Scenario) -> None:
    """A log under its own policy has no decision that differs."""
    log = log_of(small)

    assert whatif(log, replay_policy(log)).divergence is None


def replay_policy(log: list[e.Recorded]) -> Policy:
    """The policy that was in force in a log."""
    return Policy()


def test_the_first_decision_that_differs_is_named(small: Scenario) -> None:
    """A policy that never promotes a cold node parts where one was promoted, and says why."""
    tight = replace(small, fleet=FleetTable(standbys=1, spares=40))
    log = log_of(replace(tight, faults=replace(tight.faults, per_1000_node_days=20_000.0)))
    cold = [
        entry
        for entry in log
        if isinstance(entry.event, e.TransitionPlanned) and "(cold" in entry.event.reason
    ]
    found = whatif(log, Policy(cold_promotion=False)).divergence

    assert cold
    assert found is not None
    assert found.position < cold[0].position
    assert found.position >= cold[0].position - 5
    assert "cold" in found.because
    assert found.kinds
    assert found.other_kinds == ()


def test_a_log_of_eight_thousand_nodes_replays(small: Scenario) -> None:
    """A log with 8,192 nodes in it folds, and is decided anew."""
    wide = replace(
        small,
        days=0.02,
        job=JobTable(axes={"pp": 16, "cp": 8, "dp": 64, "tp": 8}),
        fleet=FleetTable(standbys=2),
        faults=replace(small.faults, per_1000_node_days=10.0, planned_per_unplanned=0.0),
    )
    log = log_of(wide)
    found = replay(log)

    assert found.nodes >= 8192
    assert [each for each in found.incidents if each.kind == "loss"]


def test_what_is_not_measured_stays_assumed(small: Scenario) -> None:
    """Components that the log holds are measured, the others keep their source."""
    found = {each.component: each for each in calibrate(log_of(small), small)}

    assert found["delta_s"].seconds == pytest.approx(19.7, abs=0.5)
    assert found["delta_s"].source == "measured"
    assert found["load_s"].seconds is None
    assert "TrainMover" in found["load_s"].source


def test_a_log_with_a_hole_is_refused(small: Scenario, tmp_path: Path) -> None:
    """A missing entry, and a line that is none, are named by line."""
    lines = [encode_recorded(entry) for entry in log_of(replace(small, days=0.05))]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(lines[:3] + lines[4:]))
    with pytest.raises(BadLog, match="line 4: position 5 follows 3"):
        read_log(path)
    path.write_bytes(lines[0] + b"\nnothing\n")
    with pytest.raises(BadLog, match="line 2"):
        read_log(path)
