"""A checksum at the end of a line: any change of it shows, and who does not know it can read on."""

import pytest

from statemachine.checksums import has_checksum, is_intact, with_checksum, without_checksum
from statemachine.codec import decode_recorded, encode_recorded
from statemachine.errors import EventCorrupt
from statemachine.events import NodeJoined, Recorded
from statemachine.ids import Incarnation, NodeId, Position

JOINED = NodeJoined(node=NodeId("n1"), incarnation=Incarnation(1), host="10.0.0.1")
ENTRY = Recorded(position=Position(7), at_ms=9, writer="n1", event=JOINED)
RAW = encode_recorded(ENTRY)


def test_a_checksum_leaves_an_entry_readable_and_is_taken_off_again() -> None:
    """The entry's own bytes come back; a release that knows none skips a field."""
    line = with_checksum(RAW)

    assert has_checksum(line)
    assert is_intact(line + b"\n")
    assert not has_checksum(RAW)
    assert without_checksum(line) == without_checksum(RAW) == RAW
    assert decode_recorded(line) == ENTRY


@pytest.mark.parametrize("at", range(len(with_checksum(RAW))))
def test_every_flipped_bit_of_a_line_shows(at: int) -> None:
    """In what was said, in the checksum, in the name of its field: the line is not intact."""
    line = with_checksum(RAW)

    for bit in range(8):
        altered = line[:at] + bytes([line[at] ^ 1 << bit]) + line[at + 1 :]
        assert not is_intact(altered + b"\n"), f"bit {bit} of byte {at}"
        if has_checksum(altered):
            with pytest.raises(EventCorrupt, match="altered"):
                without_checksum(altered)


def test_what_is_no_object_is_left_as_it_is() -> None:
    """An export holds what was written even where nobody can read it."""
    assert with_checksum(b"garbage") == b"garbage"
