"""A node's place in the log: its incarnation, what it states, and its own death.

What belongs here: everything that a node writes, each write guarded by the key that says that this
incarnation is alive. What does not: what the facts mean.

Theory of operation.
- *Alive* is a lease-bound key whose name carries the incarnation. Its create revision is the
  fencing token: every write compares it, so that the write of a ghost fails at the store.
- *Dead by declaration* is that key deleted and `fenced/` put, by the controller, in the same
  transaction as the event. It is final: join anew. *Dead by lease* is the key gone but no such
  mark; the same incarnation may come back with a new lease.
- *Facts* have a dense counter. The key `counters/` holds the last one and a digest of it, and every
  statement compares it with what this session last knew. A statement whose answer was lost can
  therefore be made again: either it still fits, or the digest shows that it was made. Looking for
  the fact itself would not do, since the controller may already have moved it into the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

import anyio

from controlplane.eventlog.errors import Fenced, LeaseLost, OutcomeUnknown, Retry
from controlplane.eventlog.holding import hold, revoked_on_failure, wait_until_gone
from controlplane.eventlog.items import read_count, read_mark
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.lease import LeaseKeeper
from controlplane.eventlog.settle import settle
from controlplane.eventlog.store import (
    Compare,
    Get,
    Put,
    Store,
    TxnResult,
    absent,
    created_at,
    value_is,
)
from statemachine.codec import encode_fact
from statemachine.events import AnyEvent, Fact
from statemachine.ids import Incarnation, NodeId

FACTS_MAX: Final = 50
"""Facts that one call may state."""


def mark(incarnation: int, counter: int, raw: bytes) -> bytes:
    """Return what `counters/` holds after a fact: which it was, and what it said."""
    digest = hashlib.blake2b(raw, digest_size=8).hexdigest()
    return f"{incarnation:010d}.{counter:010d}.{digest}".encode("ascii")


class NodeSession:
    """One incarnation of a node. Made by `joining.join`; run `run_renewal` beside its use."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        *,
        node: NodeId,
        incarnation: Incarnation,
        record: bytes,
        keeper: LeaseKeeper,
        token: int,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self._store = store
        self._keys = keys
        self._record = record
        self._keeper = keeper
        self._token = token
        self._alive_key = keys.node(node, incarnation)
        self._fenced_key = keys.fenced(node, incarnation)
        self._counter = 0
        self._mark = mark(incarnation, 0, b"")
        self._fenced: Fenced | None = None
        self._one_at_a_time = anyio.Lock()

    @property
    def counter(self) -> int:
        """Counter of the last fact known to be stated; 0 before the first."""
        return self._counter

    @property
    def fence_at(self) -> float:
        """Event-loop time, in seconds, from which on this node must act as dead."""
        return self._keeper.fence_at

    @property
    def is_alive(self) -> bool:
        """Whether this incarnation may still act."""
        return self._fenced is None and self._keeper.is_provable

    def check(self) -> None:
        """Raise Fenced or LeaseLost unless this incarnation may still act."""
        if self._fenced is not None:
            raise Fenced(str(self._fenced))
        self._keeper.check()

    def _guard(self) -> Compare:
        return created_at(self._alive_key, self._token)

    # --- stating facts ------------------------------------------------------------------------

    async def submit(self, event: AnyEvent, at_ms: int) -> int:
        """State one fact; it is durable when this returns. Returns its counter.

        After OutcomeUnknown state the same event with the same time again, before any other: it
        will be there once.

        Raises:
            Fenced: this incarnation was declared lost; LeaseLost: it may come back.
            StoreUnavailable, OutcomeUnknown, NoSpace, EventTooLarge.
        """
        return await self.submit_all((event,), at_ms)

    async def submit_all(self, events: Sequence[AnyEvent], at_ms: int) -> int:
        """State facts (at most `FACTS_MAX`) in order, all or none; the counter of the last."""
        if not 1 <= len(events) <= FACTS_MAX:
            msg = f"between 1 and {FACTS_MAX} facts at a time, not {len(events)}"
            raise ValueError(msg)
        async with self._one_at_a_time:
            while True:
                self.check()
                if await self._state(events, at_ms):
                    return self._counter

    async def _state(self, events: Sequence[AnyEvent], at_ms: int) -> bool:
        """Try with the next counters; False if an earlier, unanswered statement has them."""
        puts = []
        raw = b""
        for counter, event in enumerate(events, self._counter + 1):
            fact = Fact(
                event=event,
                at_ms=at_ms,
                writer=self.node,
                incarnation=self.incarnation,
                counter=counter,
            )
            raw = encode_fact(fact)
            puts.append(Put(self._keys.inbox(self.node, self.incarnation, counter), raw))
        last = self._counter + len(events)
        wanted = mark(self.incarnation, last, raw)
        counter_key = self._keys.counter(self.node)
        result = await settle(
            self._store,
            (self._guard(), value_is(counter_key, self._mark)),
            (*puts, Put(counter_key, wanted)),
            (Get(counter_key),),
        )
        if result.succeeded:
            self._counter, self._mark = last, wanted
            return True
        return await self._learn(result, wanted)

    async def _learn(self, result: TxnResult, wanted: bytes) -> bool:
        """Find out why a statement was refused; True if it had been made by an earlier try."""
        for held in result.responses[0]:
            incarnation, stated = read_mark(self.node, held.value)
            if incarnation == self.incarnation and stated > self._counter:
                self._counter, self._mark = stated, held.value
                return held.value == wanted
        raise await self._died()

    async def put_vitals(self, value: bytes) -> None:
        """Overwrite what this node measured last; gone with the lease.

        Raises:
            Fenced, LeaseLost, StoreUnavailable, OutcomeUnknown.
        """
        self.check()
        result = await settle(
            self._store,
            (self._guard(),),
            (Put(self._keys.vitals(self.node, self.incarnation), value, self._keeper.lease),),
        )
        if not result.succeeded:
            raise await self._died()

    # --- life and death -----------------------------------------------------------------------

    async def run_renewal(self) -> NoReturn:
        """Keep the lease alive; never returns but by raising. Run it in a task group.

        Raises:
            Fenced: this incarnation was declared lost.
            LeaseLost: the lease ended, or its end is too near to go on (see `reestablish`).
        """
        await hold(self._keeper, self._deleted)

    async def _deleted(self) -> Fenced:
        """Return once the key that says that we are alive is gone."""
        await wait_until_gone(self._store, self._alive_key, self._token)
        return await self._died()

    async def _died(self) -> Fenced:
        """Our key is gone from the store: tell a declaration from a lease that ran out."""
        with suppress(Retry):
            found = await self._store.range(self._fenced_key)
            if found.kvs:
                return self._declare("declared lost by the controller")
        return LeaseLost(self._keeper.end(f"{self._name}: its lease ended at the store"))

    def _declare(self, reason: str) -> Fenced:
        self._fenced = Fenced(f"{self._name}: {reason}; join anew")
        return self._fenced

    @property
    def _name(self) -> str:
        return f"node {self.node} incarnation {self.incarnation}"

    async def reestablish(self) -> None:
        """Come back under the same incarnation after LeaseLost, with a new lease.

        Restart `run_renewal` afterwards.

        Raises:
            Fenced: declared lost meanwhile, or a newer incarnation exists. Join anew.
            StoreUnavailable, OutcomeUnknown: try again.
        """
        if self._fenced is not None:
            raise Fenced(str(self._fenced))
        async with self._one_at_a_time:
            keeper = await LeaseKeeper.granted(self._store, *self._keeper.terms)
            async with revoked_on_failure(self._store, keeper.lease):
                self._token = await self._retake(keeper.lease)
            old, self._keeper = self._keeper, keeper
            with suppress(Retry):
                await self._store.revoke(old.lease)

    async def _retake(self, lease: int) -> int:
        """Bind the living key, or a new one, to a lease; return its create revision."""
        incarnations = self._keys.incarnations(self.node)
        mine = value_is(incarnations, b"%d" % self.incarnation)
        for guard in (created_at(self._alive_key, self._token), absent(self._alive_key)):
            result = await settle(
                self._store,
                (mine, absent(self._fenced_key), guard),
                (Put(self._alive_key, self._record, lease),),
                (Get(self._alive_key), Get(self._fenced_key), Get(incarnations)),
            )
            if result.succeeded:
                return self._token if guard.operand else result.revision
            alive, fenced, last = result.responses
            if fenced:
                raise self._declare("declared lost by the controller")
            newest = read_count(self.node, last)
            if newest != self.incarnation:
                raise self._declare(f"incarnation {newest} has taken its place")
            if alive and alive[0].lease == lease:
                return alive[0].create_revision
        raise OutcomeUnknown(f"{self._name}: its key changes while it comes back; try again")

    async def leave(self) -> None:
        """Give the lease back: the node's keys go at once. State `NodeLeft` before.

        Raises:
            StoreUnavailable: the keys will go when the lease runs out.
        """
        self._declare("it left")
        await self._keeper.give_back()
