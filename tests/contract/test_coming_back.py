"""Back after its lease, stated after a lost answer: once, and alive once, whoever was faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio
import pytest

from controlplane.eventlog import EventLog, Fenced, LeaseLost, OutcomeUnknown
from controlplane.eventlog.lease import LeaseKeeper
from controlplane.eventlog.store import Store, TxnResult
from statemachine.ids import NodeId
from tests.contract.test_membership import fence, no_longer_alive, numbers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.contract.conftest import Eventually, Facts, Sequencer, World

N0 = NodeId("n0")
TTL_S = 1.0


async def test_a_node_comes_back_after_its_lease(
    log: EventLog, fact: Facts, eventually: Eventually
) -> None:
    """A node whose lease ran out, and was not declared lost, goes on as the same incarnation."""
    session = await log.join(N0, b"record", TTL_S)
    await session.submit(fact(1), 0)

    async def gone() -> bool:
        return await no_longer_alive(log)

    await eventually(gone)
    await session.reestablish()

    assert await session.submit(fact(2), 0) == 2
    (item,) = await log.nodes()
    assert (item.incarnation, item.record) == (1, b"record")
    assert await numbers(log) == [1, 2]


async def test_a_node_comes_back_before_the_store_noticed(log: EventLog, fact: Facts) -> None:
    """A node that fenced itself while its lease still ran re-binds its key and goes on."""
    session = await log.join(N0, b"", 30, fence_ratio=0.001)
    await anyio.sleep(0.05)
    with pytest.raises(LeaseLost):
        await session.submit(fact(1), 0)

    await session.reestablish()

    assert [item.incarnation for item in await log.nodes()] == [1]
    session._keeper = await LeaseKeeper.granted(session._store, 30)
    assert await session.submit(fact(1), 0) == 1


async def test_a_replaced_node_does_not_come_back(log: EventLog, eventually: Eventually) -> None:
    """A node whose lease ran out and whose name a newer agent took is told to join anew."""
    old = await log.join(N0, b"", TTL_S)

    async def gone() -> bool:
        return await no_longer_alive(log)

    await eventually(gone)
    new = await log.join(N0, b"", 30)

    with pytest.raises(Fenced, match="incarnation 2"):
        await old.reestablish()
    assert new.is_alive


class _Between:
    """Lets something happen behind the first transaction, as if on another machine."""

    def __init__(self, store: Store, happen: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._happen: Callable[[], Awaitable[object]] | None = happen

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def txn(self, *args: object) -> TxnResult:
        result = await self._store.txn(*args)  # type: ignore[arg-type]
        happen, self._happen = self._happen, None
        if happen is not None:
            await happen()
        return result


@pytest.mark.parametrize("overtaken", ["declared lost", "incarnation 2"])
async def test_a_node_that_is_overtaken_while_it_comes_back_stays_away(
    log: EventLog, store: Store, eventually: Eventually, overtaken: str
) -> None:
    """Between its look at the store and its return it is declared lost, or its successor joins:
    the store refuses the return itself, and nobody is alive twice.
    """
    session = await log.join(N0, b"", TTL_S)

    async def gone() -> bool:
        return await no_longer_alive(log)

    async def happen() -> None:
        await (fence(log, session) if overtaken == "declared lost" else log.join(N0, b"", 30))

    await eventually(gone)
    session._store = cast("Store", _Between(store, happen))
    with pytest.raises(Fenced, match=overtaken):
        await session.reestablish()

    assert [item.incarnation for item in await log.nodes() if item.incarnation == 1] == []


class _LosesAnswerAfter(_Between):
    """The first transaction is applied, something happens, and its answer never comes."""

    async def txn(self, *args: object) -> TxnResult:
        is_first = self._happen is not None
        result = await super().txn(*args)
        if is_first:
            raise OutcomeUnknown("lost by the test")
        return result


async def test_an_operator_states_once(world: World, log: EventLog, fact: Facts) -> None:
    """An operator's act stands once in the inbox, with the name, even if an answer was lost."""
    await log.head()
    await log.submit_operator("ann", fact(1), 5)
    await world.lose_next_answer()
    await log.submit_operator("bob", fact(2), 6)

    items = await log.inbox()

    assert [item.writer for item in items] == ["operator.ann", "operator.bob"]
    assert [item.fact().at_ms for item in items] == [5, 6]
    assert len({item.incarnation for item in items}) == 2


async def test_an_operator_states_once_though_sequenced(
    log: EventLog, fact: Facts, sequence_all: Sequencer, store: Store
) -> None:
    """An act whose acknowledgement was lost is not stated again if the log has it already."""
    leadership = await log.campaign("c0", 30)

    async def sequenced() -> None:
        await sequence_all(leadership, await log.inbox())

    lossy = EventLog(cast("Store", _LosesAnswerAfter(store, sequenced)), log.fleet)
    await lossy.submit_operator("ann", fact(1), 5)

    assert await log.inbox() == ()
    assert [recorded.writer async for recorded in log.read()] == ["operator.ann"]
