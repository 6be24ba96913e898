"""One suite, two stores. `world` is a store together with the faults it can be made to suffer.

For the store in memory faults are injected; for etcd they are real: a relay stands between client
and server, and cuts, swallows and delays what passes through it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

import anyio
import pytest
import pytest_asyncio

from controlplane.etcd_binary import EtcdBinary
from controlplane.etcd_server import EtcdServer, free_port
from controlplane.eventlog import CLIENTS, Batch, EventLog, Leadership, open_store
from controlplane.eventlog.items import InboxItem
from controlplane.eventlog.memory import MemoryStore
from controlplane.eventlog.store import Store, TxnResult
from statemachine.codec import sequence
from statemachine.events import LeaseExpired
from statemachine.ids import Incarnation, NodeId, Position

Facts = Callable[[int], LeaseExpired]
Sequencer = Callable[[Leadership, tuple[InboxItem, ...]], Awaitable[Position]]
Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]

TTL_S = 1.0
"""Short lease; etcd counts whole seconds, and looks for expired ones twice a second."""


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
    ]
)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A store and its faults: in memory, then real, spoken to by either client."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    need_client(request.param)
    server = cast("EtcdServer", request.getfixturevalue("etcd"))
    relay = Relay(int(server.url.rsplit(":", 1)[1]))
    await relay.open()
    store = await open_store(f"http://127.0.0.1:{relay.port}", client=request.param)
    yield EtcdWorld(store, relay)
    await store.aclose()
    await relay.close()


@pytest_asyncio.fixture
async def members(etcd_binary: EtcdBinary, tmp_path: Path) -> AsyncIterator[list[EtcdServer]]:
    """Three servers that form one cluster."""
    peers = {f"m{number}": free_port() for number in range(3)}
    servers = [
        EtcdServer(etcd_binary, tmp_path / name, name=name, peers=peers, durable=False)
        for name in peers
    ]
    try:
        for server in servers:
            server.spawn()
        for server in servers:
            await server.wait_healthy()
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
