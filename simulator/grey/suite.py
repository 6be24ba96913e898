"""The labelled suite: which fleets a detector is held to.

What belongs here: the mix, as one literal description; the same seed gives the same fleets.
`share` scales how many there are, never what they are like.

Healthy fleets run for a day, so that a rate per node-day is counted and not extrapolated. Faulty
nodes have an hour before they count as missed; what surrounds them is healthy and counts as such.
"""

import random
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from simulator.grey.faults import Fault, Kind
from simulator.grey.fleet import FleetSpec
from simulator.rng import Streams

WINDOW_S: Final = 30.0
HOUR: Final = 120
"""Windows of an hour."""
DAY: Final = 24 * HOUR

ACT_FROM: Final = 1.10
"""Size of a fault from which a node must be acted upon; below, it need only be watched."""

SIZES: Final = (1.05, 1.10, 1.12, 1.15, 1.20, 1.30, 1.40)
"""Sizes of faults, each as often as any other."""

_HEALTHY: Final = ((8, 12), (16, 6), (64, 1))
"""Healthy fleets of a day: (nodes, fleets)."""

_FAULTY: Final = ((8, 1, 320), (16, 2, 120), (64, 6, 30), (256, 20, 7), (1024, 60, 2))
"""Fleets with faults: (nodes, faulty ones among them, fleets)."""


class Episode(Struct, frozen=True, kw_only=True):
    """One fleet, for so many windows."""

    name: str
    spec: FleetSpec
    windows: int
    seed: int


def suite(seed: int, share: float = 1.0) -> Iterator[Episode]:
    """Yield the episodes of a suite; at least one of each row."""
    chance = Streams(seed).stream("suite")
    for nodes, fleets in _HEALTHY:
        for _ in range(max(1, round(fleets * share))):
            spec = _fleet(nodes, {}, chance)
            yield Episode(name="healthy", spec=spec, windows=DAY, seed=chance.getrandbits(32))
    for nodes, sick, fleets in _FAULTY:
        for _ in range(max(1, round(fleets * share))):
            faults = {n: _fault(chance) for n in chance.sample(range(nodes), sick)}
            last = max(fault.onset for fault in faults.values())
            spec = _fleet(nodes, faults, chance)
            seeded = chance.getrandbits(32)
            yield Episode(name="faulty", spec=spec, windows=last + HOUR, seed=seeded)


def demo_fleets(seed: int, share: float = 1.0) -> Iterator[Episode]:
    """Four nodes on two crowded cores with windows of a second: the noise of a demo."""
    chance = Streams(seed).stream("demo")
    for _ in range(max(2, round(60 * share))):
        faults = {1: _fault(chance, (Kind.COMPUTE, Kind.INPUT))} if chance.random() < 0.7 else {}
        spec = FleetSpec(
            nodes=4,
            window_s=1.0,
            work_ms=30.0,
            exchange_ms=6.0,
            noise="crowded",
            alone=False,
            links=False,
            faults=faults,
        )
        seeded = chance.getrandbits(32)
        yield Episode(name="demo", spec=spec, windows=5 * HOUR if not faults else 200, seed=seeded)


def _fault(chance: random.Random, kinds: tuple[Kind, ...] = tuple(Kind)) -> Fault:
    kind, size = chance.choice(kinds), chance.choice(SIZES)
    if kind is Kind.LINK:  # a fifth of a step is exchange: for a step longer by as much
        size = 1 / (1 - (1 - 1 / size) / 0.2) if size < 1.2 else 6.0
    return Fault(kind=kind, size=size, onset=chance.randrange(20, HOUR))


def effect_of(fault: Fault, spec: FleetSpec) -> float:
    """What is called the size of a fault: how many times as long own work takes, or, of links, a
    step; on average over the hour where it comes and goes, or creeps.
    """
    if fault.kind in (Kind.FLAPPING, Kind.DRIFT):
        return 1 + (fault.size - 1) / 2
    if fault.kind is not Kind.LINK:
        return fault.size
    step_ms = spec.work_ms + spec.exchange_ms
    return (spec.work_ms + spec.exchange_ms * fault.size) / step_ms


def _fleet(nodes: int, faults: dict[int, Fault], chance: random.Random) -> FleetSpec:
    piped = nodes >= 16 and chance.random() < 0.25
    return FleetSpec(
        nodes=nodes,
        window_s=WINDOW_S,
        steps=chance.choice((10, 20, 40)),
        bias=chance.choice((0.005, 0.01, 0.015)),
        cpu=chance.random() < 0.7,
        gauges=chance.random() < 0.5,
        roles=(("first", 1.0), ("mid", 1.1), ("mid", 1.1), ("last", 1.3)) if piped else _ONE,
        imbalance=chance.choice((0.0, 0.0, 0.3)),
        pauses=chance.choice((0, 40)),
        faults=faults,
    )


_ONE: Final = (("only", 1.0),)
