"""Standing back: every thread of a process, only where it can be taken back, and not for ever."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.eventlog.promptness import SLICE_NS, slice_ns
from statemachine import events as e
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Position, Slot, TransitionId
from statemachine.lifecycle import Phase
from statemachine.topology import Desired, Holder, Pending
from worker import standing_back
from worker.standing_back import Newcomer, lacks_nobody, may_stand_back, stand_back, take_share

NEEDS_RIGHT = pytest.mark.skipif(
    not may_stand_back(), reason="who stands back here could not take its share again"
)

BUSY = """
import subprocess, sys, threading
from controlplane.eventlog.promptness import be_prompt
def prompt():
    be_prompt()
    threading.Event().wait()
def ordinary():
    threading.Event().wait()
child = None
print("up", flush=True)
for line in sys.stdin:
    if line.strip() == "thread":
        threading.Thread(target=ordinary, daemon=True).start()
    elif line.strip() == "prompt":
        threading.Thread(target=prompt, daemon=True).start()
    else:
        child = subprocess.Popen(["sleep", "1000"])
    print(child.pid if child else 0, flush=True)
if child:
    child.kill()
"""


class Process:
    """A process that starts what it is told to start."""

    def __init__(self) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", BUSY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        self.read()

    def read(self) -> str:
        """The next line that it says."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def start(self, what: str) -> int:
        """Let it start something; the process's number, of a process."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{what}\n")
        self.popen.stdin.flush()
        return int(self.read())

    def policies(self) -> list[int]:
        """The scheduling class of each of its threads."""
        return [os.sched_getscheduler(thread) for thread in standing_back._threads(self.popen.pid)]

    def slices(self) -> list[int]:
        """The slice of each of its threads."""
        return [slice_ns(thread) for thread in standing_back._threads(self.popen.pid)]

    def has_prompt(self, count: int) -> bool:
        """Whether so many of its threads are prompt, within seconds."""
        ends_at_s = time.monotonic() + 5
        while self.slices().count(SLICE_NS) != count and time.monotonic() < ends_at_s:
            time.sleep(0.01)
        return self.slices().count(SLICE_NS) == count


@pytest.fixture
def process() -> Iterator[Process]:
    """A process, and its end."""
    made = Process()
    yield made
    made.popen.communicate(timeout=20)


@NEEDS_RIGHT
def test_a_process_stands_back_whole_and_takes_its_share_whole(process: Process) -> None:
    """Threads that it had, threads and children that it starts meanwhile: none is forgotten."""
    process.start("thread")
    assert stand_back(process.popen.pid)
    assert process.policies() == [os.SCHED_IDLE] * 2
    process.start("thread")
    child = process.start("child")
    assert process.policies() == [os.SCHED_IDLE] * 3
    assert os.sched_getscheduler(child) == os.SCHED_IDLE

    take_share(process.popen.pid)

    assert process.policies() == [os.SCHED_OTHER] * 3
    assert os.sched_getscheduler(child) == os.SCHED_OTHER


@NEEDS_RIGHT
def test_who_only_answers_does_not_stand_back(process: Process) -> None:
    """A prompt thread stays prompt, whether it began before its process stood back or after."""
    process.start("prompt")
    if not process.has_prompt(1):
        pytest.skip("this kernel has no slices of one's own")
    stand_back(process.popen.pid)
    process.start("prompt")

    assert process.has_prompt(2), process.slices()
    assert process.policies().count(os.SCHED_IDLE) == 1, "its main thread"

    take_share(process.popen.pid)

    assert process.has_prompt(2), process.slices()


def test_nobody_stands_back_who_could_not_return() -> None:
    """Without the right to it, being in a container as root or not, a process keeps its share."""
    code = (
        "import os, resource\n"
        "from worker.standing_back import may_stand_back, stand_back\n"
        "resource.setrlimit(resource.RLIMIT_NICE, (0, 0))\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "print(may_stand_back(), stand_back(os.getpid()), os.sched_getscheduler(0))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", str(os.SCHED_OTHER)]


def test_a_process_that_has_ended_is_left_alone() -> None:
    """Neither way asks anything of a number that nobody has."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert not stand_back(ended.pid)
    take_share(ended.pid)


JOB = JobId("j")
DECLARED = e.JobDeclared(job=JOB, axes={"pp": 2, "dp": 2})


def desired(epoch: int = 1, members: int = 4, **more: object) -> Desired:
    """A job of four slots."""
    holders = tuple(
        Holder(
            slot=Slot(n),
            node=NodeId(f"n{n}"),
            incarnation=Incarnation(1),
            host="127.0.0.1",
            port=0,
            transfer_port=0,
        )
        for n in range(members)
    )
    return Desired(
        job=JOB,
        position=Position(1),
        epoch=Epoch(epoch),
        declared=DECLARED,
        members=holders,
        **more,  # type: ignore[arg-type]
    )


PENDING = Pending(
    transition=TransitionId(2),
    motive=e.Motive.PLANNED,
    phase=Phase.PREPARING,
    to_epoch=Epoch(2),
    members=(),
    required=(),
    joiners=(),
    leavers=(),
    deadline_at_ms=0,
    reason="",
)


@pytest.mark.parametrize(
    ("wanted", "lacks"),
    [
        (desired(), False),
        (desired(epoch=0, members=0), True),
        (desired(members=3), True),
        (desired(pending=PENDING), True),
        (desired(finished=True), True),
    ],
    ids=["in full", "not launched", "one is lost", "a change is under way", "finished"],
)
def test_a_newcomer_stands_back_only_for_a_run_that_lacks_nobody(
    wanted: Desired, lacks: bool
) -> None:
    """Whoever may be waited for has its full share: a launch, a loss, a change."""
    assert lacks_nobody(wanted) is not lacks


@NEEDS_RIGHT
async def test_a_newcomer_follows_what_its_job_lacks(process: Process) -> None:
    """Back while nobody is lacking, forth at a loss, back again, and forth for good when ready."""
    newcomer = Newcomer(process.popen.pid)
    seen = []
    for wanted in (desired(epoch=0, members=0), desired(), desired(members=3), desired()):
        newcomer.heed(wanted)
        seen += process.policies()
    newcomer.settle()
    newcomer.heed(desired())
    seen += process.policies()
    other, idle = os.SCHED_OTHER, os.SCHED_IDLE
    assert seen == [other, idle, other, idle, other]


@NEEDS_RIGHT
async def test_nobody_stands_back_for_ever(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that never rests, a start that stood back for its time gets its share."""
    monkeypatch.setattr(standing_back, "STAND_BACK_S_MAX", 0.1)
    newcomer = Newcomer(process.popen.pid)
    newcomer.heed(desired())
    assert process.policies() == [os.SCHED_IDLE]
    for _ in range(500):
        if process.policies() == [os.SCHED_OTHER]:
            break
        await asyncio.sleep(0.01)
    assert process.policies() == [os.SCHED_OTHER]
    newcomer.heed(desired())
    assert process.policies() == [os.SCHED_OTHER]
