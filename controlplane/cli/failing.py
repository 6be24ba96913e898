"""How a command ends when it does not end well: one line on stderr, and an exit code.

    0  it held            1  it failed: what, whose fault, what next
    2  wrong usage        130  Ctrl-C

What belongs here: from exceptions to that line. A traceback is shown only for a fault of ours,
which nothing else can help to find.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import click

from statemachine.errors import ChangeoverError, UsageError

FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Why what was said, or a file of ours, could not be written: nobody's bug."""


def run_to_exit(
    command: click.Command, program: str, arguments: Sequence[str] | None = None
) -> NoReturn:
    """Run a command line and exit with its code."""
    make_writable()
    out = sys.stdout
    try:
        code = command.main(args=arguments, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the outermost frame
        # Click answers a broken pipe itself: it puts another stdout there, and exits with 1.
        if isinstance(error, BrokenPipeError) or sys.stdout is not out:
            _give_up_stdout()
            sys.exit(0)  # whoever read us has seen enough
        sys.exit(_say(error, program))
    sys.exit(code if isinstance(code, int) else 0)


def make_writable() -> None:
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


def _say(error: BaseException, program: str) -> int:
    """Print the line of an error; return the exit code."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case SystemExit():
            return error.code if isinstance(error.code, int) else FAILED
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case click.exceptions.Exit():
            return error.exit_code
        case click.UsageError():
            return _line(program, _words_of(error, program), WRONG_USAGE)
        case click.ClickException():
            return _line(program, error.format_message(), FAILED)
        case UsageError():
            return _line(program, f"{_verb()}{error}", WRONG_USAGE)
        case _:
            pass
    if isinstance(error, OSError) and error.errno in FULL:
        _give_up_stdout()
        where = f"{error.filename}: " if error.filename else ""
        return _line(program, f"{_verb()}{where}cannot write: {error.strerror}", FAILED)
    if isinstance(error, ChangeoverError) or _is_of_the_log(error):
        return _line(program, f"{_verb()}{error}", FAILED)
    raise error


def _is_of_the_log(error: BaseException) -> bool:
    from controlplane.eventlog.errors import EventLogError

    return isinstance(error, EventLogError)


def _words_of(error: click.UsageError, program: str) -> str:
    """Click's message with the verb it concerns, and where help is to be had."""
    path = error.ctx.command_path if error.ctx is not None else program
    verb = path.removeprefix(program).strip()
    words = error.format_message().rstrip(".")
    return f"{verb + ': ' if verb else ''}{words}; see '{path} --help'"


def _verb() -> str:
    """The verb that runs, as it prefixes its message."""
    words = [word for word in sys.argv[1:2] if not word.startswith("-")]
    return f"{words[0]}: " if words else ""


def _line(program: str, words: str, code: int) -> int:
    from controlplane.lines import flat

    print(f"{program}: {flat(words)}", file=sys.stderr)
    return code
