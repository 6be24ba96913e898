"""A log as one HTML page that needs nothing beside it: what happened, and where the time went.

What belongs here: from one reading of a log to what the template shows. The template escapes every
value: reasons and node names come from outside. Of a large fleet only nodes whose state changed
after they first served are drawn, and of a long log only what moved something is listed; both say
how much they leave out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import jinja2
from msgspec import Struct, field

from controlplane.demo.charts import Chart, Lanes, Moment, Stretch, lanes, line_chart
from controlplane.lines import clock, words_of
from controlplane.postmortem.logfile import LogFile
from controlplane.postmortem.stretches import NodeStretch, Stretches
from controlplane.postmortem.telling import PARTS, Told, tell, timeline_values
from statemachine import events as e
from statemachine.errors import CodecError
from statemachine.evolve import evolve
from statemachine.incidents import PHASES, Incident
from statemachine.state import FleetState
from statemachine.vitals import STEP_MS, decode_vitals

LANES_MAX: Final = 64
"""Nodes that are drawn."""

TOLD_MAX: Final = 2_000
"""Events that are listed."""

STRETCHES_MAX: Final = 40_000
"""Stretches kept while reading; beyond, only the latest nodes' are."""

_QUIET: Final = (
    e.TransitionPrepared,
    e.TransitionApplied,
    e.StepResumed,
    e.SweepRoundFinished,
    e.NodeJoined,
    e.WorkerReady,
    e.WarmupStarted,
    e.WorkerFinished,
)
"""Events that are many and move little; the log has them."""


class Line(Struct, frozen=True):
    """One event of the list."""

    position: int
    at_s: float
    name: str
    words: str


class _Gathered(Struct):
    """What the page shows beyond what `tell` tells."""

    began_ms: float = 0.0
    listed: list[Line] = field(default_factory=list)
    left_out: int = 0
    stretches: list[NodeStretch] = field(default_factory=list)
    state: FleetState = field(default_factory=FleetState)
    hearing: Stretches = field(default_factory=Stretches)

    def hear(self, recorded: e.Recorded) -> None:
        """Take what the page wants of an entry."""
        self.began_ms = self.began_ms or float(recorded.at_ms)
        before, self.state = self.state, evolve(self.state, recorded)
        ended, _ = self.hearing.hear(before, recorded, self.state)
        if len(self.stretches) < STRETCHES_MAX:
            self.stretches += ended
        self._list(recorded)

    def _list(self, recorded: e.Recorded) -> None:
        if isinstance(recorded.event, _QUIET):
            return
        if len(self.listed) >= TOLD_MAX:
            self.left_out += 1
            return
        at_s = (recorded.at_ms - self.began_ms) / 1000
        name = type(recorded.event).__name__
        self.listed.append(Line(recorded.position, at_s, name, words_of(recorded.event)))


def render_report(log: LogFile, vitals: Path | None = None) -> str:
    """Read a log and make its page. `vitals` is a file of a run folder, for steps and loss.

    Raises:
        UsageError: the log cannot be read.
    """
    gathered = _Gathered()
    told = tell(log, also=gathered.hear)
    gathered.stretches += gathered.hearing.rest()[0]
    moments = list(_moments(told, gathered.began_ms))
    pace, loss, before_after = _from_vitals(vitals, told, moments, gathered.began_ms)
    drawn, hidden = _lanes(gathered, moments)
    values = timeline_values(told, log)
    return _template().render(
        name=log.path.name,
        notes=log.notes(),
        values=values,
        parts=[(name, values["accounting_s"][name]) for name in PARTS],
        incidents=told.accounts.incidents,
        chains={
            int(each.planned): told.chains.of(each.job, each.transition)
            for each in told.accounts.incidents
        },
        phases=_phases(told.accounts.incidents),
        before_after=before_after,
        pace=pace,
        loss=loss,
        lanes=drawn,
        hidden=hidden,
        listed=gathered.listed,
        left_out=gathered.left_out,
        clock=clock,
        quiet=", ".join(kind.__name__ for kind in _QUIET),
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("controlplane.postmortem", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _phases(found: Iterable[Incident]) -> list[str]:
    seen = {name for incident in found for name in incident.phases_ms}
    return [*(name for name in PHASES if name in seen), *sorted(seen.difference(PHASES))]


def _moments(told: Told, began_ms: float) -> Iterator[Moment]:
    for each in told.accounts.incidents:
        at_s = (each.began_at_ms - began_ms) / 1000
        yield Moment(at_s, f"{each.kind} {each.node}", each.reason)
        if each.ended_at_ms is not None:
            words = f"{each.replacement} took slot {each.slot} of {each.node}"
            yield Moment((each.ended_at_ms - began_ms) / 1000, f"{each.replacement} in", words)


def _lanes(gathered: _Gathered, moments: list[Moment]) -> tuple[Lanes | None, int]:
    moved: dict[str, int] = {}
    for each in gathered.stretches:
        moved[each.node] = moved.get(each.node, 0) + 1
    chosen = sorted(sorted(moved), key=lambda name: -moved[name])[:LANES_MAX]
    kept = [
        Stretch(
            each.node,
            str(each.state),
            (each.from_ms - gathered.began_ms) / 1000,
            (each.to_ms - gathered.began_ms) / 1000,
        )
        for each in gathered.stretches
        if each.node in set(chosen)
    ]
    return (lanes(kept, moments) if kept else None), len(moved) - len(chosen)


# --- vitals -----------------------------------------------------------------------------------


def _from_vitals(
    path: Path | None, told: Told, moments: list[Moment], began_ms: float
) -> tuple[Chart | None, Chart | None, dict[int, tuple[float, float]]]:
    """Step time and loss over time, and the median step before and after each transition."""
    pace: list[tuple[float, float]] = []
    loss: list[tuple[float, float]] = []
    for raw in path.read_bytes().splitlines() if path is not None else ():
        try:
            vitals = decode_vitals(raw)
        except CodecError:
            continue
        at_s = (vitals.ended_at_ms - began_ms) / 1000
        step = vitals.measured(STEP_MS)
        if step is not None:
            pace.append((at_s, step.p50))
        if vitals.loss is not None:
            loss.append((at_s, vitals.loss))
    found = {
        int(each.planned): both
        for each in told.accounts.incidents
        if (both := _around(pace, each, began_ms)) is not None
    }
    pace.sort()
    loss.sort()
    return (
        line_chart(pace, moments, from_zero=True) if pace else None,
        line_chart(loss, moments, from_zero=False) if loss else None,
        found,
    )


def _around(
    pace: list[tuple[float, float]], each: Incident, began_ms: float
) -> tuple[float, float] | None:
    """Median step time, in ms, of the windows before an incident began and after it ended."""
    if each.ended_at_ms is None:
        return None
    from_s, to_s = (each.began_at_ms - began_ms) / 1000, (each.ended_at_ms - began_ms) / 1000
    before = sorted(ms for at_s, ms in pace if at_s <= from_s)
    after = sorted(ms for at_s, ms in pace if at_s > to_s)
    if not before or not after:
        return None
    return before[len(before) // 2], after[len(after) // 2]
