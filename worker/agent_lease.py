"""Holding a node's place in the fleet: kept while it lives, taken again, given back at the end.

What belongs here: the lease of one incarnation. Whether the node should live is not decided here.

A lease that ended does not end training: while the store is away nobody can replace this node, and
if it was replaced meanwhile, coming back raises `Fenced`, which ends it.
"""

from __future__ import annotations

import logging
from typing import Final, NoReturn

import anyio

from controlplane.eventlog import EventLogError, LeaseLost, NodeSession, NoSpace, Reread, Retry
from statemachine.events import NodeLeft
from worker.agent_facts import FactQueue

log = logging.getLogger("worker.agent")

FAREWELL_S: Final = 2.0
"""How long the store may take to hear that this node leaves."""

_RETRY_S: Final = 0.1


async def keep_lease(session: NodeSession) -> NoReturn:
    """Renew the lease, and take it again when it ended.

    Raises:
        Fenced: declared lost.
        EventLogError: the store refuses for good.
    """
    while True:
        try:
            await session.run_renewal()
        except LeaseLost as lost:
            log.warning("%s; training goes on, coming back", lost)
            await _come_back(session)
            log.warning("alive again as incarnation %d", session.incarnation)


async def _come_back(session: NodeSession) -> None:
    """Take the lease again, however long the store is away or full."""
    while True:
        try:
            await session.reestablish()
        except (LeaseLost, Retry, Reread, NoSpace):  # a full store refuses leases too
            await anyio.sleep(_RETRY_S)
        else:
            return


async def say_farewell(session: NodeSession, facts: FactQueue, left_for: str) -> None:
    """Let what waits be stated and give the lease back; never longer than a moment.

    `left_for` is why the node leaves in good order, empty if it does not.
    """
    if left_for:
        node, incarnation = session.node, session.incarnation
        facts.put(NodeLeft(node=node, incarnation=incarnation, reason=left_for))
    try:
        with anyio.move_on_after(FAREWELL_S, shield=True) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(facts.run)
                await facts.drained()
                group.cancel_scope.cancel()
            await session.leave()
    except* EventLogError as errors:
        log.warning("left without saying so: %s", errors.exceptions[0])
    else:
        if scope.cancelled_caught:
            log.warning("left without saying so: the store does not answer")
