"""From the evidence of windows to a verdict, and back: tiers, hysteresis, reasons.

What belongs here: one node's evidence and the verdict that stands on it give the next judgement,
or none. No rounds, no other nodes (`detector`).
"""

from collections import Counter
from collections.abc import Sequence
from math import log, sqrt
from typing import Final

from msgspec import Struct

from statemachine.comparison import Evidence
from statemachine.detector_policy import DetectorPolicy
from statemachine.events import Indicator, Verdict, VerdictIssued, VerdictWithdrawn
from statemachine.ids import Incarnation, JobId, NodeId
from statemachine.vitals import WAIT_MS, median

VERSION: Final = "peers-1"
"""Name of this rule set; each verdict carries it."""

Judgement = VerdictIssued | VerdictWithdrawn

_MEDIAN_TO_MEAN: Final = 1.2533  # standard error of a median over that of a mean
_SEVERITY: Final = (Verdict.SUSPECT, Verdict.DEGRADED, Verdict.FAULTY)


class Case(Struct, frozen=True, kw_only=True):
    """Everything a judgement of one node rests on; `evidence` in order of windows."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    evidence: tuple[Evidence, ...]
    standing: VerdictIssued | None = None


class _Tier(Struct, frozen=True):
    """A verdict, the windows in a row that it takes, and their least median ratio."""

    verdict: Verdict
    windows: int
    ratio: float


def _tiers(policy: DetectorPolicy) -> tuple[_Tier, ...]:
    """Return the literal table of verdicts, the worst first."""
    return (
        _Tier(Verdict.FAULTY, policy.windows_to_judge, policy.faulty_ratio),
        _Tier(Verdict.DEGRADED, policy.windows_to_degrade, policy.degraded_ratio),
        _Tier(Verdict.SUSPECT, policy.windows_to_suspect, policy.degraded_ratio),
    )


def judge(case: Case, now_ms: int, policy: DetectorPolicy) -> Judgement | None:
    """Judge one node; None when nothing changes.

    A verdict is issued when it is worse than the one that stands, or confirms it when half of its
    validity is over. It is withdrawn when nothing holds any more and enough windows are calm.
    """
    tier = next((tier for tier in _tiers(policy) if _holds(case.evidence, tier, policy)), None)
    if tier is None:
        return _withdrawn(case, policy)
    if case.standing is None or _replaces(tier.verdict, case.standing, now_ms, policy):
        return _issued(case, tier, now_ms, policy)
    return None


def expired(standing: VerdictIssued, now_ms: int) -> VerdictWithdrawn | None:
    """Withdraw a verdict whose validity ended without confirmation."""
    if not 0 < standing.expires_at_ms <= now_ms:
        return None
    return VerdictWithdrawn(
        node=standing.node,
        incarnation=standing.incarnation,
        reason=f"expired: {standing.verdict} was not confirmed again",
    )


def _holds(evidence: Sequence[Evidence], tier: _Tier, policy: DetectorPolicy) -> bool:
    """Tell whether a slowdown lasts long enough, reaches a tier, and stands out of the noise."""
    last = evidence[-tier.windows :]
    accusing = [e for e in last if e.accuses]
    if len(last) < tier.windows or not last[-1].accuses:
        return False
    if len(accusing) < tier.windows - tier.windows // 4:
        return False
    ratio = median([e.ratio for e in last])
    if ratio < tier.ratio:
        return False
    z = log(ratio) / last[-1].sigma * sqrt(tier.windows) / _MEDIAN_TO_MEAN
    backed = median([len(e.readings) for e in accusing]) > policy.indicators_min
    return z >= (policy.z_min_backed if backed else policy.z_min)


def _replaces(
    verdict: Verdict, standing: VerdictIssued, now_ms: int, policy: DetectorPolicy
) -> bool:
    now, then = _SEVERITY.index(verdict), _SEVERITY.index(standing.verdict)
    half_ms = policy.verdict_ttl_s * 1_000 / 2
    return now > then or (now == then and standing.expires_at_ms - now_ms < half_ms)


def _issued(case: Case, tier: _Tier, now_ms: int, policy: DetectorPolicy) -> VerdictIssued:
    last = case.evidence[-tier.windows :]
    indicators = _indicators(last)
    return VerdictIssued(
        node=case.node,
        incarnation=case.incarnation,
        verdict=tier.verdict,
        reason=_reason(last, indicators),
        job=case.job,
        indicators=indicators,
        window_first=last[0].window,
        window_last=last[-1].window,
        detector=VERSION,
        expires_at_ms=now_ms + round(policy.verdict_ttl_s * 1_000),
    )


def _withdrawn(case: Case, policy: DetectorPolicy) -> VerdictWithdrawn | None:
    standing = case.standing
    if standing is None:
        return None
    again = case.incarnation != standing.incarnation  # windows of a new agent count from 0
    since = [e.ratio for e in case.evidence if again or e.window > standing.window_last]
    calm = since[-policy.windows_to_clear :]
    if len(calm) < policy.windows_to_clear or median(calm) >= policy.clear_ratio:
        return None
    return VerdictWithdrawn(
        node=standing.node,
        incarnation=standing.incarnation,
        reason=f"work {median(calm):.2f}x its peers' median for {len(calm)} windows",
    )


def _indicators(last: Sequence[Evidence]) -> tuple[Indicator, ...]:
    """Return the median of each indicator over the windows in which it spoke, work first."""
    spoke = Counter(reading.metric for e in last for reading in e.readings)
    found = []
    for metric, windows in spoke.items():  # in order of first appearance: work leads in each window
        readings = [r for e in last for r in e.readings if r.metric == metric]
        found.append(
            Indicator(
                metric=metric,
                value=median([r.value for r in readings]),
                peers_median=median([r.peers_median for r in readings]),
                score=median([r.score for r in readings]),
                windows=windows,
                peers=last[-1].peers,
            )
        )
    return tuple(found)


def _reason(last: Sequence[Evidence], indicators: Sequence[Indicator]) -> str:
    """Say it in one sentence for whoever is on call."""
    ratio = median([e.ratio for e in last])
    parts = [f"work {ratio:.2f}x its {last[-1].peers} peers' median for {len(last)} windows"]
    for indicator in indicators:
        if indicator.metric == WAIT_MS:
            gap_ms = indicator.peers_median - indicator.value
            parts.append(f"peers wait {gap_ms:.1f} ms per step more than it does")
    effect = median([e.effect for e in last])
    return "; ".join([*parts, f"steps are {effect:.0%} longer because of it"])
