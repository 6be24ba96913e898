"""A view of a range for whoever looks seldom: what differs, and no more memory than the range."""

from __future__ import annotations

import anyio

from controlplane.eventlog.memory import MemoryStore
from controlplane.eventlog.store import Delete, Put
from controlplane.eventlog.view import View, viewing
from tests.virtual import on_virtual_time

SPAN = (b"a", b"b")


async def keys_of(view: View[bytes]) -> tuple[list[bytes], list[bytes]]:
    """What the next look tells: keys that are new or overwritten, keys that are gone."""
    delta = await anext(view)
    return list(delta.updated), list(delta.removed)


@on_virtual_time
async def test_what_came_and_went_between_two_looks_is_not_held() -> None:
    """A consumer that looks away while facts pass through an inbox costs no memory for them."""
    store = MemoryStore()
    async with viewing(store, SPAN, lambda kv: kv.key) as view:
        await anext(view)
        for number in range(500):
            await store.txn((), (Put(b"a/%04d" % number, b"fact"),))
            await store.txn((), (Delete(b"a/%04d" % number),))
        await store.txn((), (Put(b"a/stays", b"fact"),))
        await anyio.sleep(1)
        held = sum(len(each) for each in (view._items, view._updated, view._removed, view._written))
        told = await keys_of(view)

    assert told == ([b"a/stays"], [])
    assert held < 10, f"{held} records are held for a range of one key"


@on_virtual_time
async def test_what_was_told_is_taken_back_once() -> None:
    """A key that the consumer knows is told to be gone, whatever happened to it meanwhile."""
    store = MemoryStore()
    async with viewing(store, SPAN, lambda kv: kv.key) as view:
        await anext(view)
        await store.txn((), (Put(b"a1", b"1"),))
        first = await keys_of(view)
        await store.txn((), (Put(b"a1", b"2"),))
        await store.txn((), (Delete(b"a1"),))
        await store.txn((), (Put(b"a1", b"3"),))
        await store.txn((), (Delete(b"a1"),))
        await store.txn((), (Put(b"a2", b"1"),))
        await anyio.sleep(1)
        then = await keys_of(view)

    assert first == ([b"a1"], [])
    assert then == ([b"a2"], [b"a1"])


@on_virtual_time
async def test_a_key_that_went_and_came_again_is_told_as_both() -> None:
    """It may be another life under the same name: gone first, then there."""
    store = MemoryStore()
    async with viewing(store, SPAN, lambda kv: kv.key) as view:
        await anext(view)
        await store.txn((), (Put(b"a1", b"1"),))
        await anext(view)
        await store.txn((), (Delete(b"a1"),))
        await store.txn((), (Put(b"a1", b"2"),))
        await anyio.sleep(1)
        told = await keys_of(view)
        await store.txn((), (Delete(b"a1"),))
        after = await keys_of(view)

    assert told == ([b"a1"], [b"a1"])
    assert after == ([], [b"a1"])
