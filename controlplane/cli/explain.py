"""`changeover explain`: why something happened, from the log."""

import anyio
import click

from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.config import Settings


@click.command(
    context_settings=CONTEXT,
    epilog=examples("changeover explain n7", "changeover explain 3", "changeover explain job/3"),
)
@fleet_options()
@json_option
@click.argument("subject", metavar="NODE|[JOB/]TRANSITION")
def explain(settings: Settings, *, subject: str, as_json: bool) -> None:
    """Print the events that led to what became of a node, or of a transition, with reasons.

    Evidence that a decision names is printed before it, whoever stated it.
    """
    from controlplane.explaining import story_of
    from controlplane.lines import line_of
    from controlplane.server import opened
    from statemachine.codec import encode_recorded

    async def run() -> None:
        async with opened(settings) as log:
            entries = [recorded async for recorded in log.read()]
        for recorded in story_of(entries, subject, settings.fleet):
            print(encode_recorded(recorded).decode() if as_json else line_of(recorded))

    anyio.run(run)
