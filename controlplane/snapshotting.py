"""Snapshots while a controller leads: one every so many events.

What belongs here: when one is due, and that none of its failures ends a term. What a snapshot is,
is `imaging`; how it is written and proven, `archiving`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import anyio

from controlplane import journal
from controlplane.archiving import snapshot_now
from controlplane.eventlog import EventLog, EventLogError
from controlplane.imaging import Image
from controlplane.turn import Ledger
from statemachine.events import Recorded
from statemachine.state import FleetState

EVERY_ENTRIES: Final = 10_000
"""Events between two snapshots; a takeover folds at most that many."""

PAUSE_S: Final = 5.0
"""Pause after a snapshot that could not be written, in seconds."""


class Snapshotter:
    """Writes a snapshot whenever the log has grown by `every` events since the last one."""

    def __init__(
        self,
        log: EventLog,
        ledgers: Callable[[], Ledger],
        clock_ms: Callable[[], int],
        every: int = EVERY_ENTRIES,
    ) -> None:
        self._log = log
        self._ledgers = ledgers
        self._clock_ms = clock_ms
        self._every = every
        self._last = 0
        self._due = anyio.Event()

    def heard(self, recorded: Sequence[Recorded], state: FleetState) -> None:
        """Note that the log has grown."""
        if state.position >= self._last + self._every:
            self._due.set()

    async def run(self) -> NoReturn:
        """Write what is due, until cancelled; what fails is said and tried again."""
        while True:
            try:
                snapshots = await self._log.snapshots()
                self._last = snapshots[-1].position if snapshots else 0
                break
            except EventLogError as error:
                await self._failed(error)
        while True:
            ledger = self._ledgers()
            if ledger.position < self._last + self._every:
                self._due = anyio.Event()
                await self._due.wait()
                continue
            image = Image(state=ledger.state, counters=ledger.counters)
            try:
                written = await snapshot_now(self._log, image, self._clock_ms())
            except EventLogError as error:
                await self._failed(error)
                continue
            self._last = ledger.position
            journal.note("snapshot", position=ledger.position, bytes=written.size)

    async def _failed(self, error: EventLogError) -> None:
        journal.warn("no snapshot could be written", why=error)
        await anyio.sleep(PAUSE_S)
