"""How consumed facts become few deletions that hit nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.eventlog.items import InboxItem
from controlplane.eventlog.leadership import Batch, _runs
from statemachine.ids import Incarnation, JobId, NodeId, Position

ITEMS = st.sets(st.tuples(st.sampled_from(["n0", "n1"]), st.integers(1, 2), st.integers(1, 12)))


def items_of(facts: set[tuple[str, int, int]]) -> tuple[InboxItem, ...]:
    """Inbox items of some facts, in no particular order."""
    return tuple(
        InboxItem(writer, Incarnation(incarnation), counter, 1, b"")
        for writer, incarnation, counter in facts
    )


@given(ITEMS)
def test_runs_cover_exactly_what_was_consumed(facts: set[tuple[str, int, int]]) -> None:
    """The runs of deletions hold every consumed fact and no other, and do not overlap."""
    covered = [
        (first.writer, int(first.incarnation), counter)
        for first, last in _runs(items_of(facts))
        for counter in range(first.counter, last.counter + 1)
    ]

    assert len(covered) == len(set(covered))
    assert set(covered) == facts


@given(ITEMS)
def test_a_batch_counts_what_it_needs(facts: set[tuple[str, int, int]]) -> None:
    """A batch says how many store operations it needs: runs of one node's facts count once."""
    consumed = items_of(facts)
    batch = Batch(
        after=Position(0),
        entries=(b"",) * len(consumed),
        consumed=consumed,
        fenced=((NodeId("n2"), Incarnation(1)),),
        desired=((JobId("j"), b""),),
    )

    runs = len(list(_runs(consumed)))
    assert batch.ops == len(consumed) + 1 + runs + 2 + 1
