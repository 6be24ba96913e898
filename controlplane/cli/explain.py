"""`changeover explain`: why something happened, from the log."""

from __future__ import annotations

from pathlib import Path

import anyio
import click

from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.config import Settings


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover explain n7",
        "changeover explain 3",
        "changeover explain job/e4",
        "changeover explain n7 --log incident.jsonl",
    ),
)
@fleet_options()
@json_option
@click.option(
    "--log",
    metavar="FILE",
    type=click.Path(exists=True, path_type=Path),
    help="an exported log instead of the store",
)
@click.argument("subject", metavar="NODE|[JOB/]TRANSITION|[JOB/]eEPOCH")
def explain(settings: Settings, *, subject: str, as_json: bool, log: Path | None) -> None:
    """Say what became of a node, a transition or an epoch, and why.

    With the evidence and its numbers, what was considered and not chosen, and who was waited for.
    """
    from controlplane.cli.postmortem import end, opened_log, say_first
    from controlplane.explaining import encoded
    from controlplane.explaining import explain as explained
    from controlplane.server import opened

    async def run() -> None:
        async with opened(settings) as store:
            entries = [recorded async for recorded in store.read(await store.oldest())]
        found = explained(entries, subject, settings.fleet)
        print(encoded(found) if as_json else "\n".join(found.lines()))

    if log is None:
        anyio.run(run)
        return
    file = opened_log(log, settings.fleet, beyond=False)
    found = explained(list(file.entries()), subject, str(log))
    say_first(file)
    print(encoded(found) if as_json else "\n".join(found.lines()))
    end(file)
