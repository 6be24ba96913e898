"""The causal chain of each incident: evidence, verdict or wish, plan, commit, end, first step.

What belongs here: following what events say of each other. A plan names its evidence by position;
what is evidence of what (a reset that led to a loss that led to a plan) is followed back, so that a
chain begins with whoever saw it first. Of acknowledgements only the last of a phase is a link: that
is what was waited for.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from controlplane.lines import words_of
from statemachine import events as e
from statemachine.ids import JobId, NodeId, Position, TransitionId
from statemachine.incidents import Telling

CHAIN_MAX: Final = 24
"""Links of one chain; evidence beyond that is left out, the oldest first."""

LINKS: Final = frozenset(
    {
        e.PeerReset,
        e.PeerWaited,
        e.WorkerExited,
        e.LeaseExpired,
        e.NodeLost,
        e.NodeLeft,
        e.GroupBroken,
        e.VerdictIssued,
        e.DrainRequested,
        e.SwitchoverRequested,
        e.QuarantineRequested,
        e.FaultInjected,
        e.ChangesDrafted,
        e.TransitionPlanned,
        e.TransitionCommitted,
        e.TransitionFinished,
        e.TransitionAborted,
    }
)
"""Types of what a chain is made of; the answers of members, most of a log, are asked for."""


_ABOUT: Final = (
    e.VerdictIssued,
    e.FaultInjected,
    e.DrainRequested,
    e.SwitchoverRequested,
    e.QuarantineRequested,
)
"""What is said of a node before anything follows from it."""


class Link(Struct, frozen=True):
    """One event of a chain; `at_ms` is Unix time by the sequencer's clock."""

    position: Position
    at_ms: int
    type: str
    words: str


_Key = tuple[JobId, TransitionId]


class Chains:
    """Hears a log once, each entry before `telling` does, which knows who answered last. What it
    keeps grows with incidents and their evidence.
    """

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self._seen: dict[Position, tuple[Link, tuple[Position, ...]]] = {}
        self._about: dict[NodeId, Position] = {}
        self._chains: dict[_Key, list[Link]] = {}
        self._drafted: dict[_Key, list[NodeId]] = {}
        """Who leaves by the parts of a plan that is not said yet."""

    def of(self, job: JobId, transition: TransitionId) -> tuple[Link, ...]:
        """The chain of one transition."""
        links = list(self._chains.get((job, transition), ()))
        last = self._telling.last_answer(job, transition)
        return tuple([*links, _link(last)] if last is not None else links)

    def hear(self, recorded: e.Recorded) -> None:
        """Take in one entry whose type is among `LINKS`; the others are no links."""
        event = recorded.event
        match event:
            case e.ChangesDrafted():
                drafted = self._drafted.setdefault((event.job, event.transition), [])
                drafted += [change.leaver for change in event.changes if change.leaver]
            case e.TransitionPlanned():
                if event.motive is not e.Motive.LAUNCH:
                    self._chains[event.job, event.transition] = self._begin(recorded, event)
            case e.TransitionCommitted() | e.TransitionFinished() | e.TransitionAborted():
                chain = self._chains.get((event.job, event.transition))
                if chain is not None:
                    waited = self._telling.last_answer(event.job, event.transition, take=True)
                    chain += [_link(waited)] if waited is not None else []
                    chain.append(_link(recorded))
            case _:
                evidence = tuple(getattr(event, "evidence", ()))
                hurt = self._about.get(event.node) if isinstance(event, e.NodeLost) else None
                evidence += (hurt,) if hurt is not None else ()
                self._seen[recorded.position] = (_link(recorded), evidence)
                if isinstance(event, _ABOUT):
                    self._about[event.node] = recorded.position

    def _begin(self, recorded: e.Recorded, plan: e.TransitionPlanned) -> list[Link]:
        """What led to a plan, the first first, and the plan."""
        leavers = self._drafted.pop((plan.job, plan.transition), [])
        leavers += [change.leaver for change in plan.changes]
        wanted = [*plan.evidence]
        wanted += [at for name in leavers if (at := self._about.get(name)) is not None]
        found: dict[Position, Link] = {}
        while wanted and len(found) < CHAIN_MAX:
            position = wanted.pop()
            if position in found or position not in self._seen:
                continue
            link, evidence = self._seen[position]
            found[position] = link
            wanted += evidence
        before = self._chains.get((plan.job, plan.replaces), [])
        earlier = [link for link in before if link.position not in found]
        links = sorted([*found.values(), *earlier], key=lambda link: link.position)
        return [*links[-CHAIN_MAX:], _link(recorded)]


def _link(recorded: e.Recorded) -> Link:
    return Link(
        recorded.position,
        recorded.at_ms,
        type(recorded.event).__name__,
        words_of(recorded.event),
    )
