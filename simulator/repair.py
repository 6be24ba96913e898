"""How long a machine is away and whether it comes back cured, from the marks of its fault.

No draw is made here: the marks are the fault's, so a repair is the same under every strategy.
"""

from functools import lru_cache
from math import exp, log
from pathlib import Path
from statistics import NormalDist

from msgspec import Struct

from simulator.faults import Fault
from simulator.scenario import RepairTable
from simulator.stats import quantiles

_NORMAL = NormalDist()


class Repair(Struct, frozen=True):
    """Hours away; `cured` is False when the fault is still there (a silent failure)."""

    hours: float
    cured: bool
    manual: bool


def repair_of(table: RepairTable, fault: Fault) -> Repair:
    """The repair that this fault gets."""
    length, branch, silent = fault.marks
    manual = branch < table.manual_share
    chance_silent = table.manual_silent if manual else table.auto_silent
    cured = silent >= chance_silent
    if fault.repair_h >= 0:
        return Repair(fault.repair_h, cured, manual)
    hours = _hours(table, length, manual=manual)
    if manual and table.manual_after_auto:
        # Given that it is manual, the mark that said so is uniform below the share.
        hours += -table.auto_h * log(1 - branch / table.manual_share)
    return Repair(hours, cured, manual)


def _hours(table: RepairTable, length: float, *, manual: bool) -> float:
    match table.kind:
        case "fixed":
            return table.mean_h
        case "exponential":
            return -table.mean_h * log(1 - length)
        case "lognormal":
            z_max = (log(table.max_h) - table.log_mean) / table.log_sigma
            share = min(max(length * _NORMAL.cdf(z_max), 1e-12), 1 - 1e-12)
            return exp(table.log_mean + table.log_sigma * _NORMAL.inv_cdf(share))
        case "resample":
            return quantiles(_samples(table), [length])[0]
        case _:  # two branches, each exponential
            return -(table.manual_h if manual else table.auto_h) * log(1 - length)


def _samples(table: RepairTable) -> tuple[float, ...]:
    return table.samples_h or _of_trace(table.trace)


@lru_cache(maxsize=4)
def _of_trace(path: str) -> tuple[float, ...]:
    from simulator.traces import read_trace

    return tuple(sorted(entry.hours for entry in read_trace(Path(path)).entries))
