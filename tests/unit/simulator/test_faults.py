"""The trace of a replication: rates, common random numbers, causes in common."""

import math
from itertools import pairwise

from msgspec.structs import replace

from simulator.faults import Kind, draw
from simulator.repair import repair_of
from simulator.scenario import FaultsTable, GreyTable, RepairTable, Scenario


def hard(scenario: Scenario, replication: int = 0) -> int:
    """Number of hard faults."""
    return sum(1 for fault in draw(scenario, replication).faults if fault.kind is Kind.HARD)


def test_the_rate_is_the_one_asked_for(large: Scenario) -> None:
    """Faults per node-day are within four standard deviations of the scenario's rate."""
    long = replace(large, days=30.0)
    expected = 6.5 / 1000 * long.machines * 30

    assert abs(hard(long) - expected) < 4 * math.sqrt(expected)


def test_lemons_fail_more_often(large: Scenario) -> None:
    """A share of lemons at a factor raises the rate by share times (factor - 1)."""
    faults = replace(large.faults, lemon_share=0.15, lemon_factor=5.0)
    lemons = replace(large, days=30.0, faults=faults)
    expected = 6.5 / 1000 * lemons.machines * 30 * 1.6

    assert abs(hard(lemons) - expected) < 4 * math.sqrt(expected)


def test_bursts_keep_the_rate_and_cluster(large: Scenario) -> None:
    """With bursts the gaps vary more than those of memoryless faults, at the same rate."""
    burst = replace(large, days=30.0, faults=FaultsTable(burst_share=0.5))
    times = [f.at_s for f in draw(burst, 0).faults if f.kind is Kind.HARD]
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean

    assert variation > 1.15, variation
    assert 0.8 < len(times) / (6.5 / 1000 * burst.machines * 30) < 1.2


def test_one_kind_of_fault_leaves_the_others_alone(small: Scenario) -> None:
    """Turning grey machines on does not move a single hard fault: streams go by name."""
    with_grey = replace(small, grey=GreyTable(per_1000_node_days=500.0))
    before = [f for f in draw(small, 3).faults if f.kind is Kind.HARD]
    after = [f for f in draw(with_grey, 3).faults if f.kind is Kind.HARD]

    assert before == after
    assert any(f.kind is Kind.GREY for f in draw(with_grey, 3).faults)


def test_a_rack_fails_at_once(small: Scenario) -> None:
    """Machines of one rack break at the same instant."""
    racks = replace(
        small,
        days=60.0,
        fleet=replace(small.fleet, rack_nodes=4),
        faults=FaultsTable(per_1000_node_days=0.0, rack_per_1000_rack_days=50.0),
    )
    by_time: dict[float, set[int]] = {}
    for fault in draw(racks, 0).faults:
        by_time.setdefault(fault.at_s, set()).add(fault.machine)

    assert by_time
    assert all({m // 4 for m in group} == {min(group) // 4} for group in by_time.values())
    assert {len(group) for group in by_time.values()} <= {4, racks.machines % 4}


def test_a_truncated_lognormal_stays_under_its_limit(small: Scenario) -> None:
    """Repairs never take longer than `max_h`, and their median is that of the distribution."""
    table = RepairTable(kind="lognormal")
    long = replace(small, days=60.0)
    hours = sorted(repair_of(table, f).hours for f in draw(long, 0).faults if f.kind is Kind.HARD)

    assert hours[-1] <= table.max_h
    assert 0.7 < hours[len(hours) // 2] / math.exp(2.71) < 1.4
