"""Who gives a state and who takes it: one guess at both ends, made before anybody is told."""

import pytest

from statemachine import messages as m
from statemachine.events import JobDeclared, Motive
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Slot, TransitionId
from statemachine.topology import Holder
from worker.handover import likely_sources, likely_takers
from worker.seat import layout_of

LAYOUT = layout_of(JobDeclared(job=JobId("j"), axes={"dp": 3, "tp": 2}))


def _held(*names: str) -> tuple[Holder, ...]:
    return tuple(
        Holder(
            slot=Slot(slot),
            node=NodeId(name),
            incarnation=Incarnation(1),
            host="h",
            port=slot,
            transfer_port=slot,
        )
        for slot, name in enumerate(names)
    )


BEFORE = _held("a0", "b0", "a1", "b1", "a2", "b2")


def _told(slot: int, after: tuple[Holder, ...], motive: Motive = Motive.UNPLANNED) -> m.Prepare:
    return m.Prepare(
        transition=TransitionId(2),
        motive=motive,
        epoch=Epoch(2),
        slot=Slot(slot),
        members=after,
        leavers=BEFORE[2:3],
        deadline_at_ms=0,
    )


@pytest.mark.parametrize(
    "after",
    [
        _held("a0", "b0", "new", "b1", "a2", "b2"),
        _held("a0", "b0", "new", "newer", "a2", "b2"),
        _held("new", "b0", "newer", "b1", "a2", "b2"),
    ],
    ids=["one", "both shards of a replica", "two of a shard"],
)
def test_whom_a_newcomer_asks_knows_that_it_is_asked(after: tuple[Holder, ...]) -> None:
    """A member gives early to exactly those who ask it, and only to newcomers."""
    asks = {
        (str(holder.node), str(giver.node))
        for holder in after
        if holder not in BEFORE
        for giver in likely_sources(LAYOUT, _told(holder.slot, after))
    }
    gives = {
        (str(taker.node), str(holder.node))
        for holder in after
        for taker in likely_takers(LAYOUT, _told(holder.slot, after), BEFORE)
    }

    assert gives == asks
    assert {giver for _, giver in asks} >= {"a2"}


def test_in_a_planned_swap_the_leaver_alone_is_asked() -> None:
    """It hands over at the boundary; at a launch nobody has anything yet."""
    after = _held("a0", "b0", "new", "b1", "a2", "b2")

    assert likely_sources(LAYOUT, _told(2, after, Motive.PLANNED)) == BEFORE[2:3]
    assert likely_sources(LAYOUT, _told(2, after, Motive.LAUNCH)) == ()
