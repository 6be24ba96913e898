"""One segment of an archive: whatever is altered in it, anywhere, shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.eventlog import Entry, LogCorrupt, Mark, archive
from controlplane.eventlog.archive import chain_of, read_segment, write_segment
from statemachine.codec import encode_recorded
from statemachine.events import NodeJoined, Recorded
from statemachine.ids import Incarnation, NodeId, Position

FLEET = "lab"


def entries(first: int, count: int) -> list[Entry]:
    """Entries of a log from a position on."""
    found = []
    for position in range(first, first + count):
        joined = NodeJoined(node=NodeId("n0"), incarnation=Incarnation(position), host="h")
        told = Recorded(position=Position(position), at_ms=position, writer="n0", event=joined)
        found.append(Entry(Position(position), encode_recorded(told)))
    return found


def read(folder: Path) -> list[Entry]:
    """Everything that a folder of segments holds, proven."""
    return [entry for segment in chain_of(folder, FLEET) for entry in read_segment(segment)]


def test_every_flipped_byte_of_a_segment_is_found(tmp_path: Path) -> None:
    """In the header, at its end, among the entries: the file is named, and where it begins."""
    path = write_segment(tmp_path, FLEET, Mark(), entries(1, 4)).path
    whole = path.read_bytes()
    assert read(tmp_path) == entries(1, 4)

    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(LogCorrupt, match=path.name) as caught:
            read(tmp_path)
        assert caught.value.position == 1, f"byte {at} of {len(whole)}"


@pytest.mark.parametrize("left", [0, 1, 100, -1])
def test_a_segment_that_is_cut_short_is_found(tmp_path: Path, left: int) -> None:
    """Wherever it ends before its end."""
    path = write_segment(tmp_path, FLEET, Mark(), entries(1, 4)).path
    path.write_bytes(path.read_bytes()[:left])

    with pytest.raises(LogCorrupt, match=path.name):
        read(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"), [("1-", "2-"), ("4-", "5-"), (".segment", "0.segment")], ids=str
)
def test_a_name_that_says_something_else_is_found(tmp_path: Path, old: str, new: str) -> None:
    """Its positions and its digest stand in the name as well, and must agree."""
    path = write_segment(tmp_path, FLEET, Mark(), entries(1, 4)).path
    path.rename(path.with_name(path.name.replace(old, new, 1)))

    with pytest.raises(LogCorrupt):
        read(tmp_path)


def test_a_segment_of_a_newer_layout_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody guesses what a newer release wrote: it is named."""
    path = write_segment(tmp_path, FLEET, Mark(), entries(1, 4)).path
    monkeypatch.setattr(archive, "VERSION", archive.VERSION - 1)

    with pytest.raises(LogCorrupt, match=f"{path.name}: layout 1 of a newer release"):
        read(tmp_path)


def test_a_segment_that_is_there_twice_is_found(tmp_path: Path) -> None:
    """Two segments with the same positions are not one log."""
    first = write_segment(tmp_path, FLEET, Mark(), entries(1, 4))
    write_segment(tmp_path, FLEET, first.mark, entries(3, 4))

    with pytest.raises(LogCorrupt, match="an earlier segment has its positions already"):
        read(tmp_path)
