"""The rules that a client of etcd must keep, each against the fault that it is there for.

`docs/internals/etcd.md` lists them all with the tests that provoke them; those that need no file of
their own stand here. Where a rule is about one client's code, the other is not asked.
"""

from __future__ import annotations

import http.client
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest
import pytest_asyncio

from controlplane.eventlog import OutcomeUnknown, StoreUnavailable, WatchLost, open_store
from controlplane.eventlog import etcd as thin
from controlplane.eventlog.store import Put, prefix_end
from controlplane.eventlog.view import viewing
from tests.contract.conftest import Relay, certificates_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from controlplane.etcd_server import EtcdServer
    from controlplane.eventlog import Store

pytestmark = [pytest.mark.etcd, pytest.mark.usefixtures("speaker")]

CLIENT = "thin"
"""Set by the fixture `speaker` to each in turn."""


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    """A store, by the client under test."""
    store = await open_store(url, client=CLIENT)
    try:
        yield store
    finally:
        await store.aclose()


@pytest_asyncio.fixture
async def relay(shared_etcd: EtcdServer) -> AsyncIterator[Relay]:
    """Stands before the shared server."""
    relay = Relay(int(shared_etcd.url.rsplit(":", 1)[1]))
    await relay.open()
    yield relay
    await relay.close()


@pytest_asyncio.fixture
async def store(speaker: str, relay: Relay) -> AsyncIterator[Store]:
    """A store behind the relay."""
    async with opened(f"http://127.0.0.1:{relay.port}") as store:
        yield store


# --- 1: deadlines, and what may be repeated -------------------------------------------------------


async def test_every_call_ends(own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that neither answers nor hangs up holds no call longer than its budget."""
    monkeypatch.setattr(thin, "READ_BUDGET_S", 1.0)
    took_s: dict[str, float] = {}

    async def timed(name: str, act: Callable[[], Awaitable[object]]) -> None:
        began = time.monotonic()
        with pytest.raises((StoreUnavailable, OutcomeUnknown, WatchLost)):
            await act()
        took_s[name] = time.monotonic() - began

    async with opened(own_etcd.url) as store:
        lease = await store.grant(60)

        async def watch() -> None:
            async with store.watch(b"a", b"", 1):
                pass

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "txn": lambda: store.txn((), (Put(b"a", b""),)),
            "range": lambda: store.range(b"a"),
            "grant": lambda: store.grant(5),
            "keep_alive": lambda: store.keep_alive(lease),
            "revoke": lambda: store.revoke(lease),
            "server_info": store.server_info,
            "compact": lambda: store.compact(1),
            "watch": watch,
        }
        own_etcd.pause()
        with anyio.fail_after(15):
            async with anyio.create_task_group() as group:
                for name, act in calls.items():
                    group.start_soon(timed, name, act)
        own_etcd.resume()

    print({name: round(each, 2) for name, each in took_s.items()})
    assert set(took_s) == set(calls)
    assert max(took_s.values()) < 6
    once = ("txn", "range", "grant", "keep_alive", "revoke", "compact")
    assert max(took_s[name] for name in once) < 2, "ended by a ping, not by a deadline of its own"


async def test_a_write_is_tried_once(store: Store, relay: Relay, root: bytes) -> None:
    """Its lost answer is said to be lost: only the caller knows whether it may be made again."""
    await store.txn((), (Put(root, b"1"),))
    relay.lose_answer = True
    with pytest.raises(OutcomeUnknown):
        await store.txn((), (Put(root, b"2"),))
    (kv,) = (await store.range(root)).kvs

    assert (kv.value, kv.version) in ((b"1", 1), (b"2", 2)), "at most once, never twice"


async def test_a_read_is_repeated(store: Store, relay: Relay, root: bytes) -> None:
    """Three connections break under it, and the caller never hears of it."""
    await store.txn((), (Put(root, b"1"),))
    before = relay.connections
    for _ in range(3):
        relay.lose_answer = True
        with anyio.fail_after(9):
            (kv,) = (await store.range(root)).kvs
        assert kv.value == b"1"

    assert relay.connections >= before + 3


# --- 2: pings -------------------------------------------------------------------------------------


@pytest.mark.soak
async def test_pings_are_no_nuisance(store: Store, relay: Relay, root: bytes) -> None:
    """A watch that is idle for longer than etcd's patience with pings keeps its connection."""
    start = (await store.txn((), (Put(root, b"1"),))).revision
    async with store.watch(root, b"", start) as batches:
        await anext(batches)
        before = relay.connections
        await anyio.sleep(40)
        await store.txn((), (Put(root, b"2"),))
        with anyio.fail_after(5):
            batch = await anext(batches)

    assert [each.kv.value for each in batch.changes] == [b"2"]
    assert relay.connections == before


# --- 3: watches -----------------------------------------------------------------------------------


async def test_one_watch_does_not_hold_up_another(store: Store, root: bytes) -> None:
    """While one is not taken from, with megabytes on the way, another hears at once."""
    start = (await store.txn((), (Put(root + b"b", b""),))).revision
    for number in range(12):
        await store.txn((), (Put(root + b"a/%d" % number, bytes(1024 * 1024)),))
    async with store.watch(root + b"a/", prefix_end(root + b"a/"), start) as heavy:
        async with store.watch(root + b"b", b"", start + 1) as light:
            await store.txn((), (Put(root + b"b", b"now"),))
            began = time.monotonic()
            with anyio.fail_after(5):
                batch = await anext(light)
            took_s = time.monotonic() - began
        seen = 0
        with anyio.fail_after(20):
            while seen < 12:
                seen += len((await anext(heavy)).changes)

    print(f"heard after {took_s * 1000:.0f} ms beside a catch-up of 12 MiB")
    assert [each.kv.value for each in batch.changes] == [b"now"]


async def test_what_is_not_taken_is_not_held(
    store: Store, root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that stops taking holds back the server, not its own process's memory; when it
    goes on, everything is there.
    """
    if CLIENT == "etcd3":
        monkeypatch.setattr("controlplane.eventlog.etcd3_api._BACKLOG", 4)
    count, size = 40, 1024 * 1024
    process = psutil.Process()
    for number in range(count):  # so that what writing costs is paid before
        await store.txn((), (Put(root + b"a/%03d" % number, bytes(size)),))
    start = (await store.txn((), (Put(root + b"b", b""),))).revision + 1
    async with store.watch(root + b"a/", prefix_end(root + b"a/"), start) as batches:
        before = process.memory_info().rss
        for number in range(count):
            await store.txn((), (Put(root + b"a/%03d" % number, bytes(size)),))
        await anyio.sleep(0.5)
        grown = process.memory_info().rss - before
        seen: list[bytes] = []
        with anyio.fail_after(20):
            while len(seen) < count:
                seen += [each.kv.key for each in (await anext(batches)).changes]

    print(f"{grown / size:.1f} MiB more for {count} MiB that nobody took")
    assert seen == [root + b"a/%03d" % number for number in range(count)]
    assert grown < count * size // 2


async def test_a_catch_up_comes_in_fragments(
    shared_etcd: EtcdServer, root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog larger than one message may be is delivered whole, and in order."""
    if CLIENT != "thin":
        pytest.skip("the etcd3 package cannot ask for fragments; its limit is 64 MiB")
    limit = "grpc.max_receive_message_length"
    small = [
        (name, 4 * 1024 * 1024 if name == limit else each) for name, each in thin._CHANNEL_OPTIONS
    ]
    monkeypatch.setattr(thin, "_CHANNEL_OPTIONS", tuple(small))
    async with opened(shared_etcd.url) as store:
        start = 0
        for number in range(12):
            put = Put(root + b"%02d" % number, bytes(1024 * 1024))
            start = start or (await store.txn((), (put,))).revision
            if number:
                await store.txn((), (put,))
        seen: list[bytes] = []
        with anyio.fail_after(20):
            async with store.watch(root, prefix_end(root), start) as batches:
                while len(seen) < 12:
                    seen += [each.kv.key for each in (await anext(batches)).changes]

    assert seen == [root + b"%02d" % number for number in range(12)]


async def test_an_idle_watch_shows_that_it_lives(
    own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress is asked for: nothing of ours changes, and the revision still moves on."""
    own_etcd.stop_blocking()
    monkeypatch.setenv("ETCD_EXPERIMENTAL_WATCH_PROGRESS_NOTIFY_INTERVAL", "200ms")
    await own_etcd.start()
    async with opened(own_etcd.url) as store:
        start = (await store.txn((), (Put(b"mine", b""),))).revision
        async with store.watch(b"mine", b"", start + 1) as batches:
            last = (await store.txn((), (Put(b"theirs", b""),))).revision
            with anyio.fail_after(10):
                batch = await anext(batches)
                while batch.revision < last:
                    batch = await anext(batches)

    assert batch.changes == ()


async def test_a_catch_up_that_breaks_goes_on_behind_its_last_event(
    own_etcd: EtcdServer,
) -> None:
    """A server that dies in the middle of a long catch-up: nothing is missed, nothing comes twice.

    The head of the store is in every answer's header, far ahead of the events; who resumed there
    would miss the rest. A server catches up a thousand revisions at a time, so there are more.
    """
    count = 2_500
    async with opened(own_etcd.url) as store:

        async def write(first: int) -> None:
            for number in range(first, count, 50):
                await store.txn((), (Put(b"k/%06d" % number, bytes(200)),))

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(write, number)
        kvs = sorted((await store.range(b"k/", b"k0")).kvs, key=lambda kv: kv.mod_revision)
        assert len(kvs) == count
        seen: list[bytes] = []
        breaks = 0
        at = kvs[0].mod_revision
        with anyio.fail_after(40):
            while len(seen) < count:
                try:
                    async with store.watch(b"k/", b"k0", at) as batches:
                        while len(seen) < count:
                            batch = await anext(batches)
                            seen += [each.kv.key for each in batch.changes]
                            at = batch.revision + 1
                            if breaks < 2 and len(seen) < count:
                                breaks += 1
                                own_etcd.kill()
                                await own_etcd.start()
                except WatchLost:
                    await anyio.sleep(0.05)

    print(f"{breaks} breaks")
    assert breaks
    assert seen == [kv.key for kv in kvs]


async def test_bulk_reads_have_a_connection_of_their_own(
    store: Store, relay: Relay, root: bytes
) -> None:
    """What is replayed does not stand in the way of a renewal."""
    await store.range(root)
    before = relay.connections
    await store.range(root, replay=True)
    await store.range(root, replay=True)
    await store.range(root)

    assert relay.connections == before + 1


# --- 4: connections -------------------------------------------------------------------------------


async def test_a_server_that_comes_back_is_used_at_once(own_etcd: EtcdServer) -> None:
    """However many calls failed meanwhile: none of them makes a client wait for long."""
    async with opened(own_etcd.url) as store:
        await store.txn((), (Put(b"a", b"1"),))
        own_etcd.kill()
        for _ in range(5):
            with pytest.raises((StoreUnavailable, OutcomeUnknown)):
                await store.txn((), (Put(b"a", b"2"),))
            await anyio.sleep(0.3)
        await own_etcd.start()
        began = time.monotonic()
        with anyio.fail_after(10):
            while True:
                try:
                    await store.txn((), (Put(b"a", b"3"),))
                    break
                except (StoreUnavailable, OutcomeUnknown):
                    await anyio.sleep(0.02)
        took_s = time.monotonic() - began

    print(f"first write {took_s:.2f} s after the server was healthy")
    assert took_s < 3


async def test_a_slow_connection_is_waited_for(
    request: pytest.FixtureRequest, relay: Relay, root: bytes
) -> None:
    """A handshake of half a second, as over TLS to a busy server, is no refusal."""
    relay.delay_s = 0.2 if certificates_of(request) is None else 0.1  # there are twice as many
    async with opened(f"http://127.0.0.1:{relay.port}") as store:
        assert (await store.txn((), (Put(root, b""),))).succeeded

    assert relay.connections == 1


async def test_a_dead_server_costs_no_core(own_etcd: EtcdServer) -> None:
    """Who waits for one, with watches open, does not spin."""
    async with opened(own_etcd.url) as store, viewing(store, (b"a", b""), lambda kv: kv) as view:
        await anext(view)
        own_etcd.kill()
        await anyio.sleep(0.2)
        began, wall = time.process_time(), time.monotonic()
        await anyio.sleep(1.5)
        share = (time.process_time() - began) / (time.monotonic() - wall)

    print(f"{share:.0%} of a core while the server is down")
    assert share < 0.25


async def test_a_watch_that_was_given_up_is_gone_at_the_server(own_etcd: EtcdServer) -> None:
    """Fifty watches opened and left: the server watches nothing for us any more."""
    async with opened(own_etcd.url) as store:
        for number in range(50):
            with anyio.move_on_after(0.05 if number % 2 else None):
                async with store.watch(b"a", b"", 1):
                    if number % 2:
                        await anyio.sleep(1)
        left = -1.0
        with anyio.fail_after(10):
            while left:
                left = metric(own_etcd, "etcd_debugging_mvcc_watcher_total")
                await anyio.sleep(0.05)

    assert left == 0


def metric(server: EtcdServer, name: str) -> float:
    """What a server tells Prometheus."""
    asking = http.client.HTTPConnection("127.0.0.1", server._health_port, timeout=2)
    try:
        asking.request("GET", "/metrics")
        lines = asking.getresponse().read().decode().splitlines()
    finally:
        asking.close()
    return float(next(line.split()[1] for line in lines if line.startswith(name)))
