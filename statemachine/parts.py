"""Keeping an event within its 64 KiB, however large the fleet: what is cut, and what left out.

What belongs here: the limits, and the cutting of a plan and of a commit into several events. They
are limits on counts, not on bytes, so that equal decisions are cut alike whatever names are called;
names have at most 63 characters, which bounds the bytes. The parts come before the event that they
belong to: a log that ends between them holds no half transition, and whoever leads next begins
again with the first part. `evolve_transitions` puts them together.
"""

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from statemachine import events as e
from statemachine.ids import Position

CHANGES_MAX: Final = 128
"""Slots that one event gives away or leaves empty."""

LISTED_MAX: Final = 128
"""Required members beyond which a plan leaves them implied; blockers that an abort names."""

HANDED_MAX: Final = 256
"""Names in the handovers of one event."""

SOURCES_MAX: Final = 16
"""Replicas of which each gives a part of a joiner's state; more would not be faster."""

WORDS_MAX: Final = 16
"""Clauses in a reason."""

CONSIDERED_MAX: Final = 64
"""Candidates that a plan names as passed over."""

EVIDENCE_MAX: Final = 64
"""Positions that an event names as evidence: the first ones."""


def brief(words: Iterable[str], between: str = "; ") -> str:
    """Clauses of a reason in one text; the first ones, and how many follow, if they are many."""
    listed = list(words)
    if len(listed) > WORDS_MAX:
        listed = [*listed[:WORDS_MAX], f"and {len(listed) - WORDS_MAX} more"]
    return between.join(listed)


def considered(lines: Iterable[str]) -> tuple[str, ...]:
    """Who was passed over and why; the first ones, and how many follow, if they are many."""
    listed = tuple(lines)
    if len(listed) <= CONSIDERED_MAX:
        return listed
    return (*listed[:CONSIDERED_MAX], f"and {len(listed) - CONSIDERED_MAX} more")


def evidence(positions: Iterable[int]) -> tuple[Position, ...]:
    """Positions of the evidence, the first ones if they are many."""
    return tuple(Position(at) for at in positions if at)[:EVIDENCE_MAX]


def plan_in_parts(plan: e.TransitionPlanned) -> tuple[e.AnyEvent, ...]:
    """The events that say a plan, the plan itself last."""
    implied = len(plan.required) > LISTED_MAX
    plan = replace(plan, required=() if implied else plan.required, implied=implied)
    if len(plan.changes) + len(plan.drops) <= CHANGES_MAX:
        return (plan,)
    drafts: list[tuple[tuple[e.Change, ...], tuple[e.Drop, ...]]] = []
    drafts += [(changes, ()) for changes in _cut(plan.changes)]
    drafts += [((), drops) for drops in _cut(plan.drops)]
    parts = [
        e.ChangesDrafted(
            job=plan.job,
            transition=plan.transition,
            part=part,
            reason=f"part {part} of {len(drafts)} of the plan that follows",
            evidence=plan.evidence,
            changes=changes,
            drops=drops,
        )
        for part, (changes, drops) in enumerate(drafts, 1)
    ]
    return (*parts, replace(plan, changes=(), drops=(), parts=len(parts)))


T = TypeVar("T")


def _cut(items: Sequence[T]) -> list[tuple[T, ...]]:
    size = max(1, CHANGES_MAX)
    return [tuple(items[at : at + size]) for at in range(0, len(items), size)]


def commit_in_parts(commit: e.TransitionCommitted) -> tuple[e.AnyEvent, ...]:
    """The events that say a commit, the commit itself last."""
    sheets: list[list[e.Handover]] = [[]]
    names = 0
    for handover in commit.handovers:
        names += 1 + len(handover.sources)
        if names > HANDED_MAX and sheets[-1]:
            sheets.append([])
            names = 1 + len(handover.sources)
        sheets[-1].append(handover)
    if len(sheets) == 1:
        return (commit,)
    parts = [
        e.SourcesChosen(
            job=commit.job,
            transition=commit.transition,
            part=part,
            reason=f"part {part} of {len(sheets)} of the handovers of the commit that follows",
            evidence=commit.evidence,
            handovers=tuple(sheet),
        )
        for part, sheet in enumerate(sheets, 1)
    ]
    return (*parts, replace(commit, handovers=(), parts=len(parts)))
