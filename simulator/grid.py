"""Parameters times values: each cell replicated until its interval is narrow; parallel, resumed.

A grid is the `[grid]` table of a scenario: a key path and its values each, such as
``"fleet.standbys" = [0, 1, 2]``. Every finished replication is a line of a file, so that a grid
that was interrupted goes on where it stopped and ends with the same result.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from simulator.compare import Crew, Progress, Sample, Task
from simulator.errors import BadScenario
from simulator.scenario import Scenario
from simulator.scenario_file import build
from simulator.stats import Estimate, enough, estimate


class Cell(Struct, frozen=True, kw_only=True):
    """One combination of values and one strategy."""

    values: dict[str, Any]
    strategy: str
    ettr: Estimate
    wasted_gpu_h: Estimate
    narrow: bool
    """Whether the stopping rule held before the most replications were run."""


class Grid(Struct, frozen=True, kw_only=True):
    """All cells of which something is known; `finished` is False after Ctrl-C."""

    cells: tuple[Cell, ...]
    finished: bool


class _Head(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First line of the file of results: what its samples are of."""

    of: str


class _Line(Struct, frozen=True, kw_only=True):
    """One other line of the file of results."""

    cell: str
    replication: int
    samples: list[Sample]


def cells(raw: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], source: str) -> dict[str, Any]:
    """Build the scenario of every cell.

    Raises:
        BadScenario: an axis has no values, or a cell cannot be simulated.
    """
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise BadScenario(f"{source}: grid.{name} = {values!r}: must be a list of values")
    found: dict[str, Any] = {}
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        changed = msgspec.json.decode(msgspec.json.encode(raw))
        for path, value in chosen.items():
            table = changed
            *outer, last = path.split(".")
            for key in outer:
                table = table.setdefault(key, {})
            table[last] = value
        scenario = build(changed, f"{source}: grid {chosen}")
        found[msgspec.json.encode(chosen).decode()] = (chosen, scenario)
    return found


def run_grid(
    scenarios: Mapping[str, tuple[dict[str, Any], Scenario]],
    strategies: Sequence[str],
    results: Path,
    *,
    relative: float = 0.01,
    most: int = 100,
    workers: int = 2,
    progress: Progress | None = None,
    of: str = "",
) -> Grid:
    """Run every cell until `relative` half-width or `most` replications; resume from `results`.

    `of` names what the samples are of; a file of anything else is refused.

    Raises:
        BadScenario: `results` cannot be resumed from.
    """
    done = _read(results, of)
    batch = max(4, workers)
    finished = True
    with _opened(results) as out, Crew(workers) as crew:
        if not results.stat().st_size:
            out.write(msgspec.json.encode(_Head(of=of)) + b"\n")
        try:
            while tasks := _tasks(
                scenarios, strategies, done, relative=relative, most=most, batch=batch
            ):
                for index, samples in crew.spread([task for _, task in tasks]):
                    (key, number), _ = tasks[index]
                    done[key][number] = samples
                    line = _Line(cell=key, replication=number, samples=samples)
                    out.write(msgspec.json.encode(line) + b"\n")
                    out.flush()
                    if progress is not None:
                        progress(sum(map(len, done.values())), len(scenarios) * most)
        except KeyboardInterrupt:
            finished = False
    found = [
        _cell(chosen, strategy, place, have=done[key], strategies=strategies, relative=relative)
        for key, (chosen, _) in scenarios.items()
        for place, strategy in enumerate(strategies)
        if done.get(key)
    ]
    return Grid(cells=tuple(found), finished=finished)


def _tasks(
    scenarios: Mapping[str, tuple[dict[str, Any], Scenario]],
    strategies: Sequence[str],
    done: dict[str, dict[int, list[Sample]]],
    *,
    relative: float,
    most: int,
    batch: int,
) -> list[tuple[tuple[str, int], Task]]:
    """The next replications of every cell that is not narrow yet, with their cell and number."""
    found: list[tuple[tuple[str, int], Task]] = []
    for key, (_, scenario) in scenarios.items():
        have = done.setdefault(key, {})
        if len(have) < most and not _narrow(have, strategies, relative):
            missing = [n for n in range(most) if n not in have][:batch]
            found += [((key, n), (scenario, tuple(strategies), n)) for n in missing]
    return found


def identity(raw: Mapping[str, Any], strategies: Sequence[str]) -> str:
    """Stands for a scenario without its grid: cells may be added to a file of results later."""
    rest = {key: value for key, value in raw.items() if key not in ("grid", "live")}
    raw_bytes = msgspec.json.encode([rest, list(strategies)], order="deterministic")
    return hashlib.blake2b(raw_bytes, digest_size=16).hexdigest()


def _narrow(
    have: Mapping[int, Sequence[Sample]], strategies: Sequence[str], relative: float
) -> bool:
    if sorted(have) != list(range(len(have))):
        return False  # a replication in the middle is missing: finish it first
    return all(
        enough([have[number][place].ettr for number in sorted(have)], relative)
        for place in range(len(strategies))
    )


def _cell(
    chosen: dict[str, Any],
    strategy: str,
    place: int,
    *,
    have: Mapping[int, Sequence[Sample]],
    strategies: Sequence[str],
    relative: float,
) -> Cell:
    mine = [have[number][place] for number in sorted(have)]
    return Cell(
        values=chosen,
        strategy=strategy,
        ettr=estimate([sample.ettr for sample in mine]),
        wasted_gpu_h=estimate([sample.wasted_gpu_h for sample in mine]),
        narrow=_narrow(have, strategies, relative),
    )


def _opened(results: Path) -> BinaryIO:
    try:
        return results.open("ab")
    except OSError as error:
        raise BadScenario(f"{results}: cannot be written: {error.strerror}") from error


def _read(results: Path, of: str) -> dict[str, dict[int, list[Sample]]]:
    done: dict[str, dict[int, list[Sample]]] = {}
    if not results.exists():
        return done
    try:
        raw = results.read_bytes()
    except OSError as error:
        raise BadScenario(f"{results}: cannot be read: {error.strerror}") from error
    whole = raw[: raw.rfind(b"\n") + 1]  # a last line that was being written is run again
    if len(whole) != len(raw):
        results.write_bytes(whole)
    head, *lines = whole.splitlines() or [msgspec.json.encode(_Head(of=of))]
    try:
        made_of = msgspec.json.decode(head, type=_Head).of
        entries = [msgspec.json.decode(line, type=_Line) for line in lines]
    except msgspec.MsgspecError as error:
        raise BadScenario(f"{results}: no results of a grid: {error}") from error
    if made_of != of:
        raise BadScenario(
            f"{results}: results of another scenario or of other strategies; name another file"
        )
    for entry in entries:
        done.setdefault(entry.cell, {})[entry.replication] = entry.samples
    return done
