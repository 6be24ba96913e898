"""Rate and latency of the connection to a partner, in both directions."""

import time
from typing import Final

from worker.faults import SlowCompute, SlowKind
from worker.probes.pacing import FULL, Pace
from worker.probes.sampling import Own, durations, rates, samples_s
from worker.probes.wire import Ends

RATE_BYTES: Final = 1 << 20
LATENCY_BYTES: Final = 64
_OWN: Final[Own] = {"kind": SlowKind.LINK, "own_s": time.thread_time, "together": True}


def measure(
    budget_s: float, slow: SlowCompute, ends: Ends, *, pace: Pace = FULL
) -> dict[str, float]:
    """Send and receive for `budget_s` seconds.

    ``link_mbps_out_*`` and ``link_mbps_in_*`` in 10^6 bits per second, one MiB at a time;
    ``link_latency_us_*`` in microseconds there and back.
    """
    share_s = budget_s / 3
    out_s = samples_s(lambda: ends.out(RATE_BYTES), share_s, slow, **_OWN, pace=pace)
    in_s = samples_s(lambda: ends.back(RATE_BYTES), share_s, slow, **_OWN, pace=pace)
    trip_s = samples_s(lambda: ends.out(LATENCY_BYTES), share_s, slow, **_OWN, pace=pace)
    return {
        **rates("link_mbps_out", 8 * RATE_BYTES / 1e6, out_s),
        **rates("link_mbps_in", 8 * RATE_BYTES / 1e6, in_s),
        **durations("link_latency_us", 1e6, trip_s),
        "link_samples": float(len(out_s) + len(in_s) + len(trip_s)),
    }
