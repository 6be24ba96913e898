"""Every order in which a small fleet's events can happen: exhaustive, with the number of states.

Both halves of the protocol run as they ship; messages between nodes are late and reordered, nodes
die at any moment. In every state the invariants hold and nobody trains twice or with the wrong
state (`world` raises `Impossible`); in every state at which nothing more can happen the job trains
whole, or waits for what is not there.
"""

from __future__ import annotations

import pytest

from statemachine import events as e
from statemachine.errors import InvariantBroken
from statemachine.ids import NodeId
from statemachine.notation import lines_of_state
from tests.properties.moves import moves
from tests.properties.rest import begin, key, problem_at_rest
from tests.properties.world import Impossible, World, record

DRAIN = e.DrainRequested(node=NodeId("n0"), by="op")
SWITCHOVER = e.SwitchoverRequested(node=NodeId("n0"), by="op")

Parents = dict[int, tuple[int, str] | None]


def way_to(state: int, parents: Parents) -> str:
    """The moves that lead to a state, one line each: what reproduces it."""
    lines = []
    step = parents[state]
    while step is not None:
        lines.append(step[1])
        step = parents[step[0]]
    return "\n".join(reversed(lines))


def walk(first: World) -> tuple[int, int]:
    """Visit every world that can come of `first`; return how many, and how many are at rest."""
    start = hash(key(first))
    parents: Parents = {start: None}
    todo = [(start, first)]
    at_rest = 0
    while todo:
        here, world = todo.pop()
        ends = True
        try:
            for what, after in moves(world):
                ends = ends and what.startswith("kill")
                there = hash(key(after))
                if there not in parents:
                    parents[there] = (here, what)
                    todo.append((there, after))
            problem = problem_at_rest(world) if ends else ""
        except (Impossible, InvariantBroken) as error:
            problem = str(error)
        if problem:
            told = "\n".join(lines_of_state(world.fleet))
            pytest.fail(f"{problem}\n{told}\nafter:\n{way_to(here, parents)}")
        at_rest += ends
    return len(parents), at_rest


def explore(slots: int, standbys: int, failures: int, *acts: e.AnyEvent, least: int = 0) -> None:
    """Walk one scenario and print its size; fewer states than ever before would prove less."""
    world = record(begin(slots, standbys, failures), *acts)
    visited, at_rest = walk(world)
    wanted = " and ".join(type(act).__name__ for act in acts) or "nothing"
    print(
        f"{slots} slots, {standbys} standbys, {wanted}, up to {failures} failures: "
        f"{visited} states, {at_rest} at rest"
    )

    assert visited >= least
    assert at_rest


@pytest.mark.parametrize(
    ("slots", "standbys", "failures", "least"),
    [
        (2, 1, 1, 250),
        (2, 1, 2, 2_000),
        pytest.param(2, 2, 2, 15_000, marks=pytest.mark.slow),
        pytest.param(3, 1, 1, 26_000, marks=pytest.mark.slow),
        pytest.param(3, 1, 2, 985_000, marks=pytest.mark.soak),
        pytest.param(3, 2, 2, 100_000, marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(3600)
def test_losses_in_every_order(slots: int, standbys: int, failures: int, least: int) -> None:
    """Whichever nodes die, and whenever: nothing unsafe, and the job trains whole or waits."""
    explore(slots, standbys, failures, least=least)


@pytest.mark.parametrize(
    ("slots", "standbys", "failures", "least"),
    [
        (2, 1, 0, 100),
        (3, 1, 0, 1_000),
        pytest.param(2, 1, 1, 22_000, marks=pytest.mark.slow),
        pytest.param(2, 1, 2, 112_000, marks=pytest.mark.soak),
        pytest.param(2, 2, 1, 22_000, marks=pytest.mark.soak),
        pytest.param(3, 1, 1, 100_000, marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(3600)
def test_a_drain_and_losses_in_every_order(
    slots: int, standbys: int, failures: int, least: int
) -> None:
    """A planned swap, and whoever dies meanwhile: nothing unsafe, no step lost, the leaver free."""
    explore(slots, standbys, failures, DRAIN, least=least)


@pytest.mark.parametrize(
    ("slots", "standbys", "failures", "least"),
    [
        (2, 1, 0, 100),
        pytest.param(2, 1, 1, 20_000, marks=pytest.mark.slow),
        pytest.param(2, 2, 1, 20_000, marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(3600)
def test_a_switchover_and_losses_in_every_order(
    slots: int, standbys: int, failures: int, least: int
) -> None:
    """A healthy leaver goes back to the pool, and may take a slot again at once."""
    explore(slots, standbys, failures, SWITCHOVER, least=least)
