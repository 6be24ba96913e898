"""A run that loses members, or gives them away, and ends where an uninterrupted one ends."""

import signal
from collections.abc import Awaitable, Callable
from typing import Any

from torch._C._distributed_c10d import TCPStore

from statemachine import events as e
from statemachine.ids import NodeId
from statemachine.incidents import incidents
from statemachine.lifecycle import NodeState
from worker.faultpoints import Act

Launch = Callable[..., Awaitable[Any]]

STEPS = 200
SLOW = ["--slow-ms", "20"]


async def _warm_fleet(launch: Launch) -> Any:
    fleet = await launch(nodes=3, standbys=1, steps=STEPS, extra=SLOW)
    await fleet.until("a standby is warm", lambda: bool(fleet.warm()) and fleet.idle())
    return fleet


async def test_a_killed_node_is_replaced_and_the_weights_do_not_know(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """After a SIGKILL the run ends with the weights of a run that nobody disturbed."""
    expected, _ = await calm(3, STEPS)
    fleet = await _warm_fleet(launch)
    fleet.agents_tell = False
    pids = {name: node.process.pid for name, node in fleet.nodes.items()}
    fleet.kill("n1")
    await fleet.until("the swap is done", lambda: len(fleet.events(e.TransitionFinished)) == 2)
    digest = await fleet.digest()

    assert digest == expected, fleet.story()
    assert fleet.lost() == ["n1"], fleet.story()
    assert fleet.holder(1) == "n3"
    assert {n: fleet.nodes[n].process.pid for n in ("n0", "n2")} == {
        n: pids[n] for n in ("n0", "n2")
    }


async def test_survivors_keep_what_they_computed(launch: Launch, calm: Callable[..., Any]) -> None:
    """A rank that dies before the first collective of a step costs its peers none of their work:
    each goes on with the same step, and the run ends with the same weights and losses.
    """
    expected, losses = await calm(3, STEPS)
    fleet = await _warm_fleet(launch)
    fleet.arm("n1", ["step.begin"], Act.KILL)
    await fleet.until("the swap is done", lambda: len(fleet.events(e.TransitionFinished)) == 2)
    digest = await fleet.digest()

    assert digest == expected, fleet.story()
    assert fleet.losses() == losses
    resumed = fleet.events(e.TransitionCommitted)[1].event.resume_step
    for name in ("n0", "n2"):
        log = (fleet.folder / f"{name}.1.log").read_text()
        assert f"step {resumed} goes on in epoch 2" in log, fleet.story()
    assert [told.steps_lost for told in incidents(fleet.log)] == [0], fleet.story()


async def test_a_planned_swap_loses_no_step_and_changes_no_weight(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """A drained node hands over at a boundary; the run ends with the same weights."""
    expected, losses = await calm(3, STEPS)
    fleet = await _warm_fleet(launch)
    fleet.say(e.DrainRequested(node=NodeId("n1"), by="test"))
    await fleet.until("the swap is done", lambda: len(fleet.events(e.TransitionFinished)) == 2)
    digest = await fleet.digest()

    assert digest == expected, fleet.story()
    assert fleet.losses() == losses
    assert not fleet.lost(), fleet.story()
    assert fleet.holder(1) == "n3"
    assert fleet.state.nodes["n1"].state is NodeState.DRAINED


async def test_a_group_that_breaks_without_a_death_is_mended(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """Where a group breaks and nobody died, all get new groups, and nobody is replaced."""
    expected, losses = await calm(3, STEPS)
    fleet = await _warm_fleet(launch)
    fleet.kill("n1", signal.SIGUSR2)
    await fleet.until("it is mended", lambda: len(fleet.events(e.TransitionFinished)) == 2)
    digest = await fleet.digest()

    assert digest == expected, fleet.story()
    assert fleet.losses() == losses
    assert not fleet.lost(), fleet.story()
    assert [fleet.holder(slot) for slot in range(3)] == ["n0", "n1", "n2"]
    assert len(fleet.events(e.TransitionPlanned)) == 2, fleet.story()


async def test_without_a_standby_the_job_waits_for_one(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """With nobody to take a slot, survivors stay parked, visibly, and go on when one comes."""
    expected, _ = await calm(3, STEPS)
    fleet = await launch(nodes=3, standbys=0, steps=STEPS, extra=SLOW)
    await fleet.until("it trains", lambda: len(fleet.nodes["n1"].steps()) > 3 and fleet.idle())
    fleet.kill("n1")
    await fleet.until("survivors say so", lambda: len(fleet.events(e.GroupBroken)) == 2)

    assert set(fleet.state.jobs["tiny"].vacant) == {1}
    assert fleet.state.jobs["tiny"].pending is None
    assert fleet.lost() == ["n1"]

    await fleet.start("n3")
    await fleet.until("the slot is filled", lambda: fleet.idle() and fleet.holder(1) == "n3")

    assert await fleet.digest() == expected, fleet.story()
    assert fleet.lost() == ["n1"], fleet.story()


async def test_a_run_on_rebuilt_groups_is_mended_as_well(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """With torch's own gloo groups inside, a drain and a loss change no weight: groups are built
    anew in the background, and meet at a store that no rank keeps.
    """
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    rebuilt = [["--groups", f"rebuild://127.0.0.1:{store.port}"] for store in stores]
    undisturbed = await launch(nodes=3, standbys=0, steps=STEPS, extra=rebuilt[0])
    expected = await undisturbed.digest()
    await undisturbed.stop()
    fleet = await launch(nodes=3, standbys=2, steps=STEPS, extra=[*SLOW, *rebuilt[1]])
    await fleet.until("two are warm", lambda: len(fleet.warm()) == 2 and fleet.idle())
    fleet.say(e.DrainRequested(node=NodeId("n1"), by="test"))
    await fleet.until("n1 has left", lambda: fleet.holder(1) != "n1" and fleet.idle())
    fleet.kill("n2")
    await fleet.until("n2 is replaced", lambda: fleet.lost() == ["n2"] and fleet.idle())
    digest = await fleet.digest()

    assert digest == expected, fleet.story()
    assert fleet.lost() == ["n2"], fleet.story()
    assert {fleet.holder(1), fleet.holder(2)} == {"n3", "n4"}
