"""What every test may ask for: a real etcd, one for the whole run, and names of one's own."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from controlplane.etcd_binary import EtcdBinary, find_etcd
from controlplane.etcd_server import EtcdServer

settings.register_profile("changeover", deadline=None, print_blob=True)
settings.load_profile("changeover")  # how long an example takes says nothing on a shared machine

_NUMBERS = itertools.count(1)

WITHOUT_FLEET = {"groups", "simulator", "transfer", "test_site.py"}
"""Folders and files of integration tests that start no agents."""

# A shell that starts something in its background has it ignore Ctrl-C, and so do all its children:
# commands that are interrupted by tests have to hear it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together what starts whole fleets: one process runs those tests, one at a time, while
    another runs the rest. A machine with two fleets on it is too slow for either; what starts a few
    processes and no fleet belongs to the rest, so that both take about as long.
    """
    for item in items:
        if "integration" in item.path.parts and not WITHOUT_FLEET & {*item.path.parts}:
            item.add_marker(pytest.mark.xdist_group("fleets"))


@pytest.fixture(scope="session")
def etcd_binary() -> EtcdBinary:
    """The etcd program of this environment; `make env` brings one."""
    return find_etcd()


@pytest.fixture(scope="session")
def etcd(etcd_binary: EtcdBinary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A running etcd that tests share. Leave it running, and keep to a fleet name of your own."""
    server = EtcdServer(etcd_binary, tmp_path_factory.mktemp("etcd"), durable=False)
    server.start_blocking()
    yield server
    server.stop_blocking()


@pytest.fixture
def own_etcd(etcd_binary: EtcdBinary, tmp_path: Path) -> Iterator[EtcdServer]:
    """A running etcd of this test alone, to be killed and frozen at will."""
    server = EtcdServer(etcd_binary, tmp_path, durable=False)
    server.start_blocking()
    yield server
    server.stop_blocking()


@pytest.fixture
def fleet() -> str:
    """A fleet name that no other test of this run uses."""
    return f"t{os.getpid()}-{next(_NUMBERS)}"
