"""One stage of a small transformer that is cut in pipeline stages, and each stage in tensor parts.

Ordinary PyTorch, nothing of Changeover in it: whoever builds a stage hands in the process group in
which the parts of a layer are added up (None: the layer is whole). The first stage has the
embeddings, the last one the head, those between have neither.

Weights depend on the seed and the stage alone: a part takes its slice of what the whole layer
would have, so that every cut of the same model begins with the same numbers.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from model import Shape
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Cut:
    """Which part of a model this is: stage and part, out of how many."""

    stage: int = 0
    stages: int = 1
    part: int = 0
    parts: int = 1
    group: Any = None

    @property
    def first(self) -> bool:
        """Whether tokens come in here."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether the loss is computed here."""
        return self.stage == self.stages - 1


class _Enter(torch.autograd.Function):
    """Into the parts of a layer: nothing forward, gradients are added up backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        whole = grads[0].contiguous().clone()
        dist.all_reduce(whole, group=ctx.group)
        return whole, None


class _Leave(torch.autograd.Function):
    """Out of the parts of a layer: outputs are added up forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:  # noqa: ARG004  (torch's signature)
        whole = x.contiguous().clone()
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ARG004  (torch's signature)
        return grads[0], None


_enter: Any = torch.compiler.disable(_Enter.apply)
_leave: Any = torch.compiler.disable(_Leave.apply)
"""Outside of what a compiler looks into: groups are no business of its."""


def enter(x: Tensor, cut: Cut) -> Tensor:
    """Hand `x` to every part."""
    out: Tensor = x if cut.group is None else _enter(x, cut.group)
    return out


def leave(x: Tensor, cut: Cut) -> Tensor:
    """Add up what the parts computed."""
    out: Tensor = x if cut.group is None else _leave(x, cut.group)
    return out


def slice_of(
    size: tuple[int, int], scale: float, cut: Cut, *, axis: int, pieces: int = 1
) -> Tensor:
    """This part's slice of a random weight along an axis; `pieces` are cut one by one."""
    whole = torch.randn(size) * scale
    cuts = [piece.chunk(cut.parts, axis)[cut.part] for piece in whole.chunk(pieces, axis)]
    return torch.cat(cuts, axis)


class Block(nn.Module):
    """Attention and two linear layers, of which this part has some heads and some hidden units."""

    def __init__(self, shape: Shape, cut: Cut) -> None:
        super().__init__()
        width, deep = shape.width, 0.02 / math.sqrt(2 * shape.layers)
        self.cut, self.heads = cut, shape.heads // cut.parts
        self.before_attention = nn.LayerNorm(width, bias=False)
        self.before_mlp = nn.LayerNorm(width, bias=False)
        self.inward = nn.Parameter(slice_of((3 * width, width), 0.02, cut, axis=0, pieces=3))
        self.outward = nn.Parameter(slice_of((width, width), deep, cut, axis=1))
        self.up = nn.Parameter(slice_of((4 * width, width), 0.02, cut, axis=0))
        self.down = nn.Parameter(slice_of((width, 4 * width), deep, cut, axis=1))

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        x = x + leave(self._attend(enter(self.before_attention(x), self.cut)), self.cut)
        h = F.gelu(F.linear(enter(self.before_mlp(x), self.cut), self.up))
        out: Tensor = x + leave(F.linear(h, self.down), self.cut)
        return out

    def _attend(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        each = C // (self.heads * self.cut.parts)
        q, k, v = F.linear(x, self.inward).view(B, T, 3, self.heads, each).unbind(2)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return F.linear(mixed.transpose(1, 2).reshape(B, T, -1), self.outward)


class Stage(nn.Module):
    """The layers of one stage; with the embeddings if it is the first, the head if the last."""

    def __init__(self, shape: Shape, cut: Cut, seed: int) -> None:
        """Build with weights that depend on the seed and the stage alone."""
        super().__init__()
        torch.manual_seed(seed * 1000 + cut.stage)
        self.shape, self.cut = shape, cut
        if cut.first:
            self.tokens = nn.Embedding(shape.vocabulary, shape.width)
            self.positions = nn.Embedding(shape.context, shape.width)
            for table in (self.tokens, self.positions):
                nn.init.normal_(table.weight, std=0.02)
        layers = shape.layers // cut.stages
        self.blocks = nn.ModuleList(Block(shape, cut) for _ in range(layers))
        if cut.last:
            self.norm = nn.LayerNorm(shape.width, bias=False)
            self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
            nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or activations in; activations or logits out."""
        if self.cut.first:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.cut.last else x
