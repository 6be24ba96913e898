"""A line of an exported log with a checksum at its end, so that any flipped byte shows.

Rules: an entry's own bytes come first and are not touched; the checksum is one more field of the
same JSON object, so whoever reads the log without knowing of it skips an unknown field. A line
stands for itself, so that a part of a log can be cut out and still be read; that a line is missing
or out of place is what positions are for. It tells damage, not forgery: archives are hash-chained.
"""

import zlib
from typing import Final

from statemachine.errors import EventCorrupt

_CHECK: Final = b',"check":"%08x"}'
_MARK: Final = b',"check":"'
CHECK_BYTES: Final = len(_CHECK % 0)
"""Length of what a checksum puts in the place of the brace that closes a line."""

_LINE_ENDS: Final = _CHECK + b"\n"
_LINE_END: Final = CHECK_BYTES + 1


def with_checksum(raw: bytes) -> bytes:
    """An entry's bytes with their checksum; bytes that are no JSON object stay as they are."""
    return raw[:-1] + _CHECK % zlib.crc32(raw[:-1]) if raw.endswith(b"}") else raw


def has_checksum(line: bytes) -> bool:
    """Whether a line, without its line break, ends in a checksum."""
    return line[-CHECK_BYTES : len(_MARK) - CHECK_BYTES] == _MARK


def is_intact(line: bytes) -> bool:
    """Whether a line, with its line break, is what was written."""
    return line[-_LINE_END:] == _LINE_ENDS % zlib.crc32(line[:-_LINE_END])


def without_checksum(line: bytes) -> bytes:
    """The entry's own bytes, of a line with or without a checksum.

    Raises:
        EventCorrupt: the line is not what was written.
    """
    if not has_checksum(line):
        return line
    if not is_intact(line + b"\n"):
        raise EventCorrupt(f"altered since it was written: the checksum differs: {line[:80]!r}")
    return line[:-CHECK_BYTES] + b"}"
