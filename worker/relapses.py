"""When an agent stops starting its training process anew: rules, and nothing else.

Two things are no bad luck: a process that never reaches its step loop, and one that dies again and
again without a step in between. The first is a command that cannot work, the second a script that
fails at the same step, wherever it is tried. Whoever pays for the machines has to hear of both.
"""

from __future__ import annotations

from typing import Final

from worker.agent_node import End, EndKind

FALSE_STARTS_MAX: Final = 3
"""Training processes in a row that may end before their step loop; then the agent gives up."""

RELAPSES_MAX: Final = 6
"""Crashes in a slot, with no step committed from one to the next; then the agent gives up."""

SOUND_LIFE_S: Final = 60.0
"""A training process that lived this long does not count as one of several crashes in a row."""

UNRELATED_S: Final = 3600.0
"""After a life this long, a crash has nothing to do with the one before, whatever step it is at."""


class Relapses:
    """Lives of one node, each compared with those before it."""

    def __init__(self) -> None:
        self.crashes = 0
        """Crashes in a row, of processes that did not live long: what pauses grow by."""
        self._false_starts = 0
        self._relapses = 0
        self._died_at = -2

    def heed(self, end: End, lived_s: float) -> None:
        """Take in how a life ended, and how long it was in seconds."""
        crashed = end.kind is EndKind.CRASHED
        if lived_s > SOUND_LIFE_S:
            self.crashes = 0
        self.crashes = self.crashes + 1 if crashed else 0
        self._false_starts = 0 if end.was_ready else self._false_starts + 1
        if end.reached != self._died_at or lived_s > UNRELATED_S:
            self._relapses = 0
        self._died_at = end.reached
        if crashed and end.in_duty:
            self._relapses += 1

    def hopeless(self) -> str:
        """Why another start would end like the last ones; empty while one is worth it."""
        if self._false_starts >= FALSE_STARTS_MAX:
            return f"{self._false_starts} processes in a row ended before their step loop"
        if self._relapses >= RELAPSES_MAX:
            at = f"at step {self._died_at + 1}" if self._died_at >= 0 else "at its first step here"
            return f"{self._relapses} processes ended {at}, one after the other"
        return ""
