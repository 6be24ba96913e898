"""`changeover history`: the changes of a fleet's topology, as patronictl tells a cluster's."""

from __future__ import annotations

import anyio
import click
import msgspec

from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.cli.postmortem import lay_out_timeline
from controlplane.config import Settings


@click.command(
    context_settings=CONTEXT,
    epilog=examples("changeover history", "changeover history -n 5 --json"),
)
@fleet_options()
@json_option
@click.option("-n", "--last", default=20, type=click.IntRange(1), show_default=True, metavar="N")
def history(settings: Settings, *, as_json: bool, last: int) -> None:
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
            async for recorded in log.read(oldest):
                ledger.hear(recorded)
        told = ledger.told()
        values = {
            "fleet": settings.fleet,
            "from_position": oldest,
            "incidents": [incident_values(each) for each in told.incidents[-last:]],
            "accounting_s": account_values(told.total),
            "ettr": told.total.ettr,
            "idle_standby_node_s": round(told.idle_standby_s, 3),
        }
        if as_json:
            print(msgspec.json.encode(values).decode())
            return
        if oldest > 1:
            print(f"the log before position {oldest} is in an archive and not in this answer")
        print("\n".join(lay_out_timeline(values)))

    anyio.run(run)
