"""Verbs about a campaign on a live fleet: what it would do, and what came of it."""

from pathlib import Path

import click

from simulator.campaign import campaign as run_campaign
from simulator.cli.showing import HTML, JSON, save_page, show_json, show_table
from simulator.pages.telling import page_of_validation
from simulator.validating import origins
from simulator.validating import validate as run_validate


@click.command(epilog="Example: simctl campaign scenarios/live.toml --json")
@click.argument("scenario", type=click.Path(path_type=Path))
@JSON
def campaign(scenario: Path, *, as_json: bool) -> None:
    """Print what `changeover demo --scenario` would do to a local fleet, and when."""
    found = run_campaign(scenario)
    if as_json:
        show_json(found)
        return
    rows = [
        (
            f"{each.at_s:.1f}",
            each.kind,
            f"slot {each.slot}" if each.kind == "drain" else f"n{each.machine}",
            f"{each.factor:g}" if each.kind == "grey" else "-",
            f"{each.away_s:.1f}",
        )
        for each in found.injections
    ]
    title = f"{found.name}: {found.seconds:g} s on {found.axes}, {found.standbys} standbys"
    show_table(title, ("at s", "what", "whom", "factor", "away s"), rows)


@click.command(epilog="Example: simctl validate runs/demo-1 --costs runs/demo-2/events.jsonl")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--costs", type=click.Path(path_type=Path), help="Log of another run to cost by.")
@HTML
@JSON
def validate(run: Path, costs: Path | None, *, html: Path | None, as_json: bool) -> None:
    """Simulate a campaign that was played; put simulated and measured side by side."""
    found = run_validate(run, costs)
    save_page(html, lambda: page_of_validation(run.name, found))
    if as_json:
        show_json(found)
        return
    rows = [
        (
            f"{pair.kind} of n{pair.machine} at {pair.at_s:.1f} s",
            _node(pair.measured_replacement),
            _node(pair.simulated_replacement),
            _ms(pair.measured_ms),
            _ms(pair.simulated_ms),
            f"{pair.error:+.0%}" if pair.error is not None else "-",
        )
        for pair in found.pairs
    ]
    for line in origins(found):
        click.echo(line)
    columns = ("fault", "replaced by", "simulated", "downtime ms", "simulated", "error")
    show_table(f"costs from {found.costs_from}", columns, rows)
    off = found.simulated_ettr / found.measured_ettr - 1
    click.echo(
        f"ETTR measured {found.measured_ettr:.4f}, simulated {found.simulated_ettr:.4f} "
        f"({off:+.1%}); swaps {found.measured_swaps} and {found.simulated_swaps}"
    )


def _node(number: int | None) -> str:
    return f"n{number}" if number is not None else "-"


def _ms(value: float | None) -> str:
    return f"{value:.0f}" if value is not None else "-"
