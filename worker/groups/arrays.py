"""Between torch tensors and the flat host memory that links move.

What belongs here: how a tensor becomes one contiguous array or a run of bytes and how the result
gets back, and the arithmetic of each reduction. What does not: communication.

Rule of accumulation: float16 and bfloat16 are reduced in float32 and rounded once at the end; every
other type is reduced in its own precision. NumPy does the arithmetic because it adds a chunk in one
call, in this thread, without a second pool of threads fighting over the cores.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from worker.groups.frames import chunk_bytes_for
from worker.groups.port import ReduceOp

Array = np.ndarray[Any, np.dtype[Any]]
_HALF: Final = (torch.float16, torch.bfloat16)
_BITWISE: Final = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_FOLDS: Final[dict[ReduceOp, Callable[..., Any]]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def _host(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise TypeError(f"links move dense CPU tensors, not {tensor.layout} on {tensor.device}")
    return tensor.detach()


def check_reducible(tensor: Tensor, op: ReduceOp) -> None:
    """Refuse, before anything is sent, a reduction that has no meaning.

    Raises:
        TypeError: `op` is not defined for the tensor's type.
    """
    fractional = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    if op in _BITWISE and fractional:
        raise TypeError(f"{op} is not defined for {tensor.dtype}")
    if tensor.dtype.is_complex and op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise TypeError(f"{op} is not defined for {tensor.dtype}")


class Reducible:
    """A tensor as one flat array to reduce in; `store` puts the result back."""

    def __init__(self, tensor: Tensor) -> None:
        source = _host(tensor)
        if source.dtype.is_complex:
            source = torch.view_as_real(source)
        work = source.float() if source.dtype in _HALF else source.contiguous()
        self._source = source
        self._work = work
        self.array: Array = work.reshape(-1).numpy()
        self.payload = self.array.data.cast("B") if self.array.size else memoryview(b"")

    def store(self) -> None:
        """Write the array back where it was copied from."""
        if self._work.data_ptr() != self._source.data_ptr():
            self._source.copy_(self._work)


class Copyable:
    """A tensor as bytes; `store` puts what was received back."""

    def __init__(self, tensor: Tensor) -> None:
        source = _host(tensor)
        if source.dtype.is_complex:
            source = torch.view_as_real(source)
        work = source.contiguous()
        self._source = source
        self._work = work
        size = work.numel() * work.element_size()
        flat = work.reshape(-1).view(torch.uint8)
        self.payload = flat.numpy().data if size else memoryview(b"")

    def store(self) -> None:
        """Write the bytes back where they were copied from."""
        if self._work.data_ptr() != self._source.data_ptr():
            self._source.copy_(self._work)


class Arithmetic:
    """One reduction over arrays of one type."""

    def __init__(self, op: ReduceOp, size: int) -> None:
        self._fold = _FOLDS[op]
        self._members = size if op is ReduceOp.AVG else 0

    def fold(self, into: Array, other: Array) -> None:
        """Reduce `other` into `into`."""
        self._fold(into, other, out=into)

    def finish(self, array: Array) -> None:
        """Turn a complete sum into what was asked for; whole numbers round down."""
        if self._members:
            divide = np.floor_divide if array.dtype.kind in "iu" else np.true_divide
            divide(array, self._members, out=array)


class Cuts:
    """A flat array cut into one segment per member and each of these into as many chunks."""

    def __init__(self, array: Array, size: int) -> None:
        self._array = array
        self._raw = array.data.cast("B")
        self._item = array.itemsize
        self._bounds = [index * array.size // size for index in range(size + 1)]
        longest = -(-array.size // size) * array.itemsize
        self.chunks = max(1, -(-longest // chunk_bytes_for(longest)))

    def _range(self, segment: int, chunk: int) -> tuple[int, int]:
        low, high = self._bounds[segment], self._bounds[segment + 1]
        length = high - low
        return low + chunk * length // self.chunks, low + (chunk + 1) * length // self.chunks

    def part(self, segment: int, chunk: int) -> Array:
        """The elements of one chunk."""
        low, high = self._range(segment, chunk)
        return self._array[low:high]

    def payload(self, segment: int, chunk: int) -> memoryview:
        """The bytes of one chunk."""
        low, high = self._range(segment, chunk)
        return self._raw[low * self._item : high * self._item]

    def as_array(self, elsewhere: memoryview | None, otherwise: Array) -> Array:
        """Bytes of one chunk as elements of the same type; `otherwise` if there are none."""
        if elsewhere is None:
            return otherwise
        return np.frombuffer(elsewhere, dtype=self._array.dtype)

    def nbytes(self, segment: int, chunk: int) -> int:
        """The size of one chunk."""
        low, high = self._range(segment, chunk)
        return (high - low) * self._item
