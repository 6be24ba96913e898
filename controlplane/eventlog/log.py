"""The event log of one fleet: the façade over everything else in this package.

What belongs here: one short method per verb, and nothing that is written twice for two stores.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Final

from controlplane.eventlog import joining, leadership, retention
from controlplane.eventlog.errors import LogCorrupt, OutcomeUnknown, Refused, Retry
from controlplane.eventlog.items import (
    DesiredItem,
    Entry,
    InboxItem,
    NodeItem,
    OrdersItem,
    VitalsItem,
    desired_reader,
    inbox_reader,
    node_reader,
    orders_reader,
    vitals_reader,
)
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.leadership import Leadership, read_head
from controlplane.eventlog.lease import FENCE_RATIO, LeaseKeeper
from controlplane.eventlog.reading import Follower, following, oldest_of, pin, windows
from controlplane.eventlog.retention import Manifest, Mark, read_mark
from controlplane.eventlog.session import NodeSession
from controlplane.eventlog.settle import settle
from controlplane.eventlog.store import Delete, Get, Put, ServerInfo, Store, absent
from controlplane.eventlog.view import View, read_all, viewing
from statemachine.codec import CODEC_VERSION, encode_fact
from statemachine.errors import SchemaTooNew
from statemachine.events import AnyEvent, Fact, Recorded
from statemachine.ids import Incarnation, JobId, NodeId, Position, check_name

OPERATOR_PREFIX: Final = "operator."
"""How the names of writers begin that are people."""

FIRST: Final = Position(1)
"""Position of the first entry of every log."""

_ACT_TTL_S: Final = 60.0


class EventLog:
    """The log, inbox, membership and projections of one fleet, on any store."""

    def __init__(self, store: Store, fleet: str) -> None:
        """Check the fleet's name; nothing is sent.

        Raises BadName.
        """
        self.store = store
        self.fleet = fleet
        self._keys = Keys(fleet)

    async def check_schema(self, *, claim: bool = True) -> None:
        """Make sure that this release reads and writes this log as others do.

        `claim` writes this release's version into a log that has none yet; nodes may not.

        Raises:
            SchemaTooNew: a newer release wrote it.
            LogCorrupt: nobody of ours wrote it.
        """
        key = self._keys.schema
        found = (await self.store.range(key)).kvs
        if not found and claim:
            ours = Put(key, b"%d" % CODEC_VERSION)
            result = await settle(self.store, (absent(key),), (ours,), (Get(key),))
            found = () if result.succeeded else result.responses[0]
        if not found:
            return
        value = found[0].value
        if not value.isdigit():
            raise LogCorrupt(0, f"its codec version says {value[:40]!r}")
        if int(value) > CODEC_VERSION:
            raise SchemaTooNew(
                f"fleet {self.fleet}: its log has codec version {int(value)}, this release knows "
                f"up to {CODEC_VERSION}: upgrade Changeover here"
            )

    async def server_info(self) -> ServerInfo:
        """Ask the store for its version, size and leader."""
        return await self.store.server_info()

    # --- writing ------------------------------------------------------------------------------

    async def join(
        self, node: NodeId, record: bytes, ttl_s: float, fence_ratio: float = FENCE_RATIO
    ) -> NodeSession:
        """Take a node's next incarnation under a lease of `ttl_s` seconds.

        `record` is what others find under the live key. The session acts as dead once the last
        renewal is `fence_ratio` of the TTL old.

        Raises:
            NodeAlreadyAlive: another agent holds the name.
            Refused: the name belongs to people.
            BadName, StoreUnavailable, OutcomeUnknown, NoSpace, SchemaTooNew.
        """
        check_name("node", node)
        if node.startswith(OPERATOR_PREFIX):
            raise Refused(f"node name {node!r}: names that begin with 'operator.' are people's")
        await self.check_schema(claim=False)
        keeper = await LeaseKeeper.granted(self.store, ttl_s, fence_ratio)
        return await joining.join(self.store, self._keys, node, record, keeper)

    async def submit_operator(self, name: str, event: AnyEvent, at_ms: int) -> str:
        """State an operator's act, once, even if an answer is lost; return the writer's name.

        Raises:
            StoreUnavailable, OutcomeUnknown: look at the log before doing it again.
            BadName, NoSpace, EventTooLarge.
        """
        writer = check_name("operator", OPERATOR_PREFIX + name)
        act = Incarnation(1 + secrets.randbelow(10**10 - 1))
        fact = Fact(event=event, at_ms=at_ms, writer=writer, incarnation=act, counter=1)
        raw = encode_fact(fact)
        lease = await self.store.grant(_ACT_TTL_S)
        marker = self._keys.act(writer, act)
        result = await settle(
            self.store,
            (absent(marker),),
            (Put(self._keys.inbox(writer, act, 1), raw), Put(marker, b"", lease)),
            (Get(marker),),
        )
        if not result.succeeded and result.responses[0][0].lease != lease:
            raise OutcomeUnknown(f"{writer}: another act has this number; do it again")
        with suppress(Retry):
            await self.store.revoke(lease)
        return writer

    async def campaign(
        self, controller: str, ttl_s: float, fence_ratio: float = FENCE_RATIO
    ) -> Leadership:
        """Wait until the leadership is free, and take it under a lease of `ttl_s` seconds.

        Raises:
            BadName, NoSpace, SchemaTooNew.
        """
        await self.check_schema()
        return await leadership.campaign(self.store, self._keys, controller, ttl_s, fence_ratio)

    async def leader(self) -> tuple[str, int] | None:
        """Name and term of the controller that leads now."""
        found = await self.store.range(self._keys.leader)
        if not found.kvs:
            return None
        return found.kvs[0].value.decode(errors="replace"), found.kvs[0].create_revision

    async def erase(self) -> None:
        """Delete everything that the fleet has in the store, its log included.

        For a fleet that was made to be thrown away, once nobody serves it any more.

        Raises:
            StoreUnavailable, OutcomeUnknown: do it again.
        """
        await self.store.txn((), (Delete(*self._keys.everything),))

    # --- the log ------------------------------------------------------------------------------

    async def head(self) -> Position:
        """Position of the last entry; 0 while the log is empty."""
        return read_head((await self.store.range(self._keys.head)).kvs)

    async def read_entries(
        self, start: Position | None = None, stop: Position | None = None
    ) -> AsyncGenerator[tuple[Entry, ...], None]:
        """Yield entries from `start` to `stop` inclusive, undecoded.

        By default from the oldest that the store has to the head as it is now.

        Raises:
            Archived: `start` has left the store.
            LogCorrupt: a position is missing.
        """
        revision, head = await pin(self.store, self._keys)
        if start is None:
            start = await self.oldest()
        last = head if stop is None else min(head, stop)
        async with aclosing(windows(self.store, self._keys, start, last, revision)) as pages:
            async for entries in pages:
                yield entries

    async def read(
        self, start: Position | None = None, stop: Position | None = None
    ) -> AsyncGenerator[Recorded, None]:
        """Yield entries from `start` to `stop` inclusive; the defaults are `read_entries`'.

        Raises:
            Archived: `start` has left the store.
            LogCorrupt: a position is missing or does not decode.
        """
        async with aclosing(self.read_entries(start, stop)) as pages:
            async for entries in pages:
                for entry in entries:
                    yield entry.recorded()

    def follow(self, start: Position = FIRST) -> AbstractAsyncContextManager[Follower]:
        """Follow the log from a position on: read what is there, then what comes.

        Use: `async with log.follow(p) as entries: async for recorded in entries: ...`
        """
        return following(self.store, self._keys, start)

    # --- retention ----------------------------------------------------------------------------

    async def oldest(self) -> Position:
        """First position that the store still has, or will have."""
        return await oldest_of(self.store, self._keys)

    async def mark(self) -> Mark:
        """Up to where the log is in archives only."""
        return read_mark((await self.store.range(self._keys.archived)).kvs)

    async def forget(self, old: Mark, new: Mark) -> None:
        """Delete what is archived from the store, and move the mark. See `retention.forget`."""
        await retention.forget(self.store, self._keys, old, new)

    async def drop(self, mark: Mark, last: Position) -> None:
        """Delete what is archived and leave the mark. See `retention.drop`."""
        await retention.drop(self.store, self._keys, mark, last)

    def left_of(self, start: Position, stop: Position) -> AsyncIterator[Entry]:
        """What the store still has of these positions; holes are passed over."""
        return retention.left_of(self.store, self._keys, start, stop)

    async def snapshots(self) -> tuple[Manifest, ...]:
        """Every complete snapshot, the oldest first."""
        return await retention.list_snapshots(self.store, self._keys)

    async def put_snapshot(self, position: Position, blob: bytes, written_at_ms: int) -> Manifest:
        """Write what the log folds to at a position, once. See `retention.put_snapshot`."""
        return await retention.put_snapshot(self.store, self._keys, position, blob, written_at_ms)

    async def get_snapshot(self, manifest: Manifest) -> bytes:
        """Read a snapshot back.

        Raises:
            LogCorrupt: it is damaged.
        """
        return await retention.get_snapshot(self.store, self._keys, manifest)

    async def prune_snapshots(self, keep: int) -> None:
        """Delete all but the newest snapshots."""
        await retention.prune_snapshots(self.store, self._keys, keep)

    # --- what stands in the store now ---------------------------------------------------------

    async def inbox(self) -> tuple[InboxItem, ...]:
        """Facts that wait, in order of arrival."""
        _, kvs = await read_all(self.store, *self._keys.inbox_all)
        items = [item for item in map(inbox_reader(self._keys), kvs) if item is not None]
        return tuple(sorted(items, key=lambda item: (item.revision, item.counter)))

    def watch_inbox(self) -> AbstractAsyncContextManager[View[InboxItem]]:
        """Facts that wait, as they come and go."""
        return viewing(self.store, self._keys.inbox_all, inbox_reader(self._keys))

    async def nodes(self) -> tuple[NodeItem, ...]:
        """Live incarnations, by name."""
        _, kvs = await read_all(self.store, *self._keys.nodes_all)
        return tuple(item for item in map(node_reader(self._keys), kvs) if item is not None)

    def watch_nodes(self) -> AbstractAsyncContextManager[View[NodeItem]]:
        """Live incarnations, as they come and go."""
        return viewing(self.store, self._keys.nodes_all, node_reader(self._keys))

    async def vitals(self) -> tuple[VitalsItem, ...]:
        """What live nodes measured last, by name."""
        _, kvs = await read_all(self.store, *self._keys.vitals_all)
        return tuple(item for item in map(vitals_reader(self._keys), kvs) if item is not None)

    def watch_vitals(self) -> AbstractAsyncContextManager[View[VitalsItem]]:
        """What live nodes measure, as it is overwritten."""
        return viewing(self.store, self._keys.vitals_all, vitals_reader(self._keys))

    async def desired(self, job: JobId) -> bytes | None:
        """The topology that a job should have now."""
        found = await self.store.range(self._keys.desired(job))
        return found.kvs[0].value if found.kvs else None

    def watch_desired(self, job: JobId) -> AbstractAsyncContextManager[View[DesiredItem]]:
        """The topology that a job should have: what it is now, then each change of it."""
        key = self._keys.desired(JobId(check_name("job", job)))
        return viewing(self.store, (key, b""), desired_reader(self._keys))

    async def desired_all(self) -> tuple[DesiredItem, ...]:
        """The topologies of all jobs, by name."""
        _, kvs = await read_all(self.store, *self._keys.desired_all)
        return tuple(item for item in map(desired_reader(self._keys), kvs) if item is not None)

    def watch_orders(self, node: NodeId) -> AbstractAsyncContextManager[View[OrdersItem]]:
        """What one node shall do: what it is now, then each change of it."""
        key = self._keys.orders(NodeId(check_name("node", node)))
        return viewing(self.store, (key, b""), orders_reader(self._keys))

    async def orders_all(self) -> tuple[OrdersItem, ...]:
        """What every node shall do, by name."""
        _, kvs = await read_all(self.store, *self._keys.orders_all)
        return tuple(item for item in map(orders_reader(self._keys), kvs) if item is not None)
