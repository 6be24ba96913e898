"""Processes that we start: alone killable, and gone when we are, however we end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from controlplane.localfleet.children import Child, tethered

PATIENCE_S = 10.0

# Writes its own id and that of a grandchild in a session of its own, then waits forever.
FAMILY = """
import os, subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print(os.getpid(), inner.pid, flush=True)
time.sleep(600)
"""


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds, for at most `PATIENCE_S` seconds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet counts."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def family_of(log_path: Path) -> list[int]:
    """The ids that `FAMILY` wrote."""
    until(lambda: len(log_path.read_text().split()) == 2, f"two ids in {log_path}")
    return [int(word) for word in log_path.read_text().split()]


async def test_stopping_a_child_ends_its_family_in_other_sessions_too(tmp_path: Path) -> None:
    """As torchrun's workers are, each in a session of its own."""
    child = Child.started("family", [sys.executable, "-c", FAMILY], tmp_path / "family.log")
    family = family_of(tmp_path / "family.log")
    await child.stop(0.1)
    for pid in family:
        until(lambda pid=pid: gone(pid), f"the end of {pid}")  # type: ignore[misc]
    assert child.exit_code is not None


async def test_a_child_gets_the_chance_to_end_in_order(tmp_path: Path) -> None:
    """SIGTERM first; what it writes then is in its log."""
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("bye"), sys.exit(7)))
print("ready", flush=True)
time.sleep(600)
"""
    child = Child.started("polite", [sys.executable, "-c", program], tmp_path / "polite.log")
    until(lambda: "ready" in (tmp_path / "polite.log").read_text(), "its word")
    await child.stop(5.0)
    assert child.exit_code == 7
    assert child.last_words() == "bye"


async def test_a_node_is_killed_alone(tmp_path: Path) -> None:
    """Each child heads a process group of its own; a signal to it reaches nobody else."""
    program = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"]
    one = Child.started("one", program, tmp_path / "one.log")
    two = Child.started("two", program, tmp_path / "two.log")
    assert os.getpgid(one.pid) == one.pid != os.getpgid(two.pid)
    one.kill_group()
    assert await one.ended() == -signal.SIGKILL
    assert two.exit_code is None
    await two.stop(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="the tether is a request to the Linux kernel")
def test_a_tethered_program_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Even by SIGKILL, which leaves the parent no chance to do anything about it."""
    log_path = tmp_path / "inner.log"
    parent = f"""
import subprocess, sys, os, time
from controlplane.localfleet.children import tethered
inner = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
with open({str(log_path)!r}, "wb") as log:
    subprocess.Popen(tethered(os.getpid(), inner), stdout=log, start_new_session=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", parent]) as running:
        until(lambda: log_path.exists() and bool(log_path.read_text().strip()), "the inner's id")
        running.kill()
    until(lambda: gone(int(log_path.read_text())), "the end of the tethered program")


def test_a_program_whose_parent_is_gone_already_does_not_start() -> None:
    """The parent may die between starting it and the request to the kernel."""
    somebody_else = 1
    done = subprocess.run(
        tethered(somebody_else, [sys.executable, "-c", "print('started')"]),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_a_program_that_does_not_exist_is_said_so() -> None:
    """In one line, with the code that shells use."""
    done = subprocess.run(
        tethered(0, ["/nowhere/program"]), capture_output=True, text=True, check=False, timeout=10
    )
    assert done.returncode == 127
    assert done.stderr == "/nowhere/program: No such file or directory\n"
