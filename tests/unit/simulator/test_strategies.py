"""Strategies against a renewal argument, and against each other on the same faults."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from simulator.closed_form import ettr
from simulator.compare import compare
from simulator.meter import Totals, pace
from simulator.parts import DEFAULT, STRATEGIES, costs_of
from simulator.scenario import CostTable, GreyTable, Scenario
from simulator.scenario_file import load

Run = Callable[..., Totals]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_renewal_argument_agrees(small: Scenario, strategy: str) -> None:
    """The closed form lies within the interval of the simulated ETTR, widened by half a percent."""
    rare = replace(
        small,
        days=10.0,
        replications=12,
        faults=replace(small.faults, per_1000_node_days=300.0),
    )
    row = compare(rare, [strategy]).rows[0]
    expected = ettr(rare, STRATEGIES[strategy])

    assert expected is not None
    assert row.ettr.holds(expected, slack=0.005), (row.ettr, expected)


def test_common_random_numbers_narrow_a_difference(small: Scenario) -> None:
    """The pairwise interval of a difference is narrower than that of the strategies themselves."""
    found = compare(replace(small, replications=8), ["checkpoint-restart", "hot-spares"])

    assert found.rows[1].difference.half < found.rows[1].ettr.half


def test_every_part_is_worth_something(large: Scenario, run: Run) -> None:
    """Each of the parts that is taken out lowers the ETTR on the same faults."""
    whole = run(large, "standby-swap").ettr()
    for name in ("swap-no-standby", "swap-no-warmup", "swap-no-delta", "swap-no-direct"):
        assert run(large, name).ettr() < whole, name


def test_the_default_comparison_runs_all(small: Scenario) -> None:
    """Every strategy of the default comparison loses the same machines to hard faults."""
    found = compare(replace(small, replications=2, days=0.5), DEFAULT)

    assert [row.strategy for row in found.rows] == list(DEFAULT)
    assert all(0 < row.ettr.mean <= 1 for row in found.rows)


def test_the_breakdown_adds_up(large: Scenario) -> None:
    """Fig 15's bars: 221 s of restart, 123 by migration, 79 with the delta, 16 with everything."""
    fig15 = replace(large, costs=CostTable(model="trainmover-fig15", infra=False))
    pause = {name: costs_of(fig15, STRATEGIES[name]).pause_planned_s for name in STRATEGIES}

    assert costs_of(fig15, STRATEGIES["checkpoint-restart"]).restart_s == pytest.approx(221)
    assert pause["swap-migration"] == pytest.approx(123)
    assert pause["swap-no-warmup"] == pytest.approx(79)
    assert pause["standby-swap"] == pytest.approx(16)


def test_rescheduling_is_a_switch(large: Scenario) -> None:
    """The paper's two minutes count or not, as the scenario says."""
    without = replace(large, costs=CostTable(infra=False))

    assert costs_of(large, STRATEGIES["checkpoint-restart"]).infra_s == 121.0
    assert costs_of(without, STRATEGIES["checkpoint-restart"]).infra_s == 0.0


def test_guard_pays_where_machines_are_slow(small: Scenario, run: Run) -> None:
    """With slow machines the guarded fleet works more than the blind one, on the same faults."""
    grey = replace(
        small, grey=GreyTable(per_1000_node_days=300.0, severities=(1.3,), weights=(1.0,))
    )
    guarded, blind = run(grey, "standby-swap-guard"), run(grey, "standby-swap-blind")

    assert guarded.caught > 0
    assert guarded.slow_s < blind.slow_s / 2
    assert guarded.ettr() > blind.ettr()


def test_the_identity_of_airesim_holds(run: Run) -> None:
    """Time = work + failures x recovery + selections x choosing + preemptions x wait, exactly."""
    read = load(Path(__file__).parents[3] / "scenarios" / "airesim.toml")
    short = replace(read, job=replace(read.job, work_days=40.0))
    totals = run(short, "hot-spares")

    assert totals.losses > 1000
    assert totals.chosen > 0
    down_s = totals.losses * 1200.0 + totals.chosen * 180.0 + totals.preempted * 1200.0
    assert totals.down_s == pytest.approx(down_s)
    assert totals.work_s == pytest.approx(40 * 86_400.0)
    assert totals.wall_s == pytest.approx(totals.work_s + totals.lost_s + totals.down_s, rel=1e-9)


def test_every_second_is_in_one_column(small: Scenario, run: Run) -> None:
    """Running, standing still and planned pauses are the wall time; work is what is left."""
    for name in STRATEGIES:
        totals = run(small, name)
        parts = totals.running_s + totals.down_s + totals.planned_s
        assert parts == pytest.approx(totals.wall_s), name
        work = totals.running_s - totals.slow_s - totals.lost_s
        assert work == pytest.approx(totals.work_s), name


def test_a_slow_stage_slows_its_pipeline_once() -> None:
    """Two slow machines in one stage cost as one; in two stages of a pipeline a little more."""
    axes = {"pp": 4, "dp": 2, "tp": 8}
    one = pace({0: 1.2}, axes, 8, 16)

    assert pace({}, axes, 8, 16) == 1.0
    assert 1 / 1.2 < one < 1.0
    assert pace({0: 1.2, 1: 1.2}, axes, 8, 16) == one
    assert pace({0: 1.2, 2: 1.2}, axes, 8, 16) < one
