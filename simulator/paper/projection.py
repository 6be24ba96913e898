"""TrainMover's projections to 128K GPUs: time lost to restarts, and GPU-hours wasted in a week.

Two accountings stand side by side. The paper multiplies incidents by a constant downtime; the
simulator has losses fall into recoveries and find the standby not warm again. Each row says which
one it is, so that the gap between them is a result and not an error of either.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from simulator.compare import one
from simulator.faults import Kind, draw
from simulator.paper.figure import Figure, difference, quiet
from simulator.parts import STRATEGIES, costs_of
from simulator.scenario import CostTable, FleetTable, Scenario
from simulator.stats import Estimate, estimate

SYSTEMS = ("standby-swap", "swap-no-standby", "checkpoint-restart", "oobleck", "parcae")
"""TrainMover with and without a standby, Megatron, Oobleck, Parcae."""


_WHY_FEWER = (
    "the paper divides downtime by MTTF; a job that is down cannot be stopped again, and wall time "
    "includes the downtime: 1 - exp(-downtime / MTTF)"
)


def restart_losses(replications: int) -> Iterator[Figure]:
    """Fig 2: the share of time that restarts of 4.45 min take at 64K and 128K GPUs."""
    for gpus, published in ((65_536, 0.1647), (131_072, 0.3179)):
        scenario = replace(
            quiet(gpus, planned_per_unplanned=0.0),
            costs=CostTable(model="trainmover-table1", infra=False),
        )
        found = [1 - one(scenario, "checkpoint-restart", n).ettr for n in range(replications)]
        divided = [_divided(scenario, n) for n in range(replications)]
        for values, words, note in (
            (divided, ", by the paper's accounting", "losses x downtime over wall time"),
            (
                found,
                "",
                _WHY_FEWER,
            ),
        ):
            yield Figure(
                name=f"TrainMover Fig 2: time lost to restarts, {gpus} GPUs{words}",
                published=published,
                unit="share",
                simulated=estimate(values),
                kind="predicted",
                inputs="6.5 losses / 1,000 node-days, 267 s of initialisation",
                source="TrainMover Fig 2",
                note=note,
            )


def _divided(scenario: Scenario, replication: int) -> float:
    """Drawn losses times the downtime of one, over the wall time."""
    costs = costs_of(scenario, STRATEGIES["checkpoint-restart"])
    return _hits(scenario, replication) * costs.restart_s / scenario.horizon_s


def _hits(scenario: Scenario, replication: int) -> int:
    """Hard faults of machines that hold a slot."""
    faults = draw(scenario, replication).faults
    return sum(f.kind is Kind.HARD and f.machine < scenario.slots for f in faults)


def wasted(replications: int) -> Iterator[Figure]:
    """Fig 9: GPU-hours wasted in a week, with two minutes of rescheduling (paper) or none (blog).

    The paper adds the two minutes to the downtime of every system, also of those that need no
    rescheduling: here they are a delay before each recovery.
    """
    runs: _Runs = {}
    for extra in (False, True):
        for gpus in (1024, 8192, _BIG, 131_072):
            for strategy in SYSTEMS:
                found = _wasted(gpus, strategy, replications, extra=extra)
                runs[strategy, gpus, extra] = found
                yield _bar(strategy, gpus, found, extra=extra)
    always = {
        extra: _wasted(_BIG, "standby-swap", replications, extra=extra, standbys=_ALWAYS)
        for extra in (False, True)
    }
    yield from _savings(runs, always)
    yield from accounted(replications)


def _bar(strategy: str, gpus: int, found: Estimate, *, extra: bool) -> Figure:
    minutes = "+2 min" if extra else "without"
    return Figure(
        name=f"TrainMover Fig 9: wasted, {strategy}, {gpus} GPUs, {minutes}",
        published=None,
        unit="M GPU-h/week",
        simulated=found,
        kind="predicted",
        inputs="Fig 8 at 1,024 GPUs; Oobleck 57 + 100 s, Parcae 21 + 200 s (Fig 1)",
        source="TrainMover Fig 9 (bars without numbers)",
    )


_BIG = 65_536
_ALWAYS = 4
"""Standbys with which one is warm at every loss, or nearly."""

_Runs = dict[tuple[str, int, bool], Estimate]


def _savings(runs: _Runs, always: dict[bool, Estimate]) -> Iterator[Figure]:
    """What standbys save at 64K GPUs: with one of them, and with so many that one is warm."""
    for words, note, ours in (
        ("", _WHY_LESS, {extra: runs["standby-swap", _BIG, extra] for extra in (False, True)}),
        (f", with {_ALWAYS} standbys", _WHY_STILL_LESS, always),
    ):
        yield Figure(
            name=f"TrainMover blog: saved at 64K against Megatron{words}",
            published=2.1,
            unit="M GPU-h/week",
            simulated=difference(runs["checkpoint-restart", _BIG, False], ours[False]),
            kind="predicted",
            inputs="6.5 losses / 1,000 node-days, Fig 8 at 1,024 GPUs, no rescheduling",
            source="TrainMover blog",
            note=note,
        )
        worse = runs["swap-no-standby", _BIG, True]
        spared = difference(worse, ours[True])
        for published, unit, value in (
            (1.4, "M GPU-h/week", spared),
            (0.55, "share", _share(spared, worse)),
        ):
            yield Figure(
                name=f"TrainMover Fig 9: saved at 64K against no standby{words}",
                published=published,
                unit=unit,
                simulated=value,
                kind="predicted",
                inputs="the 217 s of a start without standby were solved from this figure",
                source="TrainMover Fig 9",
                note=note,
            )


def _share(spared: Estimate, of: Estimate) -> Estimate:
    """A difference as a share of what it is taken from, whose own interval is narrow beside it."""
    return Estimate(mean=spared.mean / of.mean, half=spared.half / of.mean, count=spared.count)


_WHY_LESS = (
    "the paper multiplies incidents by a constant downtime; here a loss may come while the one "
    "standby is not warm again (one in seven, at 27 min between losses), or in another's recovery"
)
_WHY_STILL_LESS = (
    "what is left of the difference: a job that is down cannot be stopped again, so that slow "
    "recoveries cost less than incidents x downtime"
)


def accounted(replications: int) -> Iterator[Figure]:
    """The same by the paper's own accounting: incidents times a constant, and one idle machine."""
    runs = {
        (strategy, extra_s): _constant(strategy, extra_s, replications)
        for strategy in SYSTEMS[:3]
        for extra_s in (0.0, 120.0)
    }
    worse, better = runs["swap-no-standby", 120.0], runs["standby-swap", 120.0]
    spared = difference(worse, better)
    megatron = difference(runs["checkpoint-restart", 0.0], runs["standby-swap", 0.0])
    for name, published, unit, value, kind in (
        ("blog: saved at 64K against Megatron", 2.1, "M GPU-h/week", megatron, "predicted"),
        ("Fig 9: saved at 64K against no standby", 1.4, "M GPU-h/week", spared, "fitted"),
        (
            "Fig 9: saved at 64K against no standby",
            0.55,
            "share",
            _share(spared, worse),
            "fitted",
        ),
    ):
        yield Figure(
            name=f"TrainMover {name}, by the paper's accounting",
            published=published,
            unit=unit,
            simulated=value,
            kind=kind,
            inputs="drawn incidents x constant downtime; the 217 s were solved from Fig 9",
            source="TrainMover Fig 9, blog",
        )


def _constant(strategy: str, extra_s: float, replications: int) -> Estimate:
    scenario = replace(quiet(_BIG), fleet=FleetTable(spares=1200))
    recipe = STRATEGIES[strategy]
    costs = costs_of(scenario, recipe)
    unplanned_s = costs.pause_unplanned_s if recipe.standby else costs.cold_s
    planned_s = costs.pause_planned_s
    if recipe.family == "restart":
        unplanned_s = planned_s = costs.restart_s
    found = []
    for number in range(replications):
        hits = _hits(scenario, number)
        drains = sum(f.kind is Kind.PLANNED for f in draw(scenario, number).faults)
        down_s = hits * (unplanned_s + extra_s) + drains * (planned_s + extra_s)
        idle_h = 8 * 168 if recipe.standby else 0
        found.append((down_s * scenario.ranks / 3600 + idle_h) / 1e6)
    return estimate(found)


def _wasted(
    gpus: int, strategy: str, replications: int, *, extra: bool, standbys: int = 1
) -> Estimate:
    overrides = {"detect_s": 120.0} if extra else {}
    scenario = replace(
        quiet(gpus),
        fleet=FleetTable(standbys=standbys, spares=max(64, gpus // 50)),
        costs=CostTable(infra=False, overrides=overrides),
    )
    return estimate([one(scenario, strategy, n).wasted_gpu_h / 1e6 for n in range(replications)])
