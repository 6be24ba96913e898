"""Collectives for large payloads: around a ring, in chunks, sending and receiving at once.

What belongs here: which chunk travels at which step, and the two lanes that move them. What does
not: arithmetic (callers fold), sockets, tensors.

Theory of operation. The payload has one segment per member, each cut into the same number of chunks
by every member. At step t a member sends segment (start - t) and receives segment (start - t - 1),
modulo the size. A chunk may be sent on as soon as it has been received at the step before, so the
whole ring streams. In a reduction, segment s is folded in the order of indices from its first
sender on: fixed by index, the same bits wherever a node sits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from worker.groups.bulk import BulkStream
from worker.groups.exchange import MORE, OTHER_LANE, Lane, arrive, receive, send
from worker.groups.wakeup import WakeUp


class Progress:
    """How many chunks have arrived; lets a sending lane on another thread wait for more."""

    def __init__(self) -> None:
        self.received = 0
        self._nudge: WakeUp | None = None
        self._starving = False

    def across_threads(self, nudge: WakeUp) -> None:
        """Signal `nudge` whenever the sending lane waits and something arrives."""
        self._nudge = nudge

    def arrived(self, count: int) -> None:
        """Say that `count` chunks have arrived in all."""
        self.received = count
        if self._starving and self._nudge is not None:
            self._starving = False
            self._nudge.signal()

    def wait_for(self, count: int) -> Lane:
        """Wait until at least `count` chunks have arrived."""
        while self.received < count:
            self._starving = True
            if self.received < count:  # else it arrived between the two looks, unsignalled
                yield OTHER_LANE


Cut = Callable[[int, int], memoryview]
"""Bytes of (segment, chunk)."""


@dataclass(slots=True)
class Pass:
    """One trip around the ring.

    `steps` is how often segments move on. `landing` says where a received chunk goes and `landed`
    what to do with it then; both get (step, segment, chunk), and `landed` also where the bytes are
    if they need not be where `landing` said (None: they are there).
    """

    size: int
    start: int
    steps: int
    chunks: int
    cut: Cut
    landing: Callable[[int, int, int], memoryview]
    landed: Callable[[int, int, int, memoryview | None], None]
    progress: Progress = field(default_factory=Progress)

    def lanes(
        self, stamp: tuple[int, int], previous: BulkStream, following: BulkStream
    ) -> list[Lane]:
        """Return the sending and the receiving lane."""
        return [self._sending(stamp, following), self._receiving(stamp, previous)]

    def _sending(self, stamp: tuple[int, int], stream: BulkStream) -> Lane:
        for number in range(self.steps * self.chunks):
            step, chunk = divmod(number, self.chunks)
            yield from self.progress.wait_for(number - self.chunks + 1)
            segment = (self.start - step) % self.size
            yield from send(stream, *stamp, number, self.cut(segment, chunk))
            yield MORE

    def _receiving(self, stamp: tuple[int, int], stream: BulkStream) -> Lane:
        for number in range(self.steps * self.chunks):
            step, chunk = divmod(number, self.chunks)
            segment = (self.start - step - 1) % self.size
            target = self.landing(step, segment, chunk)
            elsewhere = yield from arrive(stream, *stamp, number, target)
            self.landed(step, segment, chunk, elsewhere)
            if elsewhere is not None:
                stream.release()
            self.progress.arrived(number + 1)
            yield MORE


@dataclass(slots=True)
class Relay:
    """A broadcast: chunks go once around, from the root to the member before it."""

    position: int
    size: int
    chunks: list[memoryview]
    progress: Progress = field(default_factory=Progress)

    def lanes(
        self, stamp: tuple[int, int], previous: BulkStream, following: BulkStream
    ) -> list[Lane]:
        """Return the lanes that this position needs, the sending one first."""
        lanes = []
        if self.position < self.size - 1:
            lanes.append(self._sending(stamp, following))
        if self.position > 0:
            lanes.append(self._receiving(stamp, previous))
        else:
            self.progress.arrived(len(self.chunks))
        return lanes

    def _receiving(self, stamp: tuple[int, int], stream: BulkStream) -> Lane:
        for number, chunk in enumerate(self.chunks):
            yield from receive(stream, *stamp, number, chunk)
            self.progress.arrived(number + 1)
            yield MORE

    def _sending(self, stamp: tuple[int, int], stream: BulkStream) -> Lane:
        for number, chunk in enumerate(self.chunks):
            yield from self.progress.wait_for(number + 1)
            yield from send(stream, *stamp, number, chunk)
            yield MORE
