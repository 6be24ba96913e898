"""Where a contender runs: a folder, its processes, and what they noted.

What belongs here: starting, reading notes, killing, and ending everything. What a contender is made
of is said by who uses it.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from controlplane.localfleet.children import tethered

BENCHMARKS = Path(__file__).parents[1]
LOOK_S = 0.05
"""Pause between two looks: what is timed is in the notes, and looking costs of the same cores."""

Note = dict[str, Any]


class Course:
    """The processes of one contender; a context that leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes_folder = folder / "notes"
        self.notes_folder.mkdir(parents=True)
        self.environment = {
            "RIVALS_NOTES": str(self.notes_folder),
            "RIVALS_CHECKPOINT": str(folder / "checkpoint.pt"),
            "PYTHONPATH": os.pathsep.join((str(BENCHMARKS), str(BENCHMARKS.parent))),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self._read: dict[Path, tuple[int, list[Note]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        family: set[psutil.Process] = set()
        for one in self._started:
            with contextlib.suppress(psutil.NoSuchProcess):
                family |= {psutil.Process(one.pid), *psutil.Process(one.pid).children(True)}
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for one in self._started:
            one.wait()

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a program that dies with this one; its output goes to a file of its name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                tethered(os.getpid(), command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment, **(environment or {})},
                cwd=self.folder,
            )
        self._started.append(started)
        return started

    def notes(self, what: str = "step", since_s: float = 0.0) -> list[Note]:
        """Everything noted since a time, in the order of time."""
        found = []
        for lines in self._lines():
            for one in reversed(lines):  # each file is in the order of time
                if one["at_s"] < since_s:
                    break
                if one["what"] == what:
                    found.append(one)
        return sorted(found, key=lambda one: one["at_s"])

    def _lines(self) -> list[list[Note]]:
        """What each process noted so far; reads what is new."""
        for path in self.notes_folder.glob("*.jsonl"):
            at, lines = self._read.get(path, (0, []))
            with path.open("rb") as file:
                file.seek(at)
                for raw in file.read().splitlines(keepends=True):
                    if raw.endswith(b"\n"):
                        lines.append(json.loads(raw))
                        at += len(raw)
            self._read[path] = at, lines
        return [lines for _, lines in self._read.values()]

    def pids_before(self, at_s: float) -> set[int]:
        """Processes that had noted a step by then."""
        firsts = (next((o for o in lines if o["what"] == "step"), None) for lines in self._lines())
        return {one["pid"] for one in firsts if one is not None and one["at_s"] <= at_s}

    def until(self, what: str, holds: Callable[[], Any], within_s: float) -> Any:
        """Look until something holds, and return it.

        Raises:
            TimeoutError: it did not, in time; says what the programs wrote last.
        """
        ends_at = time.monotonic() + within_s
        while time.monotonic() < ends_at:
            if found := holds():
                return found
            time.sleep(LOOK_S)
        said = "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-800:]}"
            for path in sorted(self.folder.glob("*.log"))
        )
        raise TimeoutError(f"not within {within_s:g} s: {what}\n{said}")

    def until_stride(self, pids: Callable[[], Iterable[int]], steps: int = 30) -> None:
        """Wait until each of these processes has noted so many more steps."""
        before = self._counted()

        def strides() -> bool:
            now = self._counted()
            return all(now.get(pid, 0) >= before.get(pid, 0) + steps for pid in pids())

        self.until("every member is in its stride", strides, 120.0)

    def _counted(self) -> dict[int, int]:
        return {
            lines[0]["pid"]: sum(one["what"] == "step" for one in lines)
            for lines in self._lines()
            if lines
        }

    def latest(self, place: int) -> int:
        """The process that noted a step at a place last."""
        held = [one for one in self.notes(since_s=time.time() - 60.0) if one["place"] == place]
        return int(max(held, key=lambda one: one["at_s"])["pid"])


def kill(pid: int, chance: random.Random) -> float:
    """SIGKILL at any instant of a step; Unix time of it."""
    time.sleep(chance.uniform(0.0, 0.1))
    killed_at_s = time.time()
    os.kill(pid, signal.SIGKILL)
    return killed_at_s


def full_world_at_s(course: Course, killed_at_s: float, victim: int, ranks: int) -> float | None:
    """When the first step was committed by a full world again, with a newcomer in it."""
    known = course.pids_before(killed_at_s)
    steps: dict[int, dict[int, float]] = {}
    for one in course.notes(since_s=killed_at_s):
        if one["at_s"] > killed_at_s and one["pid"] != victim:
            steps.setdefault(one["step"], {}).setdefault(one["pid"], one["at_s"])
    full = [by for by in steps.values() if len(by) >= ranks and set(by) - known]
    return min((float(max(by.values())) for by in full), default=None)


def ordinary_step_s(notes: Sequence[Note], killed_at_s: float) -> float:
    """Median distance of a process's steps before the kill."""
    gaps = []
    for pid in {one["pid"] for one in notes}:
        at = [one["at_s"] for one in notes if one["pid"] == pid and one["at_s"] < killed_at_s][-40:]
        gaps += [b - a for a, b in itertools.pairwise(at)]
    return float(statistics.median(gaps))


def redone(notes: Sequence[Note], killed_at_s: float) -> int:
    """How many steps that everybody had committed were taken again."""
    before = max(int(one["step"]) for one in notes if one["at_s"] <= killed_at_s)
    after = [int(one["step"]) for one in notes if one["at_s"] > killed_at_s + 0.02]
    return max(0, before + 1 - min(after, default=before + 1))
