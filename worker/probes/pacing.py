"""How a probe shares a machine with a run: what it works is paid for with rest.

Rules of this file: processor time and sleeping; no measuring. From `begin` on a timer of the
process's own processor time interrupts whatever runs, be it an import, and has it rest; a sample
that is being measured is left alone (`sample`) and paid for after it. So the whole life of a probe,
its start as well, takes its share and no more. What was used before `begin`, by the interpreter
itself, is paid for with the first rest.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TICK_S: Final = 0.004
"""Processor time between two rests, outside of samples."""

BURST_S: Final = 0.008
"""Worked on samples between two rests: several in a row, since the first after a rest finds other
programs' data in the caches; on average no more than the share."""


class Pace:
    """Has this process work `share` of its time, 1 being all of it: then nothing here rests.

    `begin` is for the main thread alone, as signals are.
    """

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._paid_s = time.process_time()
        self._others_s = 0.0
        self._begun = False

    @property
    def is_shared(self) -> bool:
        """Whether there is anything to rest for."""
        return self._share < 1

    def begin(self) -> None:
        """Rest whenever `TICK_S` of processor time was used from now on, and for all before."""
        if not self.is_shared:
            return
        signal.signal(signal.SIGPROF, lambda _signal, _frame: self.rest())
        signal.siginterrupt(signal.SIGPROF, False)
        self._begun = True
        self._paid_s = 0.0
        self._arm(TICK_S)

    def end(self) -> None:
        """Rest no more of itself."""
        if self._begun:
            self._begun = False
            self._arm(0.0)

    @contextmanager
    def sample(self) -> Iterator[None]:
        """No rest while the body runs, which is being measured."""
        if self._begun:
            self._arm(0.0)
        yield
        if self._begun:
            self._arm(TICK_S)

    def rest(self, others_s: float = 0.0, *, burst_s: float = 0.0) -> None:
        """Rest for what was worked since the last rest, unless that is less than `burst_s`.

        `others_s` is what another process may have worked on top.
        """
        if not self.is_shared:
            return
        self._others_s += others_s
        used_s = time.process_time()
        worked_s = used_s - self._paid_s + self._others_s
        if worked_s < burst_s:
            return
        self._paid_s, self._others_s = used_s, 0.0
        time.sleep(worked_s * (1 / self._share - 1))

    def _arm(self, tick_s: float) -> None:
        signal.setitimer(signal.ITIMER_PROF, tick_s, tick_s)


FULL: Final = Pace()
"""Where nothing else runs: work all the time."""
