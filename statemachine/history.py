"""Time travel: the state of a fleet at any position, or at any time, of a whole log.

What belongs here: keeping states, and finding the one that is asked for. Theory of operation.
States share what they do not differ in, so that keeping one costs a few hundred bytes whatever the
size of the fleet; and folding an event costs microseconds. So a history keeps every
`keep_every`-th state with the entries between, and folds at most that many less one to answer.
What a log says at a time is what was in it by then, by the sequencer's clock: the state after the
last event that is not later.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from statemachine import events as e
from statemachine.errors import NotInHistory
from statemachine.evolve import evolve, fold
from statemachine.ids import Position
from statemachine.state import FleetState

KEEP_EVERY: Final = 8
"""Events per state that is kept: a sixth of the memory of all, and an answer in microseconds."""


class History:
    """Every state of a log, from `start` on; grows at its end, never changes.

    `start` is the state before the first entry: the empty fleet, or what a snapshot holds.
    """

    def __init__(
        self,
        entries: Iterable[e.Recorded] = (),
        *,
        start: FleetState | None = None,
        keep_every: int = KEEP_EVERY,
    ) -> None:
        self._keep_every = max(1, keep_every)
        self._kept = [start if start is not None else FleetState()]
        self._head = self._kept[0]
        self._entries: list[e.Recorded] = []
        self._positions = array("q", [self._head.position])
        self._at_ms = array("q", [self._head.at_ms])
        for entry in entries:
            self.append(entry)

    def append(self, entry: e.Recorded) -> FleetState:
        """Fold the next entry of the log; returns the state after it.

        Raises:
            NotInHistory: its position is not behind those of the history.
        """
        if entry.position <= self._head.position:
            where = f"position {entry.position} does not follow {self._head.position}"
            raise NotInHistory(f"history: {where}; each entry comes once, in order")
        self._head = evolve(self._head, entry)
        self._entries.append(entry)
        self._positions.append(self._head.position)
        self._at_ms.append(self._head.at_ms)
        if len(self._entries) % self._keep_every == 0:
            self._kept.append(self._head)
        return self._head

    def __len__(self) -> int:
        """How many entries it folded."""
        return len(self._entries)

    @property
    def start(self) -> FleetState:
        """The state before the first entry."""
        return self._kept[0]

    @property
    def head(self) -> FleetState:
        """The state after the last entry."""
        return self._head

    def state_at(self, position: int | None = None, *, at_ms: int | None = None) -> FleetState:
        """The state after the event at `position`, or at the time `at_ms` (Unix ms); the newest
        where neither is given.

        A position that the log does not hold gives the state of the last one before it.

        Raises:
            NotInHistory: before the history begins, behind its end, or both are given.
        """
        if position is not None and at_ms is not None:
            raise NotInHistory("history: ask by position or by time, not by both")
        if position is not None:
            return self._after(self._index_of_position(position))
        return self._head if at_ms is None else self._after(self._index_of_time(at_ms))

    def states(self) -> Iterator[FleetState]:
        """Every state in order, `start` first."""
        state = self.start
        yield state
        for entry in self._entries:
            state = evolve(state, entry)
            yield state

    def entries(self, after: int = 0, up_to: int | None = None) -> list[e.Recorded]:
        """The entries behind position `after`, up to and with position `up_to`."""
        first = bisect_right(self._positions, max(after, self.start.position)) - 1
        last = len(self) if up_to is None else bisect_right(self._positions, up_to) - 1
        return self._entries[first : max(first, last)]

    def position_at(self, at_ms: int) -> Position:
        """The position of the last event that is not later than `at_ms` (Unix ms).

        Raises:
            NotInHistory: earlier than the first event.
        """
        return Position(self._positions[self._index_of_time(at_ms)])

    def _index_of_position(self, position: int) -> int:
        first, last = self._positions[0], self._positions[-1]
        if not first <= position <= last:
            raise NotInHistory(f"position {position}: the log holds {first} to {last}")
        return bisect_right(self._positions, position) - 1

    def _index_of_time(self, at_ms: int) -> int:
        index = bisect_right(self._at_ms, at_ms) - 1
        if index < 0 or (index == 0 and not self.start.position):
            first = self._at_ms[1] if self._entries else 0
            raise NotInHistory(f"time {at_ms} ms: the log begins at {first} ms (Unix time)")
        return index

    def _after(self, index: int) -> FleetState:
        """The state after so many entries."""
        kept, rest = divmod(index, self._keep_every)
        if index == len(self._entries):
            return self._head
        return fold(self._kept[kept], self._entries[index - rest : index])


def state_at(
    log: Iterable[e.Recorded],
    position: int | None = None,
    *,
    at_ms: int | None = None,
    start: FleetState | None = None,
) -> FleetState:
    """The state that a log folds to at a position or a time (Unix ms), asked once: nothing is kept.

    Raises:
        NotInHistory: the log, behind `start`, does not reach there; or both are given.
    """
    if position is not None and at_ms is not None:
        raise NotInHistory("history: ask by position or by time, not by both")
    state = first = start if start is not None else FleetState()
    for entry in log:
        if at_ms is not None and max(entry.at_ms, state.at_ms) > at_ms:
            break
        if position is not None and entry.position > position:
            break
        state = evolve(state, entry)
    if position is not None and not first.position <= position <= state.position:
        raise NotInHistory(
            f"position {position}: the log holds {first.position} to {state.position}"
        )
    if at_ms is not None and (not state.position or at_ms < state.at_ms):
        raise NotInHistory(f"time {at_ms} ms: earlier than the first event of the log")
    return state
