"""Standing back: to compute only where nothing else on the machine wants the processor.

What belongs here: putting the threads of a process into the kernel's idle class and taking them out
again, and when a process that starts is in it. What it stands back for is the run on the same
machine; where there is none, it loses nothing.

Rule 1: nobody stands back who could not take its share again. That needs CAP_SYS_NICE, or a limit
on niceness of 20 or more (`ulimit -e`); it is tried out on a thread that ends, because being root
says little in a container. A standby that stayed slow would be worse than a run that is disturbed.
Rule 2: nobody stands back for longer than `STAND_BACK_S_MAX`. The idle class gets nearly nothing on
a machine that never rests, and a run without a standby is the greater risk.
Rule 3: nobody stands back whom the run waits for.

Why not niceness: a thread that wakes takes the processor from an idle one at once, from a nice one
when its share is due. Measured with six ranks on two cores that never rest: beside a process that
starts, a step takes 1.45 to 1.54x as long; at nice 5 it is 1.32 to 1.38x, at 19 1.28x, idle 1.09x.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from math import prod
from pathlib import Path
from typing import Final

from controlplane.eventlog.promptness import SLICE_NS, slice_ns
from statemachine.topology import Desired

STAND_BACK_S_MAX: Final = 10.0
"""The longest that a start, or a rehearsal, may be kept from its share of the processor."""

_PASSES_MAX: Final = 8
_ORDINARY: Final = os.sched_param(0)


@cache
def may_stand_back() -> bool:
    """Whether a thread of this process that stood back could take its share again."""
    came_back: list[bool] = []

    def there_and_back() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, _ORDINARY)  # 0: this thread
            os.sched_setscheduler(0, os.SCHED_OTHER, _ORDINARY)
        except OSError:
            return
        came_back.append(True)

    trial = threading.Thread(target=there_and_back, name="standing-back")
    trial.start()
    trial.join()
    return bool(came_back)


def stand_back(pid: int) -> bool:
    """Let the threads of a process stand back, but for those that only answer; what they start
    does so, too. Returns whether any does.
    """
    if not may_stand_back():
        return False
    stood = False
    for thread in _threads(pid):
        with suppress(OSError):  # it has ended
            if os.sched_getscheduler(thread) == os.SCHED_OTHER and slice_ns(thread) != SLICE_NS:
                os.sched_setscheduler(thread, os.SCHED_IDLE, _ORDINARY)
                stood = True
    return stood


def take_share(pid: int) -> None:
    """Let a process that stood back, and what it started meanwhile, have its full share again."""
    for _ in range(_PASSES_MAX):  # a thread may start another while we look
        found = False
        for process in (pid, *_descendants(pid)):
            for thread in _threads(process):
                with suppress(OSError):
                    if os.sched_getscheduler(thread) == os.SCHED_IDLE:
                        os.sched_setscheduler(thread, os.SCHED_OTHER, _ORDINARY)
                        found = True
        if not found:
            return


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 (often)
    except OSError:
        return []


def _descendants(pid: int) -> Iterator[int]:
    for thread in _threads(pid):
        with suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def lacks_nobody(desired: Desired) -> bool:
    """Whether a job runs at full strength and no change is under way: a newcomer is waited for by
    nobody.
    """
    slots = prod(desired.declared.axes.values()) // desired.declared.ranks_per_node
    full = len(desired.members) == slots
    return full and desired.epoch > 0 and desired.pending is None and not desired.finished


class Newcomer:
    """A process that starts: it stands back while its job lacks nobody, until it is ready."""

    def __init__(self, pid: int) -> None:
        """Begin with its full share."""
        self._pid = pid
        self._stands_back = self._settled = False
        self._limit: asyncio.TimerHandle | None = None

    def heed(self, desired: Desired) -> None:
        """Stand back or not, by what is wanted of the job now."""
        if self._settled or lacks_nobody(desired) == self._stands_back:
            return
        if self._stands_back:
            self._stands_back = False
            take_share(self._pid)
            return
        self._stands_back = stand_back(self._pid)
        if self._stands_back and self._limit is None:
            loop = asyncio.get_running_loop()
            self._limit = loop.call_later(STAND_BACK_S_MAX, self.settle)

    def settle(self) -> None:
        """It is ready, or has ended, or stood back for long enough: its full share from now on."""
        if self._settled:
            return
        self._settled = True
        if self._limit is not None:
            self._limit.cancel()
        if self._stands_back:
            take_share(self._pid)
