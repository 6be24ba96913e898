"""Benches for one agent, on the shared etcd or on one that a test may kill."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import open_store
from tests.integration.agent.bench import Bench


@pytest.fixture
async def bench(etcd: EtcdServer, fleet: str, tmp_path: Path) -> AsyncIterator[Bench]:
    """A bench on the shared etcd."""
    async for made in _bench(etcd, fleet, tmp_path):
        yield made


@pytest.fixture
async def own_bench(
    own_etcd: EtcdServer, fleet: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Bench]:
    """A bench on an etcd that may be killed."""
    async for made in _bench(own_etcd, fleet, tmp_path_factory.mktemp("bench")):
        yield made


async def _bench(etcd: EtcdServer, fleet: str, folder: Path) -> AsyncIterator[Bench]:
    store = await open_store(etcd.url)
    made = Bench(etcd, fleet, store, folder)
    try:
        await made.open()
        yield made
    finally:
        for agent in made.agents:
            agent.kill_node()
        await store.aclose()
