"""A process whose checkpoints lie on a disk of its own, which then turns full, or read-only.

Started by test_checkpoints.py in a mount namespace of its own: nobody else sees the disk, and
nothing of it is left. Says in one line of JSON what became of three checkpoints.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from statemachine.ids import Slot
from statemachine.layout import Layout
from worker.state import TrainingState
from worker.state.checkpoints import Checkpoints, Saved

DISK_KIB = 1024
STATE_KIB = 256


def mount(folder: Path, options: str) -> None:
    """Mount a disk in memory, or the same one otherwise."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)


def fill(folder: Path) -> Callable[[], None]:
    """Take all the room but a little; returns how to give it back."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        file.write(bytes((DISK_KIB - STATE_KIB * 3 // 2) << 10))
    return ballast.unlink


def lock(folder: Path) -> Callable[[], None]:
    """Let nothing be written; returns how to let it again."""
    mount(folder, "remount,ro")
    return lambda: mount(folder, f"remount,rw,size={DISK_KIB}k")


def main() -> None:
    """Write a checkpoint, harm the disk, write another, mend the disk, write a third."""
    folder, harm = Path(sys.argv[1]), sys.argv[2]
    mount(folder, f"size={DISK_KIB}k")
    model = nn.Linear(1, (STATE_KIB << 10) // 8, dtype=torch.float32)
    state = TrainingState()
    state.register(model=model)
    told: list[Saved] = []
    kept = Checkpoints(
        folder,
        Layout.of({"pp": 2, "dp": 1}),
        every=1,
        keep=2,
        slot=lambda: Slot(0),
        state=lambda: state,
        told=told.append,
    )

    def save(step: int) -> None:
        kept.after_step(step, {Slot(0): None, Slot(1): None})
        kept.finish()

    save(0)
    first = state.weights_digest()
    mend = {"full": fill, "read-only": lock}[harm](folder)
    with torch.no_grad():
        model.weight.add_(1.0)
    save(1)
    newest, drafts = kept.newest(), [str(path) for path in folder.rglob("*draft*")]
    kept.load(0)
    loaded = state.weights_digest()
    mend()
    save(2)
    said = {
        "failures": [one.failure for one in told],
        "newest": newest,
        "drafts": drafts,
        "same": loaded == first,
        "in the end": kept.newest(),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
