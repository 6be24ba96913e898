"""An operator's act, from the wish to its place in the log and what was answered.

What belongs here: stating an act and finding out what became of it. Whether it is allowed is the
state machine's; here only what cannot be meant is refused: a node that never joined.
"""

from __future__ import annotations

import difflib
from typing import Any

import anyio
from msgspec import Struct

from controlplane.errors import ActRefusedError, NoSuchNode
from controlplane.eventlog import EventLog
from controlplane.picture import fold_log
from statemachine import events as e
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

    def as_values(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "act": self.act,
            "position": self.position,
            "followed": [type(entry.event).__name__ for entry in self.followed],
        }


async def act(log: EventLog, name: str, event: e.AnyEvent, now_ms: int) -> Acted:
    """State an act in the name of an operator, and wait until it is in the log.

    Raises:
        NoSuchNode: it is about a node that never joined.
        ActRefusedError: the state machine refused it.
        StoreUnavailable, OutcomeUnknown.
    """
    state = await fold_log(log)
    node = getattr(event, "node", None)
    if node is not None:
        known_node(state, node, log.fleet)
    writer = await log.submit_operator(name, event, now_ms)
    kind = type(event).__name__
    with anyio.move_on_after(ANSWER_S):
        return await _answered(log, state, writer, event)
    return Acted(act=kind, position=None, state=state)


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
                )


def _raise_if_refused(answer: e.AnyEvent, act: e.AnyEvent) -> None:
    if not isinstance(answer, e.ActRefused):
        return
    if (answer.node, answer.by) == (getattr(act, "node", ""), getattr(act, "by", "")):
        raise ActRefusedError(f"{answer.act} of {answer.node} is refused: {answer.reason}")
