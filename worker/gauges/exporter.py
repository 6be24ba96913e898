"""GPU gauges from a Prometheus page, such as that of dcgm-exporter, instead of NVML.

What belongs here: the text format, as far as it is needed, and which of the exporter's names are
which of ours. A page that cannot be fetched in time, or holds none of the names, is blind.
"""

import math
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from statemachine.vitals import (
    GPU_POWER_W,
    GPU_TEMP_C,
    GPU_UTIL,
    SM_CLOCK_MHZ,
    THROTTLED,
)
from worker.gauges.reading import Reading

SOURCE: Final = "exporter"
DEADLINE_S: Final = 3.0
PAGE_BYTES_MAX: Final = 4 << 20

_SAMPLE: Final = re.compile(
    r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$"
)
_LABEL: Final = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """One line of a page."""

    name: str
    labels: dict[str, str]
    value: float


def parse(page: str) -> Iterator[Sample]:
    """Yield the samples of a page in the Prometheus text format; other lines are skipped."""
    for line in page.splitlines():
        found = _SAMPLE.match(line.strip())
        if line.startswith("#") or found is None:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        labels = {m["name"]: m["value"] for m in _LABEL.finditer(found["labels"] or "")}
        yield Sample(found["name"], labels, value)


class _Name(NamedTuple):
    """Which of our gauges a name of the exporter is: how scaled, and how devices make one."""

    metric: str
    scaled: Callable[[float], float]
    whole: Callable[[Sequence[float]], float]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _slowed(reasons: float) -> float:
    """Whether hardware or heat slows a device: not an idle clock, nor a cap on its power."""
    return float(bool(int(reasons) & (0x8 | 0x20 | 0x40 | 0x80)))


_NAMES: Final[Mapping[str, _Name]] = {
    "DCGM_FI_DEV_SM_CLOCK": _Name(SM_CLOCK_MHZ, float, _mean),
    "DCGM_FI_DEV_GPU_TEMP": _Name(GPU_TEMP_C, float, max),
    "DCGM_FI_DEV_POWER_USAGE": _Name(GPU_POWER_W, float, _mean),
    "DCGM_FI_DEV_GPU_UTIL": _Name(GPU_UTIL, lambda percent: percent / 100, _mean),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": _Name(THROTTLED, _slowed, _mean),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": _Name(THROTTLED, _slowed, _mean),
}
"""The last two are one: its name changed with DCGM 3.3."""


def gauges_of(page: str, host: str = "") -> Reading:
    """Read our gauges off a page; of one host, if it serves several."""
    values: dict[str, list[float]] = {}
    for sample in parse(page):
        known = _NAMES.get(sample.name)
        other = host and sample.labels.get("Hostname", host) != host
        if known is None or other or not math.isfinite(sample.value):
            continue
        values.setdefault(sample.name, []).append(known.scaled(sample.value))
    numbers = {_NAMES[name].metric: _NAMES[name].whole(found) for name, found in values.items()}
    if not numbers:
        return Reading(blind={SOURCE: "the page holds no gauge of a GPU"})
    missing = {known.metric for known in _NAMES.values()} - set(numbers)
    return Reading(numbers, dict.fromkeys(sorted(missing), "the exporter does not tell it"))


class ExporterGauges:
    """Fetches a page. `url` is that of the exporter; empty reads nothing."""

    def __init__(self, url: str, host: str = "", *, deadline_s: float = DEADLINE_S) -> None:
        self._url = url
        self._host = host
        self._deadline_s = deadline_s

    def read(self) -> Reading:
        """Fetch and read the page once; blind with the reason if that cannot be."""
        if not self._url:
            return Reading()
        try:
            with urllib.request.urlopen(self._url, timeout=self._deadline_s) as answer:  # noqa: S310 - the operator's own
                page = answer.read(PAGE_BYTES_MAX).decode(errors="replace")
        except (OSError, ValueError, urllib.error.URLError) as error:
            return Reading(blind={SOURCE: f"{self._url}: {getattr(error, 'reason', error)}"})
        return gauges_of(page, self._host)
