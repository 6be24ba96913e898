"""Why a loop was abandoned: the exception that the user's step raised, told after the fact.

Theory of operation. An exception in the body of the user's ``for`` loop closes the step iterator
while it passes; the iterator cannot see it. The interpreter shows it to `sys.excepthook` a moment
later, if nobody caught it, and that is where the reason is read. Whoever leaves the loop without an
exception is found out when the process ends.
"""

from __future__ import annotations

import atexit
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType


class LastWords:
    """Says once, with a reason, what was left unsaid when a loop was abandoned."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say: Callable[[str], None] | None = say
        self._before = sys.excepthook
        sys.excepthook = self._on_exception
        atexit.register(self._once, "the script left its step loop in the middle of a rehearsal")

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._once(f"the training step raised {described(kind, error, trace)}")
        self._before(kind, error, trace)

    def _once(self, reason: str) -> None:
        say, self._say = self._say, None
        if say is not None:
            say(reason)


def described(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> str:
    """An exception in one line: what, and where in the script."""
    said = " ".join(str(error).split())[:300]
    frames = traceback.extract_tb(trace)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{kind.__name__}: {said}{where}" if said else f"{kind.__name__}{where}"
