"""One published number beside the simulated one, and the scenarios that several figures share."""

from msgspec import Struct

from simulator.scenario import CostTable, FaultsTable, FleetTable, JobTable, RepairTable, Scenario
from simulator.stats import Estimate


class Figure(Struct, frozen=True, kw_only=True):
    """One published number, or a bar without one, and what the simulator gives."""

    name: str
    published: float | None
    unit: str
    simulated: Estimate
    kind: str
    """``fitted`` or ``predicted``."""
    inputs: str
    source: str
    note: str = ""

    @property
    def error(self) -> float | None:
        """Relative error; None where no number is published."""
        return self.simulated.mean / self.published - 1 if self.published else None


def off(row: Figure, limit: float) -> bool:
    """Tell whether a row misses what is published by more than a share."""
    return row.error is not None and abs(row.error) > limit


def exactly(value: float) -> Estimate:
    """A value that no chance went into."""
    return Estimate(mean=value, half=0.0, count=1)


def difference(one: Estimate, other: Estimate) -> Estimate:
    """The difference of two independent estimates."""
    half = (one.half**2 + other.half**2) ** 0.5
    return Estimate(mean=one.mean - other.mean, half=half, count=one.count)


def axes_of(gpus: int) -> dict[str, int]:
    """A layout for a scale: eight stages, tensors within a machine, at least two replicas."""
    replicas = min(64, max(2, gpus // 64))
    stages = min(8, gpus // (8 * replicas))
    rest = gpus // (8 * replicas * stages)
    return {"pp": stages, **({"cp": rest} if rest > 1 else {}), "dp": replicas, "tp": 8}


def quiet(gpus: int, days: float = 7.0, **faults: float) -> Scenario:
    """The paper's mode: no detection, no lost work, no stalls, instant localisation."""
    return Scenario(
        days=days,
        job=JobTable(
            axes=axes_of(gpus), step_s=1.0, checkpoint_stall_s=0.0, checkpoint_interval_s=1.0
        ),
        faults=FaultsTable(**faults),  # type: ignore[arg-type]
        costs=CostTable(infra=False),
        repair=RepairTable(kind="fixed", mean_h=24.0),
        fleet=FleetTable(spares=max(64, gpus // 16)),
    )
