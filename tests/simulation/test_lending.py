"""Agents as they ship, lent from one job to another: the pool of standbys is one for a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statemachine import events as e
from statemachine.ids import JobId, NodeId
from statemachine.lifecycle import NodeState
from tests.simulation.test_controller import JOB, epoch_is, launched

if TYPE_CHECKING:
    from statemachine.state import FleetState
    from tests.simulation.conftest import Play
    from tests.simulation.fleet import Fleet

OTHER = JobId("other")


def trains(state: FleetState, job: JobId, *names: str) -> bool:
    """Whether a job is at rest with these nodes in its slots."""
    record = state.jobs.get(job)
    if record is None or not record.launched or record.pending is not None or record.vacant:
        return False
    return sorted(record.holders.values()) == sorted(names)


def runs(state: FleetState) -> bool:
    """Whether the other job is launched and at rest."""
    record = state.jobs.get(OTHER)
    return record is not None and record.launched and record.pending is None


def test_a_standby_is_lent_and_its_agent_serves_the_other_job(play: Play) -> None:
    """Three nodes beyond the slots of one job launch another: their agents end the process they
    have, come back with that of the other job, and the first job goes on untouched.
    """

    async def scenario(fleet: Fleet) -> None:
        fleet.also = {OTHER: ("train-other",)}
        await launched(fleet)
        for name in ("n5", "n6"):
            await fleet.start_node(name)
        await fleet.act(e.JobDeclared(job=OTHER, axes={"dp": 2}))
        await fleet.until(runs, "the other's launch")
        lent = {str(event.node) for event in fleet.said(e.NodeAssigned)}
        await fleet.until(lambda state: trains(state, OTHER, *lent), "both of them train")

        assert len(lent) == 2, "no more than it takes"
        assert epoch_is(1)(fleet.state), "the first job is where it was"
        assert fleet.said(e.NodeLost) == []
        for name in lent:
            assert fleet.nodes[name].settings.job == OTHER
            assert fleet.nodes[name].settings.also == {JOB: ()}
            assert fleet.nodes[name].worker.has_state

    play(scenario)


def test_a_loss_is_answered_from_the_pool_of_another_job(play: Play) -> None:
    """A job without a standby of its own has a lost slot filled by one of another job."""

    async def scenario(fleet: Fleet) -> None:
        fleet.also = {OTHER: ("train-other",)}
        await launched(fleet)
        for name in ("n5", "n6"):
            await fleet.start_node(name)
        await fleet.act(e.JobDeclared(job=OTHER, axes={"dp": 2}))
        await fleet.until(runs, "the other's launch")
        victim, peer = sorted(fleet.state.jobs[OTHER].holders.values())
        free = next(n for n in ("n4", "n5", "n6") if n not in (victim, peer))
        await fleet.kill_node(victim, seen_by=[peer])
        await fleet.until(lambda state: trains(state, OTHER, peer, free), "the swap")

        assert fleet.state.nodes[NodeId(victim)].state is NodeState.LOST
        assert epoch_is(1)(fleet.state), "the first job is where it was"

    play(scenario)
