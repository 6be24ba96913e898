"""What a fault looks like: input, or computing, and there which of its gauges is off.

What belongs here: telling kinds of long work apart by what else the node and its peers report in
the same window. Gauges of hardware explain, and may bear out; they never accuse by themselves.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from statemachine.columns import Columns
from statemachine.ids import NodeId
from statemachine.vitals import (
    CPU_MS,
    CPU_PRESSURE,
    CPU_STEAL,
    DATA_MS,
    GPU_POWER_W,
    GPU_TEMP_C,
    SM_CLOCK_MHZ,
    THROTTLED,
    WORK_MS,
)

INPUT: Final = "input: it waits for data"
COMPUTE: Final = "compute"


class _Gauge(NamedTuple):
    """A gauge, how far from its peers it must be to speak, and what it then says.

    `ratio` below 1 is the most it may be of its peers' median; else `excess` is the least that it
    must be above them, in its own unit.
    """

    metric: str
    says: str
    ratio: float = 0.0
    excess: float = 0.0


_GAUGES: Final = (
    _Gauge(CPU_STEAL, "compute: processor time stolen from it", excess=0.05),
    _Gauge(THROTTLED, "compute: throttled", excess=0.2),
    _Gauge(SM_CLOCK_MHZ, "compute: low clock", ratio=0.95),
    _Gauge(GPU_POWER_W, "compute: low power", ratio=0.90),
    _Gauge(CPU_PRESSURE, "compute: its processors are wanted elsewhere", excess=0.2),
)
"""The literal table; the first that speaks names the cause."""

_HOT_C: Final = 5.0
"""Degrees above the peers from which a low clock is a matter of heat."""

_MOSTLY: Final = 0.5
"""Share of the excess work that data or processor time must show to be called its cause."""


def hardware_speaks(node: NodeId, columns: Columns) -> Iterator[tuple[str, float, float, float]]:
    """Yield (metric, own value, peers' median, score) of each gauge that is off on the bad side."""
    for gauge in _GAUGES:
        beside = _beside(node, columns, gauge.metric)
        if beside is not None and _is_off(gauge, *beside):
            own, usual = beside
            yield gauge.metric, own, usual, abs(own - usual) / max(abs(usual), 1e-9)


def cause_of(node: NodeId, columns: Columns) -> str:
    """Say what long work of a node looks like."""
    excess_ms = _excess(node, columns, WORK_MS)
    if excess_ms > 0 and _excess(node, columns, DATA_MS) >= _MOSTLY * excess_ms:
        return INPUT
    for gauge in _GAUGES:
        beside = _beside(node, columns, gauge.metric)
        if beside is None or not _is_off(gauge, *beside):
            continue
        if (
            gauge.metric in (THROTTLED, SM_CLOCK_MHZ)
            and _excess(node, columns, GPU_TEMP_C) >= _HOT_C
        ):
            return "compute: heat"
        return gauge.says
    if excess_ms > 0 and _excess(node, columns, CPU_MS) >= _MOSTLY * excess_ms:
        return "compute: it computes longer"
    return COMPUTE


def _is_off(gauge: _Gauge, own: float, usual: float) -> bool:
    if gauge.ratio:
        return usual > 0 and own <= gauge.ratio * usual
    return own - usual >= gauge.excess


def _beside(node: NodeId, columns: Columns, metric: str) -> tuple[float, float] | None:
    return columns.of(metric).beside_peers(node, 2)


def _excess(node: NodeId, columns: Columns, metric: str) -> float:
    beside = _beside(node, columns, metric)
    return beside[0] - beside[1] if beside is not None else 0.0
