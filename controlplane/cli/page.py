"""`changeover page`: the live page alone, from any machine that reaches the store."""

import anyio
import click
from msgspec.structs import replace

from controlplane import journal
from controlplane.cli.options import CONTEXT, examples, fleet_options
from controlplane.config import Settings

DEFAULT_LISTEN = "127.0.0.1:8787"


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover page",
        "changeover page --listen 127.0.0.1:9000 --token-file ~/.changeover-token",
    ),
)
@fleet_options("listen", "token_file")
@click.option("--listen", metavar="HOST:PORT", help=f"where (default: {DEFAULT_LISTEN})")
@click.option(
    "--token-file", metavar="FILE", help="acting on the page needs the token in it (mode 0600)"
)
def page(settings: Settings) -> None:
    """Serve the live page of a fleet, and /metrics, until Ctrl-C.

    It shows the log, so it outlives a change of controller. Controllers serve the same page with
    --listen. Without a token file it only shows.
    """
    from controlplane.server import run_page

    journal.begin("warning", "text")
    listen = settings.listen or DEFAULT_LISTEN

    async def run() -> None:
        await run_page(
            replace(settings, listen=listen),
            lambda address: print(f"fleet {settings.fleet}: {address}", flush=True),
        )

    anyio.run(run)
