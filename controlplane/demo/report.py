"""report.html: one file that explains a demo without anything beside it.

What belongs here: from what was seen to what the template shows. The template escapes every value:
reasons and node names come from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import jinja2

from controlplane.demo.charts import Chart, Lanes, Moment, Stretch, lanes, line_chart
from controlplane.demo.outcome import Outcome
from controlplane.demo.steps import JobStep
from controlplane.demo.tables import PHASE_WORDS, milliseconds, pace_words, ratio, title_of
from controlplane.lines import clock, words_of
from controlplane.localfleet.folder import RunFolder
from statemachine import events as e
from statemachine.evolve import evolve
from statemachine.evolve_jobs import live_holders
from statemachine.ids import Slot
from statemachine.incidents import PHASES
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState, Job

TOLD: Final = (
    e.JobDeclared,
    e.NodeLost,
    e.FaultInjected,
    e.FaultLifted,
    e.PeerReset,
    e.WorkerExited,
    e.VerdictIssued,
    e.TransitionPlanned,
    e.TransitionCommitted,
    e.TransitionFinished,
    e.TransitionAborted,
    e.NodeQuarantined,
    e.SweepRequested,
    e.SweepFinished,
    e.CertificateIssued,
    e.WarmupPassed,
    e.JobFinished,
)
"""Events that the report tells; the log has all."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A slot at one epoch: who holds it, and whether that changed with the epoch."""

    slot: int
    node: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The topology at one epoch, with the nodes beside it."""

    epoch: int
    at_s: float
    seats: tuple[Seat, ...]
    beside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """One event in the report's list."""

    position: int
    at_s: float
    name: str
    words: str


def write_report(
    folder: RunFolder, outcome: Outcome, log: Sequence[e.Recorded], steps: Sequence[JobStep]
) -> None:
    """Write the report of a demo, however far it came."""
    began_ms = float(log[0].at_ms) if log else 0.0
    moments = _moments(outcome, log, began_ms)
    stretches, arrangements = _history(log, began_ms)
    page = _environment().get_template("report.html.j2")
    html = page.render(
        outcome=outcome,
        phases=_phases(outcome),
        phase_words=PHASE_WORDS,
        ms=milliseconds,
        ratio=ratio,
        title_of=title_of,
        pace_words=pace_words,
        loss=_loss_chart(steps, moments, began_ms),
        pace=_pace_chart(steps, moments, began_ms),
        lanes=_lanes(stretches, moments),
        arrangements=arrangements,
        told=_told(log, began_ms),
        began=clock(began_ms) if log else "",
    )
    folder.report.write_text(html, encoding="utf-8")


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("controlplane.demo", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _phases(outcome: Outcome) -> list[str]:
    seen = [name for incident in outcome.incidents for name in incident.phases]
    return list(dict.fromkeys([*PHASES, *seen]))


# --- charts -----------------------------------------------------------------------------------


def _moments(outcome: Outcome, log: Sequence[e.Recorded], began_ms: float) -> list[Moment]:
    moments = []
    for incident in outcome.incidents:
        hurt_s = (incident.injected_at_ms - began_ms) / 1000
        moments.append(Moment(hurt_s, f"{incident.kind} {incident.node}", "fault injected"))
        if incident.resumed_at_ms is not None:
            resumed_s = (incident.resumed_at_ms - began_ms) / 1000
            words = f"{incident.replacement} took slot {incident.slot} of {incident.node}"
            moments.append(Moment(resumed_s, f"{incident.replacement} in", words))
    for recorded in log:
        if isinstance(recorded.event, e.FaultLifted):
            lifted_s = (recorded.at_ms - began_ms) / 1000
            moments.append(Moment(lifted_s, "lifted", f"fault of {recorded.event.node} lifted"))
    return sorted(moments, key=lambda moment: moment.at_s)


def _loss_chart(
    steps: Sequence[JobStep], moments: Sequence[Moment], began_ms: float
) -> Chart | None:
    points = [((s.at_ms - began_ms) / 1000, s.loss) for s in steps if s.loss is not None]
    return line_chart(points, moments, from_zero=False) if points else None


def _pace_chart(
    steps: Sequence[JobStep], moments: Sequence[Moment], began_ms: float
) -> Chart | None:
    points = [((s.at_ms - began_ms) / 1000, s.gap_ms) for s in steps if s.gap_ms is not None]
    return line_chart(points, moments, from_zero=True) if points else None


def _lanes(stretches: Sequence[Stretch], moments: Sequence[Moment]) -> Lanes | None:
    return lanes(stretches, moments) if stretches else None


# --- what the log says ------------------------------------------------------------------------


def _history(log: Sequence[e.Recorded], began_ms: float) -> tuple[list[Stretch], list[Arrangement]]:
    """States of every node over time, and the topology at every epoch, by the fold."""
    state = FleetState()
    since: dict[str, tuple[NodeState, float]] = {}
    stretches: list[Stretch] = []
    arrangements: list[Arrangement] = []
    for recorded in log:
        state = evolve(state, recorded)
        at_s = (recorded.at_ms - began_ms) / 1000
        for name in state.nodes:
            now = state.nodes[name].state
            before = since.get(name)
            if before is None or before[0] is not now:
                if before is not None:
                    stretches.append(Stretch(name, before[0], before[1], at_s))
                since[name] = (now, at_s)
        if isinstance(recorded.event, e.TransitionFinished):
            arrangements.append(_arrangement(state, recorded.event, at_s, arrangements))
    end_s = (log[-1].at_ms - began_ms) / 1000 if log else 0.0
    stretches += [Stretch(name, now, at_s, end_s) for name, (now, at_s) in since.items()]
    return stretches, arrangements


def _arrangement(
    state: FleetState,
    event: e.TransitionFinished,
    at_s: float,
    earlier: Sequence[Arrangement],
) -> Arrangement:
    job = state.jobs[event.job]
    held = live_holders(state, job)
    before = {seat.slot: seat.node for seat in earlier[-1].seats} if earlier else {}
    seats = tuple(
        Seat(slot, held.get(Slot(slot), "vacant"), _changed(before, slot, held.get(Slot(slot), "")))
        for slot in range(job.layout.slot_count)
    )
    return Arrangement(event.epoch, at_s, seats, _beside(state, job))


def _changed(before: dict[int, str], slot: int, node: str) -> bool:
    return bool(before) and before.get(slot) != node


def _beside(state: FleetState, job: Job) -> tuple[str, ...]:
    held = set(live_holders(state, job).values())
    return tuple(
        f"{name} {state.nodes[name].state}" for name in sorted(state.nodes) if name not in held
    )


def _told(log: Sequence[e.Recorded], began_ms: float) -> list[Told]:
    return [
        Told(
            position=recorded.position,
            at_s=(recorded.at_ms - began_ms) / 1000,
            name=type(recorded.event).__name__,
            words=words_of(recorded.event),
        )
        for recorded in log
        if isinstance(recorded.event, TOLD)
    ]
