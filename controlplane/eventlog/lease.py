"""One lease, kept alive, and the moment at which its holder must act as dead.

What belongs here: renewal and the local deadline. Whose lease it is, and what hangs on it, does
not.

Theory of operation. The server counts a lease from when it *got* the last renewal, the holder can
only be sure of when it *sent* one; so the deadline counts from the sending, and lies before the
end of the TTL by a margin for clocks that run at different speeds. Past the deadline the holder is
dead to itself, whatever the server would say, because the server may already have given its place
to somebody else. A process that was frozen finds its deadline passed on its first look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

import anyio

from controlplane.eventlog.errors import LeaseLost, Retry
from controlplane.eventlog.store import Store

FENCE_RATIO: Final = 0.8
"""Part of the TTL after which a holder that could not renew acts as dead."""

_RENEW_RATIO: Final = 1 / 3
_RETRY_RATIO: Final = 1 / 40

Clock = Callable[[], float]


class LeaseKeeper:
    """Keeps one lease alive. `clock` gives seconds and must not jump."""

    def __init__(
        self, store: Store, lease: int, ttl_s: float, sent_at: float, fence_ratio: float
    ) -> None:
        self.lease = lease
        self._store = store
        self.terms = (ttl_s, fence_ratio)
        self._ttl_s = ttl_s
        self._sent_at = sent_at
        self._fence_s = ttl_s * fence_ratio
        self._ended = ""

    @classmethod
    async def granted(
        cls, store: Store, ttl_s: float, fence_ratio: float = FENCE_RATIO
    ) -> LeaseKeeper:
        """Take a new lease of at least `ttl_s` seconds."""
        sent_at = anyio.current_time()
        return cls(store, await store.grant(ttl_s), ttl_s, sent_at, fence_ratio)

    @property
    def fence_at(self) -> float:
        """Event-loop time, in seconds, from which on the holder must act as dead."""
        return self._sent_at + self._fence_s

    @property
    def is_provable(self) -> bool:
        """Whether the holder may still act."""
        return not self._ended and anyio.current_time() < self.fence_at

    def check(self) -> None:
        """Raise LeaseLost unless the holder may still act."""
        if not self.is_provable:
            since = f"the lease could not be renewed for {self._fence_s:.3g} s"
            raise LeaseLost(self.end(self._ended or since))

    def end(self, reason: str) -> str:
        """Let the holder be dead from now on, for the first reason given; return that."""
        self._ended = self._ended or reason
        return self._ended

    async def renew_until_lost(self) -> NoReturn:
        """Renew every third of the TTL; return only by raising LeaseLost, before the TTL ends."""
        while True:
            due_at = min(self._sent_at + self._ttl_s * _RENEW_RATIO, self.fence_at)
            await anyio.sleep(max(due_at - anyio.current_time(), 0))
            while not await self._renewed():
                self.check()
                pause_s = self._ttl_s * _RETRY_RATIO
                await anyio.sleep(max(min(pause_s, self.fence_at - anyio.current_time()), 0))

    async def _renewed(self) -> bool:
        """Try once, no longer than until the deadline."""
        self.check()
        sent_at = anyio.current_time()
        with anyio.move_on_after(self.fence_at - sent_at):
            try:
                left_s = await self._store.keep_alive(self.lease)
            except Retry:
                return False
            if left_s <= 0:
                raise LeaseLost(self.end("the store ended the lease"))
            self.check()  # an answer that comes too late is none
            self._sent_at = sent_at
            return True
        return False

    async def give_back(self) -> None:
        """End the lease and what hangs on it."""
        self.end("the lease was given back")
        await self._store.revoke(self.lease)
