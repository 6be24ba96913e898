"""Sweeps: passed only on proof, failed only on the node's own fault, else inconclusive."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachine.baselines import METRICS, learned
from statemachine.errors import BadPolicy
from statemachine.events import SweepOutcome, SweepRequested, SweepRoundFinished
from statemachine.ids import Incarnation, NodeId, SweepId
from statemachine.sweep import (
    SweepPolicy,
    judge_round,
    judge_sweep,
    needs_third_party,
    should_retire,
)

POLICY = SweepPolicy()
DAY_MS = 86_400_000

GOOD = {
    "gemm_gflops_best": 50.0,
    "gemm_gflops_median": 48.0,
    "gemm_cv": 0.02,
    "memory_gbps_best": 12.0,
    "memory_gbps_median": 11.5,
}
LINK = {
    "link_mbps_best": 9_000.0,
    "link_mbps_median": 8_500.0,
    "link_latency_us_p50": 30.0,
    "link_latency_us_cv": 2.0,
}
BASELINE = {**GOOD, **LINK}


def worse(measurements: dict[str, float], factor: float) -> dict[str, float]:
    """The numbers of a machine that takes `factor` times as long."""
    return {
        metric: value * factor if "latency" in metric else value / (1 if "cv" in metric else factor)
        for metric, value in measurements.items()
    }


def finished(name: str, measurements: dict[str, float], failure: str = "") -> SweepRoundFinished:
    """One round of sweep 1 of n1 with partner n2."""
    return SweepRoundFinished(
        sweep=SweepId(1),
        node=NodeId("n1"),
        incarnation=Incarnation(1),
        round=name,
        measurements=measurements,
        failure=failure,
        partner=NodeId("n2"),
    )


def requested(*rounds: str, partner: str = "n2") -> SweepRequested:
    """Sweep 1 of n1."""
    return SweepRequested(
        sweep=SweepId(1),
        node=NodeId("n1"),
        incarnation=Incarnation(1),
        rounds=rounds,
        reason="test",
        partner=NodeId(partner),
    )


FULL = requested("solo", "reference", "pair")


def judged(
    *,
    solo: float = 1.0,
    pair: float = 1.0,
    third: float | None = None,
    reference: float = 1.0,
    baseline: dict[str, float] | None = BASELINE,
    policy: SweepPolicy = POLICY,
) -> tuple[SweepOutcome, str]:
    """The judgement of a whole sweep whose rounds take these times as long as usual."""
    rounds = [
        finished("solo", worse(GOOD, solo)),
        finished("reference", worse(GOOD, reference)),
        finished("pair", worse(LINK, pair)),
    ]
    if third is not None:
        rounds.append(finished("third", worse(LINK, third)))
    return judge_sweep(FULL, rounds, baseline, policy)


def test_a_node_like_the_fleet_passes() -> None:
    """Numbers within the tolerance of the baseline are a pass, with the worst of each round."""
    outcome, reason = judged(solo=1.08, pair=1.1)

    assert outcome is SweepOutcome.PASSED
    assert "solo: " in reason
    assert "pair: " in reason


@pytest.mark.parametrize("factor", [1.12, 1.4, 10.0])
def test_a_node_slow_alone_fails(factor: float) -> None:
    """A node beyond the tolerance of baseline and partner has failed; the reason has numbers."""
    outcome, reason = judged(solo=factor)

    assert outcome is SweepOutcome.FAILED
    assert f"{factor:.2f}x worse, 1.10x allowed" in reason


def test_a_node_slow_alone_fails_though_nothing_else_finished() -> None:
    """What is proven needs no further round."""
    outcome, _ = judge_sweep(FULL, [finished("solo", worse(GOOD, 2))], BASELINE, POLICY)

    assert outcome is SweepOutcome.FAILED


def test_a_node_as_slow_as_its_partner_now_is_inconclusive() -> None:
    """When the known-good partner is slow in the same minutes, the surroundings are."""
    outcome, reason = judged(solo=1.5, reference=1.5)

    assert outcome is SweepOutcome.INCONCLUSIVE
    assert "the surroundings are" in reason


def test_a_node_within_the_baseline_passes_beside_a_faster_partner() -> None:
    """A partner better than the fleet condemns nobody."""
    assert judged(reference=0.5)[0] is SweepOutcome.PASSED


def test_a_slow_pair_alone_blames_nobody() -> None:
    """A link has two ends: without a third party a slow pair is inconclusive, and asks for one."""
    outcome, reason = judged(pair=2.0)

    assert outcome is SweepOutcome.INCONCLUSIVE
    assert "only a third party can tell" in reason
    assert "n2" in reason
    assert needs_third_party([finished("pair", worse(LINK, 2.0))], BASELINE, POLICY)


def test_a_third_party_settles_whose_link_is_slow() -> None:
    """Slow with the third party as well is the node's fault; else it is the partner's link."""
    assert judged(pair=2.0, third=2.0)[0] is SweepOutcome.FAILED

    outcome, reason = judged(pair=2.0, third=1.0)

    assert outcome is SweepOutcome.PASSED
    assert "the slow link is that of n2" in reason


def test_a_slow_third_party_alone_blames_nobody() -> None:
    """A third party slow with the node, while the first partner was not, is the third's affair."""
    assert judged(pair=1.0, third=2.0)[0] is SweepOutcome.PASSED


@pytest.mark.parametrize(
    ("request_", "rounds", "baseline", "says"),
    [
        (FULL, [], BASELINE, "solo did not finish in time"),
        (FULL, [finished("solo", GOOD), finished("reference", GOOD)], BASELINE, "pair did not"),
        (FULL, [finished("solo", GOOD), finished("pair", LINK)], BASELINE, "reference did not"),
        (requested("solo", partner=""), [finished("solo", GOOD)], BASELINE, "no known-good"),
        (requested("solo"), [finished("solo", {}, "probe killed at 20 s")], BASELINE, "killed at"),
        (requested("solo"), [finished("solo", GOOD)], {}, "no baseline for gemm_gflops_best"),
        (requested("solo"), [finished("solo", GOOD)], None, "no baseline for gemm_gflops_best"),
        (requested("solo"), [finished("solo", {})], BASELINE, "nothing that can be judged"),
        (requested("solo"), [finished("solo", {"aura_best": 1.0})], BASELINE, "nothing that can"),
        (requested("solo"), [finished("solo", GOOD | {"gemm_gflops_best": 0.0})], BASELINE, "is 0"),
        (requested("solo"), [finished("solo", GOOD | {"gemm_cv": 0.4})], BASELINE, "disturbed"),
        (requested("pair"), [finished("pair", LINK)], BASELINE, "not measured alone"),
        (requested(), [], BASELINE, "not measured alone"),
    ],
)
def test_what_is_not_proven_is_inconclusive(
    request_: SweepRequested,
    rounds: list[SweepRoundFinished],
    baseline: dict[str, float] | None,
    says: str,
) -> None:
    """Budget, crash, no partner, no baseline, disturbed probe: never a pass, never a fail."""
    outcome, reason = judge_sweep(request_, rounds, baseline, POLICY)

    assert outcome is SweepOutcome.INCONCLUSIVE, reason
    assert says in reason


def test_the_first_pair_of_a_fleet_needs_only_to_finish() -> None:
    """Without any link baseline a finished pair passes and says so; policy may forbid that."""
    outcome, reason = judged(baseline=GOOD)

    assert outcome is SweepOutcome.PASSED
    assert "pair: finished; no baseline to judge it by yet" in reason
    strict = SweepPolicy(unjudged_rounds=())
    assert judged(baseline=GOOD, policy=strict)[0] is SweepOutcome.INCONCLUSIVE


def test_on_a_busy_machine_only_the_best_samples_count() -> None:
    """With medians off, a busy neighbour fails nobody, and a slow machine still fails."""
    busy = GOOD | {"gemm_gflops_median": 20.0, "memory_gbps_median": 4.0, "gemm_cv": 0.8}
    shared = SweepPolicy(judge_medians=False, tolerance=1.2)
    request_ = requested("solo")

    assert judge_sweep(request_, [finished("solo", busy)], GOOD, shared)[0] is SweepOutcome.PASSED
    assert judge_sweep(request_, [finished("solo", busy)], GOOD, POLICY)[0] is SweepOutcome.FAILED
    slow = [finished("solo", worse(busy, 1.4))]
    assert judge_sweep(request_, slow, GOOD, shared)[0] is SweepOutcome.FAILED


FACTORS = (0.9, 1.0, 1.3, 2.0)


def test_over_all_small_sweeps_a_pass_is_proven_and_a_partner_never_blamed() -> None:
    """Enumerates rounds good, slow, failed or missing: the three outcomes keep their meaning."""
    choices: list[float | str] = [*FACTORS, "failed", "missing"]
    for solo, reference, pair, third in itertools.product(choices, repeat=4):
        plan = {"solo": (solo, GOOD), "reference": (reference, GOOD), "pair": (pair, LINK)}
        plan["third"] = (third, LINK)
        rounds = [
            finished(name, {}, "crashed")
            if how == "failed"
            else finished(name, worse(numbers, float(how)))
            for name, (how, numbers) in plan.items()
            if how != "missing"
        ]
        outcome, reason = judge_sweep(FULL, rounds, BASELINE, POLICY)
        case = f"solo={solo} reference={reference} pair={pair} third={third}: {reason}"
        solo_slow = isinstance(solo, float) and solo > POLICY.tolerance
        links = [isinstance(x, float) and x > POLICY.latency_tolerance for x in (pair, third)]

        if outcome is SweepOutcome.PASSED:
            assert isinstance(solo, float), case
            assert isinstance(pair, float), case
            assert not solo_slow, case
            assert "missing" not in (solo, reference, pair), case
            assert "failed" not in (solo, pair, third), case
        if outcome is SweepOutcome.FAILED:
            rates = [isinstance(x, float) and x > POLICY.link_tolerance for x in (pair, third)]
            assert solo_slow or all(rates), case
        if all(links) and not solo_slow:
            assert outcome is SweepOutcome.FAILED, case


def test_the_baseline_is_the_median_of_what_is_judged() -> None:
    """One odd machine does not move it; unknown names, zeros and infinities do not enter."""
    history = [
        {"gemm_gflops_best": 50.0, "aura": 1.0, "memory_gbps_best": 0.0},
        {"gemm_gflops_best": 51.0, "memory_gbps_best": float("inf")},
        {"gemm_gflops_best": 5.0},
    ]

    assert {metric: usual.p50 for metric, usual in learned(history).items()} == {
        "gemm_gflops_best": 50.0
    }
    assert learned([]) == {}


@given(st.sampled_from(sorted(METRICS)), st.floats(1.01, 100))
def test_every_metric_has_a_bad_side(row: str, factor: float) -> None:
    """A number worse than usual by more than its tolerance fails, better by as much passes."""
    metric = f"{row}_best"
    policy = SweepPolicy(tolerance=1.005, link_tolerance=1.005, latency_tolerance=1.005)
    better = METRICS[row].value == "higher"
    low, high = 100 / factor, 100 * factor

    bad = judge_round(
        finished("solo", {metric: low if better else high}), {metric: 100}, {}, policy
    )
    good = judge_round(
        finished("solo", {metric: high if better else low}), {metric: 100}, {}, policy
    )

    assert (bad.outcome, good.outcome) == (SweepOutcome.FAILED, SweepOutcome.PASSED)
    assert bad.compared == good.compared == 1


@pytest.mark.parametrize(
    ("days_ago", "retires"),
    [
        ([], False),
        ([1], False),
        ([1, 3], True),
        ([1, 6.9], True),
        ([1, 7.1], False),
        ([8, 9], False),
    ],
)
def test_the_third_entry_within_a_week_retires(days_ago: list[float], retires: bool) -> None:
    """Entries count within a sliding window, the one being decided included."""
    now_ms = 100 * DAY_MS

    assert should_retire([round(now_ms - d * DAY_MS) for d in days_ago], now_ms, POLICY) is retires


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: SweepPolicy(tolerance=1.0), "sweep.tolerance = 1.0: must be above 1"),
        (lambda: SweepPolicy(deadline_s=0), "sweep.deadline_s = 0: must be above 0"),
        (lambda: SweepPolicy(entries_to_retire=0), "must be >= 1"),
    ],
)
def test_knobs_out_of_range_are_refused(act: Callable[[], SweepPolicy], says: str) -> None:
    """Each refusal names the knob, its value and what is allowed."""
    with pytest.raises(BadPolicy) as refusal:
        act()

    assert says in str(refusal.value)
