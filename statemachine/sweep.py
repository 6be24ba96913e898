"""What a sweep's numbers amount to: passed, failed, or inconclusive, which is never a pass.

What belongs here: judging measurements, choosing a partner, counting entries into quarantine. No
probe runs here; what is measured is `worker.probes`' affair, and its names and what is usual of
each, `baselines`'.

Theory of operation. A measurement is bad when it is worse, by more than its tolerance, than the
fleet's own baseline for that hardware *and* than the partner's numbers of the same minutes: if the
partner is as slow, the fault lies in the surroundings, and nothing is concluded. A bad link has two
ends, so a bad pair alone blames nobody; only a third party, slow with the node as well, does.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Final

from msgspec import Struct, field

from statemachine.baselines import (
    KNOWN_MIN,
    Baseline,
    Usual,
    allowed,
    family,
    learned,
    loss,
    middle_of,
)
from statemachine.errors import BadPolicy
from statemachine.events import SweepOutcome, SweepRequested, SweepRoundFinished

SOLO: Final = "solo"
"""Compute and memory of the node alone."""

REFERENCE: Final = "reference"
"""The same of its partner, in the same minutes."""

PAIR: Final = "pair"
"""The link between the node and its partner."""

THIRD: Final = "third"
"""The link between the node and a third party, when the pair was slow."""

TOGETHER: Final = (PAIR, THIRD)
"""Rounds between two nodes; they begin when each was measured alone, so that neither round
disturbs the other, and are left out for a node that has failed alone."""


_ALWAYS: Final = ("best",)
_STEADY: Final = ("median", "p50")
_BETWEEN_NODES: Final = ("link_", "collective_")


class SweepPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All knobs of sweeps. Tolerances are ratios to a median; durations in seconds."""

    tolerance: float = 1.1
    """How much worse than the baseline compute and memory may be at most. Where the spread of the
    fleet's passed sweeps is known it says how much, within this (`baselines.allowed`)."""
    link_tolerance: float = 1.25
    """The same for rates between nodes, which share a network with others."""
    latency_tolerance: float = 1.5
    """The same for latencies, which have a long tail."""
    judge_medians: bool = True
    """Whether medians count beside the best sample; on a machine shared with a run they say how
    busy it was, not how fast it is."""
    cv_max: float = 0.15
    """Coefficient of variation above which a probe of compute or memory was disturbed and nothing
    is concluded; not asked where medians do not count. Links vary by nature."""
    partner_needed: bool = True
    """Whether a sweep without a partner can pass."""
    baselines: dict[str, dict[str, float | Usual]] = field(default_factory=dict)
    """What is usual by kind of hardware, for a fleet that has not certified enough nodes of it yet:
    a median, which the first sweep that passes replaces, or quantiles, which eight do.
    `changeover baselines --toml` of a fleet that has is such data."""
    unjudged_rounds: tuple[str, ...] = (PAIR, THIRD)
    """Rounds that need only finish while the fleet has no baseline for them: their numbers, once
    certified, become it."""
    remedies: tuple[str, ...] = ()
    """What is done, one after the other, about a node that failed its sweep, such as ``reset``,
    ``reboot``, ``reimage``, ``vendor``; each is followed by a sweep, and the last that did not help
    by retirement. None: it is swept again after a pause, and an operator mends it."""
    remedy_deadline_s: float = 3600.0
    """How long a remedy may take."""
    qualify: bool = False
    """Whether a node without a valid certificate must pass a sweep before its first duty."""
    deadline_s: float = 60.0
    """Time budget of a whole sweep; what did not finish by then is inconclusive."""
    certificate_ttl_s: float = 7 * 86_400.0
    """How long a certificate counts."""
    entries_to_retire: int = 3
    """Entries into quarantine within the window that retire a node."""
    retire_window_days: float = 7.0
    """Length of that window, in days."""

    def __post_init__(self) -> None:
        """Refuse knobs out of range.

        Raises:
            BadPolicy: names the knob, its value and what is allowed.
        """
        for name in ("tolerance", "link_tolerance", "latency_tolerance"):
            if not getattr(self, name) > 1:
                raise BadPolicy(f"sweep.{name} = {getattr(self, name)}: must be above 1")
        positive = ("cv_max", "deadline_s", "remedy_deadline_s", "certificate_ttl_s")
        for name in (*positive, "retire_window_days"):
            if not getattr(self, name) > 0:
                raise BadPolicy(f"sweep.{name} = {getattr(self, name)}: must be above 0")
        if self.entries_to_retire < 1:
            raise BadPolicy(f"sweep.entries_to_retire = {self.entries_to_retire}: must be >= 1")

    def tolerance_of(self, metric: str) -> float:
        """Return how much worse than the baseline a metric may be, as a ratio."""
        if "latency" in metric:
            return self.latency_tolerance
        return self.link_tolerance if metric.startswith(_BETWEEN_NODES) else self.tolerance


class RoundJudgement(Struct, frozen=True, kw_only=True):
    """What one round amounts to. `compared` is how many of its numbers could be judged."""

    round: str
    outcome: SweepOutcome
    reason: str
    compared: int = 0


def usual(
    hardware: str,
    history: Sequence[Mapping[str, float]],
    rounds: Iterable[SweepRoundFinished],
    policy: SweepPolicy,
) -> dict[str, float | Usual]:
    """Return what is usual for a kind of hardware: by what the fleet certified, or else by what the
    policy ships for it; the partner's numbers of the same minutes count as one more node's.
    """
    shipped = policy.baselines.get(hardware) or {}
    medians = {metric: n for metric, n in shipped.items() if not isinstance(n, Usual)}
    known = history or ([medians] if medians else [])
    partner = [done.measurements for done in rounds if done.round == REFERENCE and not done.failure]
    found: dict[str, float | Usual] = {**learned((*known, *partner))}
    if len(history) < KNOWN_MIN:
        found |= {metric: value for metric, value in shipped.items() if isinstance(value, Usual)}
    return found


def judge_round(
    finished: SweepRoundFinished,
    baseline: Baseline,
    reference: Mapping[str, float],
    policy: SweepPolicy,
) -> RoundJudgement:
    """Judge one round against the baseline and the partner's numbers, which may be empty."""
    name = finished.round

    def concluded(outcome: SweepOutcome, reason: str, compared: int = 0) -> RoundJudgement:
        return RoundJudgement(round=name, outcome=outcome, reason=reason, compared=compared)

    if finished.failure:
        return concluded(SweepOutcome.INCONCLUSIVE, f"{name}: {finished.failure}")
    judged = {m: v for m, v in sorted(finished.measurements.items()) if _is_judged(m, policy)}
    broken = [metric for metric, value in judged.items() if not (isfinite(value) and value > 0)]
    if broken or not judged:
        what = f"{broken[0]} is {judged[broken[0]]}" if broken else "nothing that can be judged"
        return concluded(SweepOutcome.INCONCLUSIVE, f"{name}: {what}")
    known = {
        metric: _Number(metric, judged[metric], usually, policy)
        for metric in judged
        if middle_of(usually := baseline.get(metric, 0.0)) > 0
    }
    bad = [number for number in known.values() if number.loss > number.allowed]
    alone = [number for number in bad if number.is_alone(reference)]
    if alone:
        return concluded(SweepOutcome.FAILED, f"{name}: {'; '.join(map(str, alone))}", len(known))
    if bad:
        why = f"{name}: {bad[0]}; but its partner is as slow now: the surroundings are"
        return concluded(SweepOutcome.INCONCLUSIVE, why, len(known))
    if unsteady := _unsteady(finished, policy):
        return concluded(SweepOutcome.INCONCLUSIVE, f"{name}: {unsteady}", len(known))
    if not known and name not in policy.unjudged_rounds:
        why = f"{name}: no baseline for {', '.join(judged)}"
        return concluded(SweepOutcome.INCONCLUSIVE, why)
    if not known:
        return concluded(SweepOutcome.PASSED, f"{name}: finished; no baseline to judge it by yet")
    worst = max(known.values(), key=lambda number: (number.loss, number.metric))
    return concluded(SweepOutcome.PASSED, f"{name}: {worst} at worst", len(known))


class _Number:
    """One number of a round beside what is usual."""

    def __init__(
        self, metric: str, value: float, usual: float | Usual, policy: SweepPolicy
    ) -> None:
        self.metric, self.value, self.usual = metric, value, middle_of(usual)
        self.loss = loss(metric, value, self.usual)
        self.allowed = allowed(metric, usual, policy.tolerance_of(metric))

    def is_alone(self, reference: Mapping[str, float]) -> bool:
        """Tell whether it is bad beside the partner's as well, where there is one."""
        partner = reference.get(self.metric, 0.0)
        return partner <= 0 or loss(self.metric, self.value, partner) > self.allowed

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.value:.4g} against {self.usual:.4g} usual: "
            f"{self.loss:.2f}x worse, {self.allowed:.2f}x allowed"
        )


def judge_sweep(
    request: SweepRequested,
    rounds: Sequence[SweepRoundFinished],
    baseline: Baseline | None,
    policy: SweepPolicy,
) -> tuple[SweepOutcome, str]:
    """Judge a sweep by the rounds that finished; the reason names every round that decided.

    A node that is slow alone has failed, whatever else did not finish. Short of that, a missing or
    disturbed round, or a missing partner or baseline, makes the sweep inconclusive.
    """
    finished = {done.round: done for done in rounds}
    reference = finished[REFERENCE].measurements if REFERENCE in finished else {}
    judged = {
        name: judge_round(done, baseline or {}, reference, policy)
        for name, done in finished.items()
        if name != REFERENCE  # the partner is not on trial
    }
    blamed = [j.reason for name, j in judged.items() if _blames(name, judged)]
    if blamed:
        return SweepOutcome.FAILED, "; ".join(blamed)
    missing = [name for name in request.rounds if name not in finished]
    open_questions = [f"{name} did not finish in time" for name in missing]
    if policy.partner_needed and not request.partner:
        open_questions.append("no known-good partner was free")
    if SOLO not in judged and SOLO not in missing:
        open_questions.append("the node was not measured alone")
    open_questions += [j.reason for j in judged.values() if j.outcome is SweepOutcome.INCONCLUSIVE]
    if needs_third_party(rounds, baseline, policy):
        partner = finished[PAIR].partner or request.partner
        open_questions.append(
            f"{judged[PAIR].reason}; its link or that of {partner}: only a third party can tell"
        )
    if open_questions:
        return SweepOutcome.INCONCLUSIVE, "; ".join(open_questions)
    said = [j.reason for j in judged.values()]
    if PAIR in judged and judged[PAIR].outcome is SweepOutcome.FAILED:
        said.append(f"the slow link is that of {finished[PAIR].partner or request.partner}")
    return SweepOutcome.PASSED, "; ".join(said)


def needs_third_party(
    rounds: Sequence[SweepRoundFinished], baseline: Baseline | None, policy: SweepPolicy
) -> bool:
    """Tell whether the pair is slow and no third party has shown on whose side."""
    finished = {done.round: done for done in rounds}
    if PAIR not in finished or THIRD in finished:
        return False
    pair = judge_round(finished[PAIR], baseline or {}, {}, policy)
    return pair.outcome is SweepOutcome.FAILED


def should_retire(entries_at_ms: Sequence[int], now_ms: int, policy: SweepPolicy) -> bool:
    """Tell whether an entry into quarantine now, after these earlier ones, is one too many."""
    since_ms = now_ms - policy.retire_window_days * 86_400_000
    recent = sum(entered_at_ms > since_ms for entered_at_ms in entries_at_ms)
    return recent + 1 >= policy.entries_to_retire


def _blames(name: str, judged: Mapping[str, RoundJudgement]) -> bool:
    """Tell whether a round that failed is the node's own fault."""
    if judged[name].outcome is not SweepOutcome.FAILED:
        return False
    if name in TOGETHER:  # a link has two ends
        return all(
            end in judged and judged[end].outcome is SweepOutcome.FAILED for end in (PAIR, THIRD)
        )
    return True


def _is_judged(metric: str, policy: SweepPolicy) -> bool:
    statistic = metric.rpartition("_")[2]
    wanted = (*_ALWAYS, *_STEADY) if policy.judge_medians else _ALWAYS
    return family(metric) is not None and statistic in wanted


def _unsteady(finished: SweepRoundFinished, policy: SweepPolicy) -> str:
    if not policy.judge_medians:
        return ""
    for metric, value in sorted(finished.measurements.items()):
        between = metric.startswith(_BETWEEN_NODES)
        if metric.endswith("_cv") and not between and value > policy.cv_max:
            return f"{metric} is {value:.2f}, over {policy.cv_max:.2f}: the probe was disturbed"
    return ""
