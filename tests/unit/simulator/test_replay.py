"""Logs again: told, decided anew, measured."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from simulator.calibrating import calibrate
from simulator.core import JOB, node_id
from simulator.errors import BadLog
from simulator.faults import draw
from simulator.parts import STRATEGIES
from simulator.replay import read_log, replay, whatif
from simulator.scenario import FleetTable, Scenario
from simulator.scenario_file import policy_for
from simulator.world import World
from statemachine import events as e
from statemachine.codec import encode_recorded
from statemachine.decide import settle
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, NodeId, Position
from statemachine.policy import Policy
from statemachine.state import FleetState


def log_of(scenario: Scenario, strategy: str = "standby-swap") -> list[e.Recorded]:
    """A whole log, every node in it from its launch on."""
    kept: list[e.Recorded] = []
    trace = draw(scenario, 0)
    World(scenario, STRATEGIES[strategy], trace, explicit=True, keep=kept.append).run()
    return kept


def test_a_log_tells_its_incidents(small: Scenario) -> None:
    """Each loss of a simulated log is an incident, with the downtime that the world had."""
    found = replay(log_of(small))
    losses = [each for each in found.incidents if each.kind == "loss"]

    assert losses
    assert all(each.downtime_ms is not None and each.downtime_ms > 0 for each in losses[:3])


def test_the_same_policy_decides_the_same(small: Scenario) -> None:
    """A log under its own policy has no decision that differs."""
    log = log_of(small)

    assert whatif(log, policy_for(small)).divergence is None


def test_the_first_decision_that_differs_is_named(small: Scenario) -> None:
    """A policy that never promotes a cold node parts where one was promoted, and says why."""
    tight = replace(small, days=0.1, fleet=FleetTable(standbys=1, spares=40))
    log = log_of(replace(tight, faults=replace(tight.faults, per_1000_node_days=20_000.0)))
    cold = [
        entry
        for entry in log
        if isinstance(entry.event, e.TransitionPlanned) and "(cold" in entry.event.reason
    ]
    found = whatif(log, Policy(on_loss=("standby", "wait"))).divergence

    assert cold
    assert found is not None
    assert found.position < cold[0].position
    assert found.position >= cold[0].position - 5
    assert "cold" in found.because
    assert "TransitionPlanned" in found.kinds
    assert "TransitionPlanned" not in found.other_kinds
    assert found.cost_ms is not None
    assert found.cost_ms > 0
    assert "the job stands still" in found.cost_because


def test_a_policy_that_waits_longer_costs_the_wait(small: Scenario) -> None:
    """Where the log promoted a cold node after 200 s, a patience of 260 s costs a minute."""
    tight = replace(small, days=0.1, fleet=FleetTable(standbys=1, spares=40))
    tight = replace(tight, faults=replace(tight.faults, per_1000_node_days=20_000.0))
    patient = {"on_loss": ("standby", "wait", "cold"), "loss_wait_s": 200.0}
    log = log_of(replace(tight, policy=patient))
    found = whatif(log, policy_for(replace(tight, policy={**patient, "loss_wait_s": 260.0})))

    assert found.divergence is not None
    assert found.divergence.cost_ms == pytest.approx(60_000.0, abs=2.0), found
    assert "the job stands still" in found.divergence.cost_because
    back = whatif(log, policy_for(replace(tight, policy={**patient, "loss_wait_s": 140.0})))
    assert back.divergence is not None
    assert back.divergence.cost_ms == pytest.approx(-60_000.0, abs=2.0), back


def ready(name: NodeId) -> e.WorkerReady:
    """A node's training process is ready."""
    return e.WorkerReady(
        node=name,
        incarnation=Incarnation(1),
        job=JOB,
        host="h",
        port=1,
        transfer_port=2,
        pid=3,
        digest="d",
    )


def hand_made(nodes: int, spares: int) -> list[e.Recorded]:
    """A log in which `nodes` machines are launched, one is lost, and a cold one takes its slot."""
    log: list[e.Recorded] = []
    state = FleetState()

    def facts(events: list[e.AnyEvent], at_ms: int) -> None:
        nonlocal state
        for event in events:
            position = Position(state.position + 1)
            log.append(e.Recorded(position=position, at_ms=at_ms, writer="t", event=event))
            state = evolve(state, log[-1])
        settled = settle(state, at_ms, "t")
        log.extend(settled.recorded)
        state = settled.state

    def acknowledged(at_ms: int) -> None:
        for said in ("prepared", "applied"):
            pending = state.jobs[JOB].pending
            assert pending is not None
            awaited = pending.awaited()
            facts([answer(said, name, pending.plan) for name in awaited], at_ms)

    def answer(said: str, name: NodeId, plan: e.TransitionPlanned) -> e.AnyEvent:
        node = state.nodes[name]
        life = node.incarnation
        if said == "prepared":
            holds = node.slot >= 0
            report = e.Report(has_state=holds, applied=7 if holds else -1)
            return e.TransitionPrepared(
                job=JOB, transition=plan.transition, node=name, incarnation=life, report=report
            )
        return e.TransitionApplied(
            job=JOB,
            transition=plan.transition,
            node=name,
            incarnation=life,
            epoch=state.jobs[JOB].epoch,
            step=8,
        )

    axes = {"pp": 16, "cp": nodes // 112, "dp": 7}
    facts([e.JobDeclared(job=JOB, axes=axes, standbys=spares)], 1_000)
    joined: list[e.AnyEvent] = []
    for number in range(nodes + spares):
        name, life = node_id(number), Incarnation(1)
        joined.append(e.NodeJoined(node=name, incarnation=life, host="h"))
        joined.append(ready(name))
    facts(joined, 2_000)
    acknowledged(3_000)
    lost = e.WorkerExited(node=node_id(5), incarnation=Incarnation(1), job=JOB, reason="killed")
    facts([lost], 4_000)
    acknowledged(5_000)
    return log


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_log_of_eight_thousand_nodes_is_replayed_and_decided_anew() -> None:
    """A hand-made log of 8,192 nodes folds, and a policy that parts from it is found."""
    log = hand_made(8192 - 16, 16)
    found = replay(log)
    parted = whatif(log, Policy(on_loss=("standby", "wait"))).divergence

    assert found.nodes == 8192
    assert [each.node for each in found.incidents] == [node_id(5)]
    assert parted is not None
    assert node_id(5) in parted.because


def test_what_is_not_measured_stays_assumed(small: Scenario) -> None:
    """Components that the log holds are measured, the others keep their source."""
    found = {each.component: each for each in calibrate(log_of(small), small)}

    assert found["delta_s"].seconds == pytest.approx(19.7, abs=0.5)
    assert found["delta_s"].source == "measured"
    assert found["load_s"].seconds is None
    assert "TrainMover" in found["load_s"].source


def test_a_log_with_a_hole_is_refused(small: Scenario, tmp_path: Path) -> None:
    """A missing entry, and a line that is none, are named by line."""
    lines = [encode_recorded(entry) for entry in log_of(replace(small, days=0.05))]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(lines[:3] + lines[4:]))
    with pytest.raises(BadLog, match="line 4: position 5 follows 3"):
        read_log(path)
    path.write_bytes(lines[0] + b"\nnothing\n")
    with pytest.raises(BadLog, match="line 2"):
        read_log(path)
