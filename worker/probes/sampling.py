"""How a probe measures: many short samples within a budget, each slowed like all other work here.

Rules of this file: clocks and statistics. What is done in a sample is the probe's affair.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final, TypedDict

from worker.faults import SlowCompute, SlowKind
from worker.probes.pacing import BURST_S, FULL, Pace

SAMPLES_MIN: Final = 5
"""Samples taken even when the budget is used up before."""

SAMPLES_ALONE: Final = 50
"""The same for work that needs nobody else: on a busy machine few samples are undisturbed, and the
best of too few says how busy it was."""


SAMPLES_SHARED: Final = 25
"""The same where rests between samples make each take long: they begin undisturbed more often."""


class Own(TypedDict):
    """What of a sample is the node's own part: of which kind, by which clock; whether another
    process works in it as well.
    """

    kind: SlowKind
    own_s: Callable[[], float]
    together: bool


def samples_s(
    work: Callable[[], object],
    budget_s: float,
    slow: SlowCompute,
    *,
    kind: SlowKind = SlowKind.COMPUTE,
    own_s: Callable[[], float] = time.perf_counter,
    together: bool = False,
    at_least: int = SAMPLES_MIN,
    pace: Pace = FULL,
) -> list[float]:
    """Do `work` again and again for `budget_s` seconds; how long each time took.

    The first, cold time does not count. `own_s` is the clock of the node's own part in the work: an
    injected slowdown of this `kind` stretches that part, and not the time that a partner took.
    A sample is paid for with a rest, where `pace` asks for it: with processor time of this process,
    or, where another works in it as well (`together`), with all the time that it took.
    """
    work()
    taken: list[float] = []
    ends_at = time.perf_counter() + budget_s
    at_least = min(at_least, SAMPLES_SHARED) if pace.is_shared else at_least
    while len(taken) < at_least or time.perf_counter() < ends_at:
        with pace.sample():
            own_before_s, began_s = own_s(), time.perf_counter()
            work()
            slow.burn(own_s() - own_before_s, kind)
            taken.append(time.perf_counter() - began_s)
        pace.rest(taken[-1] if together else 0.0, burst_s=BURST_S)
    return taken


def rates(
    name: str, amount: float, taken_s: Sequence[float], *, best_of: float = 0.0
) -> dict[str, float]:
    """`amount` per second as ``{name}_best``, ``_median`` and ``_cv``; higher is better.

    The best is what that share of the samples reaches: 0, the one best sample. Where what is
    measured is shared with others, the very best tells how lucky a sample was.
    """
    values = sorted((amount / each for each in taken_s), reverse=True)
    return _summary(name, values, values[int(best_of * (len(values) - 1))])


def durations(name: str, per_second: float, taken_s: Sequence[float]) -> dict[str, float]:
    """Durations in 1/`per_second` as ``{name}_best``, ``_median`` and ``_cv``; lower is better."""
    values = [per_second * each for each in taken_s]
    return _summary(name, values, min(values))


def _summary(name: str, values: Sequence[float], best: float) -> dict[str, float]:
    return {
        f"{name}_best": best,
        f"{name}_median": statistics.median(values),
        f"{name}_cv": statistics.pstdev(values) / statistics.fmean(values),
    }
