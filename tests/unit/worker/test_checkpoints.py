"""Checkpoints of a shard: whole or passed over, foreign ones refused, the last good one stays."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from statemachine.ids import Slot
from statemachine.layout import Layout
from worker.state import TrainingState
from worker.state.checkpoints import (
    MANIFEST,
    CheckpointDamaged,
    CheckpointForeign,
    Checkpoints,
    CheckpointUnusable,
    Saved,
)

LAYOUT = Layout.of({"pp": 3, "dp": 2})
EVERYBODY = {Slot(slot): None for slot in range(6)}


class Loader:
    """A data loader whose position is its state."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """The sample that comes next, and what was drawn."""
        return {"position": self.position, "epoch": (1, "a"), "rest": torch.tensor([self.position])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.position = state["position"]
        assert state["epoch"] == (1, "a")


class Process:
    """A training process with a model, an optimizer, a schedule, a scaler and a data position."""

    def __init__(
        self, folder: Path, slot: int = 0, layout: Layout = LAYOUT, width: int = 4
    ) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(width, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.data, self.width = Loader(), width
        self.state = TrainingState()
        self.state.register(
            model=self.model,
            optimizer=self.optimizer,
            data=self.data,
            schedule=self.schedule,
            scaler=self.scaler,
        )
        self.told: list[Saved] = []
        self.kept = Checkpoints(
            folder,
            layout,
            every=1,
            keep=2,
            slot=lambda: Slot(slot),
            state=lambda: self.state,
            told=self.told.append,
        )

    def step(self) -> float:
        """One step of training."""
        chance = torch.Generator().manual_seed(self.data.position)
        x = torch.randn(5, self.width, generator=chance, dtype=torch.float64)
        self.optimizer.zero_grad()
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.data.position += 5
        return float(loss.item())

    def save(self, step: int) -> Saved:
        """Write the checkpoint of a step, to its end."""
        self.kept.after_step(step, EVERYBODY)
        self.kept.finish()
        return self.told[-1]


def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """Model, buffers, optimizer, schedule, scaler and data position: the same losses, every bit."""
    one = Process(tmp_path)
    for step in range(4):
        one.step()
        assert one.save(step).failure == ""
    expected = [one.step() for _ in range(6)]

    two = Process(tmp_path)
    assert two.kept.newest() == 3
    two.kept.load(3)
    assert [two.step() for _ in range(6)] == expected
    assert two.state.digest() == one.state.digest()
    assert two.optimizer.param_groups[0]["lr"] == one.optimizer.param_groups[0]["lr"]
    assert two.data.position == one.data.position


def test_what_is_written_is_what_the_step_left(tmp_path: Path) -> None:
    """Steps that go on while the file is written do not get into it."""
    one = Process(tmp_path)
    one.step()
    before = one.state.digest()
    one.kept.after_step(0, EVERYBODY)
    for _ in range(3):
        one.step()
    one.kept.finish()
    two = Process(tmp_path)
    two.kept.load(0)
    assert two.state.digest() == before


def test_only_the_first_holder_of_a_shard_writes_it(tmp_path: Path) -> None:
    """One replica writes; if it is absent, the next one does."""
    second = Process(tmp_path, slot=1)
    second.kept.after_step(0, EVERYBODY)
    second.kept.finish()
    assert second.told == []
    second.kept.after_step(1, {Slot(1): None, Slot(3): None, Slot(5): None})
    second.kept.finish()
    assert [said.step for said in second.told] == [1]


def test_the_oldest_go_once_newer_ones_are_whole(tmp_path: Path) -> None:
    """As many as asked for are kept, and no draft is left."""
    one = Process(tmp_path)
    for step in range(5):
        one.step()
        one.save(step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000003", "step-000000004"]
    assert not list(tmp_path.rglob("*draft*"))


def test_any_number_of_replicas_may_go_on_from_it(tmp_path: Path) -> None:
    """Replicas hold the same shard, so their number may change between runs."""
    one = Process(tmp_path, slot=2)
    one.step()
    one.save(0)
    other = Process(tmp_path, slot=1, layout=Layout.of({"pp": 3, "dp": 1}))
    assert other.kept.newest() == 0
    other.kept.load(0)
    assert other.state.digest() == one.state.digest()


def test_a_checkpoint_of_another_cut_is_refused_with_both(tmp_path: Path) -> None:
    """It says which layout it is of, and which this run has."""
    one = Process(tmp_path)
    one.save(0)
    other = Process(tmp_path, layout=Layout.of({"pp": 2, "dp": 2}))
    assert other.kept.newest() == -1
    with pytest.raises(CheckpointForeign, match="is of layout pp=3, 1 ranks per node, not pp=2"):
        other.kept.load(0)


def test_a_checkpoint_of_another_model_is_refused_by_tensor(tmp_path: Path) -> None:
    """The first tensor that does not fit is named with both shapes; nothing was changed."""
    one = Process(tmp_path)
    one.save(0)
    other = Process(tmp_path, width=6)
    before = other.state.digest()
    with pytest.raises(CheckpointForeign, match=r"another model: model.0.weight.*\[8, 4\]"):
        other.kept.load(0)
    assert other.state.digest() == before


@pytest.mark.parametrize("harm", ["no manifest", "half a manifest", "another step"])
def test_what_is_not_whole_is_passed_over_for_the_one_before(tmp_path: Path, harm: str) -> None:
    """The newest whole one counts; the other is refused with its path."""
    one = Process(tmp_path)
    for step in range(2):
        one.step()
        one.save(step)
    path = next(tmp_path.glob("step-000000001/shard-*")) / MANIFEST
    if harm == "no manifest":
        path.unlink()
    elif harm == "half a manifest":
        path.write_text(path.read_text()[:40])
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"step": 7}))
    assert one.kept.newest() == 0
    with pytest.raises(CheckpointDamaged, match="step-000000001"):
        one.kept.load(1)


@pytest.mark.parametrize("harm", ["cut short", "one bit", "gone"])
def test_damaged_tensors_are_found_when_they_are_read(tmp_path: Path, harm: str) -> None:
    """Every byte counts."""
    one = Process(tmp_path)
    one.save(0)
    (file,) = tmp_path.rglob("*.safetensors")
    raw = bytearray(file.read_bytes())
    if harm == "gone":
        file.unlink()
    else:
        raw[-9] ^= 1
        file.write_bytes(raw if harm == "one bit" else raw[:-9])
    with pytest.raises(CheckpointDamaged, match="step-000000000"):
        one.kept.load(0)


def test_a_draft_is_never_taken_for_a_checkpoint(tmp_path: Path) -> None:
    """What a killed writer left does not count, and is in nobody's way."""
    one = Process(tmp_path)
    one.save(0)
    whole = next(tmp_path.glob("step-*/shard-*"))
    draft = tmp_path / "step-000000009" / f".{whole.name}.draft"
    shutil.copytree(whole, draft)
    assert one.kept.newest() == 0
    assert one.save(9).failure == ""
    assert one.kept.newest() == 9


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    """One line with the path, before anything is trained."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointUnusable, match="file: cannot be written: ") as refused:
        Process(tmp_path / "file")
    assert "\n" not in str(refused.value)


NAMESPACE = (
    ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
)
"""How to run a command with disks of its own."""

OWN_DISK = subprocess.run(
    [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
)


@pytest.mark.skipif(OWN_DISK.returncode != 0, reason="no disk can be mounted for a test here")
@pytest.mark.parametrize(
    ("harm", "words"), [("read-only", "Read-only file system"), ("full", "No space left on device")]
)
def test_a_disk_that_turns_bad_costs_no_step_and_no_checkpoint(
    tmp_path: Path, harm: str, words: str
) -> None:
    """A real disk, full or locked: told with the path and the system's word; the checkpoint before
    can be loaded meanwhile, nothing half-written stays, and the next is whole once there is room.
    """
    script = Path(__file__).with_name("small_disk.py")
    done = subprocess.run(
        [*NAMESPACE, sys.executable, str(script), str(tmp_path), harm],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)

    assert said["failures"][0] == said["failures"][2] == "", said
    assert words in said["failures"][1]
    assert "step-000000001" in said["failures"][1]
    assert "\n" not in said["failures"][1]
    assert (said["newest"], said["same"], said["drafts"]) == (0, True, []), said
    assert said["in the end"] == 2


def test_numbers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """Keeping a single one would mean to remove it before the next is whole."""
    with pytest.raises(ValueError, match="the last 1 kept"):
        Checkpoints(
            tmp_path,
            LAYOUT,
            every=1,
            keep=1,
            slot=lambda: Slot(0),
            state=TrainingState,
            told=lambda _: None,
        )
