"""A node's place in the log: incarnations, facts, vitals, and its death in all its kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio
import pytest

from controlplane.eventlog import (
    Batch,
    EventLog,
    Fenced,
    LeaseLost,
    NodeAlreadyAlive,
    NodeSession,
    OutcomeUnknown,
    Refused,
    StoreUnavailable,
)
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.settle import settle
from controlplane.eventlog.store import Put, Store, created_at
from statemachine.errors import BadName, EventTooLarge
from statemachine.events import LeaseExpired
from statemachine.ids import Incarnation, NodeId, Position

if TYPE_CHECKING:
    from tests.contract.conftest import Eventually, Facts, Sequencer, World

N0, N1 = NodeId("n0"), NodeId("n1")
TTL_S = 1.0


async def numbers(log: EventLog) -> list[int]:
    """The numbers that the facts in the inbox carry."""
    events = [item.fact().event for item in await log.inbox()]
    return [event.incarnation for event in events if isinstance(event, LeaseExpired)]


async def fence(log: EventLog, *sessions: NodeSession) -> None:
    """Declare incarnations lost, as a controller does."""
    leadership = await log.campaign("c0", 30)
    fenced = tuple((each.node, each.incarnation) for each in sessions)
    await leadership.append(Batch(after=leadership.head, entries=(), fenced=fenced))
    await leadership.resign()


async def no_longer_alive(log: EventLog) -> bool:
    """Whether the store knows of no live node."""
    return not await log.nodes()


async def test_incarnations_count(log: EventLog) -> None:
    """Each join of a node gets the next incarnation, whoever of its agents came before."""
    seen = []
    for _ in range(3):
        session = await log.join(N0, b"record", 30)
        seen.append(session.incarnation)
        await session.leave()

    assert seen == [1, 2, 3]


async def test_a_live_node_is_listed(log: EventLog) -> None:
    """A joined node is found with its incarnation and record until it leaves."""
    session = await log.join(N0, b"record", 30)

    (item,) = await log.nodes()
    await session.leave()

    assert (item.node, item.incarnation, item.record) == (N0, 1, b"record")
    assert await log.nodes() == ()


async def test_a_name_is_held_once(log: EventLog) -> None:
    """A second agent of a live node is refused, and told who holds the name."""
    await log.join(N0, b"", 30)

    with pytest.raises(NodeAlreadyAlive, match="incarnation 1") as caught:
        await log.join(N0, b"", 30)

    assert (caught.value.node, caught.value.incarnation) == (N0, 1)


async def test_of_many_agents_one_joins(log: EventLog) -> None:
    """Of eight agents that join one name at once, exactly one gets it."""
    joined, refused = [], []

    async def one() -> None:
        try:
            joined.append(await log.join(N0, b"", 30))
        except NodeAlreadyAlive as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(one)

    assert len(joined) == 1, (joined, refused)
    assert len(refused) == 7


@pytest.mark.parametrize("name", ["", "N0", "a/b", "..", "a\n", "x" * 64])
async def test_a_bad_name_goes_no_further(log: EventLog, name: str) -> None:
    """A name that cannot be part of a key is refused before anything is written."""
    with pytest.raises(BadName):
        await log.join(NodeId(name), b"", 30)


async def test_a_node_is_no_operator(log: EventLog) -> None:
    """A node cannot take a name that belongs to people."""
    with pytest.raises(Refused, match="operator"):
        await log.join(NodeId("operator.ann"), b"", 30)


async def test_facts_are_dense_and_ordered(log: EventLog, fact: Facts) -> None:
    """Facts of a node are counted from 1 without a gap, one by one or several at once."""
    session = await log.join(N0, b"", 30)

    await session.submit(fact(1), 10)
    await session.submit_all([fact(2), fact(3)], 11)

    items = await log.inbox()
    assert [(item.writer, item.incarnation, item.counter) for item in items] == [
        ("n0", 1, 1),
        ("n0", 1, 2),
        ("n0", 1, 3),
    ]
    assert [item.fact().at_ms for item in items] == [10, 11, 11]
    assert await numbers(log) == [1, 2, 3]


async def test_concurrent_statements_queue(log: EventLog, fact: Facts) -> None:
    """Facts stated at the same time by tasks of one node all arrive, once each."""
    session = await log.join(N0, b"", 30)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(session.submit, fact(number), 0)

    assert sorted(await numbers(log)) == list(range(20))
    assert [item.counter for item in await log.inbox()] == list(range(1, 21))


async def test_a_huge_fact_is_refused_here(log: EventLog) -> None:
    """A fact over 64 KiB is refused before it is sent, and takes no counter."""
    session = await log.join(N0, b"", 30)
    huge = LeaseExpired(node=NodeId("x" * 70_000), incarnation=Incarnation(1))

    with pytest.raises(EventTooLarge):
        await session.submit(huge, 0)

    assert session.counter == 0


async def test_a_lost_answer_states_once(world: World, log: EventLog, fact: Facts) -> None:
    """A fact whose acknowledgement was lost is stated again by itself, and stands once."""
    session = await log.join(N0, b"", 30)

    await world.lose_next_answer()
    assert await session.submit(fact(1), 0) == 1
    assert await session.submit(fact(2), 0) == 2

    assert await numbers(log) == [1, 2]


@pytest.mark.usefixtures("impatient")
async def test_a_lost_answer_states_once_though_sequenced(
    world: World, log: EventLog, fact: Facts, sequence_all: Sequencer, store: Store
) -> None:
    """A fact whose acknowledgement was lost stands once even if it left the inbox meanwhile."""
    leadership = await log.campaign("c0", 30)
    session = await log.join(N0, b"", 30)
    real, session._store = session._store, cast("Store", _LosesAnswer(store))
    with pytest.raises(OutcomeUnknown):
        with anyio.fail_after(10):
            await session.submit(fact(1), 0)
    session._store = real
    await sequence_all(leadership, await log.inbox())

    assert await session.submit(fact(1), 0) == 1

    assert await log.inbox() == ()
    assert [recorded.counter async for recorded in log.read()] == [1]


@pytest.mark.usefixtures("impatient")
async def test_an_unanswered_fact_does_not_swallow_the_next(
    log: EventLog, fact: Facts, store: Store
) -> None:
    """A fact that was given up as unknown but had been made does not pass for the one after."""
    session = await log.join(N0, b"", 30)
    real, session._store = session._store, cast("Store", _LosesAnswer(store))
    with pytest.raises(OutcomeUnknown):
        await session.submit(fact(1), 0)
    session._store = real

    assert await session.submit(fact(2), 0) == 2

    assert await numbers(log) == [1, 2]


class _LosesAnswer:
    """Passes one transaction on and then knows nothing, as a dying connection does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._passed = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def txn(self, *args: object) -> None:
        if not self._passed:
            self._passed = True
            await self._store.txn(*args)  # type: ignore[arg-type]
        raise OutcomeUnknown("lost by the test")


async def test_a_lost_answer_joins_once(world: World, log: EventLog) -> None:
    """A join whose acknowledgement was lost takes one incarnation, not two."""
    await log.check_schema()
    await log.head()
    session = None
    await world.lose_next_answer()

    session = await log.join(N0, b"", 30)

    assert session.incarnation == 1
    assert [item.incarnation for item in await log.nodes()] == [1]
    await session.submit(LeaseExpired(node=N0, incarnation=Incarnation(1)), 0)


async def test_vitals_live_with_the_node(log: EventLog) -> None:
    """Vitals are overwritten, found under the incarnation, and gone when it leaves."""
    session = await log.join(N0, b"", 30)
    await session.put_vitals(b"1")
    await session.put_vitals(b"2")

    (item,) = await log.vitals()
    await session.leave()

    assert (item.node, item.incarnation, item.value) == (N0, 1, b"2")
    assert await log.vitals() == ()


async def test_a_ghost_is_stopped_at_the_store(
    log: EventLog, fact: Facts, fleet: str, store: Store
) -> None:
    """After it was declared lost, nothing a node writes is accepted, even if it does not know."""
    session = await log.join(N0, b"", 30)
    await session.submit(fact(1), 0)
    alive = Keys(fleet).node(N0, session.incarnation)
    token = (await store.range(alive)).kvs[0].create_revision
    await fence(log, session)

    raw = await settle(store, (created_at(alive, token),), (Put(b"/test/" + alive, b""),))
    with pytest.raises(Fenced, match="declared lost"):
        await session.submit(fact(2), 0)
    with pytest.raises(Fenced, match="declared lost"):
        await session.put_vitals(b"")

    assert not raw.succeeded
    assert not session.is_alive
    assert await numbers(log) == [1]
    assert await log.vitals() == ()


async def test_a_ghosts_vitals_are_stopped_at_the_store(log: EventLog) -> None:
    """What it measured is put nowhere, though it does not know yet that it was declared lost."""
    session = await log.join(N0, b"", 30)
    await fence(log, session)
    assert session.is_alive, "it would not even ask"

    with pytest.raises(Fenced, match="declared lost"):
        await session.put_vitals(b"")

    assert await log.vitals() == ()


async def test_a_declared_node_learns_it_at_once(log: EventLog) -> None:
    """The renewal of a node that is declared lost ends within a fraction of its TTL."""
    session = await log.join(N0, b"", 30)

    async with anyio.create_task_group() as group:
        group.start_soon(fence, log, session)
        with anyio.fail_after(5), pytest.raises(Fenced) as caught:
            await session.run_renewal()

    assert not isinstance(caught.value, LeaseLost)


async def test_a_declared_node_never_comes_back(log: EventLog) -> None:
    """A declared incarnation cannot re-establish itself; the node joins anew as the next one."""
    session = await log.join(N0, b"", 30)
    await fence(log, session)

    with pytest.raises(Fenced, match="declared lost"):
        await session.reestablish()
    again = await log.join(N0, b"", 30)

    assert again.incarnation == 2


async def test_fencing_names_an_incarnation(log: EventLog, fact: Facts) -> None:
    """Declaring an old incarnation lost, late, does not touch the one that followed."""
    old = await log.join(N0, b"", 30)
    await old.leave()
    new = await log.join(N0, b"", 30)

    await fence(log, old)

    assert await new.submit(fact(1), 0) == 1
    assert new.is_alive


async def test_a_silent_node_expires(log: EventLog, eventually: Eventually, fact: Facts) -> None:
    """A node that does not renew is gone from the store; by then it has long fenced itself."""
    session = await log.join(N0, b"", TTL_S)
    seen_alive_after_fence = False

    async def gone() -> bool:
        nonlocal seen_alive_after_fence
        listed = bool(await log.nodes())
        seen_alive_after_fence = seen_alive_after_fence or (listed and not session.is_alive)
        return not listed

    await eventually(gone)

    assert seen_alive_after_fence, "the node fenced itself only after the store gave it up"
    with pytest.raises(LeaseLost):
        await session.submit(fact(1), 0)


async def test_renewal_keeps_a_node(log: EventLog, fact: Facts) -> None:
    """A node that renews is alive when its first lease would long be over."""
    session = await log.join(N0, b"", TTL_S)

    with anyio.move_on_after(1.7 * TTL_S) as scope:
        await session.run_renewal()

    assert scope.cancelled_caught
    assert await session.submit(fact(1), 0) == 1


async def test_a_cut_off_node_fences_itself(world: World, log: EventLog, fact: Facts) -> None:
    """A node whose store falls silent ends its renewal before the TTL would end."""
    session = await log.join(N0, b"", TTL_S)
    began = anyio.current_time()
    await world.lead_astray()

    with anyio.fail_after(5), pytest.raises(LeaseLost):
        await session.run_renewal()
    took_s = anyio.current_time() - began

    assert took_s < TTL_S
    assert not session.is_alive
    with pytest.raises(LeaseLost):
        await session.submit(fact(1), 0)
    await world.bring_back()


async def test_a_short_silence_is_survived(world: World, log: EventLog) -> None:
    """A silence shorter than the lease allows ends nobody."""
    session = await log.join(N0, b"", 2)

    async with anyio.create_task_group() as group:
        group.start_soon(session.run_renewal)
        await anyio.sleep(0.5)  # the next renewal is due at 0.67
        await world.lead_astray()
        await anyio.sleep(0.5)
        await world.bring_back()
        await anyio.sleep(1.2)  # beyond the deadline of the first renewal
        group.cancel_scope.cancel()

    assert session.is_alive


@pytest.mark.usefixtures("impatient")
async def test_an_absent_store_says_so(world: World, log: EventLog, fact: Facts) -> None:
    """With the store away a statement gives up after its budget, and the node goes on later."""
    session = await log.join(N0, b"", 60)
    await world.lead_astray()

    with anyio.fail_after(12), pytest.raises((StoreUnavailable, OutcomeUnknown)):
        await session.submit(fact(1), 0)
    await world.bring_back()

    assert await session.submit(fact(1), 0) == 1
    assert await numbers(log) == [1]


async def test_nodes_can_be_watched(log: EventLog) -> None:
    """Whoever watches nodes sees them come and go, and never has to poll."""
    async with log.watch_nodes() as view:
        with anyio.fail_after(5):
            first = await anext(view)
            session = await log.join(N0, b"", 30)
            came = await anext(view)
            await session.leave()
            went = await anext(view)

    assert first.updated == ()
    assert [item.node for item in came.updated] == [N0]
    assert [(item.node, item.incarnation) for item in went.removed] == [(N0, 1)]
    assert view.items == {}


async def test_two_fleets_do_not_meet(store: Store, log: EventLog, fact: Facts) -> None:
    """Logs of two fleets on one store share nothing."""
    other = EventLog(store, log.fleet + "-other")
    here, there = await log.join(N0, b"", 30), await other.join(N0, b"", 30)
    await here.submit(fact(1), 0)

    assert there.incarnation == 1
    assert await other.inbox() == ()
    assert await other.head() == Position(0)
