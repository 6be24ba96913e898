"""Fault traces from elsewhere: read StepFun's form or a CSV, say what they are like, write ours.

An interval is one fault of one machine with its repair time. Intervals of one machine may overlap:
each stays a fault of its own, and time unavailable counts their union once. An interval of zero
length is a fault whose repair took no time: it counts as a fault and as a repair of 0 hours. A
fault that never ends within the trace is left out and counted. Malformed rows are named by line.
"""

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from simulator.errors import BadTrace
from simulator.stats import quantiles

UNITS: Final[Mapping[str, float]] = {"days": 1.0, "hours": 1 / 24, "seconds": 1 / 86_400}


class Entry(Struct, frozen=True):
    """One fault: which machine (0-based), when it began (days), how long it lasted (hours)."""

    machine: int
    at_days: float
    hours: float
    cause: str = ""


class FaultTrace(Struct, frozen=True, kw_only=True):
    """A trace in our form, in order of time."""

    machines: int
    days: float
    entries: tuple[Entry, ...]
    open_ended: int = 0
    source: str = ""


class TraceStats(Struct, frozen=True, kw_only=True):
    """What a trace is like."""

    faults: int
    machines: int
    machines_hit: int
    days: float
    per_1000_node_days: float
    repair_h: dict[str, float]
    unavailable: float
    burstiness: float
    """Coefficient of variation of the gaps between faults of the fleet; 1 for memoryless ones."""
    zero_length: int
    overlapping: int
    open_ended: int
    top_5_percent: float
    """Share of the faults on the twentieth of machines that have the most."""
    causes: dict[str, int]


def read_trace(path: Path) -> FaultTrace:
    """Read a trace that `simctl import` wrote.

    Raises:
        BadTrace: it is none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=FaultTrace)
    except OSError as error:
        raise BadTrace(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise BadTrace(f"{path}: no trace of ours ({error}); see `simctl import`") from error


def read_stepfun(path: Path, machines: int = 0, days: float = 0.0) -> FaultTrace:
    """Read the form of the InfiniteHBD trace: starts and ends as events of nodes, in days.

    Raises:
        BadTrace: names the line of the row that is none.
    """
    open_faults: dict[tuple[str, str], list[float]] = {}
    rows: list[tuple[str, float, float, str]] = []
    last_days = 0.0
    for line, row in _json_rows(path):
        node, at_days, kind, cause = _stepfun_row(path, line, row)
        last_days = max(last_days, at_days)
        started = open_faults.setdefault((node, json.dumps(row.get("fault_type"))), [])
        if kind == "fault_start":
            started.append(at_days)
        elif started:
            begin = started.pop(0)
            rows.append((node, begin, (at_days - begin) * 24, cause))
        else:
            raise BadTrace(f"{path}: line {line}: fault_end of {node} without a fault_start")
    open_ended = sum(len(started) for started in open_faults.values())
    return _trace(rows, machines, days or last_days, open_ended, path.name)


def _json_rows(path: Path) -> list[tuple[int, Any]]:
    """Every element of a JSON array with the line on which it begins."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise BadTrace(f"{path}: cannot be read: {error.strerror}") from error
    decoder = json.JSONDecoder()
    place = len(text) - len(text.lstrip())
    if text[place : place + 1] != "[":
        raise BadTrace(f"{path}: line 1: not a JSON array of events")
    rows: list[tuple[int, Any]] = []
    place, line, counted = place + 1, 1, 0
    while True:
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        if place >= len(text) or text[place] == "]":
            return rows
        line += text.count("\n", counted, place)
        counted = place
        try:
            row, place = decoder.raw_decode(text, place)
        except ValueError as error:
            raise BadTrace(f"{path}: line {line}: no JSON: {error}") from error
        rows.append((line, row))


def _stepfun_row(path: Path, line: int, row: Any) -> tuple[str, float, str, str]:
    try:
        node, at_days, kind = row["node_id"], float(row["event_time"]), row["event_type"]
        cause = row["fault_type"]["Class"]
    except (KeyError, TypeError, ValueError) as error:
        what = "node_id, event_time, event_type, fault_type.Class"
        raise BadTrace(f"{path}: line {line}: {error!r}: a row needs {what}") from error
    if kind not in ("fault_start", "fault_end"):
        raise BadTrace(
            f"{path}: line {line}: event_type = {kind!r}: must be fault_start or fault_end"
        )
    return str(node), at_days, kind, str(cause)


def read_csv(
    path: Path, columns: Mapping[str, str], unit: str = "days", machines: int = 0, days: float = 0.0
) -> FaultTrace:
    """Read one row per fault; `columns` maps node, start, end and cause to the file's names.

    Raises:
        BadTrace: names the column, or the line, that cannot be used.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise BadTrace(f"{path}: cannot be read: {error.strerror}") from error
    reader = csv.DictReader(StringIO(text))
    names = reader.fieldnames or []
    for ours in ("node", "start", "end"):
        if columns.get(ours, ours) not in names:
            known = ", ".join(names) or "none"
            raise BadTrace(
                f"{path}: line 1: no column {columns.get(ours, ours)!r} for {ours}; it has {known}"
            )
    rows = []
    open_ended = 0
    for row in reader:
        line = reader.line_num
        if not row[columns.get("end", "end")]:
            open_ended += 1
            continue
        begin = _time(path, line, row[columns.get("start", "start")], unit)
        end = _time(path, line, row[columns.get("end", "end")], unit)
        if end < begin:
            raise BadTrace(f"{path}: line {line}: ends before it starts ({end} < {begin} days)")
        cause = row.get(columns.get("cause", "cause")) or ""
        rows.append((row[columns.get("node", "node")], begin, (end - begin) * 24, cause))
    first = min((begin for _, begin, _, _ in rows), default=0.0) if unit == "iso" else 0.0
    rows = [(node, begin - first, hours, cause) for node, begin, hours, cause in rows]
    span = days or max((begin + hours / 24 for _, begin, hours, _ in rows), default=0.0)
    return _trace(rows, machines, span, open_ended, path.name)


def _time(path: Path, line: int, text: str, unit: str) -> float:
    try:
        if unit == "iso":
            return datetime.fromisoformat(text).timestamp() / 86_400
        return float(text) * UNITS[unit]
    except ValueError as error:
        raise BadTrace(f"{path}: line {line}: {text!r} is no time in {unit}") from error


def _trace(
    rows: Sequence[tuple[str, float, float, str]],
    machines: int,
    days: float,
    open_ended: int,
    source: str,
) -> FaultTrace:
    names = sorted({node for node, *_ in rows})
    if not rows or days <= 0:
        raise BadTrace(f"{source}: no fault that ends within it")
    if machines and machines < len(names):
        raise BadTrace(
            f"{source}: {len(names)} machines have faults; --machines {machines} is less"
        )
    number = {name: place for place, name in enumerate(names)}
    entries = sorted(
        (Entry(number[node], at, hours, cause) for node, at, hours, cause in rows),
        key=lambda entry: (entry.at_days, entry.machine, entry.hours),
    )
    return FaultTrace(
        machines=machines or len(names),
        days=days,
        entries=tuple(entries),
        open_ended=open_ended,
        source=source,
    )


def stats(trace: FaultTrace) -> TraceStats:
    """Say what a trace is like."""
    hours = [entry.hours for entry in trace.entries]
    by_machine: dict[int, list[tuple[float, float]]] = {}
    for entry in trace.entries:
        spans = by_machine.setdefault(entry.machine, [])
        spans.append((entry.at_days, entry.at_days + entry.hours / 24))
    unions = [_union(sorted(spans)) for spans in by_machine.values()]
    gaps = [
        after.at_days - before.at_days
        for before, after in zip(trace.entries, trace.entries[1:], strict=False)
    ]
    most = sorted((len(spans) for spans in by_machine.values()), reverse=True)
    top = most[: max(1, round(trace.machines / 20))]
    shares = quantiles(hours, (0.25, 0.5, 0.75, 0.9, 0.95, 1.0))
    names = ("p25", "median", "p75", "p90", "p95", "max")
    return TraceStats(
        faults=len(hours),
        machines=trace.machines,
        machines_hit=len(by_machine),
        days=trace.days,
        per_1000_node_days=len(hours) / trace.machines / trace.days * 1000,
        repair_h={"mean": sum(hours) / len(hours), **dict(zip(names, shares, strict=True))},
        unavailable=sum(days for days, _ in unions) / (trace.machines * trace.days),
        burstiness=_variation(gaps),
        zero_length=sum(1 for each in hours if each == 0),
        overlapping=sum(overlaps for _, overlaps in unions),
        open_ended=trace.open_ended,
        top_5_percent=sum(top) / len(hours),
        causes=dict(Counter(entry.cause for entry in trace.entries).most_common()),
    )


def _union(spans: Sequence[tuple[float, float]]) -> tuple[float, int]:
    """Days covered by sorted spans, and how many began before an earlier one had ended."""
    covered, overlaps, until = 0.0, 0, -1.0
    for begin, end in spans:
        overlaps += begin < until
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered, overlaps


def _variation(gaps: Sequence[float]) -> float:
    if len(gaps) < 2:
        return 0.0
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1)
    return float(variance**0.5 / mean) if mean else 0.0
