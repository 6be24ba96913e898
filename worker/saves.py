"""How a run goes on from what was saved: what the script, or a store, says about what there is.

What belongs here: the questions about saves, and what a question costs that cannot be answered.
Writing them, and what is in them, does not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict, Unpack

from statemachine import messages as m
from worker.control import Control
from worker.copies import MEMORY, Copies
from worker.handover import Handover
from worker.orders import NOTHING_KNOWN, Known
from worker.roles import Roles
from worker.seat import Seat

if TYPE_CHECKING:
    from worker.state.checkpoints import Checkpoints

log = logging.getLogger("worker.saves")


@dataclass(frozen=True)
class Saves:
    """`newest` is the last step in the newest whole checkpoint (-1: none); `load` puts one back."""

    newest: Callable[[], int]
    load: Callable[[int], None]
    after_step: Callable[[int, Seat], None] = lambda _step, _seat: None
    """Called after each committed step; where the run writes the checkpoints itself."""
    finish: Callable[..., None] = lambda *, over: None  # noqa: ARG005  (its shape)
    """Called when the process leaves its loop, and whether the job is over."""

    steps: Callable[[], tuple[int, ...]] = tuple
    """All such steps, where more than the newest is known; asked after `newest`."""
    where: Callable[[int], str] = lambda _: ""
    """Where a step would be loaded from, in words."""

    def known(self) -> Known:
        """What there is; where asking raises, there is nothing, and the log says why.

        A parked job waits for the answer: what cannot be read now is as good as absent.
        """
        try:
            newest = self.newest()
            return Known(newest, self.where(newest), self.steps())
        except Exception:  # the script's own code: whatever it raises
            log.exception("no checkpoint can be found")
            return NOTHING_KNOWN


NOTHING_SAVED = Saves(newest=lambda: -1, load=lambda _: None)
"""No checkpoints: a launch begins with initial weights."""


class Plan(TypedDict):
    """What is saved when. All numbers are steps, or counts."""

    every: int
    """A checkpoint on the disk every so many steps."""
    keep: NotRequired[int]
    """How many of those are kept, 3 unless said."""
    copy_every: NotRequired[int]
    """A copy in the memory of this node and of its buddy every so many steps, of shards that have
    no replica; 0, unless said: never."""
    memory: NotRequired[Path | None]
    """Where copies are kept: a folder in memory (tmpfs) that is this node's own."""


def saves_in(
    folder: Path, control: Control, handover: Handover, roles: Roles, **how: Unpack[Plan]
) -> Saves:
    """The checkpoints and copies that the run takes itself; `control` reports what there is.

    Raises:
        CheckpointUnusable: the folder cannot be written.
        ValueError: numbers that cannot be.
    """
    from worker.state.checkpoints import Checkpoints, Saved

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
        folder,
        control.layout,
        every=how["every"],
        keep=how.get("keep", 3),
        slot=control.slot,
        state=lambda: roles.state,
        told=told,
    )
    copies = _copies(control, handover, roles, how)
    both = _Both(kept, copies)
    saves = Saves(both.newest, both.load, both.after_step, both.finish, both.steps, both.source)
    control.saves = saves.known
    return saves


def _copies(control: Control, handover: Handover, roles: Roles, how: Plan) -> Copies | None:
    if not how.get("copy_every"):
        return None
    me = handover.me
    copies = Copies(
        how.get("memory") or MEMORY / f"changeover-{os.getuid()}" / f"{control.job}-{me.node}",
        control.layout,
        how.get("copy_every", 0),
        control.slot,
        lambda: roles.state,
        control.members,
        handover.borrow,
    )
    handover.lend(copies.lend)
    return copies


@dataclass
class _Both:
    """Checkpoints on the disk, and copies in memory if there are any: the newer one counts."""

    kept: Checkpoints
    copies: Copies | None

    def newest(self) -> int:
        """The last step of which there is either."""
        in_memory = self.copies.newest() if self.copies is not None else -1
        return max(in_memory, self.kept.newest())

    def steps(self) -> tuple[int, ...]:
        """All steps of which there is either, by what `newest` found."""
        in_memory = self.copies.steps() if self.copies is not None else set()
        return tuple(sorted({*in_memory, *self.kept.whole()}))

    def source(self, step: int) -> str:
        """Where a step would be loaded from, in words."""
        if self.copies is not None and self.copies.has(step):
            return self.copies.source(step)
        return "the disk" if step >= 0 else ""

    def load(self, step: int) -> None:
        """Put a step back, from memory if it is there."""
        from worker.state.checkpoints import CheckpointUnusable

        if self.copies is not None and self.copies.has(step):
            try:
                self.copies.load(step)
            except CheckpointUnusable as error:
                log.warning("from the disk instead: %s", error)
            else:
                log.info("step %d is back from %s", step, self.copies.source(step))
                self.copies.forget_after(step)
                return
        self.kept.load(step)
        log.info("step %d is back from the disk", step)
        if self.copies is not None:
            self.copies.forget_after(step)

    def after_step(self, step: int, seat: Seat) -> None:
        """A step was committed."""
        if self.copies is not None:
            self.copies.after_step(step, seat.members)
        self.kept.after_step(step, {holder.slot: holder for holder in seat.members})

    def finish(self, *, over: bool) -> None:
        """The process leaves its loop; `over`: and the job is."""
        self.kept.finish()
        if self.copies is not None:
            self.copies.finish()
            if over:
                self.copies.forget()
