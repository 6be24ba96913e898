"""Handing the training state over inside one transition: giving it and receiving it.

What belongs here: which offers are open, and what of a transfer's outcome matters to the loop.
What does not: the stream itself (`transfer`), what the state is (`state`).

A source may compute on while it serves: the bytes on offer change only in the optimizer, after a
vote in which the receiver takes part, so what is still on offer then is taken back: the receiver
had it from somebody else. Only a leaver waits, since it has nothing else to do.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from statemachine import messages as m
from statemachine.ids import Incarnation, JobId, NodeId, TransitionId
from statemachine.topology import Holder
from worker.faultpoints import reach
from worker.state import TrainingState
from worker.transfer import (
    LENT,
    ImageHeader,
    ImageRefused,
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

_POLL_S: Final = 0.05


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

    @property
    def port(self) -> int:
        """Where state may be fetched."""
        return self._server.address[1]

    def offer(self, transition: TransitionId, joiners: Sequence[Holder], image: StateImage) -> None:
        """Hold the state out to each joiner; it must not change before `withdraw`."""
        self.withdraw()
        for joiner in joiners:
            party = Party(joiner.node, joiner.incarnation)
            self._offers.append(self._server.offer(transition, party, image))
        if joiners:
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

    def withdraw(self) -> None:
        """Take back what is still on offer: another transition is in force."""
        for offer in self._offers:
            offer.close()
        self._offers.clear()

    def fetch(
        self, order: m.Commit, state: TrainingState, interrupt: threading.Event
    ) -> tuple[int, int] | None:
        """Receive the state; return (bytes, next step), or None if it could not be had.

        None leaves the live state undefined: the caller holds no state until another transition
        gives it one.

        Raises:
            TransferFailed: no source gave the state although none of them was lost.
        """

        def into(header: ImageHeader) -> StateImage:
            step = header.meta["stamp"]["step"]
            if order.resume_step not in (-1, step):
                raise ImageRefused(f"state before step {step}, wanted {order.resume_step}")
            reach("transfer.receiving")
            return state.receiver(header)

        sources = [
            Source(holder.host, holder.transfer_port, Party(holder.node, holder.incarnation))
            for holder in order.sources
        ]
        try:
            report = fetch(
                sources,
                secret=self._secret,
                job=self._job,
                transition=order.transition,
                joiner=self._me,
                into=into,
                abort=interrupt,
                offer_wait_s=60.0,
                stall_s=30.0,
            )
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
        return report.nbytes, int(report.image.meta["stamp"]["step"])

    def lend(self, lender: Callable[[int], StateImage | None]) -> None:
        """Let `lender` say what any node of the job may have, by number; None: nothing."""
        self._server.lend(lender)

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
        """Stop serving."""
        self.withdraw()
        self._server.close()
