"""One rehearsal: the user's own step, run a few times, timed, judged, and thrown away.

What belongs here: what a rehearsal measures and when it counts as passed. What does not: saving
and restoring the state (`state.sandboxed`), who decides to rehearse (`statemachine.decide`), what
groups answer meanwhile (`replay`), and bounds (`caps`).
"""

import math
import time
from typing import Final

from statemachine import messages as m
from worker.roles import PRIMING_STEPS, Taken
from worker.state import TrainingState
from worker.warmup.replay import Replay

REHEARSAL_STEPS: Final = 3
"""Steps of a rehearsal: the first pays for what is lazy, the others show what is left. As many as
prime the parts of a role, at least."""

assert REHEARSAL_STEPS >= PRIMING_STEPS


class Rehearsal:
    """Times and outcome of one rehearsal."""

    def __init__(self, order: m.Rehearse, digest: str) -> None:
        self._order = order
        self._digest = digest
        self._began_s = time.perf_counter()
        self._step_began_s = 0.0
        self._steps_ms: list[float] = []
        self._failure = ""
        self._recording = ""
        self.replay: Replay | None = None
        self.taken = Taken()
        self.state_bytes = 0

    @property
    def failed(self) -> bool:
        """Whether there is a reason already why it did not pass."""
        return bool(self._failure)

    def use(self, replay: Replay) -> None:
        """Rehearse with a recording."""
        self.replay = replay
        self._recording = replay.recording.name

    def begin_step(self) -> None:
        """A rehearsed step begins."""
        if self.replay is not None:
            self.replay.begin_step()
        self._step_began_s = time.perf_counter()

    def end_step(self, state: TrainingState, *, voted: bool, loss: float | None) -> None:
        """A rehearsed step ended. One that never voted is not the training step, one that asked
        for other answers than were recorded is not the recorded one, and a NaN is no training.
        """
        self._steps_ms.append((time.perf_counter() - self._step_began_s) * 1000)
        if not voted:
            self.fail("the step ended without step.vote()")
        if self.replay is not None:
            self.replay.end_step()
            if self.replay.misfits:
                self.fail(f"not the step that was recorded: {self.replay.misfits[0]}")
        if loss is not None and not math.isfinite(loss):
            self.fail(f"the loss of the rehearsed step is {loss}")
        unsound = state.unsound()
        if unsound:
            self.fail(f"after the rehearsed step {unsound} holds a NaN or an infinity")

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
            recording=self._recording,
            allocate_bytes=self.state_bytes,
        )
