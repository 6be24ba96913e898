"""Pages of what simulates: run, compare, grid, plan, paper."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.compare import Comparison, Row
from simulator.grid import Cell, Grid
from simulator.models import MODELS
from simulator.pages.blocks import (
    Bar,
    Bars,
    Block,
    Curve,
    Page,
    Point,
    Series,
    Stack,
    Stacks,
    Table,
)
from simulator.paper import NOT_REPRODUCED, OFF_BY, Figure, off
from simulator.planning import Plan
from simulator.scenario import Scenario
from simulator.stats import Estimate

ETTR = "ETTR: share of wall time that became work"
INTERVAL = "Lines across are 95 % intervals over replications."


def ends_of(found: Estimate) -> tuple[float | None, float | None]:
    """The interval, or nothing where one replication has none."""
    return (found.low, found.high) if found.count > 1 else (None, None)


def told(found: Estimate, digits: int = 4) -> str:
    """A mean with half its interval."""
    if found.count < 2:
        return f"{found.mean:,.{digits}f}"
    return f"{found.mean:,.{digits}f} ± {found.half:,.{digits}f}"


def costs_note(scenario: Scenario) -> str:
    """Which costs went in, where they are from, and what of them is measured."""
    model, given = MODELS[scenario.costs.model], scenario.costs.overrides
    notes = f"; {model.notes}" if model.notes else ""
    replaced = f"Replaced: {', '.join(given)}." if given else "Nothing of it is measured here."
    return f"Costs: {model.name}, {model.source}{notes}. {replaced}"


def page_of_comparison(scenario: Scenario, found: Comparison) -> Page:
    """Strategies on common faults: ETTR, the pairwise difference, and everything in numbers."""
    first = found.rows[0].strategy
    bars = Bars(
        title="Share of wall time that became work",
        unit=ETTR,
        bars=tuple(_bar(row, row.ettr, row.closed_form) for row in found.rows),
        ends=(0.0, 1.0),
        note=f"{INTERVAL} Dashed: a closed form, where one reaches.",
    )
    apart = Bars(
        title=f"Against {first}, on the same faults",
        unit=f"difference of the ETTR, {first} = 0",
        bars=tuple(_bar(row, row.difference, None) for row in found.rows[1:]),
        note=f"{INTERVAL} Differences are taken replication by replication.",
    )
    names = ("strategy", "what it does", "ETTR", "closed form", "wasted, GPU-h", "cost, USD")
    more = ("losses", "cold", "from checkpoint", "down, median s", "down, p99 s", "operator, h")
    rows = tuple(_cells(row) for row in found.rows)
    table = Table(title="In numbers, per replication", columns=(*names, *more), rows=rows)
    blocks: tuple[Block, ...] = (bars, apart, table) if len(found.rows) > 1 else (bars, table)
    return Page(
        title=found.scenario,
        lead=f"{found.gpus:,} GPUs, {found.days:g} days, {found.replications} replications on "
        f"common faults. Digest {found.digest}.",
        blocks=blocks,
        notes=(costs_note(scenario),),
    )


def _bar(row: Row, found: Estimate, mark: float | None) -> Bar:
    low, high = ends_of(found)
    return Bar(
        name=row.strategy, value=found.mean, low=low, high=high, mark=mark, words=told(found)
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.strategy,
        row.words,
        told(row.ettr),
        f"{row.closed_form:.4f}" if row.closed_form is not None else "-",
        told(row.wasted_gpu_h, 0),
        f"{row.cost_usd:,.0f}",
        f"{row.losses:.1f}",
        f"{row.cold:.1f}",
        f"{row.restored:.2f}",
        f"{row.downtime_p50_s:.1f}",
        f"{row.downtime_p99_s:.1f}",
        f"{row.human_h:.1f}",
    )


_LOST = ("slow or stalled", "thrown away", "standing still", "planned pauses")


def page_of_run(scenario: Scenario, found: Mapping[str, Any]) -> Page:
    """One replication of one strategy: where its wall time went, and every sum."""
    blocks: list[Block] = []
    if "wall_s" in found:
        lost_s = [float(found[key]) for key in ("slow_s", "lost_s", "down_s", "planned_s")]
        hours = tuple(seconds / 3600 for seconds in lost_s)
        work_h = float(found["wall_s"]) / 3600 - sum(hours)
        blocks += [
            Stacks(
                title="Where the wall time went",
                unit="hours of the whole job",
                parts=("work that counts", *_LOST),
                stacks=(Stack(name="", values=(work_h, *hours), words=f"{work_h:,.2f} h work"),),
                note="One replication: what it says has no interval; `compare` gives one.",
            ),
            Stacks(
                title="What was no work that counts",
                unit="hours of the whole job",
                parts=_LOST,
                stacks=(Stack(name="", values=hours, words=f"{sum(hours):,.2f} h"),),
            ),
        ]
    rows = tuple(
        (name, f"{value:,.4f}" if isinstance(value, float) else str(value))
        for name, value in found.items()
    )
    blocks.append(Table(title="Every sum", columns=("what", "value"), rows=rows))
    return Page(
        title=f"{scenario.name}: {found['strategy']}",
        lead=f"{scenario.ranks:,} GPUs, {scenario.days:g} days, replication "
        f"{found['replication']}, seed {scenario.seed}.",
        blocks=tuple(blocks),
        notes=(costs_note(scenario),),
    )


def page_of_plan(scenario: Scenario, found: Plan) -> Page:
    """The curve of ETTR and of cost over the number of standbys, and what is answered."""
    points = tuple(
        Point(x=p.standbys, value=p.ettr.mean, low=p.ettr.low, high=p.ettr.high)
        for p in found.curve
    )
    reached = Curve(
        title="What standbys reach",
        x_title="standbys",
        unit="ETTR",
        series=(Series(name="ETTR", points=points),),
        target=found.target,
        note=f"{INTERVAL} The target is reached where the whole interval lies above the line.",
    )
    idle = Bars(
        title="What they cost while idle",
        unit=f"GPU-hours in {scenario.days:g} days (mean over replications)",
        bars=tuple(
            Bar(name=f"{p.standbys} standbys", value=p.idle_gpu_h, words=f"{p.idle_gpu_h:,.0f}")
            for p in found.curve
        ),
    )
    columns = ("standbys", "ETTR", "idle, GPU-h", "wasted in all, GPU-h", "cold starts")
    rows = tuple(
        (
            str(p.standbys),
            told(p.ettr),
            f"{p.idle_gpu_h:,.0f}",
            f"{p.wasted_gpu_h:,.0f}",
            f"{p.cold:.1f}",
        )
        for p in found.curve
    )
    return Page(
        title=f"{scenario.name}: standbys for an ETTR of {found.target:g}",
        lead=f"{scenario.ranks:,} GPUs, {scenario.days:g} days: {found.reason}. Idle: "
        f"{found.idle_gpu_h:,.0f} GPU-h = {found.idle_usd:,.0f} USD. Checkpoint every "
        f"{found.checkpoint_interval_s:,.0f} s (Young and Daly).",
        blocks=(reached, idle, Table(title="The curve in numbers", columns=columns, rows=rows)),
        notes=(costs_note(scenario),),
    )


def page_of_grid(scenario: Scenario, found: Grid) -> Page:
    """Curves over the first parameter, one per other value and strategy, and every cell."""
    names = tuple(found.cells[0].values) if found.cells else ()
    blocks: list[Block] = []
    if names:
        blocks.append(
            Curve(
                title=f"ETTR over {names[0]}",
                x_title=names[0],
                unit="ETTR",
                series=tuple(_series(found.cells, names)),
                note=INTERVAL,
            )
        )
    columns = (*names, "strategy", "ETTR", "wasted, GPU-h", "replications", "narrow enough")
    rows = tuple(
        (
            *(str(cell.values[name]) for name in names),
            cell.strategy,
            told(cell.ettr),
            told(cell.wasted_gpu_h, 0),
            str(cell.ettr.count),
            "yes" if cell.narrow else "no",
        )
        for cell in found.cells
    )
    blocks.append(Table(title="Every cell", columns=columns, rows=rows))
    whole = "Every cell is done." if found.finished else "Interrupted: what was done by then."
    return Page(
        title=f"{scenario.name}: grid",
        lead=f"{len(found.cells)} cells over {', '.join(names)}. {whole}",
        blocks=tuple(blocks),
        notes=(costs_note(scenario),),
    )


def _series(cells: Sequence[Cell], names: tuple[str, ...]) -> list[Series]:
    first, rest = names[0], names[1:]
    values = list(dict.fromkeys(str(cell.values[first]) for cell in cells))
    numeric = all(isinstance(cell.values[first], int | float) for cell in cells)
    lines: dict[str, list[Point]] = {}
    for cell in cells:
        label = ", ".join((cell.strategy, *(f"{n} = {cell.values[n]}" for n in rest)))
        half = cell.ettr.half if cell.ettr.count > 1 else 0.0
        value = cell.values[first]
        point = Point(
            x=float(value) if numeric else values.index(str(value)),
            value=cell.ettr.mean,
            low=cell.ettr.mean - half,
            high=cell.ettr.mean + half,
            name=str(value),
        )
        lines.setdefault(label, []).append(point)
    return [Series(name=label, points=tuple(points)) for label, points in lines.items()]


def page_of_paper(rows: Sequence[Figure]) -> Page:
    """Relative errors of what is published, fitted and predicted apart, and every row."""
    known = [(number, row) for number, row in enumerate(rows, 1) if row.published]
    missed = [row for _, row in known if row.kind == "predicted" and off(row, OFF_BY)]
    errors = Bars(
        title="Relative error of each figure",
        unit="simulated over published, less 1, in percent",
        bars=tuple(_error_bar(number, row) for number, row in known),
        shades=("fitted", "predicted", "", f"off by over {OFF_BY:.0%}"),
        ends=(-50.0, 50.0),
        note="A fitted figure shows only that an input comes out again. Lines across are 95 % "
        "intervals of the simulated value; what lies beyond 50 % ends there.",
    )
    columns = ("figure", "published", "simulated", "error", "kind", "inputs", "source", "note")
    cells = tuple(
        (
            f"{number}. {row.name}",
            f"{row.published:g} {row.unit}" if row.published is not None else "-",
            f"{told(row.simulated, 3)} {row.unit}",
            f"{row.error:+.1%}" if row.error is not None else "-",
            row.kind,
            row.inputs,
            row.source,
            row.note,
        )
        for number, row in enumerate(rows, 1)
    )
    apart = tuple((name, " ".join(why.split())) for name, why in NOT_REPRODUCED)
    return Page(
        title="what is published, simulated again",
        lead=f"{len(rows)} figures; of {len(known)} with a published number, {len(missed)} that "
        f"were predicted are off by more than {OFF_BY:.0%}.",
        blocks=(
            errors,
            Table(title="Every figure", columns=columns, rows=cells),
            Table(title="Not reproduced", columns=("what", "why"), rows=apart),
        ),
    )


def _error_bar(number: int, row: Figure) -> Bar:
    """The error of a figure; the table has its whole name under the same number."""
    assert row.published
    assert row.error is not None
    shade = 0 if row.kind == "fitted" else 3 if off(row, OFF_BY) else 1
    low, high = ends_of(row.simulated)
    return Bar(
        name=f"{number}. {row.name.partition(':')[0]}",
        value=row.error * 100,
        low=None if low is None else (low / row.published - 1) * 100,
        high=None if high is None else (high / row.published - 1) * 100,
        words=f"{row.error:+.1%}",
        shade=shade,
    )
