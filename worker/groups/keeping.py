"""Keeping a step alive through a loss: what it has computed is as good after a swap as before.

What belongs here: whether the step under way can still be kept, and the inputs of a collective that
may have to be run again. What does not: waiting for the loss to be answered (the loop's), running
collectives (backends).

Theory of operation. A rank that loses a peer has, in most cases, done nothing yet in its step that
depended on it: it computes gradients, and the first collective is where they would have met. Its
weights are those of before the step, so what it computed is what it would compute again. So that
first collective waits for the loss to be answered, and runs in the new group on the inputs that it
had.

Rules. Only the first collective of a step may wait: who has had the outcome of one has something
that a joiner, which begins the step anew, cannot have. Each rank decides by itself, for in the new
epoch all begin with the step's first collective, whether they kept the step or begin it again.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

KEEP_BYTES_MAX: Final = 8 * 1024 * 1024
"""Inputs up to this size are copied before the first collective of a step, which may spoil them.

The reducer of `DistributedDataParallel` sends a bucket of 1 MiB first."""


class Keeping:
    """Of one training process; its groups share it.

    `mend` is called on the training thread, inside a collective whose group is broken. It returns
    True once the groups are whole again and the step goes on in them.
    """

    def __init__(self, mend: Callable[[], bool]) -> None:
        self._mend = mend
        self._thread = 0
        self._fresh = False
        self._spare: list[Tensor] = []

    def step_begins(self) -> None:
        """Nothing of this step has come from a peer yet."""
        self._thread = threading.get_ident()
        self._fresh = True

    def spend(self) -> None:
        """Something has, or the step is given up: from now on it cannot be kept."""
        self._fresh = False

    @property
    def fresh(self) -> bool:
        """Whether this thread's step can be kept."""
        return self._fresh and threading.get_ident() == self._thread

    def copy_of(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """A copy of inputs that a collective changes in place; None if they cannot be kept."""
        if not self.fresh or sum(one.nbytes for one in tensors) > KEEP_BYTES_MAX:
            return None
        fits = len(self._spare) == len(tensors) and all(
            spare.shape == one.shape and spare.dtype == one.dtype
            for spare, one in zip(self._spare, tensors, strict=True)
        )
        if not fits:
            self._spare = [torch.empty_like(one) for one in tensors]
        for spare, one in zip(self._spare, tensors, strict=True):
            spare.copy_(one)
        return self._spare

    def mend(self) -> bool:
        """Wait for the loss to be answered; False: the step is given up."""
        self._fresh = self._fresh and self._mend()
        return self._fresh
