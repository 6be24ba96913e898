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
from controlplane.turn import Ledger, count
from statemachine.events import Recorded
from statemachine.state import FleetState

EVERY_ENTRIES: Final = 10_000
"""Events between two snapshots; a takeover folds at most that many."""

PAUSE_S: Final = 5.0
"""Pause after a snapshot that could not be written, in seconds."""


class Snapshotter:
    """Writes a snapshot whenever the log has grown by `every` events since the last one.

    `folded` is what the log says at the beginning of the term. It counts for itself what enters the
    log: a sequencer's own counters know of facts too that it passed over.
    """

    def __init__(
        self,
        log: EventLog,
        folded: Ledger,
        clock_ms: Callable[[], int],
        every: int = EVERY_ENTRIES,
    ) -> None:
        self._log = log
        self._image = Image(state=folded.state, counters=folded.counters)
        self._clock_ms = clock_ms
        self._every = every
        self._last = 0
        self._due = anyio.Event()

    def heard(self, recorded: Sequence[Recorded], state: FleetState) -> None:
        """Note what has entered the log."""
        counters = self._image.counters
        for entry in recorded:
            counters = count(counters, entry.writer, entry.incarnation, entry.counter)
        self._image = Image(state=state, counters=counters)
        if self._is_due():
            self._due.set()

    def _is_due(self) -> bool:
        return self._image.state.position >= self._last + self._every

    async def run(self) -> NoReturn:
        """Write what is due, until cancelled; what fails is said and tried again."""
        while True:
            try:
                snapshots = await self._log.snapshots()
                self._last = snapshots[-1].position if snapshots else 0
                while True:
                    await self._write_when_due()
            except EventLogError as error:
                await self._failed(error)

    async def _write_when_due(self) -> None:
        while not self._is_due():
            self._due = anyio.Event()
            await self._due.wait()
        image = self._image
        written = await snapshot_now(self._log, image, self._clock_ms())
        self._last = image.state.position
        journal.note("snapshot", position=self._last, bytes=written.size)

    async def _failed(self, error: EventLogError) -> None:
        journal.warn("no snapshot could be written", why=error)
        await anyio.sleep(PAUSE_S)
