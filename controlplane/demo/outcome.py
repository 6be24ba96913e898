"""The outcome of a demo, as one object: what `--json` prints and `outcome.json` holds.

What belongs here: names of fields, which only grow. How it is shown to people: `tables`, `report`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from controlplane.demo.peers import beside_peers
from controlplane.demo.plot import GREY, Hurt, incidents_of
from controlplane.demo.steps import JobStep, Pace, gap_ms, pace, pause_ms
from statemachine import events as e
from statemachine.ids import Slot
from statemachine.incidents import Incident
from statemachine.vitals import Vitals


class IncidentOutcome(Struct, frozen=True, kw_only=True):
    """One fault and its answer. Durations in ms.

    `downtime_ms`: after a kill, until the first step was committed at full size again; in a
    planned swap, the pause beyond an ordinary step. `gap_ms`: from the last step committed before
    to the first after, by the nodes' own notes; `pause_ms` the same without an ordinary step.
    """

    kind: str
    node: str
    replacement: str
    slot: int
    steps_lost: int | None
    downtime_ms: float | None
    gap_ms: float | None
    pause_ms: float | None
    resume_step: int
    phases: dict[str, float]
    injected_at_ms: float
    resumed_at_ms: float | None
    transition: int
    epoch: int
    failed_sweeps: int
    came_back: bool
    reason: str
    pace: PaceOutcome | None = None


class PaceOutcome(Struct, frozen=True, kw_only=True):
    """Steps before a node turned grey, while it was, and after it was swapped out.

    `slowed` is the mean step while grey over that after, `calmed` the variation likewise. Guard
    published a mean from 17 s to 10 s and a variation from run to run from 20 % to 1 %.
    `of_peers_*` is how long the slot's holder worked in a step, over its peers' median at the same
    time: what else the machine did is not in that. None where no windows of vitals tell.
    """

    before: Pace
    during: Pace
    after: Pace
    slowed: float
    calmed: float
    guard_slowed: float = 1.7
    guard_calmed: float = 20.0
    of_peers_before: float | None = None
    of_peers_grey: float | None = None
    of_peers_after: float | None = None

    @property
    def of_guard(self) -> float:
        """What of Guard's published effect on the mean step this is, as a ratio of excesses."""
        return (self.slowed - 1) / (self.guard_slowed - 1)


class BaselineOutcome(Struct, frozen=True, kw_only=True):
    """What a restart with `torchrun` costs: kill of one worker to the first new step of all.

    `step_ms` is its ordinary step, `repeated_steps` what had been committed and was run again.
    """

    restart_ms: float
    step_ms: float
    repeated_steps: int


class ClaimOutcome(Struct, frozen=True, kw_only=True):
    """One thing that had to hold."""

    claim: str
    holds: bool
    detail: str


class Outcome(Struct, kw_only=True):
    """Everything a demo found out."""

    ok: bool = False
    steps: int = 0
    final_loss: float | None = None
    weights_digest: str = ""
    uninterrupted_digest: str = ""
    incidents: list[IncidentOutcome] = field(default_factory=list)
    baseline: BaselineOutcome | None = None
    survivor_pids_unchanged: bool | None = None
    events: int = 0
    log: str = ""
    report: str = ""
    run_dir: str = ""
    step_ms: float | None = None
    uninterrupted_step_ms: float | None = None
    first_loss: float | None = None
    nodes: int = 0
    standbys: int = 0
    seed: int = 0
    took_s: float = 0.0
    claims: list[ClaimOutcome] = field(default_factory=list)
    error: str = ""

    @property
    def failures(self) -> list[str]:
        """Why it is not ok, one line each."""
        broken = [
            f"did not hold: {claim.claim} ({claim.detail})"
            for claim in self.claims
            if not claim.holds
        ]
        return [*([self.error] if self.error else []), *broken]


def incident_outcomes(
    log: list[e.Recorded],
    hurts: Sequence[Hurt],
    steps: Sequence[JobStep],
    windows: Sequence[Vitals] = (),
) -> list[IncidentOutcome]:
    """Each fault with the incident that it led to; a fault that nobody answered has none."""
    outcomes = []
    for hurt in hurts:
        for found in incidents_of(log, hurt)[:1]:
            pause = pause_ms(steps, found.resume_step)
            planned = found.motive is e.Motive.PLANNED
            outcomes.append(
                IncidentOutcome(
                    kind=hurt.kind,
                    node=found.node,
                    replacement=found.replacement,
                    slot=found.slot,
                    steps_lost=found.steps_lost,
                    downtime_ms=pause if planned and pause is not None else found.downtime_ms,
                    gap_ms=gap_ms(steps, found.resume_step),
                    pause_ms=pause,
                    resume_step=found.resume_step,
                    phases={name: round(ms, 3) for name, ms in found.phases_ms.items()},
                    injected_at_ms=hurt.at_ms,
                    resumed_at_ms=found.ended_at_ms,
                    transition=found.transition,
                    epoch=found.epoch,
                    failed_sweeps=hurt.failed_sweeps,
                    came_back=hurt.came_back,
                    reason=found.reason,
                    pace=_pace(steps, hurt, found, windows) if hurt.kind == GREY else None,
                )
            )
    return outcomes


def _pace(
    steps: Sequence[JobStep], hurt: Hurt, found: Incident, windows: Sequence[Vitals]
) -> PaceOutcome | None:
    if found.ended_at_ms is None:
        return None
    spans = (
        (hurt.at_ms - _PACE_MS, hurt.at_ms),
        (hurt.at_ms, found.ended_at_ms),
        (found.ended_at_ms, found.ended_at_ms + _PACE_MS),
    )
    before, during, after = (pace(steps, *span) for span in spans)
    if before is None or during is None or after is None:
        return None
    return PaceOutcome(
        before=before,
        during=during,
        after=after,
        slowed=during.mean_ms / after.mean_ms,
        calmed=during.variation / after.variation if after.variation else 1.0,
        of_peers_before=beside_peers(windows, Slot(found.slot), *spans[0]),
        of_peers_grey=beside_peers(windows, Slot(found.slot), *spans[1]),
        of_peers_after=beside_peers(windows, Slot(found.slot), *spans[2]),
    )


_PACE_MS: Final = 10_000.0
"""How much of a run before and after an incident its pace is told from."""


def shown(path: Path) -> str:
    """A path as people paste it: relative to where they are, where it is below."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path.resolve())
