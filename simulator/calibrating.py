"""Cost models from a log: what the incidents measured replaces what a paper says.

Only phases that the log holds are replaced, by the median over incidents; everything else stays
assumed, and is listed with the source it keeps.
"""

from collections.abc import Sequence

from msgspec import Struct

from simulator.models import COMPONENTS, MODELS
from simulator.scenario import Scenario
from simulator.stats import quantiles
from statemachine import events as e
from statemachine.incidents import incidents

PHASES = {
    "detect_s": ("detect",),
    "delta_s": ("decide", "prepare", "commit", "switch"),
    "transfer_s": ("transfer",),
    "first_step_s": ("first_step",),
}
"""Component -> phases of an incident that it is the sum of."""


class Measured(Struct, frozen=True, kw_only=True):
    """One component: its value, where it is from, and over how many incidents."""

    component: str
    seconds: float | None
    source: str
    samples: int
    spread_s: tuple[float, float] = (0.0, 0.0)


def calibrate(log: Sequence[e.Recorded], scenario: Scenario) -> tuple[Measured, ...]:
    """Every component, measured where the log allows it."""
    found = incidents(log)
    model = MODELS[scenario.costs.model]
    samples: dict[str, list[float]] = {
        name: [
            sum(told.phases_ms[phase] for phase in phases if phase in told.phases_ms) / 1000
            for told in found
            if told.motive is e.Motive.UNPLANNED and any(p in told.phases_ms for p in phases)
        ]
        for name, phases in PHASES.items()
    }
    samples["planned_s"] = [
        told.downtime_ms / 1000
        for told in found
        if told.motive is e.Motive.PLANNED and told.downtime_ms is not None
    ]
    samples["prepare_s"] = [
        told.phases_ms["prepare"] / 1000
        for told in found
        if told.motive is e.Motive.PLANNED and "prepare" in told.phases_ms
    ]
    samples["rehearse_s"] = [
        entry.event.took_ms / 1000 for entry in log if isinstance(entry.event, e.WarmupPassed)
    ]
    measured = []
    for name in COMPONENTS:
        values = samples.get(name, [])
        if values:
            low, middle, high = quantiles(values, (0.1, 0.5, 0.9))
            measured.append(
                Measured(
                    component=name,
                    seconds=middle,
                    source="measured",
                    samples=len(values),
                    spread_s=(low, high),
                )
            )
        else:
            source = f"assumed: {model.source}"
            measured.append(Measured(component=name, seconds=None, source=source, samples=0))
    return tuple(measured)


def as_toml(measured: Sequence[Measured]) -> str:
    """The lines to put into a scenario."""
    lines = ["[costs.overrides]"]
    for each in measured:
        if each.seconds is not None:
            lines.append(f"{each.component} = {each.seconds:.6g}  # median of {each.samples}")
        else:
            lines.append(f"# {each.component}: {each.source}")
    return "\n".join(lines) + "\n"
