"""`changeover controller`: run the control plane's one process."""

import gc

import anyio
import click

from controlplane import journal
from controlplane.cli.options import CONTEXT, examples, fleet_options
from controlplane.config import FORMS, LEVELS, Settings


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover controller --etcd http://127.0.0.1:2379 --fleet lab",
        "changeover controller --listen 127.0.0.1:8787 --token-file /etc/changeover/token",
        "changeover controller --config /etc/changeover.toml --log-form json",
    ),
)
@fleet_options("controller", "leader_ttl_s", "log_level", "log_form", "listen", "token_file")
@click.option("--name", "controller", metavar="NAME", help="own name (default: host and pid)")
@click.option("--leader-ttl-s", metavar="S", help="life of the leadership without renewal")
@click.option("--no-wait", is_flag=True, help="refuse to run while another controller leads")
@click.option("--listen", metavar="HOST:PORT", help="serve the live page and /metrics there")
@click.option(
    "--token-file", metavar="FILE", help="acting on the page needs the token in it (mode 0600)"
)
@click.option("--log-level", metavar="|".join(LEVELS), help="least level of lines on stderr")
@click.option("--log-form", metavar="|".join(FORMS), help="form of lines on stderr")
def controller(settings: Settings, *, no_wait: bool) -> None:
    """Lead a fleet: sequence its facts into the log, decide, and tell its agents.

    Run two or more on different machines: one leads, the others stand by and take over within
    seconds. Stops on SIGTERM and Ctrl-C, and gives the leadership back.
    """
    from controlplane.eventlog.promptness import be_prompt
    from controlplane.server import run_controller

    journal.begin(settings.log_level, settings.log_form)

    async def run() -> None:
        await run_controller(settings, wait=not no_wait)

    be_prompt()
    gc.freeze()  # what was imported is no garbage: looking through it would stall a decision
    anyio.run(run)
