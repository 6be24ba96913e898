"""What nobody holds any more comes from the last checkpoint; without one, the job begins anew."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from simulator.closed_form import ettr
from simulator.compare import compare
from simulator.faults import Fault, Kind, Trace, draw
from simulator.meter import Totals
from simulator.parts import STRATEGIES, costs_of
from simulator.scenario import FleetTable, JobTable, Scenario
from simulator.world import World
from statemachine import events as e

Run = Callable[..., Totals]


@pytest.fixture
def alone(small: Scenario) -> Scenario:
    """Eight machines each of which holds state that nobody else has."""
    return replace(small, job=JobTable(axes={"pp": 8, "tp": 8}, checkpoint_interval_s=1000.0))


def hit(scenario: Scenario, *faults: Fault, explicit: bool = False, **policy: object) -> World:
    """Run the swap strategy on a few faults."""
    trace = Trace(faults, frozenset(), {})
    again = replace(scenario, policy={**scenario.policy, **policy})
    world = World(again, STRATEGIES["standby-swap"], trace, explicit=explicit)
    world.run()
    return world


def loss(at_s: float, machine: int) -> Fault:
    """A machine breaks."""
    return Fault(at_s, Kind.HARD, machine)


def test_a_lost_pair_of_replicas_comes_from_a_checkpoint(small: Scenario) -> None:
    """While one machine of a pair of replicas is replaced, the other breaks: the job goes back to
    its last checkpoint, and is down for as long as it takes to load it.
    """
    pair = replace(
        small,
        job=JobTable(axes={"pp": 2, "dp": 2, "tp": 8}, checkpoint_interval_s=1000.0),
    )
    one = hit(pair, loss(4600.0, 0))
    both = hit(pair, loss(4600.0, 0), loss(4605.0, 1))
    costs = costs_of(pair, STRATEGIES["standby-swap"])

    assert one.totals.restored == 0
    assert both.totals.restored == 1
    assert both.totals.lost_s == pytest.approx(4600 / (1 + 0.6 / 1000) % 1000, abs=1)
    assert both.totals.down_s == pytest.approx(5.0 + costs.pause_loading_s)
    assert costs.pause_loading_s > costs.pause_unplanned_s + 20
    assert len(both.totals.downtimes_s) == 1


def test_other_replicas_keep_it_from_the_checkpoint(small: Scenario) -> None:
    """Machines that are no replicas of each other may break together: a replica of each is left."""
    found = hit(small, loss(4600.0, 0), loss(4605.0, 1), loss(4606.0, 3))

    assert found.totals.restored == 0
    assert found.totals.losses == 3


EARLY, LATE = 600.0, 4600.0
"""Before the first checkpoint, and after some."""


@pytest.mark.parametrize("first_s", [EARLY, LATE])
@pytest.mark.parametrize("more", [(), (loss(9100.0, 2),), (Fault(9100.0, Kind.PLANNED, 3),)])
def test_implicit_nodes_come_back_as_explicit_ones_do(
    alone: Scenario, more: tuple[Fault, ...], first_s: float
) -> None:
    """With every node explicit, loads and launches anew are the rules' own, and take as long."""
    faults = (loss(first_s, 1), *more, loss(20_000.0, 8))  # machine 8 stood by, and took a slot
    implicit, explicit = hit(alone, *faults), hit(alone, *faults, explicit=True)
    hard = sum(fault.kind is Kind.HARD for fault in faults)

    assert implicit.totals.restored == explicit.totals.restored == hard
    assert implicit.totals.downtimes_s == pytest.approx(explicit.totals.downtimes_s, abs=0.01)
    assert implicit.totals.ettr() == pytest.approx(explicit.totals.ettr(), abs=1e-6)
    assert len(implicit.core.state.pool) == len(explicit.core.state.pool) == 2


@pytest.mark.parametrize("strategy", ["standby-swap", "swap-no-standby"])
def test_whole_histories_are_the_same_either_way(alone: Scenario, strategy: str) -> None:
    """Over two days of losses and drains, implicit and explicit nodes go back equally often and
    lose equally much.
    """
    trace = draw(alone, 0)
    found = [
        World(alone, STRATEGIES[strategy], trace, explicit=explicit).run()
        for explicit in (False, True)
    ]

    assert found[0].restored > 10
    assert found[0].ettr() == pytest.approx(found[1].ettr(), abs=1e-9)
    assert found[0].lost_s == pytest.approx(found[1].lost_s)


def test_a_policy_without_a_restart_stands_still(alone: Scenario) -> None:
    """The rules decide: with nothing saved, and no restart in `on_loss`, the job stands still."""
    found = hit(alone, loss(EARLY, 1), on_loss=("standby", "cold", "wait"))

    assert found.totals.restored == 0
    assert found.core.job.stalled
    assert found.totals.down_s == pytest.approx(alone.horizon_s - EARLY, rel=0.01)


def test_a_machine_that_breaks_while_all_load_is_replaced_as_well(alone: Scenario) -> None:
    """A second loss in the middle of a launch anew takes one machine more, and no state."""
    found = hit(alone, loss(EARLY, 1), loss(EARLY + 50, 5))

    assert found.totals.restored == 1
    assert found.totals.losses == 2
    assert not found.broken
    assert found.totals.ettr() > 0.98


def test_a_launch_waits_for_the_machine_it_lacks(alone: Scenario) -> None:
    """Without standby or spare the job comes back when the broken machine is repaired."""
    bare = replace(alone, fleet=FleetTable(standbys=0, spares=0))
    found = hit(bare, loss(EARLY, 1))

    assert found.totals.restored == 1
    assert found.totals.down_s > 2 * 3600
    assert found.meter.state == "running"


def test_whoever_began_anew_is_watched_anew(alone: Scenario) -> None:
    """A slow machine that may not be swapped out is accused once per renewal, before and after its
    agent was fenced by a launch anew.
    """
    kept: list[e.Recorded] = []
    held = replace(alone, policy={"harmful_nodes_max": 0, "harmful_share_max": 0.0})
    faults = (Fault(100.0, Kind.GREY, 3, severity=1.4), loss(EARLY, 1))
    trace = Trace(faults, frozenset(), {})
    World(held, STRATEGIES["standby-swap-monitor"], trace, keep=kept.append).run()
    at_s = [
        entry.at_ms / 1000 - 1_700_000_000
        for entry in kept
        if isinstance(entry.event, e.VerdictIssued) and entry.event.node == "n000003"
    ]

    assert sum(at < EARLY for at in at_s) == 1
    assert sum(5000 <= at < 9500 for at in at_s) == 10  # every 450 s


@pytest.mark.parametrize(
    ("at_s", "lost", "said"),
    [(EARLY, 8, "restart from the last checkpoint"), (LATE, 1, "load the checkpoint of step 399")],
)
def test_the_log_says_what_was_decided(alone: Scenario, at_s: float, lost: int, said: str) -> None:
    """Both ways back are the state machine's decisions, with a reason, in a log that can be read:
    in place where something was saved, with every process fenced where nothing was.
    """
    kept: list[e.Recorded] = []
    trace = Trace((loss(at_s, 1),), frozenset(), {})
    World(alone, STRATEGIES["standby-swap"], trace, explicit=True, keep=kept.append).run()
    told = [
        entry.event.reason
        for entry in kept
        if isinstance(entry.event, e.JobRestarted)
        or (isinstance(entry.event, e.TransitionCommitted) and entry.event.loads)
    ]
    fenced = {entry.event.node for entry in kept if isinstance(entry.event, e.NodeLost)}

    assert len(told) == 1
    assert said in told[0]
    assert len(fenced) == lost


@pytest.mark.parametrize("strategy", ["standby-swap", "swap-no-standby"])
def test_a_renewal_argument_agrees_without_replicas(small: Scenario, strategy: str) -> None:
    """Where nobody else holds a slot's state, every loss goes back to a checkpoint, in closed form
    as in the simulation.
    """
    rare = replace(
        small,
        days=10.0,
        replications=12,
        job=JobTable(axes={"pp": 8, "tp": 8}),
        faults=replace(small.faults, per_1000_node_days=300.0),
    )
    row = compare(rare, [strategy]).rows[0]
    expected = ettr(rare, STRATEGIES[strategy])

    assert expected is not None
    assert row.restored > 10
    assert row.ettr.holds(expected, slack=0.005), (row.ettr, expected)
