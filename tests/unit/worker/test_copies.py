"""Copies in memory: taken between steps, kept twice, fetched by a buddy, found again by anybody."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from statemachine.ids import Incarnation, NodeId, Slot
from statemachine.layout import Layout
from statemachine.topology import Holder
from worker.copies import Copies
from worker.state import TrainingState
from worker.state.checkpoints import CheckpointDamaged
from worker.transfer import ImageHeader, StateImage, TransferFailed

LAYOUT = Layout.of({"pp": 3, "dp": 1})


def holder(slot: int) -> Holder:
    """The node in a slot."""
    return Holder(
        slot=Slot(slot),
        node=NodeId(f"n{slot}"),
        incarnation=Incarnation(1),
        host="",
        port=1,
        transfer_port=1,
    )


class Fleet:
    """Three processes that lend to each other without a network."""

    def __init__(self, folder: Path, layout: Layout = LAYOUT) -> None:
        self.folder, self.layout = folder, layout
        self.members = [holder(slot) for slot in range(layout.slot_count)]
        self.states: dict[int, TrainingState] = {}
        self.models: dict[int, nn.Linear] = {}
        self.copies: dict[int, Copies] = {}
        for slot in range(layout.slot_count):
            self.start(slot)

    def start(self, slot: int, memory: str = "") -> Copies:
        """A fresh process in a slot, on the machine with that memory."""
        self.models[slot] = model = nn.Linear(3, 3)
        state = self.states[slot] = TrainingState()
        state.register(model=model)
        self.copies[slot] = Copies(
            self.folder / (memory or f"n{slot}"),
            self.layout,
            2,
            lambda: Slot(slot),
            lambda: state,
            lambda: self.members,
            self.borrow,
        )
        return self.copies[slot]

    def borrow(
        self,
        holders: Sequence[Holder],
        number: int,
        into: Callable[[ImageHeader], StateImage],
    ) -> StateImage:
        """Receive what somebody lends, as a transfer would."""
        (giver,) = holders
        image = self.copies[giver.slot].lend(number)
        if image is None:
            raise TransferFailed(f"{giver.node} lends nothing under {number}")
        try:
            target = into(image.header)
        except Exception as error:
            raise TransferFailed(str(error)) from error
        for view, source in zip(target.tensors, image.tensors, strict=True):
            view.memory[:] = source.memory
        return StateImage(target.tensors, image.meta)

    def step(self, step: int) -> None:
        """Everybody commits a step."""
        for slot, model in self.models.items():
            with torch.no_grad():
                model.weight.fill_(100.0 * slot + step)
            self.copies[slot].after_step(step, self.members)
        for copies in self.copies.values():
            copies.finish()

    def weight(self, slot: int) -> float:
        """What a slot's model holds."""
        return self.models[slot].weight[0, 0].item()


def test_after_the_loss_of_any_one_machine_every_shard_is_there(tmp_path: Path) -> None:
    """Its own holder's copy or the buddy's, of the same step, whichever machine is gone."""
    fleet = Fleet(tmp_path)
    for step in range(8):
        fleet.step(step)
    for lost in range(3):
        for slot in range(3):
            fresh = fleet.start(slot, "new" if slot == lost else "")
            assert fresh.newest() == 7
            assert fresh.steps() == {3, 5, 7}, "the two before are kept"
            fresh.load(7)
            assert fleet.weight(slot) == 100.0 * slot + 7
            expected = f"the memory of n{(slot + 1) % 3}" if slot == lost else "this node's memory"
            assert fresh.source(7) == expected


def test_a_machine_and_its_buddy_take_the_copy_with_them(tmp_path: Path) -> None:
    """Of that shard nothing is left in memory; of the others there is."""
    fleet = Fleet(tmp_path)
    fleet.step(1)
    for slot in (0, 1):
        fleet.start(slot, f"new{slot}")
    assert fleet.copies[0].newest() == -1
    assert fleet.copies[1].newest() == 1, "n2 is the buddy of slot 1"
    assert fleet.copies[2].newest() == 1


def test_what_has_a_replica_is_not_copied(tmp_path: Path) -> None:
    """A replica is the better copy, and costs nothing."""
    fleet = Fleet(tmp_path, Layout.of({"pp": 2, "dp": 2}))
    fleet.step(1)
    assert [copies.newest() for copies in fleet.copies.values()] == [-1] * 4
    assert all(copies.copy_ms == [] for copies in fleet.copies.values())


def test_a_stale_copy_of_ones_own_does_not_hide_a_newer_one(tmp_path: Path) -> None:
    """A node that held a slot long ago asks who has a newer copy of it."""
    fleet = Fleet(tmp_path)
    fleet.step(1)
    own = fleet.copies[0].folder
    kept = {path: path.read_bytes() for path in own.glob("slot-0.*")}
    for step in (3, 5):
        fleet.step(step)
    for path in own.glob("slot-0.*"):
        path.unlink()
    for path, raw in kept.items():
        path.write_bytes(raw)
    assert fleet.start(0).newest() == 5


@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_a_copy_that_is_not_whole_any_more_is_told(tmp_path: Path, harm: str) -> None:
    """The caller hears which, and goes to the disk."""
    fleet = Fleet(tmp_path)
    fleet.step(1)
    fresh = fleet.start(0)
    assert fresh.newest() == 1
    for path in (tmp_path / "n0").glob("slot-0.*"):
        path.unlink() if harm == "gone" else path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointDamaged, match="the copy of step 1 of slot 0"):
        fresh.load(1)


def test_another_cut_of_the_model_finds_nothing(tmp_path: Path) -> None:
    """Copies of a layout with other shards are not taken for one's own."""
    fleet = Fleet(tmp_path)
    fleet.step(1)
    other: Any = Fleet(tmp_path, Layout.of({"pp": 2, "dp": 1}))
    assert other.copies[0].newest() == -1


def test_the_memory_is_given_back_when_the_job_is_over(tmp_path: Path) -> None:
    """Nothing is left in a place that nobody would look at."""
    fleet = Fleet(tmp_path)
    fleet.step(1)
    fleet.copies[0].forget()
    assert not (tmp_path / "n0").exists()


def test_a_buddy_that_is_slow_leaves_a_step_that_every_shard_has(tmp_path: Path) -> None:
    """While one fetch takes as long as two periods, others copy on; what they share is kept."""
    fleet = Fleet(tmp_path)
    fleet.step(1)
    ready, borrow = threading.Event(), fleet.copies[0].borrow

    def slowly(*asked: Any) -> StateImage:
        ready.wait(10.0)
        return borrow(*asked)

    fleet.copies[0].borrow = slowly  # of slot 2, whose buddy it is
    for step in (3, 5):
        for slot in range(3):
            fleet.copies[slot].after_step(step, fleet.members)
        for slot in (1, 2):
            fleet.copies[slot].finish()
    writing = fleet.copies[0]._writing
    assert writing is not None
    writing.join()
    held = []
    for slot, memory in ((0, ""), (1, ""), (2, "lost")):
        fresh = fleet.start(slot, memory)
        fresh.newest()
        held.append(fresh.steps())
    ready.set()

    assert set.intersection(*held) == {1}, held
    assert held[0] == {1, 3, 5}, "its own copies do not wait for its partner's"


def test_copies_of_an_undone_past_are_forgotten(tmp_path: Path) -> None:
    """A run that went back to a step may come to others the next time."""
    fleet = Fleet(tmp_path)
    for step in range(6):
        fleet.step(step)
    for copies in fleet.copies.values():
        copies.forget_after(3)
    assert fleet.start(0).newest() == 3
    assert fleet.start(1, "lost").newest() == 3, "nor does its buddy keep one"
