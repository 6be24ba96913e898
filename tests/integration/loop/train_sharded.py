"""Data parallel with a sharded optimizer: each rank updates its part of the weights, then all meet.

Every rank holds the moments of its own part alone, so no two ranks hold the same state.
"""

import argparse
import faulthandler
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

import worker

WIDTH = 24


def main() -> None:
    """Train a linear map on numbers that depend on step and rank alone."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--slow-ms", type=float, default=0.0)
    parser.add_argument("--copy", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = worker.join()
    group, size = run.group("dp"), run.size("dp")
    torch.manual_seed(run.seed)
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    part = torch.nn.Parameter(torch.zeros(WIDTH // size, WIDTH))
    optimizer = torch.optim.AdamW([part], lr=1e-2)  # the moments of this rank's rows alone
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.7)
    run.register(model=model, optimizer=optimizer, schedule=schedule)
    if args.copy:
        memory = args.out / "memory" / run.node
        run.checkpoint(args.out / "checkpoints", every=10_000, copy_every=args.copy, memory=memory)
    hurry = args.out / "hurry"
    for step in run.steps(args.steps):
        rank = run.coordinate("dp")
        chance = torch.Generator().manual_seed(step.index * 100 + rank)
        x = torch.randn(8, WIDTH, generator=chance)
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        gradient = model.weight.grad
        assert gradient is not None
        mine = torch.empty_like(part)
        dist.reduce_scatter_tensor(mine, gradient, group=group)
        if args.slow_ms and not hurry.exists():
            time.sleep(args.slow_ms / 1000)
        rows = model.weight.detach().chunk(size)[rank].clone()
        with torch.no_grad():
            part.copy_(rows)
        part.grad = mine / size
        if step.vote():
            optimizer.step()
            schedule.step()
        gathered = torch.empty_like(model.weight)
        dist.all_gather_into_tensor(gathered, part.detach(), group=group)
        if step.passed:
            with torch.no_grad():
                model.weight.copy_(gathered)
        model.zero_grad()
        step.record(loss=loss.item())


if __name__ == "__main__":
    main()
