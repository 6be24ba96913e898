"""How many standbys, and which checkpoint interval, for a target: a curve and its cheapest point.

Standbys are tried upwards on common traces; the interval is Young and Daly's optimum for the
scenario's rate, which is exact enough that trying neighbours changes nothing in the third digit.
"""

from collections.abc import Sequence
from math import sqrt

from msgspec import Struct
from msgspec.structs import replace

from simulator.compare import Crew, Progress, Sample
from simulator.faults import hard_rate_s
from simulator.scenario import Scenario
from simulator.stats import Estimate, estimate

STANDBYS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class Point(Struct, frozen=True, kw_only=True):
    """One number of standbys."""

    standbys: int
    ettr: Estimate
    idle_gpu_h: float
    wasted_gpu_h: float
    cold: float


class Plan(Struct, frozen=True, kw_only=True):
    """The curve, the first point whose interval lies above the target, and what it costs."""

    target: float
    standbys: int | None
    checkpoint_interval_s: float
    idle_gpu_h: float
    idle_usd: float
    curve: tuple[Point, ...]
    reason: str
    finished: bool = True
    """False after Ctrl-C: the curve is what was done by then."""


def plan(
    scenario: Scenario,
    target: float,
    workers: int = 1,
    progress: Progress | None = None,
    counts: Sequence[int] = STANDBYS,
) -> Plan:
    """Walk the curve until it is flat or well above the target."""
    # One size of fleet for all points, so that all meet the same faults.
    nodes = scenario.machines + max(counts)
    scenario = replace(scenario, fleet=replace(scenario.fleet, nodes=nodes))
    curve: list[Point] = []
    finished = True
    try:
        with Crew(workers) as crew:
            for count in counts:
                curve.append(_point(scenario, count, crew))
                if progress is not None:
                    progress(len(curve), len(counts))
                if _is_enough(curve, target):
                    break
    except KeyboardInterrupt:
        if not curve:
            raise
        finished = False
    chosen = next((point for point in curve if point.ettr.low >= target), None)
    best = chosen or max(curve, key=lambda each: each.ettr.mean)
    if chosen is not None:
        reason = f"{chosen.standbys} standbys are the fewest whose interval lies above {target}"
    else:
        reason = f"no number of standbys reaches {target}: {best.ettr.mean:.4f} at best"
    stall_s, rate = scenario.job.checkpoint_stall_s, hard_rate_s(scenario) * scenario.slots
    return Plan(
        target=target,
        standbys=chosen.standbys if chosen is not None else None,
        checkpoint_interval_s=sqrt(2 * stall_s / rate) if rate and stall_s else 0.0,
        idle_gpu_h=best.idle_gpu_h,
        idle_usd=best.idle_gpu_h * scenario.human.gpu_hour_usd,
        curve=tuple(curve),
        reason=reason if finished else f"interrupted; {reason}",
        finished=finished,
    )


def _is_enough(curve: Sequence[Point], target: float) -> bool:
    """Whether the target is reached, and one point more is known; or the curve is flat."""
    if any(point.ettr.low >= target for point in curve[:-1]):
        return True
    return len(curve) > 3 and curve[-1].ettr.mean - curve[-3].ettr.mean < 1e-4


def _point(scenario: Scenario, count: int, crew: Crew) -> Point:
    changed = replace(scenario, fleet=replace(scenario.fleet, standbys=count))
    strategy = "standby-swap" if count else "swap-no-standby"
    tasks = [(changed, (strategy,), number) for number in range(scenario.replications)]
    done: dict[int, list[Sample]] = dict(crew.spread(tasks))
    found = [done[index][0] for index in sorted(done)]
    return Point(
        standbys=count,
        ettr=estimate([sample.ettr for sample in found]),
        idle_gpu_h=sum(sample.idle_gpu_h for sample in found) / len(found),
        wasted_gpu_h=sum(sample.wasted_gpu_h for sample in found) / len(found),
        cold=sum(sample.cold for sample in found) / len(found),
    )
