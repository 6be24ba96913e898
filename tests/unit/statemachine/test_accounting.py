"""Where the time of a job went: the parts sum to its wall time, and each second has one owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from statemachine import events as e
from statemachine.accounting import Account, accounts
from statemachine.codec import decode_recorded
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Position, Slot, TransitionId

HISTORY = Path(__file__).parents[2] / "history"
JOB = JobId("j")
ONE = Incarnation(1)


def recorded(path: Path) -> list[e.Recorded]:
    """A recorded log."""
    return [decode_recorded(line) for line in path.read_bytes().splitlines()]


def summed(account: Account) -> float:
    """All parts but the wall and what standbys idled."""
    return (
        account.useful + account.repeated + account.waiting + account.transition + account.restart
    )


@pytest.mark.parametrize("path", sorted(HISTORY.glob("*.events.jsonl")), ids=lambda p: p.stem)
def test_the_parts_sum_to_the_wall_at_every_prefix(path: Path) -> None:
    """However a log is cut, no second is lost and none is counted twice."""
    log = recorded(path)
    for length in range(1, len(log) + 1):
        for name, account in accounts(log[:length]).jobs.items():
            assert summed(account) == pytest.approx(account.wall, abs=1e-9), (length, name, account)
            assert min(account.useful, account.repeated, account.waiting) >= 0
            assert min(account.transition, account.restart) >= 0


def test_a_demo_is_accounted_for() -> None:
    """Waiting ends with the launch; the loss and the pause are transition; one step is repeated."""
    told = accounts(recorded(HISTORY / "demo_kill_and_grey.events.jsonl"))
    total = told.total

    assert total.wall == pytest.approx(57.741)
    assert total.waiting == pytest.approx(9.507)
    launch_s = 0.191  # from the plan to the first step that all had committed
    downtime_s = sum(each.downtime_ms or 0.0 for each in told.incidents) / 1000
    assert total.transition == pytest.approx(launch_s + downtime_s, abs=0.02)
    assert 0.05 < total.repeated < 0.2
    assert total.restart == 0.0
    assert total.ettr == pytest.approx(total.useful / total.wall)
    assert told.idle_standby_s > 0


class Book:
    """A log in the making, told in seconds."""

    def __init__(self) -> None:
        self.entries: list[e.Recorded] = []

    def add(self, at_s: float, event: e.AnyEvent) -> None:
        position = Position(len(self.entries) + 1)
        self.entries.append(
            e.Recorded(position=position, at_ms=round(at_s * 1000), writer="w", event=event)
        )


def launched() -> Book:
    """Two slots; declared at 0, all ready at 10, planned at 20, training from 30 on."""
    book = Book()
    book.add(0, e.JobDeclared(job=JOB, axes={"dp": 2}, steps=100))
    for name in ("n0", "n1"):
        book.add(10, e.NodeJoined(node=NodeId(name), incarnation=ONE, host="h"))
        book.add(10, ready(name))
    launch(book, 20, 30, transition=1, epoch=1, step=0)
    return book


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


def launch(
    book: Book, from_s: float, to_s: float, *, transition: int, epoch: int, step: int
) -> None:
    """A launch from its plan to the first step."""
    number = TransitionId(transition)
    plan = e.TransitionPlanned(
        job=JOB,
        transition=number,
        motive=e.Motive.LAUNCH,
        from_epoch=Epoch(epoch - 1),
        changes=tuple(
            e.Change(slot=Slot(slot), joiner=NodeId(f"n{slot}"), joiner_incarnation=ONE)
            for slot in range(2)
        ),
        required=(NodeId("n0"), NodeId("n1")),
        deadline_at_ms=0,
        reason="launch",
    )
    book.add(from_s, plan)
    commit = e.TransitionCommitted(
        job=JOB,
        transition=number,
        epoch=Epoch(epoch),
        resume_step=step,
        apply=(),
        handovers=(),
        deadline_at_ms=0,
        reason="all",
    )
    book.add(from_s, commit)
    finished = e.TransitionFinished(job=JOB, transition=number, epoch=Epoch(epoch), reason="all")
    book.add(to_s, finished)
    resumed = e.StepResumed(
        job=JOB,
        transition=number,
        node=NodeId("n0"),
        incarnation=ONE,
        step=step,
        step_ms=1000.0,
        committed_at_ms=to_s * 1000,
    )
    book.add(to_s, resumed)


def test_a_launch_is_waiting_and_then_transition() -> None:
    """Before the plan nobody could begin; from the plan to the first step it is a transition."""
    book = launched()
    book.add(90, e.JobFinished(job=JOB, step=60))

    total = accounts(book.entries).total

    assert (total.wall, total.waiting, total.transition, total.useful) == (90, 20, 10, 60)


def test_a_vacant_slot_that_nobody_takes_is_waiting() -> None:
    """The loss has no plan: from it on the job waits, to the end of the log."""
    book = launched()
    book.add(50, e.NodeLost(node=NodeId("n1"), incarnation=ONE, reason="gone"))
    book.add(80, e.NodeJoined(node=NodeId("n2"), incarnation=ONE, host="h"))

    total = accounts(book.entries).total

    assert (total.wall, total.waiting, total.useful) == (80, 50, 20)


def test_a_restart_lasts_until_its_first_step_and_repeats_what_was_done() -> None:
    """Down from the restart to the first step; the 20 steps since the checkpoint are run again."""
    book = launched()
    parked = e.TransitionPrepared(
        job=JOB,
        transition=TransitionId(1),
        node=NodeId("n0"),
        incarnation=ONE,
        report=e.Report(has_state=True, applied=39),
    )
    book.add(70, parked)
    book.add(70, e.JobRestarted(job=JOB, reason="nobody holds the state"))
    launch(book, 80, 100, transition=2, epoch=2, step=20)
    book.add(160, e.JobFinished(job=JOB, step=80))

    total = accounts(book.entries).total

    assert total.restart == 30
    assert total.wall == 160
    assert total.repeated > 0
    assert summed(total) == pytest.approx(160)
