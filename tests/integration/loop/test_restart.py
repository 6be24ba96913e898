"""A job that cannot go on from memory is launched anew, and goes on from its last checkpoint."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statemachine import events as e

Launch = Callable[..., Awaitable[Any]]

STEPS = 200
EVERY = 20
EXTRA = ["--slow-ms", "20", "--keep", str(EVERY)]


@pytest.mark.timeout(90)
async def test_a_restart_by_policy_goes_on_from_the_last_checkpoint(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """With nobody to take a slot and a policy that says so, every holder is fenced, fresh processes
    load the newest checkpoint, and the run ends with the weights of one that nobody disturbed.
    """
    fleet = await launch(
        nodes=3, standbys=0, steps=STEPS, extra=EXTRA, knobs={"on_loss": ["standby", "restart"]}
    )
    saved = fleet.folder / f"{2 * EVERY - 1}.checkpoint"
    await fleet.until("two checkpoints were written", saved.exists)
    fleet.kill("n1")
    await fleet.until("it is to be restarted", lambda: bool(fleet.events(e.JobRestarted)))
    assert sorted(fleet.lost()) == ["n0", "n1", "n2"], fleet.story()

    for name in ("n0", "n1", "n2"):
        await fleet.start(name, incarnation=2)
    await fleet.until("it runs again", fleet.idle)
    committed = fleet.events(e.TransitionCommitted)[-1].event
    told = re.search(r"load the checkpoint of step (\d+)", committed.reason)

    assert told is not None, fleet.story()
    assert committed.resume_step == int(told[1]) + 1 >= 2 * EVERY
    assert [h.kind for h in committed.handovers] == ["checkpoint", "checkpoint"], committed
    assert fleet.nodes["n1"].process.pid  # a fresh one, whose first step is the one after
    await fleet.until("steps go on", lambda: bool(fleet.nodes["n2"].steps()))
    assert fleet.nodes["n2"].steps()[0]["step"] == committed.resume_step
    digest = await fleet.digest()
    expected, _ = await calm(3, STEPS)

    assert digest == expected, fleet.story()
