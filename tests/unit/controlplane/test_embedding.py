"""The control plane inside somebody's own program: started, followed, acted upon, stopped."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import anyio
import pytest

from controlplane.acting import foresee
from controlplane.config import Settings
from controlplane.embedding import ControlPlane, Decided, Plugins, control_plane, memory_log
from controlplane.errors import ActRefusedError, BadConfig, NoSuchNode
from controlplane.eventlog import EventLog, NodeSession
from controlplane.plugins import check_names
from statemachine import events as e
from statemachine.decide import Decision
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.policy import Policy
from statemachine.state import FleetState
from statemachine.vitals import STEP_MS, Metric, Vitals

JOB = JobId("job")
PATIENCE_S = 10


async def join(log: EventLog, name: str) -> NodeSession:
    """A node joins and is ready."""
    session = await log.join(NodeId(name), b"{}", 30.0)
    life = session.incarnation
    await session.submit(e.NodeJoined(node=NodeId(name), incarnation=life, host="h"), 0)
    await session.submit(
        e.WorkerReady(
            node=NodeId(name),
            incarnation=life,
            job=JOB,
            host="h",
            port=1,
            transfer_port=2,
            pid=3,
            digest="d",
        ),
        0,
    )
    return session


async def test_it_leads_acts_and_ends_with_its_block() -> None:
    """An act is in the log with its name; afterwards nobody leads."""
    log = memory_log("lab")
    with anyio.fail_after(PATIENCE_S):
        async with control_plane(log=log) as plane:
            await plane.until_leading()
            acted = await plane.act("ada", e.DecisionsPaused(by="ada", comment="work"))
            assert plane.is_leading
            assert plane.state.paused_by == "ada"
            assert acted.position is not None
        assert await log.leader() is None


async def test_an_act_that_cannot_be_is_refused_with_its_reason() -> None:
    """As on the command line."""
    log = memory_log("lab")
    with anyio.fail_after(PATIENCE_S):
        async with control_plane(log=log) as plane:
            await plane.until_leading()
            with pytest.raises(NoSuchNode):
                await plane.act("ada", e.DrainRequested(node=NodeId("n9"), by="ada"))
            await join(log, "n0")
            async for recorded in plane.events():
                if isinstance(recorded.event, e.WorkerReady):
                    break
            with pytest.raises(ActRefusedError, match="holds no slot"):
                await plane.act("ada", e.SwitchoverRequested(node=NodeId("n0"), by="ada"))


async def test_events_come_in_order_once_and_may_be_left_and_taken_up() -> None:
    """A reader that breaks off loses nothing and hurts nobody; from a position on it goes on."""
    log = memory_log("lab")
    with anyio.fail_after(PATIENCE_S):
        async with control_plane(log=log) as plane:
            await plane.until_leading()
            for number in range(5):
                await plane.act(f"op{number}", e.DecisionsPaused(by=f"op{number}"))
            first = []
            async for recorded in plane.events():
                first.append(recorded.position)
                if len(first) == 3:
                    break
            rest = []
            async for recorded in plane.events(after=3):
                rest.append(recorded.position)
                if recorded.position == plane.state.position:
                    break

    assert first == [1, 2, 3]
    assert rest == list(range(4, rest[-1] + 1))


async def test_a_reader_that_nobody_holds_any_more_is_forgotten() -> None:
    """A program that subscribes again and again does not follow the log ever more often."""
    log = memory_log("lab")
    with anyio.fail_after(PATIENCE_S):
        async with control_plane(log=log) as plane:
            await plane.until_leading()
            before = len(asyncio.all_tasks())
            for _ in range(20):
                async for _recorded in plane.events():
                    break
            gc.collect()
            await plane.act("ada", e.DecisionsPaused(by="ada"))
            while len(asyncio.all_tasks()) > before + 3:  # noqa: ASYNC110 - tasks end by themselves
                await anyio.sleep(0.01)


async def test_decisions_come_with_their_reason_and_what_they_stated() -> None:
    """One decision, however many events, from the position that it was taken from."""
    log = memory_log("lab")
    found: list[Decided] = []
    with anyio.fail_after(PATIENCE_S):
        async with control_plane(log=log) as plane:
            await plane.until_leading()
            await plane.act("ada", e.JobDeclared(job=JOB, axes={"dp": 2}))
            await join(log, "n0")
            await join(log, "n1")
            async for decided in plane.decisions():
                found.append(decided)
                if isinstance(decided.events[-1], e.TransitionPlanned):
                    break

    last = found[-1]
    assert last.reason.startswith("launch: 2 nodes are ready for 2 slots")
    assert last.decided_from == last.first - 1
    assert last.controller == "embedded"


async def test_an_act_that_cannot_be_is_refused_and_one_that_must_wait_says_for_what() -> None:
    """The last replica of a job stays where nobody can take its slot, and the act says so, before
    and after; where a standby is there that is not warm yet, it waits for that one.
    """
    log = memory_log("lab")
    with anyio.fail_after(PATIENCE_S):
        async with control_plane(log=log) as plane:
            await plane.until_leading()
            await plane.act("ada", e.JobDeclared(job=JOB, axes={"dp": 1}))
            session = await join(log, "n0")
            plan = await until(plane, e.TransitionPlanned)
            assert isinstance(plan, e.TransitionPlanned)
            await session.submit(
                e.TransitionPrepared(
                    job=JOB,
                    transition=plan.transition,
                    node=NodeId("n0"),
                    incarnation=session.incarnation,
                    report=e.Report(has_state=False),
                ),
                0,
            )
            await until(plane, e.TransitionCommitted)
            await session.submit(
                e.TransitionApplied(
                    job=JOB,
                    transition=plan.transition,
                    epoch=Epoch(1),
                    node=NodeId("n0"),
                    incarnation=session.incarnation,
                    step=0,
                ),
                0,
            )
            await until(plane, e.TransitionFinished)
            foreseen = await foresee(log, "ada", e.DrainRequested(node=NodeId("n0"), by="ada"), 0)
            with pytest.raises(ActRefusedError) as refused:
                await plane.act("ada", e.DrainRequested(node=NodeId("n0"), by="ada"))

            await join(log, "n1")
            await until(plane, e.WarmupStarted)
            hopeful = await foresee(log, "ada", e.DrainRequested(node=NodeId("n0"), by="ada"), 0)
            acted = await plane.act("ada", e.DrainRequested(node=NodeId("n0"), by="ada"))

    why = "nobody can take slot 0 of job: no node stands by or joins; it is the last replica"
    assert why in foreseen.refused
    assert why in str(refused.value)
    assert "drain of n0 would be refused: nobody can take" in foreseen.lines("drain of n0")[0]
    assert "n0 keeps slot 0 of job until somebody can take it; 1 node is in the pool" in acted.waits
    assert hopeful.waits == acted.waits
    assert not hopeful.refused


def keep_out_n1(state: FleetState, _: int, __: Policy) -> Decision | None:
    """A rule of somebody's own."""
    node = state.nodes.get(NodeId("n1"))
    if node is None or node.quarantine or node.worker is None:
        return None
    event = e.NodeQuarantined(node=node.node, incarnation=node.incarnation, reason="not n1")
    return Decision((event,), "not n1")


async def until(plane: ControlPlane, kind: type[e.Event]) -> e.AnyEvent:
    """The first event of a kind."""
    async for recorded in plane.events():
        if isinstance(recorded.event, kind):
            return recorded.event
    raise AssertionError


async def test_an_own_rule_is_asked_first_and_its_reason_is_in_the_log() -> None:
    """What it decides is a decision like any other."""
    log = memory_log("lab")
    with anyio.fail_after(PATIENCE_S):
        async with control_plane(log=log, plugins=Plugins(rule=keep_out_n1)) as plane:
            await plane.until_leading()
            await join(log, "n1")
            event = await until(plane, e.NodeQuarantined)

    assert isinstance(event, e.NodeQuarantined)
    assert (event.node, event.reason) == ("n1", "not n1")


def window(node: str) -> Vitals:
    """What another source measured."""
    return Vitals(
        node=NodeId(node),
        incarnation=Incarnation(1),
        job=JOB,
        slot=Slot(0),
        role=Role("only"),
        epoch=Epoch(1),
        window=0,
        started_at_ms=0,
        ended_at_ms=100,
        last_step=7,
        metrics={STEP_MS: Metric(count=1, mean=9.0, p50=9.0, p95=9.0)},
    )


async def test_own_metrics_reach_an_own_detector_whose_verdict_is_in_the_log() -> None:
    """A source gives windows, a detector judges, a listener hears of it."""
    log = memory_log("lab")
    launched, heard = anyio.Event(), list[str]()

    async def source() -> AsyncIterator[Vitals]:
        await launched.wait()
        yield window("n0")
        await anyio.sleep_forever()

    async def detector(
        windows: AsyncIterator[Vitals],
        states: object,
        state_events: object,
    ) -> None:
        async for vitals in windows:
            verdict = e.VerdictIssued(
                node=vitals.node,
                incarnation=vitals.incarnation,
                verdict=e.Verdict.SUSPECT,
                reason=f"step {vitals.last_step}",
                detector="mine",
            )
            assert callable(state_events)
            state_events([verdict])

    plugins = Plugins(
        sources=(source,),
        detectors=(detector,),
        listeners=(lambda recorded, _: heard.append(type(recorded.event).__name__),),
    )
    with anyio.fail_after(PATIENCE_S):
        async with control_plane(log=log, plugins=plugins) as plane:
            await plane.until_leading()
            await plane.act("ada", e.JobDeclared(job=JOB, axes={"dp": 1}))
            session = await join(log, "n0")
            plan = await until(plane, e.TransitionPlanned)
            assert isinstance(plan, e.TransitionPlanned)
            prepared = e.TransitionPrepared(
                job=JOB,
                transition=plan.transition,
                node=NodeId("n0"),
                incarnation=session.incarnation,
                report=e.Report(has_state=False),
            )
            await session.submit(prepared, 0)
            await until(plane, e.TransitionCommitted)
            launched.set()
            verdict = await until(plane, e.VerdictIssued)

    assert isinstance(verdict, e.VerdictIssued)
    assert (verdict.detector, verdict.reason) == ("mine", "step 7")
    assert "TransitionCommitted" in heard


async def test_a_plug_in_that_raises_is_seen() -> None:
    """It ends the control plane with its error; nothing is silently missing."""

    async def broken(*_: object) -> None:
        raise RuntimeError("mine")

    with pytest.raises(ExceptionGroup) as raised, anyio.fail_after(PATIENCE_S):
        async with control_plane(log=memory_log("lab"), plugins=Plugins(detectors=(broken,))):
            await anyio.sleep_forever()

    assert raised.group_contains(RuntimeError, match="mine")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"polcy": "x"}, "did you mean policy?"),
        ({"policy": "nobody"}, "no entry point of group changeover.policies; installed: none"),
        ("x", "must be a table"),
    ],
)
def test_a_plug_in_that_is_not_installed_is_refused(table: object, words: str) -> None:
    """When the settings are read."""
    with pytest.raises(BadConfig, match=words):
        check_names(table, "f.toml")


async def test_two_embedded_control_planes_take_turns() -> None:
    """The second stands by; when the first ends it leads, and both saw one log."""
    log = memory_log("lab")
    over = anyio.Event()
    led = anyio.Event()

    async def first() -> None:
        async with control_plane(Settings(controller="a"), log=log) as plane:
            await plane.until_leading()
            led.set()
            await over.wait()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await led.wait()
            async with control_plane(Settings(controller="b"), log=log) as second:
                assert not second.is_leading
                over.set()
                await second.until_leading()
                leaders = []
                async for recorded in second.events():
                    if isinstance(recorded.event, e.LeaderElected):
                        leaders.append(recorded.event.controller)
                    if len(leaders) == 2:
                        break

    assert leaders == ["a", "b"]
