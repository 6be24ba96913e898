"""The taking side: one image from one or several sources that hold identical bits.

Rules of this file: it moves bytes into memory that the caller owns and tells how that went. It does
not decide which sources there are, nor what a failed transfer means.

Every source is a thread with one connection. All take chunks from one pool, a few at a time, so a
faster source gives more and nobody waits for a slow one until the end. What a source had been asked
for and has not given goes back into the pool when it dies, stalls or hands over a chunk that does
not fit its seal. Chunks land in the destination's own memory; per source there is one chunk of
scratch space beside it.

A transfer may begin before it is known who will give: connecting and proving take several round
trips, each of which waits for both processes to be scheduled. Sources are asked in advance, and
hold their answer until they make an offer; `settle` then says which of them count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from worker.transfer.draw import Draw, Limits, Source, SourceReport
from worker.transfer.errors import TransferAborted, TransferFailed
from worker.transfer.image import ImageHeader, StateImage
from worker.transfer.pool import Destination
from worker.transfer.token import Binding, Party

_ABORT_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class TransferReport:
    """A finished transfer: the destination with the source's metadata, and how it went.

    `setup_s` is until a first header was accepted, `seconds` all of it, set-up included.
    """

    image: StateImage
    nbytes: int
    seconds: float
    setup_s: float
    sources: tuple[SourceReport, ...]


def fetch(
    sources: Sequence[Source],
    *,
    secret: bytes,
    job: str,
    transition: int,
    joiner: Party,
    into: StateImage | Callable[[ImageHeader], StateImage],
    attempt: int = 0,
    abort: threading.Event | None = None,
    connect_timeout_s: float = 2.0,
    offer_wait_s: float = 5.0,
    stall_s: float = 5.0,
) -> TransferReport:
    """Receive one image from all `sources` at once, straight into the memory of `into`.

    `into` is the destination, or makes it from the first header received; it may raise
    `ImageRefused` to have that source left out ("step 41, wanted 42"). A source whose header
    differs from the accepted one is left out too. A source may take `offer_wait_s` to open its
    offer and may then be silent for `stall_s`; other sources do not wait for it.

    Raises:
        TransferAborted: `abort` was set. No byte of the destination is written any more.
        TransferFailed: no source is left; the message says what each one did.
        ValueError: the secret is too short.
    """
    limits = Limits(connect_timeout_s, offer_wait_s, stall_s)
    begun = Fetching(Claim(secret, job, transition, joiner, attempt), into, limits)
    begun.settle(sources)
    return begun.finish(abort)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a transfer is for; from it and a source follows the token that both must have."""

    secret: bytes
    job: str
    transition: int
    joiner: Party
    attempt: int = 0

    def binding(self, source: Party) -> Binding:
        """The binding of the token."""
        return Binding(self.job, self.transition, self.attempt, source, self.joiner)


class Fetching:
    """All sources of one transfer, until it is complete, aborted or hopeless.

    `ask` sources in advance, `settle` which of them give, and `finish`; or `cancel`.
    """

    def __init__(
        self,
        claim: Claim,
        into: StateImage | Callable[[ImageHeader], StateImage],
        limits: Limits,
    ) -> None:
        self._claim, self._limits = claim, limits
        self._destination = Destination(into)
        self._draws: list[Draw] = []
        self._threads: dict[Draw, threading.Thread] = {}
        self._progress = threading.Condition()
        self._running: set[Draw] = set()

    def ask(self, sources: Sequence[Source]) -> None:
        """Connect to sources, prove who we are, and wait for what each has to offer.

        Raises:
            ValueError: the secret is too short.
        """
        self._destination.expect(len(self._draws) + len(sources))
        for each in sources:
            binding = self._claim.binding(each.party)
            draw = Draw(each, binding, self._claim.secret, self._destination, self._limits)
            thread = threading.Thread(
                target=self._run_one, args=(draw,), name="transfer-draw", daemon=True
            )
            with self._progress:
                self._running.add(draw)
            self._draws.append(draw)
            self._threads[draw] = thread
            thread.start()

    def settle(self, sources: Sequence[Source]) -> None:
        """These give the state: let the others go, and ask those that were not asked, or in vain.

        What somebody else has given meanwhile counts: all images of one transfer are the same.

        Raises:
            ValueError: the secret is too short.
        """
        with self._progress:
            running = set(self._running)
        kept = [draw for draw in self._draws if draw in running or draw.report.chunks]
        for draw in kept:
            if draw.source not in sources:
                draw.hang_up()
        self._draws = [draw for draw in kept if draw.source in sources]
        self._destination.expect(len(sources))
        asked = {draw.source for draw in self._draws}
        if not self._destination.complete:
            self.ask([source for source in sources if source not in asked])

    def cancel(self) -> None:
        """Let every source go; returns once none is heard any more."""
        if self._destination.pool is not None:
            self._destination.pool.stop()
        with self._progress:
            waiting = list(self._running)
        for draw in waiting:
            draw.hang_up()
        for thread in self._threads.values():
            thread.join()

    def finish(self, abort: threading.Event | None) -> TransferReport:
        """Wait until everything is there; raises as `fetch` does."""
        started = time.perf_counter()
        setup_s = 0.0
        try:
            while self._asking() and not self._destination.complete:
                if abort is not None and abort.is_set():
                    raise TransferAborted("transfer stopped on request")
                with self._progress:
                    self._progress.wait(_ABORT_POLL_S)
                if self._destination.pool is not None and not setup_s:
                    setup_s = time.perf_counter() - started
        finally:
            self._wind_up()
            for thread in self._threads.values():
                thread.join()
        return self._reported(started, setup_s)

    def _asking(self) -> bool:
        return any(draw in self._running for draw in self._draws)

    def _run_one(self, draw: Draw) -> None:
        try:
            draw.run()
        finally:
            with self._progress:
                self._running.discard(draw)
                self._progress.notify_all()

    def _wind_up(self) -> None:
        """Let no thread outlive the transfer: cut those that have nothing to finish."""
        complete = self._destination.complete
        if self._destination.pool is not None:
            self._destination.pool.stop()
        for draw in self._draws:
            if not (complete and draw.drawing):
                draw.hang_up()

    def _reported(self, started: float, setup_s: float) -> TransferReport:
        reports = tuple(draw.report for draw in self._draws)
        image = self._destination.image
        if image is None or not self._destination.complete:
            told = "; ".join(f"{each.node}: {each.outcome}" for each in reports) or "none was named"
            raise TransferFailed(f"no source is left to receive state from ({told})")
        seconds = time.perf_counter() - started
        return TransferReport(image, image.nbytes, seconds, setup_s, reports)
