"""One participant's way to the store: slow, cut, frozen, or delivering twice.

What belongs here: what a network, and a process that is stopped and goes on, do to calls. The store
itself is whole, and so is everybody else's way to it. Nothing is made up: a call that is late has
been carried out late, one that is cut off may have been carried out or not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from controlplane.eventlog.errors import EventLogError, OutcomeUnknown, StoreUnavailable, WatchLost
from controlplane.eventlog.store import Compare, Op, Store, TxnResult, Watch, WatchBatch

CALL_DEADLINE_S = 1.0
"""How long a call that nobody answers is waited for."""


class Link:
    """A store as one participant reaches it.

    While `cut`, no call gets through and open watches fall silent, then break. While frozen,
    requests and answers wait, and arrive when it thaws, however late. `delay_s_max` holds up each
    of them for a random time; `doubled` counts transactions that arrive twice.
    """

    def __init__(self, store: Store, seed: str) -> None:
        self.cut = False
        self.delay_s_max = 0.0
        self.doubled = 0
        self._store = store
        self._random = random.Random(seed)
        self._hears = False
        self._thawed = anyio.Event()
        self._thawed.set()

    def freeze(self, *, hears: bool = False) -> None:
        """Hold everything that is under way, and what is said from now on; who `hears` still reads
        and watches.
        """
        self._thawed = anyio.Event()
        self._hears = hears

    def thaw(self) -> None:
        """Let everything that was held arrive."""
        self._thawed.set()

    def heal(self) -> None:
        """Be an ordinary way to the store again."""
        self.cut, self.delay_s_max, self.doubled = False, 0.0, 0
        self.thaw()

    # --- the port -----------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Every verb but the two below is held up and cut off alike."""
        verb = getattr(self._store, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            await self._pass("asked", heard=name == "range")
            answer = await verb(*arguments, **options)
            await self._pass("answered", heard=name == "range")
            return answer

        return call

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op] = ()
    ) -> TxnResult:
        """A transaction; one that arrives twice has the answer to the first. It is on its way, and
        arrives even if whoever sent it does not wait for it any more.
        """
        sent = asyncio.ensure_future(self._carry(compares, success, failure))
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(sent)

    async def _carry(
        self, compares: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op]
    ) -> TxnResult:
        await self._pass("asked")
        done = await self._store.txn(compares, success, failure)
        if self.doubled:
            self.doubled -= 1
            with suppress(EventLogError):
                await self._store.txn(compares, success, failure)
        try:
            await self._pass("answered")
        except StoreUnavailable as error:
            raise OutcomeUnknown(str(error)) from error
        return done

    def watch(self, start: bytes, end: bytes, from_revision: int) -> Watch:
        """A watch; what it delivers is late, or does not come."""
        return self._watching(start, end, from_revision)

    @asynccontextmanager
    async def _watching(
        self, start: bytes, end: bytes, from_revision: int
    ) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        await self._pass("asked", heard=True)
        async with self._store.watch(start, end, from_revision) as batches:
            yield self._delivered(batches)

    async def _delivered(self, batches: AsyncIterator[WatchBatch]) -> AsyncIterator[WatchBatch]:
        async for batch in batches:
            try:
                await self._pass("delivered", heard=True)
            except StoreUnavailable as error:
                raise WatchLost(str(error)) from error
            yield batch

    async def _pass(self, what: str, *, heard: bool = False) -> None:
        if not (heard and self._hears):
            await self._thawed.wait()
        if self.delay_s_max:
            await anyio.sleep(self._random.uniform(0.0, self.delay_s_max))
        if self.cut:
            await anyio.sleep(CALL_DEADLINE_S)
            raise StoreUnavailable(f"nobody could be {what}: the way is cut (injected)")
