"""Where scenarios play: over the store in memory on virtual time, or over a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest

from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import EventLog, open_store
from controlplane.eventlog.memory import MemoryStore
from controlplane.term import unix_ms
from tests.simulation.fleet import Fleet
from tests.virtual import run_virtually

EPOCH_MS = 1_800_000_000_000


def virtual_ms() -> int:
    """Unix time of a scenario on virtual time."""
    return EPOCH_MS + round(asyncio.get_running_loop().time() * 1000)


Scenario = Callable[[Fleet], Awaitable[None]]
Play = Callable[[Scenario], None]


async def _play(scenario: Scenario, log: EventLog, clock_ms: Callable[[], int]) -> None:
    """Play a scenario on a fleet; whatever it started ends with it."""
    async with anyio.create_task_group() as group:
        fleet = Fleet(log, group, clock_ms)
        group.start_soon(fleet.follow)
        try:
            await scenario(fleet)
        finally:
            group.cancel_scope.cancel()


def play_on_virtual_time(scenario: Scenario, store: MemoryStore | None = None) -> None:
    """Play a scenario over the store in memory, on virtual time."""

    async def play() -> None:
        await _play(scenario, EventLog(store or MemoryStore(), "virtual"), virtual_ms)

    run_virtually(play)


@pytest.fixture(name="play_virtually")
def _play_virtually() -> Callable[[Scenario, MemoryStore], None]:
    """Plays a scenario over a given store in memory, on virtual time."""
    return play_on_virtual_time


@pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.etcd)])
def play(request: pytest.FixtureRequest) -> Play:
    """Plays a scenario: over memory on virtual time, or over a real etcd in real time."""
    if request.param == "memory":
        return play_on_virtual_time
    really: Play = request.getfixturevalue("play_really")
    return really


@pytest.fixture(name="play_really")
def _play_really(etcd: EtcdServer, fleet: str) -> Play:
    """Plays a scenario over a real etcd in real time."""

    async def play(scenario: Scenario) -> None:
        store = await open_store(etcd.url)
        try:
            await _play(scenario, EventLog(store, fleet), unix_ms)
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()

    return lambda scenario: asyncio.run(play(scenario))
