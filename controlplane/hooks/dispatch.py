"""Which events a hook is told of, how often, in which order; and that none of it hurts the term.

Theory of operation. Each hook has a queue of its own and one task that works it off in the order of
the log, so that a slow receiver holds up nobody else. A queue that is full drops its oldest entry
and says so: what pages people must not grow without end. A new leader tells again what was told in
the last `AGAIN_S` seconds of the log, because it cannot know how far the one before came; the key
tells receivers that it is the same.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

import anyio
import jinja2

from controlplane import journal
from controlplane.eventlog import EventLog
from controlplane.hooks.delivering import NotDelivered, Request_, call, execute
from controlplane.hooks.hook import Hook
from controlplane.hooks.rendering import render, values_of
from controlplane.metrics import Meters
from statemachine.events import Recorded
from statemachine.ids import Position
from statemachine.state import FleetState

QUEUE_MAX: Final = 1_000
AGAIN_S: Final = 60.0
AGAIN_ENTRIES_MAX: Final = 500
PAUSE_S_MAX: Final = 60.0


class Dispatcher:
    """Tells the hooks of one fleet. `clock_s` is monotonic."""

    def __init__(
        self,
        fleet: str,
        hooks: Sequence[Hook],
        meters: Meters,
        *,
        environment: Mapping[str, str] = os.environ,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lanes = [_Lane(fleet, hook, meters, environment, clock_s) for hook in hooks]

    def heard(self, recorded: Sequence[Recorded], _: FleetState) -> None:
        """Take note of what entered the log. Neither blocks nor raises."""
        for entry in recorded:
            for lane in self._lanes:
                lane.offer(entry)

    async def begin(self, log: EventLog, head: Position, now_ms: int) -> None:
        """Take up what the leader before may not have told any more."""
        first = Position(max(await log.oldest(), head - AGAIN_ENTRIES_MAX + 1))
        async for recorded in log.read(first):
            if recorded.at_ms >= now_ms - AGAIN_S * 1000 and recorded.position <= head:
                self.heard((recorded,), FleetState())

    async def run(self) -> NoReturn:
        """Deliver until cancelled."""
        async with anyio.create_task_group() as group:
            for lane in self._lanes:
                group.start_soon(lane.run)
            await anyio.sleep_forever()
        raise AssertionError


class _Lane:
    """One hook: its queue, and what it told lately."""

    def __init__(
        self,
        fleet: str,
        hook: Hook,
        meters: Meters,
        environment: Mapping[str, str],
        clock_s: Callable[[], float],
    ) -> None:
        self.hook = hook
        self._fleet = fleet
        self._meters = meters
        self._url = environment[hook.url_env] if hook.url_env else hook.url
        self._authorization = environment[hook.authorization_env] if hook.authorization_env else ""
        self._clock_s = clock_s
        self._queue: deque[Recorded] = deque()
        self._told: dict[str, float] = {}
        self._wake = anyio.Event()

    def offer(self, entry: Recorded) -> None:
        """Queue an entry if the hook wants it."""
        if type(entry.event).__name__ not in self.hook.on:
            return
        if len(self._queue) >= QUEUE_MAX:
            dropped = self._queue.popleft()
            self._count("dropped")
            journal.warn("a hook cannot keep up", hook=self.hook.name, position=dropped.position)
        self._queue.append(entry)
        self._wake.set()

    async def run(self) -> NoReturn:
        """Work the queue off in order."""
        while True:
            while not self._queue:
                self._wake = anyio.Event()
                await self._wake.wait()
            entry = self._queue.popleft()
            try:
                await self._tell(entry)
            except Exception as error:  # noqa: BLE001 - no hook may end a term
                self._count("failed")
                self._complain(entry, f"{type(error).__name__}")

    async def _tell(self, entry: Recorded) -> None:
        hook, values = self.hook, values_of(self._fleet, entry)
        try:
            key = render(hook.key, values)
            body = render(hook.body, values).encode()
            arguments = [render(each, values) for each in hook.exec]
        except jinja2.TemplateError as error:
            self._count("failed")
            self._complain(entry, f"template: {error}")
            return
        if self._was_told(key):
            self._count("repeated")
            return
        identity = f"{self._fleet}/{entry.position}/{hook.name}"
        if await self._tried(entry, identity, body, arguments):
            self._told[key] = self._clock_s()

    def _was_told(self, key: str) -> bool:
        """Whether an event of this key was told so lately that this one is a repetition."""
        now_s, window_s = self._clock_s(), self.hook.once_per_s
        self._told = {k: at_s for k, at_s in self._told.items() if now_s - at_s < window_s}
        return key in self._told

    async def _tried(
        self, entry: Recorded, identity: str, body: bytes, arguments: Sequence[str]
    ) -> bool:
        """Try until it is delivered or given up; returns which."""
        pause_s = self.hook.first_pause_s
        for left in range(self.hook.tries - 1, -1, -1):
            try:
                await self._try_once(entry, identity, body, arguments)
            except NotDelivered as error:
                if error.final or not left:
                    self._count("failed")
                    self._complain(entry, str(error))
                    return False
                self._count("retried")
                await anyio.sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, pause_s * 2)
            else:
                self._count("delivered")
                journal.note("hook delivered", hook=self.hook.name, position=entry.position)
                return True
        raise AssertionError

    async def _try_once(
        self, entry: Recorded, identity: str, body: bytes, arguments: Sequence[str]
    ) -> None:
        hook = self.hook
        if not hook.exec:
            request = Request_(
                url=self._url,
                body=body,
                content_type=hook.content_type,
                key=identity,
                authorization=self._authorization,
            )
            await call(request, hook.timeout_s)
            return
        more = {
            "CHANGEOVER_FLEET": self._fleet,
            "CHANGEOVER_KEY": identity,
            "CHANGEOVER_POSITION": str(entry.position),
            "CHANGEOVER_EVENT": type(entry.event).__name__,
        }
        if self._authorization:
            more[hook.authorization_env] = self._authorization
        await execute(arguments, body, more, hook.timeout_s)

    def _count(self, outcome: str) -> None:
        self._meters.deliveries.labels(self.hook.name, outcome).inc()

    def _complain(self, entry: Recorded, why: str) -> None:
        journal.warn("a hook failed", hook=self.hook.name, position=entry.position, why=why)
