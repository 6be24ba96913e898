"""A training loop over three axes by hand: what the tests of layouts run as each node's process.

Two pipeline stages hand activations on with send and receive, each stage is cut in two column-wise
with an all_reduce behind it, and replicas average their gradients. Axes of size 1 drop out.
"""

import argparse
import faulthandler
import json
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import worker

WIDTH = 16
BATCH = 8


class Stage(nn.Module):
    """One part of one stage: a slice of the hidden units."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 32 // parts)
        self.down = nn.Linear(32 // parts, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """This part's share of the sum."""
        found: Tensor = self.down(torch.tanh(self.up(x)))
        return found


class Trainer:
    """One rank's part of a step."""

    def __init__(self, run: worker.Run) -> None:
        self.run = run
        sizes = {name: run.size(name) for name in ("dp", "tp", "pp")}
        self.groups = {name: run.group(name) for name, size in sizes.items() if size > 1}
        self.sizes = sizes
        torch.manual_seed(run.seed + 100 * run.coordinate("pp") + run.coordinate("tp"))
        self.model = Stage(sizes["tp"])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def sum_over(self, axis: str, tensor: Tensor) -> Tensor:
        """The sum of a tensor over an axis, in place."""
        if axis in self.groups:
            dist.all_reduce(tensor, group=self.groups[axis])
        return tensor

    def move(self, step: int, tensor: Tensor, *, forward: bool) -> Tensor:
        """Hand a tensor on along the pipeline, or take it over; `step` goes up or down."""
        stage = self.run.coordinate("pp")
        sends = (stage == 0) is forward
        if sends:
            self.groups["pp"].send([tensor.contiguous()], 1 - stage, step).wait()
            return tensor
        self.groups["pp"].recv([tensor], 1 - stage, step).wait()
        return tensor

    def forward(self, x: Tensor) -> Tensor:
        """One stage: the parts' sum, plus what came in."""
        part: Tensor = self.model(x)
        whole = self.sum_over("tp", part.detach().clone())
        return x + part + (whole - part.detach())

    def step(self, index: int) -> float:
        """Gradients of one step; the loss at the last stage, zero elsewhere."""
        chance = torch.Generator().manual_seed(index * 1000 + self.run.coordinate("dp"))
        x = torch.randn(BATCH, WIDTH, generator=chance)
        target = x.flip(0).cumsum(-1)
        first, last = self._place()
        if not first:
            x = self.move(0, torch.empty(BATCH, WIDTH), forward=True)
        x.requires_grad_()
        out = self.forward(x)
        loss = (out - target).square().mean()
        if last:
            loss.backward()
        else:
            self.move(0, out.detach(), forward=True)
            out.backward(self.move(1, torch.empty_like(out), forward=False))
        grad = x.grad
        assert grad is not None
        if not first:
            whole = self.sum_over("tp", grad.clone())
            self.move(1, whole, forward=False)
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            self.sum_over("dp", parameter.grad).div_(self.run.present("dp"))
        return loss.item() if last else 0.0

    def links(self) -> dict[str, list[dict[int, int]]]:
        """Links opened and closed per transition, by group."""
        counted = {name: group.counts for name, group in self.groups.items()}
        return {
            name: [one.opened_by_transition, one.closed_by_transition]
            for name, one in counted.items()
        }

    def _place(self) -> tuple[bool, bool]:
        stage, stages = self.run.coordinate("pp"), self.sizes["pp"]
        return stage == 0, stage == stages - 1


def main() -> None:
    """Train, and leave behind how many links each group opened and closed per transition."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--slow-ms", type=float, default=0.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = worker.join()
    trainer = Trainer(run)
    run.register(model=trainer.model, optimizer=trainer.optimizer)
    hurry = args.out / "hurry"
    for step in run.steps(args.steps):
        loss = trainer.step(step.index)
        if args.slow_ms and not hurry.exists():
            time.sleep(args.slow_ms / 1000)
        if step.vote():
            trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        step.record(loss=loss)
        if step.index == args.steps - 1:  # before the end closes every link
            (args.out / f"{run.node}.links").write_text(json.dumps(trainer.links()))


if __name__ == "__main__":
    main()
