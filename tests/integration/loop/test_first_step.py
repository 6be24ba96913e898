"""A loss before the first step is done: joiner and survivors must owe each other the same."""

from collections.abc import Awaitable, Callable
from typing import Any

from statemachine import events as e
from statemachine.lifecycle import NodeState

Launch = Callable[..., Awaitable[Any]]


async def test_a_node_lost_before_the_first_step_is_replaced(launch: Launch) -> None:
    """A kill at the launch itself leaves a run that finishes with one set of weights."""
    fleet = await launch(nodes=3, standbys=1, steps=12, extra=["--slow-ms", "30"])
    await fleet.until("the launch", lambda: bool(fleet.events(e.TransitionFinished)))
    fleet.kill("n1")
    await fleet.until("the job finishes", lambda: fleet.state.jobs["tiny"].finished)
    digests = {r.event.weights_digest for r in fleet.events(e.WorkerFinished)}

    assert len(digests) == 1, fleet.story()
    assert {r.event.node for r in fleet.events(e.NodeLost)} == {"n1"}, fleet.story()
    assert fleet.state.nodes["n1"].state is NodeState.LOST
