"""`changeover history`: the changes of a fleet's topology, as patronictl tells a cluster's."""

from __future__ import annotations

from typing import Any

import anyio
import click
import msgspec

from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.cli.postmortem import lay_out_timeline
from controlplane.cli.tables import text_of
from controlplane.cli.watching import show_log, watch_option
from controlplane.config import Settings


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover history", "changeover history -n 5 --json", "changeover history --watch"
    ),
)
@fleet_options()
@json_option
@watch_option
@click.option("-n", "--last", default=20, type=click.IntRange(1), show_default=True, metavar="N")
def history(settings: Settings, *, as_json: bool, watch: bool, last: int) -> None:
    """Tell the last incidents of the fleet with their phases, and where the time went.

    It reads what is in the store; `changeover timeline` does the same for an exported log.
    """
    from controlplane.postmortem.telling import account_values, incident_values
    from controlplane.server import opened
    from statemachine.accounting import Ledger

    async def run() -> None:
        ledger = Ledger()
        async with opened(settings) as log:
            oldest = await log.oldest()

            def picture() -> str:
                told = ledger.told()
                values = {
                    "fleet": settings.fleet,
                    "from_position": oldest,
                    "incidents": [incident_values(each) for each in told.incidents[-last:]],
                    "accounting_s": account_values(told.total),
                    "ettr": told.total.ettr,
                    "idle_standby_node_s": round(told.idle_standby_s, 3),
                }
                return msgspec.json.encode(values).decode() if as_json else _told(values)

            await show_log(log, ledger.hear, picture, as_json=as_json, watch=watch)

    anyio.run(run)


def _told(values: dict[str, Any]) -> str:
    lines = lay_out_timeline(values)
    if (oldest := values["from_position"]) > 1:
        lines.insert(0, f"what was before position {oldest} is in an archive, not in this answer")
    return text_of(lines)
