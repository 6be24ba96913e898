"""torchrun's part: restart all from the last checkpoint."""

import os
from datetime import timedelta
from typing import Any

import torch.distributed as torch_distributed
from rivals.job import Notes, average, built, checkpoint, loss_of, restored

dist: Any = torch_distributed  # whose stubs leave out what every program uses


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    notes = Notes(rank)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    model, optimizer = built()
    step = restored(model, optimizer)
    while True:
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        average(model, world, dist.all_reduce)
        optimizer.step()
        notes.note("step", step=step)
        step += 1
        if rank == 0:
            checkpoint(model, optimizer, step)


if __name__ == "__main__":
    main()
