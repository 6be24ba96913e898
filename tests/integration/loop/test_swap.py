"""A run that loses members, or gives them away, and ends where an uninterrupted one ends."""

from collections.abc import Awaitable, Callable
from typing import Any

from statemachine import events as e
from statemachine.ids import NodeId
from statemachine.lifecycle import NodeState

Launch = Callable[..., Awaitable[Any]]

STEPS = 60


async def _finished(fleet: Any) -> str:
    await fleet.until("the job finishes", lambda: fleet.state.jobs["tiny"].finished)
    digests = {r.event.weights_digest for r in fleet.events(e.WorkerFinished)}
    assert len(digests) == 1, fleet.story()
    return str(digests.pop())


def _standby_warm(fleet: Any) -> bool:
    return any(node.state is NodeState.STANDBY for node in fleet.state.nodes.values())


async def test_a_killed_node_is_replaced_and_the_weights_do_not_know(launch: Launch) -> None:
    """After a SIGKILL the run ends with the weights of a run that nobody disturbed."""
    calm = await launch(nodes=3, standbys=0, steps=STEPS)
    expected = await _finished(calm)
    await calm.stop()
    fleet = await launch(nodes=3, standbys=1, steps=STEPS, extra=["--slow-ms", "30"])
    await fleet.until("a standby is warm", lambda: _standby_warm(fleet))
    pids = {name: node.process.pid for name, node in fleet.nodes.items()}
    fleet.kill("n1")
    await fleet.until("the swap is done", lambda: len(fleet.events(e.TransitionFinished)) == 2)
    digest = await _finished(fleet)

    assert digest == expected, fleet.story()
    assert {r.event.node for r in fleet.events(e.NodeLost)} == {"n1"}, fleet.story()
    assert fleet.state.jobs["tiny"].holders[1] == "n3"
    assert {n: fleet.nodes[n].process.pid for n in ("n0", "n2")} == {
        n: pids[n] for n in ("n0", "n2")
    }


async def test_a_planned_swap_loses_no_step_and_changes_no_weight(launch: Launch) -> None:
    """A drained node hands over at a boundary; the run ends with the same weights."""
    calm = await launch(nodes=3, standbys=0, steps=STEPS)
    expected = await _finished(calm)
    await calm.stop()
    fleet = await launch(nodes=3, standbys=1, steps=STEPS, extra=["--slow-ms", "30"])
    await fleet.until("a standby is warm", lambda: _standby_warm(fleet))
    fleet.say(e.DrainRequested(node=NodeId("n1"), by="test"))
    await fleet.until("the swap is done", lambda: len(fleet.events(e.TransitionFinished)) == 2)
    digest = await _finished(fleet)

    assert digest == expected, fleet.story()
    assert not fleet.events(e.NodeLost), fleet.story()
    assert fleet.state.jobs["tiny"].holders[1] == "n3"
    assert fleet.state.nodes["n1"].state is NodeState.DRAINED
