"""What is usual of a kind of hardware: learned as quantiles, or shipped; what is too much then."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachine.baselines import KNOWN_MIN, LEAST, METRICS, Usual, allowed, learned
from statemachine.events import SweepOutcome, SweepRoundFinished
from statemachine.ids import Incarnation, NodeId, SweepId
from statemachine.policy import knobs_of, policy_of
from statemachine.sweep import REFERENCE, SOLO, SweepPolicy, judge_round, usual

DATA = Path(__file__).parent / "data" / "probes_here.json"
LAX = SweepPolicy(tolerance=1.25, judge_medians=False)


def done(measurements: Mapping[str, float], name: str = SOLO) -> SweepRoundFinished:
    """One finished round."""
    return SweepRoundFinished(
        sweep=SweepId(1),
        node=NodeId("n1"),
        incarnation=Incarnation(1),
        round=name,
        measurements=dict(measurements),
    )


def fleet(spread: float, count: int = 16) -> list[dict[str, float]]:
    """Passed sweeps whose memory rates are evenly within +-`spread` of 20."""
    return [
        {"memory_gbps_best": 20 * (1 + spread * (2 * n / (count - 1) - 1))} for n in range(count)
    ]


def outcome(rate: float, history: list[dict[str, float]]) -> SweepOutcome:
    """How a node with this memory rate is judged beside that history."""
    found = done({"memory_gbps_best": rate})
    return judge_round(found, usual("", history, (), LAX), {}, LAX).outcome


def test_slow_memory_within_what_policy_allows_fails_in_a_fleet_that_is_even() -> None:
    """1.2x passes at the policy's 1.25x while nothing is known, and fails where nodes are within
    3 % of each other; where they are within 15 % it is usual.
    """
    assert outcome(20 / 1.2, fleet(0.03, count=2)) is SweepOutcome.PASSED
    assert outcome(20 / 1.2, fleet(0.03)) is SweepOutcome.FAILED
    assert outcome(20 / 1.2, fleet(0.15)) is SweepOutcome.PASSED
    assert outcome(20 / 1.3, fleet(0.15)) is SweepOutcome.FAILED, "never more than policy allows"


@given(
    st.sampled_from(sorted(METRICS)),
    st.lists(st.floats(1, 100), min_size=1, max_size=40),
    st.floats(1.06, 3),
)
def test_a_tolerance_lies_between_the_least_and_the_policys(
    row: str, values: list[float], most: float
) -> None:
    """However nodes are spread; and it is the policy's own while fewer than eight are known."""
    metric = f"{row}_best"
    (found,) = learned({metric: value} for value in values).values()
    most_allowed = allowed(metric, found, most)

    assert min(LEAST, most) <= most_allowed <= most
    assert found.p10 <= found.p50 <= found.p90
    assert most_allowed == most or found.count >= KNOWN_MIN
    assert allowed(metric, found.p50, most) == most, "a bare median has no spread"


def test_a_wider_fleet_allows_more() -> None:
    """The tolerance grows with the spread on the bad side alone."""
    wide, even = Usual(p10=80, p50=100, p90=101, count=9), Usual(p10=99, p50=100, p90=130, count=9)

    assert allowed("memory_gbps_best", even, 2) == LEAST
    assert allowed("memory_gbps_best", wide, 2) == pytest.approx(1.75)
    assert allowed("link_latency_us_best", even, 2) == pytest.approx(1.9)
    assert allowed("link_latency_us_best", wide, 2) == LEAST


def test_shipped_quantiles_judge_until_eight_sweeps_have_passed() -> None:
    """Data of another fleet stands in for one's own, with its spread; then one's own does."""
    shipped = {"h": {"memory_gbps_best": Usual(p10=19.8, p50=20.0, p90=20.2, count=32)}}
    policy = SweepPolicy(tolerance=1.25, baselines=shipped)  # type: ignore[arg-type]
    partner = done({"memory_gbps_best": 40.0}, REFERENCE)
    slower = [{"memory_gbps_best": 10.0}] * KNOWN_MIN

    assert usual("h", (), [partner], policy)["memory_gbps_best"] == shipped["h"]["memory_gbps_best"]
    assert usual("h", slower[1:], (), policy) == shipped["h"]
    own = usual("h", slower, (), policy)["memory_gbps_best"]
    assert isinstance(own, Usual)
    assert (own.p50, own.count) == (10.0, KNOWN_MIN)
    assert usual("other", (), (), policy) == {}


def test_shipped_data_survive_the_policy_that_ships_them() -> None:
    """Medians and quantiles are read from a policy's knobs, and are the same when written again."""
    data = {"p10": 1.0, "p50": 2.0, "p90": 3.0, "count": 32}
    knobs = {"sweep": {"baselines": {"cpu": {"gemm_gflops_best": 50.0, "memory_gbps_best": data}}}}
    policy = policy_of(knobs)

    assert policy.sweep.baselines["cpu"]["memory_gbps_best"] == Usual(**data)  # type: ignore[arg-type]
    assert knobs_of(policy)["sweep"] == knobs["sweep"]


# --- recorded ---------------------------------------------------------------------------------


def recorded() -> dict[str, list[dict[str, float]]]:
    """Rounds that `benchmarks/sweep_spread.py` recorded on two cores: well, and slow by a kind."""
    found: dict[str, list[dict[str, float]]] = json.loads(DATA.read_text())
    return found


def test_recorded_rounds_of_a_good_node_pass() -> None:
    """Each beside all others; what a probe measures on this machine varies less than is allowed."""
    well = recorded()["well"]
    for number, measurements in enumerate(well):
        others = well[:number] + well[number + 1 :]
        found = judge_round(done(measurements), usual("", others, (), LAX), {}, LAX)
        assert found.outcome is SweepOutcome.PASSED, f"{number}: {found.reason}"


def found(kind: str, well: list[dict[str, float]]) -> list[str]:
    """Why rounds of a kind fail beside those of a good node, of those that do."""
    known = usual("", well, (), LAX)
    judged = [judge_round(done(each), known, {}, LAX) for each in recorded()[kind]]
    return [each.reason for each in judged if each.outcome is SweepOutcome.FAILED]


def test_recorded_rounds_of_a_node_that_computes_slower_by_a_fifth_fail() -> None:
    """All of them, though the policy alone would allow a quarter, and finds hardly one."""
    well, slow = recorded()["well"], recorded()["compute 1.2"]
    reasons = found("compute 1.2", well)

    assert len(reasons) == len(slow)
    assert all("gemm_gflops_best" in reason and "1.05x allowed" in reason for reason in reasons)
    assert len(found("compute 1.2", well[:2])) <= len(slow) // 4


def test_memory_that_others_share_is_judged_by_how_much_it_varies_here() -> None:
    """On a machine whose memory others use, good rounds are 1.2x apart themselves: the tolerance
    is the policy's, and more would fail good nodes. Still more is found than by it alone.
    """
    well = recorded()["well"]
    rates = sorted(each["memory_gbps_best"] for each in well)

    assert rates[-1] / rates[0] > 1.2
    assert len(found("memory 1.2", well)) > len(found("memory 1.2", well[:2]))
