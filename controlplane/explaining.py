"""The story of a node or a transition: the slice of a log that bears on it, with its evidence.

What belongs here: choosing entries. First form: by what events name; the causal slice through
every position a decision was made from is to come.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from controlplane.errors import NothingToExplain
from statemachine import events as e
from statemachine.ids import Position


def story_of(log: Sequence[e.Recorded], subject: str, fleet: str) -> list[e.Recorded]:
    """Entries about ``NODE``, ``TRANSITION`` or ``JOB/TRANSITION``, in order.

    Raises:
        NothingToExplain: the log does not know the subject.
    """
    job, _, number = subject.rpartition("/")
    if number.isdigit():
        chosen = [r for r in log if _is_of_transition(r.event, job, int(number))]
    else:
        chosen = [r for r in log if subject in names_of(r.event)]
    if not chosen:
        raise NothingToExplain(
            f"fleet {fleet}: the log knows no node or transition {subject!r}; "
            "see 'changeover nodes' and 'changeover status'"
        )
    wanted = {r.position for r in chosen} | set(_evidence(r.event for r in chosen))
    return [r for r in log if r.position in wanted]


def _is_of_transition(event: e.AnyEvent, job: str, number: int) -> bool:
    named = getattr(event, "transition", None)
    return named == number and (not job or getattr(event, "job", "") == job)


def _evidence(events: Iterable[e.AnyEvent]) -> Iterable[Position]:
    for event in events:
        yield from getattr(event, "evidence", ())


def names_of(event: e.AnyEvent) -> set[str]:
    """Nodes that an event names."""
    plain: Any = event
    names = {getattr(plain, field, "") for field in ("node", "peer", "partner", "blames")}
    if isinstance(event, e.TransitionPlanned):
        names |= {name for c in event.changes for name in (c.joiner, c.leaver)}
    if isinstance(event, e.TransitionAborted):
        names |= set(event.blockers)
    return names - {""}
