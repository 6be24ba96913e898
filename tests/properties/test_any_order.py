"""Facts in any order: invariants always, and back to work once everybody cooperates."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from statemachine.notation import line_of_entry
from tests.properties.fleet import ACTIONS, Fleet, begun

SEEDS = range(60)
SEEDS_OF_A_SOAK = range(60, 5_000)
STEPS = 60


class AnyOrder(RuleBasedStateMachine):
    """Hypothesis says what happens next, and to whom; it finds the shortest story of a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.data: Any = None
        self.fleet = begun(lambda choices: choices[0])
        self.fleet.pick = lambda choices: self.data.draw(st.sampled_from(list(choices)))

    @rule(action=st.sampled_from(ACTIONS), data=st.data())
    def happen(self, action: Any, data: Any) -> None:
        """One thing happens; every event that follows is held to the invariants."""
        self.data = data
        action(self.fleet)

    def teardown(self) -> None:
        """Then everybody cooperates, and the job must come back to work."""
        self.fleet.pick = lambda choices: choices[0]
        self.fleet.heal()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def play(seed: int) -> Fleet:
    """What a seed does to a fleet; a failure prints the end of its log."""
    chance = random.Random(seed)
    fleet = begun(chance.choice)
    try:
        for _ in range(STEPS):
            chance.choice(ACTIONS)(fleet)
        fleet.heal()
    except BaseException:
        print(f"seed {seed}", *(line_of_entry(r) for r in fleet.log[-40:]), sep="\n")
        raise
    return fleet


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_a_fleet_survives_what_a_seed_says(seed: int) -> None:
    """Whatever is said, no invariant breaks, and the job comes back to work."""
    play(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS_OF_A_SOAK, ids=lambda seed: f"seed-{seed}")
def test_a_fleet_survives_what_many_seeds_say(seed: int) -> None:
    """The same for as many seeds as a soak has time for."""
    play(seed)
