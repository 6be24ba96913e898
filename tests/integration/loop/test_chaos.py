"""Whatever comes, in any order: losses, hangs, drains and breaks, some on top of each other.

The walks of this folder take one fault after the other at every point; this takes many at points
that a seed picks, as long as one replica of the state is left. What must hold: the run ends with
the weights and losses of one that nobody disturbed, and nobody is lost but who was hurt.
"""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statemachine import events as e
from statemachine.ids import NodeId, Slot
from worker.faultpoints import Act

pytestmark = [pytest.mark.soak, pytest.mark.timeout(280)]

Launch = Callable[..., Awaitable[Any]]

SLOTS = 3
STEPS = 1000
EXTRA = ["--slow-ms", "60", "--width", "2048"]
KNOBS = {
    "retry_cooldown_s": 0.2,
    "wait_floor_s": 0.5,
    "silence_s": 1.0,
    "silence_deadline_s": 0.5,
    "harmful_nodes_max": 1000,
}
ACTS = 12
POINTS = (
    "step.begin",
    "exchange.waiting",
    "vote.before",
    "vote.after",
    "optimizer.begin",
    "step.committed",
    "prepare.begin",
    "prepare.linked",
    "parked",
    "transfer.offered",
    "transfer.serving",
    "transfer.receiving",
    "switch.before",
    "switch.between",
    "switch.after",
)


class Chaos:
    """One run, and what was done to it."""

    def __init__(self, fleet: Any, seed: int) -> None:
        self.fleet = fleet
        self.chance = random.Random(seed)
        self.ever: set[str] = set()
        """Who was hurt at any time: nobody else may be lost."""
        self.hurt: set[str] = set()
        self.armed: set[str] = set()
        self.gone: set[str] = set()
        """Those who cannot have lived on."""
        self.done: list[str] = []

    def sound(self) -> list[str]:
        """Holders of a slot that were seen to have its state, and that nobody hurt."""
        job = self.fleet.state.jobs["tiny"]
        held = [str(job.holders[s]) for s in job.holders if s not in (*job.vacant, *job.unproven)]
        return sorted(name for name in held if name not in self.hurt)

    def free(self) -> list[str]:
        """Warm standbys that nobody hurt."""
        return [name for name in self.fleet.warm() if name not in self.hurt]

    async def one(self) -> None:
        """One act, on top of whatever goes on."""
        fleet = self.fleet
        self.disarm()
        while len([n for n in fleet.nodes if n not in self.hurt]) < SLOTS + 2 + len(self.drained()):
            await fleet.start(f"n{len(fleet.nodes)}")
        await fleet.until("it can bear more", lambda: len(self.sound()) > 1 and self.free(), 60.0)
        act = self.chance.choice([self.kill, self.kill, self.arm, self.arm, self.drain, self.snap])
        self.done.append(act())
        await asyncio.sleep(self.chance.random())  # how far the last one got is what varies

    def disarm(self) -> None:
        """Count on those again who did not come to their point, if hardly anybody else is left."""
        if len(self.sound()) > 1 and self.free():
            return
        for name in sorted(self.armed):
            if not self.fleet.met(name):
                self.fleet.arm(name, ["never"], Act.KILL)
                self.hurt.discard(name)
        self.armed.clear()

    def drained(self) -> list[str]:
        """Who was drained: alive, and of no more use."""
        return [name for name in self.fleet.nodes if self.fleet.state.nodes[name].drained_by]

    def kill(self) -> str:
        """Kill a member, or a standby."""
        victim = self.chance.choice([*self.sound(), *self.free()])
        self.hurt.add(victim)
        self.ever.add(victim)
        self.gone.add(victim)
        self.fleet.kill(victim)
        return f"killed {victim}"

    def arm(self) -> str:
        """Let a member or a standby die or freeze when it comes to a point, if it does."""
        victim = self.chance.choice([*self.sound(), *self.free()])
        point, act = self.chance.choice(POINTS), self.chance.choice([Act.KILL, Act.KILL, Act.STOP])
        self.hurt.add(victim)
        self.ever.add(victim)
        self.armed.add(victim)
        self.fleet.arm(victim, [point], act)
        return f"armed {victim} to {act} at {point}"

    def drain(self) -> str:
        """Drain a member."""
        victim = self.chance.choice(self.sound())
        self.fleet.say(e.DrainRequested(node=NodeId(victim), by="test"))
        return f"drained {victim}"

    def snap(self) -> str:
        """Break a member's group although nobody died."""
        victim = self.chance.choice(self.sound())
        self.fleet.kill(victim, signal.SIGUSR2)
        return f"broke the group of {victim}"


@pytest.mark.parametrize("seed", range(4))
async def test_a_run_bears_whatever_comes(
    launch: Launch, calm: Callable[..., Any], seed: int
) -> None:
    """Many faults, some of them in the midst of the answer to another, change no bit."""
    fleet = await launch(nodes=SLOTS, standbys=2, steps=STEPS, extra=EXTRA, knobs=KNOBS)
    await fleet.until("two are warm", lambda: len(fleet.warm()) == 2 and fleet.idle(), 60.0)
    chaos = Chaos(fleet, seed)
    for _ in range(ACTS):
        await chaos.one()
    await fleet.until("the killed are lost", lambda: chaos.gone <= set(fleet.lost()), 60.0)
    for _ in range(SLOTS):  # whatever may still come
        await fleet.start(f"n{len(fleet.nodes)}")
    await fleet.until("it rests", fleet.idle, 60.0)
    await fleet.until("it goes on", lambda: _newest(fleet) > 0)
    digest = await fleet.digest(120.0)
    losses = fleet.losses()
    expected, expected_losses = await calm(SLOTS, STEPS, extra=EXTRA[2:])
    wrong = {k: v for k, v in losses.items() if v != expected_losses[k]}

    assert not wrong, f"{chaos.done}: losses differ from {min(wrong, key=lambda k: k[1])} on"
    assert digest == expected, chaos.done
    assert chaos.gone <= set(fleet.lost()) <= chaos.ever, (chaos.done, fleet.lost())


def _newest(fleet: Any) -> int:
    holder = fleet.nodes[str(fleet.state.jobs["tiny"].holders[Slot(0)])]
    steps = holder.steps()
    return int(steps[-1]["step"]) if steps else 0
