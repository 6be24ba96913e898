"""The page's server over the store in memory, and a client that speaks HTTP and nothing more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from msgspec import Struct

from controlplane.eventlog import EventLog
from controlplane.eventlog.memory import MemoryStore
from controlplane.term import Term
from controlplane.web.serving import Address, serving

TOKEN = "a token for this test only"


class Answer(Struct):
    """What a server said."""

    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def values(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Client:
    """Asks one server."""

    def __init__(self, address: Address) -> None:
        self.address = address

    async def ask(
        self, path: str, *, method: str = "GET", body: bytes = b"", **headers: str
    ) -> Answer:
        """One request, read to its end."""
        reader, writer = await self.open(path, method=method, body=body, **headers)
        raw = await reader.read()
        writer.close()
        await writer.wait_closed()
        head, _, rest = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        found = dict(line.lower().split(": ", 1) for line in lines)
        if found.get("transfer-encoding") == "chunked":
            rest = _joined(rest)
        return Answer(int(first.split()[1]), found, rest)

    async def open(
        self, path: str, *, method: str = "GET", body: bytes = b"", **headers: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One request, still to be read."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        sent = {"host": f"127.0.0.1:{self.address.port}", "connection": "close"}
        sent |= {"content-length": str(len(body))} | headers
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return reader, writer


def _joined(chunks: bytes) -> bytes:
    found = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        found += rest[: int(size, 16)]
        chunks = rest[int(size, 16) + 2 :]
    return found


class Served(Struct):
    """A fleet that is led, and its page."""

    log: EventLog
    client: Client


@asynccontextmanager
async def serving_fleet(token: str = TOKEN) -> AsyncIterator[Served]:
    """A fleet that is led, in memory, and its page on a free port."""
    log = EventLog(MemoryStore(), "lab")
    async with anyio.create_task_group() as group:
        leadership = await log.campaign("c0", 5.0)
        term = Term(log, leadership)
        group.start_soon(term.run)
        await term.leading.wait()
        async with serving(log, Address("127.0.0.1", 0), token=token) as address:
            client = Client(address)
            with anyio.fail_after(10):
                while (await client.ask("/healthz")).code != 200:  # noqa: ASYNC110 - as a probe
                    await anyio.sleep(0.01)
            yield Served(log, client)
        group.cancel_scope.cancel()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A fleet that is led, and its page; in a task of its own, which also ends it."""
    ready: asyncio.Future[Served] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def serve() -> None:
        async with serving_fleet() as made:
            ready.set_result(made)
            await over.wait()

    task = asyncio.create_task(serve())
    task.add_done_callback(lambda _: ready.cancel() if not ready.done() else None)
    yield await ready
    over.set()
    await task
