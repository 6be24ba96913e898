"""An etcd that asks who one is: each kind of process may do its part, and nothing else.

Users, roles and certificates are those that `changeover init` makes; both clients speak as them.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
import pytest_asyncio

from controlplane.access import ROOT, Grant, Level, User, users_of
from controlplane.certificates import Authority
from controlplane.config import Settings
from controlplane.errors import BadConfig
from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import EventLog, PermissionDenied, StoreUnavailable, open_store
from controlplane.eventlog.etcd_auth import Rights
from controlplane.eventlog.etcd_url import TlsFiles
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.store import Delete, Put
from controlplane.granting import check_asks, grant_all
from controlplane.server import lead_again_and_again
from statemachine import events as e
from statemachine.ids import Incarnation, JobId, NodeId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from controlplane.etcd_binary import EtcdBinary
    from controlplane.eventlog import Store

pytestmark = [pytest.mark.etcd, pytest.mark.usefixtures("client")]

CLIENT = "thin"
"""Set by the fixture `client` to each in turn."""

FLEET = "f0"
KEYS = Keys(FLEET)
N0, N1, ONE = NodeId("n0"), NodeId("n1"), Incarnation(1)


def files(folder: Path, name: str) -> TlsFiles:
    """The certificate of a user."""
    return TlsFiles(
        ca=str(folder / "ca.pem"), cert=str(folder / f"{name}.pem"), key=str(folder / f"{name}.key")
    )


@asynccontextmanager
async def opened(server: EtcdServer, folder: Path, name: str) -> AsyncIterator[Store]:
    """The store as a user sees it, by the client under test."""
    store = await open_store(server.url, files(folder, name), client=CLIENT)
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a fleet with two nodes, and of one whose nodes share a user."""
    made = tmp_path_factory.mktemp("pki")
    Authority(made, days=2).make([*users_of(FLEET, [N0, N1]), *users_of(FLEET)])
    return made


@pytest.fixture(scope="module")
def server(
    etcd_binary: EtcdBinary, tmp_path_factory: pytest.TempPathFactory, folder: Path
) -> Iterator[EtcdServer]:
    """An etcd that has the users of both, and asks everybody who they are."""
    running = EtcdServer(
        etcd_binary, tmp_path_factory.mktemp("users"), certificates=folder, durable=False
    )
    running.start_blocking()
    try:
        anyio.run(_grant, running, folder)
        yield running
    finally:
        running.stop_blocking()


async def _grant(server: EtcdServer, folder: Path) -> None:
    store = await open_store(server.url, files(folder, ROOT))
    await grant_all(store, [*users_of(FLEET, [N0, N1]), *users_of(FLEET)])
    await store.aclose()


@pytest_asyncio.fixture
async def root(server: EtcdServer, folder: Path) -> AsyncIterator[Store]:
    """The store as its administrator sees it."""
    async with opened(server, folder, ROOT) as store:
        yield store


WRITES: dict[bytes, set[str]] = {
    KEYS.schema: {"controller"},
    KEYS.head: {"controller"},
    KEYS.log(1): {"controller"},
    KEYS.leader: {"controller"},
    KEYS.archived: {"controller"},
    KEYS.snapshot(1): {"controller"},
    KEYS.desired(JobId("j0")): {"controller"},
    KEYS.orders(N0): {"controller"},
    KEYS.inbox("operator.ann", 1, 1): {"controller", "operator"},
    KEYS.act("operator.ann", 1): {"controller", "operator"},
    KEYS.inbox("n0", 1, 1): {"controller", "node-n0", "worker"},
    KEYS.inbox("zz", 1, 1): {"controller", "worker"},
    KEYS.inbox("operator", 1, 1): {"controller", "worker"},
    KEYS.counter("n0"): {"controller", "node-n0", "worker"},
    KEYS.incarnations(N0): {"controller", "node-n0", "worker"},
    KEYS.node(N0, ONE): {"controller", "node-n0", "worker"},
    KEYS.fenced(N0, ONE): {"controller", "node-n0", "worker"},
    KEYS.vitals(N0, ONE): {"controller", "node-n0", "worker"},
    b"/changeover/f1/head": set(),
    b"/changeover/f0": set(),
    b"elsewhere": set(),
}
"""Who may write which key, all told."""

USERS = ("controller", "operator", "node-n0", "node-n1", "worker")


@pytest.mark.parametrize("user", USERS)
async def test_a_user_writes_what_is_its_own(server: EtcdServer, folder: Path, user: str) -> None:
    """Every key of a fleet, and some of others: put by whom it is for, refused to all else."""
    may = []
    async with opened(server, folder, user) as store:
        for key in WRITES:
            try:
                await store.txn((), (Put(key, b"x"),))
                await store.txn((), (Delete(key),))
                may.append(key)
            except PermissionDenied:
                continue

    assert may == [key for key, users in WRITES.items() if user in users]


@pytest.mark.parametrize("user", USERS)
async def test_a_user_reads_what_it_needs(server: EtcdServer, folder: Path, user: str) -> None:
    """A node reads what is wanted of it, not the log, not others' facts; an operator reads all."""
    everything = {KEYS.log(1), KEYS.inbox("n1", 1, 1), KEYS.vitals(N1, ONE), KEYS.orders(N1)}
    wanted = {
        "controller": everything,
        "operator": everything,
        "node-n1": everything - {KEYS.log(1)},
        "node-n0": {KEYS.orders(N1)},
        "worker": everything - {KEYS.log(1)},
    }
    may = set()
    async with opened(server, folder, user) as store:
        for key in everything:
            try:
                await store.range(key)
                may.add(key)
            except PermissionDenied:
                continue

    assert may == wanted[user]


@pytest.mark.parametrize("user", ["node-n0", "server"])
async def test_a_watch_that_is_not_allowed_says_so(
    server: EtcdServer, folder: Path, user: str
) -> None:
    """It does not wait for ever for what it may not see: whoever opened it is told."""
    start, end = KEYS.log_all
    async with opened(server, folder, user) as store:
        with anyio.fail_after(5), pytest.raises(PermissionDenied):
            async with store.watch(start, end, 1) as batches:
                await anext(batches)
        with anyio.fail_after(5), pytest.raises(PermissionDenied):
            async with EventLog(store, FLEET).follow() as entries:
                await anext(entries)


async def test_a_fleet_works_under_its_users(server: EtcdServer, folder: Path, root: Store) -> None:
    """Controller, nodes and operator, each with its own certificate: joined, acted, projected."""
    await root.txn((), (Delete(*KEYS.everything),))
    settings = Settings(controller="c0", fleet=FLEET)
    async with (
        opened(server, folder, "controller") as deciding,
        opened(server, folder, "node-n0") as serving,
        opened(server, folder, "operator") as operating,
        anyio.create_task_group() as group,
    ):
        log = EventLog(serving, FLEET)
        session = await log.join(N0, b"", 30)
        group.start_soon(
            lambda: lead_again_and_again(EventLog(deciding, FLEET), settings, wait=True)
        )
        with anyio.fail_after(20):
            await session.submit(e.NodeJoined(node=N0, incarnation=ONE, host="h"), 1)
            await session.put_vitals(b"")
            async with log.watch_orders(N0) as orders:
                while not orders.items:
                    await anext(orders)
            await EventLog(operating, FLEET).submit_operator("ann", e.DecisionsPaused(by="ann"), 2)
            async with EventLog(operating, FLEET).follow() as entries:
                kinds = set[str]()
                while "DecisionsPaused" not in kinds:
                    kinds.add(type((await anext(entries)).event).__name__)
            await session.leave()
        group.cancel_scope.cancel()

    assert {"LeaderElected", "NodeJoined", "DecisionsPaused"} <= kinds


async def test_a_node_cannot_join_under_anothers_name(server: EtcdServer, folder: Path) -> None:
    """Its certificate names it: whatever its agent was told, the store refuses the other name."""
    async with opened(server, folder, "node-n1") as store:
        with pytest.raises(PermissionDenied):
            await EventLog(store, FLEET).join(N0, b"", 30)


async def test_users_may_be_added_while_a_fleet_writes(
    server: EtcdServer, folder: Path, root: Store
) -> None:
    """A change of users makes etcd refuse what is under way: it is repeated, and nobody ends."""
    await root.txn((), (Delete(*KEYS.everything),))
    admin = await open_store(server.url, files(folder, ROOT))
    rights = Rights(admin)
    refused: list[str] = []

    async def change(scope: anyio.CancelScope) -> None:
        """Change rights until somebody's write met that."""
        await rights.add_role("extra")
        number = 0
        while not refused:
            number += 1
            await rights.set_rights("extra", [(b"elsewhere/%d" % number, b"", int(Level.READ))])
        scope.cancel()

    async def write(store: Store, key: bytes) -> None:
        while True:
            try:
                await store.txn((), (Put(key, b""),))
            except StoreUnavailable as error:
                refused.append(str(error))

    async with opened(server, folder, "node-n0") as store:
        session = await EventLog(store, FLEET).join(N0, b"", 30)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(write, store, KEYS.vitals(N0, Incarnation(number)))
                group.start_soon(change, group.cancel_scope)
                while True:
                    await session.submit(e.LeaseExpired(node=N0, incarnation=ONE), 1)
        stated = session.counter
        assert await session.submit(e.LeaseExpired(node=N0, incarnation=ONE), 2) > stated
        await session.leave()
    await admin.aclose()
    print(f"{stated} facts meanwhile; refused: {refused[0]}")
    assert "changed its users" in refused[0]


async def test_a_role_has_the_rights_of_the_table_and_no_others(
    server: EtcdServer, folder: Path
) -> None:
    """Doing it again changes nothing; a right that was added by hand is taken away."""
    if CLIENT != "thin":
        pytest.skip("users are made by our own client, whichever speaks otherwise")
    users = users_of(FLEET, [N0, N1])
    store = await open_store(server.url, files(folder, ROOT))
    rights = Rights(store)
    before = {user.name: await rights.rights_of(user.name) for user in users}
    (extra,) = (
        User(user.name, user.file, (*user.grants, Grant(b"a", b"", Level.READWRITE, "by hand")))
        for user in users
        if user.file == "operator"
    )
    await grant_all(store, [extra])
    added = await rights.rights_of(extra.name)
    await grant_all(store, users)
    after = {user.name: await rights.rights_of(user.name) for user in users}
    await store.aclose()

    assert (b"a", b"", int(Level.READWRITE)) in added
    assert after == before
    for user in users:
        assert set(after[user.name]) == {(g.start, g.end, int(g.level)) for g in user.grants}


async def test_only_an_administrator_makes_users(server: EtcdServer, folder: Path) -> None:
    """A controller's certificate does not do."""
    store = await open_store(server.url, files(folder, "controller"))
    try:
        with pytest.raises(PermissionDenied):
            await grant_all(store, users_of(FLEET))
        with pytest.raises(PermissionDenied):
            await store.reclaim()
    finally:
        await store.aclose()


async def test_a_certificate_of_another_authority_is_turned_away(
    server: EtcdServer, folder: Path, tmp_path: Path
) -> None:
    """A controller's name, signed by somebody else, is nobody's."""
    Authority(tmp_path, days=2).make(users_of(FLEET))
    forged = TlsFiles(
        ca=str(folder / "ca.pem"),
        cert=str(tmp_path / "controller.pem"),
        key=str(tmp_path / "controller.key"),
    )
    with anyio.fail_after(9), pytest.raises((StoreUnavailable, PermissionDenied)):
        await open_store(server.url, forged, client=CLIENT)


async def test_an_etcd_that_does_not_ask_gets_no_users(
    server: EtcdServer, folder: Path, etcd: EtcdServer
) -> None:
    """Enabling users there would lock everybody out: refused before anything is changed."""
    with pytest.raises(BadConfig, match="must be https"):
        await check_asks(etcd.url, "")
    await check_asks(server.url, str(folder / "ca.pem"))
