"""Incidents are told from the log alone: who left, who came, which phase took how long."""

from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from statemachine import events as e
from statemachine.codec import decode_recorded, encode_recorded
from statemachine.ids import (
    Epoch,
    GroupName,
    Incarnation,
    JobId,
    NodeId,
    Position,
    Role,
    Slot,
    TransitionId,
)
from statemachine.incidents import PHASES, Incident, incidents

JOB = JobId("j")
ONE = Incarnation(1)
TWO = Incarnation(2)
NODES = ("n0", "n1", "n2", "n3")


class Book:
    """A log that grows by one event at a time, at a given ms."""

    def __init__(self) -> None:
        self.entries: list[e.Recorded] = []

    def add(self, at_ms: int, event: e.AnyEvent) -> Position:
        position = Position(len(self.entries) + 1)
        self.entries.append(e.Recorded(position=position, at_ms=at_ms, writer="w", event=event))
        return position

    def told(self) -> tuple[Incident, ...]:
        return incidents(self.entries)


def launched() -> Book:
    """A job of three slots on n0 to n2 that runs at epoch 1, with n3 beside it."""
    book = Book()
    book.add(0, e.JobDeclared(job=JOB, axes={"dp": 3}))
    for name in NODES:
        book.add(1, joined(name))
        book.add(2, ready(name))
    changes = tuple(change(slot, NODES[slot]) for slot in range(3))
    launch = plan(1, e.Motive.LAUNCH, changes)
    book.add(3, with_fields(launch, from_epoch=Epoch(0)))
    book.add(4, committed(1, 1, 0))
    book.add(5, finished(1))
    return book


def joined(name: str) -> e.NodeJoined:
    """A machine that comes."""
    return e.NodeJoined(node=NodeId(name), incarnation=ONE, host="h")


def ready(name: str) -> e.WorkerReady:
    """A training process that waits."""
    return e.WorkerReady(
        node=NodeId(name),
        incarnation=ONE,
        job=JOB,
        host="h",
        port=1,
        transfer_port=2,
        pid=3,
        digest="d",
    )


def change(slot: int, joiner: str, leaver: str = "") -> e.Change:
    """A slot that changes hands."""
    return e.Change(
        slot=Slot(slot),
        joiner=NodeId(joiner),
        joiner_incarnation=ONE,
        leaver=NodeId(leaver),
        leaver_incarnation=ONE if leaver else Incarnation(0),
    )


def plan(
    number: int,
    motive: e.Motive,
    changes: tuple[e.Change, ...],
    *,
    replaces: int = 0,
    evidence: tuple[int, ...] = (),
) -> e.TransitionPlanned:
    """Phase one of a transition from epoch 1, required of every node."""
    return e.TransitionPlanned(
        job=JOB,
        transition=TransitionId(number),
        motive=motive,
        from_epoch=Epoch(1),
        changes=changes,
        required=tuple(NodeId(name) for name in NODES),
        deadline_at_ms=99_999,
        reason="because",
        replaces=TransitionId(replaces),
        evidence=tuple(Position(position) for position in evidence),
    )


def prepared(
    number: int, name: str, report: e.Report | None = None, quiesce_ms: float = 0.0
) -> e.TransitionPrepared:
    """An acknowledgement of phase one."""
    return e.TransitionPrepared(
        job=JOB,
        transition=TransitionId(number),
        node=NodeId(name),
        incarnation=ONE,
        report=report,
        quiesce_ms=quiesce_ms,
    )


def committed(number: int, epoch: int, resume_step: int) -> e.TransitionCommitted:
    """The commit of a transition."""
    return e.TransitionCommitted(
        job=JOB,
        transition=TransitionId(number),
        epoch=Epoch(epoch),
        resume_step=resume_step,
        apply=(),
        handovers=(),
        deadline_at_ms=99_999,
        reason="",
    )


def applied(number: int, name: str, phases_ms: dict[str, float]) -> e.TransitionApplied:
    """A member inside the new groups, with what it measured."""
    return e.TransitionApplied(
        job=JOB,
        transition=TransitionId(number),
        epoch=Epoch(2),
        node=NodeId(name),
        incarnation=ONE,
        step=8,
        phases_ms=phases_ms,
        bytes_received=100 if "transfer" in phases_ms else 0,
    )


def resumed(
    number: int, name: str, at_ms: float, step_ms: float, previous_at_ms: float = 0.0
) -> e.StepResumed:
    """The first step of a member in the new epoch."""
    return e.StepResumed(
        job=JOB,
        transition=TransitionId(number),
        node=NodeId(name),
        incarnation=ONE,
        step=8,
        step_ms=step_ms,
        committed_at_ms=at_ms,
        previous_at_ms=previous_at_ms,
    )


def finished(number: int) -> e.TransitionFinished:
    """The end of a transition."""
    return e.TransitionFinished(job=JOB, transition=TransitionId(number), epoch=Epoch(2), reason="")


def reset(peer: str, by: str) -> e.PeerReset:
    """A link that ended without a goodbye."""
    return e.PeerReset(
        node=NodeId(by),
        incarnation=ONE,
        job=JOB,
        epoch=Epoch(1),
        peer=NodeId(peer),
        peer_incarnation=ONE,
        group=GroupName("dp[0]"),
    )


def lose_n1(book: Book) -> None:
    """n1 dies at 1000, n0 says so at 1010, n3 takes its slot, step 8 is committed at 1100."""
    book.add(1010, reset("n1", "n0"))
    book.add(1011, reset("n1", "n2"))
    book.add(1012, e.NodeLost(node=NodeId("n1"), incarnation=ONE, reason="reset"))
    book.add(1012, plan(2, e.Motive.UNPLANNED, (change(1, "n3"),)))
    for name, quiesce_ms in (("n0", 4.0), ("n2", 9.0)):
        book.add(1030, prepared(2, name, e.Report(has_state=True, applied=7), quiesce_ms))
    book.add(1040, prepared(2, "n3", e.Report(has_state=False)))
    book.add(1041, committed(2, 2, 8))
    book.add(1060, applied(2, "n0", {"switch": 1.5}))
    book.add(1061, applied(2, "n3", {"transfer": 20.0, "switch": 2.0}))
    book.add(1062, applied(2, "n2", {"switch": 1.0}))
    book.add(1063, finished(2))
    book.add(1101, resumed(2, "n0", 1100.0, 50.0, 990.0))
    book.add(1101, resumed(2, "n3", 1100.5, 30.0))
    book.add(1101, resumed(2, "n2", 1100.2, 45.0, 991.0))


def test_a_launch_is_no_incident() -> None:
    """Filling the slots of a new job is nothing that went wrong."""
    assert launched().told() == ()


def test_a_loss_is_told_with_every_phase() -> None:
    """Each phase is the time between two facts, or the slowest member's own measurement."""
    book = launched()
    lose_n1(book)
    book.add(
        1200, e.FaultInjected(node=NodeId("n1"), kind="kill", injected_at_ms=1000.0)
    )  # whoever injected it may say so late
    (told,) = book.told()
    assert (told.kind, told.node, told.replacement, told.slot) == ("loss", "n1", "n3", 1)
    assert told.fault == "kill"
    assert told.phases_ms == {
        "detect": 10.0,
        "decide": 2.0,
        "prepare": 28.0,
        "quiesce": 9.0,
        "commit": 1.0,
        "transfer": 20.0,
        "switch": 2.0,
        "first_step": 30.0,
    }
    assert list(told.phases_ms) == list(PHASES)
    assert told.downtime_ms == pytest.approx(100.5)
    assert told.ended_at_ms == pytest.approx(1100.5)
    assert told.survivors == ("n0", "n2")
    assert (told.resume_step, told.epoch, told.bytes_received) == (8, 2, 100)


def test_a_loss_throws_away_the_step_in_flight_and_no_more() -> None:
    """Survivors that applied step 7 were in step 8, which is run again."""
    book = launched()
    lose_n1(book)
    assert book.told()[0].steps_lost == 1


@pytest.mark.parametrize(
    ("keepers", "lost"), [((), 1), (("n0",), 1), (("n2",), 1), (("n0", "n2"), 0)]
)
def test_a_step_that_all_survivors_kept_is_not_lost(keepers: tuple[str, ...], lost: int) -> None:
    """Whoever goes on in its step repeats nothing; one that began it anew is enough to count it."""
    book = launched()
    lose_n1(book)
    for place, entry in enumerate(book.entries):
        if isinstance(entry.event, e.TransitionApplied) and entry.event.node in keepers:
            book.entries[place] = with_fields(
                entry, event=with_fields(entry.event, keeps_step=True)
            )

    heard_so_far = [incidents(book.entries[:-cut])[0].steps_lost for cut in range(1, 4)]

    assert book.told()[0].steps_lost == lost
    assert heard_so_far == [lost] * 3, "known before the first step is committed"


def test_a_step_that_is_done_again_after_all_counts() -> None:
    """A second loss while a kept step goes on: who cannot keep it any longer does it again."""
    book = launched()
    book.add(1000, e.NodeLost(node=NodeId("n1"), incarnation=ONE, reason="reset"))
    book.add(1001, plan(2, e.Motive.UNPLANNED, (change(1, "n3"),)))
    parked = e.Report(has_state=True, applied=7)
    for name in ("n0", "n2"):
        book.add(1002, prepared(2, name, parked))
    book.add(1003, committed(2, 2, 8))
    book.add(1004, with_fields(applied(2, "n0", {}), keeps_step=True))
    anew = plan(3, e.Motive.UNPLANNED, (change(1, "n2"),), replaces=2)
    book.add(1005, anew)
    book.add(1006, prepared(3, "n0", parked))
    book.add(1007, committed(3, 3, 8))
    book.add(1008, applied(3, "n0", {}))

    assert [each.steps_lost for each in book.told()] == [1]


def test_without_a_known_fault_an_incident_begins_with_the_evidence() -> None:
    """Nobody injected anything: there is no `detect`, and downtime counts from the first fact."""
    book = launched()
    lose_n1(book)
    (told,) = book.told()
    assert "detect" not in told.phases_ms
    assert told.began_at_ms == 1010.0
    assert told.downtime_ms == pytest.approx(90.5)


def test_a_node_that_came_back_before_its_slot_was_planned_is_told_of_with_its_own_loss() -> None:
    """Where nobody else can take a slot, its holder joins anew first and may be lost again later:
    each loss begins when that life ended, and costs the time since then.
    """
    book = launched()
    book.add(1000, e.NodeLost(node=NodeId("n1"), incarnation=ONE, reason="reset"))
    book.add(3000, with_fields(joined("n1"), incarnation=TWO))
    book.add(3100, with_fields(ready("n1"), incarnation=TWO))
    again = with_fields(change(1, "n1"), joiner_incarnation=TWO)
    book.add(3200, plan(2, e.Motive.UNPLANNED, (again,)))
    book.add(3210, prepared(2, "n0", e.Report(has_state=True, applied=7)))
    book.add(3220, committed(2, 2, 8))
    book.add(3230, finished(2))
    book.add(3301, resumed(2, "n0", 3300.0, 50.0, 990.0))
    book.add(9000, with_fields(reset("n1", "n0"), peer_incarnation=TWO))
    book.add(9001, e.NodeLost(node=NodeId("n1"), incarnation=TWO, reason="reset"))
    book.add(9002, plan(3, e.Motive.UNPLANNED, (change(1, "n3"),)))

    first, second = book.told()

    assert (first.began_at_ms, first.downtime_ms) == (1000.0, 2300.0)
    assert first.phases_ms["decide"] == 2200.0
    assert (second.node, second.began_at_ms) == ("n1", 9000.0)


def test_a_fault_of_another_node_or_a_later_one_explains_nothing() -> None:
    """Only what hurt this node before it was noticed can be the cause."""
    book = launched()
    lose_n1(book)
    book.add(1200, e.FaultInjected(node=NodeId("n0"), kind="grey", injected_at_ms=1000.0))
    book.add(1201, e.FaultInjected(node=NodeId("n1"), kind="kill", injected_at_ms=1199.0))
    assert book.told()[0].fault == ""


def grey_n2(book: Book) -> None:
    """n2 is judged degraded at 2000, and n3 takes its slot at a boundary."""
    verdict = book.add(
        2000,
        e.VerdictIssued(
            node=NodeId("n2"), incarnation=ONE, verdict=e.Verdict.DEGRADED, reason="slow"
        ),
    )
    book.add(2001, plan(2, e.Motive.PLANNED, (change(2, "n3", "n2"),), evidence=(verdict,)))
    for name in NODES:
        book.add(2015, prepared(2, name))
    book.add(2016, committed(2, 2, -1))
    for name in ("n0", "n1", "n3"):
        book.add(2080, applied(2, name, {"transfer": 12.0, "switch": 3.0}))
    book.add(2081, finished(2))
    book.add(2090, resumed(2, "n0", 2090.0, 60.0, 2010.0))
    book.add(2090, resumed(2, "n3", 2090.0, 50.0))


def test_a_planned_swap_costs_its_pause_beyond_an_ordinary_step() -> None:
    """80 ms from commit to commit, of which 50 ms are the step as the joiner measured it."""
    book = launched()
    grey_n2(book)
    book.add(2099, e.FaultInjected(node=NodeId("n2"), kind="grey", injected_at_ms=1500.0))
    (told,) = book.told()
    assert (told.kind, told.node, told.replacement) == ("grey", "n2", "n3")
    assert told.downtime_ms == pytest.approx(30.0)
    assert told.steps_lost == 0
    assert told.phases_ms["detect"] == 500.0
    assert told.phases_ms["quiesce"] == 0.0
    assert told.phases_ms["transfer"] == 12.0


def test_a_joiner_that_was_a_member_before_does_not_lengthen_the_pause() -> None:
    """What a joiner's process committed in an earlier life as a member is no part of a swap."""
    book = launched()
    grey_n2(book)
    book.add(2091, resumed(2, "n3", 2090.0, 50.0, 100.0))
    (told,) = book.told()

    assert told.downtime_ms == pytest.approx(30.0)


def test_a_planned_transfer_is_measured_by_who_gives() -> None:
    """The joiner waits for the boundary meanwhile, which costs nobody anything."""
    book = launched()
    grey_n2(book)
    book.add(2091, applied(2, "n2", {"transfer": 9.0}))
    assert book.told()[0].phases_ms["transfer"] == 9.0


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (e.DrainRequested(node=NodeId("n2"), by="me"), "drain"),
        (e.SwitchoverRequested(node=NodeId("n2"), by="me"), "switchover"),
        (e.QuarantineRequested(node=NodeId("n2"), by="me"), "quarantine"),
    ],
)
def test_an_operators_wish_gives_the_incident_its_kind(act: e.AnyEvent, kind: str) -> None:
    """A swap that somebody asked for begins when they asked."""
    book = launched()
    book.add(2000, act)
    book.add(2002, plan(2, e.Motive.PLANNED, (change(2, "n3", "n2"),)))
    (told,) = book.told()
    assert (told.kind, told.began_at_ms) == (kind, 2000.0)


def test_a_plan_that_replaces_another_continues_its_story() -> None:
    """A second loss while one is pending: both who left first and who left second are told."""
    book = launched()
    book.add(1010, reset("n1", "n0"))
    book.add(1012, e.NodeLost(node=NodeId("n1"), incarnation=ONE, reason="reset"))
    book.add(1012, plan(2, e.Motive.UNPLANNED, (change(1, "n3"),)))
    book.add(1020, reset("n2", "n0"))
    book.add(1021, e.NodeLost(node=NodeId("n2"), incarnation=ONE, reason="reset"))
    changes = (change(1, "n3"), change(2, "n0"))
    book.add(1022, plan(3, e.Motive.UNPLANNED, changes, replaces=2))
    assert [(told.node, told.transition, told.began_at_ms) for told in book.told()] == [
        ("n1", 3, 1010.0),
        ("n2", 3, 1020.0),
    ]


def test_an_incident_that_is_not_over_has_no_downtime() -> None:
    """Any prefix of a log can be told; what is not known yet is not made up."""
    whole = launched()
    lose_n1(whole)
    for length in range(len(whole.entries)):
        for told in incidents(whole.entries[:length]):
            assert told.downtime_ms is None or whole.entries[length - 1].at_ms >= 1101
            if told.ended_at_ms is None:
                assert "first_step" not in told.phases_ms or told.downtime_ms is None


def test_an_aborted_plan_is_no_incident() -> None:
    """A swap that was given up before its commit changed nothing."""
    book = launched()
    book.add(2000, plan(2, e.Motive.PLANNED, (change(2, "n3", "n2"),)))
    book.add(2001, e.TransitionAborted(job=JOB, transition=TransitionId(2), reason="refused"))
    assert book.told() == ()


def test_the_story_is_the_same_from_bytes() -> None:
    """An exported log tells what the live one told."""
    book = launched()
    lose_n1(book)
    again = [decode_recorded(encode_recorded(entry)) for entry in book.entries]
    assert incidents(again) == book.told()


def test_what_others_rehearse_meanwhile_is_no_part_of_the_story() -> None:
    """Events without a transition, or of another one, are passed over."""
    book = launched()
    book.add(
        900,
        e.WarmupStarted(node=NodeId("n3"), incarnation=ONE, job=JOB, role=Role("only")),
    )
    lose_n1(book)
    book.add(1300, prepared(7, "n0"))
    assert len(book.told()) == 1


@pytest.mark.parametrize("act", [e.DrainRequested, e.SwitchoverRequested], ids=lambda a: a.__name__)
@pytest.mark.parametrize("was_grey", [False, True])
def test_what_came_after_a_planned_swap_is_not_its_cause(act: Any, was_grey: bool) -> None:
    """A node that an operator took out, and that left or died afterwards, was drained; it did not
    turn grey, whatever was said of it before and after.
    """
    book = launched()
    if was_grey:
        verdict = e.VerdictIssued(
            node=NodeId("n1"), incarnation=ONE, verdict=e.Verdict.DEGRADED, reason="slow"
        )
        book.add(1000, verdict)
    asked = book.add(1001, act(node=NodeId("n1"), by="ada"))
    swap = (change(1, "n3", "n1"),)
    book.add(1002, plan(2, e.Motive.PLANNED, swap, evidence=(asked,)))
    book.add(1041, committed(2, 2, -1))
    book.add(1063, finished(2))
    book.add(1070, e.NodeLeft(node=NodeId("n1"), incarnation=ONE, reason="drained"))

    assert [told.kind for told in book.told()] == [
        "drain" if act is e.DrainRequested else "switchover"
    ]
