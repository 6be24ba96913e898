"""`changeover remedied`: whoever carries out remedies reports that one is done, or cannot be."""

from __future__ import annotations

from typing import Any

import anyio
import click

from controlplane.cli.acts import act_options, perform
from controlplane.cli.options import CONTEXT, examples
from controlplane.config import Settings
from controlplane.errors import ActRefusedError
from statemachine import events as e
from statemachine.state import FleetState


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover remedied n7",
        "changeover remedied n7 --failed --comment 'the power switch does not answer'",
    ),
)
@act_options
@click.option("--failed", is_flag=True, help="it could not be carried out")
@click.argument("node")
def remedied(
    settings: Settings, *, node: str, failed: bool, by: str, comment: str, **act: Any
) -> None:
    """Report that the remedy under way for NODE was carried out; a sweep says whether it helped.

    Remedies are the policy's `sweep.remedies`. A hook on RemedyRequested carries them out and calls
    this when it is done; or a person does.
    """
    remedy = anyio.run(_under_way, settings, node)
    event = e.RemedyFinished(
        node=remedy.node,
        remedy=remedy.remedy,
        number=remedy.number,
        is_done=not failed,
        detail=comment or f"by {by}",
    )
    perform(settings, by, event, f"{remedy.remedy} of {node}", **act)


async def _under_way(settings: Settings, name: str) -> e.RemedyRequested:
    from controlplane.acting import known_node
    from controlplane.picture import fold_log
    from controlplane.server import opened

    async with opened(settings) as log:
        state: FleetState = await fold_log(log)
    remedy = state.nodes[known_node(state, name, settings.fleet)].remedy
    if remedy is None:
        raise ActRefusedError(f"no remedy is under way for {name}")
    return remedy
