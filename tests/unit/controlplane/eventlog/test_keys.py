"""Names of keys: distinct, ordered, and readable back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.eventlog.keys import Keys
from controlplane.eventlog.store import prefix_end
from statemachine.errors import BadName
from statemachine.ids import Incarnation, JobId, NodeId

KEYS = Keys("f0")
N = NodeId("n0")


def test_no_two_keys_are_one() -> None:
    """Every kind of key has a name of its own under the fleet's root."""
    one = Incarnation(1)
    keys = [
        KEYS.schema,
        KEYS.head,
        KEYS.leader,
        KEYS.log(1),
        KEYS.inbox("n0", 1, 1),
        KEYS.counter("n0"),
        KEYS.act("n0", 1),
        KEYS.incarnations(N),
        KEYS.node(N, one),
        KEYS.fenced(N, one),
        KEYS.vitals(N, one),
        KEYS.desired(JobId("n0")),
        KEYS.orders(N),
    ]

    assert len(set(keys)) == len(keys)
    assert all(key.startswith(b"/changeover/f0/") for key in keys)


@given(st.integers(0, 10**18), st.integers(0, 10**18))
def test_the_order_of_keys_is_the_order_of_positions(left: int, right: int) -> None:
    """Keys of entries sort as their positions do, and give them back."""
    assert (KEYS.log(left) < KEYS.log(right)) == (left < right)
    assert KEYS.position(KEYS.log(left)) == left


@pytest.mark.parametrize(
    "name",
    [b"", b"7", b"x", b"\xff\xfe", b"%020d/1" % 1, b"%020dx" % 1, b"%021d" % 1, b"+%019d" % 1],
)
def test_what_is_no_key_of_an_entry_names_no_position(name: bytes) -> None:
    """Whatever somebody else put beside the entries is none of them, and breaks no reader."""
    assert KEYS.position(KEYS.log_all[0] + name) is None
    assert KEYS.parts(KEYS.log_all[0] + name)[0] == "log"


@given(st.binary(min_size=1, max_size=4), st.binary(max_size=6))
def test_a_prefix_range_holds_what_starts_with_it(prefix: bytes, key: bytes) -> None:
    """`[prefix, prefix_end)` holds a key exactly if the key starts with the prefix."""
    if not prefix.rstrip(b"\xff"):
        with pytest.raises(ValueError, match="below 0xff"):
            prefix_end(prefix)
        return

    assert (prefix <= key < prefix_end(prefix)) == key.startswith(prefix)


def test_one_nodes_range_is_not_anothers() -> None:
    """The range of node n1 does not hold the keys of node n10."""
    start, end = KEYS.node_all(NodeId("n1"))

    assert start <= KEYS.node(NodeId("n1"), Incarnation(3)) < end
    assert not start <= KEYS.node(NodeId("n10"), Incarnation(3)) < end


def test_a_fleet_needs_a_name() -> None:
    """A fleet whose name could leave its prefix is refused."""
    with pytest.raises(BadName):
        Keys("a/b")
