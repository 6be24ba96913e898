"""One round: windows of nodes in the same role of the same job, compared with each other.

What belongs here: from one window per node to evidence per node. No memory of earlier rounds but
one series, how noisy they were; no verdicts (`judgement`).

Theory of operation. In synchronous training all ranks finish a step together, so step times say
nothing about who is slow. A straggler *works* long while its peers *wait*, and waits little
itself. Work and waiting are timed apart; a window accuses only if both say the same. Windows are
paired by the steps they cover, never by the clocks of the nodes.
"""

from collections.abc import Mapping, Sequence
from math import fsum, log, sqrt
from typing import Final

from msgspec import Struct

from statemachine.detector_policy import DetectorPolicy
from statemachine.ids import NodeId
from statemachine.vitals import CPU_MS, STEP_MS, TRAINING, WAIT_MS, WORK_MS, Vitals, median

_ALONE_MAX: Final = 32  # above so many peers, a node's own value does not move their median
_LEAST_MS: Final = 1e-6  # peers whose clocks saw no processor time at all
_MAD_TO_SIGMA: Final = 1.4826
_SMALL_SAMPLE: Final = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129}
_MEDIAN_VARIANCE: Final = 1.571  # pi / 2: variance of a median over that of a mean


class Reading(Struct, frozen=True, kw_only=True):
    """One indicator in one window: own value, the peers' median, a score.

    The score of work is standard deviations of noise; of any other, the share of the excess work
    that it shows: in milliseconds for waiting, relative to the peers' for processor time.
    """

    metric: str
    value: float
    peers_median: float
    score: float


class Evidence(Struct, frozen=True, kw_only=True):
    """What one window says about one node.

    `ratio` is its work over its peers' median; `effect` the share by which all steps are longer
    because of it; `sigma` the relative noise of `ratio`; `accuses` when enough indicators spoke and
    none against.
    """

    window: int
    ratio: float
    sigma: float
    peers: int
    effect: float = 0.0
    accuses: bool = False
    readings: tuple[Reading, ...] = ()


class Comparison(Struct, frozen=True, kw_only=True):
    """Outcome of one round: evidence by node, and who was left out and why.

    `work_ms` is the median work of all, `noise` the relative noise of work in this round alone;
    both are 0 when there was nothing to compare.
    """

    evidence: dict[NodeId, Evidence]
    left_out: dict[NodeId, str]
    work_ms: float = 0.0
    noise: float = 0.0


def compare(
    windows: Mapping[NodeId, Vitals], earlier_noise: Sequence[float], policy: DetectorPolicy
) -> Comparison:
    """Compare one window of each node with those of its peers.

    `earlier_noise` is the noise of earlier rounds of the same cohort: a round of four nodes says
    little about noise, thirty of them say enough.
    """
    left_out = {node: why for node in sorted(windows) if (why := _unfit(windows[node], policy))}
    fit, strays = _same_steps([windows[node] for node in sorted(windows) if node not in left_out])
    left_out |= dict.fromkeys(strays, "it covers other steps than its peers")
    if len(fit) <= policy.peers_min:
        few = f"{len(fit)} comparable, {policy.peers_min + 1} needed"
        return Comparison(
            evidence={}, left_out=left_out | dict.fromkeys((v.node for v in fit), few)
        )
    columns = {name: _Column(fit, name) for name in (WORK_MS, WAIT_MS, CPU_MS, STEP_MS)}
    work = columns[WORK_MS]
    noise = _noise(list(work.values.values()))
    series = [*earlier_noise, noise]
    between_two = max(policy.noise_floor, fsum(series) / len(series))
    sigma = between_two * sqrt(1 + _MEDIAN_VARIANCE / (len(fit) - 1))
    evidence = {vitals.node: _evidence(vitals, columns, sigma, policy) for vitals in fit}
    return Comparison(evidence=evidence, left_out=left_out, work_ms=work.all_median, noise=noise)


class _Column:
    """One metric of all compared nodes, and its median over the peers of any one of them."""

    def __init__(self, fit: Sequence[Vitals], metric: str) -> None:
        self.metric = metric
        self.values = {v.node: read.p50 for v in fit if (read := v.measured(metric))}
        self.all_median = median(list(self.values.values())) if self.values else 0.0

    def peers_median(self, node: NodeId) -> float:
        if len(self.values) > _ALONE_MAX:
            return self.all_median
        return median([value for other, value in self.values.items() if other != node])

    def beside_peers(self, node: NodeId, peers_min: int) -> tuple[float, float] | None:
        """Return a node's value and its peers' median; None where too few measured it."""
        own = self.values.get(node)
        if own is None or len(self.values) <= peers_min:
            return None
        return own, self.peers_median(node)


def _evidence(
    vitals: Vitals, columns: Mapping[str, _Column], sigma: float, policy: DetectorPolicy
) -> Evidence:
    node, work = vitals.node, columns[WORK_MS]
    own, usual = work.values[node], work.peers_median(node)
    ratio, excess = own / usual, own - usual
    peers = len(work.values) - 1
    if min(ratio, own / work.all_median) < policy.watch_ratio:  # no majority can be slow
        return Evidence(window=vitals.window, ratio=ratio, sigma=sigma, peers=peers)
    works = Reading(metric=WORK_MS, value=own, peers_median=usual, score=log(ratio) / sigma)
    others, contradicted = _witnesses(node, columns, works, policy)
    step = columns[STEP_MS].values.get(node, own)
    effect = excess / max(step - excess, usual)
    enough = 1 + len(others) >= policy.indicators_min and effect >= policy.effect_min
    return Evidence(
        window=vitals.window,
        ratio=ratio,
        sigma=sigma,
        peers=peers,
        effect=effect,
        accuses=enough and not contradicted,
        readings=(works, *others),
    )


def _witnesses(
    node: NodeId, columns: Mapping[str, _Column], works: Reading, policy: DetectorPolicy
) -> tuple[list[Reading], bool]:
    """Return what bears long work out, and whether waiting contradicts it.

    Waiting is compared in milliseconds: peers wait for as long as the node works longer. Processor
    time is compared as a ratio: where others want the processors too, both work and the excess of
    work take several times as long as the processor time in them. If it does not show the excess,
    it contradicts nothing: a device that throttles takes long without it.
    """
    spoke: list[Reading] = []
    contradicted = False
    if waits := columns[WAIT_MS].beside_peers(node, policy.peers_min):
        share = (waits[1] - waits[0]) / (works.value - works.peers_median)
        contradicted = share < policy.wait_share_min
        if not contradicted:
            spoke.append(_reading(WAIT_MS, waits, share))
    if burns := columns[CPU_MS].beside_peers(node, policy.peers_min):
        excess = (burns[0] - burns[1]) / max(burns[1], _LEAST_MS)
        share = excess / (works.value / works.peers_median - 1)
        if share >= policy.cpu_share_min:
            spoke.append(_reading(CPU_MS, burns, share))
    return spoke, contradicted


def _reading(metric: str, beside: tuple[float, float], score: float) -> Reading:
    own, peers = beside
    return Reading(metric=metric, value=own, peers_median=peers, score=score)


def _unfit(vitals: Vitals, policy: DetectorPolicy) -> str:
    """Say why a window cannot be compared with any other; empty if it can."""
    work = vitals.measured(WORK_MS)
    if vitals.phase != TRAINING:
        return f"it is in phase {vitals.phase}"
    if work is None or work.p50 <= 0:
        return f"it is blind: no {WORK_MS}"
    steps = min(work.count, vitals.steps)
    return f"{steps} steps, {policy.samples_min} needed" if steps < policy.samples_min else ""


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
