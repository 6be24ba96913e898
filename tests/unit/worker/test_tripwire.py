"""A training process that is being killed is known before its memory is gone; nothing else is."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from worker.supervise import Exit, TrainingProcess
from worker.tripwire import Tripwire, ending_status, hold

ROOT = Path(__file__).parents[3]

_TRAINEE = """
import os, sys, time
from statemachine import messages as m
from worker.channel import WorkerChannel
channel = WorkerChannel.from_environment()
filled = bytearray(512 << 20)
filled[::4096] = bytes(len(filled) // 4096) # every page, so that all of it must be taken down
channel.send(m.Parked(transition=1))
exec(sys.argv[1])
"""


async def trainee(tmp_path: Path, then: str) -> TrainingProcess:
    """A training process that holds its wire and has said one word."""
    process = await TrainingProcess.start(
        [sys.executable, "-c", _TRAINEE, then],
        log_path=tmp_path / "log",
        environment={"PYTHONPATH": str(ROOT)},
    )
    async with asyncio.timeout(20):
        await process.channel.receive()
    process.arm()
    return process


async def test_a_killed_process_is_known_before_it_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL is told, with its number, while the kernel still takes the memory down."""
    process = await trainee(tmp_path, "time.sleep(600)")
    killed_at = time.perf_counter()
    os.kill(process.child.pid, signal.SIGKILL)

    fate = await process.ending()
    told_ms = (time.perf_counter() - killed_at) * 1000
    ended_before = process.child.exit
    await process.child.wait()
    ended_ms = (time.perf_counter() - killed_at) * 1000
    with capsys.disabled():
        print(f"\n  SIGKILL of 512 MB: told after {told_ms:.1f} ms, ended after {ended_ms:.1f} ms")

    assert fate == Exit(signal=9)
    assert ended_before is None, "the wire must be faster than the end"
    process.channel.close()


async def test_a_process_that_is_killed_yields_the_processor_while_it_ends(tmp_path: Path) -> None:
    """Its memory is taken down in its own name: at the lowest priority, and not at everybody's."""
    process = await trainee(tmp_path, "time.sleep(600)")
    seen: list[int] = []
    taken_down = process._doomed

    def look(status: int) -> None:
        taken_down(status)
        seen.append(os.getpriority(os.PRIO_PROCESS, process.child.pid))

    process._doomed = look  # type: ignore[method-assign]
    os.kill(process.child.pid, signal.SIGKILL)
    await process.ending()
    await process.child.wait()

    assert seen == [19]
    process.channel.close()


@pytest.mark.parametrize(
    ("then", "expected"), [("os._exit(3)", Exit(code=3)), ("sys.exit(0)", Exit(code=0))]
)
async def test_an_end_by_itself_is_told_as_what_it_is(
    tmp_path: Path, then: str, expected: Exit
) -> None:
    """A process that ends of itself is reported with its own code, in order or not."""
    process = await trainee(tmp_path, then)

    async with asyncio.timeout(20):
        assert await process.ending() == expected
        assert await process.child.wait() == expected
    process.channel.close()


async def test_a_process_that_holds_no_wire_is_watched_by_its_end_alone(tmp_path: Path) -> None:
    """A program that knows nothing of wires is noticed when it has ended."""
    process = await TrainingProcess.start(["sleep", "600"], log_path=tmp_path / "log")
    process.arm()
    os.kill(process.child.pid, signal.SIGKILL)

    async with asyncio.timeout(20):
        assert await process.ending() == Exit(signal=9)
    assert process.child.exit is not None
    process.channel.close()


def test_a_process_that_runs_has_no_ending() -> None:
    """Neither this process nor one that does not exist is said to end badly."""
    assert ending_status(os.getpid()) == 0
    assert ending_status(2**22 + 1) == 0


def test_a_wire_that_was_not_inherited_is_ignored() -> None:
    """A stale number in the environment arms nothing, and is not passed on."""
    environment = {"CHANGEOVER_TRIPWIRE_FD": "987654", "HOME": "kept"}
    hold(environment)

    assert environment == {"HOME": "kept"}
    assert Tripwire().watch(os.getpid(), lambda _: None) is False
