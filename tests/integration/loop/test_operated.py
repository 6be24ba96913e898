"""A fleet of real processes on a real etcd: operators act on it, and it is hurt from all sides.

One fleet serves several acts, since starting it is most of the cost. What must hold at the end: the
weights of a run that nobody disturbed, no step left out or repeated by anybody, nobody lost but
those who were killed.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.etcd_server import EtcdServer
from statemachine import events as e
from statemachine.ids import NodeId
from statemachine.lifecycle import NodeState
from tests.integration.loop.real_fleet import RealFleet, real_fleet
from worker.faultpoints import Act

pytestmark = pytest.mark.etcd

STEPS = 800
PACE = ["--slow-ms", "80"]


async def _ends_as_calm(fleet: RealFleet, calm: Callable[..., Any], lost: list[str]) -> None:
    digest = await fleet.digest()
    expected, _ = await calm(fleet.declared.axes["dp"], STEPS)

    assert digest == expected, fleet.story()
    assert fleet.lost() == lost, fleet.story()
    for node in fleet.state.nodes:
        path = fleet.out / f"{node}.steps"
        if path.exists() and node not in lost:
            steps = fleet.steps_of(node)
            assert steps == sorted(set(steps)), f"{node} repeated a step: {steps}"


async def _drain_while_somebody_watches(fleet: RealFleet) -> None:
    """`drain`, with a joiner that takes its time: status tells the phase, and who is awaited."""
    joiner = fleet.warm()[0]
    fleet.arm(joiner, ["prepare.begin"], Act.HOLD)
    said = await fleet.command("drain", "n1", "--as", "ada", "--comment", "new fan")
    assert said.startswith("drain of n1: at position"), said
    (job,) = json.loads(await fleet.command("status", "--json"))["jobs"]
    assert job["pending"]["phase"] == "preparing", job
    assert joiner in job["pending"]["awaited"], job
    shown = await fleet.command("status")
    assert "(planned) is preparing, waiting for" in shown, shown
    assert "drain by ada" in shown, shown
    await fleet.goes_on()  # while it is prepared, nobody stands still
    fleet.release(joiner)
    await fleet.until(
        "n1 is drained", lambda: fleet.state.nodes[NodeId("n1")].state is NodeState.DRAINED
    )
    await fleet.until("the swap is over", fleet.idle)
    assert fleet.holder(1) == joiner


@pytest.mark.timeout(240)
async def test_operators_act_on_a_running_fleet(
    own_etcd: EtcdServer, tmp_path: Path, calm: Callable[..., Any]
) -> None:
    """`drain` and `switchover` lose no step, `status` names the phase and who is awaited while it
    happens; then a node is killed with its agent, and its peers' word suffices.
    """
    async with real_fleet(
        own_etcd, tmp_path / "fleet", nodes=2, standbys=2, steps=STEPS, extra=PACE
    ) as fleet:
        await _drain_while_somebody_watches(fleet)
        (standby,) = fleet.warm()
        await fleet.command("switchover", "n0", "--to", standby, "--as", "ada")
        await fleet.until("the slot changed hands", lambda: fleet.holder(0) == standby)
        await fleet.until("n0 is warm again", lambda: fleet.warm() == ["n0"] and fleet.idle())
        assert not fleet.lost(), fleet.story()

        victim = fleet.holder(1)
        fleet.kill(victim)
        await fleet.until("n0 takes its slot", lambda: fleet.idle() and fleet.holder(1) == "n0")
        await fleet.goes_on()
        lost = fleet.events(e.NodeLost)[0]
        assert "saw its link reset" in lost.reason, lost
        motives = [plan.motive for plan in fleet.events(e.TransitionPlanned)]
        assert motives == [
            e.Motive.LAUNCH,
            e.Motive.PLANNED,
            e.Motive.PLANNED,
            e.Motive.UNPLANNED,
        ], fleet.story()
        await _ends_as_calm(fleet, calm, [victim])


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("away_s", [5.0, 30.0])
async def test_the_control_plane_is_hurt_with_the_run(
    own_etcd: EtcdServer, tmp_path: Path, calm: Callable[..., Any], away_s: float
) -> None:
    """A node dies in the same moment as the leading controller; another while etcd is away: each is
    replaced when somebody can decide again, and nobody else is lost.
    """
    async with real_fleet(
        own_etcd, tmp_path / "fleet", nodes=3, standbys=2, steps=STEPS, extra=PACE, controllers=2
    ) as fleet:
        leader = fleet.state.controller
        fleet.kill(leader)
        fleet.kill("n1")
        await fleet.until("it is replaced", lambda: fleet.lost() == ["n1"] and fleet.idle())
        await fleet.goes_on()
        assert fleet.state.controller != leader

        own_etcd.kill()
        await fleet.goes_on(5)  # nobody needs the store to train
        fleet.kill("n0")
        await asyncio.sleep(away_s)  # how long the store is away is what is tested
        parked_at = fleet.step()
        await own_etcd.start()
        await fleet.until("it is replaced", lambda: fleet.lost() == ["n1", "n0"], 60.0)
        await fleet.until("the job runs again", fleet.idle)
        await fleet.goes_on()
        resumed = [said.step for said in fleet.events(e.StepResumed)]
        assert parked_at + 1 in resumed, fleet.story()
        await _ends_as_calm(fleet, calm, ["n1", "n0"])


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_a_restart_by_policy_is_carried_out_by_agents(
    own_etcd: EtcdServer, tmp_path: Path, calm: Callable[..., Any]
) -> None:
    """With nobody to take a slot and a policy that says `restart`, agents come back with fresh
    processes, and the job goes on from the checkpoint that its script wrote; no operator acts.
    """
    extra = [*PACE, "--keep", "20"]
    async with real_fleet(
        own_etcd,
        tmp_path / "fleet",
        nodes=2,
        standbys=0,
        steps=STEPS,
        extra=extra,
        knobs={"on_loss": ["standby", "restart"]},
    ) as fleet:
        await fleet.until("a checkpoint is there", (fleet.out / "39.checkpoint").exists)
        fleet.kill("n1")
        await fleet.until("it is to be restarted", lambda: bool(fleet.events(e.JobRestarted)))
        fleet.start_node("n1", extra)  # as a machine that was repaired
        await fleet.until("it runs again", fleet.idle, 90.0)
        await fleet.goes_on()
        committed = fleet.events(e.TransitionCommitted)[-1]
        assert committed.resume_step >= 40, committed
        assert "load the checkpoint" in committed.reason, committed
        assert sorted(fleet.lost()) == ["n0", "n1"], fleet.story()
        digest = await fleet.digest()
        expected, _ = await calm(2, STEPS)
        assert digest == expected, fleet.story()
