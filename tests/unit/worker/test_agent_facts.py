"""Facts wait for the store in order and are stated once; of vitals only the newest waits."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from controlplane.eventlog import EventLog, Fenced, NodeSession
from controlplane.eventlog.memory import MemoryStore
from statemachine import events as e
from statemachine.codec import EVENT_BYTES_MAX
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, SweepId, TransitionId
from worker import agent_facts
from worker.agent_facts import FactQueue, VitalsOutlet

NODE = NodeId("n0")


def exited(reason: str) -> e.WorkerExited:
    """A fact that a test recognises."""
    return e.WorkerExited(node=NODE, incarnation=Incarnation(1), job=JobId("gpt"), reason=reason)


class Place:
    """A node that joined a log in memory."""

    def __init__(self, store: MemoryStore, log: EventLog, session: NodeSession) -> None:
        self.store = store
        self.log = log
        self.session = session

    async def reasons(self) -> list[str]:
        """What was stated, in order."""
        found = [item.fact() for item in await self.log.inbox()]
        assert [fact.counter for fact in found] == list(range(1, len(found) + 1))
        return [fact.event.reason for fact in found if isinstance(fact.event, e.WorkerExited)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other quickly: these tests are about order, not about time."""
    monkeypatch.setattr(agent_facts, "PAUSES_S", (0.001, 0.002, 0.005))


@pytest.fixture
async def place() -> Place:
    """A node that joined."""
    store = MemoryStore()
    log = EventLog(store, "lab")
    return Place(store, log, await log.join(NODE, b"", 60))


@asynccontextmanager
async def stating(facts: FactQueue | VitalsOutlet) -> AsyncIterator[None]:
    """Run a queue beside the body."""
    async with anyio.create_task_group() as group:
        group.start_soon(facts.run)
        yield
        group.cancel_scope.cancel()


async def test_facts_are_stated_in_the_order_in_which_they_came(place: Place) -> None:
    """Order is that of `put`, also for those that were put before anybody stated them."""
    facts = FactQueue(place.session)
    facts.put(exited("1"))
    facts.put(exited("2"))
    async with stating(facts):
        facts.put(exited("3"))
        with anyio.fail_after(5):
            await facts.drained()

    assert await place.reasons() == ["1", "2", "3"]
    assert len(facts) == 0


async def test_putting_never_waits_and_an_outage_loses_nothing(place: Place) -> None:
    """While the store is away facts wait, with the time at which each was observed."""
    facts = FactQueue(place.session)
    place.store.faults.away = True
    async with stating(facts):
        for number in range(200):
            facts.put(exited(str(number)))
        await anyio.sleep(0.02)
        assert len(facts) == 200
        place.store.faults.away = False
        with anyio.fail_after(10):
            await facts.drained()

    assert await place.reasons() == [str(number) for number in range(200)]
    times = [item.fact().at_ms for item in await place.log.inbox()]
    assert times == sorted(times)


async def test_lost_answers_do_not_state_a_fact_twice(place: Place) -> None:
    """A fact whose answer was lost, or whose request was, is there once."""
    facts = FactQueue(place.session)
    async with stating(facts):
        for number in range(6):
            place.store.faults.lose_answers = 1 if number % 2 else 0
            place.store.faults.lose_requests = 0 if number % 2 else 1
            facts.put(exited(str(number)))
            with anyio.fail_after(5):
                await facts.drained()

    assert await place.reasons() == [str(number) for number in range(6)]


async def test_being_cancelled_in_the_middle_neither_loses_nor_repeats(place: Place) -> None:
    """A queue that is stopped and run again goes on where it was, whatever was in flight."""
    facts = FactQueue(place.session)
    for number in range(30):
        facts.put(exited(str(number)))
    ticks = 0
    while len(facts):
        ticks += 1
        assert ticks < 1000
        async with anyio.create_task_group() as group:
            group.start_soon(facts.run)
            for _ in range(ticks % 7):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    assert await place.reasons() == [str(number) for number in range(30)]
    assert ticks > 1, "the queue was never cancelled in between"


async def test_a_lease_that_ended_pauses_and_a_loss_ends(place: Place) -> None:
    """Facts wait for a lease to be established again; a declared loss raises out of the queue."""
    facts = FactQueue(place.session)
    place.store.expire(place.session._keeper.lease)
    async with stating(facts):
        facts.put(exited("late"))
        await anyio.sleep(0.01)
        assert len(facts) == 1
        await place.session.reestablish()
        with anyio.fail_after(5):
            await facts.drained()
    assert await place.reasons() == ["late"]

    pen = await place.log.campaign("c", 60)
    from controlplane.eventlog import Batch

    await pen.append(Batch(after=pen.head, entries=(), fenced=((NODE, Incarnation(1)),)))
    facts.put(exited("ghost"))
    with pytest.raises(Fenced), anyio.fail_after(5):
        await facts.run()
    assert await place.reasons() == ["late"]


async def test_a_fact_with_too_much_to_say_is_stated_cut_short(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """That a process ended is not lost because of what it said; what was left out is reported."""
    facts = FactQueue(place.session)
    with caplog.at_level(logging.ERROR):
        facts.put(exited("x" * EVENT_BYTES_MAX))
    facts.put(exited("small"))
    async with stating(facts):
        with anyio.fail_after(5):
            await facts.drained()

    cut, small = await place.reasons()
    left_out = EVENT_BYTES_MAX - agent_facts.TEXT_CHARS_MAX
    assert cut == "x" * agent_facts.TEXT_CHARS_MAX + f" (and {left_out} characters more)"
    assert small == "small"
    assert "WorkerExited" in caplog.text


async def test_a_fact_that_cannot_be_stated_is_named_and_does_not_block_the_others(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """One impossible fact is reported in the agent's log; those behind it are stated."""
    facts = FactQueue(place.session)
    numbers = {f"gemm_{number}": 1.0 for number in range(EVENT_BYTES_MAX // 8)}
    measured = e.SweepRoundFinished(
        sweep=SweepId(1),
        node=NODE,
        incarnation=Incarnation(1),
        round="solo",
        measurements=numbers,
    )
    with caplog.at_level(logging.ERROR):
        facts.put(measured)
    facts.put(exited("small"))
    async with stating(facts):
        with anyio.fail_after(5):
            await facts.drained()

    assert await place.reasons() == ["small"]
    assert "not stated: SweepRoundFinished" in caplog.text


async def test_only_the_newest_vitals_wait(place: Place) -> None:
    """Windows that pile up while the store is away are replaced, and counted."""
    vitals = VitalsOutlet(place.session)
    for number in range(10):
        vitals.put(b"%d" % number)
    async with stating(vitals):
        with anyio.fail_after(5):
            async with place.log.watch_vitals() as view:
                async for delta in view:
                    if delta.updated:
                        break

    assert [item.value for item in await place.log.vitals()] == [b"9"]
    assert vitals.dropped == 9


async def test_what_nobody_waits_for_lets_others_go_first(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a transition was applied is stated with the next fact, or after a moment; in order."""
    monkeypatch.setattr(agent_facts, "UNHURRIED_S", 60.0)
    applied = e.TransitionApplied(
        job=JobId("gpt"),
        transition=TransitionId(1),
        epoch=Epoch(1),
        node=NODE,
        incarnation=Incarnation(1),
        step=3,
    )
    facts = FactQueue(place.session)
    async with stating(facts):
        facts.put(applied)
        await anyio.wait_all_tasks_blocked()
        assert len(await place.log.inbox()) == 0
        facts.put(exited("1"))
        with anyio.fail_after(5):
            await facts.drained()
        assert [type(i.fact().event).__name__ for i in await place.log.inbox()] == [
            "TransitionApplied",
            "WorkerExited",
        ]
        monkeypatch.setattr(agent_facts, "UNHURRIED_S", 0.001)
        facts.put(applied)
        with anyio.fail_after(5):
            await facts.drained()
    assert len(await place.log.inbox()) == 3
