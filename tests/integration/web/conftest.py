"""A fleet with its page on a real etcd, and a browser where the machine has one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import EventLog, open_store
from controlplane.term import unix_ms
from controlplane.web.serving import Address, serving
from tests.integration.web.chromium import Browser, chromium, find_chromium
from tests.simulation.fleet import Fleet

TOKEN = "a token for this test only"


@asynccontextmanager
async def fleet_on(url: str, name: str) -> AsyncIterator[Fleet]:
    """A fleet of scripted nodes and real controllers over a real etcd."""
    store = await open_store(url)
    try:
        async with anyio.create_task_group() as group:
            fleet = Fleet(EventLog(store, name), group, unix_ms)
            group.start_soon(fleet.follow)
            yield fleet
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


Story = Callable[[Fleet, Browser, Address], Awaitable[None]]
Watch = Callable[[Story], None]


@pytest.fixture
def watch(etcd: EtcdServer, fleet: str, tmp_path: Path) -> Watch:
    """Plays a story in which a browser looks at a fleet's page."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine: install one, or name it in CHANGEOVER_CHROMIUM")

    async def play(story: Story) -> None:
        async with (
            fleet_on(etcd.url, fleet) as playing,
            serving(playing.log, Address("127.0.0.1", 0), token=TOKEN) as address,
            chromium(program, tmp_path / "profile") as browser,
        ):
            await story(playing, browser, address)

    return lambda story: asyncio.run(play(story))
