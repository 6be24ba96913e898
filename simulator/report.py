"""A comparison as one HTML file: no script, no network, readable in light and dark."""

from importlib.resources import files

from jinja2 import Environment
from msgspec import Struct

from simulator.compare import Comparison
from simulator.models import MODELS
from simulator.scenario import Scenario

WIDTH = 560
"""Width of the chart's plot, in pixels."""


class Bar(Struct, frozen=True):
    """One strategy in the chart, in pixels from the left."""

    name: str
    end: float
    low: float
    high: float
    mark: float | None
    words: str


def bars(found: Comparison) -> list[Bar]:
    """Lay the chart out: ETTR from 0 to 1, its interval, and the closed form as a mark."""
    laid = []
    for row in found.rows:
        half = row.ettr.half if row.ettr.half < 1 else 0.0
        low, high = max(0.0, row.ettr.mean - half), min(1.0, row.ettr.mean + half)
        laid.append(
            Bar(
                row.strategy,
                row.ettr.mean * WIDTH,
                low * WIDTH,
                high * WIDTH,
                row.closed_form * WIDTH if row.closed_form is not None else None,
                f"{row.ettr.mean:.4f} ± {half:.4f}",
            )
        )
    return laid


def write_report(scenario: Scenario, found: Comparison) -> str:
    """Return the page."""
    source = files("simulator").joinpath("report.html.j2").read_text("utf-8")
    environment = Environment(autoescape=True)
    return environment.from_string(source).render(
        found=found,
        bars=bars(found),
        width=WIDTH,
        model=MODELS[scenario.costs.model],
        scenario=scenario,
    )
