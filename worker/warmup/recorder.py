"""Records what a rank's cross-machine groups answer during one step.

Rules of this file: it copies outputs of completed collectives, in the order of the calls, and gets
out of the way; it decides nothing and writes nothing. A message that was posted is copied when it
has been waited for, and keeps the place of its call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from worker.warmup.recording import Recording
from worker.warmup.stamp import Stamp

SILENT: Final = frozenset({"send", "barrier"})
"""Operations without an answer: skipped on both sides."""


class Recorder:
    """What the groups of one rank answered since `begin`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # DDP's hooks may run on autograd's threads
        self._calls: list[tuple[str, str, list[Tensor] | None]] = []
        self.spent_s = 0.0
        """Time that copying took: what recording costs the step."""

    def begin(self) -> None:
        """A step begins: what an unfinished one answered is forgotten."""
        with self._lock:
            self._calls = []
            self.spent_s = 0.0

    def place(self, group: str, operation: str) -> int:
        """Keep a place for the answer of a call that is not complete yet."""
        with self._lock:
            self._calls.append((group, operation, None))
            return len(self._calls) - 1

    def fill(self, place: int, outputs: Sequence[Tensor]) -> None:
        """The call at `place` is complete."""
        began_s = time.perf_counter()
        copies = [output.detach().to("cpu", copy=True).contiguous() for output in outputs]
        with self._lock:
            if place < len(self._calls):
                group, operation, _ = self._calls[place]
                self._calls[place] = (group, operation, copies)
            self.spent_s += time.perf_counter() - began_s

    def took(self, group: str, operation: str, outputs: Sequence[Tensor]) -> None:
        """A collective is complete."""
        if operation not in SILENT:
            self.fill(self.place(group, operation), outputs)

    def finish(self, role: str, step: int, stamp: Stamp) -> Recording:
        """What was recorded since `begin`.

        Raises:
            ValueError: a message was posted and never waited for.
        """
        with self._lock:
            calls = self._calls
            self._calls = []
        told = []
        for group, operation, outputs in calls:
            if outputs is None:
                raise ValueError(f"{operation} of {group} was posted and never waited for")
            told.append((group, operation, outputs))
        with torch.no_grad():
            return Recording.of(role, step, stamp, told)
