"""`simctl`: what would have happened, and what would it cost.

What belongs here: which verbs there are, and how a command ends. A verb is imported when it is run.
Exit codes: 0 it held, 1 it failed, 2 wrong usage or a file that cannot be used, 130 Ctrl-C.
"""

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
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
    _make_writable()
    out = sys.stdout
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
    except SystemExit:
        if sys.stdout is out:
            raise
        _give_up_stdout()  # click has met a broken pipe: whoever read us has seen enough
        sys.exit(0)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        _give_up_stdout()
        ended = error.errno == errno.EPIPE
        sys.exit(0 if ended else _line(f"cannot write: {error.strerror}", 1))
    sys.exit(code if isinstance(code, int) else 0)


def _make_writable() -> None:
    """Have stdout and stderr take whatever is written: one that was closed is nowhere, and a letter
    that the locale lacks is written as an escape.
    """
    for name in ("stdout", "stderr"):
        found = getattr(sys, name)
        if found is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(found, io.TextIOWrapper) and found.errors == "strict":
            found.reconfigure(errors="backslashreplace")


def _give_up_stdout() -> None:
    """Keep the interpreter from writing at its end what nobody takes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _line(words: str, code: int) -> int:
    plain = "".join(c if c.isprintable() else "?" for c in " ".join(words.split()))
    click.echo(f"simctl: {plain}", err=True)
    return code
