"""Recorded vitals: what a controller kept of what its detector was told, as lines or as a table.

What belongs here: reading a recording, and writing one as Parquet. Lines are what a controller
keeps (`CHANGEOVER_VITALS_HISTORY`): one for each batch with the clock's time, and one for each
node that was forgotten meanwhile. Lines of bare vitals are read as well, each as a batch of its
own at the time at which its window ended.

A Parquet file has a row for each window, with a column for each statistic of each metric, for
whoever looks for something else; and a row for each entry without one. What the detector is told is
in the columns `entry`, `at_ms` and `raw` alone, so that nothing is lost on the way.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from msgspec import MsgspecError, Struct, convert, json

from simulator.errors import BadTrace
from simulator.parquet import read_parquet, write_parquet
from statemachine.ids import NodeId
from statemachine.vitals import Vitals, encode_vitals

SUFFIX: Final = ".parquet"
_TOLD: Final = ("entry", "at_ms", "raw")
_PLAIN: Final = ("node", "incarnation", "window", "job", "role", "slot", "epoch", "phase", "steps")
_STATISTICS: Final = ("mean", "p50", "p95")


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a recording."""

    at_ms: int = 0
    batch: tuple[Vitals, ...] | None = None
    forgotten: NodeId | None = None
    withdrawn: NodeId | None = None
    policy: dict[str, Any] | None = None


def read(path: Path) -> Iterator[Entry]:
    """Yield the entries of a recording.

    Raises:
        BadTrace: the file cannot be read; the line that is none is named.
    """
    if path.suffix == SUFFIX:
        yield from _rows(path)
        return
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _entry(path, number, line)
    except OSError as error:
        raise BadTrace(f"{path}: cannot be read: {error.strerror}") from error


def _entry(path: Path, number: int, line: bytes) -> Entry:
    try:
        found = json.decode(line)
        if isinstance(found, dict) and "metrics" in found:
            vitals = convert(found, Vitals)
            return Entry(at_ms=vitals.ended_at_ms, batch=(vitals,))
        return convert(found, Entry)
    except MsgspecError as error:
        raise BadTrace(f"{path}:{number}: no recorded vitals: {error}") from error


def write(entries: Iterable[Entry], path: Path) -> int:
    """Write a recording as Parquet; return how many windows it has.

    Raises:
        BadScenario: the library is not installed, or the file cannot be written.
    """
    rows = [row for number, entry in enumerate(entries) for row in _rows_of(number, entry)]
    names = dict.fromkeys(name for row in rows for name in row)
    write_parquet(path, [{name: row.get(name) for name in names} for row in rows])
    return sum("window" in row for row in rows)


def _rows_of(number: int, entry: Entry) -> Iterator[dict[str, Any]]:
    told = {"entry": number, "at_ms": entry.at_ms}
    if not entry.batch:
        yield told | {"raw": json.encode(entry).decode()}
        return
    for vitals in entry.batch:
        row = told | {"raw": encode_vitals(vitals).decode()}
        row |= {name: getattr(vitals, name) for name in _PLAIN}
        for name, metric in vitals.metrics.items():
            row |= {f"{name}_{each}": getattr(metric, each) for each in _STATISTICS}
        yield row


def _rows(path: Path) -> Iterator[Entry]:
    rows = read_parquet(path, _TOLD)
    for number, several in groupby(rows, key=lambda row: row["entry"]):
        told = list(several)
        found = [_entry(path, number, str(row["raw"]).encode()) for row in told]
        windows = [vitals for entry in found for vitals in entry.batch or ()]
        yield Entry(at_ms=told[0]["at_ms"], batch=tuple(windows)) if windows else found[0]
