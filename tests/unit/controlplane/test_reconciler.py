"""When the sequencer takes a turn, and in which order it takes what waits."""

from __future__ import annotations

import anyio

from controlplane.eventlog import Delta, EventLog, InboxItem
from controlplane.eventlog.memory import MemoryStore
from controlplane.reconciler import Reconciler
from controlplane.turn import Ledger
from statemachine.codec import encode_fact
from statemachine.events import DecisionsPaused, Fact
from statemachine.ids import Incarnation
from tests.virtual import on_virtual_time


def act(name: str, revision: int) -> InboxItem:
    """An operator's act that arrived at a revision."""
    writer, one = f"operator.{name}", Incarnation(1)
    event = DecisionsPaused(by=name)
    fact = Fact(event=event, at_ms=1, writer=writer, incarnation=one, counter=1)
    return InboxItem(writer, one, 1, revision, encode_fact(fact))


@on_virtual_time
async def test_what_waits_is_taken_in_order_of_arrival() -> None:
    """Even if a broken watch made it be listed anew, in the order of names."""
    log = EventLog(MemoryStore(), "f0")
    leadership = await log.campaign("c0", 60)
    reconciler = Reconciler(leadership, Ledger(), lambda: 1)
    ann, bob, cem = act("ann", 30), act("bob", 20), act("cem", 40)
    reconciler.offer(Delta(30, (ann,), ()))
    reconciler.offer(Delta(40, (ann, bob, cem), ()))
    reconciler.offer(Delta(50, (act("dan", 50),), (cem,)))
    await reconciler.take_turn()
    reconciler.offer(Delta(60, (act("eve", 60),), ()))
    with anyio.fail_after(1):
        await reconciler.take_turn()

    writers = [entry.writer async for entry in log.read()]
    assert writers == ["operator.bob", "operator.ann", "operator.dan", "operator.eve"]
