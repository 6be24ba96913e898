"""TrainMover (arXiv 2412.12636v3): downtime, ETTR under moves, a straggler, parts, projections.

Its experiments assume faults seen and placed at once, and count no lost steps: `quiet` does so too.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from simulator.compare import one
from simulator.faults import Fault, Kind, Trace, draw
from simulator.meter import Totals
from simulator.paper.figure import Figure, difference, exactly, quiet
from simulator.parts import STRATEGIES, costs_of
from simulator.restarts import Restarts
from simulator.scenario import CostTable, FleetTable, Scenario
from simulator.stats import Estimate, estimate
from simulator.world import World

FIG8 = (
    (32, 11.5, 19.6),
    (128, 14.5, 20.2),
    (256, 15.5, 20.4),
    (512, 14.2, 20.4),
    (1024, 16.6, 21.1),
)
SYSTEMS = ("standby-swap", "swap-no-standby", "checkpoint-restart", "oobleck", "parcae")
"""TrainMover with and without a standby, Megatron, Oobleck, Parcae."""


def downtimes() -> Iterator[Figure]:
    """Fig 8: planned and unplanned downtime against scale, one incident in a quiet fleet."""
    for gpus, planned, unplanned in FIG8:
        for kind, published in (("planned", planned), ("unplanned", unplanned)):
            yield Figure(
                name=f"TrainMover Fig 8: {kind}, {gpus} GPUs",
                published=published,
                unit="s",
                simulated=_incident_s(gpus, kind),
                kind="fitted",
                inputs="the curve itself, through settle, prepare, commit and apply",
                source="TrainMover Fig 8",
            )


def _incident_s(gpus: int, kind: str) -> Estimate:
    rate = 80_000 / gpus  # ten a day
    if kind == "planned":
        scenario = quiet(gpus, 1.0, per_1000_node_days=1e-6, planned_per_unplanned=rate / 1e-6)
    else:
        scenario = quiet(gpus, 1.0, per_1000_node_days=rate, planned_per_unplanned=0.0)
    scenario = replace(scenario, fleet=replace(scenario.fleet, standbys=4))
    world = World(scenario, STRATEGIES["standby-swap"], draw(scenario, 0))
    return estimate(sorted(world.run().downtimes_s)[:50])


# --- moves and a straggler --------------------------------------------------------------------


def rebalancing() -> Iterator[Figure]:
    """Table 16: a machine is moved every ten minutes.

    Its baseline writes a checkpoint per iteration. What that costs is solved from the row of 32
    GPUs (0.68, where Fig 8's 80 s alone would leave 0.867), and held for the other scales.
    """
    stall = (1 - 80 / 600) / 0.68 - 1
    rows = (
        ("standby-swap", 0.0, (0.98, 0.98, 0.98, 0.97), ""),
        (
            "checkpoint-restart",
            stall,
            (0.50, 0.49, 0.44, 0.42),
            "a checkpoint per iteration costs 27 % of a step by the table's row of 32 GPUs",
        ),
        (
            "checkpoint-restart",
            0.0,
            (0.50, 0.49, 0.44, 0.42),
            "with free checkpoints: the table implies 300 to 348 s per move, Fig 8 190 to 300",
        ),
    )
    for strategy, share, published, note in rows:
        words = " with free checkpoints" if strategy != "standby-swap" and not share else ""
        for gpus, value in zip((128, 256, 512, 1024), published, strict=True):
            yield Figure(
                name=f"TrainMover Table 16: ETTR, 10-minute moves, {strategy}{words}, {gpus} GPUs",
                published=value,
                unit="share",
                simulated=exactly(_moved(gpus, strategy, share).ettr()),
                kind="predicted",
                inputs="Fig 8's downtime; a day of moves, one per 600 s",
                source="TrainMover Table 16",
                note=note,
            )


def _moved(gpus: int, strategy: str, stall: float) -> Totals:
    """A day in which a machine is drained every ten minutes."""
    scenario = quiet(gpus, days=1.0)
    job = replace(scenario.job, checkpoint_stall_s=stall * scenario.job.checkpoint_interval_s)
    scenario = replace(scenario, job=job, fleet=replace(scenario.fleet, standbys=2))
    return _scripted(
        scenario,
        strategy,
        tuple(
            Fault(600.0 * number, Kind.PLANNED, number % scenario.slots) for number in range(1, 144)
        ),
    )


def _scripted(scenario: Scenario, strategy: str, faults: tuple[Fault, ...]) -> Totals:
    recipe, trace = STRATEGIES[strategy], Trace(faults, frozenset(), {})
    run = World if recipe.family == "swap" else Restarts
    return run(scenario, recipe, trace).run()


def straggler() -> Iterator[Figure]:
    """Fig 13/14: one GPU of 1,024 loses 20 % at iteration 75 of 100, and is replaced."""
    slow = Fault(750.0, Kind.GREY, 0, severity=1.25)
    move = Fault(750.0, Kind.PLANNED, 0)
    scenario = quiet(1024, days=1.0)
    job = replace(scenario.job, step_s=10.0, work_days=1000 / 86_400)
    elastic = replace(scenario, job=job, fleet=replace(scenario.fleet, standbys=0))
    moved = _scripted(elastic, "swap-no-standby", (slow, move))
    restarted = _scripted(elastic, "checkpoint-restart", (move,))
    common = {
        "kind": "predicted",
        "inputs": "Fig 8; 150 s of rehearsal; an elastic machine at hand; steps of 10 s (Guard's)",
        "source": "TrainMover Fig 13/14",
        "note": "the length of a step is not published",
    }
    yield Figure(
        name="TrainMover Fig 13: efficiency lost to one slow GPU",
        published=0.047,
        unit="share",
        simulated=exactly(1 - moved.ettr()),
        **common,
    )
    yield Figure(
        name="TrainMover Fig 14: better than a restart with free checkpoints per iteration",
        published=0.228,
        unit="share",
        simulated=exactly(restarted.wall_s / moved.wall_s - 1),
        **common,
    )


def breakdown() -> Iterator[Figure]:
    """Fig 15: from a restart to everything, one part after the other."""
    scenario = replace(quiet(1024), costs=CostTable(model="trainmover-fig15", infra=False))
    for strategy, published, kind, note in (
        ("checkpoint-restart", 221.0, "fitted", "load 104 + connect 51 + warm-up 66"),
        ("swap-migration", 123.0, "fitted", "gives the 6 s of state"),
        ("swap-no-warmup", 79.0, "predicted", "with the delta's 7 s from the text"),
        ("standby-swap", 16.0, "fitted", ""),
    ):
        costs = costs_of(scenario, STRATEGIES[strategy])
        swap = STRATEGIES[strategy].family == "swap"
        yield Figure(
            name=f"TrainMover Fig 15: {strategy}",
            published=published,
            unit="s",
            simulated=exactly(costs.pause_planned_s if swap else costs.restart_s),
            kind=kind,
            inputs="components of Fig 15",
            source="TrainMover Fig 15",
            note=note,
        )


# --- projections ------------------------------------------------------------------------------


def restart_losses(replications: int) -> Iterator[Figure]:
    """Fig 2: the share of time that restarts of 4.45 min take at 64K and 128K GPUs."""
    for gpus, published in ((65_536, 0.1647), (131_072, 0.3179)):
        scenario = replace(
            quiet(gpus, planned_per_unplanned=0.0),
            costs=CostTable(model="trainmover-table1", infra=False),
        )
        found = [1 - one(scenario, "checkpoint-restart", n).ettr for n in range(replications)]
        yield Figure(
            name=f"TrainMover Fig 2: time lost to restarts, {gpus} GPUs",
            published=published,
            unit="share",
            simulated=estimate(found),
            kind="predicted",
            inputs="6.5 losses / 1,000 node-days, 267 s of initialisation",
            source="TrainMover Fig 2",
            note="the paper divides downtime by MTTF; a job that is down cannot be stopped again, "
            "which counts at this scale",
        )


def projection(replications: int) -> Iterator[Figure]:
    """Fig 9: GPU-hours wasted in a week, with two minutes of rescheduling (paper) or none (blog).

    The paper adds the two minutes to the downtime of every system, also of those that need no
    rescheduling: here they are a delay before each recovery.
    """
    runs: dict[tuple[str, int, bool], Estimate] = {}
    for extra in (False, True):
        for gpus in (1024, 8192, 65_536, 131_072):
            for strategy in SYSTEMS:
                runs[strategy, gpus, extra] = _wasted(gpus, strategy, replications, extra=extra)
    yield from _savings(runs, replications)
    yield from _accounted(replications)
    for (strategy, gpus, extra), found in runs.items():
        minutes = "+2 min" if extra else "without"
        yield Figure(
            name=f"TrainMover Fig 9: wasted, {strategy}, {gpus} GPUs, {minutes}",
            published=None,
            unit="M GPU-h/week",
            simulated=found,
            kind="predicted",
            inputs="Fig 8 at 1,024 GPUs; Oobleck 57 + 100 s, Parcae 21 + 200 s (Fig 1)",
            source="TrainMover Fig 9 (bars without numbers)",
        )


def _savings(runs: dict[tuple[str, int, bool], Estimate], replications: int) -> Iterator[Figure]:
    big = 65_536
    yield Figure(
        name="TrainMover blog: saved at 64K against Megatron",
        published=2.1,
        unit="M GPU-h/week",
        simulated=difference(
            runs["checkpoint-restart", big, False], runs["standby-swap", big, False]
        ),
        kind="predicted",
        inputs="6.5 losses / 1,000 node-days, Fig 8 at 1,024 GPUs, no rescheduling",
        source="TrainMover blog",
        note=_WHY_LESS,
    )
    worse, better = runs["swap-no-standby", big, True], runs["standby-swap", big, True]
    spared = difference(worse, better)
    for published, unit, value in (
        (1.4, "M GPU-h/week", spared),
        (0.55, "share", Estimate(mean=spared.mean / worse.mean, half=0.0, count=replications)),
    ):
        yield Figure(
            name="TrainMover Fig 9: saved at 64K against no standby",
            published=published,
            unit=unit,
            simulated=value,
            kind="predicted",
            inputs="the 217 s of a start without standby were solved from this figure",
            source="TrainMover Fig 9",
            note=_WHY_LESS,
        )


_WHY_LESS = (
    "the paper multiplies incidents by a constant downtime; here a loss may come while the one "
    "standby is not warm again (one in seven, at 27 min between losses), or in another's recovery"
)


def _accounted(replications: int) -> Iterator[Figure]:
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
            Estimate(mean=spared.mean / worse.mean, half=0.0, count=replications),
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
    scenario = replace(quiet(65_536), fleet=FleetTable(spares=1200))
    recipe = STRATEGIES[strategy]
    costs = costs_of(scenario, recipe)
    unplanned_s = costs.pause_unplanned_s if recipe.standby else costs.cold_s
    planned_s = costs.pause_planned_s
    if recipe.family == "restart":
        unplanned_s = planned_s = costs.restart_s
    found = []
    for number in range(replications):
        faults = draw(scenario, number).faults
        hits = sum(f.kind is Kind.HARD and f.machine < scenario.slots for f in faults)
        drains = sum(f.kind is Kind.PLANNED for f in faults)
        down_s = hits * (unplanned_s + extra_s) + drains * (planned_s + extra_s)
        idle_h = 8 * 168 if recipe.standby else 0
        found.append((down_s * scenario.ranks / 3600 + idle_h) / 1e6)
    return estimate(found)


def _wasted(gpus: int, strategy: str, replications: int, *, extra: bool) -> Estimate:
    overrides = {"detect_s": 120.0} if extra else {}
    scenario = replace(
        quiet(gpus),
        fleet=FleetTable(spares=max(64, gpus // 50)),
        costs=CostTable(infra=False, overrides=overrides),
    )
    return estimate([one(scenario, strategy, n).wasted_gpu_h / 1e6 for n in range(replications)])
