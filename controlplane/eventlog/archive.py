"""Archive segments: files that hold the beginning of a log after it has left the store.

What belongs here: writing, chaining and proving files. No store and no event: entries are bytes.

    {first:020d}-{last:020d}-{digest:.16}.segment
        one line of JSON, `Header`; then the entries as JSON lines, compressed with zlib

Theory of operation. The header holds the digest of the compressed entries and the digest of the
segment before; a segment's own digest is that of its header line, so each digest stands for
everything up to its end. The file's name repeats it, and the store's mark holds that of the last
one. So a flipped byte is told by the digest that covers it, a missing segment by the next one's
positions, an exchanged one by its predecessor's digest, a re-ordered entry by its position.
A file appears under its name only when it is whole and on disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from controlplane.eventlog.errors import LogCorrupt
from controlplane.eventlog.items import Entry
from controlplane.eventlog.retention import Mark
from statemachine.ids import Position

VERSION: Final = 1
"""Layout of a segment; a newer one is refused."""

_NAME: Final = re.compile(r"(\d{20})-(\d{20})-([0-9a-f]{16})\.segment")
_CLAIM: Final = re.compile(rb'"position":(\d+)')


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a segment. `sha256` is that of the compressed entries."""

    changeover: str = "segment"
    version: int = VERSION
    fleet: str
    first: Position
    last: Position
    previous: str
    sha256: str


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One proven segment."""

    path: Path
    header: Header
    digest: str

    @property
    def mark(self) -> Mark:
        """What the store's mark says once everything up to here has left the store."""
        return Mark(self.header.last, self.digest)


def write_segment(folder: Path, fleet: str, before: Mark, entries: Sequence[Entry]) -> Segment:
    """Write entries that follow `before` into a new segment, and prove it by reading it back.

    Raises:
        LogCorrupt: what was read back is not what was written; the file is gone again.
        OSError.
    """
    packed = zlib.compress(b"".join(entry.raw + b"\n" for entry in entries), 6)
    header = Header(
        fleet=fleet,
        first=entries[0].position,
        last=entries[-1].position,
        previous=before.digest,
        sha256=hashlib.sha256(packed).hexdigest(),
    )
    line = msgspec.json.encode(header) + b"\n"
    digest = hashlib.sha256(line).hexdigest()
    path = folder / f"{header.first:020d}-{header.last:020d}-{digest[:16]}.segment"
    _appear(path, line + packed)
    segment = Segment(path=path, header=header, digest=digest)
    try:
        if list(read_segment(segment)) != list(entries):
            raise LogCorrupt(header.first, f"{path.name} does not hold what was written to it")
    except LogCorrupt:
        path.unlink()
        raise
    return segment


def _appear(path: Path, content: bytes) -> None:
    """Write a file that is whole and on disk once its name exists."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".segment-", delete=False) as sink:
        partial = Path(sink.name)
        try:
            sink.write(content)
            sink.flush()
            os.fsync(sink.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def chain_of(folder: Path, fleet: str) -> tuple[Segment, ...]:
    """Find the segments of a fleet and prove that they are one chain; entries are not read.

    Raises:
        LogCorrupt: names the position and the file at which the chain breaks.
        OSError.
    """
    chain: list[Segment] = []
    before = Mark()
    for path in sorted(folder.glob("*.segment")):
        segment = _open(path, fleet, Position(before.position + 1))
        _check_link(segment, before)
        chain.append(segment)
        before = segment.mark
    return tuple(chain)


def _open(path: Path, fleet: str, expected: Position) -> Segment:
    """Read a header and compare it with the file's name."""
    name = _NAME.fullmatch(path.name)
    if name is None:
        raise LogCorrupt(expected, f"{path.name}: no name of a segment")
    first = Position(int(name[1]))
    with path.open("rb") as file:
        line = file.readline(4096)
    digest = hashlib.sha256(line).hexdigest()
    if not digest.startswith(name[3]):
        raise LogCorrupt(first, f"{path.name}: its header was altered: the digest does not match")
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError as error:
        raise LogCorrupt(first, f"{path.name}: its header does not decode: {error}") from error
    if header.version > VERSION:
        raise LogCorrupt(first, f"{path.name}: layout {header.version} of a newer release")
    if header.fleet != fleet:
        raise LogCorrupt(first, f"{path.name}: a segment of fleet {header.fleet}, not of {fleet}")
    if (header.first, header.last) != (first, int(name[2])):
        raise LogCorrupt(first, f"{path.name}: it holds {header.first} to {header.last}")
    return Segment(path=path, header=header, digest=digest)


def _check_link(segment: Segment, before: Mark) -> None:
    """Compare a segment with the one before."""
    first, name = segment.header.first, segment.path.name
    if first > before.position + 1:
        gap = f"{before.position + 1} to {first - 1}"
        raise LogCorrupt(before.position + 1, f"a segment is missing: none has positions {gap}")
    if first <= before.position:
        raise LogCorrupt(first, f"{name}: an earlier segment has its positions already")
    if segment.header.previous != before.digest:
        raise LogCorrupt(first, f"{name}: it does not follow the segment before it")


def read_segment(segment: Segment) -> Iterator[Entry]:
    """Yield the entries of a segment, proven.

    Raises:
        LogCorrupt: a byte was altered, or an entry does not stand where it says.
        OSError.
    """
    header, name = segment.header, segment.path.name
    _, _, packed = segment.path.read_bytes().partition(b"\n")
    if hashlib.sha256(packed).hexdigest() != header.sha256:
        where = f"{name}: its entries {header.first} to {header.last} were altered"
        raise LogCorrupt(header.first, f"{where}: the digest does not match")
    try:
        lines = zlib.decompress(packed).split(b"\n")[:-1]
    except zlib.error as error:
        raise LogCorrupt(header.first, f"{name}: {error}") from error
    for position, raw in enumerate(lines, header.first):
        claimed = _CLAIM.search(raw)
        if claimed is None or int(claimed[1]) != position:
            says = f"an entry that says {claimed[1].decode()}" if claimed else "no entry"
            raise LogCorrupt(position, f"{name}: {says} stands here")
        yield Entry(Position(position), raw)
    if len(lines) != header.last - header.first + 1:
        raise LogCorrupt(header.first + len(lines), f"{name}: it ends too early")
