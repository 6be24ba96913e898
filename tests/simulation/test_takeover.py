"""A controller dies at every point of a change of members; who takes over ends it rightly.

Dying at a point means: an append was applied, its answer never came, and the process was gone. So
each story is played once for every append of its controller; between two appends a controller does
nothing that the next one could not see.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from controlplane.eventlog import EventLog
from controlplane.eventlog.memory import MemoryStore
from controlplane.eventlog.store import Compare, Op, Put, Store, TxnResult
from controlplane.verifying import verify_log
from statemachine import events as e
from statemachine.codec import decode_recorded
from statemachine.evolve import evolve
from statemachine.ids import NodeId
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState
from tests.simulation.agents import JOB
from tests.simulation.conftest import play_on_virtual_time
from tests.simulation.test_controller import KNOBS, epoch_is, state_is
from tests.simulation.test_faults import assert_projected, assert_safe

if TYPE_CHECKING:
    from tests.simulation.conftest import Play
    from tests.simulation.fleet import Fleet

Story = Callable[["Fleet"], Awaitable[None]]
Wanted = Callable[[e.Recorded], bool]

LEADER_TTL_S = 1.0
LAG_S = 0.02


class LaggingStore:
    """A node's connection: whatever it writes takes so long, so that no two facts come at once."""

    def __init__(self, store: Store, lag_s: float) -> None:
        self._store = store
        self._lag_s = lag_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(self, *arguments: Any) -> TxnResult:
        """Wait, then pass it on."""
        await anyio.sleep(self._lag_s)
        return await self._store.txn(*arguments)


class CutStore:
    """A controller's connection: it is cut once the store has taken a certain entry of the log."""

    def __init__(self, store: Store, log: EventLog) -> None:
        self.cut = anyio.Event()
        self.wanted: Wanted = lambda _: False
        self.appended: list[int] = []
        """The last position of each append."""
        self._store = store
        self._entries = log._keys.log_all

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op] = ()
    ) -> TxnResult:
        """Pass it on; answer only while there is a connection."""
        result = await self._store.txn(compares, success, failure)
        start, end = self._entries
        puts = [op for op in success if isinstance(op, Put) and start <= op.key < end]
        told = [decode_recorded(put.value) for put in puts if result.succeeded]
        if told:
            self.appended.append(told[-1].position)
        if any(map(self.wanted, told)):
            self.cut.set()
        if self.cut.is_set():
            await anyio.sleep_forever()
        return result


async def doomed(fleet: Fleet, story: Story) -> CutStore:
    """Launch what a story begins with, under a controller whose connection can be cut."""
    store = CutStore(fleet.log.store, fleet.log)
    real, fleet.log = fleet.log, EventLog(cast("Store", store), fleet.log.fleet)
    await fleet.start_controller("c0", knobs_of(story), ttl_s=LEADER_TTL_S)
    for number in range(6):
        lagging = LaggingStore(real.store, (number + 1) * LAG_S)
        fleet.log = EventLog(cast("Store", lagging), real.fleet)
        await fleet.start_node(f"n{number}")
    fleet.log = real
    if story is not a_job_is_launched:
        await a_job_is_launched(fleet)
    await anyio.sleep(0.5)  # until everybody has said what there is to say
    store.appended.clear()
    return store


# --- the stories: each ends with the fleet at rest ------------------------------------------------


async def a_job_is_launched(fleet: Fleet) -> None:
    """Four of six nodes get the slots, the others rehearse."""
    await fleet.declare(4, standbys=1)
    await fleet.until(epoch_is(1), "the launch", within_s=60)
    for name in ("n4", "n5"):
        await fleet.until(state_is(name, NodeState.STANDBY), f"{name} is warm", within_s=60)


async def a_node_is_killed(fleet: Fleet) -> None:
    """Unplanned: a standby takes the slot."""
    await fleet.kill_node("n1", seen_by=["n0", "n2"])
    await fleet.until(epoch_is(2), "the swap", within_s=60)
    assert fleet.holder(1) in ("n4", "n5")
    assert fleet.state.nodes[NodeId("n1")].state is NodeState.LOST


async def a_node_is_drained(fleet: Fleet) -> None:
    """Planned: a standby takes the slot at a boundary, and the leaver is released."""
    await fleet.act(e.DrainRequested(node=NodeId("n2"), by="op"))
    await fleet.until(epoch_is(2), "the swap", within_s=60)
    await fleet.until(state_is("n2", NodeState.DRAINED), "n2 is released", within_s=60)
    assert fleet.holder(2) in ("n4", "n5")


async def a_joiner_dies_too(fleet: Fleet) -> None:
    """Unplanned, and planned anew: the first joiner dies before it has answered."""
    for name in ("n4", "n5"):
        fleet.nodes[name].worker.mute = True
    await fleet.kill_node("n1", seen_by=["n0"])
    await fleet.until(lambda _: bool(fleet.said(e.TransitionPlanned)[1:]), "the plan", within_s=60)
    (change,) = fleet.said(e.TransitionPlanned)[-1].changes
    await fleet.kill_node(change.joiner, seen_by=["n0"])
    (other,) = {"n4", "n5"} - {change.joiner}
    fleet.nodes[other].unmute()
    await fleet.until(epoch_is(2), "the swap", within_s=60)
    assert fleet.holder(1) == other


async def a_drain_is_refused_by_the_clock(fleet: Fleet) -> None:
    """Planned, and aborted: no joiner answers in time, the leaver keeps its slot meanwhile."""
    for name in ("n4", "n5"):
        fleet.nodes[name].worker.mute = True
    await fleet.act(e.DrainRequested(node=NodeId("n2"), by="op"))
    await fleet.until(
        lambda _: bool(fleet.said(e.TransitionAborted)), "the plan is dropped", within_s=120
    )
    assert fleet.state.jobs[JOB].epoch == 1
    assert fleet.holder(2) == "n2"


async def a_job_shrinks_and_grows(fleet: Fleet) -> None:
    """Nobody is left to take a slot: the job goes on without it, until a node comes."""
    for name in ("n4", "n5"):
        await fleet.kill_node(name, seen_by=())
        await fleet.until(state_is(name, NodeState.LOST), f"{name} is missed", within_s=60)
    await fleet.kill_node("n1", seen_by=["n0", "n2"])
    await fleet.until(epoch_is(2), "the shrink", within_s=60)
    assert list(fleet.state.jobs[JOB].idle) == [1]
    await fleet.start_node("n4")
    await fleet.until(epoch_is(3), "the growth", within_s=60)
    assert [fleet.holder(slot) for slot in range(4)] == ["n0", "n4", "n2", "n3"]


def knobs_of(story: Story) -> dict[str, object]:
    """The policy that a story's controllers are configured with."""
    if story is a_job_shrinks_and_grows:
        return KNOBS | {"on_loss": ["standby", "cold", "shrink"]}
    return KNOBS


STORIES: tuple[Story, ...] = (
    a_job_is_launched,
    a_node_is_killed,
    a_node_is_drained,
    a_joiner_dies_too,
    a_drain_is_refused_by_the_clock,
    a_job_shrinks_and_grows,
)


async def play_cut(fleet: Fleet, story: Story, wanted: Wanted, rest_s: float = 3.0) -> bool:
    """Play a story, let its controller die behind an entry, and another take over; did it die?"""
    store = await doomed(fleet, story)
    store.wanted = wanted

    async def succeed() -> None:
        await store.cut.wait()
        fleet.kill_controller("c0")
        await fleet.start_controller("c1", knobs_of(story), ttl_s=LEADER_TTL_S)

    async with anyio.create_task_group() as group:
        group.start_soon(succeed)
        await story(fleet)
        await anyio.sleep(rest_s)
        group.cancel_scope.cancel()
    await assert_projected(fleet)
    assert (await verify_log(fleet.log)).entries == fleet.state.position
    state = FleetState()
    for recorded in fleet.recorded:
        before, state = state, evolve(state, recorded)
        assert_safe(before, recorded, state)
    return store.cut.is_set()


def appends_of(story: Story) -> list[int]:
    """The last position of each append in a story whose controller lives."""
    found: list[int] = []

    async def scenario(fleet: Fleet) -> None:
        store = await doomed(fleet, story)
        await story(fleet)
        found.extend(store.appended)

    play_on_virtual_time(scenario)
    return found


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_controller_may_die_behind_any_append(story: Story) -> None:
    """Whichever append was its last, the change of members ends as it would have, or as it must."""
    positions = appends_of(story)
    assert len(positions) > 5
    for position in positions:
        print(f"the controller dies behind position {position}")

        async def scenario(fleet: Fleet, position: int = position) -> None:
            assert await play_cut(fleet, story, lambda told: told.position == position)

        play_on_virtual_time(scenario, MemoryStore())
    print(f"{len(positions)} deaths")


PHASES: tuple[tuple[Story, type[e.Event]], ...] = (
    (a_node_is_killed, e.TransitionPlanned),
    (a_node_is_killed, e.TransitionCommitted),
    (a_node_is_drained, e.TransitionPrepared),
    (a_node_is_drained, e.TransitionApplied),
)


@pytest.mark.etcd
@pytest.mark.parametrize(
    ("story", "kind"), PHASES, ids=lambda each: getattr(each, "__name__", str(each))
)
def test_each_phase_is_taken_over_on_a_real_store(
    story: Story, kind: type[e.Event], play_really: Play
) -> None:
    """Planned, being prepared, committed, being applied: the same over sockets and real leases."""

    async def scenario(fleet: Fleet) -> None:
        assert await play_cut(fleet, story, lambda told: isinstance(told.event, kind), 0.3)
        assert [event.controller for event in fleet.said(e.LeaderElected)] == ["c0", "c1"]

    play_really(scenario)
