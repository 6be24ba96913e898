"""One lease and the moment at which its holder must act as dead."""

import anyio
import pytest

from controlplane.eventlog.errors import LeaseLost
from controlplane.eventlog.lease import LeaseKeeper
from controlplane.eventlog.memory import MemoryStore
from tests.virtual import on_virtual_time

TTL_S = 0.4


class SlowStore(MemoryStore):
    """Does what it is asked at once, and answers a quarter of a TTL later."""

    asked_at: list[float]

    async def grant(self, ttl_s: float) -> int:
        """Take a lease; hear of it late."""
        self.asked_at = [anyio.current_time()]
        lease = await super().grant(ttl_s)
        await anyio.sleep(TTL_S / 4)
        return lease

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease; hear of it late."""
        self.asked_at.append(anyio.current_time())
        left_s = await super().keep_alive(lease)
        await anyio.sleep(TTL_S / 4)
        return left_s


@on_virtual_time
async def test_a_deadline_counts_from_the_sending() -> None:
    """The deadline lies at 0.8 of the TTL after a request was sent, not after its answer; of the
    first one as of each renewal.
    """
    store = SlowStore()
    keeper = await LeaseKeeper.granted(store, TTL_S)
    assert keeper.fence_at == pytest.approx(store.asked_at[0] + 0.8 * TTL_S)

    with anyio.move_on_after(2.3 * TTL_S):
        await keeper.renew_until_lost()

    assert len(store.asked_at) > 4
    assert any(
        keeper.fence_at == pytest.approx(sent_at + 0.8 * TTL_S) for sent_at in store.asked_at[-2:]
    )


@on_virtual_time
async def test_refusals_are_repeated_within_the_deadline() -> None:
    """A store that refuses some renewals and then answers costs nobody the lease."""
    store = MemoryStore()
    keeper = await LeaseKeeper.granted(store, TTL_S)
    store.faults.refuse_calls = 6

    with anyio.move_on_after(3 * TTL_S) as scope:
        await keeper.renew_until_lost()

    assert scope.cancelled_caught
    assert keeper.is_provable
    assert store.faults.refuse_calls == 0


@on_virtual_time
async def test_a_store_that_is_away_ends_it_in_time() -> None:
    """With the store away the holder is dead at its deadline: not before, and not a TTL later."""
    store = MemoryStore()
    keeper = await LeaseKeeper.granted(store, TTL_S)
    store.faults.away = True
    began = anyio.current_time()

    with pytest.raises(LeaseLost, match="could not be renewed"):
        await keeper.renew_until_lost()
    took_s = anyio.current_time() - began

    assert 0.75 * TTL_S < took_s < TTL_S
    with pytest.raises(LeaseLost):
        keeper.check()


@on_virtual_time
async def test_a_lease_that_the_store_ended_is_known_at_the_next_renewal() -> None:
    """A renewal that is answered with zero ends the holder at once."""
    store = MemoryStore()
    keeper = await LeaseKeeper.granted(store, TTL_S)
    store.expire(keeper.lease)

    with anyio.fail_after(TTL_S / 2), pytest.raises(LeaseLost, match="the store ended the lease"):
        await keeper.renew_until_lost()


@on_virtual_time
async def test_a_frozen_holder_is_dead_at_its_first_look() -> None:
    """A holder that slept through its deadline finds itself dead without asking anybody."""
    keeper = await LeaseKeeper.granted(MemoryStore(), 0.05)
    await anyio.sleep(0.06)

    with pytest.raises(LeaseLost):
        keeper.check()


@on_virtual_time
async def test_a_lease_given_back_is_over() -> None:
    """After giving a lease back its holder is dead, and the store knows nothing of it."""
    store = MemoryStore()
    keeper = await LeaseKeeper.granted(store, TTL_S)

    await keeper.give_back()

    assert not keeper.is_provable
    assert await store.keep_alive(keeper.lease) == 0.0
