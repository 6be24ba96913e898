"""A training loop with everything that makes a run the same run, for the tests of its sources.

Mixed precision with a gradient scaler that skips steps, a schedule of the learning rate, data in
shuffled order with a position to the sample, draws from the generators of torch, numpy and Python,
a moving average of the weights, and an odd assortment of other values. With --own each rank has
some of that for itself, so that no rank is a replica of another.
"""

import argparse
import faulthandler
import hashlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import worker

SAMPLES, BATCH, WIDTH = 96, 4, 16


class Samples:
    """Shuffled samples, anew in each pass, dealt to the parts of a batch; it knows its place."""

    def __init__(self, seed: int, parts: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._parts = parts
        self._order = torch.randperm(SAMPLES, generator=self._generator)
        self._position = self._passes = 0

    def next(self, part: int) -> Tensor:
        """The numbers of the next samples for one part."""
        if self._position + BATCH * self._parts > SAMPLES:
            self._order = torch.randperm(SAMPLES, generator=self._generator)
            self._position, self._passes = 0, self._passes + 1
        first = self._position + BATCH * part
        self._position += BATCH * self._parts
        return self._order[first : first + BATCH]

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        return {
            "generator": self._generator.get_state(),
            "order": self._order,
            "position": self._position,
            "passes": self._passes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand there."""
        self._generator.set_state(state["generator"])
        self._order = state["order"]
        self._position, self._passes = state["position"], state["passes"]


class Extra:
    """What a user may keep beside: registered by its attribute `state`."""

    def __init__(self, model: nn.Module) -> None:
        self.state: dict[str, Any] = {
            "average": [parameter.detach().clone() for parameter in model.parameters()],
            "skipped": [],
            "last": (0, 0.0),
            "seen": {0: "nothing"},
            "mark": b"\x00\xff",
            "count": np.zeros(3, dtype=np.int64),
            "own": torch.zeros(2),
        }

    def after(self, step: int, model: nn.Module, scale: float, *, skipped: bool) -> None:
        """A step was committed."""
        for average, parameter in zip(self.state["average"], model.parameters(), strict=True):
            average.mul_(0.9).add_(parameter.detach(), alpha=0.1)
        if skipped:
            self.state["skipped"].append(step)
        self.state["last"] = (step, scale)
        self.state["seen"] = {step: "all"}
        self.state["count"] = self.state["count"] + np.array([1, step, 0])


def digest_of(value: object) -> str:
    """One name for any tree of tensors, arrays, numbers and text, by its own way of reading it."""
    seal = hashlib.sha256()

    def take(one: object) -> None:
        match one:
            case Tensor():
                seal.update(f"{one.dtype}{tuple(one.shape)}".encode())
                seal.update(one.detach().contiguous().numpy().tobytes())
            case np.ndarray():
                seal.update(f"{one.dtype}{one.shape}".encode() + one.tobytes())
            case dict():
                for key in one:
                    take(key)
                    take(one[key])
            case list() | tuple():
                seal.update(f"{type(one).__name__}{len(one)}".encode())
                for each in one:
                    take(each)
            case _:
                seal.update(repr(one).encode())

    take(value)
    return seal.hexdigest()


def noise() -> float:
    """A number that each of the three generators has a part in."""
    return float(torch.rand(()).item() + np.random.random() + random.random())  # noqa: NPY002


class Whole:
    """All that is registered."""

    def __init__(self, run: worker.Run) -> None:
        self.model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, 1)
        )
        rates = torch.optim.lr_scheduler
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        warm, cool = (
            rates.LinearLR(self.optimizer, 0.1, total_iters=20),
            rates.CosineAnnealingLR(self.optimizer, 60),
        )
        self.schedule = rates.SequentialLR(self.optimizer, [warm, cool], milestones=[20])
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)
        self.samples, self.extra = Samples(run.seed, run.size("dp")), Extra(self.model)
        run.register(
            model=self.model,
            optimizer=self.optimizer,
            data=self.samples,
            schedule=self.schedule,
            scaler=self.scaler,
            extra=self.extra,
        )

    def update(self, step: int) -> None:
        """The vote of a step passed."""
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        scale = self.scaler.get_scale()
        self.extra.after(step, self.model, scale, skipped=scale < before)

    def tell(self, path: Path) -> None:
        """Write down what everything has come to."""
        everything = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.samples.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "extra": self.extra.state,
        }
        said = {name: digest_of(value) for name, value in everything.items()}
        said["skipped"] = str(len(self.extra.state["skipped"]))
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(said))
        draft.replace(path)


def main() -> None:
    """Train, and tell."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--slow-ms", type=float, default=0.0)
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--copy", type=int, default=0, metavar="STEPS")
    parser.add_argument("--checkpoint", type=int, default=0, metavar="STEPS")
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = worker.join()
    torch.manual_seed(run.seed)
    table = torch.randn(SAMPLES, WIDTH)
    whole = Whole(run)
    if args.checkpoint:
        memory = args.out / "memory" / run.node if args.copy else None
        folder = args.out / "checkpoints"
        run.checkpoint(folder, every=args.checkpoint, copy_every=args.copy, memory=memory)
    ddp = DistributedDataParallel(whole.model, process_group=run.group("dp"))
    hurry = args.out / "hurry"
    for step in run.steps(args.steps):
        slot = run.coordinate("dp")
        x = table[whole.samples.next(slot)]
        drawn = noise()
        loss = (ddp(x).squeeze(-1) - x.sum(-1) + 0.1 * drawn).square().mean()
        # At some steps the scaled gradients overflow on one rank: all skip the update.
        overflow = float("inf") if step.index % 11 == 5 and slot == 0 else 1.0
        whole.scaler.scale(loss * overflow).backward()
        if args.own:
            own = whole.extra.state["own"]
            whole.extra.state["own"] = own * 0.5 + torch.tensor([float(slot), drawn])
        if args.slow_ms and not hurry.exists():
            time.sleep(args.slow_ms / 1000)
        if step.vote():
            whole.update(step.index)
        whole.optimizer.zero_grad()
        step.record(loss=loss.item() + drawn)
    whole.tell(args.out / f"{run.node}.whole")


if __name__ == "__main__":
    main()
