"""What a training process answers while its thread computes, waits in its step, or is parked."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from statemachine import messages as m
from statemachine.events import Handover, JobDeclared, Motive, Report
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Slot, TransitionId
from statemachine.topology import Holder
from worker.channel import ChannelClosed
from worker.control import Control
from worker.groups.managed import ManagedGroup
from worker.groups.port import Cause, Prepared
from worker.orders import NOTHING_KNOWN
from worker.seat import Seat, layout_of, seat_of

JOB = JobId("j")
LAYOUT = layout_of(JobDeclared(job=JOB, axes={"dp": 3}))
STANDS = Report(has_state=True, applied=6)
WAIT_S = 10.0


class Wire:
    """The process's end of a channel, played by the test."""

    def __init__(self) -> None:
        self.said: list[m.FromWorker] = []
        self.changed = threading.Condition()
        self._told: list[m.ToWorker | None] = []

    def send(self, message: m.FromWorker) -> None:
        """Take what the process says."""
        with self.changed:
            self.said.append(message)
            self.changed.notify_all()

    def tell(self, message: m.ToWorker | None) -> None:
        """Tell it something; None ends the conversation."""
        with self.changed:
            self._told.append(message)
            self.changed.notify_all()

    def receive(self) -> m.ToWorker:
        """Give what was told, in order."""
        with self.changed:
            self.changed.wait_for(lambda: bool(self._told))
            found = self._told.pop(0)
        if found is None:
            raise ChannelClosed("over")
        return found

    def close(self) -> None:
        """Nothing to close."""

    def until_said(self, *kinds: type[m.Message]) -> list[m.FromWorker]:
        """Wait until something of each kind was said; the last of each."""

        def holds() -> bool:
            return {type(one) for one in self.said} >= set(kinds)

        with self.changed:
            assert self.changed.wait_for(holds, WAIT_S), self.said
            return [next(o for o in reversed(self.said) if type(o) is kind) for kind in kinds]


class Links:
    """A group that has links to everybody at once."""

    def __init__(self) -> None:
        self.causes: list[Cause] = []

    def prepare(self, plan: Any, deadline_s: float) -> Prepared:
        """Open nothing."""
        return Prepared(plan.tag, 1, 1, 0.0)

    def break_off(self, cause: Cause) -> None:
        """Note why."""
        self.causes.append(cause)


def _members(*names: str) -> tuple[Holder, ...]:
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


def _prepare(number: int, members: tuple[Holder, ...]) -> m.Prepare:
    return m.Prepare(
        transition=TransitionId(number),
        motive=Motive.UNPLANNED if number > 1 else Motive.LAUNCH,
        epoch=Epoch(number),
        slot=Slot(0),
        members=members,
        leavers=(),
        deadline_at_ms=1 << 50,
    )


def _commit(number: int, **more: Any) -> m.Commit:
    return m.Commit(
        transition=TransitionId(number),
        motive=Motive.UNPLANNED,
        epoch=Epoch(number),
        resume_step=7,
        **more,
    )


HANDOVER = Handover(slot=Slot(0), joiner=NodeId("n0"), sources=())
BEFORE, AFTER = _members("n0", "n1", "n2"), _members("n0", "n1", "n3")


class Played:
    """A control whose training thread is the test's."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.links = Links()
        self.seat: Seat | None = seat_of(JOB, LAYOUT, _prepare(1, BEFORE), 0)
        groups = cast("dict[str, ManagedGroup]", {"dp": self.links})
        self.control = Control(self.wire, JOB, LAYOUT, 0, groups, lambda: self.seat)
        self.given: list[tuple[int, list[str]]] = []
        self.taken = 0
        self.control.give = self._given
        self.control.take = self._took
        self.control.saves = lambda: NOTHING_KNOWN
        self.control.start()

    def _given(self, transition: TransitionId, takers: Sequence[Holder]) -> None:
        self.given.append((transition, [str(one.node) for one in takers]))

    def _took(self) -> None:
        self.taken += 1


@pytest.fixture
def played() -> Any:
    """A control that listens until the test is over."""
    one = Played()
    yield one
    one.wire.tell(None)


def _in_thread(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    return thread, found


def test_a_thread_in_the_middle_of_a_step_is_answered_for(played: Played) -> None:
    """A loss is answered while the step computes, and that step's vote cannot pass any more."""
    played.control.step_begins(STANDS)
    played.wire.tell(_prepare(2, AFTER))
    (said,) = played.wire.until_said(m.Prepared)

    assert isinstance(said, m.Prepared)
    assert (said.report, said.computing) == (STANDS, True)
    assert played.links.causes, "groups are broken before anything is answered"
    assert not played.control.may_vote()


def test_a_thread_that_casts_its_vote_is_not(played: Played) -> None:
    """Between the vote and its outcome nobody knows where the thread will stand: it must park."""
    played.control.step_begins(STANDS)
    assert played.control.may_vote()
    played.wire.tell(_prepare(2, AFTER))
    thread, found = _in_thread(
        lambda: played.control.park(Report(has_state=True, applied=6, pending=7), holds_slot=True)
    )
    _parked, said = played.wire.until_said(m.Parked, m.Prepared)
    played.wire.tell(_commit(2))
    thread.join(WAIT_S)

    assert isinstance(said, m.Prepared)
    assert said.report == Report(has_state=True, applied=6, pending=7)
    assert not said.computing
    assert [type(order) for order, _ in found] == [m.Commit]


def test_where_members_stay_the_same_the_thread_must_park(played: Played) -> None:
    """Whoever hangs is found by not parking, so nobody is answered for who only computes."""
    played.control.step_begins(STANDS)
    played.wire.tell(_prepare(2, BEFORE))
    thread, _ = _in_thread(lambda: played.control.park(STANDS, holds_slot=True))
    _parked, said = played.wire.until_said(m.Parked, m.Prepared)
    played.wire.tell(_commit(2))
    thread.join(WAIT_S)

    assert isinstance(said, m.Prepared)
    assert not said.computing


def test_the_state_is_given_while_the_step_computes(played: Played) -> None:
    """A source waits neither for its training thread nor for the order: the newcomer has it soon,
    and whoever the order names besides.
    """
    played.control.step_begins(STANDS)
    played.wire.tell(_prepare(2, AFTER))
    played.wire.until_said(m.Prepared)
    thread, found = _in_thread(lambda: played.control.wait_in_step("", lambda *_: True))
    played.wire.until_said(m.Parked)
    first = list(played.given)
    played.wire.tell(_commit(2, send=AFTER[1:2]))
    thread.join(WAIT_S)

    assert first == [(2, ["n3"])]
    assert played.given == [(2, ["n3"]), (2, ["n1"])]
    assert found[0][0].transition == 2


def test_a_thread_that_is_parked_in_its_vote_gives_nothing_early(played: Played) -> None:
    """It may have to apply a step before its state is the one that is asked for."""
    played.control.step_begins(STANDS)
    assert played.control.may_vote()
    played.wire.tell(_prepare(2, AFTER))
    thread, _ = _in_thread(
        lambda: played.control.park(Report(has_state=True, applied=6, pending=7), holds_slot=True)
    )
    played.wire.until_said(m.Parked, m.Prepared)
    played.wire.tell(_commit(2, send=AFTER[2:], apply=True))
    thread.join(WAIT_S)

    assert played.given == []


def test_a_state_that_may_be_loaded_is_not_given_early(played: Played) -> None:
    """Where what was saved is asked for, nobody knows yet which state will be wanted."""
    played.control.step_begins(STANDS)
    played.wire.tell(replace(_prepare(2, AFTER), asks_saves=True))
    played.wire.until_said(m.Prepared)
    played.wire.tell(_commit(2, send=AFTER[2:], loads=True))
    thread, _ = _in_thread(lambda: played.control.wait_in_step("", lambda *_: True))
    thread.join(WAIT_S)

    assert played.given == []


@pytest.mark.parametrize("has_state", [False, True])
def test_a_newcomer_takes_early_what_it_cannot_lose(played: Played, has_state: bool) -> None:
    """A parked process without state lets the state come; one that has some keeps it."""
    played.seat = None
    played.wire.tell(_prepare(2, AFTER))
    report = Report(has_state=has_state, applied=5 if has_state else -1)
    thread, _ = _in_thread(lambda: played.control.park(report, holds_slot=False))
    played.wire.until_said(m.Prepared)
    played.wire.tell(_commit(2))
    thread.join(WAIT_S)

    assert played.taken == int(not has_state)


def test_a_step_that_goes_on_may_vote(played: Played) -> None:
    """With an order that suits it, the step is alive again, and its vote may pass."""
    played.control.step_begins(STANDS)
    played.wire.tell(_prepare(2, AFTER))
    thread, found = _in_thread(lambda: played.control.wait_in_step("", lambda *_: True))
    played.wire.until_said(m.Parked)
    played.wire.tell(_commit(2))
    thread.join(WAIT_S)

    order, seat = found[0]
    assert (order.transition, seat.members) == (2, AFTER)
    assert played.control.may_vote()


@pytest.mark.parametrize(
    "order",
    [_commit(2, leave=True), m.Release(), _commit(2, receive=HANDOVER)],
    ids=["leave", "release", "receive"],
)
def test_an_order_that_does_not_suit_the_step_waits_for_its_end(
    played: Played, order: m.Commit | m.Release
) -> None:
    """The step is given up, its vote cannot pass, and the order is taken where it parks."""

    def suits(order: m.Commit, _seat: Seat) -> bool:
        return not order.leave and order.receive is None

    played.control.step_begins(STANDS)
    played.wire.tell(_prepare(2, AFTER))
    thread, found = _in_thread(lambda: played.control.wait_in_step("", suits))
    played.wire.until_said(m.Parked)
    played.wire.tell(order)
    thread.join(WAIT_S)

    assert found == [None]
    assert not played.control.may_vote()
    assert played.control.park(STANDS, holds_slot=True)[0] == order


def test_a_step_is_not_begun_while_a_loss_is_not_answered(played: Played) -> None:
    """What would be thrown away for certain is not computed."""
    assert not played.control.is_called_off()
    played.wire.tell(_prepare(2, AFTER))
    thread, _ = _in_thread(lambda: played.control.park(STANDS, holds_slot=True))
    played.wire.until_said(m.Parked, m.Prepared)
    assert played.control.is_called_off()
    played.wire.tell(_commit(2))
    thread.join(WAIT_S)
    played.seat = played.control.prepared_seat()

    assert not played.control.is_called_off()
