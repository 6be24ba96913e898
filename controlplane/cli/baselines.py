"""`changeover baselines`: what sweeps of this fleet found usual, by kind of hardware."""

from __future__ import annotations

import json

import anyio
import click

from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.cli.tables import table
from controlplane.config import Settings
from statemachine.state import FleetState
from statemachine.sweep import baseline_of, quantiles_of


@click.command(
    context_settings=CONTEXT,
    epilog=examples("changeover baselines", "changeover baselines --toml > h100.toml"),
)
@fleet_options()
@json_option
@click.option("--toml", is_flag=True, help="print what a policy of a new fleet may ship")
def baselines(settings: Settings, *, as_json: bool, toml: bool) -> None:
    """Show what passed sweeps measured: 10, 50 and 90 % of the fleet, by kind of hardware.

    A sweep is judged by the median of the last 32 that passed. A fleet that has none yet takes what
    its policy ships as `sweep.baselines`.
    """
    from controlplane.picture import fold_log
    from controlplane.server import opened

    async def run() -> FleetState:
        async with opened(settings) as log:
            return await fold_log(log)

    reference = anyio.run(run).reference
    if toml:
        for hardware in sorted(reference):
            print(f"[policy.sweep.baselines.{json.dumps(hardware)}]")
            for metric, value in baseline_of(reference[hardware]).items():
                print(f"{metric} = {value:.6g}")
        return
    found = {hardware: quantiles_of(reference[hardware]) for hardware in sorted(reference)}
    if as_json:
        print(json.dumps(found))
        return
    rows = [
        (hardware, len(reference[hardware]), metric, numbers["p10"], numbers["p50"], numbers["p90"])
        for hardware, metrics in found.items()
        for metric, numbers in metrics.items()
    ]
    head = ("hardware", "sweeps", "metric", "p10", "p50", "p90")
    print("\n".join(table(head, rows)) if rows else "no sweep has passed yet")
