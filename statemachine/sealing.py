"""A line of an exported log with a checksum at its end, so that any flipped byte shows.

Rules: an entry's own bytes come first and are not touched; the checksum is one more field of the
same JSON object, so whoever reads the log without knowing of it skips an unknown field. A line
stands for itself, so that a part of a log can be cut out and still be read; that a line is missing
or out of place is what positions are for. It tells damage, not forgery: archives are hash-chained.
"""

import zlib
from typing import Final

from statemachine.errors import EventCorrupt

_SEAL: Final = b',"check":"%08x"}'
_MARK: Final = b',"check":"'
SEAL_BYTES: Final = len(_SEAL % 0)
"""Length of what a seal puts in the place of the brace that closes a line."""

_SEALED_END: Final = _SEAL + b"\n"
_LINE_END: Final = SEAL_BYTES + 1


def sealed(raw: bytes) -> bytes:
    """An entry's bytes with their checksum; bytes that are no JSON object stay as they are."""
    return raw[:-1] + _SEAL % zlib.crc32(raw[:-1]) if raw.endswith(b"}") else raw


def has_seal(line: bytes) -> bool:
    """Whether a line, without its line break, ends in a checksum."""
    return line[-SEAL_BYTES : len(_MARK) - SEAL_BYTES] == _MARK


def is_intact(line: bytes) -> bool:
    """Whether a line, with its line break, is what was sealed."""
    return line[-_LINE_END:] == _SEALED_END % zlib.crc32(line[:-_LINE_END])


def unsealed(line: bytes) -> bytes:
    """The entry's own bytes, of a line with or without a seal.

    Raises:
        EventCorrupt: the line is not what was sealed.
    """
    if not has_seal(line):
        return line
    if not is_intact(line + b"\n"):
        raise EventCorrupt(f"altered since it was written: the checksum differs: {line[:80]!r}")
    return line[:-SEAL_BYTES] + b"}"
