"""Named points at which a training process can be made to die, freeze, fail or wait, for tests.

What belongs here: arming, counting, acting. The names are given where they are reached. Off unless
the environment names a file; then a point costs one look at whether that file is there.

Theory of operation. The file holds a path of points and an act. Points are reached in order, with
any others between; the last one performs the act, once, after the file was renamed to
``*.reached``, so that whoever armed it can tell that the point was there at all. A new step starts
the path anew: ``["vote.before", "exchange.waiting"]`` is the first wait of a vote, and naming a
point n times means its n-th time within one step.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

FAULTPOINTS_VARIABLE: Final = "CHANGEOVER_FAULTPOINTS"
"""Environment variable: the file in which a fault is armed for this process."""

STEP_BEGIN: Final = "step.begin"

_POLL_S: Final = 0.002
_GRAB_BYTES: Final = 16 << 20
_TAKEN_BYTES_MAX: Final = 2 << 30


class Act(StrEnum):
    """What happens at the end of the path."""

    KILL = "kill"
    """SIGKILL: gone, and nothing said."""
    STOP = "stop"
    """SIGSTOP: frozen, and every socket open."""
    RAISE = "raise"
    """An exception, on the thread that reached the point."""
    EXHAUST = "exhaust"
    """That thread takes memory until there is none: up to the process's own limit, or 2 GiB."""
    HOLD = "hold"
    """That thread waits until the ``*.reached`` file is removed; the process lives on."""


class FaultHere(Exception):
    """The armed exception."""


def arm(path: Path, points: Sequence[str], act: Act) -> None:
    """Let the process that listens to `path` meet `act` at the end of `points`."""
    reached(path).unlink(missing_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"points": list(points), "act": act}))
    fresh.replace(path)


def reached(path: Path) -> Path:
    """The file that says that the armed act was performed; removing it ends a HOLD."""
    return path.with_suffix(".reached")


class _Listener:
    """What this process was told to meet, and how far along the path it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._points: list[str] = []
        self._act = Act.KILL
        self._progress = 0

    def reach(self, point: str) -> None:
        with self._lock:
            if not self._ends_at(point):
                return
            self._path.rename(reached(self._path))
            self._seen = None
        self._perform(point)

    def _ends_at(self, point: str) -> bool:
        try:
            found = self._path.stat()
        except OSError:
            return False
        if (found.st_mtime_ns, found.st_ino) != self._seen:
            self._seen = (found.st_mtime_ns, found.st_ino)
            spec = json.loads(self._path.read_text())
            self._points, self._act, self._progress = spec["points"], Act(spec["act"]), 0
        if point == STEP_BEGIN:
            self._progress = 0
        if self._points[self._progress] != point:
            return False
        self._progress += 1
        return self._progress == len(self._points)

    def _perform(self, point: str) -> None:
        match self._act:
            case Act.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Act.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Act.RAISE:
                raise FaultHere(point)
            case Act.EXHAUST:
                _take_memory()
            case Act.HOLD:
                while reached(self._path).exists():
                    time.sleep(_POLL_S)


def _take_memory() -> None:
    taken: list[bytearray] = []
    while len(taken) * _GRAB_BYTES < _TAKEN_BYTES_MAX:
        taken.append(bytearray(os.urandom(4096) * (_GRAB_BYTES // 4096)))  # written: resident
    raise MemoryError


_listener: _Listener | None = None


def listen() -> None:
    """Heed the environment from now on."""
    global _listener  # noqa: PLW0603 - one per process, as a signal's disposition is
    named = os.environ.get(FAULTPOINTS_VARIABLE, "")
    _listener = _Listener(Path(named)) if named else None


def reach(point: str) -> None:
    """Say that this thread is at `point`; a test may have armed something for it."""
    if _listener is not None:
        _listener.reach(point)
