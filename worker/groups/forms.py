"""Torch's ways of saying things, translated: reductions in options, many tensors in one.

What belongs here: pure translation. What does not: collectives.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from worker.groups.port import ReduceOp

_KINDS: Any = dist.ReduceOp.RedOpType  # an enumeration whose members the stubs omit
_OPS = {
    _KINDS.SUM: ReduceOp.SUM,
    _KINDS.AVG: ReduceOp.AVG,
    _KINDS.MIN: ReduceOp.MIN,
    _KINDS.MAX: ReduceOp.MAX,
    _KINDS.PRODUCT: ReduceOp.PRODUCT,
    _KINDS.BAND: ReduceOp.BAND,
    _KINDS.BOR: ReduceOp.BOR,
    _KINDS.BXOR: ReduceOp.BXOR,
}


def op_of(options: Any) -> ReduceOp:
    """Our name of the reduction in torch's options.

    Raises:
        TypeError: a reduction that we do not know, such as PREMUL_SUM.
    """
    if options is None:
        return ReduceOp.SUM
    kind = getattr(options.reduceOp, "op", options.reduceOp)
    if kind not in _OPS:
        raise TypeError(f"reduction {kind} is not supported by managed groups")
    return _OPS[kind]


def rows(whole: Tensor, part: Tensor, size: int) -> list[Tensor]:
    """Views of `whole`, one per member, each shaped like `part`."""
    flat = whole.view(size, -1)
    return [flat[index].view(part.shape) for index in range(size)]


def split_first_axis(whole: Tensor, splits: Sequence[int], size: int) -> list[Tensor]:
    """Views of `whole` cut along its first axis; no splits means equal parts."""
    lengths = list(splits) or [whole.shape[0] // size] * size
    return list(torch.split(whole, lengths))
