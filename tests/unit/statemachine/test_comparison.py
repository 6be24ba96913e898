"""One round: evidence from one window per node."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemachine.comparison import Comparison, compare
from statemachine.ids import NodeId
from statemachine.vitals import WAIT_MS, WORK_MS, Metric
from tests.unit.statemachine.grey_fleet import POLICY, STILL, Fleet, altered, without


def compared(work_ms: list[float], *, exchange_ms: float = 5.0) -> Comparison:
    """Compare nodes that work so long and wait for the slowest of them."""
    batch = next(Fleet(nodes=len(work_ms)).windows(1, 1))
    longest = max(work_ms)
    metrics = [{WORK_MS: flat(own), WAIT_MS: flat(longest - own + exchange_ms)} for own in work_ms]
    windows = [altered(v, metrics=m) for v, m in zip(batch, metrics, strict=True)]
    return compare({v.node: v for v in windows}, {}, POLICY)


def flat(value: float) -> Metric:
    """A metric that was the same in each of 20 steps."""
    return Metric(count=20, mean=value, p50=value, p95=value)


def accused(comparison: Comparison) -> list[str]:
    """Names of the nodes that the round accuses."""
    return [str(node) for node, evidence in comparison.evidence.items() if evidence.accuses]


def test_the_slow_one_is_left_out_of_its_own_peers() -> None:
    """The ratio is to the median of the others, so one of four cannot hide in it."""
    comparison = compared([10.0, 10.0, 10.0, 14.0])

    assert accused(comparison) == ["n3"]
    evidence = comparison.evidence[NodeId("n3")]
    assert evidence.ratio == pytest.approx(1.4)
    assert evidence.effect == pytest.approx(0.4), "step time was not measured: work stands for it"
    assert evidence.peers == 3


def test_noise_of_the_round_lowers_the_score() -> None:
    """The same ratio scores less among peers that differ more."""
    even = compared([10.0, 10.05, 9.95, 10.0, 12.0])
    uneven = compared([10.0, 11.0, 9.0, 10.0, 12.0])

    scores = [c.evidence[NodeId("n4")].readings[0].score for c in (even, uneven)]
    assert scores[0] > 2 * scores[1]


def test_even_nodes_do_not_make_noise_vanish() -> None:
    """Equal nodes leave the floor of the policy, so that a hair's breadth is no evidence."""
    comparison = compared([10.0, 10.0, 10.0, 10.0])

    assert comparison.noise == 0.0
    assert all(e.sigma > POLICY.noise_floor for e in comparison.evidence.values())


@settings(max_examples=50)
@given(st.lists(st.floats(5, 50), min_size=4, max_size=9), st.sampled_from([0.125, 2.0, 1024.0]))
def test_units_do_not_matter(work_ms: list[float], factor: float) -> None:
    """Measuring everything in another unit accuses the same nodes."""
    other = compared([value * factor for value in work_ms], exchange_ms=5.0 * factor)

    assert accused(compared(work_ms)) == accused(other)


@settings(max_examples=50)
@given(st.lists(st.floats(5, 50), min_size=4, max_size=9))
def test_at_most_half_are_accused_and_never_the_fastest(work_ms: list[float]) -> None:
    """Peers are the measure: a majority cannot be slow, nor can whoever works least."""
    named = accused(compared(work_ms))

    assert len(named) <= len(work_ms) // 2
    assert f"n{work_ms.index(min(work_ms))}" not in named


def test_nobody_to_compare_with_is_said_for_each() -> None:
    """Each node that could not be compared is named with the reason."""
    batch = next(STILL.windows(1, 1))
    windows = {v.node: v if v.node != "n0" else without(v, WORK_MS) for v in batch}
    comparison = compare(windows, {}, POLICY)

    assert comparison.evidence == {}
    assert comparison.left_out[NodeId("n0")] == "it is blind: no work_ms"
    assert comparison.left_out[NodeId("n1")] == "3 comparable, 4 needed"
