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
from types import TracebackType
from typing import Final, Self

from controlplane.eventlog.promptness import be_prompt
from statemachine.topology import WarmupCaps
from worker.standing_back import STAND_BACK_S_MAX, stand_back, take_share

EXIT_CODE: Final = 70
"""How a process ends whose rehearsal went too far (EX_SOFTWARE)."""

_LOOK_S: Final = 0.05
_PAGE_BYTES: Final = resource.getpagesize()


def resident_bytes() -> int:
    """Memory of this process that is resident now."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  (read 20 times a second)
        return int(file.read().split()[1]) * _PAGE_BYTES


def _nobody() -> bool:
    return False


class Bounds:
    """Bounds one rehearsal for as long as its block runs.

    `tell` is called with the reason when a bound is passed; the process ends when it returns. What
    is bounded stands back behind the run, unless it is what the run waits for (`stand_back`), and
    until it is: `wanted` is asked all the time.
    """

    def __init__(
        self,
        caps: WarmupCaps,
        tell: Callable[[str], None],
        end: Callable[[int], None] = os._exit,  # nothing of a stuck process can be unwound
        *,
        stand_back: bool = True,
        wanted: Callable[[], bool] = _nobody,
    ) -> None:
        self._caps, self._tell, self._end, self._wanted = caps, tell, end, wanted
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._stands_back = stand_back
        self._share = threading.Lock()

    def __enter__(self) -> Self:
        """Begin to watch, and stand back."""
        if self._stands_back or self._caps.deadline_s or self._caps.memory_bytes:
            self._thread = threading.Thread(target=self._watch, name="rehearsal", daemon=True)
            self._thread.start()
        with self._share:
            self._stands_back = self._stands_back and stand_back(os.getpid())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching, and take one's full share again."""
        self._over.set()
        self._come_forth()
        if self._thread is not None:
            self._thread.join()

    def _come_forth(self) -> None:
        with self._share:
            if self._stands_back:
                self._stands_back = False
                take_share(os.getpid())

    def _watch(self) -> None:
        be_prompt()
        began_s = time.monotonic()
        deadline_s = self._caps.deadline_s or float("inf")
        ends_at_s = began_s + deadline_s
        forth_at_s = began_s + min(STAND_BACK_S_MAX, deadline_s / 3)  # a busy machine is no hang
        while not self._over.wait(_LOOK_S):
            if self._wanted() or time.monotonic() > forth_at_s:
                self._come_forth()
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
