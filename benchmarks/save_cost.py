"""What checkpoints and copies in memory cost the step, beside the rate at which memory is copied.

One process holds a state (weights and the two moments of AdamW). The step pays for a copy of it at
the boundary; its limit is a plain copy of as many bytes, measured in the same run. Writing goes on
beside the steps; what that costs is the time of a step of fixed work while a thread writes, beside
the same step alone. The folders are a disk (--folder) and memory (/dev/shm).
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn

from statemachine.ids import Incarnation, NodeId, Slot
from statemachine.layout import Layout
from statemachine.topology import Holder
from worker.copies import MEMORY, Copies
from worker.state import TrainingState
from worker.state.checkpoints import Checkpoints, Saved

LAYOUT = Layout.of({"pp": 2, "dp": 1})


def state_of(mib: int) -> tuple[TrainingState, nn.Module]:
    """A state of so many MiB, a third of it weights."""
    side = 512
    layers = max(1, (mib << 20) // (12 * side * side))
    model = nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = TrainingState()
    state.register(model=model, optimizer=optimizer)
    return state, model


def step_ms() -> float:
    """A step of fixed work: some matrix products on one core."""
    a = torch.ones(384, 384)
    began_s = time.perf_counter()
    for _ in range(20):
        a = a @ a * 1e-3
    return (time.perf_counter() - began_s) * 1000


def beside(write: Callable[[], None], running: Callable[[], bool], rounds: int) -> list[float]:
    """Times of steps while something is being written, again and again."""
    found: list[float] = []
    while len(found) < rounds:
        if not running():
            write()
        found.append(step_ms())
    return found


def plain_copy_ms(nbytes: int) -> float:
    """Copying as many bytes, the limit."""
    source, target = bytearray(nbytes), bytearray(nbytes)
    began_s = time.perf_counter()
    memoryview(target)[:] = source
    return (time.perf_counter() - began_s) * 1000


def measure(mib: int, rounds: int, folder: Path) -> dict[str, float]:
    """All of it for one size."""
    state, _ = state_of(mib)
    told: list[Saved] = []
    slot = Slot(0)
    kept = Checkpoints(
        folder / "disk",
        LAYOUT,
        every=1,
        keep=2,
        slot=lambda: slot,
        state=lambda: state,
        told=told.append,
    )
    own = Holder(
        slot=slot, node=NodeId("n0"), incarnation=Incarnation(1), host="", port=1, transfer_port=1
    )
    memory = MEMORY / f"changeover-bench-{os.getpid()}"
    copies = Copies(memory, LAYOUT, 1, lambda: slot, lambda: state, lambda: [own], _nobody)
    steps = iter(range(1, 1_000_000))
    alone = [step_ms() for _ in range(rounds)]
    try:
        saving = beside(
            lambda: kept.after_step(next(steps), {slot: own}),
            lambda: kept._writing is not None and kept._writing.is_alive(),
            rounds,
        )
        kept.finish()
        copying = beside(
            lambda: copies.after_step(next(steps), [own]),
            lambda: copies._writing is not None and copies._writing.is_alive(),
            rounds,
        )
        copies.finish()
    finally:
        shutil.rmtree(memory, ignore_errors=True)
    nbytes = state.nbytes
    written = [one for one in told if not one.failure]
    return {
        "mib": nbytes / (1 << 20),
        "plain copy ms": statistics.median(plain_copy_ms(nbytes) for _ in range(5)),
        "copy for the disk ms": statistics.median(one.copy_ms for one in written),
        "written to the disk ms": statistics.median(one.write_ms for one in written),
        "copy for the buddy ms": statistics.median(copies.copy_ms),
        "kept in memory ms": statistics.median(copies.write_ms),
        "step alone ms": statistics.median(alone),
        "step while the disk is written ms": statistics.median(saving),
        "step while memory is written ms": statistics.median(copying),
    }


def _nobody(*_: object) -> NoReturn:
    raise RuntimeError("nobody to fetch from: the other slot is not here")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="steps between two copies")
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for mib in asked.mib:
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            rows.append(measure(mib, asked.rounds, Path(folder)))
    if asked.json:
        print(json.dumps(rows))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores")
    for row in rows:
        limit = row["plain copy ms"]
        print(f"{row['mib']:.0f} MiB of state")
        for name, value in row.items():
            share = f"{value / limit:6.2f}x a plain copy" if name.startswith("copy") else ""
            print(f"  {name:36}{value:10.1f}  {share}")
        paid = row["copy for the buddy ms"] / asked.every
        print(f"  a copy every {asked.every} steps: {paid:.1f} ms per step")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
