"""A slow link, injected: what this process sends and receives takes longer, as its fault says.

What belongs here: waiting. After each slice that went through a link, the thread rests for the time
that a slower link would have taken for it, in proportion to the processor time that the slice took,
as the probes of a sweep do. The rest counts as waiting, as it would behind a slow network port.

Without a fault file in the environment there is nothing of this in a process. Links through shared
memory have no port that could be slow; `links.LINKS_VARIABLE` has them go through the network.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Final

from worker.faults import FAULT_FILE_VARIABLE, SlowCompute, SlowKind

SLICE_BYTES: Final = 64 * 1024
"""Most that goes through a slowed link at once: a whole frame in one go would arrive as fast as
ever, only later."""

_NAP_S: Final = 0.0002
"""What is owed below this is kept for the next slice: a shorter sleep takes as long as this one."""


class Pacing:
    """Slows the links of one process while its fault file says so."""

    def __init__(self, slow: SlowCompute) -> None:
        self._slow = slow

    def cut(self, parts: Sequence[memoryview | bytes]) -> list[memoryview]:
        """As much of `parts` as may go through at once: all of it while no link is slow."""
        views = [memoryview(part) for part in parts]
        if self._slow.only(SlowKind.LINK) <= 1:
            return views
        kept: list[memoryview] = []
        left = SLICE_BYTES
        for view in views:
            kept.append(view[:left])
            left -= kept[-1].nbytes
            if not left:
                break
        return kept

    def rest(self, own_s: float) -> None:
        """After `own_s` seconds of processor time for a slice, wait as long as a slower link would
        have taken.
        """
        factor = self._slow.only(SlowKind.LINK)
        if factor <= 1:
            return
        own = _OWN
        own.owed_s += (factor - 1) * own_s
        if own.owed_s < _NAP_S:
            return
        began_s = time.perf_counter()
        time.sleep(own.owed_s)
        took_s = time.perf_counter() - began_s
        own.owed_s = max(-_NAP_S, own.owed_s - took_s)
        own.rested_s += took_s


class _Own(threading.local):
    """What each thread owes, and has rested."""

    owed_s: float = 0.0
    rested_s: float = 0.0


_OWN: Final = _Own()


def rested_s() -> float:
    """Seconds that the calling thread has rested so far, for links that are slow."""
    return _OWN.rested_s


def from_environment() -> Pacing | None:
    """The pacing of this process; None where nobody can inject a fault."""
    path = os.environ.get(FAULT_FILE_VARIABLE)
    return Pacing(SlowCompute(path)) if path else None


PACING: Final = from_environment()
