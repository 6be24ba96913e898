"""One rehearsal: the user's own step, run a few times, timed, judged, and thrown away.

What belongs here: what a rehearsal measures and when it counts as passed. What does not: saving
and restoring the state (`state.sandboxed`), who decides to rehearse (`statemachine.decide`), and
groups, which are detached while a node holds no slot: every collective answers locally.
"""

import time
from typing import Final

from statemachine import messages as m

PRIMING_STEPS: Final = 2
"""Steps that every process does before it offers itself; as many as `DistributedDataParallel` needs
to rebuild its buckets."""

REHEARSAL_STEPS: Final = 3
"""Steps of a rehearsal: the first pays for what is lazy, the others show what is left."""


class Rehearsal:
    """Times and outcome of one rehearsal."""

    def __init__(self, order: m.Rehearse, digest: str) -> None:
        self._order = order
        self._digest = digest
        self._began_s = time.perf_counter()
        self._step_began_s = 0.0
        self._steps_ms: list[float] = []
        self._failure = ""

    def begin_step(self) -> None:
        """A rehearsed step begins."""
        self._step_began_s = time.perf_counter()

    def end_step(self, *, voted: bool) -> None:
        """A rehearsed step ended; one that never voted is not the training step."""
        self._steps_ms.append((time.perf_counter() - self._step_began_s) * 1000)
        if not voted:
            self.fail("the step ended without step.vote()")

    def fail(self, reason: str) -> None:
        """Say why it did not pass; the first reason counts."""
        self._failure = self._failure or reason

    def outcome(self) -> m.Rehearsed:
        """What the agent is told."""
        enough = len(self._steps_ms) >= REHEARSAL_STEPS
        if not enough and not self._failure:
            self._failure = f"ended after {len(self._steps_ms)} of {REHEARSAL_STEPS} steps"
        return m.Rehearsed(
            job=self._order.job,
            role=self._order.role,
            digest=self._digest,
            first_step_ms=self._steps_ms[0] if self._steps_ms else 0.0,
            steady_step_ms=self._steps_ms[-1] if self._steps_ms else 0.0,
            took_ms=(time.perf_counter() - self._began_s) * 1000,
            failure=self._failure,
        )
