"""Tables for people, JSON for programs, and progress with the time left; nothing else prints."""

import errno
import sys
import time
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulator.pages.blocks import Page
from simulator.stats import Estimate
from statemachine.errors import UsageError

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
HTML = click.option("--html", type=click.Path(path_type=Path), help="Write a report there.")


class Real(click.FloatRange):
    """A finite number of a range: what is not a number lies in every range, as comparisons go."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read it, and refuse `nan` and `inf`."""
        found = float(super().convert(value, param, ctx))
        if not isfinite(found):
            self.fail(f"{value} is not a finite number", param, ctx)
        return found


def save(path: Path, raw: bytes) -> None:
    """Write a file.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.write_bytes(raw)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def save_page(path: Path | None, page: Callable[[], Page]) -> None:
    """Write a report, if one was asked for."""
    if path is None:
        return
    from simulator.pages.html import html_of  # the template engine is wanted by few

    save(path, html_of(page()).encode())


def show_json(value: object) -> None:
    """Print a value as JSON."""
    raw = msgspec.json.encode(value)
    click.echo(msgspec.json.format(raw, indent=1).decode())


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; the first column is words, the others are numbers. Nothing in it is markup."""
    table = Table(title=Text(title), title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    width = None if sys.stdout.isatty() else 160
    _Console(width=width, highlight=False).print(table)


class _Console(Console):
    """Says that its reader is gone as everything else does: how a command ends is for one place."""

    def on_broken_pipe(self) -> None:
        """Have it told."""
        raise BrokenPipeError(errno.EPIPE, "the reader is gone")


def with_interval(found: Estimate, digits: int = 4) -> str:
    """A mean and half its interval."""
    if found.half == float("inf"):
        return f"{found.mean:.{digits}f}"
    return f"{found.mean:.{digits}f} ± {found.half:.{digits}f}"


class Progress:
    """A line on stderr with how much is done and how long the rest will take; only on a terminal,
    and only for what takes longer than two seconds.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = 0.0
        self._open = False

    def __call__(self, done: int, of: int) -> None:
        """Tell how many of how many are done."""
        left_s = (time.monotonic() - self._began) / max(1, done) * (of - done)
        self._say(f"{done} of {of}, about {left_s:.0f} s left", last=done >= of)

    def end(self) -> None:
        """Leave the line."""
        if self._open:
            click.echo("", err=True)
            self._open = False

    def _say(self, words: str, *, last: bool) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self._began < 2 or (now - self._shown < 0.5):
            if last:
                self.end()
            return
        self._shown, self._open = now, True
        click.echo(f"\r{words[:76]:<76}", nl=False, err=True)
        if last:
            self.end()
