"""Three real members: what the loss of one, and of a majority, does to those who use the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
import pytest_asyncio

from controlplane.eventlog import (
    Batch,
    EventLog,
    OutcomeUnknown,
    StoreUnavailable,
    WatchLost,
    open_store,
)
from controlplane.eventlog.store import Put, Store
from statemachine.codec import encode_recorded
from statemachine.events import Recorded
from statemachine.ids import Position
from tests.contract.conftest import hosts_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from controlplane.etcd_server import EtcdServer
    from controlplane.eventlog import Leadership
    from tests.contract.conftest import Facts

pytestmark = [pytest.mark.etcd, pytest.mark.slow, pytest.mark.usefixtures("speaker")]

CLIENT = "thin"
"""Set by the fixture `speaker` to each in turn."""


@pytest_asyncio.fixture
async def clustered(members: list[EtcdServer]) -> AsyncIterator[Store]:
    """A store that knows all three members."""
    store = await open_store(f"http://{hosts_of(*members)}", client=CLIENT)
    yield store
    await store.aclose()


async def leader_of(members: list[EtcdServer]) -> EtcdServer:
    """The member that leads the cluster."""
    for server in members:
        store = await open_store(server.url, client=CLIENT)
        info = await store.server_info()
        await store.aclose()
        if info.leader == info.member:
            return server
    raise AssertionError("the cluster has no leader")


async def append_until(leadership: Leadership, fact: Facts, last: int, gaps: list[float]) -> None:
    """Append one entry at a time until the log has a length; note how long each took."""
    while leadership.head < last:
        position = Position(leadership.head + 1)
        recorded = Recorded(position=position, at_ms=1, writer="c", event=fact(position))
        batch = Batch(after=leadership.head, entries=(encode_recorded(recorded),))
        began = anyio.current_time()
        while True:
            try:
                await leadership.append(batch)
                break
            except (StoreUnavailable, OutcomeUnknown):
                continue
        gaps.append(anyio.current_time() - began)


async def test_the_loss_of_the_leading_member_costs_no_entry(
    members: list[EtcdServer], clustered: Store, fact: Facts
) -> None:
    """With the leading member killed under load, appends go on within seconds, each one once."""
    log = EventLog(clustered, "f0")
    leadership = await log.campaign("c0", 120)
    doomed = await leader_of(members)
    seen: list[int] = []
    gaps: list[float] = []

    async def follow() -> None:
        async with log.follow() as entries:
            while len(seen) < 300:
                seen.append((await anext(entries)).position)

    with anyio.fail_after(50):
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            group.start_soon(append_until, leadership, fact, 300, gaps)
            while leadership.head < 100:  # noqa: ASYNC110 - a number has no event
                await anyio.sleep(0.005)
            doomed.kill()

    print(f"longest gap of the writer: {max(gaps):.2f} s")
    assert seen == list(range(1, 301))
    assert max(gaps) < 8


async def test_a_member_without_a_majority_says_so(
    members: list[EtcdServer], clustered: Store
) -> None:
    """With two of three members frozen a watch is told and a write is not made up."""
    await clustered.txn((), (Put(b"a", b"1"),))
    start = (await clustered.range(b"a")).kvs[0].mod_revision
    async with clustered.watch(b"a", b"", start) as batches:
        await anext(batches)
        connected = await connected_member(members, clustered)
        others = [server for server in members if server is not connected]
        began = anyio.current_time()
        for server in others:
            server.pause()
        with anyio.fail_after(15), pytest.raises(WatchLost):
            await anext(batches)
        told_s = anyio.current_time() - began
    with anyio.fail_after(10), pytest.raises((OutcomeUnknown, StoreUnavailable)):
        await clustered.txn((), (Put(b"a", b"2"),))
    for server in others:
        server.resume()

    with anyio.fail_after(15):
        while True:
            try:
                await clustered.txn((), (Put(b"a", b"3"),))
                break
            except (OutcomeUnknown, StoreUnavailable):
                await anyio.sleep(0.1)

    print(f"without a majority: the watch was told after {told_s:.1f} s")
    assert (await clustered.range(b"a")).kvs[0].value == b"3"


async def connected_member(members: list[EtcdServer], store: Store) -> EtcdServer:
    """The member that a store talks to."""
    asked = (await store.server_info()).member
    for server in members:
        one = await open_store(server.url, client=CLIENT)
        member = (await one.server_info()).member
        await one.aclose()
        if member == asked:
            return server
    raise AssertionError("the store talks to nobody we know")
