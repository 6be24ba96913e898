"""Tensors as bytes in place.

Rules of this file: the only place where a tensor's memory is looked at directly. A CPU tensor is
viewed where it lies; a tensor on a device is staged through host memory, which costs its size once
more on the host while the view lives. The view keeps its tensor alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from worker.state.tree import StateRefused
from worker.transfer import TensorSpec, TensorView

_NAMES: Final = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int16: "I16", torch.uint16: "U16", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int32: "I32", torch.uint32: "U32", torch.float32: "F32",
    torch.int64: "I64", torch.uint64: "U64", torch.float64: "F64",
    torch.complex64: "C64", torch.complex128: "C128",
}  # fmt: skip
_TYPES: Final = {name: dtype for dtype, name in _NAMES.items()}


def axis_order(tensor: Tensor) -> list[int]:
    """The axes of a tensor from the outermost in memory to the innermost.

    Axes of size 1 keep their place, so that a contiguous tensor always gives 0, 1, 2, ...
    """
    if tensor.is_contiguous():
        return list(range(tensor.ndim))
    strides = tensor.stride()
    return sorted(range(tensor.ndim), key=lambda axis: -strides[axis])


def spec_of(name: str, tensor: Tensor) -> TensorSpec:
    """The spec of `tensor`, with its shape in memory order.

    Raises StateRefused if the tensor is sparse, quantised or has holes or overlaps in memory.
    """
    return TensorSpec(name, _NAMES[tensor.dtype], tuple(_dense(name, tensor).shape))


def view_of(name: str, tensor: Tensor) -> TensorView:
    """The bytes of `tensor`, in memory order. Raises StateRefused as `spec_of` does."""
    dense = _dense(name, tensor)
    owner = tensor
    if dense.device.type != "cpu":
        owner = dense = dense.cpu()
    spec = TensorSpec(name, _NAMES[dense.dtype], tuple(dense.shape))
    return TensorView(spec, _bytes_at(dense.data_ptr(), spec.nbytes), owner=owner)


def _dense(name: str, tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided or tensor.dtype not in _NAMES:
        raise StateRefused(f"{name}: a {tensor.layout} tensor of {tensor.dtype} cannot be carried")
    dense = tensor.detach().permute(axis_order(tensor))
    if not dense.is_contiguous():
        raise StateRefused(f"{name}: a view with holes or overlaps in memory cannot be carried")
    return dense


def empty_for(spec: TensorSpec, axes: Sequence[int] | None = None) -> Tensor:
    """A new CPU tensor, contents undefined, whose spec and axis order are those given."""
    dense = torch.empty(spec.shape, dtype=_TYPES[spec.dtype])
    if axes is None:
        return dense
    return dense.permute(sorted(range(dense.ndim), key=lambda axis: axes[axis]))


def tensor_of(view: TensorView, axes: Sequence[int] | None = None) -> Tensor:
    """A CPU tensor that holds the bytes of `view`: its owner if that is one, else a copy."""
    if isinstance(view.owner, Tensor):
        return view.owner
    made = empty_for(view.spec, axes)
    view_of(view.spec.name, made).memory[:] = view.memory
    return made


def _bytes_at(address: int, nbytes: int) -> memoryview:
    if not nbytes:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")
