"""Geometry of the report's charts: from numbers to points, ticks and bars in SVG coordinates.

What belongs here: pure arithmetic. Colours and words are the template's; nothing here knows HTML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 960.0
HEIGHT: Final = 240.0
LEFT: Final = 64.0
RIGHT: Final = 16.0
TOP: Final = 28.0
BOTTOM: Final = 34.0
LANE: Final = 26.0

_TICKS: Final = 6
_POINTS_MAX: Final = 2400


@dataclass(frozen=True, slots=True)
class Tick:
    """One mark of an axis: where, and what it says."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that is marked over the whole height, with a word and a longer one."""

    x: float
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A line over time, ready to draw. `width` and `height` in SVG units."""

    points: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time in which a node was in one state."""

    x: float
    y: float
    width: float
    state: str
    title: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """Nodes over time: one lane each."""

    bars: tuple[Bar, ...]
    names: tuple[Tick, ...]
    x_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    height: float
    width: float = WIDTH
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    lane: float = LANE - 8

    @property
    def bottom(self) -> float:
        """Where the lanes end."""
        return self.height - BOTTOM


@dataclass(frozen=True, slots=True)
class Moment:
    """Something to mark: when (seconds), a word, and a sentence."""

    at_s: float
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """A node in one state from one moment to another, in seconds."""

    node: str
    state: str
    from_s: float
    to_s: float


def nice_ticks(low: float, high: float, count: int = _TICKS) -> list[float]:
    """About `count` round numbers that cover `low` to `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def line_chart(
    points: Sequence[tuple[float, float]],
    moments: Sequence[Moment],
    *,
    from_zero: bool,
) -> Chart:
    """A line through (seconds, value), with moments marked."""
    thin = _thinned(points)
    span = _span([x for x, _ in thin] + [m.at_s for m in moments])
    values = [y for _, y in thin]
    low = 0.0 if from_zero else min(values, default=0.0)
    high = max(values, default=1.0)
    high = high if high > low else low + 1.0
    y_ticks = nice_ticks(low, high)
    top_value = max(high, y_ticks[-1])
    x = _scale(span, LEFT, WIDTH - RIGHT)
    y = _scale((low, top_value), HEIGHT - BOTTOM, TOP)
    return Chart(
        points=" ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in thin),
        x_ticks=tuple(Tick(x(at), f"{at:g} s") for at in nice_ticks(*span)),
        y_ticks=tuple(Tick(y(value), f"{value:g}") for value in y_ticks),
        marks=_marks(moments, x),
    )


def lanes(stretches: Sequence[Stretch], moments: Sequence[Moment]) -> Lanes:
    """One lane per node, in the order of their names."""
    nodes = sorted({stretch.node for stretch in stretches})
    span = _span([s.from_s for s in stretches] + [s.to_s for s in stretches])
    x = _scale(span, LEFT, WIDTH - RIGHT)
    top_of = {node: TOP + LANE * index for index, node in enumerate(nodes)}
    bars = tuple(
        Bar(
            x=x(s.from_s),
            y=top_of[s.node],
            width=max(0.5, x(s.to_s) - x(s.from_s)),
            state=s.state,
            title=f"{s.node}: {s.state}, {s.from_s:.1f} s to {s.to_s:.1f} s",
        )
        for s in stretches
    )
    return Lanes(
        bars=bars,
        names=tuple(Tick(top_of[node] + LANE / 2, node) for node in nodes),
        x_ticks=tuple(Tick(x(at), f"{at:g} s") for at in nice_ticks(*span)),
        marks=_marks(moments, x),
        height=TOP + LANE * len(nodes) + BOTTOM,
    )


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if high > low else (low, low + 1.0)


class _scale:  # noqa: N801 - used as the function it is
    """From a value to a coordinate."""

    def __init__(self, span: tuple[float, float], begin: float, end: float) -> None:
        self._low, self._begin = span[0], begin
        self._factor = (end - begin) / (span[1] - span[0])

    def __call__(self, value: float) -> float:
        return self._begin + (value - self._low) * self._factor


def _marks(moments: Sequence[Moment], x: _scale) -> tuple[Mark, ...]:
    return tuple(Mark(x(m.at_s), m.text, m.title) for m in moments)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `_POINTS_MAX` points; of those that fall together the highest stays, so that no
    pause disappears.
    """
    if len(points) <= _POINTS_MAX:
        return list(points)
    size = math.ceil(len(points) / _POINTS_MAX)
    groups = (points[start : start + size] for start in range(0, len(points), size))
    return [max(group, key=lambda point: point[1]) for group in groups]
