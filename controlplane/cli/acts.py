"""What an operator may ask of a fleet: one verb an act, each an event with the operator's name."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import click

from controlplane.cli.options import (
    CONTEXT,
    examples,
    fleet_options,
    json_option,
    operator_name,
)
from controlplane.config import Settings
from statemachine import events as e
from statemachine.ids import NodeId

F = TypeVar("F", bound=Callable[..., Any])


def by_option(command: F) -> F:
    """Give a command `--as`, as `by`."""
    return click.option(
        "--as", "by", default=operator_name, metavar="NAME", help="who acts (default: you)"
    )(command)


def act_options(command: F) -> F:
    """Give a command the options of every act: who, why, and `--json`."""
    commented = click.option("--comment", default="", metavar="TEXT", help="why, for the log")
    return fleet_options()(json_option(by_option(commented(command))))


def perform(settings: Settings, by: str, event: e.AnyEvent, words: str, *, as_json: bool) -> None:
    """State an act, and say what became of it."""
    from controlplane.acting import Acted, act
    from controlplane.server import opened
    from controlplane.term import unix_ms

    async def run() -> Acted:
        async with opened(settings) as log:
            return await act(log, by, event, unix_ms())

    acted = anyio.run(run)
    if as_json:
        print(json.dumps(acted.as_values()))
    elif acted.position is None:
        print(f"{words}: noted; no controller leads fleet {settings.fleet}, so it waits for one")
    else:
        print(f"{words}: at position {acted.position} of the log")


@click.command(context_settings=CONTEXT, epilog=examples("changeover drain n7 --comment 'new PSU'"))
@act_options
@click.argument("node")
def drain(settings: Settings, *, node: str, by: str, comment: str, as_json: bool) -> None:
    """Take NODE out of the run at the next step boundary, for an operator to work on.

    A warm standby takes its slot; no step is lost. `changeover release` gives the node back.
    """
    event = e.DrainRequested(node=NodeId(node), by=by, comment=comment)
    perform(settings, by, event, f"drain of {node}", as_json=as_json)


@click.command(
    context_settings=CONTEXT,
    epilog=examples("changeover switchover n7", "changeover switchover n7 --to n12"),
)
@act_options
@click.option("--to", "to", default="", metavar="NODE", help="who shall take the slot")
@click.argument("node")
def switchover(
    settings: Settings, *, node: str, to: str, by: str, comment: str, as_json: bool
) -> None:
    """Replace NODE in its slot at the next step boundary; it stays in the pool."""
    event = e.SwitchoverRequested(node=NodeId(node), by=by, to=NodeId(to), comment=comment)
    perform(settings, by, event, f"switchover of {node}", as_json=as_json)


@click.command(context_settings=CONTEXT, epilog=examples("changeover quarantine n7"))
@act_options
@click.argument("node")
def quarantine(settings: Settings, *, node: str, by: str, comment: str, as_json: bool) -> None:
    """Take NODE out and keep it out until a sweep, or an operator, clears it."""
    event = e.QuarantineRequested(node=NodeId(node), by=by, comment=comment)
    perform(settings, by, event, f"quarantine of {node}", as_json=as_json)


@click.command(
    context_settings=CONTEXT,
    epilog=examples("changeover release n7", "changeover release n7 --force --comment 'new PSU'"),
)
@act_options
@click.option("--force", is_flag=True, help="out of quarantine without a sweep; needs --comment")
@click.argument("node")
def release(
    settings: Settings, *, node: str, force: bool, by: str, comment: str, as_json: bool
) -> None:
    """Give a drained, quarantined or retired NODE back to the pool.

    Out of quarantine it is swept first; --force skips that.
    """
    if force and not comment:
        raise click.UsageError("--force skips the sweep: say why with --comment")
    event = e.ReleaseRequested(node=NodeId(node), by=by, force=force, comment=comment)
    perform(settings, by, event, f"release of {node}", as_json=as_json)


@click.command(context_settings=CONTEXT, epilog=examples("changeover sweep n7"))
@act_options
@click.argument("node")
def sweep(settings: Settings, *, node: str, by: str, comment: str, as_json: bool) -> None:
    """Measure NODE, which must hold no slot: alone, then with a known-good partner."""
    event = e.SweepAsked(node=NodeId(node), by=by, comment=comment)
    perform(settings, by, event, f"sweep of {node}", as_json=as_json)


@click.command(
    context_settings=CONTEXT, epilog=examples("changeover pause --comment 'network work'")
)
@act_options
def pause(settings: Settings, *, by: str, comment: str, as_json: bool) -> None:
    """Stop acting on verdicts until `changeover resume`; losses are still repaired."""
    event = e.DecisionsPaused(by=by, comment=comment)
    perform(settings, by, event, "pause", as_json=as_json)


@click.command(context_settings=CONTEXT, epilog=examples("changeover resume"))
@act_options
def resume(settings: Settings, *, by: str, comment: str, as_json: bool) -> None:
    """Act on verdicts again."""
    event = e.DecisionsResumed(by=by, comment=comment)
    perform(settings, by, event, "resume", as_json=as_json)
