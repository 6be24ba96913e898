"""Summing with a partner, large and small: sending, receiving and computing at once."""

import time
from typing import Final

from worker.faults import SlowCompute, SlowKind
from worker.probes.pacing import FULL, Pace
from worker.probes.sampling import Own, durations, rates, samples_s
from worker.probes.wire import Ends

RATE_BYTES: Final = 1 << 20
"""Added up per sample: a millisecond or two, so that some samples are undisturbed on a machine that
others want too; of 4 MiB hardly one was."""

LATENCY_BYTES: Final = 64
_OWN: Final[Own] = {"kind": SlowKind.LINK, "own_s": time.thread_time, "together": True}


def measure(
    budget_s: float, slow: SlowCompute, ends: Ends, *, pace: Pace = FULL
) -> dict[str, float]:
    """Add up float32 vectors with the partner for `budget_s` seconds.

    ``collective_mbps_*`` in 10^6 bits of vector per second, 1 MiB at a time;
    ``collective_latency_us_*`` in microseconds for 64 bytes.
    """
    share_s = budget_s / 2
    large_s = samples_s(lambda: ends.sum(RATE_BYTES), share_s, slow, **_OWN, pace=pace)
    small_s = samples_s(lambda: ends.sum(LATENCY_BYTES), share_s, slow, **_OWN, pace=pace)
    return {
        **rates("collective_mbps", 8 * RATE_BYTES / 1e6, large_s),
        **durations("collective_latency_us", 1e6, small_s),
        "collective_samples": float(len(large_s) + len(small_s)),
    }
