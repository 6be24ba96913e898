"""GPU gauges by NVML, in a child with a deadline: a wedged driver hangs the child, and nobody else.

What belongs here: the child (`python -m worker.gauges.nvml`), which answers each line on its input
with one line of JSON, and the parent's end of it. A child that does not answer in time is killed,
and the source is blind until one does again. Reading is off while no GPU is expected.

Blind, each named: no library, no driver, fewer devices than expected, a device that is partitioned
(MIG: utilisation and throttling are then not those of the whole), a gauge that a device lacks.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from statemachine.vitals import (
    GPU_POWER_W,
    GPU_TEMP_C,
    GPU_UTIL,
    SM_CLOCK_MHZ,
    THROTTLED,
)
from worker.gauges.reading import Reading

SOURCE: Final = "nvml"
DEADLINE_S: Final = 3.0
"""How long a reading of all devices may take."""

RESTART_AFTER_S: Final = 60.0
"""Pause after a child that hung: each one may leave a process that cannot be killed."""

_SLOWDOWNS: Final = 0x8 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, software thermal, hardware thermal, power brake: not the idle or power caps
that a healthy device under load reports as well."""


class NvmlGauges:
    """The parent's end. `expected` is how many devices the node should have; 0 reads nothing."""

    def __init__(
        self,
        expected: int,
        *,
        deadline_s: float = DEADLINE_S,
        command: Sequence[str] = (),
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected = expected
        self._deadline_s = deadline_s
        self._command = tuple(command) or (sys.executable, "-m", "worker.gauges.nvml")
        self._clock_s = clock_s
        self._child: subprocess.Popen[bytes] | None = None
        self._not_before_s = 0.0
        self._why = ""

    def read(self) -> Reading:
        """Ask the child; blind with the reason if it cannot tell, or does not in time."""
        if not self._expected:
            return Reading()
        if self._child is None and self._clock_s() < self._not_before_s:
            return Reading(blind={SOURCE: self._why})
        try:
            found = self._asked()
        except (OSError, ValueError) as error:
            self._give_up(str(error))
            return Reading(blind={SOURCE: self._why})
        blind = {str(name): str(why) for name, why in found["blind"].items()}
        if SOURCE not in blind and found["devices"] < self._expected:
            blind[SOURCE] = f"{found['devices']} of {self._expected} devices"
        return Reading({str(n): float(v) for n, v in found["numbers"].items()}, blind)

    def close(self) -> None:
        """End the child."""
        if self._child is None:
            return
        child, self._child = self._child, None
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):  # inside the driver not even a kill helps
            child.wait(1)

    def _asked(self) -> Mapping[str, Any]:
        if self._child is None:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None
            )
        assert self._child.stdin is not None
        self._child.stdin.write(b"read\n")
        self._child.stdin.flush()
        found = json.loads(self._line())
        if not isinstance(found, dict) or not {"numbers", "blind", "devices"} <= set(found):
            raise ValueError(f"the NVML child said {str(found)[:80]!r}")
        return found

    def _line(self) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        fd = self._child.stdout.fileno()
        ends_at_s = time.monotonic() + self._deadline_s
        line = bytearray()
        while not line.endswith(b"\n"):
            left_s = ends_at_s - time.monotonic()
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                raise OSError(f"no answer from NVML within {self._deadline_s:g} s")
            part = os.read(fd, 65536)
            if not part:
                raise OSError("the NVML child ended")
            line += part
        return bytes(line)

    def _give_up(self, why: str) -> None:
        self.close()
        self._why = why
        self._not_before_s = self._clock_s() + RESTART_AFTER_S


# --- the child --------------------------------------------------------------------------------


def read_devices(nvml: Any) -> dict[str, Any]:
    """One reading of all devices; `nvml` is the module `pynvml`, initialised."""
    numbers: dict[str, list[float]] = {}
    blind: dict[str, str] = {}
    answered = 0
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            blind[f"gpu{index}"] = str(error)
            continue
        answered += 1
        if _is_partitioned(nvml, device):
            blind[f"gpu{index}"] = "MIG is on: its gauges are not those of the whole device"
            continue
        for name, read in _GAUGES.items():
            try:
                numbers.setdefault(name, []).append(read(nvml, device))
            except nvml.NVMLError as error:
                blind[f"{name}.gpu{index}"] = str(error)
    whole = {name: _WHOLE.get(name, _mean)(found) for name, found in numbers.items() if found}
    return {"devices": answered, "numbers": whole, "blind": blind}


def _is_partitioned(nvml: Any, device: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(device)
    except nvml.NVMLError:  # too old for it, or not a kind that can
        return False
    return bool(current)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_GAUGES: Final[Mapping[str, Callable[[Any, Any], float]]] = {
    SM_CLOCK_MHZ: lambda nvml, device: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
    GPU_TEMP_C: lambda nvml, device: nvml.nvmlDeviceGetTemperature(
        device, nvml.NVML_TEMPERATURE_GPU
    ),
    GPU_POWER_W: lambda nvml, device: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
    GPU_UTIL: lambda nvml, device: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
    THROTTLED: lambda nvml, device: float(
        bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device) & _SLOWDOWNS)
    ),
}
_WHOLE: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {GPU_TEMP_C: max}
"""How devices make one number: the hottest of all, and the mean of everything else."""


def _answers() -> None:
    """Answer each line until the input ends."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is blind
        fault = {"devices": 0, "numbers": {}, "blind": {SOURCE: str(error) or repr(error)}}
        for _ in sys.stdin:
            print(json.dumps(fault), flush=True)  # noqa: T201 - the parent reads it
        return
    for _ in sys.stdin:
        try:
            found = read_devices(nvml)
        except nvml.NVMLError as error:
            found = {"devices": 0, "numbers": {}, "blind": {SOURCE: str(error)}}
        print(json.dumps(found), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    _answers()
