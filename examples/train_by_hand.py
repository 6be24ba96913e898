"""The same run as train_gpt.py without DistributedDataParallel: gradients averaged by hand.

A managed group is a `torch.distributed.ProcessGroup`, so whatever calls collectives on one can use
it. Here all gradients are laid side by side and averaged in one call.
"""

import torch
import torch.distributed as dist
from model import loss_of
from recipe import arguments, parsed, recipe
from torch import Tensor, nn

import worker


def main() -> None:
    """Train for `--steps` steps."""
    args = parsed(arguments("Train with gradients averaged by hand."))
    run = worker.join()
    parts = recipe(args, run.seed)
    model, optimizer, corpus = parts.model, parts.optimizer, parts.corpus
    run.register(model=model, optimizer=optimizer)
    gradients = side_by_side(model)

    for step in run.steps(args.steps):
        x, y = corpus.batch(step.index, run.coordinate("dp"), run.size("dp"))
        loss = loss_of(model(x), y)
        loss.backward()
        dist.all_reduce(gradients, group=run.group("dp"))
        gradients /= run.size("dp")
        if step.vote():
            optimizer.step()
        gradients.zero_()
        step.record(loss=loss.item())


def side_by_side(model: nn.Module) -> Tensor:
    """One flat tensor of zeros of which every parameter's gradient is a part."""
    parameters = list(model.parameters())
    flat = torch.zeros(sum(each.numel() for each in parameters))
    at = 0
    for each in parameters:
        each.grad = flat[at : at + each.numel()].view_as(each)
        at += each.numel()
    return flat


if __name__ == "__main__":
    main()
