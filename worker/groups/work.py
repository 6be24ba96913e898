"""The handle that torch gets back from a collective: always complete, always successful."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work


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
