"""Which vitals the detector gets to see, and what is remembered of whom."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from controlplane.eventlog import VitalsItem
from controlplane.health.collector import Collector
from statemachine import events as e
from statemachine.detector import Judgement
from statemachine.evolve import evolve
from statemachine.ids import (
    Epoch,
    Incarnation,
    JobId,
    NodeId,
    Position,
    Role,
    Slot,
    SweepId,
    TransitionId,
)
from statemachine.state import FleetState
from statemachine.vitals import CPU_MS, STEP_MS, WAIT_MS, WORK_MS, Vitals, encode_vitals, summarise

JOB = JobId("job")
NODES = ("n0", "n1", "n2", "n3")
NOW_MS = 1_000_000


def active_fleet() -> FleetState:
    """Four nodes in the four slots of a job."""
    one = Incarnation(1)
    log: list[e.AnyEvent] = [e.JobDeclared(job=JOB, axes={"dp": 4})]
    for node in NODES:
        log.append(e.NodeJoined(node=NodeId(node), incarnation=one, host="h"))
        log.append(
            e.WorkerReady(
                node=NodeId(node),
                incarnation=one,
                job=JOB,
                host="127.0.0.1",
                port=1,
                transfer_port=2,
                pid=3,
                digest="d",
            )
        )
    changes = tuple(
        e.Change(slot=Slot(slot), joiner=NodeId(node), joiner_incarnation=one)
        for slot, node in enumerate(NODES)
    )
    log.append(
        e.TransitionPlanned(
            job=JOB,
            transition=TransitionId(1),
            motive=e.Motive.LAUNCH,
            from_epoch=Epoch(0),
            changes=changes,
            required=tuple(NodeId(node) for node in NODES),
            deadline_at_ms=NOW_MS,
            reason="launch",
        )
    )
    log.append(
        e.TransitionCommitted(
            job=JOB,
            transition=TransitionId(1),
            epoch=Epoch(1),
            resume_step=0,
            apply=(),
            handovers=(),
            deadline_at_ms=NOW_MS,
            reason="launch",
        )
    )
    state = FleetState()
    for position, event in enumerate(log, 1):
        state = evolve(
            state, e.Recorded(position=Position(position), at_ms=1, writer="w", event=event)
        )
    return state


def window(node: str, number: int, work_ms: float = 40.0, incarnation: int = 1) -> VitalsItem:
    """A window as it stands in the store."""
    wait_ms = 60.0 - work_ms
    metrics = {WORK_MS: work_ms, WAIT_MS: wait_ms, CPU_MS: work_ms, STEP_MS: 60.0}
    vitals = Vitals(
        node=NodeId(node),
        incarnation=Incarnation(incarnation),
        job=JOB,
        slot=Slot(0),
        role=Role("only"),
        epoch=Epoch(1),
        window=number,
        started_at_ms=0,
        ended_at_ms=1,
        steps=20,
        last_step=20 * (number + 1),
        metrics={name: summarise([value] * 20) for name, value in metrics.items()},
    )
    return VitalsItem(NodeId(node), Incarnation(incarnation), 0, encode_vitals(vitals))


class Heard:
    """A collector, and what it stated."""

    def __init__(self, state: FleetState) -> None:
        self.state = state
        self.events: list[Judgement] = []
        self.collector = Collector(lambda: self.state, self._take, lambda: NOW_MS)

    def _take(self, events: Iterable[Judgement]) -> None:
        self.events.extend(events)

    def tell(self, event: e.AnyEvent) -> None:
        """Let the log grow by one event."""
        recorded = e.Recorded(
            position=Position(self.state.position + 1), at_ms=2, writer="c0", event=event
        )
        self.state = evolve(self.state, recorded)
        self.collector.heard((recorded,), self.state)


@pytest.fixture
def heard() -> Heard:
    """A collector over an active fleet."""
    return Heard(active_fleet())


def rounds(slow: str, first: int, last: int) -> list[VitalsItem]:
    """Windows of all nodes, one of them slow."""
    return [
        window(node, number, 56.0 if node == slow else 40.0)
        for number in range(first, last)
        for node in NODES
    ]


def test_a_slow_node_is_stated_once_it_is_judged(heard: Heard) -> None:
    """Its verdict becomes an event of the controller."""
    heard.collector._take(rounds("n3", 0, 12))
    issued = [event for event in heard.events if isinstance(event, e.VerdictIssued)]
    assert {event.node for event in issued} == {"n3"}


def test_nodes_without_a_slot_are_not_compared(heard: Heard) -> None:
    """What a node measured before it left, or beside the run, says nothing about its peers."""
    one = Incarnation(1)
    heard.tell(e.NodeLost(node=NodeId("n3"), incarnation=one, reason="x"))
    heard.collector._take(rounds("n3", 0, 12))
    assert heard.events == []
    assert heard.collector.detector.records.get(NodeId("n3")) is None
    assert heard.collector.latest[NodeId("n3")].window == 11


def test_a_node_that_is_gone_is_forgotten(heard: Heard) -> None:
    """No round waits for it, no verdict stands against its successor."""
    heard.collector._take(rounds("n3", 0, 12))
    assert NodeId("n3") in heard.collector.detector.standing
    heard.tell(e.NodeLost(node=NodeId("n3"), incarnation=Incarnation(1), reason="x"))
    detector = heard.collector.detector
    assert NodeId("n3") not in detector.records
    assert NodeId("n3") not in detector.standing
    for cohort in (detector.cohorts[key] for key in detector.cohorts):
        assert NodeId("n3") not in cohort.awaited
        assert NodeId("n3") not in cohort.gathered


def test_corrupt_vitals_are_reported_once_and_ignored(
    heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that reports nonsense is no worse than one that reports nothing."""
    logger = logging.getLogger("changeover")
    before, logger.propagate = logger.propagate, True
    try:
        with caplog.at_level(logging.WARNING, "changeover"):
            for _ in range(3):
                nonsense = VitalsItem(NodeId("n1"), Incarnation(1), 0, b"{nonsense")
                heard.collector._take([nonsense])
            foreign = window("n2", 0)
            heard.collector._take([VitalsItem(NodeId("n0"), Incarnation(1), 0, foreign.value)])
    finally:
        logger.propagate = before
    assert [record.getMessage() for record in caplog.records] == ["vitals ignored"] * 2
    assert heard.events == []
    assert heard.collector.latest == {}


def test_a_collector_that_takes_over_knows_the_verdicts_that_stand() -> None:
    """It can withdraw what its predecessor issued."""
    heard = Heard(active_fleet())
    heard.collector._take(rounds("n3", 0, 12))
    for event in list(heard.events):
        heard.tell(event)
    successor = Heard(heard.state)
    assert NodeId("n3") in successor.collector.detector.standing


def test_a_withdrawal_names_the_verdict_that_it_withdraws(heard: Heard) -> None:
    """By its position in the log, so that explain leads back to its numbers."""
    heard.collector._take(rounds("n3", 0, 12))
    for event in list(heard.events):
        heard.tell(event)
    at = heard.state.nodes[NodeId("n3")].verdict_position
    assert at
    heard.events.clear()
    heard.collector._take(rounds("nobody", 12, 80))

    withdrawn = [event for event in heard.events if isinstance(event, e.VerdictWithdrawn)]
    assert [(event.node, event.evidence) for event in withdrawn] == [("n3", (at,))]


def test_a_partner_of_a_sweep_is_not_accused_of_being_slow(heard: Heard) -> None:
    """It measures beside its training because it was told to; before and after, it counts."""
    heard.tell(e.NodeJoined(node=NodeId("n9"), incarnation=Incarnation(1), host="h"))
    heard.tell(
        e.SweepRequested(
            sweep=SweepId(1),
            node=NodeId("n9"),
            incarnation=Incarnation(1),
            rounds=("solo", "reference"),
            reason="quarantine",
            partner=NodeId("n3"),
        )
    )
    heard.collector._take(rounds("n3", 0, 12))
    assert heard.events == []
    heard.tell(
        e.SweepFinished(
            sweep=SweepId(1),
            node=NodeId("n9"),
            incarnation=Incarnation(1),
            outcome=e.SweepOutcome.PASSED,
            reason="",
        )
    )
    heard.collector._take(rounds("n3", 12, 13))
    assert NodeId("n3") not in heard.collector._lent
    heard.collector._take(rounds("n3", 13, 25))
    assert {event.node for event in heard.events} == {"n3"}
