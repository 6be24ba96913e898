"""The test kit: a fleet on virtual time that behaves, and catches a rule that does not."""

from __future__ import annotations

import itertools
import time

import pytest

from controlplane.testkit import FleetHarness, NotDeterministic, check_determinism, with_knobs
from statemachine import events as e
from statemachine.decide import Decision
from statemachine.lifecycle import NodeState
from statemachine.policy import Policy
from statemachine.state import FleetState


def test_a_loss_is_repaired_by_the_standby_in_virtual_time() -> None:
    """One incident, told with its downtime; an hour of the fleet takes a moment."""
    began_s = time.process_time()
    fleet = FleetHarness({"dp": 4}, standbys=1)
    fleet.kill("n2")
    fleet.run(3600)

    (incident,) = fleet.incidents()
    assert (incident.kind, incident.node, incident.replacement) == ("loss", "n2", "n4")
    assert fleet.holder(2) == "n4"
    assert incident.downtime_ms is not None
    assert 0 < incident.downtime_ms < 5_000
    assert time.process_time() - began_s < 5
    assert "n4 takes slot 2 of n2" in fleet.explain("e2").why[0]


def test_two_runs_are_one() -> None:
    """The same causes give the same log, byte for byte."""

    def played() -> list[e.Recorded]:
        fleet = FleetHarness({"pp": 2, "dp": 2}, standbys=2)
        fleet.kill("n1")
        fleet.run(10)
        fleet.judge("n0", e.Verdict.FAULTY)
        fleet.run(100)
        return fleet.log

    assert played() == played()


def test_a_grey_node_is_swapped_swept_and_taken_back_or_not() -> None:
    """What it measures decides; a node that measures badly stays out."""
    good, bad = (FleetHarness({"dp": 3}, standbys=1) for _ in range(2))
    usual = bad.rounds
    bad.rounds = lambda node, name: {
        metric: value / 3 if node == "n1" else value for metric, value in usual(node, name).items()
    }
    for fleet in (good, bad):
        fleet.run(5)
        for name in ("n0", "n2"):  # the fleet has a baseline to be compared with
            fleet.say(e.SwitchoverRequested(node=fleet.node(name).node, by="test"))
            fleet.run(10)
        fleet.judge("n1", e.Verdict.FAULTY)
        fleet.run(30)

    assert good.node("n1").state in (NodeState.SPARE, NodeState.STANDBY)
    assert good.said(e.CertificateIssued)
    assert bad.holder(1) != "n1"


def test_a_knob_is_what_the_fleet_goes_by() -> None:
    """Without a standby the job waits, or is made smaller, as the policy says."""
    waits = FleetHarness({"dp": 3})
    shrinks = FleetHarness({"dp": 3}, policy=with_knobs(on_loss=("shrink", "wait")))
    for fleet in (waits, shrinks):
        fleet.kill("n1")
        fleet.run(20)

    assert waits.holder(1) is None
    assert waits.job.vacant
    assert not shrinks.job.vacant
    assert len(shrinks.job.idle) == 1


def never_n4(state: FleetState, _: int, __: Policy) -> Decision | None:
    """A rule: n4 is kept out for good."""
    node = next((state.nodes[n] for n in sorted(state.pool) if n == "n4"), None)
    if node is None:
        return None
    event = e.NodeRetired(node=node.node, incarnation=node.incarnation, reason="not n4")
    return Decision((event,), "not n4")


def test_an_own_rule_is_asked_before_ours() -> None:
    """What it keeps out does not take the slot."""
    fleet = FleetHarness({"dp": 4}, standbys=2, own=never_n4)
    fleet.kill("n2")
    fleet.run(5)

    assert fleet.holder(2) == "n5"
    check_determinism("tests.unit.controlplane.test_testkit:never_n4", fleet.log)


def restless(state: FleetState, _: int, __: Policy) -> Decision | None:
    """A rule that quarantines whoever has just passed its sweep."""
    node = next((state.nodes[n] for n in sorted(state.pool) if n == "n1"), None)
    if node is None:
        return None
    event = e.NodeQuarantined(node=node.node, incarnation=node.incarnation, reason="again")
    return Decision((event,), "again")


def test_a_rule_that_chases_the_nodes_is_caught() -> None:
    """It says what goes round and round."""
    with pytest.raises(AssertionError, match=r"does not come to rest: .*NodeQuarantined"):
        FleetHarness({"dp": 1}, standbys=1, own=restless)


_CALLS = itertools.count()


def moody(state: FleetState, _: int, __: Policy) -> Decision | None:
    """A rule that depends on how often it was asked."""
    node = next((state.nodes[name] for name in state.pool), None)
    if node is None or node.quarantine:
        return None
    reason = f"call {next(_CALLS)}"
    event = e.NodeQuarantined(node=node.node, incarnation=node.incarnation, reason=reason)
    return Decision((event,), reason)


def hashed(state: FleetState, _: int, __: Policy) -> Decision | None:
    """A rule that takes whoever comes first in a set of names."""
    names = {str(name) for name in state.nodes}
    if len(names) < 4:
        return None
    node = state.nodes[list(names)[0]]  # type: ignore[index]  # noqa: RUF015
    event = e.NodeQuarantined(node=node.node, incarnation=node.incarnation, reason="first")
    return Decision((event,), f"{node.node} is first")


def test_a_rule_that_differs_from_itself_is_caught() -> None:
    """At the first state that it answers in two ways."""
    with pytest.raises(NotDeterministic, match="must depend on its arguments alone"):
        FleetHarness({"dp": 2}, standbys=1, own=moody)


def test_a_rule_that_walks_a_set_of_names_is_caught_across_processes() -> None:
    """Two hash seeds, two processes, two answers."""
    log = FleetHarness({"dp": 8}, standbys=4).log
    with pytest.raises(NotDeterministic, match="is first"):
        check_determinism("tests.unit.controlplane.test_testkit:hashed", log, seeds=(1, 2, 3))


def test_a_decision_that_breaks_an_invariant_is_caught() -> None:
    """An own rule cannot promote whom it likes: the invariants are the fleet's."""

    def commits_nothing(state: FleetState, _: int, __: Policy) -> Decision | None:
        job = next(iter(state.jobs.values()), None)
        if job is None or job.pending is None or job.pending.committed is not None:
            return None
        event = e.TransitionCommitted(
            job=job.job,
            transition=job.pending.plan.transition,
            epoch=job.epoch + 1,  # type: ignore[arg-type]
            resume_step=0,
            apply=(),
            handovers=(),
            deadline_at_ms=0,
            reason="at once",
        )
        return Decision((event,), "at once")

    with pytest.raises(Exception, match=r"invariant|acknowledg"):
        FleetHarness({"dp": 2}, own=commits_nothing)
