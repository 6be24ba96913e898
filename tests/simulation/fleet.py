"""A fleet in one process: controllers and nodes over one log, and the log folded as it grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import anyio
from anyio.abc import TaskGroup

from controlplane.eventlog import Deposed, EventLog, Retry
from controlplane.eventlog.errors import StoreUnavailable
from controlplane.term import Term
from statemachine import events as e
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, JobId, NodeId, Slot
from statemachine.state import FleetState
from tests.simulation.agents import JOB, TTL_S, ScriptedNode
from tests.simulation.link import Link

if TYPE_CHECKING:
    from controlplane.eventlog.store import Store

WAIT_S = 40.0
E = TypeVar("E", bound=e.Event)
Condition = Callable[[FleetState], bool]


async def _either(first: anyio.Event, second: anyio.Event) -> None:
    """Wait until one of two things happened."""

    async def wait(happened: anyio.Event) -> None:
        await happened.wait()
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(wait, first)
        group.start_soon(wait, second)


class Fleet:
    """Nodes and controllers over one store."""

    def __init__(self, log: EventLog, group: TaskGroup, clock_ms: Callable[[], int]) -> None:
        self.log = log
        self.clock_ms = clock_ms
        self.rejoins = False
        """Whether nodes that were fenced join anew."""
        self.also: dict[JobId, tuple[str, ...]] = {}
        """Further jobs that nodes can serve."""
        self.nodes: dict[str, ScriptedNode] = {}
        self.links: dict[str, Link] = {}
        """How each participant reaches the store, by name."""
        self.leading: set[str] = set()
        """Controllers whose term is not over."""
        self.state = FleetState()
        self.recorded: list[e.Recorded] = []
        self._group = group
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._grown = anyio.Event()
        self._ports = iter(range(1, 10_000, 2))

    # --- controllers --------------------------------------------------------------------------

    async def start_controller(
        self, name: str, knobs: dict[str, object] | None = None, ttl_s: float = TTL_S
    ) -> Term:
        """Have a controller campaign and lead; returns once it leads."""
        log = self._log_of(name)
        leadership = await log.campaign(name, ttl_s)
        term = Term(log, leadership, clock_ms=self.clock_ms, knobs=knobs)
        scope = self._scopes[name] = anyio.CancelScope()
        over = anyio.Event()

        async def lead() -> None:
            with scope:
                try:
                    await term.run()
                except* (Deposed, Retry):
                    pass
                finally:
                    self.leading.discard(name)
                    over.set()

        self._group.start_soon(lead)
        self.leading.add(name)
        await _either(term.leading, over)
        if name not in self.leading:
            raise StoreUnavailable(f"the term of {name} was over before it began")
        return term

    def _log_of(self, name: str) -> EventLog:
        """The log as one participant reaches it; whoever starts anew has a way that is whole."""
        link = self.links[name] = Link(self.log.store, name)
        return EventLog(cast("Store", link), self.log.fleet)

    def kill_controller(self, name: str) -> None:
        """End a controller at once; its leadership stays until its lease ends."""
        self._scopes.pop(name).cancel()

    # --- nodes --------------------------------------------------------------------------------

    async def start_node(self, name: str) -> ScriptedNode:
        """Have a node join; returns once it did."""
        log = self._log_of(name)
        node = ScriptedNode(
            log, NodeId(name), next(self._ports), rejoins=self.rejoins, also=self.also
        )
        self.nodes[name] = node
        self._group.start_soon(node.run)
        await node.joined.wait()
        return node

    async def kill_node(self, name: str, *, seen_by: Sequence[str]) -> ScriptedNode:
        """Kill a node; the peers named see their links reset."""
        victim = self.nodes[name]
        victim.kill()
        await victim.ended.wait()
        for peer in seen_by:
            self.nodes[peer].saw_reset(victim)
        return victim

    async def declare(self, slots: int, standbys: int = 0) -> None:
        """Declare the job."""
        await self.act(e.JobDeclared(job=JOB, axes={"dp": slots}, standbys=standbys))

    async def act(self, event: e.AnyEvent) -> None:
        """State an operator's act."""
        await self.log.submit_operator("op", event, self.clock_ms())

    # --- what the log says --------------------------------------------------------------------

    async def follow(self) -> None:
        """Fold the log as it grows, until cancelled."""
        async with self.log.follow() as entries:
            async for recorded in entries:
                self.recorded.append(recorded)
                self.state = evolve(self.state, recorded)
                self._grown.set()

    async def until(self, condition: Condition, what: str, within_s: float = WAIT_S) -> FleetState:
        """Wait until the folded log fulfils a condition."""
        with anyio.move_on_after(within_s):
            while not condition(self.state):
                self._grown = anyio.Event()
                await self._grown.wait()
            return self.state
        story = "\n".join(f"{r.position} {r.event}" for r in self.recorded)
        raise AssertionError(f"not within {within_s} s: {what}; the log:\n{story}")

    def said(self, kind: type[E]) -> list[E]:
        """Events of one kind, in order."""
        return [r.event for r in self.recorded if isinstance(r.event, kind)]

    def holder(self, slot: int) -> str:
        """Who holds a slot by the fold."""
        return self.state.jobs[JOB].holders[Slot(slot)]

    def incarnation(self, name: str) -> Incarnation:
        """The incarnation of a node by the fold."""
        return self.state.nodes[NodeId(name)].incarnation
