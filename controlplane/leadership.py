"""Becoming the leader of a fleet, and knowing all that its leader must know.

What belongs here: the campaign (wait, or refuse to wait) and the takeover: from the log and the
projected keys to a ledger. The fencing itself is the event log's: an append of a deposed
controller fails at the store.
"""

from __future__ import annotations

import anyio

from controlplane.config import Settings
from controlplane.errors import LeaderPresent
from controlplane.eventlog import EventLog, Leadership
from controlplane.projection import as_found
from controlplane.turn import Counters, Ledger, count
from statemachine.evolve import evolve
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


async def take_over(log: EventLog) -> Ledger:
    """Fold the whole log, and look at what the projected keys say.

    Raises:
        LogCorrupt: a position is missing or does not decode.
        StoreUnavailable.
    """
    state = FleetState()
    counters: Counters = Ledger().counters
    async for pages in log.read_entries():
        for entry in pages:
            recorded = entry.recorded()
            state = evolve(state, recorded)
            counters = count(counters, recorded.writer, recorded.incarnation, recorded.counter)
    projected = as_found(await log.desired_all(), await log.orders_all())
    return Ledger(state=state, counters=counters, projected=projected)
