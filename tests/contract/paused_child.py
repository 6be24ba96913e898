"""A process that writes as fast as it can, as a node or as a leader, until it may no longer.

It prints a line when it has begun and one when it ends: the error that ended it.
`URL FLEET KIND CLIENT`.
"""

from __future__ import annotations

import sys

import anyio

from controlplane.eventlog import (
    Batch,
    Deposed,
    EventLog,
    Fenced,
    OutcomeUnknown,
    Retry,
    open_store,
)
from statemachine.codec import encode_recorded
from statemachine.events import LeaseExpired, Recorded
from statemachine.ids import Incarnation, NodeId, Position

TTL_S = 1.0
N0 = NodeId("n0")


async def state_facts(log: EventLog) -> None:
    """State one fact after the other, as incarnation 1 of n0, beside the renewal."""
    session = await log.join(N0, b"", TTL_S)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run_renewal)
        number = 0
        while True:
            number += 1
            event = LeaseExpired(node=N0, incarnation=Incarnation(number))
            while True:
                try:
                    await session.submit(event, number)
                    break
                except (Retry, OutcomeUnknown):
                    continue
            if number == 50:
                print("began", flush=True)


async def append(log: EventLog) -> None:
    """Append one entry after the other, as controller c0, beside the renewal."""
    leadership = await log.campaign("c0", TTL_S)
    async with anyio.create_task_group() as group:
        group.start_soon(leadership.run_renewal)
        while True:
            position = Position(leadership.head + 1)
            event = LeaseExpired(node=N0, incarnation=Incarnation(1))
            told = Recorded(position=position, at_ms=0, writer="c0", event=event)
            batch = Batch(after=leadership.head, entries=(encode_recorded(told),))
            while True:
                try:
                    await leadership.append(batch)
                    break
                except (Retry, OutcomeUnknown):
                    continue
            if position == 50:
                print("began", flush=True)


async def main() -> None:
    """Write until it ends; say how."""
    url, fleet, kind, client = sys.argv[1:]
    store = await open_store(url, client=client)
    log = EventLog(store, fleet)
    try:
        await (state_facts(log) if kind == "node" else append(log))
    except* (Deposed, Fenced) as ended:
        error: BaseException = ended
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        print(type(error).__name__, flush=True)
    finally:
        await store.aclose()


if __name__ == "__main__":
    anyio.run(main)
