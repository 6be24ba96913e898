"""What a node states, in order and without being waited for; and its vitals, newest only.

What belongs here: the way from the agent's loops to its session while the store may be away. What
is stated, and when, does not.

Rules. A fact keeps the time at which it was observed, is made durable before the next one, and is
never dropped: facts are few (a handful per transition), so an outage cannot pile up more than
memory holds. One that is too large for an event is stated with its long texts cut short: that a
process ended must not get lost because it said so much. Vitals are many, so only the newest window
waits. Being fenced ends both; a lease that merely ended pauses them until the session is
established again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Final, NoReturn

import anyio
from msgspec.structs import replace

from controlplane.eventlog import (
    EventLogError,
    LeaseLost,
    NodeSession,
    NoSpace,
    Reread,
    Retry,
)
from statemachine.codec import encode_event
from statemachine.errors import EventTooLarge
from statemachine.events import AnyEvent, TransitionApplied

log = logging.getLogger("worker.agent")

PAUSES_S: Final = (0.02, 0.1, 0.5, 1.0)
"""Pauses between tries while the store is away; the last one repeats."""

TEXT_CHARS_MAX: Final = 2_000
"""Characters that are kept of a text in a fact that would be too large for an event."""

UNHURRIED: Final = (TransitionApplied,)
"""Facts that come when a loss is answered and every rank is busy with its first step: whatever is
done about them would be done on the same processors, and only the record waits for it."""

UNHURRIED_S: Final = 0.05
"""How long such a fact lets others go first, in seconds."""

VITALS_BUDGET_S: Final = 2.0
"""Seconds after which a window of vitals that could not be put is given up."""


def now_ms() -> int:
    """Unix time of this machine, in ms."""
    return time.time_ns() // 1_000_000


def fit(event: AnyEvent) -> AnyEvent:
    """The same fact, if it is too large with no text over `TEXT_CHARS_MAX`, and how much that cost.

    Raises:
        EventTooLarge: it is not its texts that make it large.
    """
    try:
        encode_event(event)
    except EventTooLarge as error:
        log.error("cut short: %s", error)
    else:
        return event
    kept: dict[str, str] = {}
    for name in event.__struct_fields__:
        text = getattr(event, name)
        if isinstance(text, str) and len(text) > TEXT_CHARS_MAX:
            left_out = len(text) - TEXT_CHARS_MAX
            kept[name] = f"{text[:TEXT_CHARS_MAX]} (and {left_out} characters more)"
    shortened = replace(event, **kept)
    encode_event(shortened)
    return shortened


class FactQueue:
    """Facts of one incarnation that wait to be stated."""

    def __init__(self, session: NodeSession) -> None:
        self._session = session
        self._waiting: deque[tuple[AnyEvent, int]] = deque()
        self._wake = anyio.Event()
        self._empty = anyio.Event()
        self._empty.set()

    def __len__(self) -> int:
        """Facts that are not known to be durable."""
        return len(self._waiting)

    def put(self, event: AnyEvent) -> None:
        """Let a fact be stated, observed now."""
        try:
            fitting = fit(event)
        except EventTooLarge as error:
            log.error("not stated: %s", error)
            return
        self._waiting.append((fitting, now_ms()))
        if self._empty.is_set():
            self._empty = anyio.Event()
        self._wake.set()

    async def drained(self) -> None:
        """Wait until every fact is durable."""
        await self._empty.wait()

    async def run(self) -> NoReturn:
        """State facts until cancelled.

        Raises:
            Fenced: this incarnation was declared lost.
            EventLogError: the store refuses for good.
        """
        tries = 0
        while True:
            if not self._waiting:
                self._empty.set()
                self._wake = anyio.Event()
                await self._wake.wait()
            await self._let_others_go_first()
            event, at_ms = self._waiting[0]
            try:
                await self._session.submit(event, at_ms)
            except (LeaseLost, Retry, Reread, NoSpace) as error:
                self._report(tries, error)
                await anyio.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
                tries += 1
                continue
            log.info("stated %s (%d)", type(event).__name__, self._session.counter)
            tries = 0
            self._waiting.popleft()

    async def _let_others_go_first(self) -> None:
        """Give way, for a moment, if all that waits is something that nobody waits for."""
        if len(self._waiting) > 1 or not isinstance(self._waiting[0][0], UNHURRIED):
            return
        self._wake = anyio.Event()
        with anyio.move_on_after(UNHURRIED_S):
            await self._wake.wait()

    def _report(self, tries: int, error: EventLogError) -> None:
        if tries == len(PAUSES_S) - 1:  # an outage, not a hiccup; said once
            log.warning("%d facts wait: %s", len(self._waiting), error)


class VitalsOutlet:
    """The newest window of vitals, on its way to the store."""

    def __init__(self, session: NodeSession) -> None:
        self._session = session
        self._newest: bytes | None = None
        self._wake = anyio.Event()
        self.dropped = 0
        """Windows that never reached the store."""

    def put(self, value: bytes) -> None:
        """Replace what waits."""
        self.dropped += self._newest is not None
        self._newest = value
        self._wake.set()

    async def run(self) -> NoReturn:
        """Put windows until cancelled; raises as `FactQueue.run` does."""
        while True:
            if self._newest is None:
                self._wake = anyio.Event()
                await self._wake.wait()
            value, self._newest = self._newest, None
            assert value is not None
            put = False
            try:
                with anyio.move_on_after(VITALS_BUDGET_S):
                    await self._session.put_vitals(value)
                    put = True
            except (LeaseLost, Retry, Reread, NoSpace):
                await anyio.sleep(PAUSES_S[-1])
            self.dropped += not put
