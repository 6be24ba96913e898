"""The socket of the page: opened early, closed late, and never the reason that a controller ends.

What belongs here: from an address and a token file to a server that runs in a task group.
"""

from __future__ import annotations

import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import uvicorn
from msgspec import Struct

from controlplane import journal
from controlplane.errors import BadConfig
from controlplane.eventlog import EventLog, EventLogError
from controlplane.logstats import Stats, stats_of
from controlplane.metrics import Meters
from controlplane.term import unix_ms
from controlplane.web.app import LOOPBACK, Page, make_app
from controlplane.web.hub import Hub

STATS_EVERY_S: Final = 15.0
"""Period in seconds at which the store is asked how full it is."""

TOKEN_CHARS_MIN: Final = 16

END_S: Final = 3.0
"""How long ending the server in order may take, in seconds."""


class Address(Struct, frozen=True):
    """Where the page listens; port 0 is any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK

    def __str__(self) -> str:
        """``http://host:port``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def address_of(text: str, source: str = "--listen") -> Address:
    """Read ``HOST:PORT`` or ``PORT``.

    Raises:
        BadConfig: it is neither.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdigit() or int(port) > 65535:
        raise BadConfig(source, text, "must be HOST:PORT or PORT, such as 127.0.0.1:8787")
    return Address(host, int(port))


def read_token(path: Path | None) -> str:
    """The token that acting needs; empty without a file.

    Raises:
        BadConfig: it cannot be read, others may read it, or it is too short to be one.
    """
    if path is None:
        return ""
    try:
        mode = path.stat().st_mode
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig("--token-file", str(path), f"cannot be read: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadConfig("--token-file", str(path), "others may read it: chmod 600")
    if len(token) < TOKEN_CHARS_MIN:
        raise BadConfig("--token-file", str(path), f"needs {TOKEN_CHARS_MIN} characters at least")
    return token


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the task group."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Serve:
    """Runs a server until it was ended in order, whatever else is cancelled meanwhile."""

    def __init__(self, server: _Server, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener
        self._scope = anyio.CancelScope(shield=True)
        self._over = anyio.Event()

    async def run(self) -> None:
        """Serve."""
        try:
            with self._scope:
                await self._server.serve([self._listener])
        finally:
            self._over.set()

    async def end(self) -> None:
        """Answer what is under way, close every connection, and return."""
        self._server.should_exit = True
        with anyio.move_on_after(END_S, shield=True):
            await self._over.wait()
        self._scope.cancel()


@asynccontextmanager
async def serving(
    log: EventLog,
    address: Address,
    *,
    token: str = "",
    meters: Meters | None = None,
    hub: Hub | None = None,
) -> AsyncIterator[Address]:
    """Serve the page for as long as the body runs; gives where it listens.

    `hub` is one that follows something else than the log's head.

    Raises:
        BadConfig: the address is taken, or not this machine's.
    """
    meters = meters if meters is not None else Meters()
    listener = _bound(address)
    bound = Address(address.host, listener.getsockname()[1])
    hub = hub if hub is not None else Hub(log)
    _wire(meters, hub)
    hosts = LOOPBACK if address.is_loopback else ("*",)
    app = make_app(Page(log, hub, meters, token), hosts)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(hub.run)
            group.start_soon(_keep_stats, log, meters)
            serve = _Serve(server, listener)
            group.start_soon(serve.run)
            journal.note("page", address=str(bound), acting="with a token" if token else "off")
            try:
                yield bound
            finally:
                hub.let_go()
                await serve.end()
                group.cancel_scope.cancel()
    finally:
        listener.close()  # the server must be done with it


def _wire(meters: Meters, hub: Hub) -> None:
    """Let the metrics see what the page sees."""
    meters.picture = lambda: hub.watcher.picture if hub.watcher is not None else None
    hub.listeners.append(meters.heard)
    hub.beginnings.append(meters.begin)


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address.host, address.port))
    except OSError as error:
        listener.close()
        words = f"cannot be listened on: {error.strerror}"
        raise BadConfig("--listen", f"{address.host}:{address.port}", words) from error
    listener.listen(128)
    return listener


async def _keep_stats(log: EventLog, meters: Meters) -> None:
    """Ask the store now and then how full it is."""
    found: list[Stats] = []
    meters.stats = lambda: found[-1] if found else None
    while True:
        with suppress(EventLogError):
            found[:] = [await stats_of(log, now_ms=unix_ms())]
        await anyio.sleep(STATS_EVERY_S)
