"""A rank dies at every point of a step, one after the other, and the run never knows.

Each test walks one point over the first, the middle and the last slot of one run; after each loss
the slot is refilled. What must hold in the end: weights and every loss equal those of a run that
nobody disturbed, no node noted a step twice or left one out, and exactly the dead were declared
lost.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statemachine import events as e
from worker.faultpoints import Act

Launch = Callable[..., Awaitable[Any]]

STEPS = 400
SLOW = ["--slow-ms", "20", "--width", "512"]
SLOTS = 3

WAIT = "exchange.waiting"
POINTS = {
    "before gradients": ["step.begin"],
    "entering the first collective": ["step.begin", "exchange.begin"],
    "inside the first collective": ["step.begin", WAIT],
    "between collectives": ["step.begin", "exchange.end"],
    "before the vote": ["vote.before"],
    "entering the vote": ["vote.before", "exchange.begin"],
    "inside the vote": ["vote.before", WAIT],
    "having the vote's outcome": ["vote.before", "exchange.end"],
    "after the vote": ["vote.after"],
    "entering the optimizer": ["vote.after", "optimizer.begin"],
    "leaving the optimizer": ["vote.after", "optimizer.end"],
    "between steps": ["step.committed"],
}


async def _lose(fleet: Any, victim: str, count: int) -> None:
    """Wait until the armed fault was met, answered by a swap, and training goes on."""
    await fleet.until(f"{victim} is lost", lambda: fleet.lost()[-1:] == [victim])
    await fleet.until(
        "the swap is done",
        lambda: len(fleet.events(e.TransitionFinished)) == count and fleet.idle(),
    )
    assert fleet.met(victim), f"{victim} never came to the point"


async def _same_as_calm(fleet: Any, calm: Callable[..., Any], lost: list[str]) -> None:
    digest = await fleet.digest()
    losses = fleet.losses()
    expected_digest, expected = await calm(SLOTS, STEPS, extra=SLOW[2:])
    wrong = {k: (v, expected.get(k)) for k, v in losses.items() if v != expected.get(k)}
    assert not wrong, f"losses differ at {min(wrong, key=lambda k: k[1])}: {wrong}"[:2000]
    assert digest == expected_digest, fleet.story()
    assert losses.keys() >= {(slot, STEPS - 1) for slot in range(SLOTS)}
    assert fleet.lost() == lost, fleet.story()


@pytest.mark.parametrize("point", POINTS)
async def test_a_rank_dies_at_a_point_of_the_step(
    launch: Launch, calm: Callable[..., Any], point: str
) -> None:
    """Killed at any point of a step, in any slot, a rank takes nothing with it."""
    fleet = await launch(nodes=SLOTS, standbys=1, steps=STEPS, extra=SLOW)
    fleet.agents_tell = False
    dead = []
    for slot in range(SLOTS):
        await fleet.until("a standby is warm", lambda: bool(fleet.warm()) and fleet.idle())
        victim = fleet.holder(slot)
        fleet.arm(victim, POINTS[point], Act.KILL)
        dead.append(victim)
        await _lose(fleet, victim, slot + 2)
        if slot < SLOTS - 1:
            await fleet.add_standby()
    await _same_as_calm(fleet, calm, dead)
