"""The parts of a training process, one set per role, of which one set is in force.

What belongs here: when the user's parts are built, which are resident, and which state they have.
What does not: when a role is rehearsed or taken (`loop`), what a state is made of (`state`).

Theory of operation. A script whose stages are alike registers its state once, and that is the
state of every role. One whose stages differ gives a builder: it is called for a role when this
process first takes that role on, and registers what belongs to it. The parts of the resident role
(the one in which a general standby stays, the middle one where there is one) keep their memory;
those of the others keep everything but it: modules, compiled code and hooks stay, and what a
transfer will fill is allocated again when the role is taken. Parts whose memory was given back
hold no weights, so a further rehearsal of the role builds them anew.

A job's first weights are each shard's own, so at the launch parts are built for the very slot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from statemachine.ids import Role, Slot
from statemachine.layout import MIDDLE, Layout
from worker.state import TrainingState

P = TypeVar("P")

PRIMING_STEPS: Final = 2
"""Steps that parts must have done before anybody counts on them. Lazy imports are the lesser
reason. Members of a group must owe each other the same collectives at every step, whenever they
join: `DistributedDataParallel` adds some to its second step, when it rebuilds its buckets, and a
member past it would wait for one before it for ever."""


@dataclass(slots=True)
class Parts:
    """What one role is made of here."""

    role: Role
    shards: tuple[int, ...]
    state: TrainingState
    value: Any = None
    steps: int = 0
    """Steps that these parts have done, rehearsed or real."""
    parked: bool = False
    hollow: bool = False
    """Whether memory was allocated and holds no weights yet."""


@dataclass(slots=True)
class Taken:
    """What it took to take a role: built or allocated, how much, how long."""

    built: bool = False
    allocated_bytes: int = 0
    took_ms: float = 0.0


class Roles:
    """All parts of this process. `slot` is the slot that it stands in, or rehearses."""

    def __init__(self, layout: Layout) -> None:
        """Begin in a slot whose role is the resident one."""
        self.layout = layout
        self.build: Callable[[], Any] | None = None
        self._parts: dict[Role, Parts] = {}
        self.slot = self.slot_of(self.resident) or Slot(0)
        role, shards = layout.role_of(self.slot), layout.shards_of(self.slot)
        self.now = Parts(role, shards, TrainingState())
        """The parts in force."""

    @property
    def resident(self) -> Role:
        """The role whose parts keep their memory."""
        return MIDDLE if self.slot_of(MIDDLE) is not None else self.layout.role_of(0)

    def slot_of(self, role: Role) -> Slot | None:
        """The first slot of a role."""
        slots = (Slot(number) for number in range(self.layout.slot_count))
        return next((slot for slot in slots if self.layout.role_of(slot) == role), None)

    @property
    def state(self) -> TrainingState:
        """The state in force."""
        return self.now.state

    def begin(self, build: Callable[[], Any]) -> None:
        """Take the user's builder, and build the resident role's parts with it."""
        self.build = build
        self._make(self.slot)

    def needs(self, slot: Slot, *, launch: bool) -> bool:
        """Whether other parts than those in force must be in force to hold a slot."""
        if self.build is None:
            return False
        now = self.now
        if launch and now.shards != self.layout.shards_of(slot):
            return True
        return now.role != self.layout.role_of(slot) or now.parked

    def take(self, slot: Slot, *, launch: bool = False, with_weights: bool = False) -> Taken:
        """Put the parts of a slot's role in force.

        `with_weights` for a rehearsal: the parts must hold weights that a step can be done with.
        At a `launch` they must be this very slot's.
        """
        self.slot = slot
        role = self.layout.role_of(slot)
        if self.build is None:
            return Taken()
        if not (launch or with_weights):
            self._park_others(role)
        found = self._parts.get(role)
        stale = found is not None and launch and found.shards != self.layout.shards_of(slot)
        empty = found is not None and (found.parked or found.hollow)
        if found is None or stale or (empty and (with_weights or launch)):
            if launch:
                self._park_others(role)
            return self._make(slot)
        taken = Taken()
        if found.parked:
            began_s = time.perf_counter()
            taken.allocated_bytes = found.state.unpark()
            found.parked, found.hollow = False, True
            taken.took_ms = (time.perf_counter() - began_s) * 1000
        found.shards = self.layout.shards_of(slot)
        self.now = found
        return taken

    def rest(self) -> int:
        """Give the memory of every role back but the resident one's; returns how many bytes."""
        if self.build is None:
            return 0
        given = self._park_others(self.resident)
        resident = self._parts.get(self.resident)
        if resident is not None and not resident.parked:
            self.now = resident
            self.slot = self.slot_of(self.resident) or self.slot
        return given

    def _park_others(self, role: Role) -> int:
        given = 0
        for parts in self._parts.values():
            if parts.role != role and not parts.parked:
                given += parts.state.park()
                parts.parked = True
        return given

    def _make(self, slot: Slot) -> Taken:
        assert self.build is not None
        began_s = time.perf_counter()
        role = self.layout.role_of(slot)
        before = self._parts.pop(role, None)
        if before is not None and not before.parked:
            before.state.park()  # nobody uses it again; its memory is needed now
        self.slot = slot
        made = Parts(role, self.layout.shards_of(slot), TrainingState())
        self.now = made
        made.value = self.build()
        self._parts[role] = made
        took_ms = (time.perf_counter() - began_s) * 1000
        return Taken(built=True, allocated_bytes=made.state.nbytes, took_ms=took_ms)


class PerRole(Generic[P]):
    """What the builder made for the role in force; call it in each step."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles

    def __call__(self) -> P:
        """The parts in force."""
        value: P = self._roles.now.value
        return value
