"""The frame: the one unit that travels over links.

What belongs here: the header's layout and its constants. What does not: sockets.

A link has two sockets. The **bulk** socket carries DATA frames, each a header with its payload
behind it (or, on one machine, in memory that both share); only the training thread touches it. The
**control** socket carries headers without payload, ABORT and GOODBYE; only the monitor reads it.
Two sockets, because news of a loss must not queue behind megabytes that nobody reads any more.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

MAGIC: Final = 0xC0DE
_LAYOUT: Final = struct.Struct("<HBBIQII")
HEADER_BYTES: Final = _LAYOUT.size
CHUNK_BYTES_MAX: Final = 1024 * 1024
"""No payload is larger: what an aborted sender owes its peer is bounded by it."""
_CHUNK_BYTES_MIN: Final = 256 * 1024


class Kind(IntEnum):
    """What a frame is. SHARE comes with the descriptors of memory for payloads."""

    DATA = 1
    ABORT = 2
    GOODBYE = 3
    SHARE = 4


class Header(NamedTuple):
    """One header. `tag` is the plan's, `sequence` counts collectives, `chunk` frames within one.

    In an ABORT, `chunk` is the lost member's index plus one (0: nobody in particular).
    `shared`: the payload is in shared memory.
    """

    kind: int
    chunk: int
    tag: int
    sequence: int
    payload_bytes: int
    shared: bool


class BadFrame(Exception):
    """Bytes that are no header of ours; the link is useless from here on."""


def pack(
    kind: Kind, tag: int, sequence: int, chunk: int, payload_bytes: int, *, shared: bool = False
) -> bytes:
    """Encode a header."""
    return _LAYOUT.pack(MAGIC, kind, shared, chunk, tag, sequence & 0xFFFFFFFF, payload_bytes)


def unpack(buffer: bytes | bytearray, offset: int = 0) -> Header:
    """Decode a header.

    Raises:
        BadFrame: the magic is missing or the payload is larger than a frame may be.
    """
    magic, kind, flags, chunk, tag, sequence, payload_bytes = _LAYOUT.unpack_from(buffer, offset)
    if magic != MAGIC or payload_bytes > CHUNK_BYTES_MAX:
        raise BadFrame(f"magic {magic:#x}, payload of {payload_bytes} bytes")
    return Header(kind, chunk, tag, sequence, payload_bytes, bool(flags & 1))


def chunk_bytes_for(payload_bytes: int) -> int:
    """How large the chunks of a payload are: small enough to stream, large enough to be cheap.

    A chunk costs some 20 us of bookkeeping, so large payloads are cut less finely.
    """
    size = _CHUNK_BYTES_MIN
    while size < CHUNK_BYTES_MAX and payload_bytes >= 4 * size:
        size *= 2
    return size


def chunks_of(payload: memoryview) -> list[memoryview]:
    """A payload as frames' worth of bytes; an empty one has no chunk."""
    size = chunk_bytes_for(payload.nbytes)
    return [payload[start : start + size] for start in range(0, payload.nbytes, size)]
