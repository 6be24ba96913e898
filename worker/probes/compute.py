"""Sustained matrix multiplication on the CPU, one thread: how fast this node computes."""

from typing import Final

import numpy as np

from worker.faults import SlowCompute
from worker.probes.pacing import FULL, Pace
from worker.probes.sampling import SAMPLES_ALONE, rates, samples_s

SIZE: Final = 256
"""Rows of the square matrices: three of them fit into a core's own cache."""

REPEATS: Final = 8
"""Products per sample: about 3 ms, shorter than a slice of the scheduler."""


def measure(budget_s: float, slow: SlowCompute, *, pace: Pace = FULL) -> dict[str, float]:
    """Multiply for `budget_s` seconds; ``gemm_gflops_*`` in 10^9 float32 operations per second."""
    chance = np.random.default_rng(0)
    left, right = (chance.random((SIZE, SIZE), dtype=np.float32) for _ in range(2))
    out = np.empty((SIZE, SIZE), dtype=np.float32)

    def work() -> None:
        for _ in range(REPEATS):
            np.matmul(left, right, out=out)

    taken_s = samples_s(work, budget_s, slow, at_least=SAMPLES_ALONE, pace=pace)
    found = rates("gemm_gflops", 2 * SIZE**3 * REPEATS / 1e9, taken_s)
    return found | {"gemm_samples": float(len(taken_s))}
