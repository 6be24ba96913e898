"""Children of an agent: their end is noticed at once and takes everything they started with it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from worker.channel import ChannelClosed
from worker.supervise import Child, Exit, TrainingProcess, why_it_ended

PYTHON = (sys.executable, "-S", "-c")


def start(folder: Path, code: str, niceness: int = 0) -> Child:
    """A Python child whose output goes to a file."""
    with (folder / "out").open("ab") as output:
        return Child.start([*PYTHON, code], stdout=output, stderr=output, niceness=niceness)


async def printed(folder: Path, count: int) -> list[str]:
    """Wait until a child printed so many lines."""
    give_up_at = time.monotonic() + 10
    while True:
        lines = (folder / "out").read_text().splitlines()
        if len(lines) >= count:
            return lines
        assert time.monotonic() < give_up_at, f"printed only {lines}"
        await asyncio.sleep(0.005)


async def test_an_end_by_itself_is_noticed_with_its_code(tmp_path: Path) -> None:
    """A child that exits is reported with its exit code, to everybody who waits."""
    child = start(tmp_path, "import sys; sys.exit(5)")

    ends = await asyncio.gather(child.wait(), child.wait())

    assert set(ends) == {Exit(code=5)}
    assert not ends[0].is_clean
    assert str(ends[0]) == "exit code 5"
    assert child.exit == Exit(code=5)


async def test_an_end_by_a_signal_is_noticed_within_milliseconds(tmp_path: Path) -> None:
    """A killed child is noticed at once, with the signal's name."""
    child = start(tmp_path, "import time; print(1, flush=True); time.sleep(600)")
    await printed(tmp_path, 1)
    killed_at = time.perf_counter()
    os.kill(child.pid, signal.SIGKILL)

    ended = await child.wait()

    took_ms = (time.perf_counter() - killed_at) * 1000
    print(f"SIGKILL -> noticed: {took_ms:.2f} ms")
    assert (ended, str(ended)) == (Exit(signal=9), "SIGKILL")
    assert took_ms < 100


async def test_a_command_that_cannot_start_says_so(tmp_path: Path) -> None:
    """A missing program is a child that ends with code 1 and names the program."""
    with (tmp_path / "out").open("wb") as output:
        child = Child.start(["no-such-program-here"], stdout=output, stderr=output)

    assert await child.wait() == Exit(code=1)
    assert "no-such-program-here" in (tmp_path / "out").read_text()


async def test_killing_what_has_ended_is_nothing(tmp_path: Path) -> None:
    """A second kill, or a stop, of an ended child neither raises nor signals a stranger."""
    child = start(tmp_path, "pass")
    await child.wait()

    child.kill()
    assert await child.stop(5) == Exit(code=0)


async def test_a_child_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    """The grace is a limit, not a wait: a child that goes on is killed when it is over."""
    child = start(tmp_path, "import time; time.sleep(600)")
    began_at = time.monotonic()

    assert await child.stop(0.1) == Exit(signal=9)
    assert 0.1 <= time.monotonic() - began_at < 3


async def test_a_child_may_be_nicer_than_its_parent(tmp_path: Path) -> None:
    """A probe yields to training."""
    child = start(tmp_path, "import os; print(os.nice(0), flush=True)", niceness=5)
    await child.wait()

    assert await printed(tmp_path, 1) == [str(os.nice(0) + 5)]


async def test_a_training_process_talks_and_its_output_is_kept(tmp_path: Path) -> None:
    """Output is appended to the log of earlier ones; the channel ends with the process."""
    log = tmp_path / "worker.log"
    log.write_text("earlier\n")
    process = await TrainingProcess.start([*PYTHON, "print('hello')"], log_path=log)

    with pytest.raises(ChannelClosed):
        await process.channel.receive()

    assert await process.child.wait() == Exit(code=0)
    assert log.read_text() == "earlier\nhello\n"
    process.channel.close()


_PARENT = """
import asyncio, pathlib, sys
from worker.supervise import Child, adopt_orphans
async def main():
    adopt_orphans()
    with open(sys.argv[1], 'wb') as output:
        code = ("import os, subprocess, time;"
                "p = subprocess.Popen(['sleep', '600'], start_new_session=True);"
                "print(os.getpid(), p.pid, flush=True);" + sys.argv[2])
        child = Child.start([sys.executable, '-S', '-c', code], stdout=output, stderr=output)
    if "sleep" in sys.argv[2]:
        while not pathlib.Path(sys.argv[1]).read_text():
            await asyncio.sleep(0.005)
        if sys.argv[3] == "kill":
            child.kill()
    await child.wait()
    await asyncio.sleep(1.2)
    print('zombies', [p.pid for p in __import__('psutil').Process().children()], flush=True)
asyncio.run(main())
"""


def _parent(tmp_path: Path, then: str, *more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path / "out"), then, *more],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parents[3])},
    )


def _is_over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_killed_child_takes_its_descendants_along(tmp_path: Path) -> None:
    """What a child started is ended with it, whatever session it moved to."""
    with _parent(tmp_path, "time.sleep(600)", "kill") as parent:
        out, _ = await asyncio.to_thread(parent.communicate)
    child, grandchild = (int(word) for word in (await printed(tmp_path, 1))[0].split())

    assert out == "zombies []\n"
    assert _is_over(child)
    assert _is_over(grandchild)


async def test_orphans_of_a_child_that_died_are_ended_and_collected(tmp_path: Path) -> None:
    """What outlives a child that crashed is found by its mark, ended, and leaves no zombie."""
    with _parent(tmp_path, "os._exit(3)", "") as parent:
        out, _ = await asyncio.to_thread(parent.communicate)
    _, orphan = (int(word) for word in (await printed(tmp_path, 1))[0].split())

    assert out == "zombies []\n"
    assert _is_over(orphan)


async def test_a_child_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """SIGKILL of the parent ends the child, without anybody's help."""
    with _parent(tmp_path, "time.sleep(600)", "") as parent:
        (tmp_path / "out").touch()
        child, orphan = (int(word) for word in (await printed(tmp_path, 1))[0].split())
        parent.kill()
        parent.wait()
    give_up_at = time.monotonic() + 5
    while not _is_over(child):
        assert time.monotonic() < give_up_at, f"{child} lives on"
        await asyncio.sleep(0.005)
    os.kill(orphan, signal.SIGKILL)  # nobody was left to end this one


@pytest.mark.parametrize(
    ("ended", "wrote", "said"),
    [
        (
            Exit(code=1),
            "a\n  File x\nValueError: 7  is\todd\n\n",
            "exit code 1): ValueError: 7 is odd",
        ),
        (Exit(code=2), "", "exit code 2): it wrote nothing"),
        (Exit(code=2), "old\n--- n0 incarnation 2\n", "exit code 2): it wrote nothing"),
        (Exit(code=3), "x" * 9000, "exit code 3): " + "x" * 300),
        (Exit(code=1), "\ufffd\n", "exit code 1): \ufffd"),
        (Exit(signal=9), "step 7\n", "SIGKILL)"),
        (Exit(code=0), "step 7\n", "exit code 0)"),
    ],
)
def test_a_failure_is_told_with_the_last_line_that_was_written(
    tmp_path: Path, ended: Exit, wrote: str, said: str
) -> None:
    """The exception stands in the fleet's log, so nobody has to find the machine to read it; one
    that was killed had nothing to say about it.
    """
    path = tmp_path / "worker.log"
    path.write_text(wrote, "utf-8")

    assert why_it_ended(ended, path) == f"the training process ended ({said}"


def test_a_log_that_is_gone_is_no_second_failure(tmp_path: Path) -> None:
    """Whoever tells of a failure does not fail over its words."""
    assert "its log cannot be read" in why_it_ended(Exit(code=1), tmp_path / "gone.log")
