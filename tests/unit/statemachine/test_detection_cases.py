"""The two lists of cases: who must never be flagged, and who must be, within how many windows.

Fleets are those of `simulator.grey`, with the noise of real recorded steps; windows count as 30 s.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from simulator.grey.faults import Fault, Kind
from simulator.grey.fleet import FleetSpec, name_of, windows
from statemachine.events import Verdict, VerdictIssued
from statemachine.ids import Incarnation, NodeId
from statemachine.vitals import CPU_MS, STEP_MS, WORK_MS, Metric, Vitals
from tests.unit.statemachine.grey_fleet import ACTED_UPON, Watch, without

SEEDS = (1, 2, 3)
ONSET = 20
HOUR = 120

Batches = Iterable[list[Vitals]]


def times(vitals: Vitals, factor: float) -> Vitals:
    """A window in which own work and processor time took `factor` times as long."""
    longer = {
        name: Metric(count=m.count, mean=m.mean * factor, p50=m.p50 * factor, p95=m.p95 * factor)
        if name in (WORK_MS, CPU_MS, STEP_MS)
        else m
        for name, m in vitals.metrics.items()
    }
    return replace(vitals, metrics=longer)


# --- who must never be flagged ----------------------------------------------------------------


def all_slow(seed: int) -> Batches:
    """From one window on everybody computes half as long again."""
    faults = {n: Fault(kind=Kind.COMPUTE, size=1.5, onset=ONSET) for n in range(8)}
    return windows(FleetSpec(faults=faults), seed, 80)


def first_steps(seed: int) -> Batches:
    """The first two windows hold compilation, 2 to 30 times as long, on each node another."""
    chance = random.Random(seed)
    for number, batch in enumerate(windows(FleetSpec(), seed, 60)):
        yield [times(v, chance.uniform(2, 30)) for v in batch] if number < 2 else batch


def pauses(seed: int) -> Batches:
    """Every tenth window evaluates or writes a checkpoint, in which one node does all the work."""
    for batch in windows(FleetSpec(pauses=10), seed, 100):
        paused = batch[0].phase != "training"
        yield [times(v, 3.0) if paused and v.node == "n0" else v for v in batch]


def moving_imbalance(seed: int) -> Batches:
    """In every step another rank gets sequences that take half as long again."""
    return windows(FleetSpec(imbalance=0.5), seed, 150)


def heavy_last_stage(seed: int) -> Batches:
    """The last pipeline stage works twice as long by design."""
    roles = (("first", 1.0), ("mid", 1.1), ("mid", 1.1), ("last", 2.0))
    return windows(FleetSpec(nodes=16, roles=roles), seed, 100)


def one_blind(seed: int) -> Batches:
    """One node measures nothing, and its neighbours only half of it."""
    for batch in windows(FleetSpec(), seed, 60):
        yield [
            without(v, WORK_MS, CPU_MS) if v.node == "n3" else without(v, CPU_MS) if n % 2 else v
            for n, v in enumerate(batch)
        ]


def skewed_clocks(seed: int) -> Batches:
    """Clocks are up to ten minutes apart."""
    skew = [random.Random(seed).randint(-600_000, 600_000) for _ in range(8)]
    for batch in windows(FleetSpec(), seed, 60):
        yield [
            replace(v, started_at_ms=v.started_at_ms + by, ended_at_ms=v.ended_at_ms + by)
            for v, by in zip(batch, skew, strict=True)
        ]


def just_joined(seed: int) -> Batches:
    """A node joins in mid-run, and its first two windows take twice as long."""
    for number, batch in enumerate(windows(FleetSpec(), seed, 70)):
        fresh = [
            replace(v, incarnation=Incarnation(2), window=v.window - 30) if number >= 30 else v
            for v in batch[:1]
        ]
        first = [times(v, 2.0) if 30 <= number < 32 else v for v in fresh]
        yield [*first, *batch[1:]]


def two_peers(seed: int) -> Batches:
    """Three nodes, of which one is at 1.4x: two peers cannot tell."""
    fault = Fault(kind=Kind.COMPUTE, size=1.4, onset=ONSET)
    return windows(FleetSpec(nodes=3, faults={1: fault}), seed, 60)


NOBODY = [
    all_slow,
    first_steps,
    pauses,
    moving_imbalance,
    heavy_last_stage,
    one_blind,
    skewed_clocks,
    just_joined,
    two_peers,
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", NOBODY, ids=lambda case: case.__name__)
def test_nobody_is_flagged(case: Callable[[int], Batches], seed: int) -> None:
    """What is nobody's fault, or cannot be told, leads to no verdict at all, not even to watch."""
    watch = Watch()
    for batch in case(seed):
        watch.see(list(batch), pass_ms=30_000)

    assert watch.said == [], f"{case.__name__}, seed {seed}: {watch.said[:3]}"


# --- who must be flagged, and when ------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Faults by node, and within how many windows of the onset they must be seen for what."""

    name: str
    faults: dict[int, Fault]
    within: int
    acted: bool = True
    cause: str = "compute"
    spec: FleetSpec = field(default_factory=FleetSpec)


def slow(kind: Kind, size: float) -> Fault:
    """A fault from the onset on."""
    return Fault(kind=kind, size=size, onset=ONSET)


EVEN = FleetSpec(bias=0.0, steps=160)
"""Equal machines, and many steps in a window: one of eight windows at 1.05x is not at 1.12x."""
GAUGED = FleetSpec(gauges=True)
NIC_DOWN = slow(Kind.LINK, 1 / 0.7)
NIC_REROUTED = slow(Kind.LINK, 1.17)
PIPE = FleetSpec(nodes=16, roles=(("first", 1.0), ("mid", 1.1), ("mid", 1.1), ("last", 1.3)))

FLAGGED = [
    Case("compute +5 %", {3: slow(Kind.COMPUTE, 1.05)}, 100, acted=False, spec=EVEN),
    Case("compute +10 %", {3: slow(Kind.COMPUTE, 1.10)}, 24),
    Case("compute +20 %", {3: slow(Kind.COMPUTE, 1.20)}, 8),
    Case("compute +40 %", {3: slow(Kind.COMPUTE, 1.40)}, 4),
    Case("device +10 %", {3: slow(Kind.DEVICE, 1.10)}, 24),
    Case(
        "heat, clock falls by 28 %",
        {3: slow(Kind.HEAT, 1.39)},
        12,
        cause="compute: heat",
        spec=GAUGED,
    ),
    Case("low power", {3: slow(Kind.POWER, 1.15)}, 12, cause="compute: low", spec=GAUGED),
    Case(
        "stolen processors",
        {3: slow(Kind.STEAL, 1.2)},
        8,
        cause="compute: processor time",
        spec=GAUGED,
    ),
    Case("late input", {3: slow(Kind.INPUT, 1.2)}, 8, cause="input"),
    Case("NIC rate down 30 %", {3: NIC_DOWN}, 24, cause="communication"),
    Case("NIC rerouted, +3.4 %", {3: NIC_REROUTED}, 48, acted=False, cause="communication"),
    Case("flapping", {3: slow(Kind.FLAPPING, 1.4)}, 30),
    Case("every fifth step", {3: slow(Kind.EVERY_KTH, 1.12)}, 24),
    Case("drift over an hour to +20 %", {3: slow(Kind.DRIFT, 1.2)}, 100),
    Case("two at once", {3: slow(Kind.COMPUTE, 1.2), 6: slow(Kind.COMPUTE, 1.3)}, 8),
    Case(
        "NIC rate down 40 % in a pipeline",
        {5: slow(Kind.LINK, 1 / 0.6)},
        24,
        cause="communication",
        spec=PIPE,
    ),
    Case("in a pipeline", {5: slow(Kind.COMPUTE, 1.2)}, 8, spec=PIPE),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", FLAGGED, ids=lambda case: case.name)
def test_exactly_the_right_nodes_are_flagged(case: Case, seed: int) -> None:
    """Each faulty node is named, in time, with the cause; acted upon where it costs 8 % or more,
    only watched below; and nobody else is named at all.
    """
    spec = replace(case.spec, faults=case.faults)
    watch = Watch()
    for batch in windows(spec, seed, ONSET + case.within):
        watch.see(batch, pass_ms=30_000)

    sick = {name_of(n) for n in case.faults}
    assert {node for _, node, _ in watch.verdicts} == sick, f"{case}, seed {seed}: {watch.said}"
    assert all(at >= ONSET for at, _, _ in watch.verdicts), f"seed {seed}: before the onset"
    acted = {node for _, node, verdict in watch.verdicts if verdict in ACTED_UPON}
    assert acted == (sick if case.acted else set()), f"{case}, seed {seed}: {watch.verdicts}"
    causes = {said.cause for _, said in watch.said if isinstance(said, VerdictIssued)}
    assert all(cause.startswith(case.cause) for cause in causes), f"seed {seed}: {causes}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lemon_that_returns_is_found_again(seed: int) -> None:
    """A node that was well for a while after its repair is judged by its new windows, as soon."""
    fault = Fault(kind=Kind.COMPUTE, size=1.3, onset=ONSET)
    watch = Watch()
    for batch in windows(FleetSpec(faults={3: fault}), seed, ONSET + 8):
        watch.see(batch, pass_ms=30_000)
    first = [at for at, node, _ in watch.verdicts if node == "n3"]
    fault = Fault(kind=Kind.COMPUTE, size=1.3, onset=40)
    for batch in windows(FleetSpec(faults={3: fault}), seed + 100, 48):
        shifted = [
            replace(
                v,
                window=v.window + (0 if v.node == "n3" else ONSET + 8),
                incarnation=Incarnation(2) if v.node == "n3" else v.incarnation,
                last_step=v.last_step + (ONSET + 8) * v.steps,
            )
            for v in batch
        ]
        watch.see(shifted, pass_ms=30_000)
    again = [at for at, node, verdict in watch.verdicts if at > first[-1] and verdict in ACTED_UPON]

    assert first, f"seed {seed}"
    assert again, f"seed {seed}: {watch.said}"
    assert ONSET + 8 + 40 <= again[0] < ONSET + 8 + 48, f"seed {seed}: {watch.verdicts}"
    assert {node for _, node, _ in watch.verdicts} == {"n3"}, f"seed {seed}"


def test_step_times_of_a_pipeline_say_nothing_and_work_says_who() -> None:
    """With everybody's step as long as everybody's else, only the one that works long is named."""
    spec = replace(PIPE, faults={5: slow(Kind.COMPUTE, 1.4)})
    watch = Watch()
    for batch in windows(spec, 7, ONSET + 6):
        steps = {v.metrics[STEP_MS].p50 for v in batch}
        assert len(steps) == 1, "all ranks end a step together"
        watch.see(batch, pass_ms=30_000)

    assert {node for _, node, _ in watch.verdicts} == {NodeId("n5")}
    assert watch.verdicts[-1][2] is Verdict.FAULTY


def test_a_slow_way_between_two_good_nodes_blames_neither() -> None:
    """If both ends are fast elsewhere, the way is named, and no verdict falls."""
    watch = Watch()
    for batch in windows(FleetSpec(), 1, 40):
        watch.see([_way_is_slow(v) for v in batch], pass_ms=30_000)

    assert watch.said == []
    assert any("the way from n2 to n3 carries" in note for note in watch.notes), watch.notes[-3:]


def _way_is_slow(vitals: Vitals) -> Vitals:
    ends = {("n2", "n3"), ("n3", "n2")}
    return replace(
        vitals,
        metrics={
            name: times(replace(vitals, metrics={WORK_MS: m}), 0.4).metrics[WORK_MS]
            if (vitals.node, name.partition(".")[2]) in ends
            else m
            for name, m in vitals.metrics.items()
        },
    )
