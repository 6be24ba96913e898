"""Train a transformer cut in pipeline stages, tensor parts and replicas, and survive losses.

Stages differ: the first has the embeddings, the last the head. So the script hands Changeover a
builder, and a standby can rehearse every stage in turn and take any of them. What Changeover needs
of the loop are the lines marked with an arrow. Started by a node's agent, as in

    make demo ARGS="--layout pp=3,dp=2"

Every micro batch goes forward through all stages, then backward (GPipe); the parts of a layer are
added up in each (Megatron); replicas average their gradients once per step.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from corpus import Corpus
from model import Shape, loss_of
from recipe import arguments, corpus_of, parsed
from stages import Cut, Stage
from torch import Tensor
from torch.optim import AdamW

import worker


@dataclass
class Parts:
    """What one stage is made of."""

    stage: Stage
    forward: Any
    optimizer: AdamW
    gradients: Tensor


class Pipeline:
    """One rank's part of a step."""

    def __init__(self, run: worker.Run, shape: Shape, corpus: Corpus, micro: int) -> None:
        self.run, self.shape, self.corpus, self.micro = run, shape, corpus, micro
        self.sizes = dict(run.layout.axes)

    def group(self, axis: str) -> Any:
        """The group along an axis; None where this rank is alone."""
        return self.run.group(axis) if self.sizes.get(axis, 1) > 1 else None

    def place(self, axis: str) -> int:
        """This rank's place along an axis."""
        return self.run.coordinate(axis) if axis in self.sizes else 0

    def build(self, rate: float, *, compiled: bool) -> Parts:
        """The parts of the stage that this rank is in now."""
        cut = Cut(
            self.place("pp"),
            self.sizes.get("pp", 1),
            self.place("tp"),
            self.sizes.get("tp", 1),
            self.group("tp"),
        )
        stage = Stage(self.shape, cut, self.run.seed)
        optimizer = AdamW(stage.parameters(), lr=rate)
        self.run.register(model=stage, optimizer=optimizer)  # <- what a joining node must receive
        forward = torch.compile(stage) if compiled else stage
        return Parts(stage, forward, optimizer, side_by_side(stage))

    def step(self, index: int, parts: Parts) -> float | None:
        """Gradients of one step, averaged over replicas; the loss, on the last stage."""
        x, y = self.corpus.batch(index, self.place("dp"), self.sizes.get("dp", 1))
        inputs, outputs = [], []
        for tokens, targets in zip(x.chunk(self.micro), y.chunk(self.micro), strict=True):
            came = self.before(tokens, parts.stage.cut)
            out = parts.forward(came)
            if parts.stage.cut.last:
                out = loss_of(out, targets) / self.micro
            else:
                self.group("pp").send([out.detach().contiguous()], parts.stage.cut.stage + 1).wait()
            inputs.append(came)
            outputs.append(out)
        for came, out in zip(inputs, outputs, strict=True):
            self.backward(came, out, parts.stage.cut)
        if (replicas := self.group("dp")) is not None:
            dist.all_reduce(parts.gradients, group=replicas)
            parts.gradients /= self.sizes["dp"]
        return float(sum(out.item() for out in outputs)) if parts.stage.cut.last else None

    def before(self, tokens: Tensor, cut: Cut) -> Tensor:
        """What goes into this stage: tokens, or what the stage before has sent."""
        if cut.first:
            return tokens
        came = torch.empty(*tokens.shape, self.shape.width)
        self.group("pp").recv([came], cut.stage - 1).wait()
        return came.requires_grad_()

    def backward(self, came: Tensor, out: Tensor, cut: Cut) -> None:
        """One micro batch back through this stage."""
        if cut.last:
            out.backward()
        else:
            gradient = torch.empty_like(out)
            self.group("pp").recv([gradient], cut.stage + 1).wait()
            out.backward(gradient)
        if not cut.first:
            assert came.grad is not None
            self.group("pp").send([came.grad.contiguous()], cut.stage - 1).wait()


def side_by_side(stage: Stage) -> Tensor:
    """One flat tensor of zeros of which every parameter's gradient is a part."""
    parameters = list(stage.parameters())
    flat = torch.zeros(sum(each.numel() for each in parameters))
    at = 0
    for each in parameters:
        each.grad = flat[at : at + each.numel()].view_as(each)
        at += each.numel()
    return flat


def main() -> None:
    """Train for `--steps` steps."""
    parser = arguments("Train a pipeline that survives the loss of a machine.")
    parser.add_argument("--micro", type=int, default=2, help="micro batches per step")
    parser.add_argument("--compile", action="store_true", help="compile every stage")
    args = parsed(parser)
    torch.set_num_threads(args.threads)
    run = worker.join()  # <- this node's place in the job, or among its standbys
    sizes = dict(run.layout.axes)
    for flag, value, axis in (("--layers", args.layers, "pp"), ("--heads", args.heads, "tp")):
        if value % sizes.get(axis, 1):
            sys.exit(f"train_pipeline.py: {flag} {value}: not a multiple of {axis}={sizes[axis]}")
    if args.batch % args.micro:
        sys.exit(f"train_pipeline.py: --micro {args.micro}: does not divide --batch {args.batch}")
    shape = Shape(
        context=args.context, layers=args.layers, heads=args.heads, width=args.width, tied=False
    )
    pipeline = Pipeline(run, shape, corpus_of(args, run.seed), args.micro)
    parts = run.per_role(lambda: pipeline.build(args.rate, compiled=args.compile))  # <- any stage

    for step in run.steps(args.steps):  # <- a standby rehearses here; a lost step comes again
        now = parts()
        loss = pipeline.step(step.index, now)
        if step.vote():  # <- does every rank have its gradients?
            now.optimizer.step()
        now.gradients.zero_()
        if loss is not None:
            step.record(loss=loss)


if __name__ == "__main__":
    main()
