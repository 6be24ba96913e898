"""Faults, injected for real: a process group killed or frozen, a node whose work takes longer.

What belongs here: what demos, tests and campaigns do to a node. What does not: noticing it. A slow
node never sleeps: it burns processor time in proportion to the work that it has just measured, so
its steps, its sweeps and its vitals are slow in the way a throttled machine's are. Only a node
whose data comes late waits, as it would.

A node is hurt through a control file, `{"slow_factor": 1.4, "kind": "memory"}`, whose path its
processes find in the environment variable CHANGEOVER_FAULT_FILE. No file, or no such variable,
means no fault. `kind` is what is slow of it (`SlowKind`; without it, everything). A training step
takes `slow_factor` times as long whatever the kind, but for ``link``; a sweep finds it where it is.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import signal
import time
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

log = logging.getLogger("worker.faults")

FAULT_FILE_VARIABLE: Final = "CHANGEOVER_FAULT_FILE"
SLOW_FACTOR_MAX: Final = 100.0


class SlowKind(StrEnum):
    """What of a node is slow."""

    COMPUTE = "compute"
    """All its work, since it computes slowly: the default."""
    MEMORY = "memory"
    """Moving memory: it computes as fast as ever while it stays in the caches."""
    LINK = "link"
    """What it sends and receives."""
    INPUT = "input"
    """Its data comes late, by as much as its steps then take longer; nothing of it is slow."""


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


def set_fault(path: str | Path, slow_factor: float, kind: SlowKind = SlowKind.COMPUTE) -> None:
    """Make what is of `kind` in the node that reads `path` take `slow_factor` times as long (1 to
    100).
    """
    path = Path(path)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(json.dumps({"slow_factor": _checked(slow_factor), "kind": kind}))
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
        self._kind = SlowKind.COMPUTE

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

    def slows(self, kind: SlowKind) -> float:
        """How many times as long work of a kind takes now: slow computing slows everything."""
        factor = self.factor
        return factor if self._kind in (kind, SlowKind.COMPUTE) else 1.0

    def only(self, kind: SlowKind) -> float:
        """How many times as long work of a kind takes now, if that kind and no other is slow."""
        factor = self.factor
        return factor if self._kind is kind else 1.0

    def burn(self, work_s: float, *kinds: SlowKind) -> float:
        """After `work_s` seconds of own work, work on for the rest of what it should have taken.

        `kinds` are what the work consists of; none: a training step, which has all but links.
        Returns the seconds burned. The interpreter lock is free meanwhile, as it is in a kernel
        that takes longer, so that the process's other threads are not slowed with it.
        """
        slowest = max(map(self.slows, kinds or _STEP))
        surplus_s = (slowest - 1.0) * max(0.0, work_s)
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
            self._seen, self._factor, self._kind = None, 1.0, SlowKind.COMPUTE
            return
        seen = (found.st_mtime_ns, found.st_ino)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            found = json.loads(path.read_text())
            self._factor = _checked(found["slow_factor"])
            self._kind = SlowKind(found.get("kind", SlowKind.COMPUTE))
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._factor = 1.0
            log.warning("fault file %s is ignored: %s", path, error)


_STEP: Final = (SlowKind.COMPUTE, SlowKind.MEMORY)


class LateInput(SlowCompute):
    """The late side of a data loader: each batch comes as much later as steps shall be longer."""

    def __init__(self, path: str | Path | None) -> None:
        super().__init__(path)
        self._last_s = 0.0

    def wait(self) -> None:
        """Wait after a batch was loaded, in proportion to the time since the last one."""
        now_s = time.perf_counter()
        apart_s, self._last_s = now_s - self._last_s, now_s
        if self.factor > 1 and self._kind is SlowKind.INPUT and apart_s < _STEP_S_MAX:
            time.sleep((self.factor - 1) * apart_s)
            self._last_s = time.perf_counter()


_STEP_S_MAX: Final = 60.0


def _checked(slow_factor: float) -> float:
    if not 1.0 <= slow_factor <= SLOW_FACTOR_MAX:
        raise ValueError(f"slow factor {slow_factor} is not between 1 and {SLOW_FACTOR_MAX:g}")
    return float(slow_factor)


def _signal(group: int, which: signal.Signals) -> None:
    if group <= 1 or group == os.getpgrp():
        raise ValueError(f"process group {group} is not a node's own: nothing was signalled")
    os.killpg(group, which)
