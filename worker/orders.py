"""What the training thread may be asked to do, and what is known of a transition under way.

What belongs here: values that the listening thread makes and the training thread takes. When either
does so is `control`.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from statemachine import messages as m
from statemachine.ids import Slot, TransitionId
from worker.seat import Seat


@dataclass(frozen=True)
class Become:
    """Put the parts of a slot's role in force: its transition waits for it."""

    transition: TransitionId
    slot: Slot
    launch: bool


Order = m.Rehearse | m.Commit | m.Release | m.Stop | Become


class Known(NamedTuple):
    """Steps that a process could load the state of: the newest (-1: none) and where that is, in
    words; and all of them, where more than the newest is known.
    """

    newest: int = -1
    where: str = ""
    steps: tuple[int, ...] = ()


NOTHING_KNOWN: Final = Known()


@dataclass
class Preparation:
    """One transition as far as it got here; the control's lock guards it."""

    message: m.Prepare
    seat: Seat | None
    heard_at_s: float
    links_opened: int = 0
    took_ms: float = 0.0
    ready: bool = False
    answered: bool = False
    parked_said: bool = False
    computing: bool = False
    """Answered for a thread in the middle of a doomed step."""
    quiesce_ms: float = 0.0


def in_brief(message: m.ToWorker | m.FromWorker) -> str:
    """Name a message, and the transition that it belongs to."""
    transition = getattr(message, "transition", None)
    name = type(message).__name__
    return name if transition is None else f"{name} of transition {transition}"


def kinds_to_build(seat: Seat | None, before: Seat | None, *, everything: bool) -> list[str]:
    """Which kinds of group a preparation builds.

    After a loss every group gets a new epoch's tag, so that nothing sent in the abandoned step is
    ever taken for something else; links between stayers are kept all the same.
    """
    if seat is None:
        return []
    return list(seat.plans) if everything else seat.changed_kinds(before)
