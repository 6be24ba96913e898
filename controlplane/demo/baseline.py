"""What a restart costs on this machine: `torchrun`, the same model, one worker killed.

What belongs here: running it, killing one rank, and reading the ranks' own lines. The model and the
data are those of the demo; what differs is how ranks come together.

Theory of operation. Every rank notes each step with its time. A rank is killed once the run is
past a checkpoint and in its stride; `torchrun` ends the others, starts all anew, and they resume
from the checkpoint. `restart_ms` is from the kill to the first step that every new rank has
committed. Every worker is tethered: torchrun gives each a session of its own, and would leave them
behind if it was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import msgspec
from msgspec import Struct

from controlplane.demo.options import TRAINING, DemoOptions
from controlplane.demo.outcome import BaselineOutcome
from controlplane.demo.shape import model_arguments
from controlplane.etcd_server import free_port
from controlplane.localfleet.children import Child, tethered
from controlplane.localfleet.fleet import FleetError, example
from statemachine.vitals import median

STRIDE_STEPS: Final = 50
"""Steps that every rank takes before one is killed; more than one checkpoint, and past warm-up."""

PACE_STEPS: Final = 30
"""Steps from which the pace of this machine is read."""

START_S: Final = 90.0
RESTART_S: Final = 90.0

_LOOK_S: Final = 0.02
_WARM_STEPS: Final = 10
_STEPS: Final = 1_000_000
_GRACE_S: Final = 2.0


class _Line(Struct, frozen=True, kw_only=True):
    """One line of the ranks' common file; times in seconds since 1970."""

    event: str
    at_s: float
    rank: int
    pid: int
    index: int = -1
    step: int = -1
    step_ms: float = 0.0


_LINE: Final = msgspec.json.Decoder(_Line)


class Pace(Struct, frozen=True, kw_only=True):
    """How fast this machine is: an ordinary step, and from the start to the first step of all."""

    step_ms: float
    start_s: float


async def restart_cost(options: DemoOptions, folder: Path) -> tuple[BaselineOutcome, Pace]:
    """Run the model under torchrun, kill one rank, and measure.

    Raises:
        FleetError: torchrun did not start, or did not come back.
    """
    began_s = time.time()
    async with _torchrun(options, folder) as (child, path):
        before = await _until_stride(child, path, options.nodes, STRIDE_STEPS)
        victim = next(line.pid for line in before if line.rank == options.nodes - 1)
        killed_at_s = time.time()
        os.kill(victim, signal.SIGKILL)
        after = await _until_back(child, path, options.nodes, killed_at_s)
    return measured(before, after, killed_at_s, options.nodes), pace_of(before, began_s)


async def measured_pace(options: DemoOptions, folder: Path) -> Pace:
    """Run a few steps of the model under torchrun, without killing anybody.

    Raises:
        FleetError: torchrun did not start.
    """
    began_s = time.time()
    async with _torchrun(options, folder) as (child, path):
        return pace_of(await _until_stride(child, path, options.nodes, PACE_STEPS), began_s)


@asynccontextmanager
async def _torchrun(options: DemoOptions, folder: Path) -> AsyncIterator[tuple[Child, Path]]:
    """A training under torchrun, and the file that its ranks write; both end with the block."""
    folder.mkdir()  # noqa: ASYNC240 - a local folder
    path = folder / "ranks.jsonl"
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    command = _command(options, folder, path)
    child = Child.started("torchrun", command, folder / "torchrun.log", environment)
    try:
        yield child, path
    finally:
        with anyio.CancelScope(shield=True):
            await child.stop(_GRACE_S)
            _remove_checkpoints(folder)


def _remove_checkpoints(folder: Path) -> None:
    for path in folder.glob("checkpoint*"):
        with suppress(OSError):
            path.unlink()


def _command(options: DemoOptions, folder: Path, path: Path) -> list[str]:
    """torchrun, and under it one tethered worker per rank."""
    script = example("train_plain.py")
    worker = [sys.executable, str(script), "--steps", str(_STEPS), "--seed", str(options.seed)]
    worker += ["--checkpoint", str(folder / "checkpoint.pt"), "--events", str(path)]
    if options.data is not None:
        worker += ["--data", str(options.data.resolve())]
    worker += [*TRAINING, *model_arguments(options.axes), *options.training]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1"]
    command += ["--nproc-per-node", str(options.nodes), "--max-restarts", "3", "--no-python"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    return [*command, *tethered(0, worker)]


async def _until_stride(child: Child, path: Path, ranks: int, steps: int) -> list[_Line]:
    def in_stride(lines: Sequence[_Line]) -> bool:
        last = _last_steps(lines)
        return len(last) == ranks and min(last.values()) >= steps

    return await _until(child, path, in_stride, START_S, "get into its stride")


async def _until_back(child: Child, path: Path, ranks: int, killed_at_s: float) -> list[_Line]:
    def back(lines: Sequence[_Line]) -> bool:
        return len(_last_steps(_of_the_new(lines, killed_at_s))) == ranks

    return await _until(child, path, back, RESTART_S, "restart")


async def _until(
    child: Child,
    path: Path,
    holds: Callable[[Sequence[_Line]], bool],
    timeout_s: float,
    what: str,
) -> list[_Line]:
    with anyio.move_on_after(timeout_s):
        while True:
            lines = read_lines(path)
            if holds(lines):
                return lines
            if child.exit_code is not None:
                break
            await anyio.sleep(_LOOK_S)
    ended = "" if child.exit_code is None else f"; it ended with code {child.exit_code}"
    raise FleetError(
        f"torchrun did not {what} within {timeout_s:.0f} s{ended}: {child.last_words()} "
        f"(log: {child.log_path})"
    )


def read_lines(path: Path) -> list[_Line]:
    """The lines that ranks have written so far; a line that a kill cut short is left out."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = []
    for line in raw.split(b"\n"):
        with suppress(msgspec.MsgspecError):
            lines.append(_LINE.decode(line))
    return lines


def _last_steps(lines: Sequence[_Line]) -> dict[int, int]:
    return {line.rank: line.index for line in lines if line.event == "step"}


def _of_the_new(lines: Sequence[_Line], killed_at_s: float) -> list[_Line]:
    """Lines of processes that were started after the kill."""
    old = {line.pid for line in lines if line.event == "started" and line.at_s <= killed_at_s}
    return [line for line in lines if line.pid not in old]


def pace_of(lines: Sequence[_Line], began_s: float) -> Pace:
    """The median step of all ranks, once they were warm, and how long the first took to come."""
    return Pace(
        step_ms=median([line.step_ms for line in lines if line.index >= _WARM_STEPS]),
        start_s=max(line.at_s for line in lines if line.index == 0) - began_s,
    )


def measured(
    before: Sequence[_Line], after: Sequence[_Line], killed_at_s: float, ranks: int
) -> BaselineOutcome:
    """What the lines before and after a kill say of the restart."""
    new = _of_the_new(after, killed_at_s)
    old = [line for line in after if line not in new]
    firsts: dict[int, float] = {}
    for line in new:
        if line.event == "step":
            firsts.setdefault(line.rank, line.at_s)
    assert len(firsts) == ranks, "every rank has come back"
    resumed = min(line.step for line in new if line.event == "resumed")
    committed = max(line.index for line in old)
    return BaselineOutcome(
        restart_ms=round((max(firsts.values()) - killed_at_s) * 1000, 1),
        step_ms=round(pace_of(before, killed_at_s).step_ms, 2),
        repeated_steps=max(0, committed + 1 - resumed),
    )
