"""Guard (arXiv 2605.17879), Table 4: time between failures of a job across four configurations.

One fleet explains all four rows. Machines that are defective from the start (SuperBench: 10.36 %
of a build-out) fail more often, and some are slow as well. A repair cures only what a test showed:
burn-in and NCCL tests show nothing, so without sweeps everything comes back as it was. A sweep of
the node alone shows the defects that have no second end (28 % by SuperBench's counts of what
arithmetic, model and NVLink benchmarks found); the enhanced sweep, with a partner, shows the rest.
The monitor takes slow machines out; what passes its sweep and is accused three times in a week is
replaced, as in the paper. Fitted are the rate of healthy machines, the factor of defective ones,
and the share of them that is slow; the row of the first sweep is predicted.
"""

from collections.abc import Iterator
from statistics import mean, stdev

from msgspec.structs import replace

from simulator.faults import draw
from simulator.meter import Totals
from simulator.paper.figure import Figure, exactly
from simulator.parts import STRATEGIES
from simulator.scenario import (
    FaultsTable,
    FleetTable,
    GreyTable,
    GuardTable,
    JobTable,
    RepairTable,
    Scenario,
)
from simulator.stats import Estimate, estimate
from simulator.world import World

DAYS = 90.0
"""Of which the second half is counted: a fleet that was swept for a while."""

ROWS = (
    ("NCCL and burn-in only", 6.6, "fitted", (False, False, False)),
    ("+ node sweep", 8.1, "predicted", (False, True, False)),
    ("+ online monitoring", 9.2, "fitted", (True, True, False)),
    ("+ enhanced sweep", 16.7, "fitted", (True, True, True)),
)
"""Configuration, MTTF in hours, kind, and whether there is a monitor, a sweep, and its pair."""

INPUTS = (
    "512 nodes; 2.65 / 1,000 node-days, defective ones 20x, 27 % of them slow (fitted); "
    "10.36 % defective, 28 % of these seen alone (SuperBench); 1.2x or 1.4x slow (Guard's cases)"
)


def fleet(*, pair: bool) -> Scenario:
    """The fleet whose parameters were fitted."""
    return Scenario(
        name="guard",
        days=DAYS,
        job=JobTable(axes={"pp": 8, "dp": 64, "tp": 8}),
        fleet=FleetTable(standbys=4, spares=8),
        faults=FaultsTable(
            per_1000_node_days=2.65,
            lemon_share=0.1036,
            lemon_factor=20.0,
            planned_per_unplanned=0.0,
        ),
        repair=RepairTable(unfound_cures=False),
        grey=GreyTable(of_lemons=0.27, severities=(1.2, 1.4), weights=(0.5, 0.5)),
        guard=GuardTable(pair=pair, solo_sees=0.28),
    )


def mttf_h(totals: Totals) -> float:
    """Mean time between losses in the second half of a run."""
    half_s = totals.wall_s / 2
    return half_s / 3600 / max(1, sum(at_s > half_s for at_s in totals.lost_at_s))


def configured(
    monitor: bool, sweep: bool, pair: bool, replication: int, days: float = DAYS
) -> Totals:
    """One replication of one configuration."""
    scenario = replace(fleet(pair=pair), days=days)
    recipe = replace(STRATEGIES["standby-swap"], monitor=monitor, sweep=sweep)
    return World(scenario, recipe, draw(scenario, replication), replication).run()


def table_4(replications: int) -> Iterator[Figure]:
    """MTTF of the four configurations, and what became of the step time."""
    steps: list[list[float]] = []
    for words, published, kind, parts in ROWS:
        runs = [configured(*parts, number) for number in range(replications)]
        steps.append([run.running_s / (run.running_s - run.slow_s) for run in runs])
        per_hour = estimate([1 / mttf_h(run) for run in runs])
        half = per_hour.half / per_hour.mean**2
        yield Figure(
            name=f"Guard Table 4: MTTF, {words}",
            published=published,
            unit="h",
            simulated=Estimate(mean=1 / per_hour.mean, half=half, count=replications),
            kind=kind,
            inputs=INPUTS,
            source="Guard Table 4",
        )
    yield from _steps(steps[0], steps[-1])


def _steps(before: list[float], after: list[float]) -> Iterator[Figure]:
    common = {"kind": "predicted", "inputs": INPUTS, "source": "Guard Fig 11, 12"}
    yield Figure(
        name="Guard Fig 12: mean step time, before over after",
        published=1.7,
        unit="ratio",
        simulated=exactly(mean(before) / mean(after)),
        note="not explained: see the end of this table",
        **common,
    )
    for words, published, found in (("before", 0.20, before), ("after", 0.01, after)):
        yield Figure(
            name=f"Guard Fig 11: variation of the step between runs, {words}",
            published=published,
            unit="share",
            simulated=exactly(stdev(found) / mean(found)),
            note="not explained: see the end of this table",
            **common,
        )
