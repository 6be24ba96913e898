"""The faults of the store in memory, and what the layers above make of them."""

import anyio
import pytest

from controlplane.eventlog import (
    Batch,
    EventLog,
    NoSpace,
    OutcomeUnknown,
    PermissionDenied,
    StoreUnavailable,
    WatchLost,
)
from controlplane.eventlog import settle as settling
from controlplane.eventlog.memory import MemoryStore
from controlplane.eventlog.settle import settle
from controlplane.eventlog.store import Put, RangeResult, absent
from controlplane.eventlog.view import viewing
from statemachine.codec import encode_recorded
from statemachine.events import DecisionsPaused, Recorded
from statemachine.ids import JobId, Position
from tests.virtual import on_virtual_time


async def test_a_refused_call_changes_nothing() -> None:
    """As many calls as were asked for fail, and none of them has an effect."""
    store = MemoryStore()
    store.faults.refuse_calls = 2

    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await store.txn((), (Put(b"a", b""),))

    assert (await store.range(b"a")).kvs == ()


async def test_lost_answers_and_lost_requests_look_alike() -> None:
    """Of two writes of unknown outcome, one was made and one was not."""
    store = MemoryStore()
    store.faults.lose_answers = 1
    with pytest.raises(OutcomeUnknown):
        await store.txn((), (Put(b"made", b""),))
    store.faults.lose_requests = 1
    with pytest.raises(OutcomeUnknown):
        await store.txn((), (Put(b"not", b""),))

    assert [kv.key for kv in (await store.range(b"a", b"z")).kvs] == [b"made"]


async def test_settling_says_when_it_cannot_be_sure() -> None:
    """A guarded write that was answered in the end tells whether an earlier try went unanswered."""
    store = MemoryStore()
    sure = await settle(store, (absent(b"a"),), (Put(b"a", b""),))
    store.faults.lose_answers = 1
    unsure = await settle(store, (absent(b"b"),), (Put(b"b", b""),))

    assert (sure.succeeded, sure.unsure) == (True, False)
    assert (unsure.succeeded, unsure.unsure) == (False, True)


async def test_a_store_that_filled_up_meanwhile_does_not_settle_it() -> None:
    """A write that went unanswered and is then refused for want of room may have been applied."""
    store = MemoryStore()
    store.faults.lose_answers = 1
    original = store.txn

    async def lost_then_full(*arguments: object) -> object:
        try:
            return await original(*arguments)  # type: ignore[arg-type]
        finally:
            store.faults.full = True

    store.txn = lost_then_full  # type: ignore[method-assign, assignment]
    with pytest.raises(OutcomeUnknown, match=r"lost .* full"):
        await settle(store, (), (Put(b"a", b""),))
    with pytest.raises(NoSpace):
        await settle(store, (), (Put(b"b", b""),))

    assert [kv.key for kv in (await store.range(b"a", b"z")).kvs] == [b"a"]


async def test_settling_gives_up_with_the_worse_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lost answer among refusals makes the whole outcome unknown; refusals alone do not."""
    monkeypatch.setattr(settling, "WRITE_BUDGET_S", 0.2)
    store = MemoryStore()
    store.faults.away = True
    with pytest.raises(StoreUnavailable):
        await settle(store, (), (Put(b"a", b""),))
    store.faults.away = False

    store.faults.lose_answers = 1
    store.faults.refuse_calls = 0
    original = store.txn

    async def lost_then_away(*arguments: object) -> object:
        try:
            return await original(*arguments)  # type: ignore[arg-type]
        finally:
            store.faults.away = True

    monkeypatch.setattr(store, "txn", lost_then_away)
    with pytest.raises(OutcomeUnknown):
        await settle(store, (), (Put(b"a", b""),))


async def test_a_dropped_watch_says_so() -> None:
    """Dropping watches ends each open one with WatchLost."""
    store = MemoryStore()
    async with store.watch(b"a", b"", 1) as batches:
        store.drop_watches()
        with pytest.raises(WatchLost):
            await anext(batches)


async def test_a_black_hole_is_seen_through() -> None:
    """A watch that silently misses a change costs a view one silence, not the change."""
    store = MemoryStore()
    async with viewing(store, (b"a", b""), lambda kv: kv.value, quiet_s=0.1) as view:
        await anext(view)
        store.faults.black_hole = True
        await store.txn((), (Put(b"a", b"1"),))
        with anyio.fail_after(2):
            delta = await anext(view)

    assert delta.updated == (b"1",)


@on_virtual_time
async def test_a_hole_in_a_watch_is_seen_and_read() -> None:
    """An entry that does not follow the last one is not passed on: what lies between is read."""
    store = MemoryStore()
    log = EventLog(store, "f0")
    leadership = await log.campaign("c0", 600)
    seen: list[int] = []

    async def grow() -> None:
        position = Position(leadership.head + 1)
        event = DecisionsPaused(by="op")
        told = Recorded(position=position, at_ms=1, writer="operator.op", event=event)
        await leadership.append(Batch(after=leadership.head, entries=(encode_recorded(told),)))

    async with log.follow() as entries:
        await grow()
        seen.append((await anext(entries)).position)
        await anyio.sleep(1)
        began = anyio.current_time()
        store.faults.black_hole = True
        for _ in range(5):
            await grow()
        store.faults.black_hole = False
        await grow()
        with anyio.fail_after(600):
            while len(seen) < 7:
                seen.append((await anext(entries)).position)
        took_s = anyio.current_time() - began

    assert seen == list(range(1, 8))
    assert took_s < 1, "the hole was found by waiting, not by looking"


async def test_an_error_that_cannot_heal_reaches_the_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A view that may not read its range raises what the store said, where it is iterated."""
    store = MemoryStore()

    async def denied(*_: object, **__: object) -> RangeResult:
        raise PermissionDenied("no")

    monkeypatch.setattr(store, "range", denied)
    async with EventLog(store, "f0").watch_desired(JobId("j0")) as view:
        with anyio.fail_after(2), pytest.raises(PermissionDenied):
            await anext(view)


async def test_errors_of_the_body_pass_as_they_are() -> None:
    """What is raised while a view or a follower is open is not wrapped in a group."""
    log = EventLog(MemoryStore(), "f0")

    with pytest.raises(ZeroDivisionError):
        async with log.watch_nodes(), log.follow():
            _ = 1 / 0


async def test_a_full_store_refuses_puts_and_leases() -> None:
    """Over its quota the store still reads and deletes."""
    store = MemoryStore()
    store.faults.full = True

    with pytest.raises(NoSpace):
        await store.txn((), (Put(b"a", b""),))
    with pytest.raises(NoSpace):
        await store.grant(1)

    assert (await store.range(b"a")).kvs == ()


async def test_leases_follow_a_clock_of_ones_own() -> None:
    """With a given clock a lease ends when that clock says so, and not before."""
    now = 100.0
    store = MemoryStore(now=lambda: now)
    lease = await store.grant(10)
    await store.txn((), (Put(b"a", b"", lease),))

    now = 109.9
    store.tick()
    before = (await store.range(b"a")).kvs
    now = 110.0
    store.tick()

    assert before
    assert (await store.range(b"a")).kvs == ()


async def test_history_is_bounded() -> None:
    """A store that is written for long forgets the past by itself, and keeps what is live."""
    store = MemoryStore(retain_revisions=50)
    for number in range(500):
        await store.txn((), (Put(b"%d" % (number % 7), b"%d" % number),))

    assert len(store._table._changes) <= 100
    assert {kv.value for kv in (await store.range(b"0", b"9")).kvs} == {
        b"%d" % number for number in range(493, 500)
    }
