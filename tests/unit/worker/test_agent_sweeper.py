"""Rounds of a sweep: a probe's numbers become a fact, and whatever else it does a failure text."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import psutil
import pytest

from statemachine import events as e
from statemachine.ids import Incarnation, NodeId, SweepId
from worker.sweeper import RoundFailed, Sweeper, run_probe


def probe(code: str) -> list[str]:
    """A command that plays a probe."""
    return [sys.executable, "-S", "-c", code]


def request(**fields: object) -> e.SweepRequested:
    """A sweep of n7, far from its deadline."""
    known = {
        "sweep": SweepId(2),
        "node": NodeId("n7"),
        "incarnation": Incarnation(3),
        "rounds": ("solo",),
        "reason": "a test",
        "deadline_at_ms": int(time.time() * 1000) + 30_000,
    }
    return e.SweepRequested(**{**known, **fields})  # type: ignore[arg-type]


async def test_the_last_line_is_the_measurements() -> None:
    """What a probe prints before its last line is of no interest."""
    code = "print('warming up'); print('{\"gemm_gflops_best\": 12.5, \"gemm_cv\": 0}')"

    assert await run_probe("compute", probe(code), 10) == {"gemm_gflops_best": 12.5, "gemm_cv": 0}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('the device is on fire')", "the device is on fire"),
        ("import sys; sys.exit(4)", "exit code 4: no word"),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("pass", "no measurements"),
        ("print('fast')", "no measurements"),
        ("print('{}')", "measured nothing"),
        ('print(\'{"a": "12"}\')', "no measurements"),
        ("print('{\"a\": 1e400}')", "no"),
        ("print('x' * 10_000_000)", "no measurements"),
    ],
)
async def test_a_probe_that_fails_gives_a_text_and_no_numbers(code: str, said: str) -> None:
    """A crash, a silence, or nonsense is never a measurement."""
    with pytest.raises(RoundFailed, match=said):
        await run_probe("compute", probe(code), 10)


async def test_a_probe_that_hangs_is_killed() -> None:
    """A probe gets its time and no more, and is gone when the round is over."""
    began_at = time.monotonic()
    before = {child.pid for child in psutil.Process().children()}

    with pytest.raises(RoundFailed, match="was killed"):
        await run_probe("compute", probe("import time; time.sleep(99)"), 0.5)

    assert time.monotonic() - began_at < 5
    left = [child for child in psutil.Process().children() if child.pid not in before]
    psutil.wait_procs(left, timeout=5)
    assert not [child for child in left if child.is_running()]


async def test_a_round_that_is_cancelled_leaves_no_child() -> None:
    """An agent that ends in the middle of a round takes the probe along."""
    before = {child.pid for child in psutil.Process().children()}
    async with anyio.create_task_group() as group:
        group.start_soon(run_probe, "compute", probe("import time; time.sleep(99)"), 50)
        await anyio.sleep(0.1)
        group.cancel_scope.cancel()

    left = [child for child in psutil.Process().children() if child.pid not in before]
    gone, _ = psutil.wait_procs(left, timeout=5)
    assert len(gone) == len(left)


@pytest.mark.parametrize(
    ("sweep", "name", "said"),
    [
        (request(), "marathon", "knows no round 'marathon'"),
        (request(rounds=("pair",)), "pair", "no probe port"),
        (request(deadline_at_ms=1), "solo", "no time left"),
    ],
)
async def test_a_round_that_cannot_be_measured_is_stated_as_failed(
    sweep: e.SweepRequested, name: str, said: str
) -> None:
    """The fact of a round always comes: with a reason, and without numbers."""
    stated: list[e.AnyEvent] = []

    await Sweeper(stated.append, Path("secret")).run(sweep, name)

    (finished,) = stated
    assert isinstance(finished, e.SweepRoundFinished)
    assert (finished.sweep, finished.node, finished.incarnation) == (2, "n7", 3)
    assert (finished.round, finished.measurements) == (name, {})
    assert said in finished.failure


@pytest.mark.parametrize(
    ("name", "in_duty", "share", "devices"),
    [
        ("solo", False, "1", True),
        ("reference", False, "1", True),
        ("reference", True, "0.03", False),
        ("pair", False, "0.03", False),
    ],
)
async def test_beside_a_run_a_round_takes_its_share_and_leaves_gpus_alone(
    name: str, in_duty: bool, share: str, devices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is in duty measures itself at a small share, its GPUs not at all; a pair is always
    measured so, since the partner may be in duty; who is out of the run works all the time.
    """
    told: list[list[str]] = []

    async def noted(probe: str, command: Sequence[str], limit_s: float) -> dict[str, float]:
        told.append(list(command))
        assert limit_s > 1 / float(share) - 1, "it has the time that its rests take"
        return {"gemm_gflops_best": 1.0}

    monkeypatch.setattr("worker.sweeper.run_probe", noted)
    monkeypatch.setenv("CHANGEOVER_GPUS", "1")
    sweeper = Sweeper(lambda _: None, Path("secret"), lambda: in_duty)
    await sweeper.run(request(partner_port=1, deadline_at_ms=0), name)

    (command,) = told
    assert command[command.index("--share") + 1] == share
    assert ("device" in command) is devices
