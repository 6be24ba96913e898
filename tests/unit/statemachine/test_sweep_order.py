"""The order of a sweep's rounds: alone first, then together, and no further than needed."""

import pytest

from statemachine import events as e
from statemachine.decide import settle
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, NodeId, Position, SweepId
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState
from statemachine.sweep import PAIR, REFERENCE, SOLO
from statemachine.topology import orders_of

ONE = Incarnation(1)
N0, N1 = NodeId("n0"), NodeId("n1")
FAST = {"gemm_gflops_best": 100.0, "memory_gbps_best": 30.0}
SLOW = {"gemm_gflops_best": 60.0, "memory_gbps_best": 18.0}


class Fleet:
    """A fold that grows, and what the controller adds to it."""

    def __init__(self) -> None:
        self.state = FleetState()
        self.decided: list[e.AnyEvent] = []

    def tell(self, *events: e.AnyEvent) -> None:
        for event in events:
            position = Position(self.state.position + 1)
            recorded = e.Recorded(position=position, at_ms=10, writer="w", event=event)
            self.state = evolve(self.state, recorded)
        settled = settle(self.state, 10, "c")
        self.state = settled.state
        self.decided += [recorded.event for recorded in settled.recorded]

    def rounds(self, node: NodeId) -> tuple[str, ...]:
        return orders_of(self.state, self.state.nodes[node]).rounds

    def finish(self, name: str, measurements: dict[str, float]) -> None:
        self.tell(
            e.SweepRoundFinished(
                sweep=SweepId(1),
                node=N0,
                incarnation=ONE,
                round=name,
                measurements=measurements,
                partner=N1,
            )
        )

    def outcomes(self) -> list[e.SweepOutcome]:
        return [event.outcome for event in self.decided if isinstance(event, e.SweepFinished)]


@pytest.fixture
def swept() -> Fleet:
    """n0 in quarantine, its sweep open with n1 as partner."""
    fleet = Fleet()
    steady = e.PolicyChanged(version=1, knobs={"sweep": {"judge_medians": False}}, by="me")
    fleet.tell(steady)
    for node in (N0, N1):
        fleet.tell(e.NodeJoined(node=node, incarnation=ONE, host="h", probe_port=7))
        fleet.tell(
            e.WorkerReady(
                node=node,
                incarnation=ONE,
                job="j",  # type: ignore[arg-type]
                host="h",
                port=1,
                transfer_port=2,
                pid=3,
                digest="d",
            )
        )
    fleet.tell(e.NodeQuarantined(node=N0, incarnation=ONE, reason="grey"))
    assert fleet.state.nodes[N0].state is NodeState.SWEEPING
    return fleet


def test_both_are_measured_alone_before_they_are_measured_together(swept: Fleet) -> None:
    """A link probe beside a compute probe would measure neither."""
    assert (swept.rounds(N0), swept.rounds(N1)) == ((SOLO,), (REFERENCE,))
    swept.finish(SOLO, FAST)
    assert (swept.rounds(N0), swept.rounds(N1)) == ((), (REFERENCE,))
    swept.finish(REFERENCE, FAST)
    assert (swept.rounds(N0), swept.rounds(N1)) == ((PAIR,), ())
    swept.finish(PAIR, {"link_mbps_out_best": 9000.0})
    assert swept.outcomes() == [e.SweepOutcome.PASSED]
    assert (swept.rounds(N0), swept.rounds(N1)) == ((), ())


def test_a_node_that_fails_alone_is_not_measured_together(swept: Fleet) -> None:
    """Its link says nothing more: the sweep is closed, and the partner is free at once."""
    swept.finish(SOLO, SLOW)
    assert swept.outcomes() == []
    swept.finish(REFERENCE, FAST)
    assert swept.outcomes() == [e.SweepOutcome.FAILED]
    assert (swept.rounds(N0), swept.rounds(N1)) == ((), ())
    assert swept.state.nodes[N0].state is NodeState.QUARANTINED


def test_a_failed_probe_alone_is_not_a_failed_node(swept: Fleet) -> None:
    """What could not be measured is no verdict: the sweep goes on, and is inconclusive."""
    swept.tell(
        e.SweepRoundFinished(
            sweep=SweepId(1), node=N0, incarnation=ONE, round=SOLO, failure="the probe crashed"
        )
    )
    swept.finish(REFERENCE, FAST)
    assert swept.outcomes() == []
    assert swept.rounds(N0) == (PAIR,)
    swept.finish(PAIR, {"link_mbps_out_best": 9000.0})
    assert swept.outcomes() == [e.SweepOutcome.INCONCLUSIVE]
