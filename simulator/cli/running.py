"""Verbs that simulate: run, compare, grid, plan."""

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

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
from simulator.compare import Comparison, one
from simulator.compare import compare as run_compare
from simulator.core import encode_entry
from simulator.errors import BadScenario
from simulator.faults import draw
from simulator.grid import Grid, cells, identity, run_grid
from simulator.pages.planning import page_of_comparison, page_of_grid, page_of_plan, page_of_run
from simulator.parquet import comparison_rows, grid_rows, write_parquet
from simulator.parts import DEFAULT, STRATEGIES
from simulator.planning import plan as run_plan
from simulator.scenario import Scenario
from simulator.scenario_file import load
from simulator.world import World
from statemachine.events import Recorded

SCENARIO = click.argument("scenario", type=click.Path(path_type=Path))
WORKERS = click.option(
    "--workers", type=click.IntRange(1), default=os.cpu_count() or 1, help="Processes."
)
REPLICATIONS = click.option("--replications", type=click.IntRange(1), help="Instead of the file's.")
PARQUET = click.option(
    "--parquet",
    type=click.Path(path_type=Path),
    help="Write the rows there; needs changeover[parquet].",
)
SEED = click.option("--seed", type=int, help="Instead of the file's.")


def known(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a strategy that does not exist."""
    for name in names:
        if name not in STRATEGIES:
            near = difflib.get_close_matches(name, STRATEGIES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(STRATEGIES)}"
            raise BadScenario(f"strategy {name!r}: no such strategy; {hint}")
    return names


def _read(path: Path, seed: int | None, replications: int | None) -> Scenario:
    scenario = load(path)
    if seed is not None:
        scenario = replace(scenario, seed=seed)
    if replications is not None:
        scenario = replace(scenario, replications=replications)
    return scenario


@click.command(epilog="Example: simctl run scenarios/llm_8k.toml --strategy standby-swap --json")
@SCENARIO
@click.option("--strategy", default="standby-swap-guard", help="Which strategy.")
@click.option("--replication", type=click.IntRange(0), default=0, help="Which replication.")
@click.option("--log", type=click.Path(path_type=Path), help="Write the event log there.")
@click.option("--explicit", is_flag=True, help="Give every node a record, from its launch on.")
@HTML
@SEED
@JSON
def run(
    scenario: Path,
    strategy: str,
    replication: int,
    *,
    log: Path | None,
    explicit: bool,
    html: Path | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Run one strategy once and print where the time went, and a digest."""
    read = _read(scenario, seed, None)
    known((strategy,))
    if log is not None or explicit:
        found = _logged(read, strategy, replication, log, explicit=explicit)
    else:
        sample = one(read, strategy, replication)
        found = {name: getattr(sample, name) for name in sample.__struct_fields__}
    save_page(html, lambda: page_of_run(read, found))
    if as_json:
        show_json(found)
        return
    rows = [(name, f"{v:.4f}" if isinstance(v, float) else v) for name, v in found.items()]
    show_table(f"{read.name}: {read.ranks} GPUs, {read.days:g} days", ("what", "value"), rows)


def _logged(
    scenario: Scenario, strategy: str, replication: int, log: Path | None, *, explicit: bool
) -> dict[str, Any]:
    if STRATEGIES[strategy].family != "swap":
        raise BadScenario(f"strategy {strategy!r}: only swap strategies have an event log")
    entries: list[Recorded] = []
    world = World(
        scenario,
        STRATEGIES[strategy],
        draw(scenario, replication),
        replication,
        explicit=explicit or log is not None,
        keep=entries.append,
    )
    totals = world.run()
    if log is not None:
        save(log, b"".join(encode_entry(entry) + b"\n" for entry in entries))
    return {
        "strategy": strategy,
        "replication": replication,
        "ettr": totals.ettr(),
        "losses": totals.losses,
        "planned": totals.planned,
        "cold": totals.cold,
        "wall_s": totals.wall_s,
        "slow_s": totals.slow_s,
        "lost_s": totals.lost_s,
        "down_s": totals.down_s,
        "planned_s": totals.planned_s,
        "restored": totals.restored,
        "entries": len(entries),
        "digest": world.core.digest,
    }


@click.command(epilog="Example: simctl compare scenarios/llm_64k.toml --replications 50")
@SCENARIO
@click.option("--strategy", "strategies", multiple=True, help="Once for each; the first is 'vs'.")
@HTML
@PARQUET
@REPLICATIONS
@SEED
@WORKERS
@JSON
def compare(
    scenario: Path,
    strategies: tuple[str, ...],
    *,
    html: Path | None,
    parquet: Path | None,
    replications: int | None,
    seed: int | None,
    workers: int,
    as_json: bool,
) -> None:
    """Compare strategies on the same faults, with intervals, beside a closed form."""
    read = _read(scenario, seed, replications)
    chosen = known(strategies or read.strategies or DEFAULT)
    found = run_compare(read, chosen, workers, Progress())
    save_page(html, lambda: page_of_comparison(read, found))
    if parquet is not None:
        write_parquet(parquet, comparison_rows(found))
    if as_json:
        show_json(found)
    else:
        _show_comparison(found)
    if found.replications < read.replications:
        raise KeyboardInterrupt


def _show_comparison(found: Comparison) -> None:
    title = (
        f"{found.scenario}: {found.gpus} GPUs, {found.days:g} days, "
        f"{found.replications} replications, digest {found.digest}"
    )
    columns = ("strategy", "ETTR", "closed form", "vs first", "wasted GPU-h", "median/p99 down s")
    rows = [
        (
            row.strategy,
            with_interval(row.ettr),
            f"{row.closed_form:.4f}" if row.closed_form is not None else "-",
            with_interval(row.difference),
            with_interval(row.wasted_gpu_h, 0),
            f"{row.downtime_p50_s:.1f} / {row.downtime_p99_s:.1f}",
        )
        for row in found.rows
    ]
    show_table(title, columns, rows)


@click.command(epilog="Example: simctl grid scenarios/standbys.toml --results grid.jsonl")
@SCENARIO
@click.option("--results", type=click.Path(path_type=Path), required=True, help="To resume from.")
@click.option(
    "--relative",
    type=Real(0, min_open=True),
    default=0.01,
    help="Half-width that is narrow enough.",
)
@click.option("--most", type=click.IntRange(2), default=50, help="Replications at most.")
@HTML
@PARQUET
@WORKERS
@JSON
def grid(
    scenario: Path,
    results: Path,
    *,
    relative: float,
    most: int,
    html: Path | None,
    parquet: Path | None,
    workers: int,
    as_json: bool,
) -> None:
    """Run the file's [grid] of parameters, each cell until its interval is narrow."""
    read = load(scenario)
    raw = tomllib.loads(scenario.read_text("utf-8"))
    axes = raw.pop("grid", None)
    if not isinstance(axes, dict) or not axes:
        raise BadScenario(f"{scenario}: grid: no such table; it maps key paths to lists of values")
    strategies = known(read.strategies or ("standby-swap",))
    found = run_grid(
        cells(raw, axes, str(scenario)),
        strategies,
        results,
        relative=relative,
        most=most,
        workers=workers,
        progress=Progress(),
        of=identity(raw, strategies),
    )
    save_page(html, lambda: page_of_grid(read, found))
    if parquet is not None:
        write_parquet(parquet, grid_rows(found))
    if as_json:
        show_json(found)
    else:
        _show_grid(found)
    if not found.finished:
        raise KeyboardInterrupt


def _show_grid(found: Grid) -> None:
    rows = [
        (
            ", ".join(f"{k}={v}" for k, v in cell.values.items()),
            cell.strategy,
            with_interval(cell.ettr),
            cell.ettr.count,
            "yes" if cell.narrow else "no",
        )
        for cell in found.cells
    ]
    show_table("grid", ("cell", "strategy", "ETTR", "replications", "narrow"), rows)


@click.command(epilog="Example: simctl plan scenarios/llm_64k.toml --target-ettr 0.97")
@SCENARIO
@click.option("--target-ettr", type=Real(0, 1), required=True, help="Share of time.")
@HTML
@REPLICATIONS
@WORKERS
@JSON
def plan(
    scenario: Path,
    target_ettr: float,
    *,
    html: Path | None,
    replications: int | None,
    workers: int,
    as_json: bool,
) -> None:
    """Find how many standbys reach a target, and what they cost while idle."""
    read = _read(scenario, None, replications)
    found = run_plan(read, target_ettr, workers, Progress())
    save_page(html, lambda: page_of_plan(read, found))
    if as_json:
        show_json(found)
    else:
        rows = [
            (p.standbys, with_interval(p.ettr), f"{p.idle_gpu_h:.0f}", f"{p.cold:.1f}")
            for p in found.curve
        ]
        show_table(found.reason, ("standbys", "ETTR", "idle GPU-h", "cold starts"), rows)
        click.echo(
            f"idle {found.idle_gpu_h:.0f} GPU-h = {found.idle_usd:.0f} USD in {read.days:g} days; "
            f"checkpoint every {found.checkpoint_interval_s:.0f} s (Young and Daly)"
        )
    if not found.finished:
        raise KeyboardInterrupt
    if found.standbys is None:
        raise click.exceptions.Exit(1)
