"""Where the lines of a chart go, in pixels: arithmetic from blocks to rectangles, lines and words.

The template only writes shapes down, so that what a chart shows can be tested without a browser.
"""

from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Final

from msgspec import Struct

from simulator.pages.blocks import Bars, Curve, Series, Stacks

PLOT: Final = 520
"""Width of the part of a chart that has an axis."""
LEFT: Final = 250
RIGHT: Final = 190
ROW: Final = 26
HEIGHT: Final = 300
SHADES: Final = 8
"""Colours that the template knows; more parts begin again at the first."""


class Shape(Struct, frozen=True, kw_only=True):
    """One line, rectangle, dot or piece of text; `style` is a class of the template."""

    kind: str
    x: float
    y: float
    x2: float = 0.0
    y2: float = 0.0
    style: str = "ink"
    text: str = ""
    anchor: str = "start"


class Drawing(Struct, frozen=True, kw_only=True):
    """A whole chart."""

    width: float
    height: float
    label: str
    shapes: tuple[Shape, ...]


class Axis(Struct, frozen=True):
    """Values from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value; what lies beyond an end is drawn there."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover a range: steps of 1, 2 or 5 times a power of ten."""
    span = (high - low) or abs(high) or 1.0
    raw = span / count
    power = 10.0 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = floor(low / step + 1e-9)
    found = [first * step]
    while found[-1] < high - step * 1e-6:
        found.append((first + len(found)) * step)
    if len(found) == 1:
        found.append(found[0] + step)
    return found


def _axis(low: float, high: float, start: float, end: float) -> tuple[Axis, list[float]]:
    marks = ticks(low, high)
    return Axis(marks[0], marks[-1], start, end), marks


def _words(value: float, step: float) -> str:
    digits = max(0, -floor(log10(step) + 1e-9)) if step > 0 else 0
    return f"{value:,.{digits}f}"


def _scale(axis: Axis, marks: Sequence[float], bottom: float, unit: str) -> list[Shape]:
    """Ticks below a chart of rows, with their grid lines and the unit."""
    step = marks[1] - marks[0]
    shapes: list[Shape] = []
    for value in marks:
        x = axis.at(value)
        shapes.append(Shape(kind="line", x=x, y=0, x2=x, y2=bottom, style="grid"))
        words = _words(value, step)
        shapes.append(Shape(kind="text", x=x, y=bottom + 16, text=words, anchor="middle"))
    middle = (axis.start + axis.end) / 2
    return [*shapes, Shape(kind="text", x=middle, y=bottom + 34, text=unit, anchor="middle")]


def _key(names: Sequence[str], top: float) -> list[Shape]:
    """What the colours mean, below a chart."""
    shapes: list[Shape] = []
    beside = _beside(names)
    for place, name in enumerate(names):
        if not name:
            continue
        x, y = LEFT + place % beside * 165, top + place // beside * 20
        style = f"shade{place % SHADES}"
        shapes.append(Shape(kind="rect", x=x, y=y, x2=12, y2=12, style=style))
        shapes.append(Shape(kind="text", x=x + 18, y=y + 11, text=name))
    return shapes


def _beside(names: Sequence[str]) -> int:
    """How many entries of a key stand in a row."""
    return 4 if max(map(len, names), default=0) <= 20 else 1


def _key_height(names: Sequence[str]) -> int:
    beside = _beside(names)
    return (len(names) + beside - 1) // beside * 20


def draw_bars(block: Bars) -> Drawing:
    """Lay bars out from top to bottom; an interval is a line across the end of its bar."""
    numbers = [n for bar in block.bars for n in (bar.value, bar.low, bar.high) if n is not None]
    low, high = block.ends or (min([0.0, *numbers]), max([0.0, *numbers]))
    axis, marks = _axis(low, high, LEFT, LEFT + PLOT)
    bottom = ROW * len(block.bars) + 6
    shapes = _scale(axis, marks, bottom, block.unit)
    zero = axis.at(0.0)
    for row, bar in enumerate(block.bars):
        y, end = ROW * row + 4, axis.at(bar.value)
        shapes.append(Shape(kind="text", x=LEFT - 8, y=y + 13, text=bar.name, anchor="end"))
        left, width = min(zero, end), abs(end - zero)
        style = f"shade{bar.shade % SHADES}"
        shapes.append(Shape(kind="rect", x=left, y=y, x2=width, y2=17, style=style))
        if bar.low is not None and bar.high is not None:
            shapes += _interval(axis.at(bar.low), axis.at(bar.high), y + 8.5)
        if bar.mark is not None:
            x = axis.at(bar.mark)
            shapes.append(Shape(kind="line", x=x, y=y - 3, x2=x, y2=y + 20, style="dashed"))
        shapes.append(Shape(kind="text", x=LEFT + PLOT + 12, y=y + 13, text=bar.words))
    shapes += _key(block.shades, bottom + 44)
    height = bottom + 48 + _key_height(block.shades)
    label = f"{block.title}, {block.unit}"
    return Drawing(width=LEFT + PLOT + RIGHT, height=height, label=label, shapes=tuple(shapes))


def _interval(low: float, high: float, y: float) -> list[Shape]:
    ends = [Shape(kind="line", x=x, y=y - 4, x2=x, y2=y + 4) for x in (low, high)]
    return [Shape(kind="line", x=low, y=y, x2=high, y2=y), *ends]


def draw_stacks(block: Stacks) -> Drawing:
    """Lay rows out from top to bottom, their parts from left to right."""
    longest = max((sum(stack.values) for stack in block.stacks), default=0.0)
    axis, marks = _axis(0.0, longest, LEFT, LEFT + PLOT)
    bottom = ROW * len(block.stacks) + 6
    shapes = _scale(axis, marks, bottom, block.unit)
    for row, stack in enumerate(block.stacks):
        y, done = ROW * row + 4, 0.0
        shapes.append(Shape(kind="text", x=LEFT - 8, y=y + 13, text=stack.name, anchor="end"))
        for place, value in enumerate(stack.values):
            x, style = axis.at(done), f"shade{place % SHADES}"
            done += value
            width = axis.at(done) - x
            shapes.append(Shape(kind="rect", x=x, y=y, x2=width, y2=17, style=style))
        shapes.append(Shape(kind="text", x=LEFT + PLOT + 12, y=y + 13, text=stack.words))
    shapes += _key(block.parts, bottom + 44)
    height = bottom + 48 + _key_height(block.parts)
    label = f"{block.title}, {block.unit}"
    return Drawing(width=LEFT + PLOT + RIGHT, height=height, label=label, shapes=tuple(shapes))


def draw_curve(block: Curve) -> Drawing:
    """Lay curves out on two axes; each point has its interval as a line through it."""
    points = [point for series in block.series for point in series.points]
    values = [n for point in points for n in (point.low, point.high)]
    values += [block.target] if block.target is not None else []
    y_axis, marks = _axis(min(values), max(values), HEIGHT, 28)
    places = {point.x: point.name or f"{point.x:g}" for point in points}
    x_axis = Axis(min(places), max(*places, min(places) + 1), LEFT, LEFT + PLOT)
    shapes = _frame(block, y_axis, marks, x_axis, places)
    for place, series in enumerate(block.series):
        aside = 5 * (place - (len(block.series) - 1) / 2)  # intervals do not cover each other
        shapes += _line(series, x_axis, y_axis, f"shade{place % SHADES}", aside)
    if block.target is not None:
        y = y_axis.at(block.target)
        shapes.append(Shape(kind="line", x=LEFT, y=y, x2=LEFT + PLOT, y2=y, style="dashed"))
        shapes.append(Shape(kind="text", x=LEFT + PLOT + 12, y=y + 4, text="target"))
    keys = [series.name for series in block.series] if len(block.series) > 1 else []
    shapes += _key(keys, HEIGHT + 48)
    return Drawing(
        width=LEFT + PLOT + RIGHT,
        height=HEIGHT + 52 + _key_height(keys),
        label=f"{block.title}: {block.unit} over {block.x_title}",
        shapes=tuple(shapes),
    )


def _frame(
    block: Curve,
    y_axis: Axis,
    marks: Sequence[float],
    x_axis: Axis,
    places: Mapping[float, str],
) -> list[Shape]:
    """Both axes of a curve, with their units."""
    shapes = [Shape(kind="text", x=LEFT - 10, y=12, text=block.unit, anchor="end")]
    for value in marks:
        y, words = y_axis.at(value), _words(value, marks[1] - marks[0])
        shapes.append(Shape(kind="line", x=LEFT - 4, y=y, x2=LEFT + PLOT + 4, y2=y, style="grid"))
        shapes.append(Shape(kind="text", x=LEFT - 10, y=y + 4, text=words, anchor="end"))
    for x, name in sorted(places.items()):
        place = x_axis.at(x)
        shapes.append(Shape(kind="text", x=place, y=HEIGHT + 18, text=name, anchor="middle"))
    middle = LEFT + PLOT / 2
    return [
        *shapes,
        Shape(kind="text", x=middle, y=HEIGHT + 38, text=block.x_title, anchor="middle"),
    ]


def _line(series: Series, x_axis: Axis, y_axis: Axis, style: str, aside: float) -> list[Shape]:
    shapes: list[Shape] = []
    before: tuple[float, float] | None = None
    for point in sorted(series.points, key=lambda each: each.x):
        x, y = x_axis.at(point.x) + aside, y_axis.at(point.value)
        if before is not None:
            shapes.append(
                Shape(kind="line", x=before[0], y=before[1], x2=x, y2=y, style=f"{style} thick")
            )
        low, high = y_axis.at(point.low), y_axis.at(point.high)
        shapes.append(Shape(kind="line", x=x, y=low, x2=x, y2=high, style=style))
        shapes.append(Shape(kind="dot", x=x, y=y, style=style))
        before = (x, y)
    return shapes
