"""The one controller that may write the log: election, appends, and its end in all its kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from controlplane.eventlog import (
    BATCH_OPS_MAX,
    Batch,
    Deposed,
    EventLog,
    HeadMoved,
    Leadership,
    OutcomeUnknown,
    StoreUnavailable,
    TooLarge,
)
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.store import Delete, Put, Store
from statemachine.codec import CODEC_VERSION, encode_recorded
from statemachine.errors import SchemaTooNew
from statemachine.events import Recorded
from statemachine.ids import Incarnation, JobId, NodeId, Position

if TYPE_CHECKING:
    from tests.contract.conftest import Facts, Sequencer, World

N0 = NodeId("n0")
J0 = JobId("j0")


def batch(after: int, fact: Facts, count: int = 1, **more: object) -> Batch:
    """Entries that follow a head, each carrying its own position as its number."""
    entries = tuple(
        encode_recorded(
            Recorded(position=Position(each), at_ms=1, writer="controller.c0", event=fact(each))
        )
        for each in range(after + 1, after + count + 1)
    )
    return Batch(after=Position(after), entries=entries, **more)  # type: ignore[arg-type]


async def positions(log: EventLog) -> list[int]:
    """Positions of all entries."""
    return [recorded.position async for recorded in log.read()]


async def test_one_leads_at_a_time(log: EventLog) -> None:
    """A second campaign waits until the first leader resigns, then wins a higher term."""
    first = await log.campaign("c0", 30)
    won: list[Leadership] = []

    async def second() -> None:
        won.append(await log.campaign("c1", 30))

    async with anyio.create_task_group() as group:
        group.start_soon(second)
        with anyio.move_on_after(0.3):
            await anyio.sleep(1)
        waiting = list(won)
        led_by = await log.leader()
        with anyio.fail_after(5):
            await first.resign()
            while not won:  # noqa: ASYNC110 - a list has no event
                await anyio.sleep(0.005)

    assert waiting == []
    assert led_by == ("c0", first.term)
    assert await log.leader() == ("c1", won[0].term)
    assert won[0].term > first.term


async def test_a_silent_leader_is_succeeded(log: EventLog) -> None:
    """A leader that does not renew is followed by the next one when its lease ends."""
    first = await log.campaign("c0", 1)

    with anyio.fail_after(8):
        second = await log.campaign("c1", 30)

    assert second.term > first.term
    with pytest.raises(Deposed):
        await first.append(Batch(after=Position(0), entries=()))


async def test_a_deposed_leader_is_stopped_at_the_store(
    log: EventLog, store: Store, fact: Facts
) -> None:
    """An append of a controller that another followed fails at the store, and writes nothing."""
    first = await log.campaign("c0", 30)
    await first.append(batch(0, fact))
    await store.txn((), (Delete(Keys(log.fleet).leader),))
    second = await log.campaign("c1", 30)
    await second.append(batch(1, fact))

    with pytest.raises(Deposed, match="c1 leads now"):
        await first.append(batch(1, fact, desired=((J0, b"ghost"),)))

    assert await positions(log) == [1, 2]
    assert await log.desired(J0) is None


async def test_a_deposed_leader_is_stopped_although_the_head_is_where_it_was(
    log: EventLog, store: Store, fact: Facts
) -> None:
    """It is the term that counts: an append fails with nobody leading, and with a successor that
    has written nothing yet, whose own append is the next one.
    """
    first = await log.campaign("c0", 30)
    await first.append(batch(0, fact))
    await store.txn((), (Delete(Keys(log.fleet).leader),))
    doomed = await log.join(N0, b"", 30)
    ghostly = batch(1, fact, desired=((J0, b"ghost"),), fenced=((N0, doomed.incarnation),))

    with pytest.raises(Deposed, match="nobody leads now"):
        await first.append(ghostly)
    orphan = await log.campaign("c1", 30)
    await store.txn((), (Delete(Keys(log.fleet).leader),))
    second = await log.campaign("c2", 30)
    with pytest.raises(Deposed, match="c2 leads now"):
        await orphan.append(ghostly)

    assert await positions(log) == [1]
    assert await log.desired(J0) is None
    assert [item.node for item in await log.nodes()] == [N0]
    assert await second.append(batch(1, fact)) == 2


async def test_a_leader_learns_its_end_at_once(log: EventLog, store: Store) -> None:
    """The renewal of a leader whose key vanishes ends within a fraction of its TTL."""
    leadership = await log.campaign("c0", 30)

    async def depose() -> None:
        await store.txn((), (Delete(Keys(log.fleet).leader),))

    async with anyio.create_task_group() as group:
        group.start_soon(depose)
        with anyio.fail_after(5), pytest.raises(Deposed):
            await leadership.run_renewal()


async def test_a_cut_off_leader_stops(world: World, log: EventLog, fact: Facts) -> None:
    """A leader whose store falls silent is deposed by its own clock before its TTL ends."""
    leadership = await log.campaign("c0", 1)
    began = anyio.current_time()
    await world.lead_astray()

    with anyio.fail_after(5), pytest.raises(Deposed):
        await leadership.run_renewal()
    took_s = anyio.current_time() - began

    assert took_s < 1
    with pytest.raises(Deposed):
        await leadership.append(batch(0, fact))
    await world.bring_back()


async def test_an_append_is_one_step(log: EventLog, fact: Facts, store: Store) -> None:
    """Entries, head, consumed facts, fenced nodes and projections change in one revision."""
    leadership = await log.campaign("c0", 30)
    doomed = await log.join(NodeId("n1"), b"", 30)
    session = await log.join(N0, b"", 30)
    await session.submit(fact(1), 0)
    before = (await store.server_info()).revision

    head = await leadership.append(
        batch(
            0,
            fact,
            2,
            consumed=await log.inbox(),
            fenced=((doomed.node, doomed.incarnation),),
            desired=((J0, b"topology"),),
            orders=((N0, b"rehearse"),),
        )
    )

    keys = Keys(log.fleet)
    written = [keys.log(1), keys.log(2), keys.head, keys.desired(J0), keys.orders(N0)]
    revisions = {(await store.range(key)).kvs[0].mod_revision for key in written}
    assert head == leadership.head == 2
    assert len(revisions) == 1
    assert revisions.pop() > before
    assert await log.inbox() == ()
    assert [item.node for item in await log.nodes()] == [N0]
    assert await log.desired(J0) == b"topology"
    assert not (await store.range(keys.node(doomed.node, doomed.incarnation))).kvs


async def test_only_what_was_consumed_leaves_the_inbox(
    log: EventLog, fact: Facts, sequence_all: Sequencer
) -> None:
    """Facts that arrive after the inbox was read stay, whatever gaps the batch leaves."""
    leadership = await log.campaign("c0", 30)
    session = await log.join(N0, b"", 30)
    other = await log.join(NodeId("n1"), b"", 30)
    await session.submit_all([fact(number) for number in range(1, 7)], 0)
    await other.submit_all([fact(number) for number in range(1, 4)], 0)
    items = {(item.writer, item.counter): item for item in await log.inbox()}
    taken = [("n0", 1), ("n0", 2), ("n0", 4), ("n0", 5), ("n1", 1)]

    await sequence_all(leadership, tuple(items[each] for each in taken))

    left = [(item.writer, item.counter) for item in await log.inbox()]
    assert left == [("n0", 3), ("n0", 6), ("n1", 2), ("n1", 3)]
    assert [(each.writer, each.counter) async for each in log.read()] == taken


async def test_a_stale_head_is_noticed(log: EventLog, fact: Facts) -> None:
    """A batch made for another head is refused, and the leader told the right one."""
    leadership = await log.campaign("c0", 30)
    await leadership.append(batch(0, fact, 3))

    with pytest.raises(HeadMoved) as caught:
        await leadership.append(batch(2, fact, desired=((J0, b"stale"),)))

    assert (caught.value.expected, caught.value.actual) == (2, 3)
    assert leadership.head == 3
    assert await log.desired(J0) is None
    await leadership.append(batch(3, fact))
    assert await positions(log) == [1, 2, 3, 4]


async def test_a_new_leader_knows_the_head(log: EventLog, fact: Facts) -> None:
    """Whoever wins starts from where the log ends."""
    first = await log.campaign("c0", 30)
    await first.append(batch(0, fact, 5))
    await first.resign()

    second = await log.campaign("c1", 30)

    assert second.head == await log.head() == 5


async def test_a_lost_answer_appends_once(world: World, log: EventLog, fact: Facts) -> None:
    """An append whose acknowledgement was lost is settled by itself: once, and no error."""
    leadership = await log.campaign("c0", 30)
    await world.lose_next_answer()

    assert await leadership.append(batch(0, fact, 2)) == 2
    assert await leadership.append(batch(2, fact)) == 3

    assert await positions(log) == [1, 2, 3]


@pytest.mark.usefixtures("impatient")
async def test_an_unsettled_append_can_be_repeated(
    world: World, log: EventLog, fact: Facts
) -> None:
    """An append that gave up without an answer may be made again as it is."""
    leadership = await log.campaign("c0", 60)
    await world.lead_astray()
    with anyio.fail_after(12), pytest.raises((OutcomeUnknown, StoreUnavailable)):
        await leadership.append(batch(0, fact))
    await world.bring_back()

    assert await leadership.append(batch(0, fact)) == 1

    assert await positions(log) == [1]


async def test_a_lost_answer_wins_once(world: World, log: EventLog) -> None:
    """A campaign whose acknowledgement was lost ends in one term, held by who ran."""
    await log.check_schema()
    await world.lose_next_answer()

    with anyio.fail_after(10):
        leadership = await log.campaign("c0", 30)

    assert await log.leader() == ("c0", leadership.term)
    await leadership.append(Batch(after=Position(0), entries=()))


async def test_a_full_batch_fits(log: EventLog, fact: Facts) -> None:
    """A batch of as many operations as are allowed is appended; one more is refused here."""
    leadership = await log.campaign("c0", 30)
    full = batch(0, fact, BATCH_OPS_MAX - 1)
    assert full.ops == BATCH_OPS_MAX

    await leadership.append(full)
    with pytest.raises(TooLarge):
        await leadership.append(batch(BATCH_OPS_MAX - 1, fact, BATCH_OPS_MAX))

    assert await log.head() == BATCH_OPS_MAX - 1


async def test_the_largest_events_are_refused_as_a_batch(log: EventLog, fact: Facts) -> None:
    """A batch over the store's limit in bytes is refused whole, and the head stays."""
    leadership = await log.campaign("c0", 30)

    with pytest.raises(TooLarge):
        await leadership.append(Batch(after=Position(0), entries=(bytes(64 * 1024),) * 30))

    assert await log.head() == 0
    await leadership.append(batch(0, fact))


async def test_a_newer_schema_is_left_alone(log: EventLog, store: Store) -> None:
    """Nobody joins or leads a fleet whose log a newer release wrote."""
    await store.txn((), (Put(Keys(log.fleet).schema, b"%d" % (CODEC_VERSION + 1)),))

    with pytest.raises(SchemaTooNew, match="upgrade"):
        await log.campaign("c0", 30)
    with pytest.raises(SchemaTooNew, match="upgrade"):
        await log.join(N0, b"", 30)


async def test_many_writers_one_order(log: EventLog, fact: Facts, sequence_all: Sequencer) -> None:
    """Facts of many nodes, stated at once, end in one dense order that keeps each node's own."""
    leadership = await log.campaign("c0", 30)
    nodes, each = 8, 10
    sessions = [await log.join(NodeId(f"n{number}"), b"", 30) for number in range(nodes)]

    async def state(number: int) -> None:
        for counter in range(1, each + 1):
            await sessions[number].submit(fact(counter), 0)

    async with log.watch_inbox() as inbox, anyio.create_task_group() as group:
        for number in range(nodes):
            group.start_soon(state, number)
        with anyio.fail_after(20):
            async for delta in inbox:
                for start in range(0, len(delta.updated), 50):
                    await sequence_all(leadership, delta.updated[start : start + 50])
                if leadership.head == nodes * each:
                    break

    entries = [recorded async for recorded in log.read()]
    assert [entry.position for entry in entries] == list(range(1, nodes * each + 1))
    for number in range(nodes):
        own = [entry.counter for entry in entries if entry.writer == f"n{number}"]
        assert own == list(range(1, each + 1))


async def test_an_incarnation_is_fenced_with_its_event(log: EventLog, fact: Facts) -> None:
    """There is no moment at which a node is declared lost in the log and alive in the store."""
    leadership = await log.campaign("c0", 30)
    session = await log.join(N0, b"", 30)

    async with log.watch_nodes() as view:
        await anext(view)
        await leadership.append(batch(0, fact, fenced=((N0, Incarnation(session.incarnation)),)))
        with anyio.fail_after(5):
            gone = await anext(view)

    assert [item.node for item in gone.removed] == [N0]
    assert await log.head() == 1
