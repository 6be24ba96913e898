"""Deadlines of phases: learned from the run, and different for each of them."""

import pytest
from msgspec.structs import replace
from rpds import HashTrieMap

from simulator.grey.fleet import FleetSpec, windows
from statemachine.detector_policy import DetectorPolicy
from statemachine.hangs import Jobs, forgotten, hangs, moved
from statemachine.ids import JobId, NodeId
from statemachine.vitals import Vitals

POLICY = DetectorPolicy()
BATCHES = list(windows(FleetSpec(nodes=4), 1, 40))


def run(phases: list[tuple[str, int, float]]) -> tuple[Jobs, int]:
    """Play (phase, windows, seconds apart) after each other; the jobs and the clock then."""
    jobs: Jobs = HashTrieMap()
    now_ms = number = 0
    for phase, count, apart_s in phases:
        for _ in range(count):
            now_ms += round(apart_s * 1000)
            batch = [replace(v, phase=phase) for v in BATCHES[number % len(BATCHES)]]
            jobs = moved(jobs, batch, now_ms)
            number += 1
    return jobs, now_ms


def late(jobs: Jobs, now_ms: int, after_s: float) -> list[str]:
    """What is said so long after the last progress."""
    return [str(hang) for hang in hangs(jobs, now_ms + round(after_s * 1000), POLICY)]


def test_a_phase_may_take_a_multiple_of_what_it_takes() -> None:
    """Windows every 30 s: two minutes of silence are the most, and then the job is named."""
    jobs, now_ms = run([("training", 20, 30.0)])

    assert late(jobs, now_ms, 119) == []
    (said,) = late(jobs, now_ms, 121)
    assert said.startswith("job has not moved for 121 s in phase training, after step ")


def test_each_phase_has_a_deadline_of_its_own() -> None:
    """Ten minutes are usual in an evaluation that takes minutes, and a hang in training."""
    training, evaluation = ("training", 10, 30.0), ("evaluation", 10, 200.0)
    jobs, now_ms = run([training])
    assert late(jobs, now_ms, 300)
    jobs, now_ms = run([training, evaluation])
    assert late(jobs, now_ms, 600) == []
    assert late(jobs, now_ms, 900)


def test_a_pause_that_comes_at_times_is_no_hang() -> None:
    """Where an evaluation follows a training step now and then, training may take as long."""
    jobs, now_ms = run(
        [("training", 9, 30.0), ("evaluation", 1, 200.0)] * 2 + [("training", 1, 30.0)]
    )

    assert late(jobs, now_ms, 250) == []
    assert late(jobs, now_ms, 900)


@pytest.mark.parametrize("known", [0, 5])
def test_a_phase_of_which_little_is_known_gets_the_floor(known: int) -> None:
    """The first checkpoint of a run has no deadline but the generous one."""
    jobs, now_ms = run([("training", 10, 30.0), ("checkpoint", 1 + known, 5.0)])

    assert late(jobs, now_ms, POLICY.hang_floor_s - 1) == []
    assert late(jobs, now_ms, POLICY.hang_floor_s + 1)


def test_no_deadline_is_shorter_than_the_least() -> None:
    """A demo's windows of a second do not make half a minute of silence a hang."""
    jobs, now_ms = run([("training", 30, 1.0)])

    assert late(jobs, now_ms, POLICY.hang_least_s - 1) == []
    assert late(jobs, now_ms, POLICY.hang_least_s + 1)


def test_who_is_behind_is_named_and_who_is_gone_is_not() -> None:
    """The nodes whose last step is before that of the others; a lost node is behind nobody."""
    jobs, now_ms = run([("training", 20, 30.0)])
    ahead: list[Vitals] = [replace(v, last_step=1_000) for v in BATCHES[0] if v.node != "n2"]
    jobs = moved(jobs, ahead, now_ms)
    (hang,) = hangs(jobs, now_ms + 500_000, POLICY)
    assert hang.behind == ("n2",)
    assert "behind the others: n2" in str(hang)
    (hang,) = hangs(forgotten(jobs, NodeId("n2")), now_ms + 500_000, POLICY)
    assert hang.behind == ()
    assert hang.job == JobId("job")
