"""The training process's ear: a thread that hears the agent while the training thread computes.

What belongs here: what may happen beside the training thread. Preparing links, abandoning groups
whose member is lost, freeing a transfer. What may not: switching a group, touching a tensor,
moving the step. Those are the training thread's, at a boundary (`worker.loop`).

Theory of operation. The training thread is either computing or *parked* (it says where with a
`Report`). A planned preparation is answered as soon as its links are there. An unplanned one is
answered once it is certain as well where the thread stands: it is parked, or it is in a step whose
vote it has not cast. That step cannot pass any more, here or anywhere, once this rank's groups are
broken: it is *doomed*. So nobody waits for what is left of it: the transition is committed, and the
state given to joiners, while the thread computes the rest, which is thrown away.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from controlplane.eventlog.promptness import be_prompt
from statemachine import messages as m
from statemachine.events import Motive, Report
from statemachine.ids import JobId, NodeId, Slot, TransitionId
from statemachine.layout import Layout
from statemachine.topology import Holder
from worker.channel import Channel, ChannelClosed
from worker.faultpoints import reach
from worker.groups.managed import ManagedGroup
from worker.groups.port import Cause, CauseKind, PrepareRefused
from worker.handover import likely_takers
from worker.orders import (
    NOTHING_KNOWN,
    Become,
    Known,
    Order,
    Preparation,
    in_brief,
    kinds_to_build,
)
from worker.seat import Seat, seat_of
from worker.telling import peer_gone, peer_silent
from worker.vigil import Silence

log = logging.getLogger("worker.control")


MEND_AFTER_S: Final = 2.0
"""How long a thread is parked by a broken group before it says so."""

LINK_SHARE: Final = 0.8
"""Share of a preparation's time after which a missing link is blamed on who should be at its other
end: before the whole preparation is over, or everybody who waits would look like the culprit."""


class AgentGone(Exception):
    """The agent ended: this process trains for nobody and must stop."""


@dataclass
class Control:
    """What the agent said, for the training thread to take at its boundaries."""

    channel: Channel
    job: JobId
    layout: Layout
    local_rank: int
    groups: dict[str, ManagedGroup]
    seat: Callable[[], Seat | None]
    """The seat in force, read from any thread."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    interrupt: threading.Event = field(default_factory=threading.Event)
    """Set while an unplanned transition is pending: whatever waits for a peer must come back."""
    gone: bool = False
    stop_requested: bool = False
    """Whether this node was told that the job shall end."""
    needs_parts: Callable[..., bool] = lambda _slot, *, launch: False  # noqa: ARG005  (a port)
    """Whether other parts must be in force before this process can hold a slot."""
    saves: Callable[[], Known] = lambda: NOTHING_KNOWN
    """What this process could load; asked where a transition asks for it."""
    _becoming: bool = False
    expect: Callable[[m.Prepare | None], None] = lambda _: None
    """Told what this process joins, on the listening thread, so that it can ask for state early."""
    give: Callable[[TransitionId, Sequence[Holder]], None] = lambda *_: None
    """Told, on another thread, to give the state as it was before the step under way."""
    take: Callable[[], None] = lambda: None
    """Told that this process stands still without state: what it asked for may arrive."""
    _computing: Report | None = None
    _doomed: bool = False
    _orders: list[Order] = field(default_factory=list)
    _preparation: Preparation | None = None
    _parked: Report | None = None
    _parked_at_s: float = 0.0

    def start(self) -> None:
        """Begin to listen."""
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    # --- for the training thread --------------------------------------------------------------

    def committed(self) -> TransitionId:
        """The planned transition that may be committed at the next vote; 0 if there is none."""
        with self.changed:
            found = self._planned_commit()
            return found.transition if found is not None else TransitionId(0)

    def take_commit(self, transition: TransitionId) -> tuple[m.Commit, Seat | None] | None:
        """Take the planned commit that the vote agreed on."""
        with self.changed:
            found = self._planned_commit()
            if found is None or found.transition != transition:
                return None
            self._orders.remove(found)
            return found, self._seat_for(transition)

    def step_begins(self, report: Report) -> None:
        """A step begins; `report` is where this thread stands until it casts its vote."""
        with self.changed:
            self._computing, self._doomed = report, False
            self._answer()

    def may_vote(self) -> bool:
        """The step's vote is about to be cast; False: it must not pass: somebody was told so."""
        with self.changed:
            self._computing = None
            return not self._doomed

    def is_called_off(self) -> bool:
        """Whether a loss was announced and is not answered: a step begun now would be doomed."""
        with self.changed:
            seat, found = self.seat(), self._preparation
            unplanned = found is not None and found.message.motive is Motive.UNPLANNED
            return unplanned and seat is not None and self._is_answered(seat)

    def wait_in_step(
        self, broken: str, goes_on: Callable[[m.Commit, Seat], bool]
    ) -> tuple[m.Commit, Seat] | None:
        """Wait, in the middle of a step, for an order with which that very step `goes_on`.

        None: something else is ordered, and is taken once the step was given up, in its vote.
        """
        with self.changed:
            if self._computing is None:
                return None
            self._doomed = True
            self._stand(self._computing, "parked.in_step", holds_slot=True, broken=broken)
            order = self._next(holds_slot=True)
            if not isinstance(order, m.Commit):
                return None
            seat = self._seat_for(order.transition)
            if seat is None or not goes_on(order, seat):
                return None
            self._orders.remove(order)
            self.interrupt.clear()
            self._doomed = False
            return order, seat

    def park(
        self, report: Report, *, holds_slot: bool, broken: str = ""
    ) -> tuple[Order, Seat | None]:
        """Say where this thread stands and wait for the next order.

        A thread that holds a slot and parks because its step was interrupted leaves a planned
        commit where it is: its vote never passed, and the loss is answered by another transition.
        `broken` says why a group broke, if one did.

        Raises:
            AgentGone: the agent ended.
        """
        with self.changed:
            self._stand(report, "parked", holds_slot=holds_slot, broken=broken)
            order = self._next(holds_slot)
            if order is None:
                raise AgentGone("the agent is gone")
            self._orders.remove(order)
            if not isinstance(order, m.Commit):
                return order, None
            seat = self._seat_for(order.transition)
            found = self._preparation
            if found is not None and found.message.transition == order.transition:
                self.interrupt.clear()
            return order, seat

    def _stand(self, report: Report, point: str, *, holds_slot: bool, broken: str) -> None:
        """Be parked at `report` until there is an order (lock held); faults know it as `point`."""
        self._parked, self._parked_at_s = report, time.monotonic()
        self._say_parked()
        self._note_quiesce()
        self._answer()
        reach(point)
        try:
            self._await_order(holds_slot=holds_slot, broken=broken)
        finally:
            self._parked = None

    def _await_order(self, *, holds_slot: bool, broken: str) -> None:
        """Wait for an order (lock held). Whoever is parked because a group broke, and hears of no
        transition, says so: a break that cost no process has no other witness.
        """
        said = not broken
        while not self.changed.wait_for(
            lambda: self.gone or self._next(holds_slot) is not None, MEND_AFTER_S
        ):
            seat = self.seat()
            if not said and seat is not None and not self._is_answered(seat):
                said = True
                self._say(m.Broken(epoch=seat.epoch, cause=broken))

    def _is_answered(self, seat: Seat) -> bool:
        found = self._preparation
        if found is None or found.message.motive is Motive.PLANNED:
            return False
        return found.message.transition > seat.transition

    def _next(self, holds_slot: bool) -> Order | None:
        for order in self._orders:
            planned = isinstance(order, m.Commit) and order.motive is Motive.PLANNED
            if not (planned and holds_slot):
                return order
        return None

    def has_orders(self) -> bool:
        """Whether an order waits to be taken."""
        with self.changed:
            return bool(self._orders) or self.gone

    def quiesce_ms(self, transition: TransitionId) -> float:
        """How long it took from hearing of a transition until this thread was parked."""
        with self.changed:
            found = self._preparation
            return found.quiesce_ms if found and found.message.transition == transition else 0.0

    def became(self) -> None:
        """The parts that a `Become` asked for are in force."""
        with self.changed:
            self._becoming = any(isinstance(order, Become) for order in self._orders)
            self._answer()

    def peer_reset(self, node: str, incarnation: int, kind: str) -> None:
        """Report the end of a peer's process; called on the links' own thread."""
        self._say(peer_gone(self.seat(), node, incarnation, kind))

    def peer_silent(self, found: Silence) -> None:
        """Report that a peer is waited for and silent, or answers again; called by the vigil."""
        self._say(peer_silent(self.seat(), found))

    def members(self) -> tuple[Holder, ...]:
        """Who holds a slot, or is about to, as this process was told last."""
        seat = self.prepared_seat() or self.seat()
        return seat.members if seat is not None else ()

    def slot(self) -> Slot:
        """The slot that this process holds, or is about to; -1 if there is none."""
        seat = self.seat() or self.prepared_seat()
        return seat.slot if seat is not None else Slot(-1)

    def prepared_seat(self) -> Seat | None:
        """The seat that is being prepared, if there is one."""
        found = self._preparation
        return found.seat if found is not None else None

    # --- the listening thread -----------------------------------------------------------------

    def _listen(self) -> None:
        be_prompt()
        try:
            while True:
                self._heard(self.channel.receive())
        except ChannelClosed:
            log.info("the agent is gone")
        finally:
            with self.changed:
                self.gone = True
                self.interrupt.set()
                self.changed.notify_all()
            self._abandon_all(CauseKind.CLOSED, "the agent is gone")

    def _heard(self, message: m.ToWorker) -> None:
        log.info("told %s", in_brief(message))
        match message:
            case m.Prepare():
                self._prepare(message)
            case m.Cancel():
                self._cancel(message)
            case m.Commit() | m.Rehearse() | m.Release() | m.Stop():
                if isinstance(message, m.Commit):
                    self._give_early(message)
                with self.changed:
                    self._orders.append(message)
                    self.changed.notify_all()
            case m.StopRequested():
                self.stop_requested = True
            case m.Hello():
                log.warning("the agent said hello twice")

    def _prepare(self, message: m.Prepare) -> None:
        heard_at_s = time.monotonic()
        seat = self._seat_in(message)
        with self.changed:
            self._preparation = Preparation(message, seat, heard_at_s)
            self._orders = [o for o in self._orders if not isinstance(o, Become)]
            self._ask_for_parts(message)
            self._say_parked()
            if message.motive is Motive.UNPLANNED:
                self._orders = [o for o in self._orders if not isinstance(o, m.Commit)]
                self.interrupt.set()
        if message.motive is Motive.UNPLANNED:
            self._abandon_all(CauseKind.TOLD, f"transition {message.transition}")
        self.expect(None)
        worker = threading.Thread(
            target=self._build, args=(message, seat), name="prepare", daemon=True
        )
        worker.start()
        if seat is not None and self.seat() is None:
            self.expect(message)

    def _ask_for_parts(self, message: m.Prepare) -> None:
        """Let the training thread take the slot's role before the answer is given (lock held)."""
        launch = message.motive is Motive.LAUNCH
        if message.slot < 0 or self.seat() is not None:
            return
        if self.needs_parts(message.slot, launch=launch):
            self._becoming = True
            self._orders.append(Become(message.transition, message.slot, launch))
            self.changed.notify_all()

    def _seat_in(self, message: m.Prepare) -> Seat | None:
        if message.slot < 0:
            return None
        return seat_of(self.job, self.layout, message, self.local_rank)

    def _abandon_all(self, kind: CauseKind, detail: str) -> None:
        for group in self.groups.values():
            group.break_off(Cause(kind, None, detail))

    def _build(self, message: m.Prepare, seat: Seat | None) -> None:
        """Prepare every group that needs it; whatever comes between is said, never kept."""
        started_s = time.monotonic()
        opened = 0
        left_s = message.deadline_at_ms / 1000 - time.time()
        deadline_s = max(0.1, LINK_SHARE * left_s)
        unplanned = message.motive is not Motive.PLANNED
        try:
            reach("prepare.begin")
            kinds = kinds_to_build(seat, self.seat(), everything=unplanned)
            for kind in kinds:
                assert seat is not None
                opened += self.groups[kind].prepare(seat.plans[kind], deadline_s).links_opened
        except PrepareRefused as refused:
            blames = refused.peer.node if refused.peer is not None else ""
            self._refuse(message, refused.reason, NodeId(blames))
            return
        except Exception as error:  # a thread's end that nobody hears of would be silence
            log.exception("preparing transition %d failed", message.transition)
            self._refuse(message, f"{type(error).__name__}: {error}", NodeId(""))
            return
        reach("prepare.linked")
        with self.changed:
            found = self._preparation
            if found is None or found.message.transition != message.transition:
                return
            found.links_opened = opened
            found.took_ms = (time.monotonic() - started_s) * 1000
            found.ready = True
            self._answer()

    def _refuse(self, message: m.Prepare, reason: str, blames: NodeId) -> None:
        self._say(m.Refused(transition=message.transition, reason=reason, blames=blames))

    def _say_parked(self) -> None:
        """Let the agent know that the abort did not hang, before any link is built (lock held)."""
        found = self._preparation
        if found is None or self._parked is None or found.parked_said:
            return
        if found.message.motive is Motive.UNPLANNED:
            found.parked_said = True
            self._say(m.Parked(transition=found.message.transition))

    def _answer(self) -> None:
        """Acknowledge the preparation once all that it waits for is true (lock held)."""
        found = self._preparation
        if found is None or not found.ready or found.answered or self._becoming:
            return
        if found.message.motive is not Motive.PLANNED:
            if any(isinstance(o, m.Release) for o in self._orders):
                return  # who is about to leave has no state to speak of, once it left
            found.computing = self._parked is None
            if found.computing and not self._stands_while_computing(found):
                return
            self._doomed = self._doomed or found.computing
            self._note_quiesce()
        found.answered = True
        self._say(
            m.Prepared(
                transition=found.message.transition,
                links_opened=found.links_opened,
                took_ms=found.took_ms,
                report=self._report(found.message),
                quiesce_ms=found.quiesce_ms,
                computing=found.computing,
            )
        )
        if found.message.motive is Motive.UNPLANNED and not found.message.asks_saves:
            self._begin_transfer(found.message)

    def _begin_transfer(self, message: m.Prepare) -> None:
        """Move the state before it is ordered, where it is certain which one that will be (locked).

        Whoever is in a step gives that of before the step; whoever has none takes what comes.
        """
        seat = self.seat()
        if seat is not None and self._computing is not None and message.slot >= 0:
            self._give(message.transition, likely_takers(self.layout, message, seat.members))
        elif seat is None and self._parked is not None and not self._parked.has_state:
            self.take()

    def _stands_while_computing(self, found: Preparation) -> bool:
        """Whether the thread is in a step that cannot pass any more (lock held; groups are broken).

        Not where members stay the same: there whoever does not park is the one that hangs.
        """
        seat = self.seat()
        if self._computing is None or found.seat is None or seat is None:
            return False
        return found.message.motive is Motive.UNPLANNED and found.seat.members != seat.members

    def _note_quiesce(self) -> None:
        """How long after it heard of the loss the thread was parked (lock held)."""
        found = self._preparation
        if found is not None and self._parked is not None and not found.quiesce_ms:
            found.quiesce_ms = max(0.0, self._parked_at_s - found.heard_at_s) * 1000

    def _give_early(self, commit: m.Commit) -> None:
        """Give the state while the thread is in a step: it changes behind its vote alone."""
        found = self._preparation
        if found is None or found.message.transition != commit.transition:
            return
        if self._computing is None or commit.motive is not Motive.UNPLANNED or commit.loads:
            return
        self._give(commit.transition, commit.send)

    def _give(self, transition: TransitionId, takers: Sequence[Holder]) -> None:
        try:
            if takers:
                self.give(transition, takers)
        except Exception:  # then the training thread gives it, once it is parked
            log.exception("state of transition %d was not given early", transition)

    def _report(self, message: m.Prepare) -> Report | None:
        """Where this thread stands, and what it could load if that is asked."""
        stands = self._parked if self._parked is not None else self._computing
        if message.motive is Motive.PLANNED or stands is None:
            return None
        if not message.asks_saves:
            return stands
        known = self.saves()
        return replace(stands, saved=known.newest, saved_in=known.where, saves=known.steps)

    def _cancel(self, message: m.Cancel) -> None:
        self.expect(None)
        with self.changed:
            found = self._preparation
            if found is not None and found.message.transition == message.transition:
                self._preparation = None
            if any(isinstance(order, Become) for order in self._orders):
                self._becoming = False
            self._orders = [
                order
                for order in self._orders
                if not isinstance(order, Become)
                and not (isinstance(order, m.Commit) and order.transition == message.transition)
            ]

    # --- inside -------------------------------------------------------------------------------

    def _planned_commit(self) -> m.Commit | None:
        for order in self._orders:
            if isinstance(order, m.Commit) and order.motive is Motive.PLANNED:
                return order
        return None

    def _seat_for(self, transition: TransitionId) -> Seat | None:
        found = self._preparation
        if found is None or found.message.transition != transition:
            return None
        return found.seat

    def _say(self, message: m.FromWorker) -> None:
        log.info("says %s", in_brief(message))
        try:
            self.channel.send(message)
        except ChannelClosed:
            log.info("the agent is gone; not said: %s", type(message).__name__)
