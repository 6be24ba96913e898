"""Becoming the leader of a fleet, and knowing all that its leader must know.

What belongs here: the campaign (wait, or refuse to wait) and the takeover: from the log and the
projected keys to a ledger. The fencing itself is the event log's: an append of a deposed
controller fails at the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import anyio

from controlplane.config import Settings
from controlplane.errors import LeaderPresent
from controlplane.eventlog import Entry, EventLog, EventLogError, Leadership
from controlplane.folding import newest_image
from controlplane.projection import as_found
from controlplane.turn import Counters, Ledger, count
from statemachine.evolve import evolve
from statemachine.ids import Position
from statemachine.state import FleetState

NO_WAIT_S = 2.0
"""How long a campaign that shall not wait may take, in seconds."""


async def win(log: EventLog, settings: Settings, *, wait: bool) -> Leadership:
    """Campaign until this controller leads.

    Raises:
        LeaderPresent: `wait` is false, and another controller leads.
        StoreUnavailable, NoSpace, SchemaTooNew: see `EventLog.campaign`.
    """
    if wait:
        return await log.campaign(settings.controller, settings.leader_ttl_s)
    await _refuse_if_led(log, settings)
    with anyio.move_on_after(NO_WAIT_S):
        return await log.campaign(settings.controller, settings.leader_ttl_s)
    await _refuse_if_led(log, settings)
    raise LeaderPresent(f"fleet {settings.fleet}: the leadership could not be taken; try again")


async def _refuse_if_led(log: EventLog, settings: Settings) -> None:
    leader = await log.leader()
    if leader is not None:
        name, term = leader
        raise LeaderPresent(
            f"fleet {settings.fleet} is led by controller {name} (term {term}): stop that one, "
            f"wait up to {settings.leader_ttl_s:.0f} s if it is dead, or leave out --no-wait "
            "to stand by"
        )


class Preview:
    """The log folded while this controller stands by, so that taking over costs what is new."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.state = FleetState()
        self.counters: Counters = Ledger().counters

    def _take(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            recorded = entry.recorded()
            self.state = evolve(self.state, recorded)
            self.counters = count(
                self.counters, recorded.writer, recorded.incarnation, recorded.counter
            )

    async def begin(self) -> None:
        """Take the newest snapshot, if it is ahead of what is folded already."""
        image = await newest_image(self._log)
        if image.state.position > self.state.position:
            self.state, self.counters = image.state, image.counters

    async def follow(self) -> None:
        """Fold as the log grows, until cancelled; a damaged log is left to the takeover to tell."""
        with suppress(EventLogError):
            await self.begin()
            async with self._log.follow(Position(self.state.position + 1)) as follower:
                while True:
                    self._take(await follower.next_batch())

    async def complete(self) -> Ledger:
        """Fold the rest, and look at what the projected keys say; for a leader only.

        Raises:
            LogCorrupt: a position is missing or does not decode.
            Archived: no snapshot serves, and the log's beginning is in an archive.
            StoreUnavailable.
        """
        if self.state.position + 1 < await self._log.oldest() or not self.state.position:
            await self.begin()
        async for entries in self._log.read_entries(Position(self.state.position + 1)):
            self._take(entries)
        projected = as_found(await self._log.desired_all(), await self._log.orders_all())
        return Ledger(state=self.state, counters=self.counters, projected=projected)
