"""Holding a key that lives as long as its lease: what a node and a leader have in common.

What belongs here: keeping the lease, noticing that the key is gone, giving the lease back when the
key could not be taken. What the key means, and what its end is called, is the holder's.

Theory of operation. A holder can end in two ways, and each is looked for by a task of its own: it
cannot prove in time that it is alive (`LeaseKeeper`, by its own clock), or the store has the key no
longer (a watch, level-triggered). Whichever comes first ends both. A task that fails in any other
way ends the holder as well: a renewal that died must never look like one that goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NoReturn

import anyio

from controlplane.eventlog.errors import EventLogError
from controlplane.eventlog.lease import LeaseKeeper
from controlplane.eventlog.store import Store
from controlplane.eventlog.view import viewing

_REVOKE_S = 1.0


async def hold(keeper: LeaseKeeper, deleted: Callable[[], Awaitable[EventLogError]]) -> NoReturn:
    """Keep a lease until it, or the key that hangs on it, is gone; then raise why.

    `deleted` returns, or raises, once the key is gone.

    Raises:
        EventLogError: the first reason; LeaseLost if it is the lease.
        BaseExceptionGroup: a bug of ours ended one of the tasks.
    """
    death: EventLogError | None = None
    async with anyio.create_task_group() as group:

        async def until(ending: Callable[[], Awaitable[EventLogError]]) -> None:
            nonlocal death
            try:
                error = await ending()
            except EventLogError as raised:
                error = raised
            death = death or error
            group.cancel_scope.cancel()

        group.start_soon(until, keeper.renew_until_lost)
        group.start_soon(until, deleted)
    assert death is not None
    raise death


async def wait_until_gone(store: Store, key: bytes, token: int) -> None:
    """Return once a key is not the one that was created at revision `token`."""
    async with viewing(store, (key, b""), lambda kv: kv) as view:
        async for _ in view:
            held = view.items.get(key)
            if held is None or held.create_revision != token:
                return


@asynccontextmanager
async def revoked_on_failure(store: Store, lease: int) -> AsyncIterator[None]:
    """Give a lease back if the body fails to put it to use."""
    try:
        yield
    except BaseException:
        with anyio.move_on_after(_REVOKE_S, shield=True), suppress(EventLogError):
            await store.revoke(lease)
        raise
