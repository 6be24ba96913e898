"""`simctl` interrupted: what is done is printed and kept, and no process stays behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]
PATIENCE_S = 40.0
LONG = """
name = "long"
days = 2
[job]
axes = { pp = 2, dp = 4, tp = 8 }
[faults]
per_1000_node_days = 3000
[grid]
"fleet.standbys" = [1, 2]
"""


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something, within bounds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come true in {PATIENCE_S} s"
        time.sleep(0.02)


def lines(path: Path) -> int:
    """Whole lines of a file that may not be there yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def busy(pid: int) -> list[psutil.Process]:
    """Children of a process that have computed for longer than it takes to begin."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if sum(child.cpu_times()[:2]) > 1.0]


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A grid that nobody waits for."""
    path = tmp_path / "long.toml"
    path.write_text(LONG, "utf-8")
    return path


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start the command as a terminal would: in a process group of its own."""
    command = [sys.executable, "-c", "from simulator.cli import main; main()", *arguments]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def grid(scenario: Path, results: Path, relative: str, most: str) -> tuple[str, ...]:
    """Arguments of a grid on two processes."""
    return (
        *("grid", str(scenario), "--results", str(results), "--relative", relative),
        *("--most", most, "--workers", "2", "--json"),
    )


def test_ctrl_c_prints_what_is_done_and_the_grid_resumes(long: Path, tmp_path: Path) -> None:
    """A grid that gets Ctrl-C prints its cells so far, exits with 130, and goes on when asked."""
    results = tmp_path / "r.jsonl"
    running = started(*grid(long, results, "1e-9", "100000"))
    until(lambda: lines(results) > 3, "the third result")
    os.killpg(running.pid, signal.SIGINT)
    out, error = running.communicate(timeout=PATIENCE_S)
    told = json.loads(out)
    kept = lines(results)

    assert running.returncode == 130, error
    assert error.strip() == "simctl: interrupted"
    assert not told["finished"]
    assert sum(cell["ettr"]["count"] for cell in told["cells"]) == kept - 1
    resumed = started(*grid(long, results, "0.9", "100000"))
    out, error = resumed.communicate(timeout=PATIENCE_S)
    assert resumed.returncode == 0, error
    assert json.loads(out)["finished"]
    assert lines(results) >= kept


PLAN = ("--target-ettr", "1", "--replications", "100000", "--workers", "2", "--json")


@pytest.mark.parametrize("verb", ["grid", "plan"])
def test_workers_end_with_a_parent_that_is_killed(long: Path, tmp_path: Path, verb: str) -> None:
    """Processes of a grid or a plan whose parent gets SIGKILL end by themselves."""
    results = tmp_path / "r.jsonl"
    arguments = grid(long, results, "1e-9", "100000") if verb == "grid" else ("plan", str(long))
    running = started(*arguments, *(PLAN if verb == "plan" else ()))
    until(lambda: len(busy(running.pid)) >= 2, "two workers that compute")
    children = psutil.Process(running.pid).children(recursive=True)
    running.kill()
    running.communicate(timeout=PATIENCE_S)

    assert len(children) >= 2
    until(lambda: not any(child.is_running() for child in children), "the end of every worker")
