"""The pure half of the store in memory, against a model that is too slow to be wrong."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.eventlog.memory_table import Table
from controlplane.eventlog.store import Delete, Get, Op, Put

NAMES = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
OPS = st.one_of(
    st.builds(Put, NAMES, st.binary(max_size=2)),
    st.builds(Delete, NAMES),
    st.builds(Delete, NAMES, NAMES),
)


def model(ops: list[Op]) -> list[dict[bytes, bytes]]:
    """The whole store after each revision, from revision 1 on."""
    states: list[dict[bytes, bytes]] = [{}]
    for op in ops:
        now = dict(states[-1])
        match op:
            case Put(key, value):
                now[key] = value
            case Delete(key, end):
                gone = [name for name in now if (key <= name < end if end else name == key)]
                for name in gone:
                    del now[name]
            case Get():
                pass
        if now != states[-1] or isinstance(op, Put):
            states.append(now)
    return states


@given(st.lists(OPS, max_size=30), st.data())
def test_every_revision_is_as_it_was(ops: list[Op], data: st.DataObject) -> None:
    """Each revision reads as the model says, also after compaction at any revision before it."""
    table = Table()
    for op in ops:
        table.apply([op])
    states = model(ops)
    assert table.revision == len(states)

    floor = data.draw(st.integers(1, len(states)), label="compacted at")
    table.compact(floor)

    for revision in range(floor, len(states) + 1):
        found = {kv.key: kv.value for kv in table.select(b"a", b"z", revision)}
        assert found == states[revision - 1], revision
    assert {kv.key: kv.value for kv in table.select(b"a", b"z")} == states[-1]


@given(st.lists(OPS, max_size=30), st.data())
def test_changes_rebuild_the_store(ops: list[Op], data: st.DataObject) -> None:
    """Applying the changes since a revision to the store as of then gives the store as it is."""
    table = Table()
    for op in ops:
        table.apply([op])
    revision = data.draw(st.integers(1, table.revision), label="since")

    rebuilt = {kv.key: kv.value for kv in table.select(b"a", b"z", revision)}
    for change in table.since(revision + 1):
        if change.deleted:
            del rebuilt[change.kv.key]
        else:
            rebuilt[change.kv.key] = change.kv.value

    assert rebuilt == {kv.key: kv.value for kv in table.live.values()}
