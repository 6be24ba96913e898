"""`changeover doctor`: what is wrong with a fleet's surroundings, and the cure."""

from __future__ import annotations

import json

import anyio
import click

from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.cli.tables import text_of
from controlplane.config import Settings


@click.command(
    context_settings=CONTEXT,
    epilog=examples("changeover doctor", "changeover doctor --json | jq '.[] | select(.cure)'"),
)
@fleet_options()
@json_option
def doctor(settings: Settings, *, as_json: bool) -> None:
    """Look at the store, this machine and the fleet, and say the cure of what is wrong.

    Exits with 1 if anything is bad; a warning or something unknown is no failure.
    """
    from controlplane.doctoring import Finding, Grade, as_values, examine
    from controlplane.errors import StoreAbsent
    from controlplane.server import opened, silence_of
    from controlplane.term import unix_ms

    async def run() -> list[Finding]:
        try:
            async with opened(settings) as log:
                return await examine(settings, log, unix_ms())
        except StoreAbsent:
            return await examine(settings, None, unix_ms(), await silence_of(settings))

    found = anyio.run(run)
    if as_json:
        print(json.dumps(as_values(found)))
    else:
        wide = max(len(each.subject) for each in found)
        for each in found:
            lines = [f"{each.grade:<8} {each.subject:<{wide}}  {each.words}"]
            if each.cure:
                lines.append(f"{'':<8} {'':<{wide}}  -> {each.cure}")
            print(text_of(lines))
    if any(each.grade is Grade.BAD for each in found):
        raise SystemExit(1)
