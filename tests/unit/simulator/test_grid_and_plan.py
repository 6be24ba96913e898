"""Grids stop when they know enough and resume; plans find the fewest standbys."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from simulator.compare import compare
from simulator.errors import BadScenario
from simulator.grid import cells, run_grid
from simulator.planning import plan
from simulator.report import write_report
from simulator.scenario import Scenario

RAW = {
    "days": 0.5,
    "job": {"axes": {"pp": 2, "dp": 4, "tp": 8}},
    "faults": {"per_1000_node_days": 3000.0},
    "fleet": {"spares": 20},
}
AXES = {"fleet.standbys": [1, 2]}


def test_an_interrupted_grid_ends_with_the_same_result(tmp_path: Path) -> None:
    """A grid resumed from half of its lines, the last one torn, gives what a whole one gives."""
    whole = tmp_path / "whole.jsonl"
    found = run_grid(cells(RAW, AXES, "t"), ["standby-swap"], whole, most=6, workers=1)
    lines = whole.read_bytes().splitlines(keepends=True)
    half = tmp_path / "half.jsonl"
    half.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    again = run_grid(cells(RAW, AXES, "t"), ["standby-swap"], half, most=6, workers=1)

    assert again == found
    assert len(half.read_bytes().splitlines()) == len(lines)


def test_a_narrow_cell_stops_early(tmp_path: Path) -> None:
    """A wide tolerance needs few replications, and says that it held."""
    results = tmp_path / "r.jsonl"
    found = run_grid(
        cells(RAW, AXES, "t"), ["standby-swap"], results, relative=0.5, most=40, workers=1
    )

    assert all(cell.narrow and cell.ettr.count < 40 for cell in found)


def test_an_axis_that_does_not_exist_is_refused() -> None:
    """A key path of a grid is checked like one of the file."""
    with pytest.raises(BadScenario, match=r"fleet.standby = 1: no such key"):
        cells(RAW, {"fleet.standby": [1]}, "t")


def test_a_plan_names_the_fewest_standbys(small: Scenario) -> None:
    """The chosen point is the first whose interval lies above the target; none if none does."""
    few = replace(small, replications=5)
    found = plan(few, 0.9, counts=(0, 1, 2, 3, 4))
    chosen = next(p for p in found.curve if p.ettr.low >= 0.9)

    assert found.standbys == chosen.standbys
    assert found.idle_gpu_h == chosen.idle_gpu_h
    assert plan(few, 1.0, counts=(0, 1)).standbys is None


def test_processes_change_nothing(small: Scenario) -> None:
    """Two workers and one give the same bytes."""
    few = replace(small, replications=3, days=0.5)
    names = ["checkpoint-restart", "standby-swap"]

    assert compare(few, names, 2).digest == compare(few, names, 1).digest


def test_a_report_stands_alone(small: Scenario) -> None:
    """The page loads nothing, escapes names, and is readable in light and dark."""
    named = replace(small, name="<b>x", replications=2, days=0.2)
    page = write_report(named, compare(named, ["checkpoint-restart"]))

    assert "<b>x" not in page
    assert "&lt;b&gt;x" in page
    assert "prefers-color-scheme: dark" in page
    assert "src=" not in page
    assert "http" not in page
    assert "<script" not in page
