"""A word to whoever waits: how far a long reading has come, on stderr, from the third second on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 2.0
"""Seconds of silence before the first word."""

PERIOD_S: Final = 0.5
_LOOK_EVERY: Final = 4096


class Progress:
    """Says how many there were so far; in place on a terminal, every ten seconds elsewhere."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._in_place = sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._due_s = self._began_s + PATIENCE_S
        self._said = False

    def tell(self, count: int) -> None:
        """Say it if it is time."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + (PERIOD_S if self._in_place else 10.0)
        self._said = True
        words = f"{self._what} {count:,} in {now_s - self._began_s:.0f} s"
        print(
            f"\r{words}" if self._in_place else words,
            end="" if self._in_place else "\n",
            file=sys.stderr,
            flush=True,
        )

    def done(self) -> None:
        """Leave the line."""
        if self._said and self._in_place:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def counted(items: Iterable[T], what: str) -> Iterator[T]:
    """The items, with a word now and then about how many there were."""
    progress = Progress(what)
    try:
        for number, item in enumerate(items, 1):
            if number % _LOOK_EVERY == 0:
                progress.tell(number)
            yield item
    finally:
        progress.done()
