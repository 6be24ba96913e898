"""How long an idle controller takes from a node's fact to the key that follows from it.

Printed for both stores in real time (`pytest -rP`); the bound is loose: the machine is shared. The
bar is the store: one durable write by the node, one by the controller, two watches.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING

import pytest

from controlplane.eventlog import EventLog, open_store
from controlplane.eventlog.memory import MemoryStore
from controlplane.term import Term
from statemachine import events as e
from statemachine.ids import JobId, NodeId
from statemachine.topology import decode_orders

if TYPE_CHECKING:
    from controlplane.etcd_server import EtcdServer

ROUNDS = 30
BOUND_MS = 250.0


async def measure_ms(log: EventLog) -> list[float]:
    """Let nodes become ready one after the other; for each, the time until its orders say so."""
    leadership = await log.campaign("c0", 5.0)
    term = Term(log, leadership)
    running = asyncio.create_task(term.run())
    await term.leading.wait()
    took_ms = [await one_ms(log, NodeId(f"n{number}")) for number in range(ROUNDS)]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await leadership.resign()
    return took_ms


async def one_ms(log: EventLog, node: NodeId) -> float:
    """Join a node, then time its fact from statement to consequence."""
    session = await log.join(node, b"{}", 30.0)
    one = session.incarnation
    async with log.watch_orders(node) as view:
        await session.submit(e.NodeJoined(node=node, incarnation=one, host="h"), 1)
        while "joining" not in [decode_orders(item.value).state for item in view.items.values()]:
            await anext(view)
        began_at = time.perf_counter()
        ready = e.WorkerReady(
            node=node,
            incarnation=one,
            job=JobId("job"),
            host="127.0.0.1",
            port=1,
            transfer_port=2,
            pid=3,
            digest="d",
        )
        await session.submit(ready, 1)
        while "spare" not in [decode_orders(item.value).state for item in view.items.values()]:
            await anext(view)
        return (time.perf_counter() - began_at) * 1000


def report(store: str, took_ms: list[float]) -> None:
    """Print what was measured, and hold it to the bound."""
    took_ms.sort()
    p50, p90 = statistics.median(took_ms), took_ms[int(len(took_ms) * 0.9)]
    print(f"{store}: fact stated -> consequence seen: p50 {p50:.2f} ms, p90 {p90:.2f} ms")
    assert p50 < BOUND_MS, "an idle controller must answer within a few round trips"


async def test_a_fact_has_its_consequence_at_once_in_memory(fleet: str) -> None:
    """No pause and no debounce anywhere on the way."""
    report("memory", await measure_ms(EventLog(MemoryStore(), fleet)))


@pytest.mark.etcd
async def test_a_fact_has_its_consequence_at_once_on_etcd(etcd: EtcdServer, fleet: str) -> None:
    """The same over real sockets and a disk."""
    store = await open_store(etcd.url)
    try:
        report("etcd", await measure_ms(EventLog(store, fleet)))
    finally:
        await store.aclose()
