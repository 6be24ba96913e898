"""Seals: a keyed digest per chunk, so that a chunk is taken only from whom it should come.

Rules of this file: bytes in, 16 bytes out; no sockets. A seal covers the session key, the chunk's
index and its bytes, hence a chunk that was altered, swapped for another or kept from an earlier
session is refused. Two algorithms, one construction (universal hash, then keyed BLAKE2b):

``blake2b``  BLAKE2b over all bytes. Always there; about 1 GB/s per core.
``gemm``     first hashes the bytes, as rows M of 4,096 signed bytes, to the exact integers M @ K,
             where K is a secret 4,096 x 16 matrix drawn from the session key; BLAKE2b then runs
             over the product, a 64th of the bytes. Two different chunks agree only if some row
             difference d (not zero) has d @ K = 0: for each of the 16 columns, once 4,095 of its
             entries are fixed, at most one of the 128 values of the last one does that, so the
             chance is at most 128**-16 = 2**-112. It is as fast as the CPU multiplies small
             integers: five times BLAKE2b where that is vectorised, slower where it is not.

Entries of K lie in [-64, 64): then no intermediate sum of any int8 kernel can saturate, and the
product is the same integer matrix on every machine. That is tested at first use, and a process
where it does not hold, or where it is not clearly faster, does not offer ``gemm``: on busy cores
torch's thread team spends longer meeting than multiplying, so what decides is a measurement.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Final, Protocol

SEAL_BYTES: Final = 16
HEADER_INDEX: Final = (1 << 64) - 1
"""The index under which the image header is sealed."""

_ROW: Final = 4096
_COLUMNS: Final = 16
_SELF_TEST_ROWS: Final = 256


class Seal(Protocol):
    """Seals chunks of one session."""

    def __call__(self, index: int, chunk: memoryview) -> bytes:
        """The seal of `chunk` as chunk number `index`."""


def algorithms() -> tuple[str, ...]:
    """What this process can do, fastest first (measured once)."""
    return ("gemm", "blake2b") if _gemm_pays() else ("blake2b",)


def seal_of(algorithm: str, session_key: bytes) -> Seal:
    """The seal function of a session; raises ValueError for an algorithm we do not have."""
    if algorithm == "blake2b":
        return _Blake2bSeal(session_key)
    if algorithm == "gemm" and "gemm" in algorithms():
        return _GemmSeal(session_key)
    raise ValueError(f"no seal algorithm {algorithm!r} here; there are {algorithms()}")


def _finish(key: bytes, index: int, size: int) -> hashlib.blake2b:
    seal = hashlib.blake2b(key=key, digest_size=SEAL_BYTES, person=b"changeover chunk")
    seal.update(index.to_bytes(8, "little"))
    seal.update(size.to_bytes(8, "little"))
    return seal


class _Blake2bSeal:
    def __init__(self, session_key: bytes) -> None:
        self._key = session_key

    def __call__(self, index: int, chunk: memoryview) -> bytes:
        seal = _finish(self._key, index, chunk.nbytes)
        seal.update(chunk)
        return seal.digest()


class _GemmSeal:
    def __init__(self, session_key: bytes) -> None:
        self._key = hashlib.blake2b(b"finish", key=session_key, digest_size=32).digest()
        self._product = _product_with(_matrix(session_key))

    def __call__(self, index: int, chunk: memoryview) -> bytes:
        seal = _finish(self._key, index, chunk.nbytes)
        whole = chunk.nbytes - chunk.nbytes % _ROW
        if whole:
            seal.update(self._product(chunk[:whole]))
        seal.update(chunk[whole:])
        return seal.digest()


def _matrix(session_key: bytes) -> bytearray:
    """K, row by row, as bytes that are read as int8: secret, uniform in [-64, 64)."""
    stream = hashlib.shake_256(b"changeover gemm seal" + session_key).digest(_ROW * _COLUMNS)
    return bytearray(stream.translate(_TO_KEY))


_TO_KEY: Final = bytes(((byte & 127) - 64) & 255 for byte in range(256))


def _product_with(matrix: bytearray) -> Callable[[memoryview], memoryview]:
    """A function that multiplies rows of bytes with `matrix`, exactly, as little-endian int32."""
    import torch

    key = torch.frombuffer(matrix, dtype=torch.int8).view(_ROW, _COLUMNS)

    torch.get_num_threads()  # a new thread ignores the process's setting until it has asked for it

    def product(rows: memoryview) -> memoryview:
        writable = bytearray(rows) if rows.readonly else rows
        left = torch.frombuffer(writable, dtype=torch.int8).view(-1, _ROW)
        return torch._int_mm(left, key).numpy().data.cast("B")  # noqa: SLF001  the only exact int8 matmul torch has

    return product


@cache
def _gemm_pays() -> bool:
    """Whether ``gemm`` is available, exact and faster than BLAKE2b in this process."""
    if "torch" not in sys.modules or sys.byteorder != "little":
        return False
    chunk = bytearray(hashlib.shake_256(b"self-test").digest(_ROW)) * _SELF_TEST_ROWS
    chunk[:_ROW] = b"\x7f" * _ROW  # the rows with the largest sums of either sign
    chunk[_ROW : 2 * _ROW] = b"\x80" * _ROW
    view = memoryview(chunk)
    try:
        if not _is_exact(view[: 3 * _ROW]):
            return False
        fast, plain = _GemmSeal(b"self-test"), _Blake2bSeal(b"self-test")
        return _best_s(fast, view) < _best_s(plain, view) / 2
    except (AttributeError, RuntimeError, TypeError):
        return False


def _is_exact(rows: memoryview) -> bool:
    matrix = _matrix(b"self-test")
    matrix[::_COLUMNS] = b"\xc0" * _ROW  # a column of -64 and one of 63: the largest products
    matrix[1::_COLUMNS] = b"\x3f" * _ROW
    values = rows.cast("b").tolist()
    left = [values[start : start + _ROW] for start in range(0, len(values), _ROW)]
    values = memoryview(matrix).cast("b").tolist()
    columns = [values[column::_COLUMNS] for column in range(_COLUMNS)]
    expected = [
        sum(a * b for a, b in zip(row, column, strict=True)) for row in left for column in columns
    ]
    return _product_with(matrix)(rows).cast("i").tolist() == expected


def _best_s(seal: Seal, chunk: memoryview, repeats: int = 3) -> float:
    seal(0, chunk)
    taken = []
    for index in range(repeats):
        started = time.perf_counter()
        seal(index, chunk)
        taken.append(time.perf_counter() - started)
    return min(taken)
