"""What is told of steps: each that is committed to the diary, the first of an epoch to the agent,
and one that the script itself votes down again and again to whoever reads its log.

What belongs here: who hears of a step. What a commit does is the loop's.
"""

import logging
import time

from statemachine import messages as m
from statemachine.ids import TransitionId
from worker.channel import Channel
from worker.diary import Diary
from worker.pulse import Pulse
from worker.seat import Seat
from worker.step import Step
from worker.tripwire import note

log = logging.getLogger(__name__)

_SAID_AT = frozenset(3 * 10**power for power in range(9))
"""After how many refusals of one step it is said: a gradient scaler may take a few to fit."""


class Progress:
    """Of one training process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._diary = Diary.from_environment()
        self._told = TransitionId(0)
        self._committed_at_s = 0.0
        self._declined = 0
        self._declined_step = -1

    def declined(self, step: Step) -> None:
        """A step did not pass. Where no loss is why, a rank voted `ok=False`, and it comes again
        with the same numbers: whoever waits for the run to go on has to be told.
        """
        if step.order is not None:
            return
        self._declined = self._declined + 1 if step.index == self._declined_step else 1
        self._declined_step = step.index
        if self._declined in _SAID_AT:
            log.warning(
                "step %d was voted down %d times by the script, on this rank or another: it comes "
                "again, with the same batch and random numbers, until the script changes something "
                "or votes for it",
                step.index,
                self._declined,
            )

    def committed(self, step: int, seat: Seat, pulse: Pulse, *, told: bool) -> bool:
        """The step that `pulse` measured last was committed at the epoch of `seat`; `told`: the
        agent may hear of it.

        Returns whether it is the first of its epoch.
        """
        note(step)
        before_s, self._committed_at_s = self._committed_at_s, time.time()
        at_ms = self._committed_at_s * 1000
        took = pulse.last
        self._diary.note(
            step=step,
            epoch=seat.epoch,
            at_ms=at_ms,
            step_ms=took.step_ms,
            loss=pulse.loss,
            waited_ms=took.wait_ms,
        )
        if self._told == seat.transition or not told:
            return False
        self._told = seat.transition
        self._channel.send(
            m.Resumed(
                transition=self._told,
                step=step,
                step_ms=took.step_ms,
                committed_at_ms=at_ms,
                previous_at_ms=before_s * 1000,
            )
        )
        return True
