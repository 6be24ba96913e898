"""Logs again: told, decided anew, measured."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from simulator.calibrating import as_toml, calibrate
from simulator.core import JOB, node_id
from simulator.errors import BadLog
from simulator.faults import draw
from simulator.parts import STRATEGIES, costs_of
from simulator.replay import read_log, replay, whatif
from simulator.scenario import FleetTable, Scenario
from simulator.scenario_file import load, policy_for
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


DEMO = Path(__file__).parents[2] / "history" / "demo_kill_and_grey.events.jsonl"
"""The log of a `make demo`: a kill at 25 s, a grey node at 39 s."""


def policy_in(log: list[e.Recorded]) -> Policy:
    """The policy that was in force at the end of a log."""
    state = FleetState()
    for entry in log:
        state = evolve(state, entry)
    return state.policy


def test_a_log_of_the_demo_is_told() -> None:
    """The recorded demo has its two incidents, with who came, the downtime and the steps lost."""
    found = replay(read_log(DEMO))
    told = [(each.kind, each.node, each.replacement, each.steps_lost) for each in found.incidents]

    assert (found.entries, found.nodes, found.epoch) == (92, 5, 3)
    assert told == [("loss", "n1", "n4", 1), ("grey", "n2", "n1", 0)]
    assert found.downtime_ms == pytest.approx(242.7 + 29.1, abs=0.1)


def test_the_demo_under_its_own_policy_agrees() -> None:
    """No decision of the recorded demo differs under the policy that was in force."""
    log = read_log(DEMO)
    found = whatif(log, policy_in(log))

    assert found.divergence is None
    assert found.compared == found.agreed > 100


@pytest.mark.parametrize(
    ("knobs", "where", "other", "cost_ms", "because"),
    [
        ({"on_loss": ("wait",)}, (33, "loss of n1, slot 1"), (), 32_423.0, "stands still"),
        ({"shadow": True}, (55, "grey of n2, slot 2"), ("ActWithheld",), 4011.0, "1.35x as long"),
    ],
)
def test_the_demo_under_another_policy_parts_where_it_must(
    knobs: dict[str, object],
    where: tuple[int, str],
    other: tuple[str, ...],
    cost_ms: float,
    because: str,
) -> None:
    """A policy that only waits parts at the loss, one that only watches at the grey node, each
    with the incident, both decisions, and what the difference would have cost until the end.
    """
    log = read_log(DEMO)
    found = whatif(log, replace(policy_in(log), **knobs)).divergence

    assert found is not None
    assert (found.position, found.incident) == where
    assert found.other_kinds == other
    assert found.kinds == ("TransitionPlanned",)
    assert found.cost_ms == pytest.approx(cost_ms, rel=0.01)
    assert because in found.cost_because


def test_the_demo_gives_costs_to_a_scenario(tmp_path: Path) -> None:
    """What the demo measured replaces the published costs of a scenario; what it did not measure
    stays assumed, and says so.
    """
    found = calibrate(read_log(DEMO), Scenario())
    measured = {each.component for each in found if each.seconds is not None}
    (tmp_path / "s.toml").write_text("days = 1\n" + as_toml(found), "utf-8")
    scenario = load(tmp_path / "s.toml")
    costs = costs_of(scenario, STRATEGIES["standby-swap"])

    assert measured == {
        *("delta_s", "transfer_s", "first_step_s", "detect_s"),
        *("rehearse_s", "planned_s", "prepare_s"),
    }
    assert all("assumed: TrainMover" in each.source for each in found if each.seconds is None)
    assert costs.pause_unplanned_s == pytest.approx(0.189, abs=0.001)
    assert costs.pause_planned_s == pytest.approx(0.029, abs=0.001)
    assert costs.restart_s == costs_of(Scenario(), STRATEGIES["standby-swap"]).restart_s


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
