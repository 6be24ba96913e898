"""One round: windows of nodes in the same role of the same job, compared with each other.

What belongs here: from one window per node to evidence per node. No memory of earlier rounds but
one number, how noisy they were; no verdicts (`detector`).

Theory of operation. In synchronous training all ranks finish a step together, so step times say
nothing about who is slow. A straggler *works* long while its peers *wait*, and waits little
itself. Work and waiting are timed apart; only if both say the same does a window accuse. Windows
are paired by the steps they cover, never by the clocks of the nodes.
"""

from collections.abc import Mapping, Sequence
from math import log
from typing import Final

from msgspec import Struct

from statemachine.ids import NodeId
from statemachine.vitals import CPU_MS, STEP_MS, TRAINING, WAIT_MS, WORK_MS, Vitals, median

PEERS_ALONE_MAX: Final = 32
"""Up to so many peers a node is left out of its own comparison; above, it cannot move a median."""

_MAD_TO_SIGMA: Final = 1.4826
_SMALL_SAMPLE: Final = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129}


class ComparisonPolicy(Struct, frozen=True, kw_only=True):
    """What it takes for one window to accuse. Ratios and shares have no unit."""

    peers_min: int = 3
    """Nodes that a node must be comparable with."""

    samples_min: int = 3
    """Steps in a window, below which its medians mean nothing."""

    watch_ratio: float = 1.05
    """Own work over the peers' median, from which a window may accuse."""

    wait_share_min: float = 0.5
    """Share of the excess work that peers must be seen waiting for."""

    cpu_share_min: float = 0.5
    """Share of the excess work that shows as processor time, for that indicator to speak."""

    effect_min: float = 0.03
    """Share by which every step is longer because of the node; below, it costs nobody anything."""

    indicators_min: int = 2
    """Indicators that must speak in a window for it to accuse."""

    noise_floor: float = 0.015
    """Least relative noise of work between equal nodes that is believed."""


class Reading(Struct, frozen=True, kw_only=True):
    """One indicator in one window: own value, the peers' median, and a score of its own kind.

    The score is standard deviations of noise for work, share of the excess for the others.
    """

    metric: str
    value: float
    peers_median: float
    score: float


class Evidence(Struct, frozen=True, kw_only=True):
    """What one window says about one node. `accuses` when enough indicators spoke, none against.

    `effect` is the share by which steps are longer because of the node; `wait_gap_ms` how much
    longer its peers wait per step than it does, or None where waiting was not measured.
    """

    window: int
    ratio: float
    effect: float
    peers: int
    accuses: bool
    readings: tuple[Reading, ...]
    wait_gap_ms: float | None = None


class Comparison(Struct, frozen=True, kw_only=True):
    """Outcome of one round: evidence by node, who was left out and why, how noisy it was."""

    evidence: dict[NodeId, Evidence]
    left_out: dict[NodeId, str]
    work_ms: float = 0.0
    noise: float = 0.0


def compare(
    windows: Mapping[NodeId, Vitals], earlier_noise: Sequence[float], policy: ComparisonPolicy
) -> Comparison:
    """Compare one window of each node with those of its peers.

    `earlier_noise` is the noise of earlier rounds of the same nodes; it steadies an estimate that
    a round of four nodes cannot give alone.
    """
    left_out = {node: why for node in sorted(windows) if (why := _unfit(windows[node], policy))}
    fit = [windows[node] for node in sorted(windows) if node not in left_out]
    fit, strays = _same_steps(fit)
    left_out |= dict.fromkeys(strays, "covers other steps than its peers")
    if len(fit) <= policy.peers_min:
        few = f"{len(fit)} comparable nodes; {policy.peers_min + 1} are needed"
        left_out |= {vitals.node: few for vitals in fit}
        return Comparison(evidence={}, left_out=left_out)
    noise = _noise([_p50(vitals, WORK_MS) for vitals in fit])
    sigma = max(policy.noise_floor, median([*earlier_noise, noise]))
    columns = {name: _Column(fit, name) for name in (WORK_MS, WAIT_MS, CPU_MS, STEP_MS)}
    evidence = {vitals.node: _evidence(vitals, columns, sigma, policy) for vitals in fit}
    return Comparison(
        evidence=evidence, left_out=left_out, work_ms=columns[WORK_MS].all_median, noise=noise
    )


class _Column:
    """One metric of all compared nodes, and its median over the peers of any one of them."""

    def __init__(self, fit: Sequence[Vitals], metric: str) -> None:
        self.metric = metric
        self.values = {
            vitals.node: measured.p50 for vitals in fit if (measured := vitals.measured(metric))
        }
        self.all_median = median(list(self.values.values())) if self.values else 0.0

    def peers_median(self, node: NodeId, peers_min: int) -> float | None:
        others = len(self.values) - (node in self.values)
        if others < peers_min:
            return None
        if others > PEERS_ALONE_MAX:
            return self.all_median
        return median([value for other, value in self.values.items() if other != node])


def _evidence(
    vitals: Vitals, columns: Mapping[str, _Column], sigma: float, policy: ComparisonPolicy
) -> Evidence:
    node, peers = vitals.node, len(columns[WORK_MS].values) - 1
    work = columns[WORK_MS].values[node]
    peers_work = columns[WORK_MS].peers_median(node, policy.peers_min) or work
    ratio, excess = work / peers_work, work - peers_work
    calm = Evidence(
        window=vitals.window, ratio=ratio, effect=0.0, peers=peers, accuses=False, readings=()
    )
    if ratio < policy.watch_ratio:
        return calm
    readings = [
        Reading(metric=WORK_MS, value=work, peers_median=peers_work, score=log(ratio) / sigma)
    ]
    waits = _reading(node, columns[WAIT_MS], -excess, policy)
    burns = _reading(node, columns[CPU_MS], excess, policy)
    if waits and waits.score >= policy.wait_share_min:
        readings.append(waits)
    if burns and burns.score >= policy.cpu_share_min:
        readings.append(burns)
    contradicted = waits is not None and waits.score < policy.wait_share_min
    step = columns[STEP_MS].values.get(node, work)
    effect = excess / max(step - excess, peers_work)
    return Evidence(
        window=vitals.window,
        ratio=ratio,
        effect=effect,
        peers=peers,
        accuses=not contradicted
        and len(readings) >= policy.indicators_min
        and effect >= policy.effect_min,
        readings=tuple(readings),
        wait_gap_ms=waits.peers_median - waits.value if waits else None,
    )


def _reading(
    node: NodeId, column: _Column, expected: float, policy: ComparisonPolicy
) -> Reading | None:
    """Read an indicator that should differ from the peers by `expected` if the node is slow."""
    peers = column.peers_median(node, policy.peers_min)
    own = column.values.get(node)
    if peers is None or own is None:
        return None
    return Reading(
        metric=column.metric, value=own, peers_median=peers, score=(own - peers) / expected
    )


def _unfit(vitals: Vitals, policy: ComparisonPolicy) -> str:
    """Say why a window cannot be compared with any other; empty if it can."""
    work = vitals.measured(WORK_MS)
    if vitals.phase != TRAINING:
        return f"in phase {vitals.phase}"
    if work is None or work.p50 <= 0:
        return f"blind: no {WORK_MS}"
    if min(work.count, vitals.steps) < policy.samples_min:
        return f"{min(work.count, vitals.steps)} steps; {policy.samples_min} are needed"
    return ""


def _same_steps(fit: Sequence[Vitals]) -> tuple[list[Vitals], list[NodeId]]:
    """Split off windows whose steps do not overlap those of the middle node."""
    if not fit:
        return [], []
    first = median([vitals.last_step - vitals.steps for vitals in fit])
    last = median([vitals.last_step for vitals in fit])
    same = [v for v in fit if v.last_step > first and v.last_step - v.steps < last]
    kept = {vitals.node for vitals in same}
    return same, [vitals.node for vitals in fit if vitals.node not in kept]


def _noise(work: Sequence[float]) -> float:
    """Estimate the relative noise of work between nodes, robust against a few slow ones."""
    middle = median(work)
    deviation = median([abs(log(value / middle)) for value in work])
    count = len(work)
    return _MAD_TO_SIGMA * _SMALL_SAMPLE.get(count, count / (count - 0.8)) * deviation


def _p50(vitals: Vitals, metric: str) -> float:
    measured = vitals.measured(metric)
    assert measured is not None, f"{vitals.node} was let through without {metric}"
    return measured.p50
