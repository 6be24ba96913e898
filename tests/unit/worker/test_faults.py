"""The injector does what it says, to whom it says, and nothing when there is no fault."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from worker import faults
from worker.faults import SlowCompute, clear_fault, set_fault


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group of its own and has a child of its own in it."""
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    running = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 20
    while not psutil.Process(running.pid).children():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    yield running
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGKILL)
    running.communicate()


def reached(members: list[psutil.Process], *states: str) -> bool:
    """Whether all members get into one of the states within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        now = {each.status() if each.is_running() else "gone" for each in members}
        if now <= set(states):
            return True
        time.sleep(0.005)
    return False


def test_pause_resume_and_kill_reach_the_whole_group(child: subprocess.Popen[bytes]) -> None:
    """Freezing, thawing and killing a group reach its leader and its other processes alike."""
    leader = psutil.Process(child.pid)
    members = [leader, *leader.children()]

    faults.pause(child.pid)
    assert reached(members, psutil.STATUS_STOPPED)
    faults.resume(child.pid)
    assert reached(members, psutil.STATUS_SLEEPING, psutil.STATUS_RUNNING)
    faults.kill(child.pid)

    assert child.wait(10) == -signal.SIGKILL
    assert reached(members[1:], "gone", psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("group", [0, 1, -1, os.getpgrp()])
def test_our_own_group_is_never_signalled(group: int) -> None:
    """A group that is not a node's own is refused before any signal is sent."""
    with pytest.raises(ValueError, match="nothing was signalled"):
        faults.kill(group)


def test_without_a_fault_nothing_is_burned(tmp_path: Path) -> None:
    """No variable, no file, or a factor of one: no time is added."""
    assert SlowCompute(None).burn(10.0) == 0.0
    assert SlowCompute(tmp_path / "none").burn(10.0) == 0.0
    set_fault(tmp_path / "one", 1.0)
    assert SlowCompute(tmp_path / "one").burn(10.0) == 0.0


def test_a_slow_node_burns_processor_time_in_proportion(tmp_path: Path) -> None:
    """Factor 1.4 on 0.5 s of work takes 0.2 s more, spent computing and not asleep."""
    set_fault(tmp_path / "fault", 1.4)
    slow = SlowCompute(tmp_path / "fault")
    cpu_before_s, before_s = time.thread_time(), time.perf_counter()

    burned_s = slow.burn(0.5)

    cpu_s, taken_s = time.thread_time() - cpu_before_s, time.perf_counter() - before_s
    assert 0.2 <= burned_s <= taken_s
    assert burned_s < 0.25 or cpu_s < burned_s / 1.2  # more only if we were not scheduled
    assert cpu_s > 0.05, f"only {cpu_s * 1e3:.0f} ms of {taken_s * 1e3:.0f} ms were computing"


def test_a_fault_is_seen_changed_and_lifted_while_running(tmp_path: Path) -> None:
    """A running process notices a fault, a change of it and its end within a tenth of a second."""
    path = tmp_path / "fault"
    slow = SlowCompute(path)

    def sees(factor: float) -> bool:
        deadline = time.monotonic() + 5
        while slow.factor != factor and time.monotonic() < deadline:
            time.sleep(0.005)
        return slow.factor == factor

    assert slow.factor == 1.0
    set_fault(path, 1.4)
    assert sees(1.4)
    set_fault(path, 2.5)
    assert sees(2.5)
    clear_fault(path)
    assert sees(1.0)
    clear_fault(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"slow_factor": "x"}', '{"slow_factor": 0}']
)
def test_a_broken_control_file_means_no_fault(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be read is ignored and said, since a training process must not die of it."""
    path = tmp_path / "fault"
    path.write_text(text)

    assert SlowCompute(path).factor == 1.0
    assert "is ignored" in caplog.text


@pytest.mark.parametrize("factor", [0.5, 101.0, float("nan")])
def test_an_impossible_factor_is_refused(tmp_path: Path, factor: float) -> None:
    """A factor below 1 or beyond 100 is a usage error, and no file is written."""
    with pytest.raises(ValueError, match="is not between 1 and 100"):
        set_fault(tmp_path / "fault", factor)

    assert not (tmp_path / "fault").exists()


def test_the_environment_names_the_control_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CHANGEOVER_FAULT_FILE is where a node's processes look."""
    set_fault(tmp_path / "fault", 3.0)
    monkeypatch.setenv("CHANGEOVER_FAULT_FILE", str(tmp_path / "fault"))
    assert SlowCompute.from_environment().factor == 3.0

    monkeypatch.delenv("CHANGEOVER_FAULT_FILE")
    assert SlowCompute.from_environment().factor == 1.0


def test_importing_the_injector_does_not_import_torch() -> None:
    """Whoever only injects faults does not pay for torch."""
    program = "import sys, worker.faults; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
