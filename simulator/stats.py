"""Means with intervals, quantiles, and when enough replications have run. Pure arithmetic."""

from collections.abc import Sequence
from math import fsum, inf, sqrt
from typing import Final

from msgspec import Struct

_T95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % points of Student's t for 1 to 10 degrees of freedom."""


def t95(freedom: int) -> float:
    """Return the two-sided 95 % point of Student's t (within 0.3 % above the table)."""
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    return 1.96 + 2.4 / freedom + 3.0 / freedom**2


class Estimate(Struct, frozen=True, kw_only=True):
    """A mean over replications, and half the width of its 95 % confidence interval."""

    mean: float
    half: float
    count: int

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half

    def holds(self, value: float, slack: float = 0.0) -> bool:
        """Tell whether `value` lies in the interval, widened by `slack` on both sides."""
        return self.low - slack <= value <= self.high + slack


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate the mean of non-empty values; a single one has an infinite interval."""
    count = len(values)
    mean = fsum(values) / count
    if count == 1:
        return Estimate(mean=mean, half=inf, count=1)
    variance = fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean=mean, half=t95(count - 1) * sqrt(variance / count), count=count)


def enough(values: Sequence[float], relative: float, at_least: int = 5) -> bool:
    """Tell whether the interval is within `relative` of the mean on both sides."""
    if len(values) < at_least:
        return False
    found = estimate(values)
    return found.half <= relative * abs(found.mean)


def quantiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Return the values below which each share lies, interpolating; 0 where there is no value."""
    ordered = sorted(values)
    if not ordered:
        return [0.0 for _ in shares]
    found = []
    for share in shares:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        found.append(ordered[below] + (ordered[above] - ordered[below]) * (place - below))
    return found
