"""GPU gauges from a Prometheus page, such as that of dcgm-exporter, instead of NVML.

What belongs here: the text format, as far as it is needed, and which of the exporter's names are
which of ours. A page that cannot be fetched in time, or holds none of the names, is blind. So are,
each named: fewer devices than expected, a device that is partitioned (MIG: a page repeats what is
the whole's for each instance, and leaves out what is not), and a value that no device can have:
older releases print a blank as 2^63 less a few, some drivers a number of noise.

Whose page it is: the exporter names a host in a label whose case changed with releases, and where
it runs in a pod the name is the pod's. So the name matters only where a page tells of several.
"""

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
    """Which of our gauges a name of the exporter is: how scaled, how devices make one, and the most
    that a device can say in the exporter's unit.
    """

    metric: str
    scaled: Callable[[float], float]
    whole: Callable[[Sequence[float]], float]
    most: float


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _slowed(reasons: float) -> float:
    """Whether hardware or heat slows a device: not an idle clock, nor a cap on its power."""
    return float(bool(int(reasons) & (0x8 | 0x20 | 0x40 | 0x80)))


_NAMES: Final[Mapping[str, _Name]] = {
    "DCGM_FI_DEV_SM_CLOCK": _Name(SM_CLOCK_MHZ, float, _mean, 10_000),
    "DCGM_FI_DEV_GPU_TEMP": _Name(GPU_TEMP_C, float, max, 200),
    "DCGM_FI_DEV_POWER_USAGE": _Name(GPU_POWER_W, float, _mean, 10_000),
    "DCGM_FI_DEV_GPU_UTIL": _Name(GPU_UTIL, lambda percent: percent / 100, _mean, 100),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": _Name(THROTTLED, _slowed, _mean, 2**32),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": _Name(THROTTLED, _slowed, _mean, 2**32),
}
"""The last two are one: its name changed with DCGM 3.3."""


def gauges_of(page: str, host: str = "", expected: int = 0) -> Reading:
    """Read our gauges off a page: of `host`, if it tells of several, and of `expected` devices."""
    samples = _of_host([each for each in parse(page) if each.name.startswith(_OURS)], host)
    instances = {_device(each) for each in samples if "GPU_I_ID" in each.labels}
    devices = {_device(each) for each in samples}
    blind = {
        f"gpu{number}": "MIG is on: its gauges are not those of the whole device"
        for number in sorted(instances)
    }
    values: dict[str, dict[str, float]] = {}
    for sample in samples:
        known, number = _NAMES.get(sample.name), _device(sample)
        if known is None or number in instances:
            continue
        if not 0 <= sample.value <= known.most:  # nor what is no number
            blind[f"{known.metric}.gpu{number}"] = f"the exporter says {sample.value:g}"
            continue
        values.setdefault(known.metric, {})[number] = known.scaled(sample.value)
    wholes = {known.metric: known.whole for known in _NAMES.values()}
    numbers = {metric: wholes[metric](list(each.values())) for metric, each in values.items()}
    if not numbers:
        blind[SOURCE] = "the page holds no gauge of a whole GPU"
        return Reading(blind=blind)
    if len(devices) < expected:
        blind[SOURCE] = f"{len(devices)} of {expected} devices"
    blind |= dict.fromkeys(sorted(set(wholes) - set(numbers)), "the exporter does not tell it")
    return Reading(numbers, blind)


_OURS: Final = "DCGM_FI_"


def _of_host(samples: Sequence[Sample], host: str) -> list[Sample]:
    """The samples of a host, if they are of several that are told apart."""
    hosts = {_host(each) for each in samples} - {""}
    if not host or len(hosts) < 2:
        return list(samples)
    return [each for each in samples if _host(each) in ("", host)]


def _host(sample: Sample) -> str:
    return sample.labels.get("Hostname") or sample.labels.get("hostname") or ""


def _device(sample: Sample) -> str:
    return sample.labels.get("gpu", "")


class ExporterGauges:
    """Fetches a page. `url` is that of the exporter; empty reads nothing. `expected` is how many
    devices the node should have, if that is known.
    """

    def __init__(
        self, url: str, host: str = "", expected: int = 0, *, deadline_s: float = DEADLINE_S
    ) -> None:
        self._url = url
        self._host = host
        self._expected = expected
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
        return gauges_of(page, self._host, self._expected)
