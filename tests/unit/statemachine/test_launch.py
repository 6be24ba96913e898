"""Where a launch begins: at step 0, or behind the newest checkpoint that every shard has."""

from statemachine.events import Report
from statemachine.ids import NodeId, Slot
from statemachine.layout import Layout
from statemachine.transition import Resume, load_point, resume_point

FOUR = Layout.of({"pp": 2, "dp": 2})
"""Slots 0 and 1 hold the first stage, 2 and 3 the second."""


def _launch(layout: Layout, *saved: int) -> Resume:
    members = {Slot(slot): NodeId(f"n{slot}") for slot in range(layout.slot_count)}
    reports = {Slot(s): Report(has_state=False, saved=step) for s, step in enumerate(saved)}
    return resume_point(layout, members, reports)


def _given(found: Resume) -> dict[int, tuple[str, ...]]:
    return {int(h.slot): tuple(map(str, h.sources)) for h in found.handovers}


def test_without_checkpoints_a_launch_begins_at_step_0() -> None:
    """The first replica of each shard gives its initial weights."""
    found = _launch(FOUR, -1, -1, -1, -1)

    assert (found.step, _given(found)) == (0, {1: ("n0",), 3: ("n2",)})
    assert {h.kind for h in found.handovers} == {"initial"}


def test_a_launch_begins_behind_the_checkpoint() -> None:
    """Where all can load the same one, the first replica of each shard does, and gives it."""
    found = _launch(FOUR, 99, 99, 99, 99)

    assert (found.step, _given(found)) == (100, {1: ("n0",), 3: ("n2",)})
    assert {h.kind for h in found.handovers} == {"checkpoint"}
    assert "slots 0, 2 load the checkpoint of step 99" in found.reason


def test_who_has_no_checkpoint_receives_it_from_a_replica_that_has() -> None:
    """A machine whose disk is new is no obstacle as long as another has the shard."""
    found = _launch(FOUR, -1, 99, 99, -1)

    assert (found.step, _given(found)) == (100, {0: ("n1",), 3: ("n2",)})


def test_the_step_is_one_of_which_every_shard_has_a_checkpoint() -> None:
    """A newer checkpoint of one shard alone is of no use; without one of each there is none."""
    assert _launch(FOUR, 149, 99, 99, 99).step == 100
    assert _launch(FOUR, 149, 149, -1, -1).step == 0


def test_a_launch_in_which_nobody_reports_begins_at_step_0() -> None:
    """What an older log recorded folds and decides as it did."""
    assert _launch(FOUR).step == 0


def _back(*saves: tuple[int, ...], layout: Layout = FOUR) -> Resume | None:
    """Where a job goes back to whose members said this."""
    members = {Slot(slot): NodeId(f"n{slot}") for slot in range(layout.slot_count)}
    reports = {
        Slot(slot): Report(has_state=True, applied=20, saved=max(said, default=-1), saves=said)
        for slot, said in enumerate(saves)
    }
    return load_point(layout, members, reports)


def test_a_job_goes_back_to_the_newest_step_that_every_shard_can_load() -> None:
    """Newest of each is not enough: who has a newer one need not have the one before."""
    pair = Layout.of({"pp": 2, "dp": 1})
    found = _back((3, 7, 11), (7, 15), layout=pair)

    assert found is not None
    assert (found.step, found.loads, found.handovers) == (8, True, ())
    assert _back((3, 7), (11, 15), layout=pair) is None
    assert _back((3, 7), (), layout=pair) is None


def test_who_cannot_load_that_step_receives_it_from_a_replica_that_can() -> None:
    """One of each shard loads; the others, survivors among them, get it from there."""
    found = _back((3, 7), (3,), (3,), (3, 7))

    assert found is not None
    assert (found.step, _given(found)) == (8, {1: ("n0",), 2: ("n3",)})
    assert "slots 0, 3 load the checkpoint of step 7, and give it to their replicas" in found.reason
