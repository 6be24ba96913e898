"""An operator's act, from the wish to its place in the log and what was answered.

What belongs here: stating an act and finding out what became of it. Whether it is allowed is the
state machine's; here only what cannot be meant is refused: a node that never joined, a job that was
never declared, or was already.
"""

from __future__ import annotations

import difflib
from typing import Any

import anyio
from msgspec import Struct

from controlplane.errors import ActRefusedError, JobExists, JobOver, NoSuchJob, NoSuchNode
from controlplane.eventlog import EventLog
from controlplane.eventlog.log import OPERATOR_PREFIX
from controlplane.lines import words_of
from controlplane.picture import fold_log
from statemachine import events as e
from statemachine.codec import decode_event, encode_event
from statemachine.decide import settle
from statemachine.evolve import evolve
from statemachine.ids import NodeId, Position
from statemachine.state import FleetState

ANSWER_S = 3.0
"""How long the leading controller may take to sequence an act, in seconds."""


class Acted(Struct, frozen=True, kw_only=True):
    """An act in the log, and what followed at once; `position` is None while nobody sequences."""

    act: str
    position: Position | None
    state: FleetState
    followed: tuple[e.Recorded, ...] = ()
    waits: str = ""
    """What the act waits for, if it does."""

    def as_values(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "act": self.act,
            "position": self.position,
            "followed": [type(entry.event).__name__ for entry in self.followed],
            "waits": self.waits or None,
        }


async def act(log: EventLog, name: str, event: e.AnyEvent, now_ms: int) -> Acted:
    """State an act in the name of an operator, and wait until it is in the log.

    Raises:
        NoSuchNode, NoSuchJob: it is about a node that never joined, a job that nobody declared.
        JobExists, JobOver: the job is declared already, or finished.
        ActRefusedError: the state machine refused it.
        StoreUnavailable, OutcomeUnknown.
    """
    event = decode_event(encode_event(event))  # as it will come back: a list for a tuple
    state = await fold_log(log)
    check_meant(state, event, log.fleet)
    writer = await log.submit_operator(name, event, now_ms)
    kind = type(event).__name__
    with anyio.move_on_after(ANSWER_S):
        return await _answered(log, state, writer, event)
    return Acted(act=kind, position=None, state=state)


def waits_for(state: FleetState, event: e.AnyEvent) -> str:
    """Why a node that is wanted out keeps its slot; empty if it does not, or is on its way."""
    if not isinstance(event, (e.DrainRequested, e.SwitchoverRequested, e.QuarantineRequested)):
        return ""
    node = state.nodes.get(event.node)
    job = state.jobs.get(node.job) if node is not None else None
    if node is None or job is None or not node.wanted_out or node.slot < 0:
        return ""
    if job.pending is not None:
        leaves = any(change.leaver == node.node for change in job.pending.plan.changes)
        return "" if leaves else f"transition {job.pending.plan.transition} is under way"
    count = len(state.pool)
    there = "1 node is" if count == 1 else f"{count} nodes are"
    return (
        f"{node.node} keeps slot {node.slot} of {job.job} until somebody can take it; "
        f"{there} in the pool, see 'changeover nodes'"
    )


def check_meant(state: FleetState, event: e.AnyEvent, fleet: str) -> None:
    """Make sure that an act is about a node that joined, and a job that may be declared or stopped.

    Raises:
        NoSuchNode, NoSuchJob, JobExists, JobOver.
    """
    match event:
        case e.JobDeclared():
            if event.job in state.jobs:
                raise JobExists(f"job {event.job} is declared already in fleet {fleet}")
        case e.JobStopRequested():
            job = state.jobs.get(event.job)
            if job is None:
                raise NoSuchJob(
                    f"no job {event.job!r} was declared in fleet {fleet}; "
                    "'changeover status' lists those that were"
                )
            if job.finished:
                raise JobOver(f"job {event.job} of fleet {fleet} is finished already")
        case _:
            node = getattr(event, "node", None)
            if node is not None:
                known_node(state, node, fleet)


def known_node(state: FleetState, node: str, fleet: str) -> NodeId:
    """A node's name, if it ever joined.

    Raises:
        NoSuchNode: with the nearest name.
    """
    if NodeId(node) in state.nodes:
        return NodeId(node)
    near = difflib.get_close_matches(node, [str(name) for name in state.nodes], n=1)
    hint = f"; did you mean {near[0]}?" if near else "; see 'changeover nodes'"
    raise NoSuchNode(f"no node {node!r} ever joined fleet {fleet}{hint}")


async def _answered(log: EventLog, state: FleetState, writer: str, event: e.AnyEvent) -> Acted:
    position: Position | None = None
    followed: list[e.Recorded] = []
    async with log.follow(Position(state.position + 1)) as follower:
        while True:
            for entry in await follower.next_batch():
                recorded = entry.recorded()
                state = evolve(state, recorded)
                if recorded.writer == writer and recorded.event == event:
                    position = recorded.position
                elif position is not None:
                    followed.append(recorded)
                    _raise_if_refused(recorded.event, event)
            if position is not None:  # what was decided upon it is in the same append
                return Acted(
                    act=type(event).__name__,
                    position=position,
                    state=state,
                    followed=tuple(followed),
                    waits=waits_for(state, event),
                )


def _raise_if_refused(answer: e.AnyEvent, act: e.AnyEvent) -> None:
    if not isinstance(answer, e.ActRefused):
        return
    if (answer.node, answer.by) == (getattr(act, "node", ""), getattr(act, "by", "")):
        raise ActRefusedError(f"{answer.act} of {answer.node} is refused: {answer.reason}")


# --- looking ahead ----------------------------------------------------------------------------


class Foreseen(Struct, frozen=True, kw_only=True):
    """What the state machine would decide upon an act, as of now; nothing was stated."""

    act: str
    refused: str
    """The reason, if it would be refused."""
    follows: tuple[e.Recorded, ...]
    policy_version: int
    waits: str = ""
    """What it would wait for, if it would."""

    def as_values(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "act": self.act,
            "dry_run": True,
            "refused": self.refused or None,
            "waits": self.waits or None,
            "policy_version": self.policy_version,
            "follows": [
                {
                    "type": type(entry.event).__name__,
                    "reason": getattr(entry.event, "reason", ""),
                    "words": words_of(entry.event),
                    "considered": list(getattr(entry.event, "considered", ())),
                }
                for entry in self.follows
            ],
        }

    def lines(self, words: str) -> list[str]:
        """For people."""
        if self.refused:
            return [f"{words} would be refused: {self.refused}"]
        if not self.follows:
            why = f": {self.waits}" if self.waits else ""
            return [f"{words} would be recorded; nothing would follow at once{why}"]
        told = [f"{words} would be recorded, and then (policy {self.policy_version}):"]
        for entry in self.follows:
            told.append(f"  {type(entry.event).__name__} {words_of(entry.event)}")
            passed = getattr(entry.event, "considered", ())
            told += [f"    not chosen: {line}" for line in passed]
        return told


async def foresee(log: EventLog, name: str, event: e.AnyEvent, now_ms: int) -> Foreseen:
    """Say what would be decided upon an act, and state nothing.

    Raises:
        NoSuchNode, NoSuchJob, JobExists, JobOver: as `act`.
        StoreUnavailable.
    """
    state = await fold_log(log)
    check_meant(state, event, log.fleet)
    node = getattr(event, "node", None)
    now_ms = max(now_ms, state.at_ms)
    entry = e.Recorded(
        position=Position(state.position + 1),
        at_ms=now_ms,
        writer=f"{OPERATOR_PREFIX}{name}",
        event=event,
    )
    settled = settle(evolve(state, entry), now_ms, "dry-run")
    answers = [r.event for r in settled.recorded if isinstance(r.event, e.ActRefused)]
    mine = [a.reason for a in answers if (a.node, a.by) == (node, getattr(event, "by", ""))]
    return Foreseen(
        act=type(event).__name__,
        refused=mine[0] if mine else "",
        follows=settled.recorded,
        waits=waits_for(settled.state, event),
        policy_version=settled.state.policy_version,
    )
