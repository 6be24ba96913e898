"""State as bytes: named tensors in a fixed order, and metadata that JSON can hold.

Rules of this file: it knows memory, names and offsets. It does not know torch, sockets or time.
The layout is that of a safetensors file (u64 header length, JSON header, raw bytes without holes),
so what travels on the wire is also a valid file. Nothing is ever unpickled.

A `StateImage` does not own its bytes: each `TensorView` looks at memory that lives elsewhere, on
the sending side the tensors being trained, on the receiving side the tensors that will be trained.
For transport the concatenation of all views is cut into chunks of equal size; a chunk may span
several small tensors, and a large tensor spans several chunks.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from worker.transfer.errors import ImageRefused

CHUNK_BYTES: Final = 1 << 20
HEADER_BYTES_MAX: Final = 256 << 20
ITEM_BYTES: Final[Mapping[str, int]] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8, "C64": 8, "C128": 16,
}  # fmt: skip
"""Bytes per element, by the type names of safetensors (C128 is our addition)."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its bytes: name, element type (a key of `ITEM_BYTES`) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor's spec and its bytes, in place; `owner` keeps the memory alive."""

    spec: TensorSpec
    memory: memoryview
    owner: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse memory that is not exactly the flat bytes of the spec."""
        view = self.memory
        if view.format != "B" or view.ndim != 1 or view.nbytes != self.spec.nbytes:
            raise ImageRefused(
                f"tensor {self.spec.name}: {self.spec.nbytes} flat bytes expected, "
                f"got {view.nbytes} of format {view.format!r}"
            )


@dataclass(frozen=True)
class ImageHeader:
    """What the receiver learns first: every spec in order, and the metadata."""

    specs: tuple[TensorSpec, ...]
    meta: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together, without the header."""
        return sum(spec.nbytes for spec in self.specs)

    def encoded(self) -> bytes:
        """The header in safetensors form; equal headers give equal bytes."""
        entries: dict[str, Any] = {
            "__metadata__": {"changeover": json.dumps(self.meta, allow_nan=False)}
        }
        offset = 0
        for spec in self.specs:
            end = offset + spec.nbytes
            entries[spec.name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [offset, end],
            }
            offset = end
        if len(entries) != len(self.specs) + 1:
            raise ImageRefused("two tensors of an image have the same name")
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    @classmethod
    def decoded(cls, raw: bytes | memoryview) -> ImageHeader:
        """Read what `encoded` wrote; raises `ImageRefused` on anything malformed."""
        try:
            return cls._decoded(bytes(raw))
        except ImageRefused:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ImageRefused(
                f"image header cannot be read: {type(error).__name__}: {error}"
            ) from error

    @classmethod
    def _decoded(cls, raw: bytes) -> ImageHeader:
        if int.from_bytes(raw[:8], "little") != len(raw) - 8:
            raise ImageRefused("image header has another length than it states")
        entries = json.loads(raw[8:])
        meta = json.loads(entries.pop("__metadata__")["changeover"])
        specs, offset = [], 0
        for name, entry in entries.items():
            spec = TensorSpec(name, entry["dtype"], tuple(entry["shape"]))
            if any(type(size) is not int or size < 0 for size in spec.shape):
                raise ImageRefused(f"tensor {name}: impossible shape {spec.shape}")
            if entry["data_offsets"] != [offset, offset + spec.nbytes]:
                raise ImageRefused(f"tensor {name}: its bytes are not where its shape says")
            specs.append(spec)
            offset += spec.nbytes
        return cls(tuple(specs), meta)


@dataclass(frozen=True)
class StateImage:
    """Tensors in place plus metadata: what one process sends and another receives into.

    The bytes must not change while the image is offered, and are undefined while it is received.
    """

    tensors: tuple[TensorView, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def header(self) -> ImageHeader:
        """The image without its bytes."""
        return ImageHeader(tuple(view.spec for view in self.tensors), self.meta)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return self.header.nbytes

    def digest(self) -> str:
        """SHA-256 over names, types, shapes and bytes in order (not over the metadata)."""
        seal = hashlib.sha256()
        for view in self.tensors:
            spec = view.spec
            seal.update(json.dumps([spec.name, spec.dtype, list(spec.shape)]).encode())
            seal.update(view.memory)
        return seal.hexdigest()

    @classmethod
    def allocate(cls, header: ImageHeader) -> StateImage:
        """An image in fresh host memory with the shape of `header`."""
        return cls(
            tuple(TensorView(spec, memoryview(bytearray(spec.nbytes))) for spec in header.specs),
            header.meta,
        )

    def require_same_specs(self, specs: Sequence[TensorSpec]) -> None:
        """Raise `ImageRefused`, naming the first difference, unless all specs are equal."""
        mine = [view.spec for view in self.tensors]
        for ours, theirs in zip(mine, specs, strict=False):
            if ours != theirs:
                raise ImageRefused(f"expected {_named(ours)}, the image has {_named(theirs)}")
        if len(mine) != len(specs):
            longer = mine if len(mine) > len(specs) else specs
            surplus = longer[min(len(mine), len(specs))]
            where = "destination" if longer is mine else "image"
            raise ImageRefused(f"only the {where} has {_named(surplus)}")


def _named(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.dtype}{list(spec.shape)}"


class ChunkMap:
    """Where chunk i of an image lies in memory. Read-only once built; safe from many threads."""

    def __init__(self, image: StateImage, chunk_bytes: int = CHUNK_BYTES) -> None:
        """Cut `image` into chunks of `chunk_bytes` (the last one may be shorter)."""
        self.chunk_bytes = chunk_bytes
        self.views = [view for view in image.tensors if view.memory.nbytes]
        self._starts: list[int] = []
        self.nbytes = 0
        for view in self.views:
            self._starts.append(self.nbytes)
            self.nbytes += view.memory.nbytes
        self.count = -(-self.nbytes // chunk_bytes)

    def size(self, index: int) -> int:
        """Bytes in chunk `index`."""
        if not 0 <= index < self.count:
            raise IndexError(f"no chunk {index} in an image of {self.count}")
        return min(self.chunk_bytes, self.nbytes - index * self.chunk_bytes)

    def pieces(self, index: int) -> Iterator[memoryview]:
        """The memory of chunk `index`, in order, one piece per tensor that it touches."""
        start = index * self.chunk_bytes
        end = start + self.size(index)
        at = bisect_right(self._starts, start) - 1
        while start < end:
            view = self.views[at].memory
            inside = start - self._starts[at]
            piece = view[inside : inside + min(end - start, view.nbytes - inside)]
            yield piece
            start += piece.nbytes
            at += 1

    def describe(self, index: int) -> str:
        """Name chunk `index` for a person: its bytes and the tensors it touches."""
        start = index * self.chunk_bytes
        end = start + self.size(index)
        first = self.views[bisect_right(self._starts, start) - 1].spec.name
        last = self.views[bisect_right(self._starts, end - 1) - 1].spec.name
        names = first if first == last else f"{first} .. {last}"
        return f"chunk {index} (bytes {start}..{end}, {names})"

    def gather(self, index: int, scratch: memoryview) -> memoryview:
        """Chunk `index` as one run of bytes: in place if it is one piece, else in scratch."""
        pieces = list(self.pieces(index))
        if len(pieces) == 1:
            return pieces[0]
        at = 0
        for piece in pieces:
            scratch[at : at + piece.nbytes] = piece
            at += piece.nbytes
        return scratch[:at]

    def landing(self, index: int, scratch: memoryview) -> memoryview:
        """Where to receive chunk `index`: its own memory if it is one piece, else scratch."""
        pieces = list(self.pieces(index))
        return pieces[0] if len(pieces) == 1 else scratch[: self.size(index)]

    def settle(self, index: int, landed: memoryview) -> None:
        """Put a chunk received at `landing` where it belongs (nothing to do if it is there)."""
        pieces = list(self.pieces(index))
        if len(pieces) == 1:
            return
        at = 0
        for piece in pieces:
            piece[:] = landed[at : at + piece.nbytes]
            at += piece.nbytes
