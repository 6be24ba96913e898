"""Pictures that are shown anew whenever something happens: what `--watch` means for every verb.

What belongs here: where pictures go, and following the log. On a terminal a picture takes the place
of the one before, elsewhere it follows it; one that does not differ is not shown again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import click

if TYPE_CHECKING:
    from controlplane.eventlog import EventLog
    from statemachine.events import Recorded

F = TypeVar("F", bound=Callable[..., Any])

PERIOD_S = 0.25
"""Least time between two pictures while watching, in seconds."""


def watch_option(command: F) -> F:
    """Give a command `--watch`, as `watch`."""
    return click.option("-w", "--watch", is_flag=True, help="show it anew whenever it changes")(
        command
    )


class Screen:
    """Where pictures go: over each other on a terminal, below each other elsewhere."""

    def __init__(self, *, as_json: bool) -> None:
        self._in_place = sys.stdout.isatty() and not as_json
        self._last = ""

    def show(self, picture: str) -> None:
        """Show a picture, unless it is the one that is shown."""
        if picture == self._last:
            return
        self._last = picture
        if self._in_place:
            click.clear()
        print(picture, flush=True)


async def show_log(
    log: EventLog,
    hear: Callable[[Recorded], object],
    picture: Callable[[], str],
    *,
    as_json: bool,
    watch: bool,
) -> None:
    """Hear what the store has of a log, and show a picture of it; with `watch` go on as it grows.

    Raises:
        StoreUnavailable, LogCorrupt.
    """
    oldest, head = await log.oldest(), await log.head()
    async for recorded in log.read(oldest):
        head = max(head, recorded.position)
        hear(recorded)
    screen = Screen(as_json=as_json)
    screen.show(picture())
    if not watch:
        return
    async with log.follow(type(head)(head + 1)) as follower:
        while True:
            for entry in await follower.next_batch():
                hear(entry.recorded())
            screen.show(picture())
            await anyio.sleep(PERIOD_S)
