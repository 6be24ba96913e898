"""The steps that a run committed, read from its nodes' diaries: when, how long, which loss.

What belongs here: reading those lines and putting the nodes together. Times are Unix ms of this
machine's one clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from statemachine.vitals import median


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


def pause_ms(steps: Sequence[JobStep], resumed: int) -> float | None:
    """How much longer than an ordinary step it took from the step before `resumed` to it, in ms."""
    ordinary = ordinary_ms(steps)
    for step in steps:
        if step.step == resumed and step.gap_ms is not None and ordinary is not None:
            return max(0.0, step.gap_ms - ordinary)
    return None
