"""All gauges of a node, read every few seconds beside the training, given out per window.

What belongs here: when to read, and handing a window over. It runs in the agent, so that neither a
slow file nor a slow driver is ever in a step's way; reading happens on a thread of its own.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import anyio
from msgspec.structs import replace

from statemachine.vitals import Vitals
from worker.gauges.exporter import ExporterGauges
from worker.gauges.nvml import NvmlGauges
from worker.gauges.reading import Reading, merged
from worker.gauges.system import SystemGauges

log = logging.getLogger("worker.agent")

GPUS_VARIABLE: Final = "CHANGEOVER_GPUS"
"""Environment variable: how many GPUs this node should have; none are looked for unless set."""

EXPORTER_VARIABLE: Final = "CHANGEOVER_GPU_EXPORTER"
"""Environment variable: the address of a dcgm-exporter's page, read instead of NVML."""

INTERVAL_S: Final = 5.0
_READINGS_MAX: Final = 128


class Source(Protocol):
    """Something to read gauges off."""

    def read(self) -> Reading:
        """Read once; never raises, and returns within its deadline."""
        ...


class Sampler:
    """Reads `sources` every `interval_s` seconds; `with_gauges` adds what they said to a window."""

    def __init__(self, sources: Sequence[Source], interval_s: float = INTERVAL_S) -> None:
        self._sources = sources
        self._interval_s = interval_s
        self._readings: list[Reading] = []
        self._told: set[str] = set()

    @classmethod
    def from_environment(cls) -> "Sampler":
        """The gauges of this machine: the kernel's, and those of GPUs where they are expected."""
        exporter = os.environ.get(EXPORTER_VARIABLE, "")
        expected = os.environ.get(GPUS_VARIABLE, "0")
        gpus = int(expected) if expected.isdigit() else 0
        page = ExporterGauges(exporter, os.uname().nodename, gpus)
        return cls([SystemGauges(), NvmlGauges(0 if exporter else gpus), page])

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                await anyio.to_thread.run_sync(self.read_once, abandon_on_cancel=True)
                await anyio.sleep(self._interval_s)
        finally:
            for source in self._sources:
                close: Callable[[], None] | None = getattr(source, "close", None)
                if close is not None:
                    close()

    def read_once(self) -> None:
        """Read every source once."""
        for source in self._sources:
            reading = source.read()
            self._readings = [*self._readings[1 - _READINGS_MAX :], reading]
            for name, why in reading.blind.items():
                if name not in self._told:
                    self._told.add(name)
                    log.info("vitals: %s is blind: %s", name, why)

    def with_gauges(self, vitals: Vitals) -> Vitals:
        """A window with the gauges read since the last one; what it measured itself stays."""
        readings, self._readings = self._readings, []
        metrics, blind = merged(readings)
        return replace(
            vitals,
            metrics=metrics | vitals.metrics,
            blind=tuple(sorted({*vitals.blind, *(f"{n}: {why}" for n, why in blind.items())})),
        )
