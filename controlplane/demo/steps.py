"""The steps that a run committed, read from its nodes' diaries: when, how long, which loss.

What belongs here: reading those lines and putting the nodes together. Times are Unix ms of this
machine's one clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum, sqrt
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from statemachine.vitals import median

_NEAR_STEPS: Final = 20


class StepLine(Struct, frozen=True, kw_only=True):
    """One step as one node committed it."""

    step: int
    at_ms: float
    step_ms: float
    epoch: int = 0
    loss: float | None = None
    pid: int = 0


class JobStep(Struct, frozen=True, kw_only=True):
    """One step of the job: committed when the last rank had it; `gap_ms` since the step before."""

    step: int
    at_ms: float
    gap_ms: float | None
    loss: float | None


_LINE = msgspec.json.Decoder(StepLine)


def read_diary(path: Path) -> list[StepLine]:
    """The lines of one diary; a line that a kill cut short is left out."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = []
    for line in raw.split(b"\n"):
        try:
            lines.append(_LINE.decode(line))
        except msgspec.MsgspecError:
            continue
    return lines


def read_diaries(folder: Path) -> dict[str, list[StepLine]]:
    """Every node's diary in a folder, by node."""
    return {path.stem: read_diary(path) for path in sorted(folder.glob("*.jsonl"))}


def job_steps(diaries: Iterable[Sequence[StepLine]]) -> list[JobStep]:
    """Put the nodes together: the steps of the job in order. A step that was committed twice, by
    a process that then died alone, counts with its last commit. The loss is the mean over ranks.
    """
    by_step: dict[int, list[StepLine]] = {}
    for diary in diaries:
        for line in diary:
            by_step.setdefault(line.step, []).append(line)
    steps: list[JobStep] = []
    for step in sorted(by_step):
        lines = by_step[step]
        at_ms = max(line.at_ms for line in lines)
        before = steps[-1] if steps and steps[-1].step == step - 1 else None
        losses = [line.loss for line in lines if line.loss is not None]
        steps.append(
            JobStep(
                step=step,
                at_ms=at_ms,
                gap_ms=at_ms - before.at_ms if before is not None else None,
                loss=sum(losses) / len(losses) if losses else None,
            )
        )
    return steps


def ordinary_ms(steps: Sequence[JobStep]) -> float | None:
    """The median time from one step to the next, in ms."""
    gaps = [step.gap_ms for step in steps if step.gap_ms is not None]
    return median(gaps) if gaps else None


class Pace(Struct, frozen=True, kw_only=True):
    """How steps followed each other for a while: mean in ms, variation relative to it."""

    steps: int
    mean_ms: float
    variation: float


def pace(steps: Sequence[JobStep], from_ms: float, to_ms: float) -> Pace | None:
    """The pace of the steps committed between two instants; None with fewer than three.

    The longest in fifty is left out, so that a pause at a boundary does not count as variation.
    """
    gaps = sorted(
        step.gap_ms for step in steps if step.gap_ms is not None and from_ms <= step.at_ms < to_ms
    )
    kept = gaps[: len(gaps) - len(gaps) // 50]
    if len(kept) < 3:
        return None
    mean_ms = fsum(kept) / len(kept)
    variance = fsum((gap - mean_ms) ** 2 for gap in kept) / len(kept)
    return Pace(steps=len(kept), mean_ms=mean_ms, variation=sqrt(variance) / mean_ms)


def gap_ms(steps: Sequence[JobStep], resumed: int) -> float | None:
    """The time from the step before `resumed` to it, in ms."""
    return next((step.gap_ms for step in steps if step.step == resumed), None)


def pause_ms(steps: Sequence[JobStep], resumed: int) -> float | None:
    """How much longer than an ordinary step it took from the step before `resumed` to it, in ms.

    Ordinary is the median of the next steps: those before may have been slow for the same cause.
    """
    place = next((n for n, step in enumerate(steps) if step.step == resumed), None)
    gap_ms = steps[place].gap_ms if place is not None else None
    if place is None or gap_ms is None:
        return None
    ordinary = ordinary_ms(steps[place + 1 : place + 1 + _NEAR_STEPS]) or ordinary_ms(steps)
    return max(0.0, gap_ms - ordinary) if ordinary is not None else None
