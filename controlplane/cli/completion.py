"""`changeover completion`: what a shell needs to complete verbs and options."""

import click

from controlplane.cli.options import CONTEXT, examples

SHELLS = ("bash", "zsh", "fish")


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        'eval "$(changeover completion bash)"',
        "changeover completion fish > ~/.config/fish/completions/changeover.fish",
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL; evaluate it in the shell's start-up file."""
    from click.shell_completion import get_completion_class

    from controlplane.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None, f"click completes {shell}"
    print(kind(cli, {}, "changeover", "_CHANGEOVER_COMPLETE").source())
