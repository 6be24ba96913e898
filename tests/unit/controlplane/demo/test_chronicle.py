"""The chronicle: the log as it grows, in its own bytes, and waits that end with a reason."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from controlplane.demo.chronicle import Chronicle, Overdue
from controlplane.eventlog import EventLog
from controlplane.eventlog.leadership import Batch
from controlplane.eventlog.memory import MemoryStore
from controlplane.localfleet.folder import RunFolder
from statemachine import events as e
from statemachine.checksums import with_checksum
from statemachine.codec import encode_recorded
from statemachine.ids import Incarnation, JobId, NodeId, Position


def joined(position: int) -> bytes:
    """A node that joins, as an entry of the log."""
    event = e.NodeJoined(node=NodeId(f"n{position}"), incarnation=Incarnation(1), host="h")
    recorded = e.Recorded(position=Position(position), at_ms=position, writer="w", event=event)
    return encode_recorded(recorded)


@pytest.fixture
async def log() -> AsyncIterator[EventLog]:
    """A log in memory."""
    store = MemoryStore()
    yield EventLog(store, "f")
    await store.aclose()


async def test_entries_are_folded_and_written_in_their_own_bytes(
    log: EventLog, tmp_path: Path
) -> None:
    """What stands in the file is what stands in the store, up to the head."""
    leadership = await log.campaign("c0", 10.0)
    chronicle = Chronicle(log, RunFolder(tmp_path), JobId("j"))
    async with anyio.create_task_group() as group:
        group.start_soon(chronicle.follow_log)
        raws = [joined(1), joined(2)]
        await leadership.append(Batch(after=Position(0), entries=tuple(raws)))
        await chronicle.complete()
        group.cancel_scope.cancel()
    written = (tmp_path / "events.jsonl").read_bytes()
    assert written == b"".join(with_checksum(raw) + b"\n" for raw in raws)
    assert sorted(chronicle.state.nodes) == ["n1", "n2"]
    assert chronicle.found(lambda event: isinstance(event, e.NodeJoined), after=1) is not None
    assert chronicle.found(lambda event: isinstance(event, e.NodeLost)) is None


async def test_a_wait_that_is_overdue_says_what_the_fleet_was_doing(
    log: EventLog, tmp_path: Path
) -> None:
    """What was waited for, how long, and where everybody stands."""
    chronicle = Chronicle(log, RunFolder(tmp_path), JobId("j"))
    with pytest.raises(Overdue, match="for the moon; position 0; step -1; nodes:"):
        await chronicle.until(lambda: False, 0.01, "the moon")


async def test_what_holds_already_is_not_waited_for(log: EventLog, tmp_path: Path) -> None:
    """Not even when the time is up."""
    chronicle = Chronicle(log, RunFolder(tmp_path), JobId("j"))
    await chronicle.until(lambda: True, 0.0, "nothing")
