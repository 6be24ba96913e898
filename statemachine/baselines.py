"""What is usual of a kind of hardware, and how much worse than that a node may be.

What belongs here: the table of what is measured, order statistics over known-good nodes, and the
tolerance that follows from them. Judging a round with it: `sweep`.

Theory of operation. How far machines of one kind differ, and how well a probe repeats, is measured
by the sweeps that passed: both are in how far their numbers are apart. Where that is known, a node
may be as much worse than the median as `MARGIN` times what the worst tenth is, and never more than
the policy allows; until it is, what the policy allows. So a tight fleet finds a node at 1.1x, and a
loose one does not fail good nodes.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from statemachine.vitals import quantile

KNOWN_MIN: Final = 8
"""Sweeps of known-good nodes from which on their spread says something."""

MARGIN: Final = 3.0
"""Multiple of the distance of the worst tenth from the median that is still usual: that tenth is
1.3 standard deviations off where numbers are spread evenly around it."""

LEAST: Final = 1.05
"""No tolerance is tighter, however even a fleet looks."""


class Better(StrEnum):
    """Which way a measurement improves."""

    HIGHER = "higher"
    LOWER = "lower"


METRICS: Final[Mapping[str, Better]] = MappingProxyType(
    {
        "gemm_gflops": Better.HIGHER,
        "memory_gbps": Better.HIGHER,
        "copy_gbps": Better.HIGHER,
        "device_gflops": Better.HIGHER,
        "device_sm_clock_mhz": Better.HIGHER,
        "link_mbps": Better.HIGHER,
        "link_latency_us": Better.LOWER,
        "collective_mbps": Better.HIGHER,
        "collective_latency_us": Better.LOWER,
    }
)
"""What is judged, by the beginning of a name. The rest of the name qualifies it and ends with the
statistic, as in ``link_mbps_out_best``; a name of no row is kept and never judged."""


class Usual(Struct, frozen=True, kw_only=True):
    """One measurement over `count` known-good nodes: 10, 50 and 90 % of them are below."""

    p10: float
    p50: float
    p90: float
    count: int = 1


Baseline = Mapping[str, float | Usual]
"""What is usual by metric; a bare number is a median of which the spread is not known."""


@lru_cache(maxsize=1024)  # asked of the same few names for every entry of a baseline
def family(metric: str) -> str | None:
    """Return the row of `METRICS` that a name belongs to."""
    return next((row for row in METRICS if metric == row or metric.startswith(f"{row}_")), None)


def learned(history: Iterable[Mapping[str, float]]) -> dict[str, Usual]:
    """Return what is usual by the measurements of known-good nodes of one kind of hardware."""
    values: dict[str, list[float]] = {}
    for measurements in history:
        for metric, value in measurements.items():
            if family(metric) and isfinite(value) and value > 0:
                values.setdefault(metric, []).append(value)
    return {metric: _usual(sorted(found)) for metric, found in sorted(values.items())}


def _usual(ordered: list[float]) -> Usual:
    low, middle, high = (quantile(ordered, share) for share in (0.1, 0.5, 0.9))
    return Usual(p10=low, p50=middle, p90=high, count=len(ordered))


def middle_of(usual: float | Usual) -> float:
    """The median of a baseline's entry."""
    return usual.p50 if isinstance(usual, Usual) else usual


def loss(metric: str, value: float, usual: float) -> float:
    """Return how many times worse than usual a value is; below 1 it is better."""
    return usual / value if METRICS[family(metric) or metric] is Better.HIGHER else value / usual


def allowed(metric: str, usual: float | Usual, most: float) -> float:
    """Return how much worse than the median a value may be, as a ratio: at most `most`."""
    if not isinstance(usual, Usual) or usual.count < KNOWN_MIN:
        return most
    worst = usual.p10 if METRICS[family(metric) or metric] is Better.HIGHER else usual.p90
    if worst <= 0:
        return most
    return min(most, max(LEAST, 1 + MARGIN * (loss(metric, worst, usual.p50) - 1)))
