"""Verbs that read a recorded log: replay, whatif, calibrate."""

import tomllib
from pathlib import Path

import click

from simulator.calibrating import as_toml
from simulator.calibrating import calibrate as measure
from simulator.cli.showing import HTML, JSON, save_page, show_json, show_table
from simulator.errors import BadScenario
from simulator.pages.telling import page_of_replay, page_of_whatif
from simulator.replay import read_log
from simulator.replay import replay as run_replay
from simulator.replay import whatif as run_whatif
from simulator.scenario import Scenario
from simulator.scenario_file import load
from statemachine.policy import Policy, policy_of

LOG = click.argument("log", type=click.Path(path_type=Path))


@click.command(epilog="Example: simctl replay runs/demo-1/events.jsonl")
@LOG
@HTML
@JSON
def replay(log: Path, *, html: Path | None, as_json: bool) -> None:
    """Fold a log and tell its incidents."""
    found = run_replay(read_log(log))
    save_page(html, lambda: page_of_replay(log.name, found))
    if as_json:
        show_json(found)
        return
    rows = [
        (
            f"{each.kind} of {each.node}",
            each.replacement,
            f"{each.downtime_ms:.0f}" if each.downtime_ms is not None else "-",
            each.steps_lost if each.steps_lost is not None else "-",
        )
        for each in found.incidents
    ]
    title = f"{found.entries} entries, {found.nodes} nodes, epoch {found.epoch}"
    show_table(title, ("incident", "replaced by", "downtime ms", "steps lost"), rows)


@click.command(epilog="Example: simctl whatif runs/demo-1/events.jsonl --policy strict.toml")
@LOG
@click.option("--policy", type=click.Path(path_type=Path), required=True, help="Knobs, as TOML.")
@HTML
@JSON
def whatif(log: Path, policy: Path, *, html: Path | None, as_json: bool) -> None:
    """Decide a log anew under another policy, until one decision differs."""
    found = run_whatif(read_log(log), read_policy(policy))
    save_page(html, lambda: page_of_whatif(log.name, policy.name, found))
    if as_json:
        show_json(found)
        return
    first = found.divergence
    if first is None:
        click.echo(f"no decision of {found.compared} differs")
    else:
        click.echo(f"{found.agreed} decisions agree; the first that differs, from position")
        click.echo(f"{first.position}: {first.because}")
        if first.incident:
            took = f"{first.downtime_ms:.0f} ms" if first.downtime_ms is not None else "not over"
            click.echo(f"it concerns the {first.incident}; its downtime: {took}")
        click.echo(f"the other policy {_worth(first.cost_ms)}: {first.cost_because}")
    for note in found.notes:
        click.echo(f"note: {note}")


def _worth(cost_ms: float | None) -> str:
    if cost_ms is None:
        return "costs or saves what cannot be told"
    if abs(cost_ms) < 0.5:
        return "costs nothing"
    return f"costs {cost_ms:.0f} ms" if cost_ms >= 0 else f"saves {-cost_ms:.0f} ms"


def read_policy(path: Path) -> Policy:
    """The policy of a TOML file, at its top or under `policy`."""
    try:
        knobs = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadScenario(f"{path}: cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise BadScenario(f"{path}: no TOML: {error}") from error
    return policy_of(knobs.get("policy", knobs), str(path))


@click.command(epilog="Example: simctl calibrate runs/demo-1/events.jsonl > costs.toml")
@LOG
@click.option("--scenario", type=click.Path(path_type=Path), help="Whose cost model to keep.")
@JSON
def calibrate(log: Path, scenario: Path | None, *, as_json: bool) -> None:
    """Print the costs that a log measured as TOML, and what stays assumed."""
    found = measure(read_log(log), load(scenario) if scenario is not None else Scenario())
    if as_json:
        show_json(found)
    else:
        click.echo(as_toml(found), nl=False)
