"""An index beside a long log: states at some positions, so that any moment is folded to at once.

What belongs here: making, reading and trusting the file ``<log>.index``. It holds, behind one
header line, images of the state every `IMAGE_EVERY` entries (in `imaging`'s form) with the byte of
the log at which to read on. It is a cache: one of another log, another length or another release is
not read but made anew, and a log can always do without.

    {"changeover": "index", "version": 1, "shape": "...", "size": 1, "marks": [...], ...}

Only a whole log is indexed: damage must be said each time, and is found by reading.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from controlplane.folding import BLANK
from controlplane.imaging import Image, SnapshotUnusable, decode_image, encode_image, shape
from controlplane.postmortem.logfile import LogFile
from controlplane.postmortem.moments import Moment
from statemachine.evolve import evolve
from statemachine.history import state_at
from statemachine.ids import Position
from statemachine.state import FleetState

IMAGE_EVERY: Final = 20_000
"""Entries between two images: what is folded to answer is at most that many."""

VERSION: Final = 1

_FLEET: Final = "index"


class Mark(Struct, frozen=True, kw_only=True):
    """One image: the state after `position`, at Unix time `at_ms`, and where to read on."""

    position: int
    at_ms: int
    offset: int
    """Byte of the log at which the next entry begins."""
    image_at: int
    """Byte behind the header at which the image begins."""
    image_bytes: int


class _Header(Struct, frozen=True, kw_only=True):
    changeover: str
    version: int
    shape: str
    size: int
    modified_ns: int
    first_at_ms: int
    last: int
    last_at_ms: int
    marks: tuple[Mark, ...] = ()


class Index:
    """An opened index of one log."""

    def __init__(self, log: Path, header: _Header, behind: int) -> None:
        self._log = log
        self._header = header
        self._behind = behind

    @property
    def span(self) -> tuple[int, int]:
        """Unix ms of the log's first and last entry."""
        return self._header.first_at_ms, self._header.last_at_ms

    def state_at(self, moment: Moment) -> FleetState:
        """The state after a position, or at a time.

        Raises:
            NotInHistory: the log does not reach there.
            SnapshotUnusable: the index was damaged; remove it.
        """
        start, offset = BLANK.state, 0
        mark = self._before(moment)
        if mark is not None:
            start, offset = self._image(mark), mark.offset
        read = LogFile(self._log, offset=offset, after=start.position)
        return state_at(read.entries(), moment.position, at_ms=moment.at_ms, start=start)

    def _before(self, moment: Moment) -> Mark | None:
        """The last image that is not behind a moment."""
        found = None
        for mark in self._header.marks:
            late = (
                mark.position > moment.position
                if moment.position is not None
                else moment.at_ms is not None and mark.at_ms > moment.at_ms
            )
            if late:
                break
            found = mark
        return found

    def _image(self, mark: Mark) -> FleetState:
        with index_path(self._log).open("rb") as file:
            file.seek(self._behind + mark.image_at)
            blob = file.read(mark.image_bytes)
        return decode_image(_FLEET, blob).state


def index_path(log: Path) -> Path:
    """Where the index of a log is kept."""
    return log.with_name(log.name + ".index")


def open_index(log: Path) -> Index | None:
    """The index of a log, if there is one that fits it."""
    try:
        known = log.stat()
        with index_path(log).open("rb") as file:
            line = file.readline()
        header = msgspec.json.decode(line, type=_Header)
    except (OSError, msgspec.MsgspecError):
        return None
    wanted = (_FLEET, VERSION, shape(), known.st_size, known.st_mtime_ns)
    got = (header.changeover, header.version, header.shape, header.size, header.modified_ns)
    return Index(log, header, len(line)) if got == wanted else None


def make_index(
    log: LogFile, *, every: int = IMAGE_EVERY, progress: Callable[[int], None] = lambda _: None
) -> Index | None:
    """Read a log once and write its index; None if the log is damaged or cannot be written beside.

    `progress` is told how many entries were read, now and then.
    """
    known = log.path.stat()
    target = index_path(log.path)
    try:
        images = tempfile.TemporaryFile(dir=target.parent)  # noqa: SIM115  (closed below)
    except OSError:
        return None
    with images:
        header = _indexed(log, images, every, progress)
        if header is None:
            return None
        header = msgspec.structs.replace(header, size=known.st_size, modified_ns=known.st_mtime_ns)
        line = msgspec.json.encode(header) + b"\n"
        images.seek(0)
        with tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=target.name, delete=False
        ) as sink:
            partial = Path(sink.name)
            try:
                sink.write(line)
                while chunk := images.read(1 << 20):
                    sink.write(chunk)
                sink.flush()
                partial.chmod(0o644)
                partial.replace(target)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    return Index(log.path, header, len(line))


def _indexed(
    log: LogFile, images: Any, every: int, progress: Callable[[int], None]
) -> _Header | None:
    state = FleetState()
    marks: list[Mark] = []
    first_at_ms = 0
    for count, recorded in enumerate(log.entries()):
        if count and count % every == 0:  # before this entry, which begins at `log.offset`
            blob = encode_image(_FLEET, Image(state=state, counters=BLANK.counters))
            marks.append(
                Mark(
                    position=state.position,
                    at_ms=state.at_ms,
                    offset=log.offset,
                    image_at=images.tell(),
                    image_bytes=len(blob),
                )
            )
            images.write(blob)
            progress(count)
        state = evolve(state, recorded)
        if not count:
            first_at_ms = state.at_ms
    if not log.is_whole:
        return None
    return _Header(
        changeover=_FLEET,
        version=VERSION,
        shape=shape(),
        size=0,
        modified_ns=0,
        first_at_ms=first_at_ms,
        last=Position(state.position),
        last_at_ms=state.at_ms,
        marks=tuple(marks),
    )


__all__ = ["Index", "SnapshotUnusable", "index_path", "make_index", "open_index"]
