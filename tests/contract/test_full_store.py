"""A store that fills up: it says so in time, says so when it is full, and comes back by one act."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from controlplane.archiving import archive_log, rescue_log
from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import Batch, EventLog, NoSpace, OutcomeUnknown, Retry, open_store
from controlplane.folding import fold_to_head
from controlplane.logstats import stats_of
from controlplane.verifying import verify_log
from statemachine.codec import encode_recorded
from statemachine.events import NodeJoined, Recorded
from statemachine.ids import Incarnation, NodeId, Position

if TYPE_CHECKING:
    from pathlib import Path

    from controlplane.etcd_binary import EtcdBinary
    from controlplane.eventlog import Leadership

pytestmark = [pytest.mark.etcd, pytest.mark.usefixtures("client")]

CLIENT = "thin"
"""Set by the fixture `client` to each in turn."""

QUOTA_BYTES = 6 * 1024 * 1024


async def append(leadership: Leadership) -> None:
    """Append one entry of 50 KiB."""
    position = Position(leadership.head + 1)
    node = NodeId(f"n{position % 5}")
    joined = NodeJoined(node=node, incarnation=Incarnation(position), host="h" * 50_000)
    entry = encode_recorded(Recorded(position=position, at_ms=1, writer=node, event=joined))
    batch = Batch(after=leadership.head, entries=(entry,))
    while True:
        try:
            await leadership.append(batch)
            return
        except (Retry, OutcomeUnknown):
            await anyio.sleep(0.05)


async def fill(log: EventLog, leadership: Leadership, alarms: list[int]) -> None:
    """Append until the store refuses; note after which entries there was an alarm."""
    while True:
        await append(leadership)
        stats = await stats_of(log, now_ms=1, quota_bytes=QUOTA_BYTES)
        if stats.alarm:
            alarms.append(leadership.head)


async def test_a_full_store_comes_back(etcd_binary: EtcdBinary, tmp_path: Path) -> None:
    """The alarm comes before the end; then one act makes room and loses nothing."""
    folder = tmp_path / "archive"
    server = EtcdServer(etcd_binary, tmp_path / "etcd", quota_bytes=QUOTA_BYTES, durable=False)
    async with server:
        store = await open_store(server.url, client=CLIENT)
        log = EventLog(store, "f0")
        leadership = await log.campaign("c0", 120)
        alarms: list[int] = []
        with anyio.fail_after(30), pytest.raises(NoSpace, match="database space exceeded"):
            await fill(log, leadership, alarms)
        full_at = leadership.head
        with pytest.raises(NoSpace):
            await store.grant(5)
        with pytest.raises(NoSpace):
            await archive_log(log, folder, now_ms=1, keep=3)

        done = await rescue_log(log, folder, now_ms=2, keep=3)

        await store.revoke(await store.grant(5))
        await leadership.refresh_head()
        for _ in range(20):
            await append(leadership)
        stats = await stats_of(log, now_ms=1, quota_bytes=QUOTA_BYTES)
        found = await verify_log(log, folder)
        folded = await fold_to_head(log)
        await store.aclose()

    print(f"alarm at entry {alarms[0]}, full at {full_at}; {done}; now {stats.quota_share:.0%}")
    assert 0 < alarms[0] < full_at
    assert done.entries == full_at - 3
    assert (found.first, found.last) == (1, full_at + 20)
    assert folded.image.state.position == full_at + 20
    assert stats.alarm == ""


async def test_a_rescue_that_was_cut_off_is_taken_up(
    etcd_binary: EtcdBinary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries gone, mark not moved: the next run finds the segments and goes on."""
    folder = tmp_path / "archive"
    async with EtcdServer(etcd_binary, tmp_path / "etcd", durable=False) as server:
        store = await open_store(server.url, client=CLIENT)
        log = EventLog(store, "f0")
        leadership = await log.campaign("c0", 120)
        for _ in range(10):
            await append(leadership)

        async def cut(*_: object) -> None:
            raise RuntimeError("power cut")

        monkeypatch.setattr(type(store), "reclaim", cut)
        with pytest.raises(RuntimeError, match="power cut"):
            await rescue_log(log, folder, now_ms=1, keep=3)
        monkeypatch.undo()
        assert await log.oldest() == 1

        again = await rescue_log(log, folder, now_ms=2, keep=3)

        assert (again.last, await log.oldest()) == (7, 8)
        assert (await verify_log(log, folder)).last == 10
        await store.aclose()
