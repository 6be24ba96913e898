"""How a run goes on from a checkpoint: what the script, or a store, says about those there are.

What belongs here: two questions about checkpoints, and what a question costs that cannot be
answered. Writing checkpoints, and what is in them, does not.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from statemachine import messages as m
from worker.control import Control
from worker.seat import Seat
from worker.state import TrainingState

log = logging.getLogger("worker.saves")


@dataclass(frozen=True)
class Saves:
    """`newest` is the last step in the newest whole checkpoint (-1: none); `load` puts one back."""

    newest: Callable[[], int]
    load: Callable[[int], None]
    after_step: Callable[[int, Seat], None] = lambda _step, _seat: None
    """Called after each committed step; where the run writes the checkpoints itself."""
    finish: Callable[[], None] = lambda: None
    """Called when the process leaves its loop."""

    def newest_or_none(self) -> int:
        """`newest`; where it raises, there is none, and the log says why.

        A launch waits for the answer: what cannot be read now is as good as absent.
        """
        try:
            return self.newest()
        except Exception:  # the script's own code: whatever it raises
            log.exception("no checkpoint can be found")
            return -1


NOTHING_SAVED = Saves(newest=lambda: -1, load=lambda _: None)
"""No checkpoints: a launch begins with initial weights."""


def saves_in(
    folder: Path,
    every: int,
    keep: int,
    control: Control,
    state: Callable[[], TrainingState],
) -> Saves:
    """The checkpoints that the run writes itself, in a folder.

    Raises:
        CheckpointUnusable: the folder cannot be written.
        ValueError: numbers that cannot be.
    """
    from worker.checkpoints import Checkpoints, Saved

    def told(saved: Saved) -> None:
        control.channel.send(
            m.Saved(
                step=saved.step,
                nbytes=saved.nbytes,
                copy_ms=saved.copy_ms,
                write_ms=saved.write_ms,
                failure=saved.failure,
            )
        )

    kept = Checkpoints(
        folder, control.layout, every=every, keep=keep, slot=control.slot, state=state, told=told
    )

    def after_step(step: int, seat: Seat) -> None:
        kept.after_step(step, {holder.slot: holder for holder in seat.members})

    return Saves(kept.newest, kept.load, after_step, kept.finish)
