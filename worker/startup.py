"""Where the time of a start goes, from the process's first instruction to its readiness.

Rules of this file: it reads clocks. ``import`` is from the start of the process to `worker.join`,
``build`` from there to the first step (data, model, optimizer), ``prime0``, ``prime1`` and so on
are the priming steps, of which the first pays for everything that is lazy or compiled.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_START_TIME = 19
"""Index of the process's start in what follows the name in /proc/self/stat."""


class Startup:
    """Phases of one process's start. Made when its imports are over."""

    def __init__(self) -> None:
        self._at_s = time.monotonic()
        self._phases_ms = {"import": max(0.0, self._at_s - born_at_s()) * 1000}

    def reached(self, phase: str) -> None:
        """A phase is over."""
        now_s = time.monotonic()
        self._phases_ms[phase] = (now_s - self._at_s) * 1000
        self._at_s = now_s

    def each(self, phase: str, steps: Iterator[T]) -> Iterator[T]:
        """Pass steps on; each is a phase of its own, numbered from 0."""
        for number, step in enumerate(steps):
            self._at_s = time.monotonic()
            yield step
            self.reached(f"{phase}{number}")

    def phases_ms(self) -> dict[str, float]:
        """What each phase took."""
        return {name: round(value, 3) for name, value in self._phases_ms.items()}


def born_at_s() -> float:
    """When this process was started, on the clock of `time.monotonic`; now, where unknown."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        since_boot_s = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
        uptime_s = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return time.monotonic()
    return time.monotonic() - (uptime_s - since_boot_s)
