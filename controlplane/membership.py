"""Node keys in, `LeaseExpired` out: a key that vanished and does not come back in time is evidence.

What belongs here: which incarnations of the fold have no key, and since when. That such an
incarnation is lost, and what follows, is decided by the state machine.

Theory of operation. The store deletes a node's key when its lease ends. An agent that lives finds
that out and takes the key again under the same incarnation; it is given `loss_grace_s` to do so,
and `takeover_grace_s` where the absence was only found by a controller that takes over: the store
may have been away from everybody, and a fleet must not be declared lost for that. An agent that
leaves in good order states `NodeLeft` before its key goes, so its incarnation is no longer in the
fold when the grace is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import anyio

from controlplane.eventlog import NodeItem, View
from statemachine.events import LeaseExpired, NodeJoined, Recorded
from statemachine.ids import Incarnation, NodeId
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState

Life = tuple[NodeId, Incarnation]

AWAY = (NodeState.LOST, NodeState.GONE)


class Absentees:
    """Incarnations that the fold believes alive but that have no key, each with its patience.

    Pure but for its own memory; times are seconds of any clock that does not jump.
    """

    def __init__(self) -> None:
        self._due_at: dict[Life, float] = {}

    def missed(self, life: Life, due_at: float) -> None:
        """Note that a key is absent; the first patience given counts."""
        self._due_at.setdefault(life, due_at)

    def found(self, life: Life) -> None:
        """Note that a key is there (again)."""
        self._due_at.pop(life, None)

    def next_due(self) -> float | None:
        """When the next patience ends."""
        return min(self._due_at.values(), default=None)

    def overdue(self, now: float) -> tuple[Life, ...]:
        """Take out those whose patience is over, in order of name."""
        over = sorted(life for life, due_at in self._due_at.items() if due_at <= now)
        for life in over:
            del self._due_at[life]
        return tuple(over)


class Membership:
    """Watches node keys against the fold. `states` gives the folded state as of now."""

    def __init__(
        self,
        states: Callable[[], FleetState],
        state_events: Callable[[Iterable[LeaseExpired]], None],
    ) -> None:
        self._states = states
        self._state_events = state_events
        self._absentees = Absentees()
        self._alive: set[Life] = set()
        self._complete = False
        self._wake = anyio.Event()

    def heard(self, recorded: Sequence[Recorded], state: FleetState) -> None:
        """Listen to the log: who joins by the fold may have lost its key already."""
        if not self._complete:
            return
        for entry in recorded:
            if isinstance(entry.event, NodeJoined):
                life = entry.event.node, entry.event.incarnation
                if life not in self._alive:
                    self._miss(life, state.policy.loss_grace_s)

    async def run(self, view: View[NodeItem]) -> None:
        """Watch until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._run_patience)
            async for delta in view:
                for item in delta.removed:
                    self._alive.discard((item.node, item.incarnation))
                for item in delta.updated:
                    self._alive.add((item.node, item.incarnation))
                    self._absentees.found((item.node, item.incarnation))
                if not self._complete:
                    self._complete = True
                    self._compare_all()
                    continue
                grace_s = self._states().policy.loss_grace_s
                for item in delta.removed:
                    life = item.node, item.incarnation
                    if life not in self._alive:
                        self._miss(life, grace_s)

    def _compare_all(self) -> None:
        """Find, at a takeover, who is alive by the fold and has no key."""
        state = self._states()
        for node in state.nodes.values():
            life = node.node, node.incarnation
            if node.state not in AWAY and life not in self._alive:
                self._miss(life, state.policy.takeover_grace_s)

    def _miss(self, life: Life, grace_s: float) -> None:
        self._absentees.missed(life, anyio.current_time() + grace_s)
        self._wake.set()

    async def _run_patience(self) -> None:
        while True:
            self._wake = anyio.Event()
            self._expire(self._absentees.overdue(anyio.current_time()))
            due_at = self._absentees.next_due()
            with anyio.CancelScope(deadline=float("inf") if due_at is None else due_at):
                await self._wake.wait()

    def _expire(self, lives: Iterable[Life]) -> None:
        state = self._states()
        self._state_events(
            [
                LeaseExpired(node=node, incarnation=incarnation)
                for node, incarnation in lives
                if state.current(node, incarnation) is not None
            ]
        )
