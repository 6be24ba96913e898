"""Results as Parquet: a row per strategy (and cell), estimates as mean, half-width and count.
Recorded vitals as Parquet: `simulator.recordings`.

The library is heavy, so it is an extra and imported when it is asked for.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.compare import Comparison
from simulator.errors import BadScenario, BadTrace
from simulator.grid import Grid
from simulator.stats import Estimate


def comparison_rows(found: Comparison) -> list[dict[str, Any]]:
    """One row per strategy, with what was compared in each."""
    head = {name: getattr(found, name) for name in ("scenario", "gpus", "days", "digest")}
    return [
        {**head, **_flat({name: getattr(row, name) for name in row.__struct_fields__})}
        for row in found.rows
    ]


def grid_rows(found: Grid) -> list[dict[str, Any]]:
    """One row per cell and strategy; a parameter is a column of its own."""
    return [
        {
            **cell.values,
            "strategy": cell.strategy,
            **_flat({"ettr": cell.ettr, "wasted_gpu_h": cell.wasted_gpu_h}),
            "narrow": cell.narrow,
        }
        for cell in found.cells
    ]


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Estimate):
            found |= {f"{name}_{part}": getattr(value, part) for part in ("mean", "half", "count")}
        else:
            found[name] = value
    return found


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to a file.

    Raises:
        BadScenario: the library is not installed, or the file cannot be written.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise BadScenario(
            f"--parquet {path}: needs pyarrow; pip install 'changeover[parquet]'"
        ) from error
    try:
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    except OSError as error:
        raise BadScenario(f"--parquet {path}: cannot be written: {error}") from error


def read_parquet(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read some columns of a file's rows.

    Raises:
        BadTrace: the library is not installed, or the file is none with these columns.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise BadTrace(f"{path}: needs pyarrow; pip install 'changeover[parquet]'") from error
    try:
        rows: list[dict[str, Any]] = pq.read_table(path, columns=list(columns)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise BadTrace(f"{path}: no recorded vitals: {str(error).splitlines()[0]}") from error
    if rows and set(rows[0]) != set(columns):
        raise BadTrace(f"{path}: no recorded vitals: a column of {', '.join(columns)} is missing")
    return rows
