"""The one controller that may write the log, and its appends.

What belongs here: winning and losing the leadership key, and the transaction that sequences.
What does not: what is appended, and why.

Theory of operation. The leadership key is lease-bound and created once; its create revision is the
term's fencing token. An append is one transaction: it compares that token and the head, puts the
entries under the next positions, moves the head, deletes the facts that were sequenced, fences
the nodes that were declared lost, and overwrites the projections. Only the holder of the token can
move the head; so if the answer was lost, and the token is still ours, the head tells the outcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

import anyio
import msgspec

from controlplane.eventlog.errors import (
    Deposed,
    HeadMoved,
    LeaseLost,
    LogCorrupt,
    OutcomeUnknown,
    Retry,
    TooLarge,
)
from controlplane.eventlog.holding import hold, revoked_on_failure, wait_until_gone
from controlplane.eventlog.items import InboxItem
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.lease import LeaseKeeper
from controlplane.eventlog.settle import pause_s, settle
from controlplane.eventlog.store import (
    TXN_OPS_MAX,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    Store,
    TxnResult,
    absent,
    created_at,
    value_is,
)
from statemachine.ids import Incarnation, JobId, NodeId, Position, check_name

BATCH_OPS_MAX: Final = TXN_OPS_MAX - 4
"""Store operations that one batch may need; see `Batch.ops`."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes true at once.

    `after` is the head that the batch was made for: its entries get the positions `after + 1`, ...
    `entries` are encoded entries of the log, `consumed` the facts among them that leave the inbox,
    `fenced` the incarnations that are declared lost by it, `desired` and `orders` projections by
    job and by node.
    """

    after: Position
    entries: tuple[bytes, ...]
    consumed: tuple[InboxItem, ...] = ()
    fenced: tuple[tuple[NodeId, Incarnation], ...] = ()
    desired: tuple[tuple[JobId, bytes], ...] = ()
    orders: tuple[tuple[NodeId, bytes], ...] = ()

    @property
    def ops(self) -> int:
        """Store operations that this batch needs, at most `BATCH_OPS_MAX`."""
        runs = sum(1 for _ in _runs(self.consumed))
        projected = len(self.desired) + len(self.orders)
        return len(self.entries) + 1 + runs + 2 * len(self.fenced) + projected


def _runs(consumed: Sequence[InboxItem]) -> Iterator[tuple[InboxItem, InboxItem]]:
    """Group facts into runs of one incarnation without a gap: first and last of each."""
    order = sorted(consumed, key=lambda item: (item.writer, item.incarnation, item.counter))
    first = last = None
    for item in order:
        if first is not None and last is not None:
            follows = (last.writer, last.incarnation, last.counter + 1)
            if (item.writer, item.incarnation, item.counter) == follows:
                last = item
                continue
            yield first, last
        first = last = item
    if first is not None and last is not None:
        yield first, last


class Leadership:
    """One term of one controller. Made by `campaign`; run `run_renewal` beside its use."""

    def __init__(
        self, store: Store, keys: Keys, *, controller: str, keeper: LeaseKeeper, term: int
    ) -> None:
        self.controller = controller
        self.term = term
        """Fencing token: grows with every leadership of the fleet."""
        self.head = Position(0)
        """Position of the last entry, as this leader knows it."""
        self._store = store
        self._keys = keys
        self._keeper = keeper
        self._deposed = ""
        self._unsettled: Batch | None = None
        self._one_at_a_time = anyio.Lock()

    def check(self) -> None:
        """Raise Deposed unless this controller may still act."""
        if self._deposed:
            raise Deposed(self._deposed)
        try:
            self._keeper.check()
        except LeaseLost as lost:
            raise Deposed(f"controller {self.controller}: {lost}") from lost

    async def refresh_head(self) -> Position:
        """Read the head from the store; nobody else moves it while this term lasts."""
        found = await self._store.range(self._keys.head)
        self.head = read_head(found.kvs)
        return self.head

    # --- appending ----------------------------------------------------------------------------

    async def append(self, batch: Batch) -> Position:
        """Make a batch true; return the new head.

        Raises:
            HeadMoved: the batch was made for another head; `head` has been read anew.
            Deposed: this term is over.
            TooLarge: over `BATCH_OPS_MAX` operations, or over the store's limit in bytes.
            OutcomeUnknown: append the same batch again, or `refresh_head` and decide anew.
            StoreUnavailable, NoSpace.
        """
        if batch.ops > BATCH_OPS_MAX:
            raise TooLarge(f"a batch of {batch.ops} operations; at most {BATCH_OPS_MAX}")
        async with self._one_at_a_time:
            self.check()
            head_key, leader_key = self._keys.head, self._keys.leader
            new_head = Position(batch.after + len(batch.entries))
            stands = value_is(head_key, b"%020d" % batch.after)
            earlier, self._unsettled = self._unsettled, batch
            result = await settle(
                self._store,
                (
                    created_at(leader_key, self.term),
                    stands if batch.after else absent(head_key),
                ),
                self._ops(batch, new_head),
                (Get(leader_key), Get(head_key), Get(self._keys.log(new_head))),
            )
            self._unsettled = None
            if not result.succeeded:
                self._explain(result, batch, new_head, result.unsure or batch == earlier)
            self.head = new_head
            return new_head

    def _ops(self, batch: Batch, new_head: Position) -> list[Op]:
        keys = self._keys
        ops: list[Op] = [
            Put(keys.log(position), entry)
            for position, entry in enumerate(batch.entries, batch.after + 1)
        ]
        if batch.entries:
            ops.append(Put(keys.head, b"%020d" % new_head))
        for first, last in _runs(batch.consumed):
            start = keys.inbox(first.writer, first.incarnation, first.counter)
            end = keys.inbox(last.writer, last.incarnation, last.counter + 1)
            ops.append(Delete(start, end))
        for node, incarnation in batch.fenced:
            ops.append(Delete(keys.node(node, incarnation)))
            ops.append(Put(keys.fenced(node, incarnation), b""))
        ops.extend(Put(keys.desired(job), value) for job, value in batch.desired)
        ops.extend(Put(keys.orders(node), value) for node, value in batch.orders)
        return ops

    def _explain(self, result: TxnResult, batch: Batch, new_head: Position, unsure: bool) -> None:
        """Return if an earlier, unanswered try was applied; else raise why it was refused."""
        leader, head, entry = result.responses
        if not leader or leader[0].create_revision != self.term:
            by = leader[0].value.decode(errors="replace") if leader else "nobody"
            raise self._depose(f"controller {self.controller}: {by} leads now")
        actual = read_head(head)
        applied = unsure and actual == new_head and batch.entries and entry
        if applied and entry[0].value == batch.entries[-1]:
            return
        self.head = actual
        raise HeadMoved(batch.after, actual)

    # --- the term -----------------------------------------------------------------------------

    def _depose(self, reason: str) -> Deposed:
        self._deposed = self._deposed or reason
        return Deposed(self._deposed)

    async def run_renewal(self) -> NoReturn:
        """Keep the term; never returns but by raising Deposed. Run it in a task group."""
        try:
            await hold(self._keeper, self._deleted)
        except LeaseLost as lost:
            raise self._depose(f"controller {self.controller}: {lost}") from lost

    async def _deleted(self) -> Deposed:
        """Return once somebody ended this term."""
        await wait_until_gone(self._store, self._keys.leader, self.term)
        return self._depose(f"controller {self.controller}: its leadership ended")

    async def resign(self) -> None:
        """Give the leadership back, so that another controller can take it at once.

        Raises:
            StoreUnavailable: it will go when the lease runs out.
        """
        self._depose(f"controller {self.controller} resigned")
        await self._keeper.give_back()


def read_head(found: Sequence[KeyValue]) -> Position:
    """Read the head's value; an empty log has none, and position 0. Raises LogCorrupt."""
    try:
        return Position(int(found[0].value)) if found else Position(0)
    except ValueError as error:
        raise LogCorrupt(0, f"its head says {found[0].value[:40]!r}") from error


async def campaign(
    store: Store, keys: Keys, controller: str, ttl_s: float, fence_ratio: float
) -> Leadership:
    """Wait until the leadership is free, and take it. See `EventLog.campaign`."""
    check_name("controller", controller)
    tries = 0
    while True:
        try:
            found = await store.range(keys.leader)
            if found.kvs:
                await wait_until_gone(store, keys.leader, found.kvs[0].create_revision)
            won = await _run_for_it(store, keys, controller, ttl_s, fence_ratio)
            if won is not None:
                return won
            tries = 0
        except (Retry, OutcomeUnknown):
            await anyio.sleep(pause_s(tries))
            tries += 1


async def _run_for_it(
    store: Store, keys: Keys, controller: str, ttl_s: float, fence_ratio: float
) -> Leadership | None:
    """Try once to create the leadership key; None if somebody else was faster."""
    keeper = await LeaseKeeper.granted(store, ttl_s, fence_ratio)
    async with revoked_on_failure(store, keeper.lease):
        result = await settle(
            store,
            (absent(keys.leader),),
            (Put(keys.leader, controller.encode(), keeper.lease),),
            (Get(keys.leader),),
        )
        term = result.revision
        if not result.succeeded:
            held = result.responses[0]
            if not held or held[0].lease != keeper.lease:
                await store.revoke(keeper.lease)
                return None
            term = held[0].create_revision
        won = Leadership(store, keys, controller=controller, keeper=keeper, term=term)
        await won.refresh_head()
        return won
