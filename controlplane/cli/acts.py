"""What an operator may ask of a fleet: one verb an act, each an event with the operator's name."""

import json
import sys
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
from controlplane.cli.tables import text_of
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
    """Give a command the options of every act: who, why, whether to ask or only to say."""
    for option in (
        click.option("--comment", "--reason", default="", metavar="TEXT", help="why, for the log"),
        click.option("-y", "--yes", is_flag=True, help="do not ask"),
        click.option("--dry-run", is_flag=True, help="say what would be decided; change nothing"),
    ):
        command = option(command)
    return fleet_options()(json_option(by_option(command)))


def confirmed(question: str, *, yes: bool) -> None:
    """Ask before harm, where somebody sits at a terminal; a script has said it by running us."""
    if question and not yes and sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm(question, abort=True, err=True)


def nothing_done(words: str, *, as_json: bool) -> None:
    """Say that what was asked for is so already; no words where that was said."""
    if as_json:
        print(json.dumps({"act": None, "position": None, "followed": [], "waits": None}))
    elif words:
        print(words)


def perform(
    settings: Settings,
    by: str,
    event: e.AnyEvent,
    words: str,
    *,
    as_json: bool,
    question: str = "",
    yes: bool = False,
    dry_run: bool = False,
) -> None:
    """State an act, and say what became of it; or, with `dry_run`, say what would."""
    from controlplane.acting import Acted, Foreseen, act, foresee
    from controlplane.server import opened
    from controlplane.term import unix_ms

    async def look_ahead() -> Foreseen:
        async with opened(settings) as log:
            return await foresee(log, by, event, unix_ms())

    async def run() -> Acted:
        async with opened(settings) as log:
            return await act(log, by, event, unix_ms())

    if dry_run:
        foreseen = anyio.run(look_ahead)
        values = foreseen.as_values()
        print(json.dumps(values) if as_json else text_of(foreseen.lines(words)))
        raise SystemExit(1 if foreseen.refused else 0)
    confirmed(question, yes=yes)
    acted = anyio.run(run)
    if as_json:
        print(json.dumps(acted.as_values()))
    elif acted.position is None:
        print(f"{words}: noted; no controller leads fleet {settings.fleet}, so it waits for one")
    else:
        print(f"{words}: at position {acted.position} of the log")
        if acted.waits:
            print(text_of([f"  it waits: {acted.waits}"]))


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover drain n7 --comment 'new PSU'",
        "changeover drain n7 --dry-run",
        "changeover drain n7 --yes",
    ),
)
@act_options
@click.argument("node")
def drain(settings: Settings, *, node: str, by: str, comment: str, **act: Any) -> None:
    """Take NODE out of the run at the next step boundary, for an operator to work on.

    A warm standby takes its slot; no step is lost. `changeover release` gives the node back.
    """
    event = e.DrainRequested(node=NodeId(node), by=by, comment=comment)
    question = f"Take {node} out of the run?"
    perform(settings, by, event, f"drain of {node}", question=question, **act)


@click.command(
    context_settings=CONTEXT,
    epilog=examples("changeover switchover n7", "changeover switchover n7 --to n12 --yes"),
)
@act_options
@click.option("--to", "to", default="", metavar="NODE", help="who shall take the slot")
@click.argument("node")
def switchover(
    settings: Settings, *, node: str, to: str, by: str, comment: str, **act: Any
) -> None:
    """Replace NODE in its slot at the next step boundary; it stays in the pool."""
    event = e.SwitchoverRequested(node=NodeId(node), by=by, to=NodeId(to), comment=comment)
    question = f"Replace {node} by {to or 'the best standby'}?"
    perform(settings, by, event, f"switchover of {node}", question=question, **act)


@click.command(context_settings=CONTEXT, epilog=examples("changeover quarantine n7 --yes"))
@act_options
@click.argument("node")
def quarantine(settings: Settings, *, node: str, by: str, comment: str, **act: Any) -> None:
    """Take NODE out and keep it out until a sweep, or an operator, clears it."""
    event = e.QuarantineRequested(node=NodeId(node), by=by, comment=comment)
    question = f"Take {node} out and keep it out?"
    perform(settings, by, event, f"quarantine of {node}", question=question, **act)


@click.command(
    context_settings=CONTEXT,
    epilog=examples("changeover release n7", "changeover release n7 --force --reason 'new PSU'"),
)
@act_options
@click.option("--force", is_flag=True, help="out of quarantine without a sweep; needs a reason")
@click.argument("node")
def release(
    settings: Settings, *, node: str, force: bool, by: str, comment: str, **act: Any
) -> None:
    """Give a drained, quarantined or retired NODE back to the pool.

    Out of quarantine it is swept first; --force skips that.
    """
    if force and not comment:
        raise click.UsageError("--force skips the sweep: say why with --comment")
    event = e.ReleaseRequested(node=NodeId(node), by=by, force=force, comment=comment)
    question = f"Give {node} back without a sweep?" if force else ""
    perform(settings, by, event, f"release of {node}", question=question, **act)


@click.command(
    context_settings=CONTEXT, epilog=examples("changeover pause --comment 'network work'")
)
@act_options
def pause(settings: Settings, *, by: str, comment: str, **act: Any) -> None:
    """Stop acting on verdicts until `changeover resume`; losses are still repaired."""
    event = e.DecisionsPaused(by=by, comment=comment)
    question = "Stop acting on verdicts?"
    perform(settings, by, event, "pause", question=question, **act)


@click.command(context_settings=CONTEXT, epilog=examples("changeover resume"))
@act_options
def resume(settings: Settings, *, by: str, comment: str, **act: Any) -> None:
    """Act on verdicts again."""
    event = e.DecisionsResumed(by=by, comment=comment)
    perform(settings, by, event, "resume", **act)
