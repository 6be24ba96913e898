"""Which groups a seat has, whole and while replicas are absent."""

import pytest

from statemachine.errors import BadLayout
from statemachine.events import JobDeclared, Motive
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Slot, TransitionId
from statemachine.messages import Prepare
from statemachine.topology import Holder
from worker.seat import Seat, layout_of, seat_of

JOB = JobId("j")
DECLARED = JobDeclared(job=JOB, axes={"dp": 3, "tp": 2}, groups={"all": ("dp", "tp")})


def _seat(slot: int, present: list[int], idle: tuple[int, ...] = ()) -> Seat:
    members = tuple(
        Holder(
            slot=Slot(one),
            node=NodeId(f"n{one}"),
            incarnation=Incarnation(1),
            host="h",
            port=one,
            transfer_port=one,
        )
        for one in present
    )
    told = Prepare(
        transition=TransitionId(1),
        motive=Motive.UNPLANNED,
        epoch=Epoch(2),
        slot=Slot(slot),
        members=members,
        leavers=(),
        deadline_at_ms=0,
        idle=tuple(map(Slot, idle)),
    )
    return seat_of(JOB, layout_of(DECLARED), told, 0)


def _slots(seat: Seat) -> dict[str, list[int]]:
    return {kind: [member.slot for member in plan.members] for kind, plan in seat.plans.items()}


def test_a_whole_job_has_every_group_whole() -> None:
    """Every kind, with every member, in slot order."""
    seat = _seat(2, list(range(6)))

    assert _slots(seat) == {"dp": [0, 2, 4], "tp": [2, 3], "all": [0, 1, 2, 3, 4, 5]}
    assert {kind: plan.me for kind, plan in seat.plans.items()} == {"dp": 1, "tp": 0, "all": 2}


def test_groups_do_without_idle_slots() -> None:
    """Along the replica axis the absent are left out, be it to one; other groups are whole."""
    seat = _seat(4, [0, 1, 4, 5], idle=(2, 3))
    alone = _seat(4, [4, 5], idle=(0, 1, 2, 3))

    assert _slots(seat) == {"dp": [0, 4], "tp": [4, 5], "all": [0, 1, 4, 5]}
    assert {kind: plan.me for kind, plan in seat.plans.items()} == {"dp": 1, "tp": 0, "all": 2}
    assert _slots(alone) == {"dp": [4], "tp": [4, 5], "all": [4, 5]}
    assert alone.rank == 4  # what it computes does not depend on who else takes part


def test_a_slot_that_nobody_holds_by_accident_leaves_its_groups_without_a_plan() -> None:
    """Nothing is built on a gap that nobody meant."""
    assert _slots(_seat(4, [0, 1, 4, 5])) == {"tp": [4, 5]}


def test_several_ranks_in_one_process_are_refused() -> None:
    """In words that say what to do instead."""
    with pytest.raises(BadLayout, match="run an agent for each rank"):
        layout_of(JobDeclared(job=JOB, axes={"dp": 4}, ranks_per_node=2))
