"""When the sequencer takes a turn, and in which order it takes what waits."""

from __future__ import annotations

import anyio

from controlplane.eventlog import Delta, EventLog, InboxItem
from controlplane.eventlog.memory import MemoryStore
from controlplane.reconciler import COMPANY_S, Reconciler
from controlplane.turn import Ledger
from statemachine.codec import encode_fact
from statemachine.events import DecisionsPaused, Fact, TransitionPrepared
from statemachine.ids import Incarnation, JobId, NodeId, TransitionId
from tests.virtual import on_virtual_time


def act(name: str, revision: int) -> InboxItem:
    """An operator's act that arrived at a revision."""
    writer, one = f"operator.{name}", Incarnation(1)
    event = DecisionsPaused(by=name)
    fact = Fact(event=event, at_ms=1, writer=writer, incarnation=one, counter=1)
    return InboxItem(writer, one, 1, revision, encode_fact(fact))


def prepared(node: str, revision: int) -> InboxItem:
    """An acknowledgement of a member."""
    one = Incarnation(1)
    event = TransitionPrepared(
        job=JobId("job"), transition=TransitionId(1), node=NodeId(node), incarnation=one
    )
    fact = Fact(event=event, at_ms=1, writer=node, incarnation=one, counter=1)
    return InboxItem(node, one, 1, revision, encode_fact(fact))


@on_virtual_time
async def test_an_acknowledgement_that_decides_nothing_waits_for_company() -> None:
    """It is appended with what comes next, at once where that matters, else a moment later: an
    append for each of the first would hold up the last, for which everybody waits.
    """
    log = EventLog(MemoryStore(), "f0")
    reconciler = Reconciler(await log.campaign("c0", 60), Ledger(), lambda: 1)
    began_s = anyio.current_time()

    async def later(after_s: float, item: InboxItem) -> None:
        await anyio.sleep(after_s)
        reconciler.offer(Delta(item.revision, (item,), ()))

    reconciler.offer(Delta(10, (prepared("n0", 10),), ()))
    async with anyio.create_task_group() as group:
        group.start_soon(later, COMPANY_S / 4, prepared("n1", 11))
        group.start_soon(later, COMPANY_S / 2, act("ann", 12))
        await reconciler.take_turn()
    assert anyio.current_time() - began_s == COMPANY_S / 2
    assert [entry.writer async for entry in log.read()] == ["n0", "n1", "operator.ann"]

    reconciler.offer(Delta(20, (prepared("n2", 20),), ()))
    await reconciler.take_turn()
    assert anyio.current_time() - began_s == COMPANY_S / 2 + COMPANY_S
    assert [entry.writer async for entry in log.read()][3:] == ["n2"]
    assert reconciler.turns == 2


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
