"""From the evidence of windows to a verdict, and back: tiers, hysteresis, reasons.

What belongs here: one node's evidence and the verdict that stands on it give the next judgement,
or none. No rounds; of other nodes only how far their means are apart (`detector`).

Theory of operation. A verdict is reached in one of two ways. *In a row*: a few windows of which
most accuse, whose median ratio reaches the tier. *In the long run*: many windows of which a good
part accuses, whose mean ratio reaches it; so noise averages out, and so a node is found that is
slow every other minute. Either way the mean must stand out of how far the means of as many windows
are apart among all nodes of the cohort. That is measured, not computed from the noise of single
windows: what slows a node for a while lasts, and machines differ a little, always.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import exp, log
from typing import Final

from msgspec import Struct

from statemachine.comparison import Aspect, Evidence, lengthened
from statemachine.detector_policy import DetectorPolicy
from statemachine.events import Indicator, Verdict, VerdictIssued, VerdictWithdrawn
from statemachine.ids import Incarnation, JobId, NodeId
from statemachine.vitals import WAIT_MS, median

VERSION: Final = "peers-3"
"""Name of this rule set; each verdict carries it."""

Judgement = VerdictIssued | VerdictWithdrawn

_SEVERITY: Final = (Verdict.SUSPECT, Verdict.DEGRADED, Verdict.FAULTY)


LOG_RATIO_MAX: Final = 0.5
"""A window counts for no more than this in a mean: a stall of a minute is not an hour of 1.1x."""


class Trace(Struct, frozen=True, kw_only=True):
    """What is remembered of one node in one aspect, in order of windows.

    `recent` is evidence as it was; `logs` and `spoke` are the log ratio of each window, capped, and
    whether it accused, for as many windows as the longest tier takes.
    """

    recent: tuple[Evidence, ...] = ()
    logs: tuple[float, ...] = ()
    spoke: tuple[bool, ...] = ()

    def after(self, evidence: Evidence, policy: DetectorPolicy) -> "Trace":
        """The trace with one more window."""
        longest = max(policy.windows_long, default=1)
        capped = max(-LOG_RATIO_MAX, min(LOG_RATIO_MAX, log(evidence.ratio)))
        return Trace(
            recent=(*self.recent, evidence)[-policy.windows_to_clear :],
            logs=(*self.logs, capped)[-longest:],
            spoke=(*self.spoke, evidence.accuses)[-longest:],
        )

    def mean(self, windows: int) -> float:
        """Mean log ratio of the last windows."""
        return sum(self.logs[-windows:]) / windows


Apart = Callable[[Aspect, int], float]
"""How far the mean log ratios of so many windows are apart in a cohort: a standard deviation, the
mean of what it was in many rounds."""


class Case(Struct, frozen=True, kw_only=True):
    """Everything a judgement of one node rests on."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    traces: Mapping[Aspect, Trace]
    apart: Apart
    standing: VerdictIssued | None = None


class _Tier(Struct, frozen=True):
    """A verdict, the windows that it takes, their least ratio, and whether they are many."""

    verdict: Verdict
    windows: int
    ratio: float
    is_long: bool = False


@lru_cache(maxsize=8)
def _tiers(policy: DetectorPolicy) -> tuple[_Tier, ...]:
    """Return the literal table of verdicts, the worst first."""
    many = policy.windows_long
    return (
        _Tier(Verdict.FAULTY, policy.windows_to_judge, policy.faulty_ratio),
        *(_Tier(Verdict.FAULTY, windows, policy.faulty_ratio, is_long=True) for windows in many),
        _Tier(Verdict.DEGRADED, policy.windows_to_degrade, policy.degraded_ratio),
        *(
            _Tier(Verdict.DEGRADED, windows, policy.degraded_ratio, is_long=True)
            for windows in many[:1]
        ),
        *(
            _Tier(Verdict.DEGRADED, windows, policy.long_degraded_ratio, is_long=True)
            for windows in many[1:]
        ),
        _Tier(Verdict.SUSPECT, policy.windows_to_suspect, policy.degraded_ratio),
        *(
            _Tier(Verdict.SUSPECT, windows, policy.long_suspect_ratio, is_long=True)
            for windows in many
        ),
    )


class _Finding(Struct, frozen=True):
    """The worst tier that holds, and in which aspect."""

    tier: _Tier
    aspect: Aspect
    trace: Trace


def horizons(policy: DetectorPolicy) -> tuple[int, ...]:
    """Over how many windows means are compared: those of all tiers."""
    return tuple(sorted({tier.windows for tier in _tiers(policy)}))


def judge(case: Case, now_ms: int, policy: DetectorPolicy) -> Judgement | None:
    """Judge one node; None when nothing changes.

    A verdict is issued when it is worse than the one that stands, or confirms it when half of its
    validity is over. It is withdrawn when nothing holds any more and enough windows are calm.
    """
    found = _found(case, policy)
    if found is None:
        return _withdrawn(case, policy)
    if case.standing is None or _replaces(found.tier.verdict, case.standing, now_ms, policy):
        return _issued(case, found, now_ms, policy)
    return None


_RECENT: Final = 24
_FEW: Final = 2
"""Fewer accusing windows among so many recent ones reach no tier: most nodes, most of the time."""


def _found(case: Case, policy: DetectorPolicy) -> _Finding | None:
    accused = [(a, t) for a, t in case.traces.items() if t.spoke[-_RECENT:].count(True) >= _FEW]
    if not accused:
        return None
    for tier in _tiers(policy):
        for aspect, trace in accused:
            holds = _holds_long if tier.is_long else _holds
            if holds(trace, tier, policy) and _stands_out(case, aspect, trace, tier, policy):
                return _Finding(tier, aspect, trace)
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


def _holds(trace: Trace, tier: _Tier, policy: DetectorPolicy) -> bool:  # noqa: ARG001  (as below)
    """Tell whether windows in a row accuse, and their median ratio reaches a tier."""
    last = trace.recent[-tier.windows :]
    if len(last) < tier.windows or not last[-1].accuses:
        return False
    if sum(e.accuses for e in last) < tier.windows - tier.windows // 4:
        return False
    ratio = median([e.ratio for e in last])
    return ratio > 1 and lengthened(ratio, last[-1].share) >= tier.ratio


def _holds_long(trace: Trace, tier: _Tier, policy: DetectorPolicy) -> bool:
    """Tell whether a good part of many windows accuses, of the last ones too, and their mean ratio
    reaches a tier.
    """
    count = tier.windows
    if len(trace.logs) < count:
        return False
    for windows in (count // 4, count):
        if trace.spoke[-windows:].count(True) < policy.long_share_min * windows:
            return False
    ratio = exp(trace.mean(count))
    return ratio > 1 and lengthened(ratio, trace.recent[-1].share) >= tier.ratio


def _stands_out(
    case: Case, aspect: Aspect, trace: Trace, tier: _Tier, policy: DetectorPolicy
) -> bool:
    """Tell whether the mean of a tier's windows stands out of what it is among equal nodes."""
    apart = case.apart(aspect, tier.windows)
    if tier.is_long:
        return trace.mean(tier.windows) >= policy.z_min_long * apart
    last = trace.recent[-tier.windows :]  # as they were: a median needs no cap
    z = median([log(e.ratio) for e in last]) / apart
    accusing = [e for e in last if e.accuses]
    if tier.verdict is Verdict.SUSPECT or not _is_backed(accusing, policy):
        return z >= policy.z_min
    is_clear = tier.verdict is Verdict.FAULTY and all(e.is_clear for e in accusing)
    return z >= (policy.z_min_grave if is_clear else policy.z_min_backed)


def _is_backed(accusing: Sequence[Evidence], policy: DetectorPolicy) -> bool:
    return median([len(e.readings) for e in accusing]) > policy.indicators_min


def _replaces(
    verdict: Verdict, standing: VerdictIssued, now_ms: int, policy: DetectorPolicy
) -> bool:
    now, then = _SEVERITY.index(verdict), _SEVERITY.index(standing.verdict)
    half_ms = policy.verdict_ttl_s * 1_000 / 2
    return now > then or (now == then and standing.expires_at_ms - now_ms < half_ms)


def _issued(case: Case, found: _Finding, now_ms: int, policy: DetectorPolicy) -> VerdictIssued:
    windows = min(found.tier.windows, len(found.trace.recent))
    last = found.trace.recent[-windows:]
    indicators = _indicators(last)
    return VerdictIssued(
        node=case.node,
        incarnation=case.incarnation,
        verdict=found.tier.verdict,
        reason=_reason(found, last, indicators),
        job=case.job,
        indicators=indicators,
        window_first=max(0, last[-1].window - found.tier.windows + 1),
        window_last=last[-1].window,
        detector=VERSION,
        expires_at_ms=now_ms + round(policy.verdict_ttl_s * 1_000),
        cause=_cause(last),
    )


def _cause(last: Sequence[Evidence]) -> str:
    """What most of the accusing windows look like; of equals the first."""
    causes = Counter(e.cause for e in last if e.accuses and e.cause)
    return causes.most_common(1)[0][0] if causes else ""


def _withdrawn(case: Case, policy: DetectorPolicy) -> VerdictWithdrawn | None:
    standing = case.standing
    if standing is None:
        return None
    again = case.incarnation != standing.incarnation  # windows of a new agent count from 0
    worst, windows = 0.0, policy.windows_to_clear
    for trace in case.traces.values():
        calm = [e for e in trace.recent if again or e.window > standing.window_last][-windows:]
        if len(calm) < windows:
            return None
        worst = max(worst, median([lengthened(max(1.0, e.ratio), e.share) for e in calm]))
    if worst >= policy.clear_ratio:
        return None
    return VerdictWithdrawn(
        node=standing.node,
        incarnation=standing.incarnation,
        reason=f"at most {worst:.2f}x its peers' median for {windows} windows",
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


def _reason(found: _Finding, last: Sequence[Evidence], indicators: Sequence[Indicator]) -> str:
    """Say it in one sentence for whoever is on call."""
    windows, peers = found.tier.windows, last[-1].peers
    if found.tier.is_long:
        ratio, over = exp(found.trace.mean(windows)), f"over {windows} windows"
    else:
        ratio, over = median([e.ratio for e in last]), f"for {windows} windows"
    accusing = [e for e in last if e.accuses] or list(last)
    effect = median([e.effect for e in accusing])
    if found.aspect is Aspect.LINK:
        what = f"its links carry {1 / ratio:.2f}x what those of its {peers} peers do {over}"
    else:
        what = f"work {ratio:.2f}x its {peers} peers' median {over}"
        if found.aspect is Aspect.WHOLE:
            what += ", some steps more than others"
    parts = [what]
    for indicator in indicators:
        if indicator.metric == WAIT_MS:
            gap_ms = indicator.peers_median - indicator.value
            parts.append(f"peers wait {gap_ms:.1f} ms per step more than it does")
    parts.append(f"steps are {effect:.0%} longer because of it")
    if cause := _cause(last):
        parts.append(cause)
    return "; ".join(parts)
