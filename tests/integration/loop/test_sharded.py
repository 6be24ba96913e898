"""With an optimizer that is sharded over the replicas no two ranks hold the same state."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from statemachine import events as e
from statemachine.ids import NodeId

Launch = Callable[..., Awaitable[Any]]

SCRIPT = Path(__file__).with_name("train_sharded.py")
STEPS = 120
KNOBS = {"on_loss": ["standby", "restart"], "retry_cooldown_s": 0.2}


async def _run(launch: Launch, standbys: int, extra: list[str]) -> Any:
    return await launch(
        nodes=3,
        standbys=standbys,
        steps=STEPS,
        extra=extra,
        script=SCRIPT,
        knobs=KNOBS,
        more={"replica_axis": ""},
    )


@pytest.mark.timeout(240)
async def test_a_sharded_optimizer_goes_with_its_leaver_and_comes_back_from_its_buddy(
    launch: Launch,
) -> None:
    """A drained rank hands its own moments over; a killed one's come from its buddy's memory; the
    weights are those of a calm run, in every slot.
    """
    calm = await _run(launch, 0, [])
    expected = await calm.digests()
    await calm.stop()
    fleet = await _run(launch, 1, ["--slow-ms", "20", "--copy", "4"])
    await fleet.until("warm", lambda: bool(fleet.warm()) and fleet.idle(), 60.0)
    fleet.say(e.DrainRequested(node=NodeId("n1"), by="test"))
    await fleet.until("left", lambda: fleet.holder(1) == "n3" and fleet.idle(), 60.0)
    at = fleet.nodes["n3"].steps
    await fleet.until("steps on", lambda: bool(at()) and at()[-1]["step"] > 30, 60.0)
    (handover,) = fleet.events(e.TransitionCommitted)[-1].event.handovers
    assert (handover.kind, handover.sources) == ("leaver", ("n1",))

    old = [fleet.nodes[name] for name in ("n0", "n3")]
    fleet.kill("n2")
    await fleet.until("restarted", lambda: bool(fleet.events(e.JobRestarted)), 60.0)
    for node in (*old, fleet.nodes["n2"]):
        await asyncio.wait_for(node.process.wait(), 30.0)
    shutil.rmtree(fleet.folder / "memory" / "n2", ignore_errors=True)
    for node in old:
        node.process.close()
        node.channel.close()
        await fleet.start(node.name, incarnation=2)
    await fleet.start("n4")
    await fleet.until("it runs again", fleet.idle, 60.0)
    committed = fleet.events(e.TransitionCommitted)[-1].event

    assert committed.resume_step > 20, committed.reason
    assert "the memory of n" in committed.reason
    assert await fleet.digests() == expected, fleet.story()
