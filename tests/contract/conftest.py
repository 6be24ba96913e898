"""One suite, two stores. `world` is a store together with the faults it can be made to suffer.

For the store in memory faults are injected; for etcd they are real: a relay stands between client
and server, and cuts, swallows and delays what passes through it. Either client speaks to etcd, and
each also over TLS, to a server that asks for a certificate and knows users: of those the ordinary
run takes `OVER_TLS`, and `make soak` all.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

import anyio
import pytest
import pytest_asyncio

from controlplane.access import ROOT, Grant, Level, User
from controlplane.certificates import Authority
from controlplane.etcd_binary import EtcdBinary
from controlplane.etcd_server import EtcdServer, free_port
from controlplane.eventlog import CLIENTS, Batch, EventLog, Leadership, open_store
from controlplane.eventlog.etcd_url import TlsFiles
from controlplane.eventlog.items import InboxItem
from controlplane.eventlog.memory import MemoryStore
from controlplane.eventlog.store import Store, TxnResult
from controlplane.granting import grant_all
from statemachine.codec import sequence
from statemachine.events import LeaseExpired
from statemachine.ids import Incarnation, NodeId, Position
from tests.contract import checker

Facts = Callable[[int], LeaseExpired]
Sequencer = Callable[[Leadership, tuple[InboxItem, ...]], Awaitable[Position]]
Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]

TTL_S = 1.0
"""Short lease; etcd counts whole seconds, and looks for expired ones twice a second."""

SECURE = "-tls"
"""How the name of a client ends that speaks over TLS, with a certificate that names its user."""

SPEAKERS = (*CLIENTS, *(client + SECURE for client in CLIENTS))

OVER_TLS = {
    "test_a_deposed_leader_is_stopped_at_the_store",
    "test_a_ghost_is_stopped_at_the_store",
    "test_a_lost_answer_appends_once",
    "test_a_lost_answer_states_once",
    "test_a_node_comes_back_after_its_lease",
    "test_a_read_is_repeated",
    "test_a_watch_misses_nothing",
    "test_a_write_is_tried_once",
    "test_following_survives_broken_watches",
    "test_following_survives_compaction",
    "test_limits_are_kept",
}
"""What the ordinary run also does over TLS."""

ANYTHING = User("anything", "anything", (Grant(b"\0", b"\0", Level.READWRITE, "every key"),))
"""A user who is not root, and may use every key."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most of what is done over TLS to the soak: it was done without already."""
    for item in items:
        said = getattr(item, "callspec", None)
        is_secure = said is not None and any(SECURE in str(v) for v in said.params.values())
        if is_secure and getattr(item, "originalname", "") not in OVER_TLS:
            item.add_marker(pytest.mark.soak)


class World(Protocol):
    """A store, and what can go wrong with it."""

    store: Store

    async def lose_next_answer(self) -> None:
        """Let the next write be applied and its answer be lost."""

    async def cut_watches(self) -> None:
        """Break what carries the open watches."""

    async def lead_astray(self) -> None:
        """Let the store fall silent: nothing is refused, nothing is answered."""

    async def bring_back(self) -> None:
        """End what `lead_astray` began."""


class MemoryWorld:
    """A store in memory and its injected faults."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.store: Store = self.memory

    async def lose_next_answer(self) -> None:
        self.memory.faults.lose_answers = 1

    async def cut_watches(self) -> None:
        self.memory.drop_watches()

    async def lead_astray(self) -> None:
        self.memory.faults.away = True

    async def bring_back(self) -> None:
        self.memory.faults.away = False


class Relay:
    """Stands between a client and etcd on loopback, and misbehaves when told to."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.lose_answer = False
        self.silent = False
        self.delay_s = 0.0
        self.connections = 0
        self._behind = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked = False
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            behind = await asyncio.open_connection("127.0.0.1", self._behind)
            self._writers |= {writer, behind[1]}
            both = (self._pass_on(reader, behind[1], back=False),)
            await asyncio.gather(*both, self._pass_on(behind[0], writer, back=True))
        except (OSError, asyncio.CancelledError):
            return
        finally:
            self._tasks.discard(task)
            for each in (writer, *(w for w in list(self._writers) if w is writer)):
                each.transport.abort()
                self._writers.discard(each)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(65536):
                while self.silent:  # noqa: ASYNC110 - a flag is set from many places
                    await asyncio.sleep(0.005)
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.lose_answer and not back:
                    self._asked = True
                elif self.lose_answer and self._asked:
                    self.lose_answer = self._asked = False
                    self.cut()
                    return
                writer.write(chunk)
                await writer.drain()
        writer.transport.abort()


class EtcdWorld:
    """A real etcd behind a relay."""

    def __init__(self, store: Store, relay: Relay) -> None:
        self.store = store
        self.relay = relay

    async def lose_next_answer(self) -> None:
        write = self.store.txn

        async def losing(*arguments: Any) -> TxnResult:
            setattr(self.store, "txn", write)  # noqa: B010 - the class has it as a method
            self.relay.lose_answer = True
            return await write(*arguments)

        setattr(self.store, "txn", losing)  # noqa: B010

    async def cut_watches(self) -> None:
        self.relay.cut()

    async def lead_astray(self) -> None:
        self.relay.silent = True

    async def bring_back(self) -> None:
        self.relay.silent = False


@pytest_asyncio.fixture(
    params=[
        "memory",
        pytest.param("thin", marks=pytest.mark.etcd),
        pytest.param("etcd3", marks=pytest.mark.etcd),
        pytest.param("thin-tls", marks=pytest.mark.etcd),
        pytest.param("etcd3-tls", marks=pytest.mark.etcd),
    ]
)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A store and its faults: in memory, then real, spoken to by either client."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    name, secure, _ = str(request.param).partition(SECURE)
    need_client(name)
    tls = files_of(request.getfixturevalue("certificates"), ANYTHING.file) if secure else None
    server = cast("EtcdServer", request.getfixturevalue("secure_etcd" if secure else "etcd"))
    relay = Relay(int(server.url.rsplit(":", 1)[1]))
    await relay.open()
    scheme = "https" if secure else "http"
    store = await open_store(f"{scheme}://127.0.0.1:{relay.port}", tls, client=name)
    yield EtcdWorld(store, relay)
    await store.aclose()
    await relay.close()


# --- servers that ask who one is ------------------------------------------------------------------


def files_of(folder: Path, name: str) -> TlsFiles:
    """The certificate of a user."""
    return TlsFiles(
        ca=str(folder / "ca.pem"), cert=str(folder / f"{name}.pem"), key=str(folder / f"{name}.key")
    )


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a server, of root, and of a user who may use every key."""
    folder = tmp_path_factory.mktemp("certificates")
    Authority(folder, days=2).make([ANYTHING])
    return folder


async def ask_who(server: EtcdServer, folder: Path) -> None:
    """Have a server, or its cluster, demand a user that it knows."""
    store = await open_store(server.url, files_of(folder, ROOT))
    try:
        await grant_all(store, [ANYTHING])
    finally:
        await store.aclose()


def ask_who_blocking(server: EtcdServer, folder: Path) -> None:
    """The same from a fixture that is no coroutine, whether or not a loop runs around it."""
    with ThreadPoolExecutor(1) as aside:
        aside.submit(anyio.run, ask_who, server, folder).result()


@pytest.fixture(scope="session")
def secure_etcd(
    etcd_binary: EtcdBinary, tmp_path_factory: pytest.TempPathFactory, certificates: Path
) -> Iterator[EtcdServer]:
    """A running etcd that tests share, which knows its users by their certificates."""
    folder = tmp_path_factory.mktemp("secure-etcd")
    server = EtcdServer(etcd_binary, folder, certificates=certificates, durable=False)
    server.start_blocking()
    try:
        ask_who_blocking(server, certificates)
        yield server
    finally:
        server.stop_blocking()


def certificates_of(request: pytest.FixtureRequest) -> Path | None:
    """The folder of certificates, if a test is about a client that speaks over TLS."""
    said = getattr(request.node, "callspec", None)
    if said is None or SECURE not in str(said.params.get("speaker", "")):
        return None
    return cast("Path", request.getfixturevalue("certificates"))


@pytest.fixture
def shared_etcd(request: pytest.FixtureRequest) -> EtcdServer:
    """The server that tests share, with TLS where the speaker has it."""
    name = "etcd" if certificates_of(request) is None else "secure_etcd"
    return cast("EtcdServer", request.getfixturevalue(name))


@pytest.fixture
def own_etcd(
    request: pytest.FixtureRequest, etcd_binary: EtcdBinary, tmp_path: Path
) -> Iterator[EtcdServer]:
    """A running etcd of this test alone, to be killed and frozen at will."""
    folder = certificates_of(request)
    server = EtcdServer(etcd_binary, tmp_path, certificates=folder, durable=False)
    server.start_blocking()
    try:
        if folder is not None:
            ask_who_blocking(server, folder)
        yield server
    finally:
        server.stop_blocking()


@pytest_asyncio.fixture
async def members(
    request: pytest.FixtureRequest, etcd_binary: EtcdBinary, tmp_path: Path
) -> AsyncIterator[list[EtcdServer]]:
    """Three servers that form one cluster."""
    folder = certificates_of(request)
    peers = {f"m{number}": free_port() for number in range(3)}
    servers = [
        EtcdServer(
            etcd_binary,
            tmp_path / name,
            name=name,
            peers=peers,
            certificates=folder,
            durable=False,
        )
        for name in peers
    ]
    try:
        for server in servers:
            server.spawn()
        for server in servers:
            await server.wait_healthy()
        if folder is not None:
            await ask_who(servers[0], folder)
        yield servers
    finally:
        for server in servers:
            server.kill()


def need_client(client: str) -> None:
    """Skip where the package of a client is not installed."""
    if client == "etcd3":
        pytest.importorskip("etcd3", reason="needs changeover[etcd3] (cslab-etcd3)")


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either client; what the module opens by `CLIENT` is opened by it."""
    name = str(request.param)
    need_client(name)
    monkeypatch.setattr(request.module, "CLIENT", name)
    return name


def hosts_of(*servers: EtcdServer) -> str:
    """Addresses of servers, as a URL names several."""
    return ",".join(server.url.partition("://")[2] for server in servers)


@pytest.fixture(params=SPEAKERS)
def speaker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either client, without and with TLS; what the module opens by `CLIENT` is opened by it, and
    so is what the checker opens.
    """
    name, secure, _ = str(request.param).partition(SECURE)
    need_client(name)
    monkeypatch.setattr(request.module, "CLIENT", name, raising=False)
    if secure:
        own = files_of(request.getfixturevalue("certificates"), ROOT)

        async def open_securely(url: str, tls: TlsFiles | None = None, **more: Any) -> Store:
            return await open_store(url.replace("http://", "https://"), tls or own, **more)

        for module in (request.module, checker):
            monkeypatch.setattr(module, "open_store", open_securely, raising=False)
    return name


@pytest.fixture
def store(world: World) -> Store:
    """The store of this world."""
    return world.store


@pytest.fixture
def log(store: Store, fleet: str) -> EventLog:
    """The log of a fleet that nobody else uses."""
    return EventLog(store, fleet)


@pytest.fixture
def root(fleet: str) -> bytes:
    """A prefix that nobody else uses."""
    return f"/test/{fleet}/".encode()


def fact(number: int) -> LeaseExpired:
    """A small event that carries a number."""
    return LeaseExpired(node=NodeId("n0"), incarnation=Incarnation(number))


@pytest.fixture(name="fact")
def fact_fixture() -> Facts:
    """Makes small events that carry a number."""
    return fact


@pytest.fixture
def sequence_all() -> Sequencer:
    """Gives facts their place in the log, as a controller does."""

    async def run(leadership: Leadership, items: tuple[InboxItem, ...]) -> Position:
        start = leadership.head + 1
        entries = tuple(
            sequence(item.raw, Position(start + number), 7) for number, item in enumerate(items)
        )
        return await leadership.append(
            Batch(after=leadership.head, entries=entries, consumed=items)
        )

    return run


@pytest.fixture
def eventually() -> Eventually:
    """Waits, with a bound, until something holds; asks again every few milliseconds."""

    async def wait(holds: Callable[[], Awaitable[bool]]) -> None:
        with anyio.fail_after(10):
            while not await holds():  # noqa: ASYNC110 - what is waited for has no event
                await anyio.sleep(0.01)

    return wait


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets writes give up after half a second instead of five."""
    monkeypatch.setattr("controlplane.eventlog.settle.WRITE_BUDGET_S", 0.5)
