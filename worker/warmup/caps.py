"""What bounds a rehearsal: time, memory, and how much of the machine it may take from the run.

Rules of this file: it watches from a thread of its own, because the training thread may be stuck in
the user's code. A rehearsal that goes too far cannot be called back from there: the reason is told,
then the process ends, and its agent joins anew with a fresh one. The run never notices.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from statemachine.topology import WarmupCaps

EXIT_CODE: Final = 70
"""How a process ends whose rehearsal went too far (EX_SOFTWARE)."""

NICENESS: Final = 5
"""How much a rehearsal stands back: a third of the weight of what trains on the same cores."""

_LOOK_S: Final = 0.05
_PAGE_BYTES: Final = resource.getpagesize()


def resident_bytes() -> int:
    """Memory of this process that is resident now."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  (read 20 times a second)
        return int(file.read().split()[1]) * _PAGE_BYTES


class Bounds:
    """Bounds one rehearsal for as long as its block runs.

    `tell` is called with the reason when a bound is passed; the process ends when it returns. What
    is bounded stands back behind the run, unless it is what the run waits for.
    """

    def __init__(
        self,
        caps: WarmupCaps,
        tell: Callable[[str], None],
        end: Callable[[int], None] = os._exit,  # nothing of a stuck process can be unwound
        *,
        stand_back: bool = True,
    ) -> None:
        self._caps, self._tell, self._end = caps, tell, end
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._stands_back, self._stood_back = stand_back, False

    def __enter__(self) -> Self:
        """Begin to watch, and stand back."""
        if self._caps.deadline_s or self._caps.memory_bytes:
            self._thread = threading.Thread(target=self._watch, name="rehearsal", daemon=True)
            self._thread.start()
        if self._stands_back:
            self._stand_back()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching, and take one's full share again."""
        self._over.set()
        if self._stood_back:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, 0)
        if self._thread is not None:
            self._thread.join()

    def _stand_back(self) -> None:
        """Lower the priority of this thread, if it could be raised again."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
        if os.getpriority(os.PRIO_PROCESS, 0) or not (os.geteuid() == 0 or soft >= 20):
            return
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
            self._stood_back = True

    def _watch(self) -> None:
        ends_at_s = time.monotonic() + (self._caps.deadline_s or float("inf"))
        while not self._over.wait(_LOOK_S):
            reason = self._passed(ends_at_s)
            if reason and not self._over.is_set():
                faulthandler.dump_traceback(all_threads=True)
                self._tell(reason)
                self._end(EXIT_CODE)
                return

    def _passed(self, ends_at_s: float) -> str:
        if time.monotonic() >= ends_at_s:
            return f"hangs: no end within {self._caps.deadline_s:.1f} s; its stack is in the log"
        cap = self._caps.memory_bytes
        if cap and (now := resident_bytes()) > cap:
            return f"takes too much memory: {now >> 20} MiB resident, allowed are {cap >> 20}"
        return ""
