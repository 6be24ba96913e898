"""The deadline by which a training process leaves its abandoned collectives, or is killed.

What belongs here: when that clock starts and stops. A process that is parked has left its
collectives, however long the links to its peers may take. One that answered while its training
thread still computes has not: the clock runs on until it is parked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from statemachine import messages as m
from statemachine.events import Motive


class AbortWatch:
    """Watches one training process; `kill` is called with the reason when time is up."""

    def __init__(self, deadline_s: float, kill: Callable[[str], None]) -> None:
        self._deadline_s = deadline_s
        self._kill = kill
        self._timer: asyncio.TimerHandle | None = None

    def told(self, message: m.ToWorker, *, was_member: bool) -> None:
        """Notice what the process is told; only who held a slot can hang in a collective.

        A second loss does not restart the clock of the first: the process is as stuck as it was.
        """
        if isinstance(message, m.Cancel):
            self.disarm()
        if not isinstance(message, m.Prepare) or message.motive is not Motive.UNPLANNED:
            return
        if was_member and self._timer is None:
            reason = f"did not leave its collectives {self._deadline_s:g} s after being told to"
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._deadline_s, self._kill, reason)

    def said(self, message: m.FromWorker) -> None:
        """Notice what the process says."""
        computing = isinstance(message, m.Prepared) and message.computing
        if isinstance(message, m.Parked | m.Prepared | m.Refused) and not computing:
            self.disarm()

    def disarm(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
