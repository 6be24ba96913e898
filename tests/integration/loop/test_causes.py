"""What ends a process: an exception, want of memory, the loss of its machine or of its network.

Whatever it was, exactly the dead are declared lost, the reason names what was seen, and the run
ends with the weights of a run that nobody disturbed.
"""

import contextlib
import os
import resource
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from statemachine import events as e
from tests.integration.loop.cable import cable
from tests.integration.loop.core_fleet import Machine
from worker.faultpoints import Act

Launch = Callable[..., Awaitable[Any]]

STEPS = 400
SLOW = ["--slow-ms", "20"]
MEMORY = Path("/sys/fs/cgroup/memory")
"""Where the kernel's first kind of control group of memory is, on machines that have it."""


async def _replaced(fleet: Any, victim: str, joiner: str) -> None:
    await fleet.until(f"{victim} is lost", lambda: fleet.lost()[-1:] == [victim])
    await fleet.until(
        f"{joiner} has its slot", lambda: fleet.idle() and joiner in _holders(fleet), 30.0
    )


def _holders(fleet: Any) -> list[str]:
    return [fleet.holder(slot) for slot in range(3)]


def _limit_memory(pid: int) -> None:
    """Let a process have 64 MiB more of addresses than it has."""
    allowed = psutil.Process(pid).memory_info().vms + (64 << 20)
    resource.prlimit(pid, resource.RLIMIT_AS, (allowed, allowed))


@pytest.mark.timeout(120)
async def test_exceptions_memory_and_standbys(launch: Launch, calm: Callable[..., Any]) -> None:
    """One run meets an exception in its loop, a rank that runs out of memory, the death of its only
    standby, and in the end that of its first rank.
    """
    fleet = await launch(nodes=3, standbys=1, steps=STEPS, extra=SLOW)
    await fleet.until("a standby is warm", lambda: fleet.warm() == ["n3"] and fleet.idle())
    fleet.arm("n1", ["vote.before"], Act.RAISE)
    await _replaced(fleet, "n1", "n3")

    await fleet.add_standby()
    _limit_memory(fleet.nodes["n2"].process.pid)
    fleet.arm("n2", ["step.begin"], Act.EXHAUST)
    await _replaced(fleet, "n2", "n4")

    standby = await fleet.add_standby()
    planned = len(fleet.events(e.TransitionPlanned))
    fleet.kill(standby)
    await fleet.until("it is lost", lambda: fleet.lost()[-1:] == [standby])
    assert len(fleet.events(e.TransitionPlanned)) == planned, fleet.story()

    await fleet.add_standby()
    fleet.kill(fleet.holder(0))
    await _replaced(fleet, "n0", "n6")
    digest = await fleet.digest()
    expected, _ = await calm(3, STEPS)

    assert digest == expected, fleet.story()
    assert fleet.lost() == ["n1", "n2", standby, "n0"], fleet.story()
    assert "FaultHere: vote.before" in (fleet.folder / "n1.1.log").read_text()
    assert "MemoryError" in (fleet.folder / "n2.1.log").read_text()


@contextlib.contextmanager
def _memory_group(pid: int) -> Iterator[Path]:
    """A control group with this process alone, which may have 64 MiB more than it has."""
    group = MEMORY / f"changeover-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("4G")
        (group / "memory.swappiness").write_text("0")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        pytest.skip(f"no control group of memory can be made here: {error}")
    try:
        yield group
    finally:
        group.rmdir()


@pytest.mark.soak
@pytest.mark.timeout(90)
async def test_the_kernel_kills_for_want_of_memory(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """A rank that the kernel kills because its control group is out of memory is replaced."""
    fleet = await launch(nodes=3, standbys=1, steps=STEPS, extra=SLOW)
    await fleet.until("a standby is warm", lambda: fleet.warm() == ["n3"] and fleet.idle())
    with _memory_group(fleet.nodes["n1"].process.pid) as group:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        fleet.arm("n1", ["step.begin"], Act.EXHAUST)
        await _replaced(fleet, "n1", "n3")
        await fleet.nodes["n1"].process.wait()
        killed = (group / "memory.oom_control").read_text()
    digest = await fleet.digest()
    expected, _ = await calm(3, STEPS)

    assert digest == expected, fleet.story()
    assert fleet.lost() == ["n1"], fleet.story()
    assert "oom_kill 0" not in killed, killed
    assert "MemoryError" not in (fleet.folder / "n1.1.log").read_text()


@pytest.mark.timeout(120)
async def test_a_whole_machine_of_several_ranks(launch: Launch) -> None:
    """A machine with two ranks of a replica is lost at once: one transition replaces both."""
    script = Path(__file__).with_name("train_axes.py")
    shape = {"nodes": 4, "axes": {"dp": 2, "pp": 1, "tp": 2}, "steps": 200, "script": script}
    calm = await launch(standbys=0, **shape)
    expected = await calm.digests()
    await calm.stop()
    fleet = await launch(standbys=2, extra=SLOW, **shape)
    await fleet.until("two are warm", lambda: len(fleet.warm()) == 2 and fleet.idle(), 40.0)
    for slot in (2, 3):
        fleet.kill(fleet.holder(slot))
    await fleet.until("both are lost", lambda: sorted(fleet.lost()) == ["n2", "n3"])
    await fleet.until("the job runs again", fleet.idle)
    digests = await fleet.digests()

    assert digests == expected, fleet.story()
    assert sorted(fleet.lost()) == ["n2", "n3"], fleet.story()
    committed = fleet.events(e.TransitionCommitted)
    assert len(committed) == 2, fleet.story()  # the launch, and one swap of two


@pytest.mark.timeout(90)
async def test_a_machine_whose_cable_is_cut(launch: Launch, calm: Callable[..., Any]) -> None:
    """A live machine that nobody can reach any more, on whose connections nothing is reset, is
    silent to its peers and replaced, and those whom it calls silent stay.
    """
    knobs = {"wait_floor_s": 0.5, "silence_s": 1.0, "silence_deadline_s": 0.5}
    with cable(f"changeover-{os.getpid()}") as (machine, cut):
        here = Machine(machine.host.rpartition(".")[0] + ".1")
        fleet = await launch(
            nodes=3,
            standbys=1,
            steps=STEPS,
            extra=SLOW,
            knobs=knobs,
            machines={"n0": here, "n1": machine, "n2": here, "n3": here},
        )
        await fleet.until("a standby is warm", lambda: bool(fleet.warm()) and fleet.idle())
        await fleet.until("peers have met", lambda: len(fleet.nodes["n1"].steps()) > 40)
        cut()
        await _replaced(fleet, "n1", "n3")
        digest = await fleet.digest()
        expected, _ = await calm(3, STEPS)

        assert digest == expected, fleet.story()
        assert fleet.lost() == ["n1"], fleet.story()
        assert "no sign of life" in fleet.events(e.NodeLost)[0].event.reason
        await fleet.stop()
