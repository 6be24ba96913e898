"""The simulator runs the rules of production: what is changed there changes here."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from simulator.compare import one
from simulator.faults import draw
from simulator.parts import STRATEGIES
from simulator.scenario import GreyTable, Scenario
from simulator.scenario_file import load
from simulator.world import World
from statemachine import decide, decide_slots, parts
from statemachine import events as e
from statemachine.choose import Choice
from statemachine.state import FleetState, Job


def story(scenario: Scenario, *, explicit: bool = False, strategy: str = "standby-swap") -> World:
    """Run once and keep the transitions as `world.kept`."""
    kept: list[e.Recorded] = []
    world = World(
        scenario, STRATEGIES[strategy], draw(scenario, 0), explicit=explicit, keep=kept.append
    )
    world.run()
    world.kept = kept  # type: ignore[attr-defined]
    return world


def swaps(world: World) -> list[tuple[int, str, tuple[tuple[int, str], ...]]]:
    """Every transition but the launch: when, why, and who took which slot."""
    kept: list[e.Recorded] = world.kept  # type: ignore[attr-defined]
    return [
        (
            entry.at_ms,
            entry.event.motive,
            tuple((change.slot, change.joiner) for change in entry.event.changes),
        )
        for entry in kept
        if isinstance(entry.event, e.TransitionPlanned) and entry.event.motive != "launch"
    ]


def test_implicit_nodes_change_no_decision(small: Scenario) -> None:
    """With every node explicit, the same transitions happen at the same times."""
    implicit, explicit = story(small), story(small, explicit=True)

    assert swaps(implicit) == swaps(explicit)
    assert len(swaps(implicit)) > 10
    assert implicit.totals.ettr() == pytest.approx(explicit.totals.ettr(), abs=1e-9)


def test_a_patched_rule_changes_both(small: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice that production is made to refuse is refused in the simulation as well."""
    before = story(small)

    def nobody(state: FleetState, job: Job, slot: int, taken: set[str], *, cold: bool) -> Choice:
        return Choice(None, "patched", ())

    monkeypatch.setattr(decide_slots, "choose_joiner", nobody)
    after = story(small)

    assert swaps(before)
    assert swaps(after) == []
    assert after.totals.ettr() < before.totals.ettr() / 2
    state = after.core.state  # production's own entry point, on the same state
    assert decide(state, state.at_ms, state.policy) is None


def test_a_policy_of_the_file_is_in_force(small: Scenario) -> None:
    """Shadow mode in the scenario keeps a grey node in its slot, as it does in production."""
    grey = replace(
        small,
        faults=replace(small.faults, per_1000_node_days=0.0),
        grey=GreyTable(initial_share=0.2, severities=(1.4,), weights=(1.0,)),
    )
    acts = story(grey, strategy="standby-swap-guard")
    watches = story(replace(grey, policy={"shadow": True}), strategy="standby-swap-guard")

    assert acts.totals.caught > 0
    assert watches.totals.caught == 0
    assert watches.totals.slow_s > acts.totals.slow_s


def test_plans_in_parts_seat_the_same_machines(
    small: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated fleet whose plans come in parts, as those of a large one do, loses as much time
    as one whose plans come whole.
    """
    whole = story(small)
    monkeypatch.setattr(parts, "CHANGES_MAX", 0)
    cut = story(small)

    assert any(isinstance(entry.event, e.ChangesDrafted) for entry in cut.kept)  # type: ignore[attr-defined]
    assert cut.totals.ettr() == pytest.approx(whole.totals.ettr(), abs=1e-9)
    assert cut.totals.cold == whole.totals.cold


def test_whoever_reports_a_reset_is_known() -> None:
    """A peer that reports a broken link has a record, also where another replica's is there
    already, as the partner of a sweep.
    """
    path = Path(__file__).parents[3] / "scenarios" / "llm_8k.toml"

    assert one(load(path), "standby-swap-guard", 11).losses > 40
