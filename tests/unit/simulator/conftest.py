"""Small scenarios that run in milliseconds, and how one is run."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from simulator.faults import draw
from simulator.meter import Totals
from simulator.parts import STRATEGIES
from simulator.restarts import Restarts
from simulator.scenario import FaultsTable, FleetTable, JobTable, RepairTable, Scenario
from simulator.world import World

Run = Callable[..., Totals]


@pytest.fixture
def small() -> Scenario:
    """Eight machines, a loss every two hours, a machine always at hand."""
    return Scenario(
        name="small",
        days=2.0,
        job=JobTable(axes={"pp": 2, "dp": 4, "tp": 8}),
        fleet=FleetTable(standbys=2, spares=40),
        faults=FaultsTable(per_1000_node_days=1500.0, planned_per_unplanned=0.2),
        repair=RepairTable(kind="fixed", mean_h=2.0),
    )


@pytest.fixture
def large(small: Scenario) -> Scenario:
    """64K GPUs for a day."""
    return replace(
        small,
        days=1.0,
        job=JobTable(axes={"pp": 16, "cp": 8, "dp": 64, "tp": 8}),
        fleet=FleetTable(standbys=8),
        faults=FaultsTable(),
    )


@pytest.fixture
def run() -> Run:
    """Run one strategy once."""

    def once(scenario: Scenario, strategy: str, replication: int = 0) -> Totals:
        recipe = STRATEGIES[strategy]
        kind = World if recipe.family == "swap" else Restarts
        return kind(scenario, recipe, draw(scenario, replication), replication).run()

    return once
