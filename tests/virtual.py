"""Virtual time for tests: what waits for a timer waits no longer than the machine needs."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing else can run.

    For what does no real I/O: a scenario of minutes takes milliseconds, and twice the same way.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


class _Jumping(selectors.SelectSelector):
    """Never waits: it moves the clock by as much as it was asked to wait."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits for ever: a deadlock"
            self._loop.jump(timeout)
        return ready


def on_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on a loop of its own, whose clock jumps; for tests without real I/O."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*arguments, **named))

    return run
