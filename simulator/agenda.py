"""Virtual time: what is due next. Time moves only when something is due.

Ties are broken by the order of entry, so that a run is the same on every machine.
"""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Agenda:
    """Actions by virtual time, in seconds since the start of the run."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.done = 0
        self._due: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, at_s: float, action: Action) -> None:
        """Have `action` run at a time that is not before now."""
        self._count += 1
        heapq.heappush(self._due, (max(at_s, self.now_s), self._count, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Have `action` run `delay_s` from now."""
        self.at(self.now_s + delay_s, action)

    def run_until(self, end_s: float, before: Callable[[], bool], after: Action) -> None:
        """Run everything that is due before `end_s`, as long as `before` says to go on.

        What is due at one instant runs together, between `before` and `after`: a sequencer takes
        facts that arrive together as one batch, and decides once.
        """
        while self._due and self._due[0][0] < end_s:
            self.now_s = self._due[0][0]
            if not before():
                return
            while self._due and self._due[0][0] <= self.now_s:
                self.done += 1
                heapq.heappop(self._due)[2]()
            after()
        self.now_s = end_s
