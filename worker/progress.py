"""What is told of committed steps: each to the diary, the first of an epoch to the agent.

What belongs here: who hears of a step that is committed. What a commit does is the loop's.
"""

import time

from statemachine import messages as m
from statemachine.ids import TransitionId
from worker.channel import Channel
from worker.diary import Diary
from worker.pulse import Pulse
from worker.seat import Seat
from worker.tripwire import note


class Progress:
    """Of one training process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._diary = Diary.from_environment()
        self._told = TransitionId(0)
        self._committed_at_s = 0.0

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
