"""Giving the memory of a registered state back while everything around it stays.

Rules of this file: storages are emptied and filled in place, so that modules, their hooks and code
that was compiled for them go on to hold the same tensors. What was in them is gone: only a state
that a transfer is about to fill may be parked.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, UntypedStorage

from worker.state.registry import Registry


class Parking:
    """The storages of a state that was parked, with their sizes in bytes."""

    def __init__(self) -> None:
        self._emptied: list[tuple[UntypedStorage, int]] = []
        self._gradients: list[Tensor] = []

    def park(self, registry: Registry) -> int:
        """Empty every storage of models and gradients, and forget the optimizers' states.

        Returns how many bytes were given back. A storage that cannot be resized (shared memory, a
        view of numpy's) stays as it is.
        """
        given = 0
        for optimizer in registry.optimizers.values():
            given += sum(
                _nbytes(value) for state in optimizer.state.values() for value in state.values()
            )
            optimizer.state.clear()
        seen: set[int] = set()
        self._gradients = _gradients(registry)
        for tensor in (*_tensors(registry), *self._gradients):
            storage = tensor.untyped_storage()
            nbytes = storage.nbytes()
            if not nbytes or storage.data_ptr() in seen:
                continue
            seen.add(storage.data_ptr())
            try:
                storage.resize_(0)
            except RuntimeError:
                continue
            self._emptied.append((storage, nbytes))
            given += nbytes
        return given

    def unpark(self) -> int:
        """Allocate what was given back: gradients are zero, the rest is undefined."""
        taken = 0
        for storage, nbytes in self._emptied:
            storage.resize_(nbytes)
            taken += nbytes
        for gradient in self._gradients:
            gradient.zero_()
        self._emptied.clear()
        self._gradients.clear()
        return taken


def _tensors(registry: Registry) -> Iterator[Tensor]:
    for model in registry.models.values():
        yield from (parameter.data for parameter in model.parameters())
        yield from model.buffers()


def _gradients(registry: Registry) -> list[Tensor]:
    parameters = (one for model in registry.models.values() for one in model.parameters())
    return [one.grad for one in parameters if one.grad is not None]


def _nbytes(value: object) -> int:
    return value.nbytes if isinstance(value, Tensor) else 0
