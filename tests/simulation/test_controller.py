"""The controller that ships, with a fleet around it: launch, loss, swap, sweep, takeover.

Each scenario plays over the store in memory on virtual time, and over a real etcd in real time.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from controlplane.config import Settings
from controlplane.eventlog import Batch, Deposed, Fenced, NoSpace
from controlplane.eventlog.memory import MemoryStore
from controlplane.eventlog.store import Put
from controlplane.server import lead_again_and_again
from controlplane.verifying import verify_log
from statemachine import events as e
from statemachine.ids import Epoch, JobId, NodeId, Role, Slot
from statemachine.lifecycle import NodeState, Phase
from statemachine.topology import decode_desired
from statemachine.vitals import CPU_MS, STEP_MS, WAIT_MS, WORK_MS, Vitals, encode_vitals, summarise
from tests.simulation.agents import TTL_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.term import Term
    from statemachine.state import FleetState
    from tests.simulation.agents import ScriptedNode
    from tests.simulation.conftest import Play, Scenario
    from tests.simulation.fleet import Condition, Fleet

JOB = JobId("job")
KNOBS: dict[str, object] = {"launch_patience_s": 5.0, "retry_cooldown_s": 0.1}


def epoch_is(number: int) -> Condition:
    """A condition: the job's epoch is committed and nothing is pending."""

    def holds(state: FleetState) -> bool:
        job = state.jobs.get(JOB)
        return job is not None and job.epoch == number and job.pending is None

    return holds


def state_is(node: str, wanted: NodeState) -> Condition:
    """A condition: a node is in a state."""

    def holds(state: FleetState) -> bool:
        record = state.nodes.get(NodeId(node))
        return record is not None and record.state is wanted

    return holds


async def launched(fleet: Fleet, controller: str = "c0", ttl_s: float = TTL_S) -> Term:
    """Launch four nodes and a warm standby, n4."""
    term = await fleet.start_controller(controller, KNOBS, ttl_s)
    for number in range(5):
        await fleet.start_node(f"n{number}")
    await fleet.declare(4, standbys=1)
    await fleet.until(epoch_is(1), "the launch")
    await fleet.until(state_is("n4", NodeState.STANDBY), "a warm standby")
    return term


def test_a_declared_job_is_launched_and_the_node_left_over_becomes_a_standby(play: Play) -> None:
    """Four of five nodes get the slots in order of name; the fifth rehearses and is standby."""

    async def scenario(fleet: Fleet) -> None:
        await launched(fleet)
        assert [fleet.holder(slot) for slot in range(4)] == ["n0", "n1", "n2", "n3"]
        standing = await fleet.log.desired(JOB)
        assert standing is not None
        await fleet.until(lambda _: fleet.nodes["n3"].worker.has_state, "n3 trains")

    play(scenario)


def test_a_lost_node_is_fenced_and_replaced_at_once(play: Play) -> None:
    """One peer's reset link suffices: the victim's writes fail, the standby holds its slot."""

    async def scenario(fleet: Fleet) -> None:
        await launched(fleet)
        victim = await fleet.kill_node("n1", seen_by=["n0", "n2"])
        await fleet.until(epoch_is(2), "the swap")
        assert fleet.holder(1) == "n4"
        assert fleet.state.nodes[NodeId("n1")].state is NodeState.LOST
        with pytest.raises(Fenced):
            await victim.session.submit(
                e.NodeLeft(node=victim.node, incarnation=victim.session.incarnation), 0
            )
        assert {item.node for item in await fleet.log.nodes()} == {"n0", "n2", "n3", "n4"}
        assert len(fleet.said(e.NodeLost)) == 1

    play(scenario)


def test_survivors_resume_at_the_step_that_any_of_them_saw(play: Play) -> None:
    """Who holds the gradients of the last step applies them; the joiner receives that state."""

    async def scenario(fleet: Fleet) -> None:
        await launched(fleet)
        for name, step, pending in (("n0", 9, 10), ("n2", 10, -1), ("n3", 10, -1)):
            fleet.nodes[name].worker.step, fleet.nodes[name].worker.pending = step, pending
        await fleet.kill_node("n1", seen_by=["n0"])
        await fleet.until(epoch_is(2), "the swap")
        (commit,) = fleet.said(e.TransitionCommitted)[1:]
        assert (commit.resume_step, commit.apply) == (11, (Slot(0),))
        assert [h.joiner for h in commit.handovers] == ["n4"]
        assert [fleet.nodes[n].worker.step for n in ("n0", "n2", "n3", "n4")] == [10] * 4

    play(scenario)


def test_a_node_under_a_verdict_is_swapped_swept_and_comes_back(play: Play) -> None:
    """No step is lost, the leaver is quarantined, passes its sweep, and is a warm standby again."""

    async def scenario(fleet: Fleet) -> None:
        term = await launched(fleet)
        term.reconciler.state_events([verdict(fleet, "n2", e.Verdict.DEGRADED)])
        await fleet.until(epoch_is(2), "the planned swap")
        assert fleet.holder(2) == "n4"
        (plan,) = fleet.said(e.TransitionPlanned)[1:]
        assert plan.motive is e.Motive.PLANNED
        await fleet.until(state_is("n2", NodeState.STANDBY), "a certified standby")
        kinds = [type(r.event).__name__ for r in fleet.recorded if names(r.event, "n2")]
        expected = ["NodeQuarantined", "SweepRequested", "CertificateIssued", "WarmupPassed"]
        assert [kind for kind in kinds if kind in expected] == expected

    play(scenario)


def test_a_slow_node_is_found_by_its_vitals_alone(play: Play) -> None:
    """Windows of vitals in, verdict out, swap done: nobody says who is slow."""

    async def scenario(fleet: Fleet) -> None:
        await launched(fleet)
        async with anyio.create_task_group() as group:
            for name in ("n0", "n1", "n2", "n3"):
                group.start_soon(publish_vitals, fleet.nodes[name], 1.4 if name == "n3" else 1.0)
            await fleet.until(epoch_is(2), "the swap of the slow node")
            group.cancel_scope.cancel()
        assert fleet.holder(3) == "n4"
        assert {event.node for event in fleet.said(e.VerdictIssued)} == {"n3"}

    play(scenario)


def test_a_silent_death_is_noticed_when_the_lease_ends(play: Play) -> None:
    """Nobody reports the victim; its lease runs out, the grace passes, it is replaced."""

    async def scenario(fleet: Fleet) -> None:
        await launched(fleet)
        await fleet.kill_node("n1", seen_by=[])
        await fleet.until(epoch_is(2), "the swap")
        assert fleet.holder(1) == "n4"
        assert len(fleet.said(e.LeaseExpired)) == 1

    play(scenario)


def test_a_node_that_takes_its_key_again_within_the_grace_is_not_lost(play: Play) -> None:
    """A lease that ended is no loss yet: the same incarnation goes on."""

    async def scenario(fleet: Fleet) -> None:
        await launched(fleet)
        session = fleet.nodes["n1"].session
        await fleet.log.store.revoke(session._keeper.lease)
        await anyio.sleep(2.5)
        assert fleet.said(e.LeaseExpired) == []
        assert fleet.state.nodes[NodeId("n1")].state is NodeState.ACTIVE

    play(scenario)


def test_a_node_that_leaves_in_good_order_is_gone_not_lost(play: Play) -> None:
    """`NodeLeft`, then the lease given back: no evidence, no fence."""

    async def scenario(fleet: Fleet) -> None:
        await launched(fleet)
        leaver = fleet.nodes["n4"]
        leaver.stop()
        await leaver.ended.wait()
        await fleet.until(state_is("n4", NodeState.GONE), "n4 is gone")
        await anyio.sleep(2.0)
        assert fleet.said(e.LeaseExpired) == []
        assert fleet.said(e.NodeLost) == []

    play(scenario)


def test_a_second_controller_finishes_what_the_first_began(play: Play) -> None:
    """The leader dies between plan and commit; its successor commits the same transition."""

    async def scenario(fleet: Fleet) -> None:
        await launched(fleet, "c0", ttl_s=2.0)  # sooner than an agent tires of its worker
        fleet.nodes["n2"].worker.mute = True
        await fleet.kill_node("n1", seen_by=["n0"])
        await fleet.until(lambda state: awaited(state) == ("n2",), "only n2 is awaited")
        fleet.kill_controller("c0")
        await fleet.start_controller("c1", KNOBS)
        fleet.nodes["n2"].unmute()
        await fleet.until(epoch_is(2), "the swap")
        assert [event.controller for event in fleet.said(e.LeaderElected)] == ["c0", "c1"]
        assert len(fleet.said(e.TransitionPlanned)) == 2

    play(scenario)


def test_an_append_of_a_deposed_controller_fails(play: Play) -> None:
    """A controller that slept through its lease cannot write one entry more."""

    async def scenario(fleet: Fleet) -> None:
        ghost = await fleet.log.campaign("ghost", 2.0)
        await fleet.start_controller("c1")
        await fleet.until(lambda state: state.controller == "c1", "the takeover")
        with pytest.raises(Deposed):
            await ghost.append(Batch(after=ghost.head, entries=(b"{}",)))
        assert await fleet.log.head() == 1

    play(scenario)


def test_a_fact_that_does_not_decode_stays_out_and_holds_up_nobody(play: Play) -> None:
    """It is left where it is; what others state, and what its writer states later, goes on."""

    async def scenario(fleet: Fleet) -> None:
        term = await launched(fleet)
        passed = []
        term.reconciler.passed_listeners.append(lambda how, each: passed.append((how, each.item)))
        node = fleet.nodes["n4"]
        counter = node.session.counter + 1
        key = fleet.log._keys.inbox(node.node, node.session.incarnation, counter)
        await fleet.log.store.txn((), (Put(key, b"\xff no fact"),))
        session = node.session
        session._counter, mark_key = counter, fleet.log._keys.counter(node.node)
        await fleet.log.store.txn((), (Put(mark_key, session._mark),))
        await session.submit(e.NodeLeft(node=node.node, incarnation=session.incarnation), 0)
        await fleet.until(state_is("n4", NodeState.GONE), "the fact after the corrupt one")
        assert [(how, item.counter) for how, item in passed] == [("set aside", counter)]
        assert [item.raw for item in await fleet.log.inbox()] == [b"\xff no fact"]

    play(scenario)


def test_a_controller_brings_about_the_policy_it_is_configured_with(play: Play) -> None:
    """Knobs of the configuration become an event once; a restart does not repeat it."""

    async def scenario(fleet: Fleet) -> None:
        await fleet.start_controller("c0", KNOBS)
        await fleet.until(lambda state: state.policy_version == 1, "the policy")
        assert fleet.state.policy.launch_patience_s == 5.0
        fleet.kill_controller("c0")
        await fleet.start_controller("c1", KNOBS)
        await fleet.until(lambda state: state.controller == "c1", "the takeover")
        assert len(fleet.said(e.PolicyChanged)) == 1

    play(scenario)


def test_a_full_store_ends_a_term_and_not_the_controller(
    play_virtually: Callable[[Scenario, MemoryStore], None],
) -> None:
    """Once somebody made room it leads again, and what waited enters the log."""
    store = MemoryStore()

    async def scenario(fleet: Fleet) -> None:
        settings = Settings(controller="c0", fleet=fleet.log.fleet)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(lead_again_and_again, fleet.log, settings, wait=True))
            await fleet.until(lambda state: state.controller == "c0", "c0 leads")
            await fleet.act(e.DecisionsPaused(by="op"))
            await fleet.until(lambda state: state.paused_by == "op", "the act")
            store.faults.full = True
            with suppress(NoSpace):
                await fleet.act(e.DecisionsResumed(by="op"))
            await fleet.log.store.revoke(1)
            await anyio.sleep(60.0)
            store.faults.full = False
            await fleet.act(e.DecisionsResumed(by="op"))
            await fleet.until(lambda state: not state.paused_by, "the next act", within_s=60.0)
            group.cancel_scope.cancel()
        assert len(fleet.said(e.LeaderElected)) == 2

    play_virtually(scenario, store)


def test_a_full_store_ends_no_training(
    play_virtually: Callable[[Scenario, MemoryStore], None],
) -> None:
    """A node whose lease ended while the store is full trains on, and comes back as it was."""
    store = MemoryStore()

    async def scenario(fleet: Fleet) -> None:
        settings = Settings(controller="c0", fleet=fleet.log.fleet, knobs=KNOBS)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(lead_again_and_again, fleet.log, settings, wait=True))
            for number in range(5):
                await fleet.start_node(f"n{number}")
            await fleet.declare(4, standbys=1)
            await fleet.until(epoch_is(1), "the launch")
            before = [fleet.nodes[name].process for name in sorted(fleet.nodes)]
            store.faults.full = True
            store.expire(fleet.nodes["n1"].session._keeper.lease)
            await anyio.sleep(60.0)
            assert not fleet.nodes["n1"].session.is_alive
            store.faults.full = False
            await anyio.sleep(10.0)
            group.cancel_scope.cancel()
        assert {str(item.node) for item in await fleet.log.nodes()} == set(fleet.nodes)
        assert [fleet.nodes[name].process for name in sorted(fleet.nodes)] == before
        assert [process.exit for process in before] == [None] * 5
        assert fleet.said(e.NodeLost) == []

    play_virtually(scenario, store)


def test_what_is_said_while_the_store_is_full_is_not_lost(
    play_virtually: Callable[[Scenario, MemoryStore], None],
) -> None:
    """A node that dies meanwhile is replaced once there is room, on the word of its peers, each of
    whose facts is in the log once; nobody else's training ends.
    """
    store = MemoryStore()

    async def scenario(fleet: Fleet) -> None:
        settings = Settings(controller="c0", fleet=fleet.log.fleet, knobs=KNOBS)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(lead_again_and_again, fleet.log, settings, wait=True))
            for number in range(5):
                await fleet.start_node(f"n{number}")
            await fleet.declare(4, standbys=1)
            await fleet.until(epoch_is(1), "the launch")
            await fleet.until(state_is("n4", NodeState.STANDBY), "a warm standby")
            stayers = [fleet.nodes[name].process for name in ("n0", "n2", "n3", "n4")]
            store.faults.full = True
            await fleet.kill_node("n1", seen_by=["n0", "n2"])
            await anyio.sleep(30.0)
            assert fleet.state.jobs[JOB].epoch == 1
            store.faults.full = False
            await fleet.until(epoch_is(2), "the swap", within_s=60.0)
            group.cancel_scope.cancel()
        assert fleet.holder(1) == "n4"
        assert sorted(str(each.node) for each in fleet.said(e.PeerReset)) == ["n0", "n2"]
        assert [process.exit for process in stayers] == [None] * 4
        assert (await verify_log(fleet.log)).gaps == ()

    play_virtually(scenario, store)


def test_what_nobody_of_ours_wrote_ends_nothing(
    play_virtually: Callable[[Scenario, MemoryStore], None],
) -> None:
    """Garbage over projected keys and vitals, and under every prefix: all train on, the next loss
    is repaired, and who leads next puts the keys right.
    """

    async def scenario(fleet: Fleet) -> None:
        await launched(fleet)
        keys, one = fleet.log._keys, fleet.incarnation("n0")
        before = [fleet.nodes[name].process for name in sorted(fleet.nodes)]
        spans = [keys.log_all, keys.inbox_all, keys.nodes_all, keys.vitals_all, keys.desired_all]
        spans += [keys.orders_all, keys.snapshots_all]
        foreign = [(start + name, b"?") for start, _ in spans for name in (b"\xff", b"x/y/z")]
        ours = [keys.desired(JOB), keys.orders(NodeId("n0")), keys.vitals(NodeId("n0"), one)]
        for key, value in [*foreign, *((key, b"\xff\x00 no JSON") for key in ours)]:
            await fleet.log.store.txn((), (Put(key, value),))
        await anyio.sleep(5.0)
        assert [process.exit for process in before] == [None] * 5
        await fleet.kill_node("n1", seen_by=["n0"])
        await fleet.until(epoch_is(2), "the swap")
        for key in ours[:2]:
            await fleet.log.store.txn((), (Put(key, b"{}"),))
        fleet.kill_controller("c0")
        await fleet.start_controller("c1", KNOBS)
        await fleet.until(lambda state: state.controller == "c1", "the takeover")
        await anyio.sleep(1.0)
        standing = await fleet.log.desired(JOB)
        assert standing is not None
        assert decode_desired(standing).epoch == 2
        assert (await verify_log(fleet.log)).entries == fleet.state.position

    play_virtually(scenario, MemoryStore())


# --- means ------------------------------------------------------------------------------------


def awaited(state: FleetState) -> tuple[NodeId, ...]:
    """Who must still answer in phase one of an unplanned transition."""
    pending = state.jobs[JOB].pending
    if pending is None or pending.phase is not Phase.PREPARING:
        return ()
    return pending.awaited()


def verdict(fleet: Fleet, node: str, judged: e.Verdict) -> e.VerdictIssued:
    """A verdict as the detector would issue it."""
    return e.VerdictIssued(
        node=NodeId(node),
        incarnation=fleet.incarnation(node),
        verdict=judged,
        reason="work 1.41x its 3 peers' median",
        job=JOB,
        detector="test",
    )


def still_here(node: ScriptedNode) -> e.WorkerExited:
    """A fact that a node may state of itself."""
    return e.WorkerExited(
        node=node.node, incarnation=node.session.incarnation, job=JOB, reason="test"
    )


def names(event: e.Event, node: str) -> bool:
    """Whether an event is about a node."""
    return getattr(event, "node", "") == node


async def publish_vitals(node: ScriptedNode, factor: float) -> None:
    """Publish a window every 50 ms, in which this node works `factor` times as long as others."""
    window = 0
    while True:
        work_ms = 40.0 * factor + 0.1 * (window % 3)
        wait_ms = 40.0 * 1.4 - work_ms + 2.0
        metrics = {WORK_MS: work_ms, WAIT_MS: wait_ms, CPU_MS: work_ms, STEP_MS: 58.0}
        vitals = Vitals(
            node=node.node,
            incarnation=node.session.incarnation,
            job=JOB,
            slot=Slot(int(node.node[1:])),
            role=Role("only"),
            epoch=node.desired.epoch if node.desired is not None else Epoch(0),
            window=window,
            started_at_ms=window * 50,
            ended_at_ms=window * 50 + 50,
            steps=20,
            last_step=20 * (window + 1),
            metrics={name: summarise([value] * 20) for name, value in metrics.items()},
        )
        await node.session.put_vitals(encode_vitals(vitals))
        window += 1
        await anyio.sleep(0.05)
