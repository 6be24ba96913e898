"""Grids stop when they know enough and resume; plans find the fewest standbys."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from simulator.compare import compare
from simulator.errors import BadScenario
from simulator.grid import cells, identity, run_grid
from simulator.parquet import comparison_rows, grid_rows, write_parquet
from simulator.planning import plan
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
    assert found.finished
    assert len(half.read_bytes().splitlines()) == len(lines)


def test_a_grid_resumes_from_nothing_else(tmp_path: Path) -> None:
    """Results of another scenario, or lines that are none, are refused with the file's name."""
    results = tmp_path / "r.jsonl"
    other = {**RAW, "days": 0.25}
    run_grid(
        cells(RAW, {"fleet.standbys": [1]}, "t"),
        ["standby-swap"],
        results,
        most=5,
        workers=1,
        of=identity(RAW, ["standby-swap"]),
    )

    assert identity(RAW, ["standby-swap"]) == identity({**RAW, "grid": {}}, ["standby-swap"])
    with pytest.raises(BadScenario, match=r"r\.jsonl: results of another scenario"):
        run_grid({}, ["standby-swap"], results, of=identity(other, ["standby-swap"]))
    results.write_text("{}\n", "utf-8")
    with pytest.raises(BadScenario, match=r"r\.jsonl: no results of a grid"):
        run_grid({}, ["standby-swap"], results)


def test_results_are_read_back_from_parquet(tmp_path: Path, small: Scenario) -> None:
    """A comparison and a grid written as Parquet are, read back, the rows that were shown."""
    import pyarrow.parquet as pq

    found = compare(replace(small, replications=2, days=0.2), ["checkpoint-restart", "hot-spares"])
    write_parquet(tmp_path / "c.parquet", comparison_rows(found))
    rows = pq.read_table(tmp_path / "c.parquet").to_pylist()
    grid = run_grid(cells(RAW, AXES, "t"), ["hot-spares"], tmp_path / "r", most=5, workers=1)
    write_parquet(tmp_path / "g.parquet", grid_rows(grid))
    cells_read = pq.read_table(tmp_path / "g.parquet").to_pylist()

    assert [row["strategy"] for row in rows] == ["checkpoint-restart", "hot-spares"]
    assert [row["ettr_mean"] for row in rows] == [row.ettr.mean for row in found.rows]
    assert [row["fleet.standbys"] for row in cells_read] == [1, 2]
    assert all(row["ettr_count"] == 5 for row in cells_read)


def test_a_narrow_cell_stops_early(tmp_path: Path) -> None:
    """A wide tolerance needs few replications, and says that it held."""
    results = tmp_path / "r.jsonl"
    found = run_grid(
        cells(RAW, AXES, "t"), ["standby-swap"], results, relative=0.5, most=40, workers=1
    )

    assert len(found.cells) == 2
    assert all(cell.narrow and cell.ettr.count < 40 for cell in found.cells)


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
