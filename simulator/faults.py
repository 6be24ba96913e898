"""What goes wrong, and when: one trace per replication, drawn before any strategy runs.

Rule: the trace depends on seed, replication and scenario alone. Each entry carries the uniform
numbers that its consequences need (`marks`), so that every strategy meets the same machine with the
same fault and the same repair: common random numbers. Cost grows with the number of faults:
exponential machines are one superposed process, lemons a second one on top of it.
"""

import random
from collections.abc import Iterator
from enum import StrEnum
from math import gamma
from pathlib import Path

from msgspec import Struct

from simulator.rng import Streams, exponential, long_weibull, weibull, weighted
from simulator.scenario import Scenario

DAY_S = 86_400.0


class Kind(StrEnum):
    """What happens to a machine."""

    HARD = "hard"
    GREY = "grey"
    PLANNED = "planned"
    FALSE_ALARM = "false_alarm"


class Fault(Struct, frozen=True):
    """One thing that happens. `machine` is a slot number for planned and false alarms.

    `excess` marks a fault that only an uncured lemon has; `repair_h` below 0 means: draw it.
    """

    at_s: float
    kind: Kind
    machine: int
    marks: tuple[float, float, float] = (0.5, 0.5, 0.5)
    fault_class: int = 0
    excess: bool = False
    severity: float = 1.0
    ends_after_s: float = 0.0
    repair_h: float = -1.0
    cause: str = "node"


class Trace(Struct, frozen=True):
    """Every fault of a replication in order of time, and the machines that are bad from the start.

    `lemons` fail more often until cured; `slow` maps machines to their factor of work.
    """

    faults: tuple[Fault, ...]
    lemons: frozenset[int]
    slow: dict[int, float]


def draw(scenario: Scenario, replication: int) -> Trace:
    """Draw the trace of one replication."""
    streams = Streams(scenario.seed, replication)
    machines = scenario.machines
    lemon_count = round(scenario.faults.lemon_share * machines)
    lemons = frozenset(streams.stream("lemons").sample(range(machines), lemon_count))
    found = [
        *_hard(scenario, streams, sorted(lemons)),
        *_together(scenario, streams),
        *_grey(scenario, streams),
        *_slots(scenario, streams, "planned", Kind.PLANNED, _planned_rate(scenario)),
        *_slots(scenario, streams, "alarms", Kind.FALSE_ALARM, _alarm_rate(scenario)),
    ]
    slow_count = round(scenario.grey.initial_share * machines)
    chance = streams.stream("slow")
    slow = {
        machine: scenario.grey.severities[weighted(chance, scenario.grey.weights)]
        for machine in sorted(chance.sample(range(machines), slow_count))
    }
    if scenario.grey.of_lemons:
        chance = streams.stream("slow-lemons")
        for machine in sorted(lemons):
            severity = scenario.grey.severities[weighted(chance, scenario.grey.weights)]
            if chance.random() < scenario.grey.of_lemons:
                slow[machine] = severity
    order = sorted(found, key=lambda fault: (fault.at_s, fault.kind, fault.machine))
    return Trace(tuple(order), lemons, slow)


def hard_rate_s(scenario: Scenario) -> float:
    """Mean rate of hard faults of one machine per second, lemons averaged in."""
    faults = scenario.faults
    factor = 1 + faults.lemon_share * (faults.lemon_factor - 1)
    return faults.per_1000_node_days / 1000 / DAY_S * factor


def _marks(chance: random.Random) -> tuple[float, float, float]:
    return chance.random(), chance.random(), chance.random()


def _arrivals(chance: random.Random, rate_s: float, end_s: float) -> Iterator[float]:
    if rate_s <= 0:
        return
    at_s = exponential(chance, 1 / rate_s)
    while at_s < end_s:
        yield at_s
        at_s += exponential(chance, 1 / rate_s)


def _hard(scenario: Scenario, streams: Streams, lemons: list[int]) -> Iterator[Fault]:
    faults = scenario.faults
    if faults.trace:
        yield from _imported(scenario, streams)
        return
    base_s = faults.per_1000_node_days / 1000 / DAY_S
    if faults.distribution == "weibull":
        yield from _renewals(scenario, streams, base_s)
    else:
        yield from _superposed(scenario, streams, base_s * scenario.machines)
    excess = base_s * (faults.lemon_factor - 1) * len(lemons)
    chance = streams.stream("lemon-faults")
    for at_s in _arrivals(chance, excess, scenario.horizon_s):
        machine = lemons[int(chance.random() * len(lemons))]
        yield _one(scenario, chance, at_s, machine, excess=True)


def _one(
    scenario: Scenario, chance: random.Random, at_s: float, machine: int, *, excess: bool = False
) -> Fault:
    classes = scenario.faults.classes
    picked = weighted(chance, [each.share for each in classes]) if len(classes) > 1 else 0
    return Fault(at_s, Kind.HARD, machine, _marks(chance), picked, excess)


def _superposed(scenario: Scenario, streams: Streams, rate_s: float) -> Iterator[Fault]:
    faults, machines = scenario.faults, scenario.machines
    chance = streams.stream("hard")
    for at_s in _arrivals(chance, rate_s * (1 - faults.burst_share), scenario.horizon_s):
        yield _one(scenario, chance, at_s, int(chance.random() * machines))
    chance = streams.stream("bursts")
    bursts = rate_s * faults.burst_share / faults.burst_size
    for begin_s in _arrivals(chance, bursts, scenario.horizon_s):
        for _ in range(faults.burst_size):
            at_s = begin_s + chance.random() * faults.burst_window_s
            fault = _one(scenario, chance, at_s, int(chance.random() * machines))
            if at_s < scenario.horizon_s:
                yield fault


def _renewals(scenario: Scenario, streams: Streams, base_s: float) -> Iterator[Fault]:
    """One renewal process per machine, which began long ago: a gap under way is found in
    proportion to its length, so the first one is drawn so, and a part of it is over.
    """
    if base_s <= 0:
        return
    chance = streams.stream("hard")
    shape = scenario.faults.shape
    norm = gamma(1 + 1 / shape)
    for machine in range(scenario.machines):
        at_s = long_weibull(chance, 1 / base_s, shape, norm) * chance.random()
        while at_s < scenario.horizon_s:
            yield _one(scenario, chance, at_s, machine)
            at_s += weibull(chance, 1 / base_s, shape, norm)


def _together(scenario: Scenario, streams: Streams) -> Iterator[Fault]:
    """Machines that fail at once because they share a rack or a switch."""
    faults, machines = scenario.faults, scenario.machines
    for cause, size, rate in (
        ("rack", scenario.fleet.rack_nodes, faults.rack_per_1000_rack_days),
        ("switch", scenario.fleet.switch_nodes, faults.switch_per_1000_switch_days),
    ):
        chance = streams.stream(cause)
        groups = -(-machines // size)
        for at_s in _arrivals(chance, rate / 1000 / DAY_S * groups, scenario.horizon_s):
            first = int(chance.random() * groups) * size
            for machine in range(first, min(first + size, machines)):
                yield Fault(at_s, Kind.HARD, machine, _marks(chance), cause=cause)


def _grey(scenario: Scenario, streams: Streams) -> Iterator[Fault]:
    grey, machines = scenario.grey, scenario.machines
    chance = streams.stream("grey")
    rate_s = grey.per_1000_node_days / 1000 / DAY_S * machines
    for at_s in _arrivals(chance, rate_s, scenario.horizon_s):
        machine = int(chance.random() * machines)
        severity = grey.severities[weighted(chance, grey.weights)]
        lasts_s = exponential(chance, grey.duration_h * 3600) if grey.duration_h else 0.0
        marks = _marks(chance)
        yield Fault(
            at_s, Kind.GREY, machine, marks, severity=severity, ends_after_s=lasts_s, cause="grey"
        )


def _planned_rate(scenario: Scenario) -> float:
    return hard_rate_s(scenario) * scenario.slots * scenario.faults.planned_per_unplanned


def _alarm_rate(scenario: Scenario) -> float:
    rate = scenario.guard.false_alarms_per_1000_node_days if scenario.guard.monitor else 0.0
    return rate / 1000 / DAY_S * scenario.slots


def _slots(
    scenario: Scenario, streams: Streams, name: str, kind: Kind, rate_s: float
) -> Iterator[Fault]:
    chance = streams.stream(name)
    for at_s in _arrivals(chance, rate_s, scenario.horizon_s):
        slot = int(chance.random() * scenario.slots)
        yield Fault(at_s, kind, slot, _marks(chance), cause=name)


def _imported(scenario: Scenario, streams: Streams) -> Iterator[Fault]:
    """A real trace, machine by machine: copies for a larger fleet begin at other times of it."""
    from simulator.traces import read_trace

    trace = read_trace(Path(scenario.faults.trace))
    chance = streams.stream("hard")
    span_s = trace.days * DAY_S
    by_machine: dict[int, list[tuple[float, float]]] = {}
    for entry in trace.entries:
        by_machine.setdefault(entry.machine, []).append((entry.at_days * DAY_S, entry.hours))
    copy_shift_s = 0.0
    for machine in range(scenario.machines):
        if machine % trace.machines == 0:
            copy_shift_s = chance.random() * span_s
        for begin_s, hours in by_machine.get(machine % trace.machines, ()):
            at_s = (begin_s - copy_shift_s) % span_s
            while at_s < scenario.horizon_s:
                yield Fault(at_s, Kind.HARD, machine, _marks(chance), repair_h=hours)
                at_s += span_s
