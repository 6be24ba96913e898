"""A run that loses members, or gives them away, and ends where an uninterrupted one ends."""

from collections.abc import Awaitable, Callable
from typing import Any

from statemachine import events as e
from statemachine.ids import NodeId
from statemachine.lifecycle import NodeState

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
