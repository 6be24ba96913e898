"""One round: windows of nodes in the same role of the same job, compared with each other.

What belongs here: from one window per node to evidence per node, in each aspect. No memory of
earlier rounds but one series per aspect, how noisy they were; no verdicts (`judgement`).

Theory of operation. In synchronous training all ranks finish a step together, so step times say
nothing about who is slow. A straggler *works* long while its peers *wait*, and waits little
itself. Work and waiting are timed apart; a window accuses only if both say the same. Windows are
paired by the steps they cover, never by the clocks of the nodes.

Three aspects are compared, each with a noise of its own. The median step (`STEADY`) is blind to
what happens to a few steps, good or bad; the mean step (`WHOLE`) sees a node that is slow in every
fifth step, and needs more windows to tell it from a hiccup; links (`LINK`) are compared in pairs,
see `pairs`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import fsum, log, sqrt
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field

from statemachine.attribution import cause_of, hardware_speaks
from statemachine.columns import Column, Columns, Statistic, mean, p50
from statemachine.detector_policy import DetectorPolicy
from statemachine.ids import NodeId
from statemachine.pairs import Pairs, pairs_of
from statemachine.vitals import (
    CPU_MS,
    LINK_MBPS,
    STEP_MS,
    TRAINING,
    WAIT_MS,
    WORK_MS,
    Vitals,
    median,
)

_CLEAR: Final = 6.0
"""Standard deviations from which processor time stands out by itself."""

_LEAST_MS: Final = 1e-6  # peers whose clocks saw no processor time at all
_MEDIAN_VARIANCE: Final = 1.571  # pi / 2: variance of a median over that of a mean


class Aspect(StrEnum):
    """In which respect nodes are compared."""

    STEADY = "steady"
    """Own work in the median step."""
    WHOLE = "whole"
    """Own work in the mean step."""
    LINK = "link"
    """What its connections carry per second."""


class Reading(Struct, frozen=True, kw_only=True):
    """One indicator in one window: own value, the peers' median, a score.

    The score of work and of links is standard deviations of noise; of any other, the share of the
    excess work that it shows: in milliseconds for waiting, relative to the peers' for the rest.
    """

    metric: str
    value: float
    peers_median: float
    score: float


class Evidence(Struct, frozen=True, kw_only=True):
    """What one window says about one node in one aspect.

    `ratio` is how many times worse than its peers' median it is; `share` the part of a step that
    the ratio applies to (1: own work is judged by itself); `effect` the share by which all steps
    are longer because of it; `sigma` the relative noise of `ratio`; `accuses` when enough
    indicators spoke and none against; `is_clear` when something else than time on the wall stands
    out by itself; `cause` what the fault looks like.
    """

    window: int
    ratio: float
    sigma: float
    peers: int
    share: float = 1.0
    effect: float = 0.0
    accuses: bool = False
    is_clear: bool = False
    readings: tuple[Reading, ...] = ()
    cause: str = ""


class View(Struct, frozen=True, kw_only=True):
    """One aspect of a round: evidence by node, the median of all, the noise of this round alone."""

    evidence: dict[NodeId, Evidence] = field(default_factory=dict)
    middle: float = 0.0
    noise: float = 0.0


class Comparison(Struct, frozen=True, kw_only=True):
    """Outcome of one round: its views, who was left out and why, and what is nobody's fault."""

    views: dict[Aspect, View]
    left_out: dict[NodeId, str]
    remarks: tuple[str, ...] = ()

    @property
    def evidence(self) -> dict[NodeId, Evidence]:
        """Evidence by the median step."""
        return self.views[Aspect.STEADY].evidence

    @property
    def work_ms(self) -> float:
        """Median work of all in the median step; 0 when there was nothing to compare."""
        return self.views[Aspect.STEADY].middle

    @property
    def noise(self) -> float:
        """Relative noise of the median step in this round alone."""
        return self.views[Aspect.STEADY].noise


def compare(
    windows: Mapping[NodeId, Vitals],
    earlier_noise: Mapping[Aspect, Sequence[float]],
    policy: DetectorPolicy,
    others: Mapping[NodeId, Mapping[NodeId, float]] = MappingProxyType({}),
) -> Comparison:
    """Compare one window of each node with those of its peers.

    `earlier_noise` is the noise of earlier rounds of the same cohort: a round of four nodes says
    little about noise, thirty of them say enough. `others` is what nodes of other roles measured of
    their connections, by whom and with whom.
    """
    left_out = {node: why for node in sorted(windows) if (why := _unfit(windows[node], policy))}
    fit, strays = _same_steps([windows[node] for node in sorted(windows) if node not in left_out])
    left_out |= dict.fromkeys(strays, "it covers other steps than its peers")
    if len(fit) <= policy.peers_min:
        few = f"{len(fit)} comparable, {policy.peers_min + 1} needed"
        left_out |= dict.fromkeys((v.node for v in fit), few)
        return Comparison(views=dict.fromkeys(Aspect, View()), left_out=left_out)
    pairs, columns = pairs_of(fit, others), Columns(fit)
    return Comparison(
        views={
            Aspect.STEADY: _work(columns, p50, earlier_noise.get(Aspect.STEADY, ()), policy),
            Aspect.WHOLE: _work(columns, mean, earlier_noise.get(Aspect.WHOLE, ()), policy),
            Aspect.LINK: _links(columns, pairs, earlier_noise.get(Aspect.LINK, ()), policy),
        },
        left_out=left_out,
        remarks=pairs.remarks(policy.link_watch_ratio),
    )


# --- own work ---------------------------------------------------------------------------------


def _sigma(noise: float, earlier: Sequence[float], count: int, floor: float) -> float:
    """Relative noise of one node's value over the median of the others."""
    between_two = max(floor, (fsum(earlier) + noise) / (len(earlier) + 1))
    return between_two * sqrt(1 + _MEDIAN_VARIANCE / (count - 1))


class _Round(Struct, frozen=True, kw_only=True):
    """What the evidence about one node is told from."""

    columns: Columns
    work: Column
    wait: Column
    cpu: Column
    step: Column
    sigma: float
    policy: DetectorPolicy


def _work(
    columns: Columns, statistic: Statistic, earlier: Sequence[float], policy: DetectorPolicy
) -> View:
    work = columns.of(WORK_MS, statistic)
    noise = work.noise()
    this = _Round(
        columns=columns,
        work=work,
        wait=columns.of(WAIT_MS, statistic),
        cpu=columns.of(CPU_MS, statistic),
        step=columns.of(STEP_MS, statistic),
        sigma=_sigma(noise, earlier, len(columns.fit), policy.noise_floor),
        policy=policy,
    )
    evidence = {vitals.node: _evidence(vitals, this) for vitals in columns.fit}
    return View(evidence=evidence, middle=work.all_median, noise=noise)


def _evidence(vitals: Vitals, this: _Round) -> Evidence:
    node, work, policy, sigma = vitals.node, this.work, this.policy, this.sigma
    own, usual = work.values[node], work.peers_median(node)
    ratio, excess = own / usual, own - usual
    peers = len(work.values) - 1
    if min(ratio, own / work.all_median) < policy.watch_ratio:  # no majority can be slow
        return Evidence(window=vitals.window, ratio=ratio, sigma=sigma, peers=peers)
    works = Reading(metric=WORK_MS, value=own, peers_median=usual, score=log(ratio) / sigma)
    others, contradicted, is_clear = _witnesses(vitals, works, this)
    step = this.step.values.get(node, own)
    effect = excess / max(step - excess, usual)
    enough = 1 + len(others) >= policy.indicators_min and effect >= policy.effect_min
    return Evidence(
        window=vitals.window,
        ratio=ratio,
        sigma=sigma,
        peers=peers,
        effect=effect,
        accuses=enough and not contradicted,
        is_clear=is_clear,
        readings=(works, *others),
        cause=cause_of(node, this.columns) if enough else "",
    )


def _witnesses(vitals: Vitals, works: Reading, this: _Round) -> tuple[list[Reading], bool, bool]:
    """Return what bears long work out, whether waiting contradicts it, and whether processor time
    or a gauge stands out by itself: where processor time is as noisy as work, it is no second word.

    Waiting is compared in milliseconds: peers wait for as long as the node works longer. Processor
    time is compared as a ratio: where others want the processors too, both work and the excess of
    work take several times as long as the processor time in them. If it does not show the excess,
    it contradicts nothing: a device that throttles takes long without it. So do its own gauges,
    which speak where they are off in the direction in which the work is.
    """
    node, policy = vitals.node, this.policy
    spoke: list[Reading] = []
    contradicted = is_clear = False
    if waits := this.wait.beside_peers(node, policy.peers_min):
        share = (waits[1] - waits[0]) / (works.value - works.peers_median)
        contradicted = share < policy.wait_share_min
        if not contradicted:
            spoke.append(_reading(WAIT_MS, waits, share))
    if burns := this.cpu.beside_peers(node, policy.peers_min):
        excess = (burns[0] - burns[1]) / max(burns[1], _LEAST_MS)
        share = excess / (works.value / works.peers_median - 1)
        if share >= policy.cpu_share_min:
            spoke.append(_reading(CPU_MS, burns, share))
            noise = max(policy.noise_floor, this.cpu.noise())
            is_clear = excess > 0 and log(1 + excess) >= _CLEAR * noise
    for metric, value, usual, score in hardware_speaks(node, this.columns):
        spoke.append(_reading(metric, (value, usual), score))
        is_clear = True
    return spoke, contradicted, is_clear


def _reading(metric: str, beside: tuple[float, float], score: float) -> Reading:
    own, peers = beside
    return Reading(metric=metric, value=own, peers_median=peers, score=score)


# --- links ------------------------------------------------------------------------------------


def _links(
    columns: Columns, pairs: Pairs, earlier: Sequence[float], policy: DetectorPolicy
) -> View:
    """Compare what nodes' connections carry: a node is as fast as its fastest connection.

    Whoever waits least in a round waits for nobody, only for what it is sent: that is the share of
    a step that slow links make longer.
    """
    fit = columns.fit
    rates = Column({v.node: rate for v in fit if (rate := pairs.best(v.node)) is not None})
    if len(rates.values) <= policy.peers_min:
        return View()
    noise = rates.noise()
    sigma = _sigma(noise, earlier, len(rates.values), policy.link_noise_floor)
    waits, steps = columns.of(WAIT_MS, p50), columns.of(STEP_MS, p50)
    exchange_ms = min(waits.values.values(), default=0.0)
    share = min(1.0, exchange_ms / steps.all_median) if steps.all_median > 0 else 0.0
    evidence = {}
    for vitals in fit:
        if vitals.node not in rates.values:
            continue
        usual, own = rates.peers_median(vitals.node), rates.values[vitals.node]
        ratio, effect = usual / own, lengthened(usual / own, share) - 1
        slow_to = pairs.slow_reports(vitals.node, usual / policy.link_watch_ratio)
        accuses = min(ratio, rates.all_median / own) >= policy.link_watch_ratio
        accuses = accuses and effect >= policy.effect_min and len(slow_to) >= policy.indicators_min
        evidence[vitals.node] = Evidence(
            window=vitals.window,
            ratio=ratio,
            sigma=sigma,
            peers=len(rates.values) - 1,
            share=share,
            effect=effect,
            accuses=accuses,
            readings=_link_readings(slow_to, own, usual, sigma) if accuses else (),
            cause="communication: its links" if accuses else "",
        )
    return View(evidence=evidence, middle=rates.all_median, noise=noise)


def lengthened(ratio: float, share: float) -> float:
    """How many times as long a step takes if `share` of it takes `ratio` times as long."""
    return 1 / max(1e-3, 1 - share * (1 - 1 / ratio))


def _link_readings(
    slow_to: Mapping[NodeId, float], own: float, usual: float, sigma: float
) -> tuple[Reading, ...]:
    """The node's rate, then what each who measured it independently says."""
    works = Reading(metric=LINK_MBPS, value=own, peers_median=usual, score=log(usual / own) / sigma)
    said = [
        Reading(
            metric=f"{LINK_MBPS}.{reporter}",
            value=rate,
            peers_median=usual,
            score=log(usual / rate) / sigma,
        )
        for reporter, rate in sorted(slow_to.items())[:4]
    ]
    return (works, *said)


# --- what can be compared ---------------------------------------------------------------------


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
