"""Faults, injected for real: a process group killed or frozen, a node whose work takes longer.

What belongs here: what demos, tests and campaigns do to a node. What does not: noticing it. A slow
node never sleeps: it burns processor time in proportion to the work that it has just measured, so
its steps, its sweeps and its vitals are slow in the way a throttled machine's are.

A node is slowed through a control file, `{"slow_factor": 1.4}`, whose path its processes find in
the environment variable CHANGEOVER_FAULT_FILE. No file, or no such variable, means no fault.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import signal
import time
from pathlib import Path
from typing import Final, Self

log = logging.getLogger("worker.faults")

FAULT_FILE_VARIABLE: Final = "CHANGEOVER_FAULT_FILE"
SLOW_FACTOR_MAX: Final = 100.0

_POLL_S: Final = 0.05
_BLOCK: Final = bytes(64 << 10)


def kill(group: int) -> None:
    """SIGKILL every process of process group `group`. Raises ProcessLookupError if it is gone."""
    _signal(group, signal.SIGKILL)


def pause(group: int) -> None:
    """SIGSTOP every process of process group `group`: alive for the kernel, frozen for all else."""
    _signal(group, signal.SIGSTOP)


def resume(group: int) -> None:
    """SIGCONT every process of process group `group`."""
    _signal(group, signal.SIGCONT)


def set_fault(path: str | Path, slow_factor: float) -> None:
    """Make own work of the node that reads `path` take `slow_factor` times as long (1 to 100)."""
    path = Path(path)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(json.dumps({"slow_factor": _checked(slow_factor)}))
    fresh.replace(path)  # a reader sees the old text or the new one, never half


def clear_fault(path: str | Path) -> None:
    """Lift the fault; nothing happens if there is none."""
    Path(path).unlink(missing_ok=True)


class SlowCompute:
    """The slowed side: looks at the control file, cheaply, and burns time.

    Without a fault a call costs one reading of the clock; the file is looked at 20 times a second
    at most, and read only when it has changed.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = None if path is None else Path(path)
        self._looked_at_s = -math.inf
        self._seen: tuple[int, int] | None = None
        self._factor = 1.0

    @classmethod
    def from_environment(cls) -> Self:
        """The injector of this node, from CHANGEOVER_FAULT_FILE."""
        return cls(os.environ.get(FAULT_FILE_VARIABLE) or None)

    @property
    def factor(self) -> float:
        """How many times as long own work takes now; 1.0 without a fault."""
        now_s = time.monotonic()
        if self._path is not None and now_s - self._looked_at_s >= _POLL_S:
            self._looked_at_s = now_s
            self._look(self._path)
        return self._factor

    def burn(self, work_s: float) -> float:
        """After `work_s` seconds of own work, work on for the rest of what it should have taken.

        Returns the seconds burned. The interpreter lock is free meanwhile, as it is in a kernel
        that takes longer, so that the process's other threads are not slowed with it.
        """
        surplus_s = (self.factor - 1.0) * max(0.0, work_s)
        if surplus_s <= 0:
            return 0.0
        started_s = time.perf_counter()
        while (burned_s := time.perf_counter() - started_s) < surplus_s:
            hashlib.blake2b(_BLOCK).digest()
        return burned_s

    def _look(self, path: Path) -> None:
        try:
            found = path.stat()
        except OSError:
            self._seen, self._factor = None, 1.0
            return
        seen = (found.st_mtime_ns, found.st_ino)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._factor = _checked(json.loads(path.read_text())["slow_factor"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._factor = 1.0
            log.warning("fault file %s is ignored: %s", path, error)


def _checked(slow_factor: float) -> float:
    if not 1.0 <= slow_factor <= SLOW_FACTOR_MAX:
        raise ValueError(f"slow factor {slow_factor} is not between 1 and {SLOW_FACTOR_MAX:g}")
    return float(slow_factor)


def _signal(group: int, which: signal.Signals) -> None:
    if group <= 1 or group == os.getpgrp():
        raise ValueError(f"process group {group} is not a node's own: nothing was signalled")
    os.killpg(group, which)
