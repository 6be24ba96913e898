"""What only a real server can do to us: die, come back, freeze, fill up, ask for certificates."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from controlplane.access import users_of
from controlplane.certificates import Authority
from controlplane.etcd_server import EtcdServer, free_port
from controlplane.eventlog import (
    Batch,
    EventLog,
    LeaseLost,
    NoSpace,
    OutcomeUnknown,
    PermissionDenied,
    StoreUnavailable,
    open_store,
)
from controlplane.eventlog.etcd_url import TlsFiles
from controlplane.eventlog.store import Put, Store, prefix_end
from statemachine.codec import encode_recorded
from statemachine.events import Recorded
from statemachine.ids import JobId, NodeId, Position
from tests.contract.conftest import certificates_of, hosts_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from controlplane.etcd_binary import EtcdBinary
    from controlplane.eventlog import Leadership
    from tests.contract.conftest import Facts

pytestmark = [pytest.mark.etcd, pytest.mark.usefixtures("speaker")]

CLIENT = "thin"
"""Set by the fixture `speaker` to each in turn."""

N0, J0 = NodeId("n0"), JobId("j0")


@asynccontextmanager
async def opened(server: EtcdServer, tls: TlsFiles | None = None) -> AsyncIterator[Store]:
    """A store on a server, for as long as the body runs."""
    store = await open_store(server.url, tls, client=CLIENT)
    try:
        yield store
    finally:
        await store.aclose()


async def append_one(leadership: Leadership, fact: Facts) -> None:
    """Append one entry and overwrite the job's topology with its position."""
    position = Position(leadership.head + 1)
    entry = encode_recorded(
        Recorded(position=position, at_ms=1, writer="controller.c0", event=fact(position))
    )
    await leadership.append(
        Batch(after=leadership.head, entries=(entry,), desired=((J0, b"%d" % position),))
    )


async def append_through(leadership: Leadership, fact: Facts, last: int) -> None:
    """Append until the log has a length, whatever answers are lost on the way."""
    while leadership.head < last:
        try:
            await append_one(leadership, fact)
        except (StoreUnavailable, OutcomeUnknown):
            await anyio.sleep(0.05)
        await anyio.sleep(0.002)


async def test_a_killed_server_loses_nothing(own_etcd: EtcdServer, fact: Facts) -> None:
    """A server killed twice under load costs no entry: followers see each one once, in order."""
    async with opened(own_etcd) as store:
        log = EventLog(store, "f0")
        leadership = await log.campaign("c0", 120)
        seen: list[int] = []

        async def follow() -> None:
            async with log.follow() as entries:
                while len(seen) < 600:
                    seen.append((await anext(entries)).position)

        values: list[int] = []

        async def watch() -> None:
            async with log.watch_desired(J0) as view:
                while values[-1:] != [600]:
                    values.extend(int(item.value) for item in (await anext(view)).updated)

        with anyio.fail_after(50):
            async with anyio.create_task_group() as group:
                group.start_soon(follow)
                group.start_soon(watch)
                group.start_soon(append_through, leadership, fact, 600)
                for length in (150, 350):
                    while leadership.head < length:  # noqa: ASYNC110 - a number has no event
                        await anyio.sleep(0.005)
                    own_etcd.kill()
                    await own_etcd.start()

    assert seen == list(range(1, 601))
    assert values == sorted(set(values))


async def test_a_node_outlives_its_server(own_etcd: EtcdServer, fact: Facts) -> None:
    """A node whose store is away for longer than its lease goes on as the same incarnation."""
    async with opened(own_etcd) as store:
        log = EventLog(store, "f0")
        session = await log.join(N0, b"", 1)
        await session.submit(fact(1), 0)
        own_etcd.kill()
        with anyio.fail_after(5), pytest.raises(LeaseLost):
            await session.run_renewal()
        await own_etcd.start()

        with anyio.fail_after(10):
            await session.reestablish()

        assert await session.submit(fact(2), 0) == 2
        assert [item.counter for item in await log.inbox()] == [1, 2]
        assert [item.incarnation for item in await log.nodes()] == [1]


async def test_a_frozen_server_is_noticed(own_etcd: EtcdServer, fact: Facts) -> None:
    """Calls to a frozen server end within their budget, its watch within nine seconds, and who
    follows the log goes on where it was once the server thaws.
    """
    async with opened(own_etcd) as store:
        log = EventLog(store, "f0")
        leadership = await log.campaign("c0", 120)
        await append_one(leadership, fact)
        await store.txn((), (Put(b"a", b""),))
        async with store.watch(b"a", b"", 1) as batches, log.follow() as entries:
            await anext(batches)
            seen = [(await anext(entries)).position]
            own_etcd.pause()
            began = anyio.current_time()
            with anyio.fail_after(3), pytest.raises(OutcomeUnknown):
                await store.txn((), (Put(b"a", b""),))
            write_s = anyio.current_time() - began
            with anyio.fail_after(12), pytest.raises(Exception, match="etcd at"):
                await anext(batches)
            watch_s = anyio.current_time() - began
            own_etcd.resume()
            with anyio.fail_after(15):
                await append_through(leadership, fact, 3)
                while len(seen) < 3:
                    seen.append((await anext(entries)).position)

    print(f"frozen server: write told after {write_s:.2f} s, watch after {watch_s:.2f} s")
    assert write_s < 1.5
    assert watch_s < 10
    assert seen == [1, 2, 3]


async def test_a_view_outlives_a_freeze(own_etcd: EtcdServer) -> None:
    """A view of a server that froze and thawed is complete again soon after, without a restart."""
    async with opened(own_etcd) as store:
        log = EventLog(store, "f0")
        leadership = await log.campaign("c0", 120)
        async with log.watch_desired(J0) as view:
            await anext(view)
            own_etcd.pause()
            await anyio.sleep(1.5)
            own_etcd.resume()
            with anyio.fail_after(10):
                await leadership.append(
                    Batch(after=leadership.head, entries=(), desired=((J0, b"after"),))
                )
                delta = await anext(view)

    assert [item.value for item in delta.updated] == [b"after"]


async def fill(store: Store) -> None:
    """Write 25 MiB."""
    for number in range(100):
        await store.txn((), (Put(b"k%03d" % number, bytes(256 * 1024)),))


async def test_a_full_store_has_a_name(
    request: pytest.FixtureRequest, etcd_binary: EtcdBinary, tmp_path: Path
) -> None:
    """A server over its quota answers NoSpace to writes and leases, and still reads and deletes."""
    folder, quota = certificates_of(request), 2 * 1024 * 1024
    server = EtcdServer(
        etcd_binary, tmp_path, quota_bytes=quota, certificates=folder, durable=False
    )
    async with server, opened(server) as store:
        with anyio.fail_after(20), pytest.raises(NoSpace):
            await fill(store)
        with pytest.raises(NoSpace):
            await store.grant(5)

        assert (await store.range(b"k", prefix_end(b"k"), keys_only=True)).kvs


async def test_nobody_there_is_one_line() -> None:
    """Connecting to a port where nobody listens fails within its budget, naming the address."""
    port = free_port()

    with anyio.fail_after(9), pytest.raises(StoreUnavailable) as caught:
        await open_store(f"http://127.0.0.1:{port}", client=CLIENT)

    assert f"etcd at 127.0.0.1:{port} does not answer" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_dead_endpoint_does_not_hide_a_live_one(own_etcd: EtcdServer) -> None:
    """With several endpoints named, one that answers is enough."""
    url = f"http://127.0.0.1:{free_port()},{hosts_of(own_etcd)}"

    store = await open_store(url, client=CLIENT)

    assert (await store.txn((), (Put(b"a", b""),))).succeeded
    await store.aclose()


async def test_a_closed_store_says_so(own_etcd: EtcdServer) -> None:
    """A call on a closed store, and a watch that was open, end with an error of ours."""
    store = await open_store(own_etcd.url, client=CLIENT)
    async with store.watch(b"a", b"", 1) as batches:
        await store.aclose()
        with anyio.fail_after(5), pytest.raises(Exception, match="etcd at"):
            await anext(batches)

    with anyio.fail_after(9), pytest.raises((StoreUnavailable, OutcomeUnknown)):
        await store.txn((), (Put(b"a", b""),))


async def test_cancelling_leaves_no_watch(own_etcd: EtcdServer) -> None:
    """A hundred cancelled reads, writes and watches leave a store that works at once."""
    async with opened(own_etcd) as store:
        for number in range(100):
            with anyio.move_on_after(0.0005 * (number % 5)):
                await store.txn((), (Put(b"a", b""),))
                await store.range(b"a")
                async with store.watch(b"a", b"", 1) as batches:
                    async for _ in batches:
                        pass

        assert (await store.range(b"a")).kvs


async def test_certificates_are_spoken(etcd_binary: EtcdBinary, tmp_path: Path) -> None:
    """Over mutual TLS everything works with a certificate, and nothing without one."""
    pems = tmp_path / "pems"
    Authority(pems, days=2).make(users_of("f0"))
    files = TlsFiles(
        ca=str(pems / "ca.pem"), cert=str(pems / "worker.pem"), key=str(pems / "worker.key")
    )
    server = EtcdServer(etcd_binary, tmp_path / "etcd", certificates=pems, durable=False)
    async with server:
        async with opened(server, files) as store:
            assert server.url.startswith("https://")
            assert (await store.txn((), (Put(b"a", b"1"),))).succeeded
            async with store.watch(b"a", b"", 1) as batches:
                with anyio.fail_after(5):
                    batch = await anext(batches)
        with anyio.fail_after(9), pytest.raises((StoreUnavailable, PermissionDenied)):
            await open_store(server.url, TlsFiles(ca=files.ca), client=CLIENT)

    assert [each.kv.value for each in batch.changes] == [b"1"]
