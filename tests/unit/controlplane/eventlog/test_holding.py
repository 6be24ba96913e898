"""A key held by a lease: whichever way it ends, the holder hears of it, and hears of it once."""

from __future__ import annotations

from contextlib import suppress

import anyio
import pytest

from controlplane.eventlog.errors import Deposed, EventLogError, LeaseLost
from controlplane.eventlog.holding import hold, revoked_on_failure, wait_until_gone
from controlplane.eventlog.lease import LeaseKeeper
from controlplane.eventlog.memory import MemoryStore
from controlplane.eventlog.store import Delete, Put
from tests.virtual import on_virtual_time

TTL_S = 10.0
KEY = b"held"


async def never() -> EventLogError:
    """The key stays."""
    await anyio.sleep_forever()
    raise AssertionError


async def held(store: MemoryStore) -> tuple[LeaseKeeper, int]:
    """Take a lease, and a key that hangs on it."""
    keeper = await LeaseKeeper.granted(store, TTL_S)
    return keeper, (await store.txn((), (Put(KEY, b"", keeper.lease),))).revision


@on_virtual_time
async def test_a_renewal_that_dies_of_a_bug_is_heard_of() -> None:
    """A loop that ended must not look like one that goes on: what it died of ends the holder."""
    store = MemoryStore()
    keeper, _ = await held(store)

    async def broken(lease: int) -> float:
        raise RuntimeError(f"a bug met lease {lease}")

    store.keep_alive = broken  # type: ignore[method-assign]
    with anyio.fail_after(TTL_S), pytest.raises(BaseExceptionGroup) as caught:
        await hold(keeper, never)

    assert caught.group_contains(RuntimeError, match="a bug met lease 1")


@on_virtual_time
async def test_a_lease_that_ends_ends_the_holder() -> None:
    """Before its TTL is over, and with the reason."""
    store = MemoryStore()
    keeper, _ = await held(store)
    store.faults.away = True
    began = anyio.current_time()
    with pytest.raises(LeaseLost, match="could not be renewed for 8 s"):
        await hold(keeper, never)

    assert anyio.current_time() - began < TTL_S


@on_virtual_time
async def test_a_key_that_goes_ends_the_holder() -> None:
    """At once, however long the lease still runs; its end is called what the holder calls it."""
    store = MemoryStore()
    keeper, token = await held(store)

    async def deleted() -> EventLogError:
        await wait_until_gone(store, KEY, token)
        return Deposed("somebody else has it")

    async def delete() -> None:
        await anyio.sleep(1)
        await store.txn((), (Delete(KEY), Put(b"other", b"")))

    async with anyio.create_task_group() as group:
        group.start_soon(delete)
        with anyio.fail_after(1.5), pytest.raises(Deposed, match="somebody else"):
            await hold(keeper, deleted)

    assert keeper.is_provable


@on_virtual_time
async def test_a_key_that_is_somebody_elses_is_gone() -> None:
    """Deleted and made anew under the same name, it is another key."""
    store = MemoryStore()
    _, token = await held(store)
    await store.txn((), (Delete(KEY),))
    await store.txn((), (Put(KEY, b""),))
    with anyio.fail_after(1):
        await wait_until_gone(store, KEY, token)


@on_virtual_time
async def test_a_lease_that_came_to_nothing_is_given_back() -> None:
    """Whatever the body died of, cancellation included."""
    store = MemoryStore()
    for patience_s in (None, 0.5):
        lease = await store.grant(TTL_S)
        with anyio.move_on_after(patience_s), suppress(RuntimeError):
            async with revoked_on_failure(store, lease):
                if patience_s is None:
                    raise RuntimeError
                await anyio.sleep(5)
        assert await store.keep_alive(lease) == 0.0
