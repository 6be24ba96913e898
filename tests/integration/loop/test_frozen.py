"""A rank that is stopped keeps its connections open; its peers notice that it does not run.

And a rank that is merely late is left alone, however busy the machine is.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from statemachine import events as e
from worker.faultpoints import Act

Launch = Callable[..., Awaitable[Any]]

STEPS = 300
EXTRA = ["--slow-ms", "20", "--width", "4096"]
MEETING = 40
"""Steps after which every peer has been greeted and has answered: 0.8 s or more, three ticks."""
KNOBS = {"wait_floor_s": 0.5, "silence_s": 1.0, "silence_deadline_s": 0.5}


async def _fleet(launch: Launch) -> Any:
    fleet = await launch(nodes=3, standbys=1, steps=STEPS, extra=EXTRA, knobs=KNOBS)
    await fleet.until("a standby is warm", lambda: bool(fleet.warm()) and fleet.idle())
    nodes = [fleet.nodes[fleet.holder(slot)] for slot in range(3)]
    await fleet.until("peers have met", lambda: all(len(n.steps()) >= MEETING for n in nodes))
    return fleet


@pytest.mark.parametrize(
    ("slot", "points"),
    [
        (0, ["vote.before", "exchange.waiting"]),
        (1, ["step.begin", "exchange.waiting"]),
        (2, ["vote.after"]),
    ],
    ids=["first slot, in the vote", "middle slot, in a collective", "last slot, after the vote"],
)
async def test_a_stopped_rank_is_replaced(
    launch: Launch, calm: Callable[..., Any], slot: int, points: list[str]
) -> None:
    """SIGSTOP is noticed by peers and answered like a death; only the stopped one is lost."""
    fleet = await _fleet(launch)
    victim = fleet.holder(slot)
    fleet.arm(victim, points, Act.STOP)
    await fleet.until("it is lost", lambda: fleet.lost() == [victim])
    await fleet.until("the job runs again", fleet.idle)
    digest = await fleet.digest()
    losses = fleet.losses()
    expected_digest, expected = await calm(3, STEPS, extra=EXTRA[2:])

    assert digest == expected_digest, fleet.story()
    assert all(found == expected[key] for key, found in losses.items())
    assert fleet.lost() == [victim], fleet.story()
    lost = fleet.events(e.NodeLost)[0].event
    assert "no sign of life" in lost.reason, lost


async def test_a_standby_that_froze_is_passed_over_when_it_is_needed(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """A frozen standby that is to take a slot answers nobody: it is given up within seconds, long
    before the deadline for preparing, and the next one takes the slot.
    """
    fleet = await launch(nodes=3, standbys=2, steps=STEPS, extra=EXTRA, knobs=KNOBS)
    await fleet.until("two are warm", lambda: len(fleet.warm()) == 2 and fleet.idle())
    nodes = [fleet.nodes[fleet.holder(slot)] for slot in range(3)]
    await fleet.until("peers have met", lambda: all(len(n.steps()) >= MEETING for n in nodes))
    fleet.kill("n3", signal.SIGSTOP)
    fleet.kill("n1")
    await fleet.until("both are lost", lambda: sorted(fleet.lost()) == ["n1", "n3"])
    await fleet.until("the job runs again", lambda: fleet.idle() and fleet.holder(1) == "n4")
    digest = await fleet.digest()
    expected_digest, _ = await calm(3, STEPS, extra=EXTRA[2:])

    assert digest == expected_digest, fleet.story()
    planned, lost = fleet.events(e.TransitionPlanned)[1], fleet.events(e.NodeLost)[1]
    assert "no sign of life" in lost.event.reason, lost
    assert lost.at_ms - planned.at_ms < fleet.state.policy.prepare_deadline_s * 1000 / 2


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """More busy processes than the machine has cores."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    yield
    for one in busy:
        one.kill()
        one.wait()


@pytest.mark.usefixtures("busy_machine")
async def test_a_stalled_rank_that_lives_is_not_lost(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """A rank whose training thread stalls for long, on a busy machine, is waited for."""
    fleet = await _fleet(launch)
    fleet.arm("n1", ["step.begin"], Act.HOLD)
    await fleet.until("it stalls", lambda: fleet.met("n1"))
    began = len(fleet.log)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            await fleet.until("somebody is lost", lambda: bool(fleet.lost()), 60.0)
    fleet.release("n1")
    digest = await fleet.digest()
    expected_digest, _ = await calm(3, STEPS, extra=EXTRA[2:])

    assert not fleet.lost(), fleet.story()
    assert digest == expected_digest
    assert len(fleet.events(e.TransitionPlanned)) == 1, fleet.log[began:]


HANG = {"hang_deadline_s": 2.0, "abort_deadline_s": 1.0, "silence_s": 1.0}


@pytest.mark.parametrize("act", [Act.HOLD, Act.STOP], ids=["its training thread", "all of it"])
async def test_a_rank_that_hangs_is_replaced_at_a_deadline(
    launch: Launch, calm: Callable[..., Any], act: Act
) -> None:
    """A rank whose process answers while its training thread hangs, or that froze before it ever
    answered a peer, is told to park with everybody when the deadline is over, and killed for not
    doing so; only it is lost.
    """
    fleet = await launch(
        nodes=3, standbys=1, steps=STEPS, extra=EXTRA, knobs=HANG | {"wait_floor_s": 30.0}
    )
    await fleet.until("a standby is warm", lambda: bool(fleet.warm()) and fleet.idle())
    fleet.arm("n1", ["step.begin"], act)
    await fleet.until("it hangs", lambda: fleet.met("n1"))
    await fleet.until("it is lost", lambda: fleet.lost() == ["n1"])
    await fleet.until("the job runs again", lambda: fleet.idle() and fleet.holder(1) == "n3")
    digest = await fleet.digest()
    expected_digest, _ = await calm(3, STEPS, extra=EXTRA[2:])

    assert digest == expected_digest, fleet.story()
    assert fleet.lost() == ["n1"], fleet.story()
    cause = fleet.events(e.GroupBroken)[0].event.cause  # of whoever says so first
    assert "timed out" in cause or "told" in cause, cause
    (exited,) = fleet.events(e.WorkerExited)
    assert "did not leave its collectives" in exited.event.reason, exited
