"""What a newer controller puts into the keys that agents watch is read by an older agent."""

from __future__ import annotations

import msgspec
import pytest

from statemachine.errors import EventCorrupt
from statemachine.topology import (
    decode_desired,
    decode_orders,
    desired_of,
    encode_projection,
    orders_of,
)
from tests.properties.fleet import begun

MAPS = ("axes", "groups", "rank_sets")
"""Not records but maps: what is added there means something."""


def grown(raw: bytes) -> bytes:
    """The same value with fields that this release does not know, at every depth."""

    def more(value: object) -> object:
        match value:
            case dict():
                kept = {key: each if key in MAPS else more(each) for key, each in value.items()}
                return kept | {"colour": [{"red": 1}]}
            case list():
                return [more(each) for each in value]
            case _:
                return value

    return msgspec.json.encode(more(msgspec.json.decode(raw)))


def test_fields_of_a_newer_release_are_skipped() -> None:
    """Both keys say to an older agent what they said before they grew."""
    fleet = begun(lambda choices: choices[0])
    desired = desired_of(fleet.state, fleet.job)
    node = fleet.state.nodes[min(fleet.state.pool)]
    orders = orders_of(fleet.state, node)

    assert b"colour" in grown(encode_projection(desired))
    assert decode_desired(grown(encode_projection(desired))) == desired
    assert decode_orders(grown(encode_projection(orders))) == orders


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[]", b'{"job":7}', b"x\x9cno"])
def test_what_is_no_such_key_is_refused(raw: bytes) -> None:
    """By the one error that its readers know."""
    with pytest.raises(EventCorrupt):
        decode_desired(raw)
    with pytest.raises(EventCorrupt):
        decode_orders(raw)
