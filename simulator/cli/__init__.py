"""`simctl`: what would have happened, and what would it cost.

What belongs here: which verbs there are, and how a command ends. A verb is imported when it is run.
Exit codes: 0 it held, 1 it failed, 2 wrong usage or a file that cannot be used, 130 Ctrl-C.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from statemachine.errors import ChangeoverError, UsageError

VERBS: Final = {
    "calibrate": ("simulator.cli.logs", "calibrate", "Costs that a log measured, as TOML."),
    "campaign": ("simulator.cli.live", "campaign", "What a live campaign does, and when."),
    "compare": ("simulator.cli.running", "compare", "Strategies on the same faults."),
    "detect": ("simulator.cli.detecting", "detect", "Recorded vitals, judged again."),
    "grid": ("simulator.cli.running", "grid", "Parameters times values, until narrow."),
    "import": ("simulator.cli.inputs", "import_", "Fault traces from elsewhere."),
    "paper": ("simulator.cli.inputs", "paper", "What is published, simulated again."),
    "plan": ("simulator.cli.running", "plan", "How many standbys for a target."),
    "replay": ("simulator.cli.logs", "replay", "Fold a recorded log and tell it."),
    "run": ("simulator.cli.running", "run", "One strategy once, with a digest."),
    "validate": ("simulator.cli.live", "validate", "Simulated beside measured, for a campaign."),
    "whatif": ("simulator.cli.logs", "whatif", "A recorded log under another policy."),
}


class Verbs(click.Group):
    """A group whose commands are imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all verbs, in order."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb."""
        if cmd_name not in VERBS:
            return None
        module, name, _ = VERBS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command), f"{module}.{name} is no command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, without importing any."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, _, line) in sorted(VERBS.items())])


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="changeover", message="%(prog)s %(version)s")
def cli() -> None:
    """Ask what if: the state machine of production on virtual time.

    Example: simctl compare scenarios/llm_64k.toml --json
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; whatever goes wrong is one line."""
    try:
        code = cli.main(args=arguments, prog_name="simctl", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(_line("interrupted", 130))
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "simctl"
        sys.exit(_line(f"{error.format_message().rstrip('.')}; see '{path} --help'", 2))
    except click.ClickException as error:
        sys.exit(_line(error.format_message(), 1))
    except UsageError as error:
        sys.exit(_line(str(error), 2))
    except ChangeoverError as error:
        sys.exit(_line(str(error), 1))
    except BrokenPipeError:  # whoever read us has seen enough
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _line(words: str, code: int) -> int:
    click.echo(f"simctl: {' '.join(words.split())}", err=True)
    return code
