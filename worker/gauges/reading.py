"""One reading of some gauges: numbers, and what could not be read.

What belongs here: the shape that every source returns, and how readings become the metrics of a
window. No files, no driver.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from statemachine.vitals import Metric, summarise


@dataclass(frozen=True)
class Reading:
    """Numbers by metric, and what is blind: ``source`` or ``metric``, each with the reason."""

    numbers: Mapping[str, float] = field(default_factory=dict)
    blind: Mapping[str, str] = field(default_factory=dict)


def merged(readings: Iterable[Reading]) -> tuple[dict[str, Metric], dict[str, str]]:
    """Summarise the readings of a window.

    What any reading knows is measured; what is left is blind, with the last reason given.
    """
    samples: dict[str, list[float]] = {}
    blind: dict[str, str] = {}
    for reading in readings:
        blind.update(reading.blind)
        for name, value in reading.numbers.items():
            samples.setdefault(name, []).append(value)
    metrics = {name: summarise(values) for name, values in sorted(samples.items())}
    return metrics, {name: why for name, why in sorted(blind.items()) if name not in metrics}
