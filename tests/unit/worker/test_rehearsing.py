"""Who records, when again, and what is told of it; with real groups that nobody else is in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from statemachine import messages as m
from statemachine.events import JobDeclared
from statemachine.ids import Incarnation, JobId, NodeId, Slot
from statemachine.layout import Layout
from statemachine.topology import WarmupCaps
from worker.groups.delta import DeltaBackend
from worker.groups.links import LinkEndpoint
from worker.groups.managed import ManagedGroup
from worker.handover import Handover
from worker.rehearsing import Rehearsing
from worker.roles import Roles
from worker.warmup import recording as recordings
from worker.warmup.stamp import Stamp

SECRET = bytes(32)
JOB = JobId("job")
STAMP = Stamp(code="c", arguments="a", layout="pp=3", versions="torch 9", dtypes="F32")


class Said:
    """The agent's end of the channel: hears what it is told."""

    def __init__(self) -> None:
        self.messages: list[m.FromWorker] = []

    def send(self, message: m.FromWorker) -> None:
        self.messages.append(message)

    def receive(self) -> m.ToWorker:
        raise NotImplementedError

    def close(self) -> None:
        pass


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Any]:
    """A function that makes a process's rehearsals; all of one node, so they share a folder."""
    made: list[tuple[Handover, LinkEndpoint, ManagedGroup]] = []

    def make(stamp: Stamp = STAMP, folder: Path | None = None) -> Rehearsing:
        layout = Layout.of({"pp": 3, "dp": 1})
        endpoint = LinkEndpoint(JOB, NodeId("n0"), Incarnation(1), SECRET, "127.0.0.1")
        handover = Handover(SECRET, JOB, NodeId("n0"), Incarnation(1), "127.0.0.1")
        group = ManagedGroup("pp", 3, DeltaBackend("pp", endpoint, lambda *_: None))
        made.append((handover, endpoint, group))
        return Rehearsing(
            JobDeclared(job=JOB, axes={"pp": 3}),
            "n0.1",
            folder or tmp_path,
            Roles(layout),
            {"pp": group},
            Said(),
            handover,
            WarmupCaps(),
            stamp,
        )

    yield make
    for handover, endpoint, group in made:
        group.close()
        handover.close()
        endpoint.close()


def step(rehearsing: Rehearsing, number: int, slot: int = 0, value: float = 1.0) -> list[Any]:
    """One committed step in a slot, in which the group answers once; what is said of it."""
    rehearsing.step_begins(Slot(slot))
    recorder = rehearsing.groups["pp"].recorder
    if recorder is not None:
        recorder.took("pp", "all_reduce", [torch.full((2,), value)])
    rehearsing.step_ended(number, Slot(slot), committed=True)
    rehearsing.close()
    said = rehearsing.channel
    assert isinstance(said, Said)
    return said.messages


def test_the_first_committed_step_is_recorded_once(process: Any) -> None:
    """It is written and told with its size; then the recorder is out of the way."""
    one = process()
    (told,) = step(one, 5)
    assert (told.role, told.step, told.nbytes, told.tensors) == ("first", 5, 8, 1)
    assert told.took_ms > 0
    assert one.groups["pp"].recorder is None
    assert len(step(one, 6)) == 1
    found = recordings.load(recordings.path_of(one.folder, "first"))
    assert found.name == told.recording


def test_a_step_that_was_thrown_away_is_not_recorded(process: Any) -> None:
    """What it answered is forgotten; the next one counts."""
    one = process()
    one.step_begins(Slot(0))
    one.groups["pp"].recorder.took("pp", "all_reduce", [torch.zeros(9)])
    one.step_ended(5, Slot(0), committed=False)
    (told,) = step(one, 5)
    assert told.nbytes == 8


def test_only_the_first_slot_of_a_role_records(process: Any) -> None:
    """Each role is recorded by one node."""
    one = process()
    assert [one.roles.layout.role_of(slot) for slot in range(3)] == ["first", "middle", "last"]
    four = Layout.of({"pp": 4, "dp": 1})
    one.roles.layout = four
    assert step(one, 0, slot=2) == [], "slot 1 is the first middle one"
    assert len(step(one, 0, slot=3)) == 1


def test_a_fresh_recording_is_found_and_not_made_again(process: Any) -> None:
    """A process that is started again tells the job what there is."""
    (first,) = step(process(), 5)
    (again,) = step(process(), 9, value=2.0)
    assert again.recording == first.recording
    assert again.took_ms == 0.0


@pytest.mark.parametrize("field", Stamp.__struct_fields__)
def test_a_stale_recording_is_made_again(process: Any, field: str) -> None:
    """What other code, arguments, layout, versions or types recorded is replaced, not replayed."""
    (first,) = step(process(), 5)
    one = process(replace(STAMP, **{field: "other"}))
    (again,) = step(one, 9, value=2.0)
    assert again.recording != first.recording
    assert again.step == 9
    assert recordings.load(recordings.path_of(one.folder, "first")).name == again.recording


def test_a_damaged_recording_is_made_again(process: Any) -> None:
    """A file that was cut short counts as none."""
    one = process()
    (first,) = step(one, 5)
    path = recordings.path_of(one.folder, "first")
    path.write_bytes(path.read_bytes()[:-3])
    (again,) = step(process(), 9)
    assert again.took_ms > 0
    assert recordings.load(path).name == again.recording != first.recording


def test_what_cannot_be_written_is_told_and_costs_no_step(process: Any, tmp_path: Path) -> None:
    """The reason is in the message; nobody waits for that recording."""
    (tmp_path / "file").write_text("x")
    (told,) = step(process(folder=tmp_path / "file"), 5)
    assert told.recording == ""
    assert "file" in told.failure
