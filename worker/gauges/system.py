"""What the kernel tells of processors and network ports, from /proc and /sys.

What belongs here: files and their meaning. Counters become rates between two readings, so the first
reading knows only what is no counter. `root` is where the file system is mounted, ``/`` unless a
recorded tree is read.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from statemachine.vitals import CPU_PRESSURE, CPU_STEAL, NIC_ERRORS, NIC_MBPS, THROTTLED
from worker.gauges.reading import Reading

_ERROR_COUNTERS: Final = ("rx_errors", "tx_errors", "rx_crc_errors", "tx_carrier_errors")
_FABRIC_COUNTERS: Final = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "local_link_integrity_errors",
)
_ACTIVE: Final = "4: ACTIVE"


class SystemGauges:
    """Reads the kernel's files. One per process: it remembers the counters of the last reading."""

    def __init__(
        self, root: Path = Path("/"), clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = root
        self._clock_s = clock_s
        self._last: dict[str, tuple[float, float]] = {}

    def read(self) -> Reading:
        """Read everything once; what cannot be read is blind, with the reason."""
        numbers: dict[str, float] = {}
        blind: dict[str, str] = {}
        gauges: dict[str, Callable[[], float | None]] = {
            CPU_PRESSURE: self._pressure,
            CPU_STEAL: self._steal,
            THROTTLED: self._throttled,
            NIC_MBPS: self._rate_mbps,
            NIC_ERRORS: self._errors_per_s,
        }
        for name, read in gauges.items():
            try:
                value = read()
            except (OSError, ValueError, IndexError) as error:
                blind[name] = _why(error)
                continue
            if value is not None:
                numbers[name] = value
        return Reading(numbers, blind)

    # --- processors ---------------------------------------------------------------------------

    def _pressure(self) -> float | None:
        """Share of the time since the last reading in which somebody waited for a processor."""
        for line in (self._root / "proc/pressure/cpu").read_text().splitlines():
            if line.startswith("some "):
                total_us = float(line.rpartition("total=")[2])
                return self._per_second("pressure", total_us / 1e6)
        raise ValueError("no line 'some'")

    def _steal(self) -> float | None:
        words = (self._root / "proc/stat").read_text().splitlines()[0].split()
        ticks = [float(word) for word in words[1:9]]
        stolen, whole = ticks[7], sum(ticks)
        before = self._last.get("steal")
        self._last["steal"] = (whole, stolen)
        if before is None or whole <= before[0]:
            return None
        return (stolen - before[1]) / (whole - before[0])

    def _throttled(self) -> float | None:
        """1 if any processor throttled since the last reading, else 0."""
        counts = [
            float(path.read_text())
            for path in self._root.glob("sys/devices/system/cpu/cpu*/thermal_throttle/*_count")
        ]
        if not counts:
            raise ValueError("no counter of throttling")
        rate = self._per_second("throttled", sum(counts))
        return None if rate is None else float(rate > 0)

    # --- network ports ------------------------------------------------------------------------

    def _rate_mbps(self) -> float | None:
        """The least rate that any port in use has negotiated."""
        rates = [_speed_mbps(port) for port in self._ports()]
        rates += [_fabric_mbps(port) for port in self._fabric_ports()]
        known = [rate for rate in rates if rate > 0]
        if not known:
            raise ValueError("no port says its rate")
        return min(known)

    def _errors_per_s(self) -> float | None:
        counts = [_counted(p / "statistics", _ERROR_COUNTERS) for p in self._ports()]
        counts += [_counted(p / "counters", _FABRIC_COUNTERS) for p in self._fabric_ports()]
        if not counts:
            raise ValueError("no network port")
        return self._per_second("errors", sum(counts))

    def _ports(self) -> Iterator[Path]:
        for port in sorted(self._root.glob("sys/class/net/*")):
            if port.name == "lo":
                continue
            state = port / "operstate"
            if state.exists() and state.read_text().strip() != "down":
                yield port

    def _fabric_ports(self) -> Iterator[Path]:
        for port in sorted(self._root.glob("sys/class/infiniband/*/ports/*")):
            if (port / "state").read_text().strip() == _ACTIVE:
                yield port

    def _per_second(self, name: str, total: float) -> float | None:
        """How fast a counter grew since the last reading; None if that cannot be told."""
        now_s, before = self._clock_s(), self._last.get(name)
        self._last[name] = (now_s, total)
        if before is None or now_s <= before[0] or total < before[1]:
            return None
        return (total - before[1]) / (now_s - before[0])


def _speed_mbps(port: Path) -> float:
    try:
        return float((port / "speed").read_text())
    except OSError:  # a port without a wire has no speed, and says so by an error
        return 0.0


def _fabric_mbps(port: Path) -> float:
    """``400 Gb/sec (4X NDR)`` is 400,000."""
    return float((port / "rate").read_text().split()[0]) * 1000


def _counted(folder: Path, names: tuple[str, ...]) -> float:
    return sum(float((folder / name).read_text()) for name in names if (folder / name).exists())


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return str(error)
