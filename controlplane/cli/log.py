"""`changeover log`: read, export and verify the event log; `log_archive` has the other verbs."""

import json
import sys
from pathlib import Path
from typing import IO

import anyio
import click

from controlplane.cli.log_archive import archive_command, import_command, stats_command
from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.config import Settings
from statemachine.ids import Position

TAIL_LINES = 20


@click.group(context_settings=CONTEXT)
def log() -> None:
    """Read, export, verify and archive the event log."""


log.add_command(archive_command, "archive")
log.add_command(import_command, "import")
log.add_command(stats_command, "stats")


@log.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover log tail",
        "changeover log tail -f --from 1",
        "changeover log tail --from 100 --json | jq -r .event.type",
    ),
)
@fleet_options()
@json_option
@click.option("-f", "--follow", is_flag=True, help="go on as the log grows")
@click.option("-n", "--lines", default=TAIL_LINES, type=click.IntRange(0), show_default=True)
@click.option("--from", "start", type=click.IntRange(1), metavar="POSITION", help="begin here")
def tail(settings: Settings, *, as_json: bool, follow: bool, lines: int, start: int | None) -> None:
    """Print the last events, one a line; with -f go on."""
    from controlplane.eventlog import Entry
    from controlplane.lines import line_of
    from controlplane.server import opened

    def show(entry: Entry) -> None:
        print(entry.raw.decode() if as_json else line_of(entry.recorded()), flush=follow)

    async def run() -> None:
        async with opened(settings) as event_log:
            head = await event_log.head()
            oldest = await event_log.oldest()
            first = Position(start if start is not None else max(oldest, head - lines + 1))
            if not follow:
                async for entries in event_log.read_entries(first):
                    for entry in entries:
                        show(entry)
                return
            async with event_log.follow(first) as follower:
                while True:
                    for entry in await follower.next_batch():
                        show(entry)

    anyio.run(run)


@log.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover log export incident.jsonl",
        "changeover log export - | wc -l",
    ),
)
@fleet_options()
@click.option("--force", is_flag=True, help="overwrite an existing file")
@click.argument("target", metavar="FILE|-")
def export(settings: Settings, *, force: bool, target: str) -> None:
    """Write the whole log as JSON lines: its own bytes, in order of position.

    The file appears when it is complete, or not at all. `changeover log verify` reads it.
    """
    from controlplane.exporting import appearing, exported
    from controlplane.server import opened

    def export_to(sink: IO[bytes]) -> int:
        async def run() -> int:
            async with opened(settings) as event_log:
                return await exported(event_log, sink)

        return anyio.run(run)

    if target == "-":
        export_to(sys.stdout.buffer)
        return
    with appearing(Path(target), overwrite=force) as sink:
        count = export_to(sink)
    print(f"{count} events in {target}")


@log.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover log verify incident.jsonl", "changeover log verify etcd --archive /srv/log"
    ),
)
@fleet_options()
@json_option
@click.option(
    "--archive",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="with etcd: prove what has left the store as well",
)
@click.argument("source", metavar="FILE|DIR|etcd")
def verify(settings: Settings, *, as_json: bool, source: str, archive: Path | None) -> None:
    """Prove a log: dense positions, times that never decrease, every event read and folded.

    Of an archive also the chain of its segments, of a store its snapshots. Exits with 1 at the
    first fault, and names its position.
    """
    from controlplane.server import opened
    from controlplane.verifying import Findings, verify_archive, verify_file, verify_log

    async def run() -> Findings:
        async with opened(settings) as event_log:
            return await verify_log(event_log, archive)

    if source == "etcd":
        found = anyio.run(run)
    elif Path(source).is_dir():
        found = verify_archive(Path(source), settings.fleet)
    else:
        found = verify_file(Path(source))
    if as_json:
        print(json.dumps(found.as_values()))
    else:
        print(found)
