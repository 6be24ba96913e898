"""Two jobs, one pool: facts of both in any order, and both come back to work by lending."""

from __future__ import annotations

import random

import pytest

from statemachine import events as e
from statemachine.ids import JobId, NodeId
from statemachine.notation import line_of_entry
from tests.properties.fleet import ACTIONS, JOB, NODES, Fleet, Pick

OTHER = JobId("k")
SEEDS = range(30)
SEEDS_OF_A_SOAK = range(30, 2_000)
STEPS = 60


class TwoJobs(Fleet):
    """Three slots of one job and two of another, on six nodes that can serve either."""

    serves = (JOB, OTHER)

    def __init__(self, pick: Pick) -> None:
        super().__init__(pick)
        self.say(e.JobDeclared(job=OTHER, axes={"dp": 2}))

    def home(self, name: NodeId) -> JobId:
        """Four nodes begin with the first job, two with the other."""
        return JOB if name in NODES[:4] else OTHER

    def happen(self) -> None:
        """Something is said of one job or the other."""
        self.about = self.pick((JOB, OTHER))
        self.pick(ACTIONS)(self)

    def _all_answer(self) -> None:
        for self.about in (JOB, OTHER):
            self.members_answer()

    def _works(self) -> bool:
        works = True
        for self.about in (JOB, OTHER):
            works = super()._works() and works
        return works


def play(seed: int) -> TwoJobs:
    """What a seed does to both jobs; a failure prints the end of the log."""
    chance = random.Random(seed)
    fleet = TwoJobs(chance.choice)
    try:
        fleet.heal()
        for _ in range(STEPS):
            fleet.happen()
        fleet.heal(80)
    except BaseException:
        print(f"seed {seed}", *(line_of_entry(r) for r in fleet.log[-60:]), sep="\n")
        raise
    return fleet


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_both_jobs_survive_what_a_seed_says(seed: int) -> None:
    """No invariant breaks, and both jobs come back to work, on nodes that are lent if need be."""
    fleet = play(seed)

    held = [holder for job in (JOB, OTHER) for holder in fleet.state.jobs[job].holders.values()]
    finished = any(fleet.state.jobs[job].finished for job in (JOB, OTHER))
    assert finished or len(set(held)) == len(held)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS_OF_A_SOAK, ids=lambda seed: f"seed-{seed}")
def test_both_jobs_survive_what_many_seeds_say(seed: int) -> None:
    """The same for as many seeds as a soak has time for."""
    play(seed)


def test_nodes_are_lent() -> None:
    """The seeds make both jobs lend to each other."""
    logs = (play(seed).log for seed in SEEDS)
    lent = {r.event.node for log in logs for r in log if isinstance(r.event, e.NodeAssigned)}

    assert len(lent) >= 4, lent
