"""`changeover log archive | import | stats`: what is kept of a log, and where."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import click

from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.config import Settings
from controlplane.eventlog.items import Entry

IMPORT_TTL_S = 30.0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover log archive /srv/changeover/log",
        "changeover log archive /srv/changeover/log --keep 100000",
    ),
)
@fleet_options()
@json_option
@click.option(
    "--keep",
    default=10_000,
    show_default=True,
    type=click.IntRange(0),
    help="events that stay in the store",
)
@click.option(
    "--reclaim",
    is_flag=True,
    help="for a full store: make room first, defragment, lift its alarm",
)
@click.option("--refold", is_flag=True, help="fold from the archive, not from a snapshot")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def archive_command(
    settings: Settings, *, as_json: bool, keep: int, reclaim: bool, refold: bool, folder: Path
) -> None:
    """Take a snapshot, then move old events from the store to files in DIR.

    Each file is read back before its events leave the store. May be run while the fleet works, and
    again after an interruption. --reclaim brings back a store that is full. --refold is for a
    release that cannot read the snapshots there are.
    """
    from controlplane.archiving import Archived, archive_log, rescue_log
    from controlplane.server import opened

    async def run() -> Archived:
        async with opened(settings) as event_log:
            if reclaim:
                return await rescue_log(event_log, folder, now_ms=_now_ms(), keep=keep)
            return await archive_log(event_log, folder, now_ms=_now_ms(), keep=keep, again=refold)

    done = anyio.run(run)
    print(json.dumps(done.as_values()) if as_json else done)


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover log import incident.jsonl --fleet replayed",
        "changeover log import /srv/changeover/log --from-fleet prod --fleet replayed",
    ),
)
@fleet_options()
@click.option("--from-fleet", metavar="NAME", help="fleet of an archive, if it has another name")
@click.argument("source", metavar="FILE|DIR", type=click.Path(exists=True, path_type=Path))
def import_command(settings: Settings, *, from_fleet: str | None, source: Path) -> None:
    """Put an exported or archived log into a fleet that has none, byte for byte.

    The fleet is led by this command meanwhile. FILE is what `log export` wrote, DIR an archive.
    """
    from controlplane.archiving import check_importable, import_log
    from controlplane.server import opened

    async def run() -> int:
        async with opened(settings) as event_log:
            await check_importable(event_log)
            leadership = await event_log.campaign("log-import", IMPORT_TTL_S)
            try:
                entries = _entries(source, from_fleet or settings.fleet)
                return await import_log(event_log, leadership, entries)
            finally:
                with anyio.CancelScope(shield=True):
                    await leadership.resign()

    print(f"{anyio.run(run)} events imported into fleet {settings.fleet}")


async def _entries(source: Path, fleet: str) -> AsyncIterator[Entry]:
    """Entries of a file of JSON lines, or of an archive."""
    from controlplane.eventlog.archive import chain_of, read_segment
    from statemachine.checksums import without_checksum
    from statemachine.codec import decode_recorded

    if await anyio.Path(source).is_dir():
        for segment in chain_of(source, fleet):
            for entry in read_segment(segment):
                yield entry
        return
    async with await anyio.open_file(source, "rb") as lines:
        async for line in lines:
            raw = without_checksum(line.rstrip(b"\n"))
            yield Entry(decode_recorded(raw).position, raw)


@click.command(
    context_settings=CONTEXT,
    epilog=examples("changeover log stats", "changeover log stats --json | jq .quota_share"),
)
@fleet_options()
@json_option
@click.option(
    "--quota-mib",
    default=2048,
    show_default=True,
    type=click.IntRange(1),
    help="the store's --quota-backend-bytes",
)
def stats_command(settings: Settings, *, as_json: bool, quota_mib: int) -> None:
    """Say how long the log is, what of it is archived, and how full the store is.

    Exits with 1 when the store is over 60 % of its quota: when it is full it refuses leases too.
    """
    from controlplane.logstats import Stats, stats_of
    from controlplane.server import opened

    async def run() -> Stats:
        async with opened(settings) as event_log:
            return await stats_of(event_log, now_ms=_now_ms(), quota_bytes=quota_mib * 1024 * 1024)

    found = anyio.run(run)
    if as_json:
        print(json.dumps(found.as_values()))
    else:
        print("\n".join(found.lines()))
    if found.alarm:
        raise click.ClickException(found.alarm)
