"""A test of the tests, in the shells: with a bug planted, the proof fails.

Each story is told twice: with the shells as they ship, when it must hold, and with a bug, when it
must not. The bugs of the core are in tests/properties.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace

from controlplane.eventlog.memory import MemoryStore
from controlplane.eventlog.settle import settle
from controlplane.eventlog.view import View
from statemachine import events as e
from statemachine import messages as m
from statemachine import participant
from statemachine.ids import NodeId, Position, TransitionId
from statemachine.lifecycle import NodeState
from tests.simulation.test_controller import KNOBS, epoch_is, launched, state_is

if TYPE_CHECKING:
    from tests.simulation.conftest import Scenario
    from tests.simulation.fleet import Fleet

Plant = Callable[[pytest.MonkeyPatch], None]
Story = Callable[["Fleet", MemoryStore], Awaitable[None]]


# --- bugs -------------------------------------------------------------------------------------


def ghosts_may_append(patch: pytest.MonkeyPatch) -> None:
    """An append carries no guard: neither who leads, nor how long the log is."""

    async def unguarded(store: Any, _: Iterable[Any], *rest: Any) -> Any:
        return await settle(store, (), *rest)

    patch.setattr("controlplane.eventlog.leadership.settle", unguarded)


def lost_watches_are_not_listed_again(patch: pytest.MonkeyPatch) -> None:
    """Whoever lost a watch watches on from now, and never reads what it missed."""
    whole = View._replace

    def once(seen: View[Any], revision: int, kvs: Any) -> None:
        if seen._revision:
            seen._revision = revision
        else:
            whole(seen, revision, kvs)

    patch.setattr(View, "_replace", once)


def replays_have_effects(patch: pytest.MonkeyPatch) -> None:
    """An agent that reads the desired topology again says all of it again to its process."""
    on_desired = participant.on_desired

    def again(me: participant.Participant, desired: Any) -> participant.Outcome:
        nothing = TransitionId(0)
        return on_desired(replace(me, told_prepare=nothing, told_commit=nothing), desired)

    patch.setattr("worker.agent_node.on_desired", again)


# --- stories ----------------------------------------------------------------------------------


async def a_ghost_wakes(fleet: Fleet, _: MemoryStore) -> None:
    """A leader stops with an append under way; when it arrives another one leads."""
    await launched(fleet, "c0")
    fleet.links["c0"].freeze(hears=True)
    await fleet.kill_node("n1", seen_by=["n0"])
    await fleet.start_controller("c1", KNOBS)
    await fleet.until(epoch_is(2), "the swap")
    fleet.links["c0"].thaw()
    await anyio.sleep(3.0)

    stands = [
        entry.recorded() async for page in fleet.log.read_entries(Position(1)) for entry in page
    ]
    taken = next(r.position for r in stands if r.event == fleet.said(e.LeaderElected)[-1])
    assert stands == fleet.recorded, "an entry that was read is another one now"
    assert {r.writer for r in stands if r.position > taken}.isdisjoint({"c0"})


async def a_watch_misses_an_act(fleet: Fleet, store: MemoryStore) -> None:
    """An operator's act comes while every watch is silent; then the watches break."""
    await launched(fleet)
    store.faults.black_hole = True
    await fleet.act(e.DrainRequested(node=NodeId("n2"), by="op"))
    store.faults.black_hole = False
    store.drop_watches()

    await fleet.until(state_is("n2", NodeState.DRAINED), "the drain that no watch saw")


async def a_swap_is_told_once(fleet: Fleet, store: MemoryStore) -> None:
    """Each process is told once per phase of a transition, however often its agent looks."""
    await launched(fleet)
    await fleet.kill_node("n1", seen_by=["n0"])
    store.drop_watches()
    await fleet.until(epoch_is(2), "the swap")

    for name, node in fleet.nodes.items():
        told = [
            (type(said).__name__, said.transition)
            for said in node.worker.told
            if isinstance(said, m.Prepare | m.Commit)
        ]
        assert len(told) == len(set(told)), f"{name} was told {told}"


STORIES = (
    (a_ghost_wakes, ghosts_may_append),
    (a_watch_misses_an_act, lost_watches_are_not_listed_again),
    (a_swap_is_told_once, replays_have_effects),
)


def play_story(play: Callable[[Scenario, MemoryStore], None], story: Story) -> None:
    """Play one story on virtual time."""
    store = MemoryStore()

    async def scenario(fleet: Fleet) -> None:
        await story(fleet, store)

    play(scenario, store)


@pytest.mark.parametrize("story", [s for s, _ in STORIES], ids=lambda story: story.__name__)
def test_a_story_holds(
    story: Story, play_virtually: Callable[[Scenario, MemoryStore], None]
) -> None:
    """As the shells ship, the story ends as it should."""
    play_story(play_virtually, story)


@pytest.mark.parametrize(("story", "plant"), STORIES, ids=lambda value: value.__name__)
def test_a_planted_bug_is_found(
    story: Story,
    plant: Plant,
    play_virtually: Callable[[Scenario, MemoryStore], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the bug in the shells, the same story fails."""
    plant(monkeypatch)

    with pytest.raises((AssertionError, BaseExceptionGroup)) as found:
        play_story(play_virtually, story)
    print(repr(found.value)[:200])
