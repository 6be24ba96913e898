"""The taking side: one image from one or several sources that hold identical bits.

Rules of this file: it moves bytes into memory that the caller owns and tells how that went. It does
not decide which sources there are, nor what a failed transfer means.

Every source is a thread with one connection. All take chunks from one pool, a few at a time, so a
faster source gives more and nobody waits for a slow one until the end. What a source had been asked
for and has not given goes back into the pool when it dies, stalls or hands over a chunk that does
not fit its seal. Chunks land in the destination's own memory; per source there is one chunk of
scratch space beside it.
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
    destination = Destination(into, len(sources))
    limits = Limits(connect_timeout_s, offer_wait_s, stall_s)
    draws = [
        Draw(
            each, Binding(job, transition, attempt, each.party, joiner), secret, destination, limits
        )
        for each in sources
    ]
    return _Effort(draws, destination).run(abort)


class _Effort:
    """All sources of one transfer, until it is complete, aborted or hopeless."""

    def __init__(self, draws: list[Draw], destination: Destination) -> None:
        self._draws, self._destination = draws, destination
        self._progress = threading.Condition()
        self._running = len(draws)

    def run(self, abort: threading.Event | None) -> TransferReport:
        started = time.perf_counter()
        threads = [
            threading.Thread(target=self._run_one, args=(each,), name="transfer-draw", daemon=True)
            for each in self._draws
        ]
        for thread in threads:
            thread.start()
        setup_s = 0.0
        try:
            while self._running and not self._destination.complete:
                if abort is not None and abort.is_set():
                    raise TransferAborted("transfer stopped on request")
                with self._progress:
                    self._progress.wait(_ABORT_POLL_S)
                if self._destination.pool is not None and not setup_s:
                    setup_s = time.perf_counter() - started
        finally:
            self._wind_up()
            for thread in threads:
                thread.join()
        return self._reported(started, setup_s)

    def _run_one(self, draw: Draw) -> None:
        try:
            draw.run()
        finally:
            with self._progress:
                self._running -= 1
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
