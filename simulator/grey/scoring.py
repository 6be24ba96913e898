"""Who was taken for what: the detector of production and its rivals over labelled fleets.

What belongs here: running, and counting. An *outcome* is one node of one episode; a healthy node
that was acted upon, and a faulty one before its onset, are false positives; a fault of 10 % or more
that was not acted upon within its hour is a false negative. A verdict that only watches is neither.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from simulator.grey.fleet import name_of, windows
from simulator.grey.rivals import RIVALS
from simulator.grey.suite import ACT_FROM, Episode, effect_of
from simulator.stats import quantiles
from statemachine.detector import DetectorState, observe
from statemachine.detector_policy import DetectorPolicy
from statemachine.events import Verdict, VerdictIssued

ACTED: Final = (Verdict.DEGRADED, Verdict.FAULTY)
"""Verdicts that cost a node its slot."""


class Outcome(Struct, frozen=True, kw_only=True):
    """One node of one episode. `size` is 1 for a healthy one; windows count from its onset.

    `wrongly` says that it was acted upon while healthy; `rivals` holds, by rule, the worst score
    while healthy and the worst while faulty.
    """

    nodes: int
    kind: str
    size: float
    healthy_windows: int
    faulty_windows: int = 0
    wrongly: bool = False
    watched_after: int | None = None
    acted_after: int | None = None
    worst: str = "healthy"
    cause_is_right: bool | None = None
    rivals: dict[str, tuple[float, float]] = field(default_factory=dict)


class _Seen(Struct):
    """What was said of one node so far."""

    verdicts: list[tuple[int, VerdictIssued]] = field(default_factory=list)
    rivals: dict[str, list[float]] = field(default_factory=dict)


def run(episode: Episode, policy: DetectorPolicy, *, rivals: bool = True) -> list[Outcome]:
    """Play one episode to the detector, and to its rivals; one outcome per node."""
    spec = episode.spec
    state = DetectorState()
    seen = {name_of(n): _Seen() for n in range(spec.nodes)}
    onsets = {name_of(n): f.onset for n, f in spec.faults.items()}
    rules = {name: rule() for name, rule in RIVALS.items()} if rivals else {}
    for window, batch in enumerate(windows(spec, episode.seed, episode.windows)):
        now_ms = batch[-1].ended_at_ms
        observed = observe(state, batch, now_ms, policy)
        state = observed.state
        for judgement in observed.judgements:
            if isinstance(judgement, VerdictIssued):
                seen[judgement.node].verdicts.append((window, judgement))
        if batch[0].phase != "training":
            continue
        for name, rule in rules.items():
            for node, score in rule.see(batch).items():
                kept = seen[node].rivals.setdefault(name, [0.0, 0.0])
                sick = window >= onsets.get(node, episode.windows)
                kept[sick] = max(kept[sick], score)
    return [_outcome(episode, number, seen[name_of(number)]) for number in range(spec.nodes)]


def _outcome(episode: Episode, number: int, seen: _Seen) -> Outcome:
    fault = episode.spec.faults.get(number)
    onset = fault.onset if fault is not None else episode.windows
    acted = [(at, v) for at, v in seen.verdicts if v.verdict in ACTED]
    outcome = Outcome(
        nodes=episode.spec.nodes,
        kind="healthy" if fault is None else str(fault.kind),
        size=1.0 if fault is None else round(effect_of(fault, episode.spec), 3),
        healthy_windows=onset,
        wrongly=any(at < onset for at, _ in acted),
        rivals={name: (kept[0], kept[1]) for name, kept in seen.rivals.items()},
    )
    if fault is None:
        return outcome
    watched = next((at - onset + 1 for at, _ in seen.verdicts if at >= onset), None)
    after = [(at - onset + 1, v) for at, v in acted if at >= onset]
    ranks = [v.verdict for at, v in seen.verdicts if at >= onset]
    worst = max(ranks, key=_SEVERITY.index, default="healthy")
    right = any(v.cause.startswith(fault.group()) for _, v in after) if after else None
    return replace(
        outcome,
        faulty_windows=episode.windows - onset,
        watched_after=watched,
        acted_after=after[0][0] if after else None,
        worst=str(worst),
        cause_is_right=right,
    )


_SEVERITY: Final = ("healthy", Verdict.SUSPECT, Verdict.DEGRADED, Verdict.FAULTY)


class Rates(Struct, frozen=True, kw_only=True):
    """Error rates over outcomes; None where there was nothing to count."""

    healthy_node_hours: float
    faulty_node_hours: float
    true_positives: int
    false_negatives: int
    false_positives: int
    true_negatives: int
    fpr_per_node_day: float | None
    fnr_at_10pct: float | None
    fpr_at_most: float | None = None
    """What the rate of false positives is below with 95 % confidence, by their count."""
    windows_to_detect_p50: float | None = None
    windows_to_detect_p90: float | None = None


def rates(outcomes: Sequence[Outcome], window_s: float) -> Rates:
    """Count what the detector did."""
    counted = [o for o in outcomes if _must_act(o)]
    after = [o.acted_after for o in counted if o.acted_after is not None]
    found = _rates(
        outcomes,
        window_s,
        missed=sum(o.acted_after is None for o in counted),
        wrong=sum(o.wrongly for o in outcomes),
    )
    if not after:
        return found
    middle, late = quantiles(after, (0.5, 0.9))
    return replace(found, windows_to_detect_p50=middle, windows_to_detect_p90=late)


def rival_rates(outcomes: Sequence[Outcome], rule: str, threshold: float, window_s: float) -> Rates:
    """Count what a rival would have done at some threshold: one window over it is enough."""
    counted = [o for o in outcomes if _must_act(o) and rule in o.rivals]
    return _rates(
        outcomes,
        window_s,
        missed=sum(o.rivals[rule][1] <= threshold for o in counted),
        wrong=sum(o.rivals[rule][0] > threshold for o in outcomes if rule in o.rivals),
    )


def _rates(outcomes: Sequence[Outcome], window_s: float, *, missed: int, wrong: int) -> Rates:
    must = sum(map(_must_act, outcomes))
    healthy_h = sum(o.healthy_windows for o in outcomes) * window_s / 3600
    return Rates(
        healthy_node_hours=healthy_h,
        faulty_node_hours=sum(o.faulty_windows for o in outcomes) * window_s / 3600,
        true_positives=must - missed,
        false_negatives=missed,
        false_positives=wrong,
        true_negatives=sum(o.healthy_windows > 0 for o in outcomes) - wrong,
        fpr_per_node_day=wrong / (healthy_h / 24) if healthy_h else None,
        fnr_at_10pct=missed / must if must else None,
        fpr_at_most=at_most(wrong) / (healthy_h / 24) if healthy_h else None,
    )


def at_most(count: int, confidence: float = 0.95) -> float:
    """The mean of a Poisson count below which it is, given that `count` were seen."""
    low, high = float(count), 2.0 * count + 10.0
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        term = total = exp(-middle)
        for k in range(1, count + 1):
            term *= middle / k
            total += term
        low, high = (middle, high) if total > 1 - confidence else (low, middle)
    return high


_CLOSE: Final = 1e-6


def _must_act(outcome: Outcome) -> bool:
    return outcome.size >= ACT_FROM - 1e-9


def table(outcomes: Iterable[Outcome], by: str) -> dict[str, Counter[str]]:
    """Count verdicts in each row: by ``size``, ``kind`` or ``nodes``; healthy nodes are a row."""
    found: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        row = str(getattr(outcome, by)) if outcome.faulty_windows else "healthy"
        said = outcome.worst if outcome.faulty_windows else _wrong_or_not(outcome)
        found.setdefault(row, Counter())[said] += 1
    return dict(sorted(found.items()))


class Severity(Struct, frozen=True, kw_only=True):
    """What became of faults of about one size. Windows count from the onset, to the first verdict
    of any kind and to the first that was acted upon; None where there was none.
    """

    faults: int
    seen: float
    """Share that got any verdict within their hour, be it one that only watches."""
    acted: float
    """Share that was acted upon."""
    windows_to_see_p50: float | None
    windows_to_see_p90: float | None
    windows_to_act_p50: float | None
    windows_to_act_p90: float | None


SEVERITIES: Final = {
    "below 4 %": (1.0, 1.04),
    "5 % (4 to 7)": (1.04, 1.07),
    "10 % (7 to 14)": (1.07, 1.14),
    "20 % (14 to 28)": (1.14, 1.28),
    "40 % and more (from 28)": (1.28, 1e9),
}
"""Sizes from and below which faults count as one severity."""


def by_severity(outcomes: Iterable[Outcome]) -> dict[str, Severity]:
    """How often and how soon faults of each severity were seen and acted upon."""
    faulty = [outcome for outcome in outcomes if outcome.faulty_windows]
    found = {}
    for name, (least, below) in SEVERITIES.items():
        rows = [outcome for outcome in faulty if least <= outcome.size < below]
        if rows:
            seen = [o.watched_after for o in rows if o.watched_after is not None]
            acted = [o.acted_after for o in rows if o.acted_after is not None]
            see_p50, see_p90 = quantiles(seen, (0.5, 0.9)) if seen else (None, None)
            act_p50, act_p90 = quantiles(acted, (0.5, 0.9)) if acted else (None, None)
            found[name] = Severity(
                faults=len(rows),
                seen=len(seen) / len(rows),
                acted=len(acted) / len(rows),
                windows_to_see_p50=see_p50,
                windows_to_see_p90=see_p90,
                windows_to_act_p50=act_p50,
                windows_to_act_p90=act_p90,
            )
    return found


def _wrong_or_not(outcome: Outcome) -> str:
    return "acted upon" if outcome.wrongly else "healthy"


def causes(outcomes: Iterable[Outcome]) -> Mapping[str, float]:
    """Share of verdicts on each kind of fault that named the right kind of cause."""
    judged: dict[str, list[bool]] = {}
    for outcome in outcomes:
        if outcome.cause_is_right is not None:
            judged.setdefault(outcome.kind, []).append(outcome.cause_is_right)
    return {kind: sum(right) / len(right) for kind, right in sorted(judged.items())}


def scaled(policy: DetectorPolicy, by: float) -> DetectorPolicy:
    """The policy with every threshold of strength scaled: what a ROC walks along.

    Ratios scale in what they are above 1; standard deviations scale as they are.
    """
    ratios = ("watch_ratio", "degraded_ratio", "faulty_ratio", *_LONG)
    changed = {name: 1 + (getattr(policy, name) - 1) * by for name in ratios}
    changed |= {name: getattr(policy, name) * by for name in _DEVIATIONS}
    changed["effect_min"] = policy.effect_min * by
    changed["clear_ratio"] = min(policy.clear_ratio, changed["watch_ratio"])
    return replace(
        policy, **{name: max(value, _LEAST.get(name, 0)) for name, value in changed.items()}
    )


_LONG: Final = ("long_suspect_ratio", "long_degraded_ratio")
_DEVIATIONS: Final = ("z_min", "z_min_backed", "z_min_grave", "z_min_long")
_LEAST: Final = {"long_suspect_ratio": 1.01, **dict.fromkeys(_DEVIATIONS, 1.0)}
