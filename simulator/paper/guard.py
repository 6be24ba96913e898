"""Guard (arXiv 2605.17879), Table 4: time between failures of a job across four configurations.

One fleet explains all four rows. Machines that are defective from the start (SuperBench: 10.36 %
of a build-out) fail more often, and some are slow as well. A repair cures only what a test showed:
burn-in and NCCL tests show nothing, so without sweeps everything comes back as it was. A sweep of
the node alone shows the defects that have no second end (28 % by SuperBench's counts of what
arithmetic, model and NVLink benchmarks found); the enhanced sweep, with a partner, shows the rest.
The monitor takes slow machines out; what passes its sweep and is accused three times in a week is
replaced, as in the paper. Fitted are the rate of healthy machines, the factor of defective ones,
and the share of them that is slow; the row of the first sweep is predicted.

The step time (17 s to 10 s, 1.7x) does not come out of it, and what is ambiguous about it is taken
apart in rows of their own. A replica waits for its slowest pipeline, so one machine of 1.4x costs
1.28x in eight stages of sixteen microbatches; if experts are exchanged among all replicas in every
layer (the job is a MoE), each stage waits for the slowest machine of all, which costs the whole
1.4x. And CPU frequency and cores (its own case: up to 1.2x) are a setting of the whole fleet, which
no sweep of a machine against its peers can see: 1.4 x 1.2 is 1.68. Which of its cases the 17 s hold
is not published. Nor is the size of the jobs whose step varies by 20 %: one job on all machines is
always slow; small jobs are slow or not, by the machines that they get.
"""

from collections.abc import Iterator, Mapping
from statistics import mean, stdev
from typing import Final

from msgspec.structs import replace

from simulator.faults import draw
from simulator.meter import Totals, pace
from simulator.paper.figure import Figure, exactly
from simulator.parts import STRATEGIES
from simulator.rng import Streams
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

EXPERTS: Final = {"pp": 8, "dp": 2, "ep": 32, "tp": 8}
"""The same machines; experts are spread over 32 of what were replicas, and exchanged per layer."""
CPU_SETTING: Final = 1.2
SMALL_JOB: Final = 16
SMALL_JOBS: Final = 400

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
    parts: tuple[bool, bool, bool],
    replication: int,
    days: float = DAYS,
    axes: Mapping[str, int] | None = None,
) -> World:
    """One replication of one configuration (monitor, sweep, pair), at its end."""
    monitor, sweep, pair = parts
    scenario = replace(fleet(pair=pair), days=days)
    scenario = replace(scenario, job=replace(scenario.job, axes=dict(axes or scenario.job.axes)))
    recipe = replace(STRATEGIES["standby-swap"], monitor=monitor, sweep=sweep)
    world = World(scenario, recipe, draw(scenario, replication), replication)
    world.run()
    return world


def step_factor(totals: Totals) -> float:
    """How many times as long as a healthy one the mean step of a run was."""
    return totals.running_s / (totals.running_s - totals.slow_s)


def table_4(replications: int) -> Iterator[Figure]:
    """MTTF of the four configurations, and what became of the step time."""
    ends: list[list[World]] = []
    for words, published, kind, parts in ROWS:
        worlds = [configured(parts, number) for number in range(replications)]
        ends.append(worlds)
        per_hour = estimate([1 / mttf_h(world.totals) for world in worlds])
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
    yield from _steps(ends[0], ends[-1])
    yield from _between_small_jobs(ends[0], ends[-1])


_UNEXPLAINED = "not explained: see the end of this table"


def _steps(before: list[World], after: list[World]) -> Iterator[Figure]:
    own = [_ratio(old, new) for old, new in zip(before, after, strict=True)]
    meeting = [
        _ratio(*(configured(ROWS[row][3], number, days=45.0, axes=EXPERTS) for row in (0, -1)))
        for number in range(min(2, len(before)))
    ]
    for words, kind, found, note in (
        ("", "predicted", own, _UNEXPLAINED),
        (
            ", replicas that meet in every layer",
            "predicted",
            meeting,
            "whether its experts are exchanged among all replicas is not published",
        ),
        (
            ", and a CPU setting of the whole fleet mended as well",
            "fitted",
            [ratio * CPU_SETTING for ratio in meeting],
            "its own case of 1.2x, chosen after the fact: what the 17 s hold is not published",
        ),
    ):
        yield Figure(
            name=f"Guard Fig 12: mean step time, before over after{words}",
            published=1.7,
            unit="ratio",
            simulated=estimate(found),
            kind=kind,
            inputs=INPUTS,
            source="Guard Fig 12",
            note=note,
        )
    for words, published, worlds in (("before", 0.20, before), ("after", 0.01, after)):
        steps = [step_factor(world.totals) for world in worlds]
        yield Figure(
            name=f"Guard Fig 11: variation of the step between runs, {words}",
            published=published,
            unit="share",
            simulated=exactly(stdev(steps) / mean(steps)),
            kind="predicted",
            inputs=INPUTS,
            source="Guard Fig 11",
            note=_UNEXPLAINED,
        )


def _ratio(before: World, after: World) -> float:
    return step_factor(before.totals) / step_factor(after.totals)


def _between_small_jobs(before: list[World], after: list[World]) -> Iterator[Figure]:
    """The same among jobs of 16 machines, each on machines of its own of the same fleet."""
    for words, published, slow in (
        ("before", 0.20, [world.plant.trace.slow for world in before]),
        ("after", 0.01, [still_slow(world) for world in after]),
    ):
        found = [variation(factors, number) for number, factors in enumerate(slow)]
        yield Figure(
            name=f"Guard Fig 11: variation between jobs of {SMALL_JOB} nodes, {words}",
            published=published,
            unit="share",
            simulated=estimate(found),
            kind="fitted",
            inputs=f"{INPUTS}; the size of the jobs is chosen",
            source="Guard Fig 11",
            note="the size of the jobs that vary is not published",
        )


def still_slow(world: World) -> dict[int, float]:
    """Machines that are slow at the end of a run, in the job or not, with their factors."""
    found = {number: world.plant.machine(number).severity for number in world.plant.trace.slow}
    return {number: severity for number, severity in found.items() if severity > 1}


def variation(slow: Mapping[int, float], replication: int) -> float:
    """Coefficient of variation of the step among jobs that get machines by chance."""
    machines = fleet(pair=True).machines
    chance = Streams(0, replication).stream("small-jobs")
    axes = {"pp": 4, "dp": SMALL_JOB // 4, "tp": 8}
    steps = []
    for _ in range(SMALL_JOBS):
        held = chance.sample(range(machines), SMALL_JOB)
        factors = {slot: slow[number] for slot, number in enumerate(held) if number in slow}
        steps.append(1 / pace(factors, axes, 8, 16))
    return stdev(steps) / mean(steps)
