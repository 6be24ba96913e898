"""A tiny training loop in ordinary PyTorch: what the loop's tests run as each node's process."""

import argparse
import faulthandler
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import worker
from worker.faultpoints import reach
from worker.groups.port import Cause, CauseKind
from worker.phases import phase

PLAIN_RATE = 0.01


def network(width: int) -> nn.Module:
    """What is trained."""
    return nn.Sequential(
        nn.Linear(16, width), nn.LayerNorm(width), nn.Dropout(0.1), nn.Linear(width, 1)
    )


def loss_of(model: nn.Module, step: int, part: int) -> torch.Tensor:
    """The loss on one part of one step's batch."""
    chance = torch.Generator().manual_seed(step * 1000 + part)
    x = torch.randn(32, 16, generator=chance)
    found: torch.Tensor = (model(x).squeeze(-1) - x.sum(-1)).square().mean()
    return found


class Checkpoints:
    """The simplest checkpoints that a script may have: a file each, whole or not there."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._folder, self._model, self._optimizer = folder, model, optimizer

    def save(self, step: int) -> None:
        """Write what a step's update made."""
        draft = self._folder / f"{step}.draft"
        torch.save([self._model.state_dict(), self._optimizer.state_dict()], draft)
        draft.replace(self._folder / f"{step}.checkpoint")

    def newest(self) -> int:
        """The last step that was saved."""
        return max((int(path.stem) for path in self._folder.glob("*.checkpoint")), default=-1)

    def load(self, step: int) -> None:
        """Put it back."""
        path = self._folder / f"{step}.checkpoint"
        model, optimizer = torch.load(path, weights_only=True)  # noqa: TID251 - of its own making
        self._model.load_state_dict(model)
        self._optimizer.load_state_dict(optimizer)


def main() -> None:
    """Train a small network on numbers that depend on the step and the data part alone."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--slow-ms", type=float, default=0.0)
    parser.add_argument("--plain", action="store_true", help="an optimizer that heeds scale")
    parser.add_argument("--keep", type=int, default=0, help="steps between checkpoints")
    parser.add_argument("--groups", help="what the groups have inside")
    parser.add_argument("--evaluate-at", type=int, default=-1, help="the step before which it does")
    parser.add_argument("--evaluate-s", type=float, default=0.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = worker.join(groups=args.groups)
    signal.signal(
        signal.SIGUSR2,
        lambda *_: run.group("dp").break_off(Cause(CauseKind.ABORTED, None, "by the test")),
    )
    torch.manual_seed(run.seed)
    model = network(args.width)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if args.plain:
        optimizer = torch.optim.SGD(model.parameters(), lr=PLAIN_RATE)
    optimizer.register_step_pre_hook(lambda *_: reach("optimizer.begin"))
    optimizer.register_step_post_hook(lambda *_: reach("optimizer.end"))
    run.register(model=model, optimizer=optimizer)
    ddp = DistributedDataParallel(model, process_group=run.group("dp"))
    saved = Checkpoints(args.out, model, optimizer)
    if args.keep:
        run.resume_with(saved.newest, saved.load)
    save = run.outside(saved.save)
    hurry = args.out / "hurry"
    for step in run.steps(args.steps):
        if step.index == args.evaluate_at:
            with phase("evaluation"):
                time.sleep(args.evaluate_s)
        loss = loss_of(ddp, step.index, run.coordinate("dp"))
        loss.backward()
        if args.slow_ms and not hurry.exists():
            time.sleep(args.slow_ms / 1000)
        if step.vote():
            optimizer.step()
            if args.keep and run.coordinate("dp") == 0 and (step.index + 1) % args.keep == 0:
                save(step.index)
        optimizer.zero_grad()
        step.record(loss=loss.item())
    write = run.outside((args.out / f"{run.node}.final").write_text)
    write(str(run.coordinate("dp")))
    (args.out / f"{run.node}.left").touch()


if __name__ == "__main__":
    main()
