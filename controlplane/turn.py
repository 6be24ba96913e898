"""One turn of the sequencer, pure: waiting facts and own events in, what becomes true out.

Theory of operation. A turn takes facts in the order of their arrival, gives them and the
controller's own events the next positions, folds them, lets the state machine decide until it
comes to rest, and says which guarded appends make all of that true. Nothing here is performed;
the caller adopts the new ledger only once the last append was answered.

Rules.
1. A writer's facts enter in the order of its counters, without a gap. A gap holds back what this
   incarnation stated later, until the missing fact is there or a newer incarnation speaks.
2. A fact that may not enter (`admission`) is passed over and stays where it is: it neither stops
   the log nor gets lost.
3. `at_ms` never decreases along the log, whatever the clocks of successive controllers say.
4. A turn is cut into appends at the limits of the store. Any prefix of a turn is a valid log: what
   did not follow yet is decided again by whoever reads that prefix. A loss is fenced in the very
   append that records it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct, field
from rpds import HashTrieMap

from controlplane.admission import admit
from controlplane.eventlog import BATCH_OPS_MAX, Batch, InboxItem
from controlplane.eventlog.log import OPERATOR_PREFIX
from controlplane.projection import Projected, Touched, Writes, project, touched_by
from statemachine import events as e
from statemachine.codec import decode_recorded, encode_recorded, sequence
from statemachine.decide import Rule, settle
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, JobId, NodeId, Position
from statemachine.state import FleetState

TAKE_OPS_MAX: Final = 90
"""Operations that the facts of one turn may need; leaves room for what follows from them."""

BATCH_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one append; the store's limit is half as much again."""

IN_COMPANY: Final = (e.TransitionPrepared, e.TransitionApplied, e.StepResumed)
"""Facts that every member of a transition states; the last of them alone has a consequence."""

COMPANY_MAX: Final = 32
"""Such facts that are worth an append, whoever else is still to come."""

Counters: TypeAlias = "HashTrieMap[str, tuple[Incarnation, int]]"


class Ledger(Struct, frozen=True, kw_only=True):
    """All that a sequencer knows: the fold, each writer's last fact, what the keys say."""

    state: FleetState = field(default_factory=FleetState)
    counters: Counters = field(default_factory=HashTrieMap)
    projected: Projected = field(default_factory=Projected)

    @property
    def position(self) -> Position:
        """Position of the last entry that is folded in."""
        return self.state.position


class Passed(Struct, frozen=True):
    """A fact that did not enter the log in this turn, and why."""

    item: InboxItem
    reason: str


class Turn(Struct, frozen=True, kw_only=True):
    """What one turn makes true. `batches` are appended in order; then `ledger` holds.

    `set_aside` are facts that may never enter; `held_back` those behind a gap; `left` those for
    which there was no room.
    """

    batches: tuple[Batch, ...]
    ledger: Ledger
    recorded: tuple[e.Recorded, ...] = ()
    set_aside: tuple[Passed, ...] = ()
    held_back: tuple[Passed, ...] = ()
    left: tuple[InboxItem, ...] = ()

    @property
    def can_wait(self) -> bool:
        """Whether nobody waits for it: it decides nothing, changes no key, has nothing to report,
        and expects company.
        """
        return (
            0 < len(self.recorded) < COMPANY_MAX
            and not self.set_aside
            and all(isinstance(entry.event, IN_COMPANY) for entry in self.recorded)
            and not any(batch.desired or batch.orders for batch in self.batches)
        )


class _Step(Struct, frozen=True):
    """One entry of the log with what must become true together with it."""

    raw: bytes
    recorded: e.Recorded
    consumed: InboxItem | None = None

    @property
    def fences(self) -> tuple[tuple[NodeId, Incarnation], ...]:
        event = self.recorded.event
        return ((event.node, event.incarnation),) if isinstance(event, e.NodeLost) else ()

    @property
    def ops(self) -> int:
        """Operations that it needs, but for the deletion of the fact."""
        return 1 + 2 * len(self.fences)


class _Runs:
    """Facts that leave the inbox together: those of one writer, one behind the other, in one go."""

    def __init__(self) -> None:
        self._taken: set[tuple[str, int, int]] = set()

    def ops_of(self, item: InboxItem) -> int:
        """Take a fact; return the deletions that it adds, at most."""
        self._taken.add((item.writer, item.incarnation, item.counter))
        return (item.writer, item.incarnation, item.counter - 1) not in self._taken


def plan_turn(
    ledger: Ledger,
    facts: Sequence[InboxItem],
    own_events: Sequence[e.AnyEvent],
    *,
    now_ms: int,
    writer: str,
    also_project: Touched | None = None,
    own_rule: Rule | None = None,
) -> Turn:
    """Plan one turn. `facts` come in order of arrival, `own_events` are the controller's.

    `also_project` names keys to be compared although no event touches them; `own_rule` is asked
    before the state machine's.

    Raises:
        InvariantBroken: two rules of the state machine answer each other without end.
        EventTooLarge: a decision does not fit into an event.
    """
    now_ms = max(now_ms, ledger.state.at_ms)
    intake = _Intake(ledger, also_project or Touched(), now_ms, writer)
    left = intake.take(facts)
    for event in own_events:
        intake.state_own(event)
    settled = settle(intake.state, now_ms, writer, own=own_rule)
    for recorded in settled.recorded:
        intake.enter(_Step(encode_recorded(recorded), recorded))
    projected, writes = project(ledger.projected, intake.state, intake.touched)
    return Turn(
        batches=_cut(ledger.position, intake.steps, writes),
        ledger=Ledger(state=intake.state, counters=intake.counters, projected=projected),
        recorded=tuple(step.recorded for step in intake.steps),
        set_aside=tuple(intake.set_aside),
        held_back=tuple(intake.held_back),
        left=left,
    )


class _Intake:
    """The turn under way: the state after what was entered so far, and the entries."""

    def __init__(self, ledger: Ledger, touched: Touched, now_ms: int, writer: str) -> None:
        self.state = ledger.state
        self.counters = ledger.counters
        self.touched = touched
        self.steps: list[_Step] = []
        self.set_aside: list[Passed] = []
        self.held_back: list[Passed] = []
        self._now_ms = now_ms
        self._writer = writer

    def take(self, facts: Sequence[InboxItem]) -> tuple[InboxItem, ...]:
        """Enter facts as long as there is room; return those for which there was none."""
        ops = size = 0
        runs = _Runs()
        for index, item in enumerate(facts):
            ops, size = ops + 1 + runs.ops_of(item), size + len(item.raw)
            if self.steps and (ops > TAKE_OPS_MAX or size > BATCH_BYTES_MAX // 2):
                return tuple(facts[index:])
            self._take_one(item)
        return ()

    def _take_one(self, item: InboxItem) -> None:
        why_held = _why_held(self.counters, item)
        if why_held:
            self.held_back.append(Passed(item, why_held))
            return
        admitted = admit(item)
        if isinstance(admitted, str):
            self.set_aside.append(Passed(item, admitted))
            self.counters = count(self.counters, item.writer, item.incarnation, item.counter)
            return
        raw = sequence(item.raw, Position(self.state.position + 1), self._now_ms)
        self.enter(_Step(raw, decode_recorded(raw), item))

    def state_own(self, event: e.AnyEvent) -> None:
        """Enter an event that the controller states itself, unless it came too late to matter."""
        if _is_moot(self.state, event):
            return
        recorded = e.Recorded(
            position=Position(self.state.position + 1),
            at_ms=self._now_ms,
            writer=self._writer,
            event=event,
            decided_from=self.state.position,
            policy_version=self.state.policy_version,
        )
        self.enter(_Step(encode_recorded(recorded), recorded))

    def enter(self, step: _Step) -> None:
        """Fold one entry."""
        recorded = step.recorded
        self.touched = self.touched.plus(touched_by(self.state, recorded.event))
        self.state = evolve(self.state, recorded)
        self.counters = count(
            self.counters, recorded.writer, recorded.incarnation, recorded.counter
        )
        self.steps.append(step)


def _is_moot(state: FleetState, event: e.AnyEvent) -> bool:
    """Whether an own event is about an incarnation that is over by now."""
    match event:
        case e.LeaseExpired() | e.VerdictIssued() | e.VerdictWithdrawn():
            return state.current(event.node, event.incarnation) is None
        case _:
            return False


# --- counters ---------------------------------------------------------------------------------


def count(counters: Counters, writer: str, incarnation: Incarnation, counter: int) -> Counters:
    """Remember a writer's last fact. Controllers and operators have nothing to be counted."""
    if not counter or writer.startswith(OPERATOR_PREFIX):
        return counters
    last = counters.get(writer)
    if last is not None and last >= (incarnation, counter):
        return counters
    return counters.insert(writer, (incarnation, counter))


def counters_of(counters: Counters, log: Iterable[e.Recorded]) -> Counters:
    """Each writer's last fact, from entries of the log."""
    for recorded in log:
        counters = count(counters, recorded.writer, recorded.incarnation, recorded.counter)
    return counters


def _why_held(counters: Counters, item: InboxItem) -> str:
    """Say why a fact must wait for an earlier one of its writer; empty if it need not."""
    if item.writer.startswith(OPERATOR_PREFIX):
        return ""
    incarnation, last = counters.get(item.writer) or (item.incarnation, 0)
    if item.incarnation < incarnation:
        return ""  # nobody can fill a gap of an incarnation that is over
    expected = last + 1 if item.incarnation == incarnation else 1
    return f"fact {expected} is missing" if item.counter > expected else ""


# --- appends ----------------------------------------------------------------------------------


def _cut(after: Position, steps: Sequence[_Step], writes: Writes) -> tuple[Batch, ...]:
    """Cut a turn into appends: entries first, each with its fences; then the projections."""
    cutter = _Cutter(after)
    for step in steps:
        cutter.take(step)
    for job, value in writes.desired:
        cutter.room_for(1, len(value))
        cutter.desired.append((job, value))
    for node, value in writes.orders:
        cutter.room_for(1, len(value))
        cutter.orders.append((node, value))
    cutter.close()
    return tuple(cutter.batches)


class _Cutter:
    """The append being filled, and those that are full."""

    def __init__(self, after: Position) -> None:
        self.batches: list[Batch] = []
        self._after = after
        self._begin()

    def _begin(self) -> None:
        self.steps: list[_Step] = []
        self.desired: list[tuple[JobId, bytes]] = []
        self.orders: list[tuple[NodeId, bytes]] = []
        self._runs = _Runs()
        self._ops = 1  # the head
        self._bytes = 0

    def take(self, step: _Step) -> None:
        """Have an entry in the append, or in the next one."""
        self.room_for(step.ops + (step.consumed is not None), len(step.raw))
        self.steps.append(step)
        if step.consumed is not None and not self._runs.ops_of(step.consumed):
            self._ops -= 1

    def room_for(self, ops: int, size: int) -> None:
        """Close the append if this does not fit into it."""
        if self._ops + ops > BATCH_OPS_MAX or self._bytes + size > BATCH_BYTES_MAX:
            self.close()
        self._ops += ops
        self._bytes += size

    def close(self) -> None:
        """Finish the append, if anything is in it."""
        if self.steps or self.desired or self.orders:
            batch = Batch(
                after=self._after,
                entries=tuple(step.raw for step in self.steps),
                consumed=tuple(s.consumed for s in self.steps if s.consumed is not None),
                fenced=tuple(fence for step in self.steps for fence in step.fences),
                desired=tuple(self.desired),
                orders=tuple(self.orders),
            )
            self._after = Position(self._after + len(self.steps))
            self.batches.append(batch)
        self._begin()
