"""Train a small transformer with DistributedDataParallel, and go on when a machine is lost.

An ordinary PyTorch loop; what Changeover needs of it are the lines marked with an arrow. Started by
a node's agent, on training nodes and standbys alike (`make demo` shows both).
"""

from model import loss_of
from recipe import arguments, parsed, recipe
from torch.nn.parallel import DistributedDataParallel

import worker
from worker.loading import timed_call


def main() -> None:
    """Train for `--steps` steps."""
    args = parsed(arguments("Train a small transformer that survives the loss of a machine."))
    run = worker.join()  # <- this node's place in the job, or among its standbys
    parts = recipe(args, run.seed)
    model, optimizer, corpus = parts.model, parts.optimizer, parts.corpus
    run.register(model=model, optimizer=optimizer)  # <- what a joining node must receive
    ddp = DistributedDataParallel(model, process_group=run.group("dp"))  # <- the group is managed

    load = timed_call(corpus.batch)  # optional: tells a late loader from a slow machine

    for step in run.steps(args.steps):  # <- a standby rehearses here; a lost step comes again
        x, y = load(step.index, run.coordinate("dp"), run.size("dp"))
        loss = loss_of(ddp(x), y)
        loss.backward()
        if step.vote():  # <- does every rank have its gradients?
            optimizer.step()
        optimizer.zero_grad()
        step.record(loss=loss.item())


if __name__ == "__main__":
    main()
