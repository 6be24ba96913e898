"""Handing the training state over inside one transition: giving it and receiving it.

What belongs here: which offers are open, and what of a transfer's outcome matters to the loop.
What does not: the stream itself (`transfer`), what the state is (`state`).

A joiner asks its likely sources as soon as it prepares. A source that is in a step when it hears of
a loss knows which state will be asked for: the one before that step, since the step cannot pass
unless all go on with it. So it gives that at once, and a joiner that has no state takes it, while
the transition is still being prepared; the order that follows says whether it was the right one.

A source may compute on while it serves: the bytes on offer change only in the optimizer, after a
vote in which the receiver takes part, so what is still on offer then is taken back: the receiver
had it from somebody else. Only a leaver waits, since it has nothing else to do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from statemachine import messages as m
from statemachine.events import Motive
from statemachine.ids import Incarnation, JobId, NodeId, Slot, TransitionId
from statemachine.layout import Layout
from statemachine.topology import Holder
from statemachine.transition import some_sources
from worker.faultpoints import reach
from worker.state import TrainingState
from worker.transfer import (
    LENT,
    Claim,
    Fetching,
    ImageHeader,
    ImageRefused,
    Limits,
    Offer,
    Party,
    Source,
    StateImage,
    TransferAborted,
    TransferFailed,
    TransferServer,
    fetch,
)

log = logging.getLogger("worker.handover")

SERVE_DEADLINE_S: Final = 600.0
"""How long a source waits for receivers that neither finish nor are declared lost."""

NEWS_WAIT_S: Final = 3.0
"""How long a failed receiver waits to hear that its sources were lost; after that the fault is its
own, and its process ends so that somebody else takes the slot."""

LIMITS: Final = Limits(connect_s=2.0, offer_wait_s=60.0, stall_s=30.0)

_POLL_S: Final = 0.05


class _Expected:
    """A transfer that has begun before its order came; what arrives waits for `decide`."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.fetching = Fetching(claim, self._into, LIMITS)
        self._decided = threading.Event()
        self._decision: Callable[[ImageHeader], StateImage] | None = None

    def _into(self, header: ImageHeader) -> StateImage:
        self._decided.wait()
        if self._decision is None:
            raise ImageRefused("the transfer was given up")
        return self._decision(header)

    def decide(self, into: Callable[[ImageHeader], StateImage]) -> None:
        """Let the state arrive; what was decided first holds."""
        if not self._decided.is_set():
            self._decision = into
            self._decided.set()

    def cancel(self) -> None:
        """Give it up."""
        self._decided.set()
        self.fetching.cancel()


def _source(holder: Holder) -> Source:
    return Source(holder.host, holder.transfer_port, Party(holder.node, holder.incarnation))


def likely_sources(layout: Layout, message: m.Prepare) -> tuple[Holder, ...]:
    """Who may be told to give a joiner its state: its leaver if there is one, else its replicas."""
    if message.motive is Motive.PLANNED:
        return tuple(holder for holder in message.leavers if holder.slot == message.slot)
    if message.motive is not Motive.UNPLANNED:
        return ()
    return _replicas(layout, message.slot, message.members)


def likely_takers(
    layout: Layout, message: m.Prepare, before: Sequence[Holder]
) -> tuple[Holder, ...]:
    """Whom a member may be told to give its state after a loss: newcomers that ask it for it."""
    newcomers = [holder for holder in message.members if holder not in before]
    return tuple(
        holder
        for holder in newcomers
        if any(one.slot == message.slot for one in _replicas(layout, holder.slot, message.members))
    )


def _replicas(layout: Layout, slot: Slot, members: Sequence[Holder]) -> tuple[Holder, ...]:
    held = {holder.slot: holder for holder in members}
    replicas = [held[other] for other in layout.replicas_of(slot) if other in held]
    return tuple(some_sources(slot, replicas))


def _received(state: TrainingState, wanted: int, header: ImageHeader) -> StateImage:
    """Where a state lands; `wanted` is the step that it must be of, -1 for any."""
    step = _step_of(header.meta)
    if wanted not in (-1, step):
        raise ImageRefused(f"state before step {step}, wanted {wanted}")
    reach("transfer.receiving")
    return state.receiver(header)


def _step_of(meta: Mapping[str, Any]) -> int:
    return int(meta["stamp"]["step"])


class Handover:
    """The transfers of one training process."""

    def __init__(
        self, secret: bytes, job: JobId, node: NodeId, incarnation: Incarnation, host: str
    ) -> None:
        self._secret = secret
        self._job = job
        self._me = Party(node, incarnation)
        self._server = TransferServer(secret=secret, job=job, me=self._me, host=host)
        self._offers: list[Offer] = []
        self._offered = TransitionId(0)
        self._takers: set[Party] = set()
        self._giving = threading.RLock()
        self._lenders: list[Callable[[int], StateImage | None]] = []
        self._expecting = threading.Lock()
        self._expected: _Expected | None = None
        self._accepting: TrainingState | None = None

    @property
    def me(self) -> Party:
        """Who this is."""
        return self._me

    @property
    def port(self) -> int:
        """Where state may be fetched."""
        return self._server.address[1]

    def offer(
        self,
        transition: TransitionId,
        joiners: Sequence[Holder],
        image: Callable[[], StateImage],
    ) -> None:
        """Hold the state out to each joiner, unless that was done; `image` must not change before
        `withdraw`.
        """
        with self._giving:
            if self._offered != transition:
                self.withdraw()
                self._takers.clear()
                self._offered = transition
            parties = [Party(joiner.node, joiner.incarnation) for joiner in joiners]
            fresh = [party for party in parties if party not in self._takers]
            if not fresh:
                return
            made = image()
            self._offers += [self._server.offer(transition, party, made) for party in fresh]
            self._takers.update(fresh)
        reach("transfer.offered")

    def finish_serving(self, interrupt: threading.Event | None = None) -> bool:
        """Wait until every joiner has what it was offered; False if `interrupt` came first."""
        ends_at = time.monotonic() + SERVE_DEADLINE_S
        for offer in self._offers:
            while not offer.wait(_POLL_S):
                if (interrupt is not None and interrupt.is_set()) or time.monotonic() > ends_at:
                    self.withdraw()
                    return False
        self.withdraw()
        return True

    def withdraw(self, *, but: TransitionId | None = None) -> None:
        """Take back what is on offer, `but` what one transition asks for: another is in force."""
        with self._giving:
            if but is not None and self._offered == but:
                return
            for offer in self._offers:
                offer.close()
            self._offers.clear()

    def expect(self, layout: Layout, message: m.Prepare | None) -> None:
        """Ask those who may give the state in a transition, before it is known who will.

        Whoever was asked for another transition is let go; with None, for any.
        """
        sources = likely_sources(layout, message) if message is not None else ()
        with self._expecting:
            if self._expected is not None:
                self._expected.cancel()
                self._expected = None
            if message is None:
                self._accepting = None
            elif sources:
                self._expected = _Expected(self._claim(message.transition))
                self._expected.fetching.ask([_source(holder) for holder in sources])
                if self._accepting is not None:
                    self._expected.decide(partial(_received, self._accepting, -1))

    def accept(self, state: TrainingState) -> None:
        """Let the state that was asked for arrive before it is ordered: there is nothing to lose.

        Whoever calls it leaves `state` alone until a transition says what it is.
        """
        with self._expecting:
            self._accepting = state
            if self._expected is not None:
                self._expected.decide(partial(_received, state, -1))

    def _claim(self, transition: TransitionId) -> Claim:
        return Claim(self._secret, self._job, transition, self._me)

    def _begun(self, transition: TransitionId) -> _Expected:
        """What was begun for this transition, or begins now."""
        claim = self._claim(transition)
        with self._expecting:
            found, self._expected = self._expected, None
            if found is None or found.claim != claim:
                if found is not None:
                    found.cancel()
                found = _Expected(claim)
            return found

    def fetch(
        self, order: m.Commit, state: TrainingState, interrupt: threading.Event
    ) -> tuple[int, int] | None:
        """Receive the state; return (bytes, next step), or None if it could not be had.

        None leaves the live state undefined: the caller holds no state until another transition
        gives it one.

        Raises:
            TransferFailed: no source gave the state although none of them was lost.
        """
        begun = self._begun(order.transition)
        begun.decide(partial(_received, state, order.resume_step))
        try:
            begun.fetching.settle([_source(holder) for holder in order.sources])
            report = begun.fetching.finish(interrupt)
            if order.resume_step not in (-1, _step_of(report.image.meta)):
                raise TransferFailed(f"what came early is not what step {order.resume_step} needs")
        except TransferAborted:
            log.info("transfer of transition %d abandoned", order.transition)
            return None
        except TransferFailed as failure:
            log.warning("transfer of transition %d failed: %s", order.transition, failure)
            if interrupt.wait(NEWS_WAIT_S):
                return None
            raise
        log.info(
            "received %.1f MB in %.1f ms, of which %.1f ms until a source had answered: %s",
            report.nbytes / 1e6,
            report.seconds * 1e3,
            report.setup_s * 1e3,
            ", ".join(f"{one.node} {one.nbytes / 1e6:.1f} MB" for one in report.sources),
        )
        state.import_(report.image)
        return report.nbytes, _step_of(report.image.meta)

    def lend(self, lender: Callable[[int], StateImage | None]) -> None:
        """Let `lender` say what any node of the job may have, by number; None: nothing."""
        self._lenders.append(lender)
        self._server.lend(self._lent)

    def _lent(self, number: int) -> StateImage | None:
        found = (lender(number) for lender in self._lenders)
        return next((image for image in found if image is not None), None)

    def borrow(
        self,
        holders: Sequence[Holder],
        number: int,
        into: Callable[[ImageHeader], StateImage],
    ) -> StateImage:
        """Receive what nodes lend under a number.

        Raises:
            TransferFailed: none of them gave it; the message says what each one did.
        """
        report = fetch(
            [Source(h.host, h.transfer_port, Party(h.node, h.incarnation)) for h in holders],
            secret=self._secret,
            job=self._job,
            transition=LENT,
            attempt=number,
            joiner=self._me,
            into=into,
        )
        return report.image

    def close(self) -> None:
        """Stop serving, and asking."""
        with self._expecting:
            if self._expected is not None:
                self._expected.cancel()
        self.withdraw()
        self._server.close()
