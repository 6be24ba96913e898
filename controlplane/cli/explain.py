"""`changeover explain`: why something happened, from the log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.cli.tables import text_of
from controlplane.cli.watching import show_log, watch_option
from controlplane.config import Settings

if TYPE_CHECKING:
    from statemachine.events import Recorded


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover explain n7",
        "changeover explain 3",
        "changeover explain job/e4",
        "changeover explain n7 --watch",
        "changeover explain n7 --log incident.jsonl",
    ),
)
@fleet_options()
@json_option
@watch_option
@click.option(
    "--log",
    metavar="FILE",
    type=click.Path(exists=True, path_type=Path),
    help="an exported log instead of the store",
)
@click.argument("subject", metavar="NODE|[JOB/]TRANSITION|[JOB/]eEPOCH")
def explain(
    settings: Settings, *, subject: str, as_json: bool, watch: bool, log: Path | None
) -> None:
    """Say what became of a node, a transition or an epoch, and why.

    With the evidence and its numbers, what was considered and not chosen, and who was waited for.
    """
    from controlplane.cli.postmortem import end, opened_log, say_first
    from controlplane.explaining import encoded
    from controlplane.explaining import explain as explained
    from controlplane.server import opened

    entries: list[Recorded] = []

    def picture() -> str:
        found = explained(entries, subject, settings.fleet)
        return encoded(found) if as_json else text_of(found.lines())

    async def run() -> None:
        async with opened(settings) as store:
            await show_log(store, entries.append, picture, as_json=as_json, watch=watch)

    if log is None:
        anyio.run(run)
        return
    if watch:
        raise click.UsageError("--watch: an exported log does not change; leave out --log")
    file = opened_log(log, settings.fleet, beyond=False)
    found = explained(list(file.entries()), subject, str(log))
    say_first(file)
    print(encoded(found) if as_json else text_of(found.lines()))
    end(file)
