"""`changeover agent`: hand over to the agent, which belongs to the training side.

The control plane does not know the training side: one program takes the place of the other.
"""

import os
import sys

import click


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def agent(arguments: tuple[str, ...]) -> None:
    """Run one node: its agent and, under it, the training process."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "worker.agent", *arguments])  # noqa: S606
