"""A small world of values: the real core, the real participants, and a model of training processes.

What belongs here: what a world is, and how facts enter it; what may happen next is `moves`, where
a world begins and ends is `rest`. A world is immutable, so that every order of events can be
walked. Real are `settle`, `desired_of`, `orders_of`, `participant`; the training process is a model
of what `worker.control` and `worker.loop` do at the level of the protocol, in which time does not
exist: a step is always in flight, and what of it a process has seen when its group breaks is chosen
freely, within what the boundary vote allows.

Theory of operation. A fact stated is durable in its node's inbox and delivered in order; between
nodes any order is possible. An agent may see the desired topology late, and miss what it said in
between. A process that is killed says nothing more; each peer may or may not report its link.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from statemachine import events as e
from statemachine import messages as m
from statemachine import participant as p
from statemachine.decide import settle
from statemachine.ids import Incarnation, JobId, NodeId, Position
from statemachine.invariants import CheckedFold
from statemachine.state import FleetState, Job

JOB = JobId("j")
ONE = Incarnation(1)
BEGIN_MS = 1_000_000
STEP = 5
"""The step that every member has applied when a world begins."""


class Impossible(AssertionError):
    """Something happened that may never happen."""


class Process(Struct, frozen=True, kw_only=True, gc=False):
    """A training process, as far as the protocol goes. `seat` is (epoch, slot) or None."""

    seat: tuple[int, int] | None = None
    peers: tuple[NodeId, ...] = ()
    has_state: bool = False
    applied: int = -1
    pending: int = -1
    parked: bool = False
    broken: bool = False
    interrupted: bool = False
    prepare: m.Prepare | None = None
    answered: bool = False
    orders: tuple[m.ToWorker, ...] = ()
    receiving: m.Commit | None = None
    giving: m.Commit | None = None

    @property
    def trains(self) -> bool:
        """Whether its step is under way in sound groups."""
        return self.seat is not None and not (self.parked or self.receiving or self.giving)


class Machine(Struct, frozen=True, kw_only=True, gc=False):
    """A node: its agent's half of the protocol, its inbox, its process."""

    alive: bool
    agent: p.Participant
    process: Process
    inbox: tuple[e.AnyEvent, ...] = ()
    seen: int = 0
    reported: frozenset[NodeId] = frozenset()
    epochs: frozenset[int] = frozenset()
    """Those in which it ever held a seat."""


class World(Struct, frozen=True, kw_only=True, gc=False):
    """Everything. `vote` is what is known of the step in flight at an epoch: True once any process
    saw its vote pass, False once any process turned out not to have its gradients.
    """

    fleet: FleetState
    now_ms: int
    machines: tuple[tuple[NodeId, Machine], ...]
    kills: int
    vote: tuple[int, bool | None] = (0, None)
    boundary: int = 0
    """The planned transition whose boundary was passed by somebody."""

    def machine(self, name: NodeId) -> Machine:
        """A machine by name."""
        return next(machine for known, machine in self.machines if known == name)

    def put(self, name: NodeId, machine: Machine) -> World:
        """The world with one machine changed."""
        machines = tuple((n, machine if n == name else old) for n, old in self.machines)
        return replace(self, machines=machines)

    @property
    def job(self) -> Job:
        """The only job."""
        return self.fleet.jobs[JOB]


# --- the log ----------------------------------------------------------------------------------


def record(world: World, *events: e.AnyEvent) -> World:
    """Sequence facts, decide, and hold every event to the invariants."""
    fold = CheckedFold(world.fleet)
    for event in events:
        position = Position(fold.state.position + 1)
        fold.take(e.Recorded(position=position, at_ms=world.now_ms, writer="w", event=event))
    settled = settle(fold.state, world.now_ms, "core")
    for recorded in settled.recorded:
        fold.take(recorded)
    return replace(world, fleet=fold.state)


def state_fact(world: World, name: NodeId, outcome: p.Outcome) -> World:
    """An agent's reaction: tell the process, put facts into the inbox."""
    agent, instructions = outcome
    machine = replace(world.machine(name), agent=agent)
    for instruction in instructions:
        match instruction:
            case p.Submit(event):
                machine = replace(machine, inbox=(*machine.inbox, event))
            case p.Tell(message):
                machine = replace(machine, process=_heard(machine.process, message))
            case p.RunRound():
                raise Impossible("nobody asked for a sweep")
    return world.put(name, machine)


def _heard(process: Process, message: m.ToWorker) -> Process:
    """What the listening thread does at once."""
    match message:
        case m.Prepare():
            process = replace(process, prepare=message, answered=False)
            if message.motive is e.Motive.UNPLANNED:
                kept = tuple(o for o in process.orders if not isinstance(o, m.Commit))
                return replace(process, orders=kept, interrupted=True, broken=True)
            return process
        case m.Cancel():
            mine = process.prepare is not None and process.prepare.transition == message.transition
            return replace(
                process,
                prepare=None if mine else process.prepare,
                orders=tuple(o for o in process.orders if not _is_commit(o, message.transition)),
            )
        case _:
            return replace(process, orders=(*process.orders, message))


def _is_commit(order: m.ToWorker, transition: int) -> bool:
    return isinstance(order, m.Commit) and order.transition == transition
