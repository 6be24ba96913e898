"""Options that every verb shares, and how they become settings.

What belongs here: spelling. Meaning and precedence are `controlplane.config`'s.
"""

import getpass
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from controlplane.config import load_settings

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT = {"help_option_names": ["-h", "--help"]}

_SHARED = (
    click.option("--etcd", metavar="URL", help="http[s]://host:port[,host:port] (CHANGEOVER_ETCD)"),
    click.option("--fleet", metavar="NAME", help="fleet to speak of (CHANGEOVER_FLEET)"),
    click.option("--ca", metavar="FILE", help="authority that signed etcd's certificate"),
    click.option("--cert", metavar="FILE", help="own certificate"),
    click.option("--key", metavar="FILE", help="key of the own certificate"),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="settings as TOML (CHANGEOVER_CONFIG); flags and environment win",
    ),
)

_NAMES = ("etcd", "fleet", "ca", "cert", "key")


def fleet_options(*more: str) -> Callable[[F], F]:
    """Give a command the shared options; it gets `settings` in their place.

    `more` names further options of the command that are settings too.
    """

    def decorate(command: F) -> F:
        @wraps(command)
        def with_settings(*args: Any, config: Path | None, **given: Any) -> Any:
            flags = {name: given.pop(name) for name in (*_NAMES, *more)}
            return command(*args, settings=load_settings(flags, os.environ, config), **given)

        wrapped: Any = with_settings
        for option in reversed(_SHARED):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[no-any-return]

    return decorate


def json_option(command: F) -> F:
    """Give a command `--json`, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="print JSON")(command)


def examples(*lines: str) -> str:
    """An epilog of examples, one a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def operator_name() -> str:
    """Who sits here, as far as the machine knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
