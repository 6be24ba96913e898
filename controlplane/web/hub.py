"""One follower of the fleet, many readers: each gets everything once, and then what changes.

What belongs here: fan-out. A reader that does not keep up is let go: it comes back by itself and
gets everything anew, so that nobody's slow browser costs anybody memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectSendStream

from controlplane import journal
from controlplane.eventlog import EventLog, EventLogError
from controlplane.lines import words_of
from controlplane.picture import Watcher, watching
from controlplane.web.board import Board
from statemachine.events import Recorded
from statemachine.ids import Position
from statemachine.notation import names_in
from statemachine.state import FleetState

PERIOD_S: Final = 0.2
"""Least time between two messages."""

BACKLOG: Final = 32
"""Messages that a reader may be behind."""

LINES_KEPT: Final = 300
"""Lines of history that a reader gets at once; the rest it asks for."""

RETRY_S: Final = 1.0

_encode = msgspec.json.Encoder().encode


def line_values(recorded: Recorded) -> dict[str, Any]:
    """One line of history."""
    return {
        "position": recorded.position,
        "at_ms": recorded.at_ms,
        "type": type(recorded.event).__name__,
        "words": words_of(recorded.event),
        "writer": recorded.writer,
        "nodes": sorted(names_in(recorded.event))[:8],
    }


class Hub:
    """Follows a fleet and tells its readers."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.board = Board()
        self.watcher: Watcher | None = None
        self.connected = anyio.Event()
        """Set once the fleet was read the first time."""
        self.listeners: list[Callable[[Recorded, FleetState], None]] = []
        """Told of each entry and the state after it."""
        self.beginnings: list[Callable[[FleetState], None]] = []
        """Told of the state from which the log is followed."""
        self._lines: deque[dict[str, Any]] = deque(maxlen=LINES_KEPT)
        self._new: list[dict[str, Any]] = []
        self._readers: set[MemoryObjectSendStream[bytes]] = set()

    async def run(self) -> NoReturn:
        """Follow until cancelled; a store that is away is waited for.

        Whatever else goes wrong here is told and begun anew: a page must not end a controller.
        """
        while True:
            try:
                async with watching(self.log) as watcher:
                    await self._follow(watcher)
            except* EventLogError as error:
                journal.warn("the page cannot follow the log", why=error.exceptions[0])
            except* Exception as error:  # noqa: BLE001 - see above
                fault = error.exceptions[0]
                journal.warn("a fault of the page", kind=type(fault).__name__, why=fault)
            self.watcher = None
            await anyio.sleep(RETRY_S)

    async def _follow(self, watcher: Watcher) -> NoReturn:
        self.watcher = watcher
        for begin in self.beginnings:
            begin(watcher.picture.state)
        self._new = []
        watcher.listeners += [self._heard, *self.listeners]
        await self._first_lines(watcher.picture.state.position)
        self._send()
        self.connected.set()
        while True:
            await watcher.wait()
            await anyio.sleep(PERIOD_S)
            self._send()

    async def _first_lines(self, head: Position) -> None:
        oldest = await self.log.oldest()
        first = Position(max(oldest, head - LINES_KEPT + 1))
        lines: list[dict[str, Any]] = []
        async for entries in self.log.read_entries(first, head):
            lines += [line_values(entry.recorded()) for entry in entries]
        self._lines.clear()
        self._lines.extend(lines + self._new)  # what came in the meantime is behind `head`

    def _heard(self, recorded: Recorded, state: FleetState) -> None:
        line = line_values(recorded)
        self._lines.append(line)
        self._new.append(line)

    def _send(self) -> None:
        """Tell every reader what changed since the last time."""
        assert self.watcher is not None
        changed, gone = self.board.update(self.watcher.picture)
        lines, self._new = self._new[-LINES_KEPT:], []
        points = self.board.new_points()
        if not changed and not gone and not lines and not points:
            return
        told = {"set": changed, "gone": gone, "lines": lines, "points": points}
        message = _message("change", told)
        for reader in list(self._readers):
            try:
                reader.send_nowait(message)
            except (anyio.WouldBlock, anyio.BrokenResourceError):
                self._readers.discard(reader)
                reader.close()

    def let_go(self) -> None:
        """End every reader's stream: nobody serves any more."""
        for reader in list(self._readers):
            reader.close()

    def everything(self) -> bytes:
        """The message that a new reader begins with."""
        return _message(
            "all",
            {
                "set": self.board.values,
                "lines": list(self._lines),
                "points": self.board.points(),
            },
        )

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncIterator[bytes]]:
        """Messages for one reader, the first with everything."""
        send, receive = anyio.create_memory_object_stream[bytes](BACKLOG)
        send.send_nowait(self.everything())
        self._readers.add(send)
        try:
            async with receive:
                yield receive
        finally:
            self._readers.discard(send)
            send.close()


def _message(kind: str, values: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _encode(values) + b"\n\n"
