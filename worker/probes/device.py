"""GPUs of this node: sustained multiplication on each, their clocks after it, and every copy path.

What belongs here: work on devices, timed until it is done. Where there is no GPU the probe fails,
which is a failure to measure and never a pass. It runs in a child: a broken device may hang it.
"""

from collections.abc import Sequence
from typing import Final

import torch

from worker.faults import SlowCompute, SlowKind
from worker.gauges.nvml import NvmlGauges
from worker.probes.sampling import rates, samples_s

GPU_SIZE: Final = 4096
"""Rows of the square matrices on a GPU: 0.14 tera-operations, a fraction of a millisecond."""

CPU_SIZE: Final = 256
"""The same where the work is tried out on the CPU."""

COPY_BYTES: Final = 64 << 20
"""Copied per sample: enough to be far above what starting a copy takes."""


def measure(
    budget_s: float, slow: SlowCompute, names: Sequence[str] | None = None
) -> dict[str, float]:
    """Measure every device for about `budget_s` seconds in all; by the number of the device.

    ``device_gflops_{n}_*`` in 10^9 operations per second, ``device_clock_mhz_best`` of all devices
    after the load, ``copy_gbps_h2d_{n}_*`` and ``copy_gbps_d2h_{n}_*`` in 10^9 bytes per second
    between host and device, ``copy_gbps_{n}_{m}_*`` from one device to another, all pairs.

    Raises:
        OSError: there is no GPU.
    """
    devices = [torch.device(name) for name in (names if names is not None else _gpus())]
    share_s = budget_s / max(1, len(devices) * (len(devices) + 2))
    found = {"device_count": float(len(devices))}
    for number, device in enumerate(devices):
        found |= _multiplied(f"device_gflops_{number}", device, share_s, slow)
    clocks = NvmlGauges(len(devices) if names is None else 0)
    found |= {f"device_{n}_best": v for n, v in clocks.read().numbers.items() if n in _AFTER_LOAD}
    clocks.close()
    host = torch.device("cpu")
    for number, device in enumerate(devices):
        found |= _copied(f"copy_gbps_h2d_{number}", host, device, share_s, slow)
        found |= _copied(f"copy_gbps_d2h_{number}", device, host, share_s, slow)
        for other, there in enumerate(devices):
            if other != number:
                found |= _copied(f"copy_gbps_{number}_{other}", device, there, share_s, slow)
    return found


_AFTER_LOAD: Final = ("sm_clock_mhz",)


def _gpus() -> list[str]:
    if not torch.cuda.is_available():
        raise OSError("no GPU that torch can use")
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]


def _done(*devices: torch.device) -> None:
    """Wait until devices have done what they were given: work on them is asynchronous."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _multiplied(
    name: str, device: torch.device, share_s: float, slow: SlowCompute
) -> dict[str, float]:
    on_gpu = device.type == "cuda"
    size, kind = (GPU_SIZE, torch.bfloat16) if on_gpu else (CPU_SIZE, torch.float32)
    left, right = (torch.rand(size, size, device=device).to(kind) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=kind)

    def work() -> None:
        torch.matmul(left, right, out=out)
        _done(device)

    taken_s = samples_s(work, share_s, slow, kind=SlowKind.COMPUTE)
    return rates(name, 2 * size**3 / 1e9, taken_s)


def _copied(
    name: str, source: torch.device, target: torch.device, share_s: float, slow: SlowCompute
) -> dict[str, float]:
    pinned = "cuda" in (source.type, target.type)
    here, there = (
        torch.ones(COPY_BYTES, dtype=torch.uint8, pin_memory=pinned)
        if end.type == "cpu"
        else torch.ones(COPY_BYTES, dtype=torch.uint8, device=end)
        for end in (source, target)
    )

    def copy() -> None:
        there.copy_(here, non_blocking=True)
        _done(source, target)

    taken_s = samples_s(copy, share_s, slow, kind=SlowKind.MEMORY)
    return rates(name, COPY_BYTES / 1e9, taken_s)
