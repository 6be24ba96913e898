"""`changeover baselines`: what sweeps of this fleet found usual, by kind of hardware."""

from __future__ import annotations

import json
from collections.abc import Mapping

import anyio
import click
from msgspec import to_builtins

from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.cli.tables import table
from controlplane.config import Settings
from statemachine.baselines import Usual, learned
from statemachine.state import FleetState


@click.command(
    context_settings=CONTEXT,
    epilog=examples("changeover baselines", "changeover baselines --toml > h100.toml"),
)
@fleet_options()
@json_option
@click.option("--toml", is_flag=True, help="print what a policy of a new fleet may ship")
def baselines(settings: Settings, *, as_json: bool, toml: bool) -> None:
    """Show what passed sweeps measured: 10, 50 and 90 % of the fleet, by kind of hardware.

    A sweep is judged by the last 32 that passed: by their median, and by how far they are apart. A
    fleet that has no eight yet takes what its policy ships as `sweep.baselines`.
    """
    from controlplane.picture import fold_log
    from controlplane.server import opened

    async def run() -> FleetState:
        async with opened(settings) as log:
            return await fold_log(log)

    reference = anyio.run(run).reference
    found = {hardware: learned(reference[hardware]) for hardware in sorted(reference)}
    if toml:
        print(as_toml(found), end="")
    elif as_json:
        print(json.dumps(to_builtins(found)))
    else:
        rows = [
            (hardware, usual.count, metric, usual.p10, usual.p50, usual.p90)
            for hardware, metrics in found.items()
            for metric, usual in metrics.items()
        ]
        head = ("hardware", "sweeps", "metric", "p10", "p50", "p90")
        print("\n".join(table(head, rows)) if rows else "no sweep has passed yet")


def as_toml(found: Mapping[str, Mapping[str, Usual]]) -> str:
    """What a policy ships of it, as a part of its file."""
    lines = []
    for hardware, metrics in found.items():
        lines.append(f"[policy.sweep.baselines.{json.dumps(hardware)}]")
        for metric, usual in metrics.items():
            shares = ", ".join(f"p{n} = {getattr(usual, f'p{n}'):.6g}" for n in (10, 50, 90))
            lines.append(f"{metric} = {{ {shares}, count = {usual.count} }}")
    return "".join(f"{line}\n" for line in lines)
