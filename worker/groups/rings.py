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
from dataclasses import dataclass

from worker.groups.bulk import BulkStream
from worker.groups.exchange import MORE, OTHER_LANE, Lane, receive, send

Cut = Callable[[int, int], memoryview]
"""Bytes of (segment, chunk)."""


@dataclass(slots=True)
class Pass:
    """One trip around the ring.

    `steps` is how often segments move on. `landing` says where a received chunk goes and `landed`
    what to do with it then; both get (step, segment, chunk).
    """

    size: int
    start: int
    steps: int
    chunks: int
    cut: Cut
    landing: Callable[[int, int, int], memoryview]
    landed: Callable[[int, int, int], None]
    received: int = 0

    def lanes(
        self, stamp: tuple[int, int], previous: BulkStream, following: BulkStream
    ) -> list[Lane]:
        """Return the sending and the receiving lane."""
        return [self._sending(stamp, following), self._receiving(stamp, previous)]

    def _sending(self, stamp: tuple[int, int], stream: BulkStream) -> Lane:
        for number in range(self.steps * self.chunks):
            step, chunk = divmod(number, self.chunks)
            while number - self.chunks >= self.received:
                yield OTHER_LANE
            segment = (self.start - step) % self.size
            yield from send(stream, *stamp, number, self.cut(segment, chunk))
            yield MORE

    def _receiving(self, stamp: tuple[int, int], stream: BulkStream) -> Lane:
        for number in range(self.steps * self.chunks):
            step, chunk = divmod(number, self.chunks)
            segment = (self.start - step - 1) % self.size
            target = self.landing(step, segment, chunk)
            yield from receive(stream, *stamp, number, target)
            self.landed(step, segment, chunk)
            self.received = number + 1
            yield MORE


@dataclass(slots=True)
class Relay:
    """A broadcast: chunks go once around, from the root to the member before it."""

    position: int
    size: int
    chunks: list[memoryview]
    received: int = 0

    def lanes(
        self, stamp: tuple[int, int], previous: BulkStream, following: BulkStream
    ) -> list[Lane]:
        """Return the lanes that this position needs."""
        lanes = []
        if self.position > 0:
            lanes.append(self._receiving(stamp, previous))
        else:
            self.received = len(self.chunks)
        if self.position < self.size - 1:
            lanes.append(self._sending(stamp, following))
        return lanes

    def _receiving(self, stamp: tuple[int, int], stream: BulkStream) -> Lane:
        for number, chunk in enumerate(self.chunks):
            yield from receive(stream, *stamp, number, chunk)
            self.received = number + 1
            yield MORE

    def _sending(self, stamp: tuple[int, int], stream: BulkStream) -> Lane:
        for number, chunk in enumerate(self.chunks):
            while number >= self.received:
                yield OTHER_LANE
            yield from send(stream, *stamp, number, chunk)
            yield MORE
