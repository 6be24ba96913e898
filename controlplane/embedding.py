"""The control plane as a library: started and stopped inside somebody's own program.

What belongs here: the few names that an embedder needs. Everything behind them is what
`changeover controller` runs, so that what is embedded behaves as what is operated.

    async with control_plane(settings) as plane:          # or log=memory_log("lab")
        await plane.act("ada", JobDeclared(...))
        async for recorded in plane.events():
            ...

`control_plane` campaigns, leads, stands by and takes over in tasks of its own, under anyio or
asyncio; leaving the block ends them and gives the leadership back. What others may put in is
`controlplane.plugins`, how an own rule is tested `controlplane.testkit`.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from controlplane.acting import Acted, act
from controlplane.config import Settings
from controlplane.eventlog import EventLog, EventLogError
from controlplane.eventlog.memory import MemoryStore
from controlplane.plugins import Detector, Listener, Plugins, Source
from controlplane.server import lead_again_and_again, opened
from controlplane.term import Term, unix_ms
from statemachine.decide import Decision, Rule
from statemachine.events import AnyEvent, Recorded
from statemachine.ids import Position
from statemachine.state import FleetState

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from controlplane.web.serving import Address

__all__ = [
    "ControlPlane",
    "Decided",
    "Decision",
    "Detector",
    "Listener",
    "Plugins",
    "Rule",
    "Settings",
    "Source",
    "Subscription",
    "control_plane",
    "memory_log",
]


T = TypeVar("T")

BEHIND_MAX: Final = 1_000
"""Entries that a reader may be behind before following waits for it."""


class Decided(Struct, frozen=True, kw_only=True):
    """One decision of the log: what it stated, why, and from what it was taken."""

    reason: str
    events: tuple[AnyEvent, ...]
    first: Position
    at_ms: int
    decided_from: Position
    policy_version: int
    controller: str


class Subscription(Generic[T]):
    """What the log says, one by one, as an async iterator.

    It may be left at any point (`break`), kept, or read by another task: following goes on in the
    control plane's own tasks and ends with it, or once nobody holds the iterator any more. A reader
    that is slow holds up nobody else.

    Raises, when asked for the next:
        Archived: what it should begin with has left the store; begin at ``log.oldest()``.
        LogCorrupt.
    """

    def __init__(self) -> None:
        streams = anyio.create_memory_object_stream[T](BEHIND_MAX)
        self._send, self._receive = streams
        self._error: EventLogError | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        """Wait for the next."""
        try:
            return await self._receive.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            if self._error is not None:
                raise self._error from None
            raise StopAsyncIteration from None

    def fail(self, error: EventLogError) -> None:
        """Let the next one who asks hear of an error."""
        self._error = error

    def close(self) -> None:
        """Stop following."""
        self._receive.close()

    def __del__(self) -> None:
        self._receive.close()
        self._send.close()

    async def pump(
        self,
        log: EventLog,
        first: Position,
        parts: Callable[[Sequence[Recorded]], Iterable[T]],
    ) -> None:
        """Follow the log until nobody listens."""
        send = self._send
        listening = weakref.ref(self)
        del self  # or it would never be let go
        try:
            async with send, log.follow(first) as follower:
                while True:
                    batch = [entry.recorded() for entry in await follower.next_batch()]
                    for part in parts(batch):
                        await send.send(part)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # nobody listens
            return
        except EventLogError as error:
            held = listening()
            if held is not None:
                held.fail(error)


class ControlPlane:
    """A control plane at work."""

    def __init__(self, log: EventLog, group: TaskGroup) -> None:
        self.log = log
        self._group = group
        self.page: Address | None = None
        """Where the live page is served, if it is."""
        self._term: Term | None = None
        self._led = anyio.Event()

    @property
    def is_leading(self) -> bool:
        """Whether this control plane leads the fleet now."""
        return self._term is not None and self._term.leading.is_set()

    @property
    def state(self) -> FleetState:
        """The folded state, as this control plane knows it; empty before it led the first time."""
        return self._term.reconciler.state if self._term and self.is_leading else FleetState()

    async def until_leading(self) -> None:
        """Wait until this control plane leads."""
        while not self.is_leading:
            await self._led.wait()
            assert self._term is not None
            await self._term.leading.wait()

    async def act(self, by: str, event: AnyEvent) -> Acted:
        """State an operator's act, and wait until it is in the log with what followed at once.

        Raises:
            NoSuchNode: it is about a node that never joined.
            ActRefusedError: the state machine refused it; the message has the reason.
            StoreUnavailable.
        """
        return await act(self.log, by, event, unix_ms())

    def events(self, after: int = 0) -> Subscription[Recorded]:
        """Every entry of the log behind a position, and those to come, in order, none twice."""
        return self._subscribed(after, _singly)

    def decisions(self, after: int = 0) -> Subscription[Decided]:
        """Every decision in the log behind a position, and those to come.

        Entries of one decision were appended together, and are given together.
        """
        return self._subscribed(after, _by_decision)

    def _subscribed(
        self, after: int, parts: Callable[[Sequence[Recorded]], Iterable[T]]
    ) -> Subscription[T]:
        subscription = Subscription[T]()
        self._group.start_soon(subscription.pump, self.log, Position(after + 1), parts)
        return subscription

    def began(self, term: Term) -> None:
        """Take note of a term of our own."""
        self._term = term
        self._led.set()
        self._led = anyio.Event()


def _singly(batch: Sequence[Recorded]) -> Iterable[Recorded]:
    return batch


def _by_decision(batch: Sequence[Recorded]) -> Iterable[Decided]:
    """Neighbours that were decided from one position by one controller, as one."""
    decided = (recorded for recorded in batch if recorded.decided_from)
    for _, entries in groupby(decided, key=lambda entry: (entry.decided_from, entry.writer)):
        yield _decided(list(entries))


def _decided(entries: list[Recorded]) -> Decided:
    first = entries[0]
    reasons = (getattr(entry.event, "reason", "") for entry in entries)
    return Decided(
        reason=next((reason for reason in reasons if reason), ""),
        events=tuple(entry.event for entry in entries),
        first=first.position,
        at_ms=first.at_ms,
        decided_from=first.decided_from,
        policy_version=first.policy_version,
        controller=first.writer,
    )


def memory_log(fleet: str = "embedded") -> EventLog:
    """A log in this process's memory, with the semantics of etcd: for tests, and for one process.

    Raises:
        BadName: the fleet's name cannot be one.
    """
    return EventLog(MemoryStore(), fleet)


@asynccontextmanager
async def control_plane(
    settings: Settings | None = None,
    *,
    log: EventLog | None = None,
    plugins: Plugins | None = None,
    listen: str = "",
    token: str = "",
) -> AsyncIterator[ControlPlane]:
    """Run a control plane for as long as the body runs.

    `settings` say where etcd is, unless a `log` is given; `plugins` replace those that the settings
    name; `listen` (``HOST:PORT``) serves the live page, on which `token` allows acting.

    Raises:
        StoreAbsent: no etcd answers.
        BadConfig: a setting is wrong.
        LogCorrupt, InvariantBroken, and what a plug-in raises: from the body, in a group.
    """
    settings = settings if settings is not None else Settings()
    if not settings.controller:
        settings = replace(settings, controller="embedded")
    async with AsyncExitStack() as stack:
        if log is None:
            log = await stack.enter_async_context(opened(settings))
        page = None
        if listen:
            from controlplane.web.serving import address_of, serving

            served = serving(log, address_of(listen, "listen"), token=token)
            page = await stack.enter_async_context(served)
        async with anyio.create_task_group() as group:
            plane = ControlPlane(log, group)
            plane.page = page

            async def lead() -> None:
                await lead_again_and_again(
                    log, settings, wait=True, plugins=plugins, on_term=plane.began
                )

            group.start_soon(lead)
            yield plane
            group.cancel_scope.cancel()
