"""Snapshots while a controller leads: in time, of what is in the log, and never its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from controlplane.eventlog import Batch, EventLog
from controlplane.eventlog.memory import MemoryStore
from controlplane.folding import fold_on, fold_to_head, newest_image
from controlplane.snapshotting import Snapshotter
from controlplane.turn import Ledger
from statemachine.codec import encode_recorded
from statemachine.events import NodeJoined, Recorded
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, NodeId, Position

if TYPE_CHECKING:
    from controlplane.eventlog import Leadership

EVERY = 10


class Writer:
    """Appends, folds, and tells the snapshotter, as a reconciler does."""

    def __init__(self, leadership: Leadership, snapshotter: Snapshotter) -> None:
        self._leadership = leadership
        self._snapshotter = snapshotter
        self._state = Ledger().state

    async def append(self, count: int) -> None:
        """Append so many entries in one turn."""
        told = []
        for position in range(self._leadership.head + 1, self._leadership.head + 1 + count):
            node = NodeId(f"n{position % 3}")
            joined = NodeJoined(node=node, incarnation=Incarnation(position), host="h")
            told.append(
                Recorded(
                    position=Position(position),
                    at_ms=position,
                    writer=node,
                    incarnation=Incarnation(position),
                    counter=1,
                    event=joined,
                )
            )
        entries = tuple(map(encode_recorded, told))
        await self._leadership.append(Batch(after=self._leadership.head, entries=entries))
        for recorded in told:
            self._state = evolve(self._state, recorded)
        self._snapshotter.heard(told, self._state)


async def snapshot_at(log: EventLog, position: int) -> None:
    """Wait until the newest snapshot is of a position."""
    with anyio.fail_after(10):
        while [each.position for each in await log.snapshots()][-1:] != [position]:  # noqa: ASYNC110
            await anyio.sleep(0.005)


@pytest.fixture
def store() -> MemoryStore:
    """A store in memory."""
    return MemoryStore()


async def test_a_snapshot_is_written_when_the_log_has_grown(store: MemoryStore) -> None:
    """None before it is due; then one of all that is in the log; the newest two are kept."""
    log = EventLog(store, "f")
    leadership = await log.campaign("c0", 60)
    snapshotter = Snapshotter(log, Ledger(), lambda: 7, every=EVERY)
    writer = Writer(leadership, snapshotter)
    async with anyio.create_task_group() as group:
        group.start_soon(snapshotter.run)
        await writer.append(EVERY - 1)
        await anyio.wait_all_tasks_blocked()
        assert await log.snapshots() == ()
        for number in range(3):
            await writer.append(EVERY)
            await snapshot_at(log, EVERY - 1 + EVERY * (number + 1))
        group.cancel_scope.cancel()

    assert [each.position for each in await log.snapshots()] == [29, 39]
    image = await newest_image(log)
    assert image == await fold_on(log, (await fold_to_head(log)).image)
    assert image.counters["n0"] == (39, 1)


async def test_a_store_that_takes_no_snapshot_does_not_end_the_term(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, and tried again until there is room."""
    monkeypatch.setattr("controlplane.snapshotting.PAUSE_S", 0.01)
    log = EventLog(store, "f")
    leadership = await log.campaign("c0", 60)
    snapshotter = Snapshotter(log, Ledger(), lambda: 7, every=EVERY)
    writer = Writer(leadership, snapshotter)
    async with anyio.create_task_group() as group:
        await writer.append(EVERY)
        store.faults.full = True
        group.start_soon(snapshotter.run)
        with anyio.fail_after(10):
            while "no snapshot could be written" not in caplog.text:  # noqa: ASYNC110
                await anyio.sleep(0.005)
        store.faults.full = False
        await snapshot_at(log, EVERY)
        group.cancel_scope.cancel()


async def test_a_new_term_counts_from_the_snapshot_there_is(store: MemoryStore) -> None:
    """What the last leader wrote is not written again."""
    log = EventLog(store, "f")
    leadership = await log.campaign("c0", 60)
    first = Snapshotter(log, Ledger(), lambda: 7, every=EVERY)
    writer = Writer(leadership, first)
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await writer.append(EVERY)
        await snapshot_at(log, EVERY)
        group.cancel_scope.cancel()
    image = (await fold_to_head(log)).image
    folded = Ledger(state=image.state, counters=image.counters)
    before = (await log.snapshots())[0]
    second = Snapshotter(log, folded, lambda: 8, every=EVERY)
    async with anyio.create_task_group() as group:
        group.start_soon(second.run)
        await anyio.wait_all_tasks_blocked()
        assert await log.snapshots() == (before,)
        group.cancel_scope.cancel()
