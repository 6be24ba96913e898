"""Verbs about data from elsewhere: import stepfun, import csv, paper."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from simulator.cli.showing import (
    HTML,
    JSON,
    Progress,
    Real,
    save,
    save_page,
    show_json,
    show_table,
    with_interval,
)
from simulator.errors import BadTrace
from simulator.pages.planning import page_of_paper
from simulator.paper import COUNT, NOT_REPRODUCED, OFF_BY, Figure, figures, off
from simulator.traces import UNITS, FaultTrace, read_csv, read_stepfun, stats

Command = Callable[..., Any]


@click.group("import")
def import_() -> None:
    """Read a fault trace, say what it is like, and write it for `faults.trace`.

    Example: simctl import stepfun faults.json --machines 400 --out trace.json
    """


def _options(command: Command) -> Command:
    for option in (
        JSON,
        click.option("--out", type=click.Path(path_type=Path), help="Write the trace there."),
        click.option("--machines", type=click.IntRange(0), default=0, help="Machines observed."),
        click.option("--days", type=Real(0), default=0.0, help="Days observed; else to the end."),
    ):
        command = option(command)
    return click.argument("file", type=click.Path(path_type=Path))(command)


@import_.command(epilog="Example: simctl import stepfun faults.json --machines 400 --json")
@_options
def stepfun(file: Path, *, machines: int, days: float, out: Path | None, as_json: bool) -> None:
    """Read the form of the InfiniteHBD trace."""
    _finish(read_stepfun(file, machines, days), out, as_json=as_json)


@import_.command("csv", epilog="Example: simctl import csv f.csv --map node=host --map end=fixed")
@_options
@click.option("--map", "mapping", multiple=True, help="ours=theirs for node, start, end, cause.")
@click.option("--unit", type=click.Choice([*UNITS, "iso"]), default="days", help="Of the times.")
def csv_(
    file: Path,
    *,
    machines: int,
    days: float,
    out: Path | None,
    as_json: bool,
    mapping: tuple[str, ...],
    unit: str,
) -> None:
    """Read one row per fault."""
    columns = {}
    for pair in mapping:
        ours, equals, theirs = pair.partition("=")
        if not equals or ours not in ("node", "start", "end", "cause"):
            raise BadTrace(f"--map {pair!r}: must be node=, start=, end= or cause= and a column")
        columns[ours] = theirs
    _finish(read_csv(file, columns, unit, machines, days), out, as_json=as_json)


def _finish(trace: FaultTrace, out: Path | None, *, as_json: bool) -> None:
    found = stats(trace)
    if out is not None:
        save(out, msgspec.json.encode(trace) + b"\n")
    if as_json:
        show_json(found)
        return
    rows = [
        (name, f"{value:.4g}" if isinstance(value, float) else value)
        for name in found.__struct_fields__
        if not isinstance(value := getattr(found, name), dict)
    ]
    rows += [(f"repair {name}, h", f"{value:.1f}") for name, value in found.repair_h.items()]
    show_table(trace.source, ("what", "value"), rows)


@click.command(epilog="Example: simctl paper --json")
@click.option("--replications", type=click.IntRange(2), default=5, help="Per figure.")
@HTML
@JSON
def paper(replications: int, *, html: Path | None, as_json: bool) -> None:
    """Simulate published figures again; fitted and predicted ones are marked apart."""
    rows: list[Figure] = []
    stopped = False
    told = Progress()
    try:
        for row in figures(replications):
            rows.append(row)
            told(len(rows), COUNT)
    except KeyboardInterrupt:
        stopped = True
    told.end()
    save_page(html, lambda: page_of_paper(rows))
    if as_json:
        found = [
            {**msgspec.to_builtins(row), "relative_error": row.error, "off": off(row, OFF_BY)}
            for row in rows
        ]
        apart = [{"name": name, "why": " ".join(why.split())} for name, why in NOT_REPRODUCED]
        show_json({"figures": found, "not_reproduced": apart})
    else:
        _show_paper(rows)
    if stopped:
        raise KeyboardInterrupt


def _show_paper(rows: list[Figure]) -> None:
    show_table(
        "published and simulated",
        ("figure", "published", "simulated", "error", "kind"),
        [
            (
                row.name,
                f"{row.published:g} {row.unit}" if row.published is not None else "-",
                with_interval(row.simulated, 3),
                _error(row),
                row.kind,
            )
            for row in rows
        ],
    )
    for name, why in NOT_REPRODUCED:
        click.echo(f"not reproduced: {name}: {' '.join(why.split())}")


def _error(row: Figure) -> str:
    if row.error is None:
        return "-"
    return f"{row.error:+.1%}{' (!)' if off(row, OFF_BY) else ''}"
