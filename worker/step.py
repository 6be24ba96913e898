"""One try at one step, as the user's loop sees it.

What belongs here: what a step knows and may be asked. What a vote does is the run's (`loop`).
"""

from __future__ import annotations

from collections.abc import Callable

from statemachine.ids import TransitionId
from worker.orders import Order
from worker.seat import Seat


class Step:
    """One try at one step. `index` is the step's number, 0-based and without gaps."""

    def __init__(
        self,
        index: int,
        vote: Callable[[Step, bool], bool],
        record: Callable[[float], None],
        *,
        rehearsal: bool = False,
    ) -> None:
        self.index = index
        self.rehearsal = rehearsal
        self.passed = False
        self.voted = False
        self.switch_to = TransitionId(0)
        self.order: tuple[Order, Seat | None] | None = None
        self._vote = vote
        self._record = record

    def vote(self, ok: bool = True) -> bool:
        """Take part in the boundary vote once this step's gradients are synchronised.

        True: every rank has its gradients; apply them. False: throw this step away; it is offered
        again. `ok=False` asks all ranks to throw it away and do it again: change something in
        between (a smaller loss scale after an overflow, say), or it comes out the same for ever. To
        skip an update for good, vote for the step and apply nothing, on every rank.

        Raises:
            AgentGone: this node's agent ended.
        """
        if self.voted:
            raise RuntimeError("step.vote() was called twice in one step")
        self.voted = True
        self.passed = self._vote(self, ok)
        return self.passed

    def record(self, loss: float) -> None:
        """Tell whoever watches the run what the loss is; costs nothing.

        A rehearsal's loss goes to whoever judges the rehearsal.
        """
        self._record(loss)
