"""The sequencer: the only writer of the log, for as long as its term lasts.

What belongs here: when to take a turn, and making a planned turn true. What a turn does is `turn`;
which decisions follow is the state machine's; neither is known here.

Theory of operation. Level-triggered: a change of the inbox, an event stated by a part of the
controller, or a deadline of the state machine wakes the loop; what it then does depends on what
waits, not on what woke it. There is no pause and no debounce: while an append is under way more
facts arrive, and the next turn takes them all (group commit). The ledger advances only after the
store has answered the last append of a turn; until then the same append is repeated, since by its
guards it is applied at most once, and only this term can move the head. Losing the term ends
`run`.

The one exception: a turn that nobody waits for (`Turn.can_wait`) waits a moment for company. While
a loss is answered the members acknowledge one after the other, and an append for each of the first
would be in the way, of the last one's fact and of the commit, on the same processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NoReturn

import anyio

from controlplane.eventlog import (
    Batch,
    Delta,
    InboxItem,
    Leadership,
    OutcomeUnknown,
    Retry,
    View,
)
from controlplane.projection import Touched
from controlplane.turn import Ledger, Passed, Turn, plan_turn
from statemachine.decide import Rule, next_deadline
from statemachine.events import AnyEvent, Recorded
from statemachine.state import FleetState

PAUSE_S: Final = 0.05
"""Pause between tries of an append while the store is away."""

COMPANY_S: Final = 0.015
"""How long a turn that nobody waits for may wait for company, in seconds."""

Identity = tuple[str, int, int]

Listener = Callable[[Sequence[Recorded], FleetState], None]
"""Told after each turn: what was recorded, and the state after it. Must not block or raise."""

PassedListener = Callable[[str, Passed], None]
"""Told once of each fact that did not enter: ``set aside`` or ``held back``, and why."""


class Reconciler:
    """One term of sequencing. `clock_ms` is Unix time in ms."""

    def __init__(
        self,
        leadership: Leadership,
        ledger: Ledger,
        clock_ms: Callable[[], int],
        own_rule: Rule | None = None,
    ) -> None:
        self.ledger = ledger
        """What is in the log and in the projected keys, by every answered append."""
        self.turns = 0
        self.listeners: list[Listener] = []
        self.passed_listeners: list[PassedListener] = []
        self._leadership = leadership
        self._clock_ms = clock_ms
        self._own_rule = own_rule
        self._waiting: dict[Identity, InboxItem] = {}  # by arrival, if `_in_order`
        self._in_order = True
        self._latest: tuple[int, str, int, int] = (0, "", 0, 0)
        self._taken: set[Identity] = set()
        self._reported: set[Identity] = set()
        self._own: list[AnyEvent] = []
        self._also: Touched | None = None
        self._wake = anyio.Event()

    @property
    def state(self) -> FleetState:
        """The folded state of the fleet."""
        return self.ledger.state

    # --- what wakes it ------------------------------------------------------------------------

    def state_events(self, events: Iterable[AnyEvent]) -> None:
        """Have the controller state events of its own in the next turn."""
        self._own.extend(events)
        self._wake.set()

    def recheck(self, touched: Touched) -> None:
        """Have projected keys compared with the fold in the next turn."""
        self._also = touched if self._also is None else self._also.plus(touched)
        self._wake.set()

    def offer(self, delta: Delta[InboxItem]) -> None:
        """Take note of facts that arrived in the inbox, or left it."""
        for item in delta.removed:
            self._waiting.pop(_identity(item), None)
            self._taken.discard(_identity(item))
        for item in delta.updated:
            if _identity(item) not in self._taken:
                if _identity(item) not in self._waiting:
                    self._in_order = self._in_order and _arrival(item) >= self._latest
                    self._latest = max(self._latest, _arrival(item))
                self._waiting[_identity(item)] = item
        if delta.updated:
            self._wake.set()

    async def run_inbox(self, view: View[InboxItem]) -> None:
        """Feed the loop from the inbox, until cancelled."""
        async for delta in view:
            self.offer(delta)

    # --- the loop -----------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Take turns until the term ends.

        Raises:
            Deposed, HeadMoved: the term is over; what was planned last is not in the log.
            NoSpace, TooLarge, PermissionDenied: see the message.
            InvariantBroken: see `plan_turn`.
        """
        while True:
            self._wake = anyio.Event()
            left = await self.take_turn()
            if not left:
                await self._sleep_until_due()

    async def take_turn(self) -> bool:
        """Take one turn now; return whether facts are left for which there was no room."""
        turn = await self._next_turn()
        self._own, self._also = [], None
        for batch in turn.batches:
            self._take_out(batch.consumed)
            await self._append(batch)
        self._adopt(turn)
        return bool(turn.left)

    async def _next_turn(self) -> Turn:
        """Plan what is to be done now; one that nobody waits for grows for a moment first."""
        turn = self._plan()
        if not turn.can_wait:
            return turn
        with anyio.move_on_after(COMPANY_S) as moment:
            while turn.can_wait:
                self._wake = anyio.Event()
                await self._wake.wait()
                turn = self._plan()
        self._wake = anyio.Event()
        return self._plan() if moment.cancelled_caught else turn  # with what came as time ran out

    def _plan(self) -> Turn:
        """Plan a turn for all that waits; nothing is taken yet."""
        if not self._in_order:  # after a watch broke and all was read again
            ordered = sorted(self._waiting.values(), key=_arrival)
            self._waiting = {_identity(item): item for item in ordered}
            self._in_order = True
        return plan_turn(
            self.ledger,
            tuple(self._waiting.values()),
            self._own,
            now_ms=self._clock_ms(),
            writer=self._leadership.controller,
            also_project=self._also,
            own_rule=self._own_rule,
        )

    def _take_out(self, consumed: Iterable[InboxItem]) -> None:
        """Keep facts that are about to leave the inbox from being taken twice."""
        for item in consumed:
            self._waiting.pop(_identity(item), None)
            self._taken.add(_identity(item))

    async def _append(self, batch: Batch) -> None:
        """Append until it is answered; a term that ends meanwhile raises."""
        while True:
            try:
                await self._leadership.append(batch)
            except (Retry, OutcomeUnknown):
                await anyio.sleep(PAUSE_S)
            else:
                return

    def _adopt(self, turn: Turn) -> None:
        self.ledger = turn.ledger
        self.turns += 1
        for passed in turn.set_aside:
            self._waiting.pop(_identity(passed.item), None)
        self._report("set aside", turn.set_aside)
        self._report("held back", turn.held_back)
        if turn.recorded:
            for listener in self.listeners:
                listener(turn.recorded, self.state)

    def _report(self, outcome: str, passed: Sequence[Passed]) -> None:
        for each in passed:
            if _identity(each.item) not in self._reported:
                self._reported.add(_identity(each.item))
                for listener in self.passed_listeners:
                    listener(outcome, each)

    async def _sleep_until_due(self) -> None:
        """Sleep until woken, or until the state machine's next deadline."""
        now_ms = max(self._clock_ms(), self.state.at_ms)
        due_ms = next_deadline(self.state, now_ms, self.state.policy)
        if due_ms is None:
            await self._wake.wait()
            return
        with anyio.move_on_after((due_ms - now_ms) / 1000):
            await self._wake.wait()


def _identity(item: InboxItem) -> Identity:
    return item.writer, item.incarnation, item.counter


def _arrival(item: InboxItem) -> tuple[int, str, int, int]:
    return item.revision, *_identity(item)
