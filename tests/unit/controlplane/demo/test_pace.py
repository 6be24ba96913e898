"""How steps followed each other before, while and after a node was grey."""

import pytest

from controlplane.demo.outcome import PaceOutcome
from controlplane.demo.steps import JobStep, Pace, pace
from controlplane.demo.tables import pace_words


def steps(*gaps_ms: float) -> list[JobStep]:
    """Steps that followed each other so."""
    at_ms, found = 0.0, []
    for number, gap_ms in enumerate(gaps_ms):
        at_ms += gap_ms
        found.append(JobStep(step=number, at_ms=at_ms, gap_ms=gap_ms, loss=None))
    return found


def test_mean_and_variation_are_those_of_the_span() -> None:
    """Only steps committed within it count."""
    found = pace(steps(*[100.0] * 10, *[150.0, 130.0] * 5), 1000.5, 10_000)

    assert found is not None
    assert (found.steps, found.mean_ms) == (10, 140.0)
    assert found.variation == pytest.approx(10 / 140)


def test_one_pause_in_fifty_steps_is_no_variation() -> None:
    """A swap's pause is told elsewhere."""
    found = pace(steps(*[100.0] * 49, 900.0), 0, 10_000)

    assert found is not None
    assert found.variation == 0.0


def test_too_few_steps_have_no_pace() -> None:
    """Two steps say nothing."""
    assert pace(steps(100.0, 100.0), 0, 1000) is None


def test_what_a_grey_node_costs_is_told_beside_what_guard_published() -> None:
    """Mean and variation before, while and after, both ratios, and how much of Guard's effect."""
    found = PaceOutcome(
        before=Pace(steps=40, mean_ms=100.0, variation=0.05),
        during=Pace(steps=20, mean_ms=135.0, variation=0.1),
        after=Pace(steps=40, mean_ms=100.0, variation=0.05),
        slowed=1.35,
        calmed=2.0,
    )

    assert pace_words("n2", found) == (
        "steps around n2: before 100 ms +-5%, grey 135 ms +-10%, after 100 ms +-5%; 1.35x slower "
        "and 2.0x as uneven while it was grey (Guard, published: 1.7x, 20x); of Guard's effect 50% "
        "in the mean"
    )
