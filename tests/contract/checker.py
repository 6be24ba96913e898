"""Writers, controllers and readers on a store that is being hurt; and the judge of what they saw.

The shipped code runs: sessions state facts, two controllers contend for the leadership and sequence
them, followers read. The history is what was asked and answered at which moment; the judge compares
it with the log and with what each reader got, and knows nothing of how the log works.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
import msgspec

from controlplane.config import Settings
from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import (
    EventLog,
    EventLogError,
    OutcomeUnknown,
    Retry,
    ServerInfo,
    open_store,
)
from controlplane.eventlog import etcd_wire as wire
from controlplane.server import lead_again_and_again
from statemachine.events import NodeJoined, Recorded, StepResumed
from statemachine.ids import Incarnation, JobId, NodeId, Position, TransitionId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from controlplane.eventlog import NodeSession

WRITERS = 6
TTL_S = 600.0
LEADER_TTL_S = 2.0


class Stated(msgspec.Struct, frozen=True):
    """One fact that was acknowledged: what it said, and between which moments."""

    writer: str
    counter: int
    step: int
    began: float
    ended: float


class History(msgspec.Struct):
    """What happened, as seen from outside."""

    stated: list[Stated] = msgspec.field(default_factory=list)
    read: dict[str, list[Recorded]] = msgspec.field(default_factory=dict)
    faults: list[str] = msgspec.field(default_factory=list)


# --- the judge ------------------------------------------------------------------------------------


def judge(history: History, log: Sequence[Recorded]) -> list[str]:
    """Every way in which the log, or a reader, tells something else than what was acknowledged."""
    found = []
    positions = [recorded.position for recorded in log]
    if positions != list(range(1, len(log) + 1)):
        found.append(f"the log is not dense: {positions[:50]}")
    for reader, seen in history.read.items():
        found += _judge_reader(reader, seen, log)
    return found + _judge_writers(history.stated, log) + _judge_order(history.stated, log)


def _judge_reader(reader: str, seen: Sequence[Recorded], log: Sequence[Recorded]) -> list[str]:
    for number, recorded in enumerate(seen):
        if number >= len(log) or recorded != log[number]:
            return [f"{reader} got {recorded.position} where {number + 1} should have come"]
    return [] if len(seen) == len(log) else [f"{reader} got {len(seen)} of {len(log)} entries"]


def _judge_writers(stated: Sequence[Stated], log: Sequence[Recorded]) -> list[str]:
    found = []
    wanted: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for each in stated:
        wanted[each.writer].append((each.counter, each.step))
    got: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for recorded in log:
        if isinstance(recorded.event, StepResumed):
            got[recorded.writer].append((recorded.counter, recorded.event.step))
    for writer in sorted(wanted.keys() | got.keys()):
        if got[writer] != wanted[writer]:
            lost = sorted(set(wanted[writer]) - set(got[writer]))
            made_up = sorted(set(got[writer]) - set(wanted[writer]))
            found.append(
                f"{writer}: {len(wanted[writer])} facts acknowledged, {len(got[writer])} in the "
                f"log; lost {lost[:9]}, made up {made_up[:9]}, or doubled, or in another order"
            )
    return found


def _judge_order(stated: Sequence[Stated], log: Sequence[Recorded]) -> list[str]:
    """A fact that was acknowledged before another was stated stands before it."""
    place = {(each.writer, each.counter): each.position for each in log}
    by_end = sorted(stated, key=lambda each: each.ended)
    by_begin = sorted(stated, key=lambda each: each.began)
    latest, number = (0, ""), 0
    for fact in by_begin:
        while number < len(by_end) and by_end[number].ended < fact.began:
            done = by_end[number]
            at = place.get((done.writer, done.counter), Position(0))
            latest = max(latest, (at, f"{done.writer}/{done.counter}"))
            number += 1
        at = place.get((fact.writer, fact.counter), Position(0))
        if at and at < latest[0]:
            mine = f"{fact.writer}/{fact.counter} at {at}"
            return [f"{latest[1]} at {latest[0]} was acknowledged before {mine} was stated"]
    return []


# --- the players ----------------------------------------------------------------------------------


async def until_answered(act: Callable[[], Awaitable[object]]) -> None:
    """Do again what may be done again, until it is answered."""
    while True:
        try:
            await act()
            return
        except (Retry, OutcomeUnknown):
            await anyio.sleep(0.05)


async def write(session: NodeSession, history: History, rng: random.Random, end: float) -> None:
    """State one fact after the other until a time; each is answered in the end."""
    step = 0
    while time.monotonic() < end:
        step += 1
        event = StepResumed(
            node=session.node,
            incarnation=session.incarnation,
            job=JobId("j"),
            transition=TransitionId(0),
            step=step,
            step_ms=0.0,
        )
        began = time.monotonic()
        await until_answered(lambda event=event: session.submit(event, event.step))  # type: ignore[misc]
        history.stated.append(Stated(session.node, session.counter, step, began, time.monotonic()))
        await anyio.sleep(rng.uniform(0, 0.03))


async def read(name: str, log: EventLog, history: History, pace: Callable[[], float]) -> None:
    """Follow from the beginning; `pace` says how long to rest, below zero to begin anew."""
    seen = history.read.setdefault(name, [])
    while True:
        async with log.follow(Position(len(seen) + 1)) as entries:
            async for recorded in entries:
                seen.append(recorded)
                rest_s = pace()
                if rest_s < 0:
                    break
                if rest_s:
                    await anyio.sleep(rest_s)


def paces(rng: random.Random) -> dict[str, Callable[[], float]]:
    """A reader that is quick, one that is slow, and one that begins anew now and then."""
    return {
        "quick": lambda: 0.0,
        "slow": lambda: rng.choice((0.0, 0.0, 0.02)),
        "restless": lambda: -1.0 if rng.random() < 0.02 else 0.0,
    }


# --- the faults -----------------------------------------------------------------------------------


KINDS = ("kill", "freeze", "compact")
KINDS_OF_A_CLUSTER = (*KINDS, "move", "freeze leader")
BLACK_HOLE_S = 12.0
"""Seconds of silence after which clients have given up every connection to a server."""


async def hurt(
    servers: Sequence[EtcdServer], url: str, rng: random.Random, history: History, end: float
) -> None:
    """One fault after the other until a time, each kind before any comes again; then heal."""
    waiting: list[str] = []
    while time.monotonic() < end:
        await anyio.sleep(rng.uniform(0.1, 1.0))
        if not waiting:
            waiting = list(KINDS_OF_A_CLUSTER if len(servers) > 1 else KINDS)
            if end - time.monotonic() > 2 * BLACK_HOLE_S:
                waiting.append("black hole")
            rng.shuffle(waiting)
        kind = waiting.pop()
        server = await _victim(servers, rng, leading=kind in ("move", "freeze leader"))
        history.faults.append(f"{kind} {servers.index(server)}")
        if kind == "kill":
            server.kill()
            await anyio.sleep(rng.uniform(0, 1.5))
            await server.start()
        elif kind == "compact":
            await compact(url)
        elif kind == "move":
            await move_leader(server, rng.choice([each for each in servers if each is not server]))
        else:
            server.pause()
            await anyio.sleep(BLACK_HOLE_S if kind == "black hole" else rng.uniform(0.1, 3.0))
            server.resume()


async def _victim(
    servers: Sequence[EtcdServer], rng: random.Random, *, leading: bool
) -> EtcdServer:
    """The member that leads, or any; more often the one that leads."""
    if len(servers) > 1 and (leading or rng.random() < 0.5):
        for server in servers:
            info = await info_of(server)
            if info is not None and info.leader == info.member:
                return server
    return rng.choice(servers)


async def info_of(server: EtcdServer) -> ServerInfo | None:
    """What a member says of itself; None if it says nothing."""
    try:
        store = await open_store(server.url)
        try:
            return await store.server_info()
        finally:
            await store.aclose()
    except EventLogError:
        return None


async def move_leader(leading: EtcdServer, to: EtcdServer) -> None:
    """Have the leading member hand over to another, in good order."""
    heir = await info_of(to)
    if heir is None:
        return
    with suppress(EventLogError):  # it may have lost the leadership by itself meanwhile
        store = await open_store(leading.url)
        try:
            request = wire.MESSAGES["MoveLeaderRequest"](targetID=heir.member)
            await store.ask(wire.MAINTENANCE_MOVE_LEADER, request, "MoveLeaderResponse")
        finally:
            await store.aclose()


async def compact(url: str) -> None:
    """Forget all history up to now."""
    try:
        store = await open_store(url)
        try:
            await store.compact((await store.server_info()).revision)
        finally:
            await store.aclose()
    except (Retry, OutcomeUnknown):
        return


# --- the play -------------------------------------------------------------------------------------


@asynccontextmanager
async def log_on(url: str, fleet: str, client: str) -> AsyncIterator[EventLog]:
    """A log with connections of its own."""
    store = await open_store(url, client=client)
    try:
        yield EventLog(store, fleet)
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


async def lead(url: str, fleet: str, name: str, client: str) -> None:
    """Be one of the controllers, without end."""
    settings = Settings(
        etcd=url, fleet=fleet, controller=name, leader_ttl_s=LEADER_TTL_S, client=client
    )
    async with log_on(url, fleet, client) as log:
        await lead_again_and_again(log, settings, wait=True)


async def settled(log: EventLog, history: History) -> list[Recorded]:
    """Wait until nothing waits and every reader is at the head; return the log."""
    with anyio.fail_after(40):
        while await log.inbox():  # noqa: ASYNC110 - a bounded wait for what has no event
            await anyio.sleep(0.1)
        while True:
            entries = [recorded async for recorded in log.read()]
            while any(len(seen) < len(entries) for seen in history.read.values()):  # noqa: ASYNC110
                await anyio.sleep(0.05)
            if all(len(seen) == len(entries) for seen in history.read.values()):
                return entries  # else somebody was elected meanwhile


async def play(
    servers: Sequence[EtcdServer], fleet: str, seed: int, duration_s: float, client: str
) -> tuple[History, list[Recorded]]:
    """Let them play for a while under faults, then heal; return history and log."""
    rng = random.Random(seed)
    history = History()
    url = "http://" + ",".join(server.url.partition("://")[2] for server in servers)
    async with log_on(url, fleet, client) as log, anyio.create_task_group() as group:
        sessions = [await log.join(NodeId(f"n{each}"), b"", TTL_S) for each in range(WRITERS)]
        for session in sessions:
            joined = NodeJoined(node=session.node, incarnation=Incarnation(1), host="h")
            await session.submit(joined, 0)
        group.start_soon(lead, url, fleet, "c0", client)
        group.start_soon(lead, url, fleet, "c1", client)
        for name, pace in paces(rng).items():
            group.start_soon(read, name, log, history, pace)
        end = time.monotonic() + duration_s
        async with anyio.create_task_group() as players:
            for session in sessions:
                players.start_soon(write, session, history, random.Random(rng.random()), end)
            players.start_soon(hurt, servers, url, rng, history, end)
        entries = await settled(log, history)
        group.cancel_scope.cancel()
    return history, entries
