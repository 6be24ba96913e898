"""A process that sleeps past its lease does nothing as its old self when it wakes.

Real processes that write without a pause, stopped and continued by signals: what one of them had
under way when it was stopped must fail at the store, and it must notice and end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
import pytest_asyncio

from controlplane.eventlog import Batch, EventLog, open_store
from statemachine.codec import encode_recorded
from statemachine.events import LeaseExpired, NodeLost, Recorded
from statemachine.ids import Incarnation, NodeId, Position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from controlplane.etcd_server import EtcdServer
    from controlplane.eventlog import Leadership

pytestmark = [pytest.mark.etcd, pytest.mark.usefixtures("client")]

CLIENT = "thin"
"""Set by the fixture `client` to each in turn: that of the process which sleeps."""

ROOT = Path(__file__).parents[2]
N0 = NodeId("n0")


@pytest_asyncio.fixture
async def log(etcd: EtcdServer, fleet: str) -> AsyncIterator[EventLog]:
    """The log of a fleet that nobody else uses."""
    store = await open_store(etcd.url)
    yield EventLog(store, fleet)
    await store.aclose()


@contextmanager
def child(etcd: EtcdServer, fleet: str, kind: str) -> Iterator[subprocess.Popen[str]]:
    """A process that writes."""
    told = [etcd.url, fleet, kind, CLIENT]
    command = [sys.executable, "-m", "tests.contract.paused_child", *told]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def said(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout is not None
    with anyio.fail_after(20):
        line = await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
    return line.strip()


async def declare_lost(leadership: Leadership) -> None:
    """Record that the first incarnation of n0 is lost, which fences it."""
    position = Position(leadership.head + 1)
    event = NodeLost(node=N0, incarnation=Incarnation(1), reason="asleep", evidence=())
    told = Recorded(position=position, at_ms=1, writer="c1", event=event)
    await leadership.append(
        Batch(
            after=leadership.head,
            entries=(encode_recorded(told),),
            fenced=((N0, Incarnation(1)),),
        )
    )


async def test_a_node_that_slept_past_its_lease_says_nothing_more(
    etcd: EtcdServer, log: EventLog, fleet: str
) -> None:
    """Its lease ended and its successor lives: not one more fact of the old incarnation."""
    with child(etcd, fleet, "node") as process:
        assert await said(process) == "began"
        os.kill(process.pid, signal.SIGSTOP)
        with anyio.fail_after(20):
            async with log.watch_nodes() as nodes:
                while nodes.items or not nodes.is_watching:
                    await anext(nodes)
        leadership = await log.campaign("c1", 60)
        await declare_lost(leadership)
        successor = await log.join(N0, b"", 60)
        before = await log.inbox()
        os.kill(process.pid, signal.SIGCONT)
        assert await said(process) in ("Fenced", "LeaseLost")
        after = await log.inbox()
        await successor.submit(LeaseExpired(node=N0, incarnation=Incarnation(1)), 1)
        await leadership.resign()

    print(f"{len(before)} facts before it slept")
    assert before
    assert after == before
    assert successor.incarnation == 2


async def test_a_controller_that_slept_past_its_term_writes_nothing_more(
    etcd: EtcdServer, log: EventLog, fleet: str
) -> None:
    """Another leads when it wakes: not one more entry of the old term."""
    with child(etcd, fleet, "leader") as process:
        assert await said(process) == "began"
        os.kill(process.pid, signal.SIGSTOP)
        with anyio.fail_after(20):
            leadership = await log.campaign("c1", 60)
        await declare_lost(leadership)
        taken_over_at = leadership.head
        os.kill(process.pid, signal.SIGCONT)
        assert await said(process) == "Deposed"
        entries = [recorded async for recorded in log.read()]
        await leadership.resign()

    print(f"{taken_over_at - 1} entries before it slept")
    assert {entry.writer for entry in entries[: taken_over_at - 1]} == {"c0"}
    assert [entry.writer for entry in entries[taken_over_at - 1 :]] == ["c1"]
