"""Changeover's part of the comparison: the training process of every node."""

from rivals.job import Notes, built, loss_of
from torch.nn.parallel import DistributedDataParallel

import worker


def main() -> None:
    run = worker.join()
    model, optimizer = built()
    run.register(model=model, optimizer=optimizer)
    ddp = DistributedDataParallel(model, process_group=run.group("dp"))
    notes = Notes(int(str(run.node).lstrip("n")))
    for step in run.steps(1_000_000):
        loss_of(ddp, step.index, run.coordinate("dp")).backward()
        if step.vote():
            optimizer.step()
        optimizer.zero_grad()
        if step.passed and not step.rehearsal:
            notes.note("step", step=step.index)


if __name__ == "__main__":
    main()
