"""Virtual time for tests: what waits for a timer waits no longer than the machine needs.

Twice the same way, too: besides the clock, three things would tell two runs apart. Cancellation
walks sets of tasks and of cancel scopes, which are ordered by where the objects lie in memory; here
both are ordered by when they were made. A call on a thread of its own is answered whenever the
machine gets to it; here it is made at once, in its caller's place.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec
from unittest.mock import patch

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio._backends import _asyncio as backend

P = ParamSpec("P")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing else can run.

    For what does no real I/O: a scenario of minutes takes milliseconds.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))
        numbers = itertools.count()
        self.set_task_factory(
            lambda loop, coro, **options: _NumberedTask(next(numbers), coro, loop=loop, **options)
        )

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


class _NumberedTask(asyncio.Task[Any]):
    """A task that stands in a set by when it was made."""

    def __init__(self, number: int, *arguments: Any, **options: Any) -> None:
        self._number = number
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


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


@contextmanager
def _reproducible() -> Iterator[None]:
    """Number cancel scopes, and make calls on threads in their callers' place."""
    numbers = itertools.count()
    made: dict[int, int] = {}
    begin = backend.CancelScope.__init__

    def numbered(scope: Any, *arguments: Any, **options: Any) -> None:
        made[id(scope)] = next(numbers)
        begin(scope, *arguments, **options)

    async def at_once(call: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return call(*arguments)

    with (
        patch.object(backend.CancelScope, "__init__", numbered),
        patch.object(backend.CancelScope, "__hash__", lambda scope: made.get(id(scope), id(scope))),
        patch.object(anyio.to_thread, "run_sync", at_once),
    ):
        yield


def run_virtually(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine function on a loop of its own, whose clock jumps; twice the same way."""
    with _reproducible(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def on_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on virtual time; for tests without real I/O."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        run_virtually(functools.partial(test, *arguments, **named))

    return run
