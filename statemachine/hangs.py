"""How long a phase may last without progress: learned for each phase, told when it is over.

What belongs here: deadlines, and who is behind when one has passed. No verdict: in a hang everybody
stands still, and who is to blame is told by whom the others wait for, not by silence.

Theory of operation. A window of vitals is progress. How far windows of one phase are apart is
learned from the run itself, so an evaluation that takes ten minutes is no hang, and a training step
that does is. The deadline of a phase is a multiple of the longest pause that was seen after it
lately, so the evaluation that follows a training step at times is no hang of training either.
Before enough of them were seen, and for a phase never seen, only the generous floor holds.
"""

from __future__ import annotations  # rpds maps take no subscript at run time

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from rpds import HashTrieMap

from statemachine.detector_policy import DetectorPolicy
from statemachine.ids import JobId, NodeId
from statemachine.vitals import Vitals

KNOWN_MIN = 8
"""Pauses that must have been seen before they set a deadline."""
KEPT = 64
"""Pauses remembered by phase."""


class Watched(Struct, frozen=True, kw_only=True):
    """One job: when it last moved, in which phase, and where each node stood then."""

    moved_at_ms: int
    phase: str
    steps: HashTrieMap[NodeId, int] = HashTrieMap()
    pauses_s: HashTrieMap[str, tuple[float, ...]] = HashTrieMap()


class Hang(Struct, frozen=True, kw_only=True):
    """A job that has not moved for longer than its phase ever takes. Times in seconds."""

    job: JobId
    phase: str
    still_s: float
    deadline_s: float
    last_step: int
    behind: tuple[NodeId, ...]

    def __str__(self) -> str:
        """Say it in one sentence for whoever is on call."""
        who = f"; behind the others: {', '.join(self.behind)}" if self.behind else ""
        return (
            f"{self.job} has not moved for {self.still_s:.0f} s in phase {self.phase}, after step "
            f"{self.last_step}; a pause of {self.deadline_s:.0f} s is the most it may take{who}"
        )


Jobs: TypeAlias = "HashTrieMap[JobId, Watched]"
"""What is remembered of every job that reports."""


def moved(jobs: Jobs, windows: Iterable[Vitals], now_ms: int) -> Jobs:
    """Take in windows that arrived now."""
    for vitals in windows:
        before = jobs.get(vitals.job)
        if before is None:
            before = Watched(moved_at_ms=now_ms, phase=vitals.phase)
        elif now_ms > before.moved_at_ms:
            pause_s = (now_ms - before.moved_at_ms) / 1000
            known = (*before.pauses_s.get(before.phase, ())[1 - KEPT :], pause_s)
            before = replace(before, pauses_s=before.pauses_s.insert(before.phase, known))
        after = replace(
            before,
            moved_at_ms=now_ms,
            phase=vitals.phase,
            steps=before.steps.insert(vitals.node, vitals.last_step),
        )
        jobs = jobs.insert(vitals.job, after)
    return jobs


def forgotten(jobs: Jobs, node: NodeId) -> Jobs:
    """A node that is gone is behind nobody."""
    for job, watched in jobs.items():
        if node in watched.steps:
            jobs = jobs.insert(job, replace(watched, steps=watched.steps.remove(node)))
    return jobs


def deadline_s(watched: Watched, policy: DetectorPolicy) -> float:
    """How long the phase that a job is in may last without progress, in seconds."""
    known = watched.pauses_s.get(watched.phase, ())
    if len(known) < KNOWN_MIN:
        return policy.hang_floor_s
    return max(policy.hang_least_s, policy.hang_times * max(known))


def hangs(jobs: Jobs, now_ms: int, policy: DetectorPolicy) -> tuple[Hang, ...]:
    """Name every job whose phase lasts longer than it may, and who is behind in it."""
    found = []
    for job in sorted(jobs):
        watched = jobs[job]
        still_s = (now_ms - watched.moved_at_ms) / 1000
        limit_s = deadline_s(watched, policy)
        if still_s <= limit_s or not watched.steps:
            continue
        last = max(watched.steps.values())
        behind = sorted(node for node, step in watched.steps.items() if step < last)
        found.append(
            Hang(
                job=job,
                phase=watched.phase,
                still_s=still_s,
                deadline_s=limit_s,
                last_step=last,
                behind=tuple(behind),
            )
        )
    return tuple(found)
