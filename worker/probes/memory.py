"""Copying more than the caches hold: how fast this node's memory is."""

from typing import Final

import numpy as np

from worker.faults import SlowCompute, SlowKind
from worker.probes.pacing import FULL, Pace
from worker.probes.sampling import SAMPLES_ALONE, rates, samples_s

SPAN_BYTES: Final = 16 << 20
"""Copied per sample: about a millisecond. Memory is shared by all cores, and the best of shorter
samples would tell how lucky one of them was: 4 MiB spread by 12 % here, 16 MiB by 7 %."""

BEST_OF: Final = 0.1
"""The rate that the best tenth reaches is what is compared: from one measurement to the next it
varies half as much as that of the one best sample, which had the memory to itself by luck."""

SPANS: Final = 4
"""Spans visited in turn, read first and written half a turn later, so that one is out of the caches
when it comes again: 64 MiB went through them meanwhile. More would cost a node in duty the time to
touch them for the first time, which was most of what a probe took.
"""


def measure(budget_s: float, slow: SlowCompute, *, pace: Pace = FULL) -> dict[str, float]:
    """Copy for `budget_s` seconds; ``memory_gbps_*`` in 10^9 bytes read or written per second.

    Takes 64 MiB of memory. Each byte copied is one read and one written.
    """
    spans = np.ones((SPANS, SPAN_BYTES), dtype=np.uint8)
    at = 0

    def work() -> None:
        nonlocal at
        at = (at + 1) % SPANS
        np.copyto(spans[(at + SPANS // 2) % SPANS], spans[at])

    taken_s = samples_s(
        work, budget_s, slow, kind=SlowKind.MEMORY, at_least=SAMPLES_ALONE, pace=pace
    )
    found = rates("memory_gbps", 2 * SPAN_BYTES / 1e9, taken_s, best_of=BEST_OF)
    return found | {"memory_samples": float(len(taken_s))}
