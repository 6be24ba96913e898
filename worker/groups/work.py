"""The handles torch gets back: of a collective always complete, of a message once waited for.

Rule: a handle never reports failure. The vote at the end of the step does.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work

from worker.groups.backend import DirectTicket


class CompletedWork(Work):
    """A collective that has already run when its handle is returned.

    It is successful even when the group is broken: an error in the middle of backward would leave
    the reducer of `DistributedDataParallel` in a state that nothing repairs. The vote at the end of
    the step is where the truth is told.
    """

    def __init__(self, result: Sequence[Tensor]) -> None:
        super().__init__()
        self._result = list(result)
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def get_future(self) -> Any:
        """Return a completed future with the tensors; the reducer's C++ reads it."""
        if self._future is None:
            self._future = torch.futures.Future()
            self._future.set_result(self._result)
        return self._future

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> None:
        """Return None: nothing ever fails here."""
        return

    def synchronize(self) -> None:
        """Do nothing: tensors live on the host."""

    def result(self) -> list[Tensor]:
        """Return the tensors."""
        return self._result


class PostedWork(CompletedWork):
    """Messages between two members that were posted; `wait` finishes them, and then calls `then`,
    once.
    """

    def __init__(
        self,
        result: Sequence[Tensor],
        tickets: Sequence[DirectTicket | None],
        then: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(result)
        self._tickets = [ticket for ticket in tickets if ticket is not None]
        self._then = then

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the messages have moved, or the group is broken."""
        for ticket in self._tickets:
            ticket.wait()
        then, self._then = self._then, None
        if then is not None:
            then()
        return True

    def is_completed(self) -> bool:
        """Whether the messages have moved."""
        return all(ticket.done for ticket in self._tickets)
