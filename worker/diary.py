"""A line per committed step, for whoever draws the run: nothing else ever reads it back.

What belongs here: appending JSON lines to the file that an environment variable names, if one does.
It costs about 10 us a step and is off otherwise. A diary is of a node, not of an incarnation: a
process that starts again goes on below.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

STEPS_VARIABLE: Final = "CHANGEOVER_STEPS_FILE"
"""Environment variable: file to append a line per committed step to."""


class Diary:
    """Notes committed steps; nothing, if nobody asked for a diary."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8") if path is not None else None

    @classmethod
    def from_environment(cls) -> Diary:
        """The diary that this process's agent asked for."""
        named = os.environ.get(STEPS_VARIABLE, "")
        return cls(Path(named) if named else None)

    def note(
        self,
        *,
        step: int,
        epoch: int,
        at_ms: float,
        step_ms: float,
        loss: float | None,
        waited_ms: float = 0.0,
    ) -> None:
        """Note a step committed at Unix time `at_ms` which took `step_ms` milliseconds, of them
        `waited_ms` blocked on peers.
        """
        if self._file is None:
            return
        line = {
            "step": step,
            "epoch": epoch,
            "at_ms": round(at_ms, 3),
            "step_ms": round(step_ms, 3),
            "waited_ms": round(waited_ms, 3),
            "loss": loss,
            "pid": os.getpid(),
        }
        self._file.write(json.dumps(line) + "\n")
