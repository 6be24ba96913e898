"""What a fleet is made of: each input of a scenario changes what it should, by what it says."""

from collections import Counter
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from simulator.faults import Fault, Kind, Trace, draw
from simulator.meter import Totals
from simulator.parts import STRATEGIES, costs_of
from simulator.repair import repair_of
from simulator.restarts import Restarts
from simulator.scenario import (
    ClassTable,
    CostTable,
    FaultsTable,
    FleetTable,
    GreyTable,
    GuardTable,
    RepairTable,
    Scenario,
)
from simulator.world import World
from statemachine import events as e

Run = Callable[..., Totals]
SWAP = STRATEGIES["standby-swap"]


def hit(scenario: Scenario, *faults: Fault, strategy: str = "standby-swap") -> World:
    """Run a swap strategy on a few faults; the log is kept as `world.kept`."""
    kept: list[e.Recorded] = []
    trace = Trace(faults, frozenset(), {})
    world = World(scenario, STRATEGIES[strategy], trace, keep=kept.append)
    world.run()
    world.kept = kept  # type: ignore[attr-defined]
    return world


def log(world: World) -> list[e.Recorded]:
    """What `hit` kept."""
    kept: list[e.Recorded] = world.kept  # type: ignore[attr-defined]
    return kept


# --- costs ------------------------------------------------------------------------------------


def test_state_moves_at_the_bandwidth_given(small: Scenario) -> None:
    """64 GB at 32 GB/s take 2 s of a swap, and at 4 GB/s of storage 16 s of a restart."""
    job = replace(small.job, state_gb_per_node=64.0, transfer_gbps=32.0, load_gbps=4.0)
    given = costs_of(replace(small, job=job), SWAP)
    slower = costs_of(replace(small, job=replace(job, transfer_gbps=8.0)), SWAP)
    plain = costs_of(small, STRATEGIES["checkpoint-restart"])
    loaded = costs_of(replace(small, job=job), STRATEGIES["checkpoint-restart"])
    assumed_load_s = plain.restart_s * 94 / 267

    assert slower.pause_unplanned_s - given.pause_unplanned_s == pytest.approx(6.0)
    assert slower.pause_planned_s - given.pause_planned_s == pytest.approx(6.0)
    assert loaded.restart_s == pytest.approx(plain.restart_s - assumed_load_s + 16.0)


def test_a_restart_costs_its_components_at_its_scale(small: Scenario) -> None:
    """A restart is the sum of its parts, grows with the fleet, and takes measured parts instead."""
    large = replace(small, job=replace(small.job, axes={"pp": 8, "dp": 16, "tp": 8}))
    restart = STRATEGIES["checkpoint-restart"]
    given = CostTable(overrides={"load_s": 1.0, "connect_s": 2.0, "warmup_s": 4.0})

    assert costs_of(large, restart).restart_s == pytest.approx(300.0)
    assert costs_of(small, restart).restart_s < costs_of(large, restart).restart_s
    assert costs_of(replace(small, costs=given), restart).restart_s == pytest.approx(7.0)


@pytest.mark.parametrize("strategy", ["standby-swap", "hot-spares"])
def test_a_fault_is_seen_and_placed_first(small: Scenario, strategy: str) -> None:
    """Detection and localisation of a fault's class come before any recovery."""
    seen = ClassTable(name="slow to see", share=1.0, detect_s=30.0, locate_s=120.0)
    slow = replace(small, faults=replace(small.faults, classes=(seen,)))
    trace = Trace((Fault(5000.0, Kind.HARD, 0),), frozenset(), {})
    kind = World if STRATEGIES[strategy].family == "swap" else Restarts
    at_once = kind(small, STRATEGIES[strategy], trace).run().downtimes_s
    late = kind(slow, STRATEGIES[strategy], trace).run().downtimes_s

    assert late[0] - at_once[0] == pytest.approx(150.0)


# --- machines ---------------------------------------------------------------------------------


def test_machines_come_from_the_supply_after_their_time(small: Scenario) -> None:
    """A standby that was used is replaced after rescheduling; by a borrowed one, after preempting
    it as well.
    """
    spare = hit(replace(small, fleet=FleetTable(standbys=1, spares=1)), Fault(5000.0, Kind.HARD, 0))
    borrowed = FleetTable(standbys=1, spares=1, nodes=10, borrowed=1, preempt_s=600.0)
    taken = hit(replace(small, fleet=borrowed), Fault(5000.0, Kind.HARD, 0))

    def joined_s(world: World) -> float:
        at_ms = [each.at_ms for each in log(world) if isinstance(each.event, e.NodeJoined)]
        return at_ms[-1] / 1000 - 1_700_000_000 - 5000

    assert joined_s(spare) == pytest.approx(121.0)
    assert joined_s(taken) == pytest.approx(721.0)
    assert (spare.totals.preempted, taken.totals.preempted) == (0, 1)


def test_maintenance_drains_and_gives_back(small: Scenario) -> None:
    """A drained machine is swapped out in a planned pause, is away for its hours, and is free
    again.
    """
    few = replace(
        small,
        fleet=FleetTable(standbys=1, spares=0),
        faults=replace(small.faults, maintenance_h=3.0),
    )
    world = hit(few, Fault(5000.0, Kind.PLANNED, 2))
    left = next(x.at_ms for x in log(world) if isinstance(x.event, e.NodeLeft))
    back = [x for x in log(world) if isinstance(x.event, e.NodeJoined)][-1]

    assert (world.totals.losses, world.totals.planned) == (0, 1)
    assert world.totals.down_s == 0
    assert (back.at_ms - left) / 3_600_000 == pytest.approx(3.0 + 121 / 3600, abs=0.01)


def test_machines_behind_a_switch_fail_together(small: Scenario) -> None:
    """Common causes by switch hit all its machines at one instant."""
    together = replace(
        small,
        days=60.0,
        fleet=replace(small.fleet, switch_nodes=8),
        faults=FaultsTable(per_1000_node_days=0.0, switch_per_1000_switch_days=50.0),
    )
    faults = [fault for fault in draw(together, 0).faults if fault.kind is Kind.HARD]
    groups = {fault.at_s: fault.machine // 8 for fault in faults}

    assert faults
    assert all(groups[fault.at_s] == fault.machine // 8 for fault in faults)
    assert {fault.cause for fault in faults} == {"switch"}


def test_weibull_gaps_keep_the_rate(large: Scenario) -> None:
    """A shape below 1 clusters the faults of a machine, at the rate asked for, from the start."""
    faults = FaultsTable(per_1000_node_days=50.0, distribution="weibull", shape=0.7)
    long = replace(large, days=20.0, faults=faults)
    found = [fault for fault in draw(long, 0).faults if fault.kind is Kind.HARD]
    early = [fault for fault in found if fault.at_s < 2 * 86_400]
    by_machine = Counter(fault.machine for fault in found)
    mean = len(found) / long.machines
    variance = sum((by_machine[n] - mean) ** 2 for n in range(long.machines)) / long.machines

    assert mean == pytest.approx(50 / 1000 * 20, rel=0.05)
    assert len(early) / long.machines == pytest.approx(50 / 1000 * 2, rel=0.12)
    assert variance / mean > 1.3  # 1 for memoryless faults


# --- repair -----------------------------------------------------------------------------------


def test_repairs_take_two_branches_and_fail_in_silence(large: Scenario) -> None:
    """80 % are manual; 40 % of the automatic and 20 % of the manual ones cure nothing."""
    table = RepairTable(kind="two_branch", auto_h=2.0, manual_h=48.0)
    faults = [f for f in draw(replace(large, days=20.0), 0).faults if f.kind is Kind.HARD]
    found = [repair_of(table, fault) for fault in faults]
    manual = [repair for repair in found if repair.manual]
    auto = [repair for repair in found if not repair.manual]

    assert len(manual) / len(found) == pytest.approx(0.8, abs=0.05)
    assert sum(not r.cured for r in auto) / len(auto) == pytest.approx(0.4, abs=0.08)
    assert sum(not r.cured for r in manual) / len(manual) == pytest.approx(0.2, abs=0.05)
    assert sum(r.hours for r in manual) / len(manual) == pytest.approx(48.0, rel=0.15)
    assert sum(r.hours for r in auto) / len(auto) == pytest.approx(2.0, rel=0.25)


def test_people_repair_by_hand(small: Scenario) -> None:
    """Each manual repair costs an operator's time."""
    by_hand = replace(small, repair=RepairTable(kind="two_branch", manual_share=1.0))
    by_none = replace(small, repair=RepairTable(kind="two_branch", manual_share=0.0))
    faults = tuple(Fault(5000.0 * n, Kind.HARD, n) for n in range(1, 5))

    assert hit(by_hand, *faults).totals.human_h == pytest.approx(4.0)
    assert hit(by_none, *faults).totals.human_h == 0.0


# --- grey machines, sweeps, budgets -----------------------------------------------------------


def slowed(scenario: Scenario, **guard: float) -> World:
    """One machine turns slow under Guard."""
    grey = replace(
        scenario,
        days=1.0,
        guard=GuardTable(solo_sees=1.0, **guard),  # type: ignore[arg-type]
        repair=RepairTable(kind="fixed", mean_h=2.0, manual_share=0.0, auto_silent=0.0),
    )
    fault = Fault(5000.0, Kind.GREY, 1, severity=1.4)
    return hit(grey, fault, strategy="standby-swap-guard")


def outcomes(world: World) -> list[e.SweepOutcome]:
    """How the sweeps of a run ended, in order."""
    return [x.event.outcome for x in log(world) if isinstance(x.event, e.SweepFinished)]


def test_a_sweep_is_wrong_as_often_as_it_says(small: Scenario) -> None:
    """One that never errs fails the slow machine, and passes it once repaired; one that always
    misses lets it back as it is; one that always cries wolf fails it again after its repair.
    """
    right = slowed(small, false_pass=0.0, false_fail=0.0)
    blind = slowed(small, false_pass=1.0, false_fail=0.0)
    wolf = slowed(small, false_pass=0.0, false_fail=1.0)

    assert outcomes(right) == [e.SweepOutcome.FAILED, e.SweepOutcome.PASSED]
    assert outcomes(blind)[0] is e.SweepOutcome.PASSED
    assert blind.plant.machine(1).severity == 1.4
    assert outcomes(wolf)[:2] == [e.SweepOutcome.FAILED, e.SweepOutcome.FAILED]


def test_evictions_keep_to_the_budget(small: Scenario) -> None:
    """With a budget of one per hour, three machines that turn slow at once are swapped out an hour
    apart; with room for all, at once.
    """
    faults = [Fault(5000.0, Kind.GREY, n, severity=1.4) for n in (0, 3, 6)]
    fleet = replace(
        small,
        days=1.0,
        fleet=FleetTable(standbys=6, spares=20),
        guard=GuardTable(false_pass=0.0),  # none comes back as it was
    )

    def swaps_s(policy: dict[str, object]) -> list[float]:
        scenario = replace(fleet, policy=policy, grey=GreyTable(noise=0.01))
        world = hit(scenario, *faults, strategy="standby-swap-guard")
        return [
            entry.at_ms / 1000
            for entry in log(world)
            if isinstance(entry.event, e.TransitionPlanned)
            for _ in entry.event.changes
        ]

    tight = swaps_s({"harmful_nodes_max": 1, "harmful_share_max": 0.0})
    wide = swaps_s({"harmful_nodes_max": 9, "harmful_share_max": 0.0})

    assert len(tight) == len(wide) == 3
    assert tight[1] - tight[0] >= 3600
    assert tight[2] - tight[1] >= 3600
    assert wide[2] - wide[0] < 600
