"""Traces from elsewhere: read, refused by line, told, and used to drive a run."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from simulator.errors import BadTrace
from simulator.faults import Kind, draw
from simulator.meter import Totals
from simulator.scenario import FaultsTable, RepairTable, Scenario
from simulator.traces import read_csv, read_stepfun, stats

Run = Callable[..., Totals]


def row(node: str, at_days: float, kind: str, cause: str = "GPU") -> dict[str, object]:
    """One event in StepFun's form."""
    fault = {"Level": "Hardware Failure", "Class": cause, "Desc": "made up"}
    return {"node_id": node, "event_time": at_days, "event_type": kind, "fault_type": fault}


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    """One event a line, so that a row's line is known."""
    path.write_text("[\n" + ",\n".join(json.dumps(each) for each in rows) + "\n]\n", "utf-8")
    return path


def test_overlaps_and_zero_lengths_are_as_documented(tmp_path: Path) -> None:
    """Overlapping faults stay two, their time counts once; a zero-length one counts as a fault."""
    rows = [
        row("a", 1.0, "fault_start"),
        row("a", 1.5, "fault_start", "NIC"),
        row("a", 2.0, "fault_end"),
        row("a", 3.0, "fault_end", "NIC"),
        row("b", 4.0, "fault_start"),
        row("b", 4.0, "fault_end"),
        row("b", 9.0, "fault_start"),
    ]
    found = stats(read_stepfun(written(tmp_path / "t.json", rows), machines=4, days=10.0))

    assert (found.faults, found.zero_length, found.overlapping, found.open_ended) == (3, 1, 1, 1)
    assert found.unavailable == pytest.approx(2.0 / 40)
    assert found.per_1000_node_days == pytest.approx(3 / 40 * 1000)
    assert found.causes == {"GPU": 2, "NIC": 1}


def test_a_malformed_row_is_named_by_line(tmp_path: Path) -> None:
    """A bad row is refused with the file and the line on which it begins."""
    rows = [row("a", 1.0, "fault_start"), row("a", 2.0, "fault_over")]
    with pytest.raises(BadTrace, match=r"line 3: event_type = 'fault_over'"):
        read_stepfun(written(tmp_path / "t.json", rows))
    with pytest.raises(BadTrace, match="line 2: fault_end of a without a fault_start"):
        read_stepfun(written(tmp_path / "u.json", [row("a", 1.0, "fault_end")]))
    (tmp_path / "v.json").write_text('[\n{"node_id": "a"}\n]', "utf-8")
    with pytest.raises(BadTrace, match="line 2: KeyError"):
        read_stepfun(tmp_path / "v.json")


def test_a_csv_needs_its_columns_named(tmp_path: Path) -> None:
    """Columns are mapped; a missing one, a bad time and an end before its start are named."""
    path = tmp_path / "f.csv"
    path.write_text("host,begin,fixed\na,0,12\nb,24,36\n", "utf-8")
    columns = {"node": "host", "start": "begin", "end": "fixed"}

    assert stats(read_csv(path, columns, "hours")).repair_h["median"] == pytest.approx(12.0)
    with pytest.raises(BadTrace, match="line 1: no column 'node'"):
        read_csv(path, {})
    path.write_text("host,begin,fixed\na,0,12\nb,x,36\n", "utf-8")
    with pytest.raises(BadTrace, match="line 3: 'x' is no time in hours"):
        read_csv(path, columns, "hours")
    path.write_text("host,begin,fixed\na,9,3\n", "utf-8")
    with pytest.raises(BadTrace, match="line 2: ends before it starts"):
        read_csv(path, columns, "hours")


def test_an_imported_trace_drives_a_run(tmp_path: Path, small: Scenario, run: Run) -> None:
    """Faults of a trace happen at its rate: 4 machines of 40, and the first 4 of a second copy."""
    rows = [
        row(f"n{n}", n / 4 + day, kind)
        for day in range(10)
        for n in range(4)
        for kind in ("fault_start", "fault_end")
    ]
    trace = read_stepfun(written(tmp_path / "t.json", rows), machines=40, days=10.0)
    (tmp_path / "ours.json").write_bytes(msgspec.json.encode(trace))
    name = str(tmp_path / "ours.json")
    driven = replace(
        small,
        days=10.0,
        faults=FaultsTable(trace=name),
        repair=RepairTable(kind="resample", trace=name),
    )
    faults = [f for f in draw(driven, 0).faults if f.kind is Kind.HARD]
    per_machine_day = len(faults) / driven.machines / 10

    assert per_machine_day == pytest.approx(8 / 50)
    assert 0 < run(driven, "standby-swap").ettr() < 1
