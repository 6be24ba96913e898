"""What a page is made of: tables and three kinds of charts. Shapes only; nothing is drawn here."""

from msgspec import Struct


class Table(Struct, frozen=True, kw_only=True):
    """Rows of words; the first column is read, the others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


class Bar(Struct, frozen=True, kw_only=True):
    """One value with its interval; `low` and `high` are None where there is none."""

    name: str
    value: float
    words: str
    low: float | None = None
    high: float | None = None
    mark: float | None = None
    shade: int = 0
    """Which colour, and so which entry of the chart's key."""


class Bars(Struct, frozen=True, kw_only=True):
    """Values side by side on one axis, which always holds 0."""

    title: str
    unit: str
    bars: tuple[Bar, ...]
    shades: tuple[str, ...] = ()
    """The key: what each colour means; empty for one colour."""
    ends: tuple[float, float] | None = None
    note: str = ""


class Stack(Struct, frozen=True, kw_only=True):
    """One row of parts that add up."""

    name: str
    values: tuple[float, ...]
    words: str


class Stacks(Struct, frozen=True, kw_only=True):
    """Rows of parts that add up, on one axis."""

    title: str
    unit: str
    parts: tuple[str, ...]
    stacks: tuple[Stack, ...]
    note: str = ""


class Point(Struct, frozen=True, kw_only=True):
    """One point of a curve with its interval."""

    x: float
    value: float
    low: float
    high: float
    name: str = ""
    """What stands below the axis; else the number itself."""


class Series(Struct, frozen=True, kw_only=True):
    """Points that belong together."""

    name: str
    points: tuple[Point, ...]


class Curve(Struct, frozen=True, kw_only=True):
    """Curves over one parameter, with intervals; the axis of values begins where it must."""

    title: str
    x_title: str
    unit: str
    series: tuple[Series, ...]
    target: float | None = None
    note: str = ""


Block = Table | Bars | Stacks | Curve


class Page(Struct, frozen=True, kw_only=True):
    """One report."""

    title: str
    lead: str
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()
