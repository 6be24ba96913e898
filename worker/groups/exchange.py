"""The poll loop of a collective: lanes that send and receive take turns until all are done.

What belongs here: scheduling lanes, waiting, interruption, the backstop against waiting for ever.
What does not: what lanes say to whom (rings, trees), what a fault means (linked).

A **lane** is a generator that yields what it is blocked on: a stream's `want_read` or `want_write`,
`OTHER_LANE` when only another lane's progress can help, or `MORE` to give the others a turn after
useful work. Everything runs in the caller's thread; the interpreter lock is released in poll.
"""

import select
import time
from collections.abc import Callable, Generator, Sequence
from typing import Final

from worker.faultpoints import reach
from worker.groups.bulk import BulkStream
from worker.groups.pacing import rested_s
from worker.groups.port import Waits
from worker.groups.wakeup import WakeUp

Want = tuple[int, int]
Lane = Generator[Want, None, None]

MORE: Final[Want] = (-1, 0)
OTHER_LANE: Final[Want] = (-2, 0)
_READABLE: Final = select.POLLIN | select.POLLHUP | select.POLLERR | select.POLLRDHUP
_WRITABLE: Final = select.POLLOUT | select.POLLHUP | select.POLLERR


class Interrupted(Exception):
    """The group broke while a collective was running."""


class NothingMoved(Exception):
    """No peer moved for the whole backstop; `fds` are the sockets that were waited for."""

    def __init__(self, fds: list[int], timeout_s: float) -> None:
        super().__init__(f"no progress for {timeout_s:g} s")
        self.fds = fds


def send(stream: BulkStream, tag: int, sequence: int, chunk: int, payload: memoryview) -> Lane:
    """Send one frame."""
    while not stream.begin_send(tag, sequence, chunk, payload):
        stream.flush()  # what an abandoned frame still owes must not wait for room
        yield stream.want_room
    while not stream.flush():
        yield stream.want_write


def receive(stream: BulkStream, tag: int, sequence: int, chunk: int, target: memoryview) -> Lane:
    """Receive one frame into `target`."""
    elsewhere = yield from arrive(stream, tag, sequence, chunk, target)
    if elsewhere is not None:
        target[:] = elsewhere
        stream.release()


def arrive(
    stream: BulkStream, tag: int, sequence: int, chunk: int, target: memoryview
) -> Generator[Want, None, memoryview | None]:
    """Receive one frame: into `target` (None), or to where it already is, until `release`."""
    stream.begin_receive(tag, sequence, chunk, target)
    while not stream.fill():
        yield stream.want_read
    return stream.elsewhere


class Exchange:
    """Runs lanes for one group."""

    def __init__(self, wake: WakeUp, is_broken: Callable[[], bool], timeout_s: float) -> None:
        self._wake = wake
        self._is_broken = is_broken
        self._timeout_s = timeout_s
        self.waits = Waits()

    def run(self, lanes: Sequence[Lane], background: Sequence[Lane] = ()) -> None:
        """Run every lane to its end; meanwhile `background` lanes get as far as they get.

        Raises:
            Interrupted: the group broke.
            StreamFault: from a lane: a stream ended, or its peer is elsewhere.
            NothingMoved: the backstop ran out.
        """
        started = time.monotonic()
        waited_s = -rested_s()
        blocked: dict[Lane, Want] = dict.fromkeys([*background, *lanes], MORE)
        ready: dict[int, int] = {}
        reach("exchange.begin")
        while any(lane in blocked for lane in lanes):
            if self._is_broken():
                raise Interrupted
            if not self._turn(blocked, ready):
                before = time.monotonic()
                reach("exchange.waiting")
                ready = self._wait(list(blocked.values()))
                waited_s += time.monotonic() - before
            else:
                ready = {}
        reach("exchange.end")
        waited_s += rested_s()
        waits = self.waits
        waits.operations += 1
        waits.wait_s += waited_s
        waits.busy_s += time.monotonic() - started - waited_s

    def _turn(self, blocked: dict[Lane, Want], ready: dict[int, int]) -> bool:
        """Step each lane that can go on; True when at least one asks for another turn."""
        moved = False
        for lane, want in list(blocked.items()):
            fd, mask = want
            if fd >= 0 and not ready.get(fd, 0) & mask:
                continue
            try:
                want = next(lane)  # noqa: PLW2901 - the lane's new want replaces the old one
            except StopIteration:
                del blocked[lane]
                moved = True
                continue
            blocked[lane] = want
            moved = moved or want is MORE
        return moved

    def _wait(self, wants: list[Want]) -> dict[int, int]:
        """Sleep until a socket that a lane waits for is ready, or the group breaks."""
        masks: dict[int, int] = {}
        for fd, mask in wants:
            if fd >= 0:
                masks[fd] = masks.get(fd, 0) | mask
        poll = select.poll()
        poll.register(self._wake.fd, select.POLLIN)
        for fd, mask in masks.items():
            poll.register(fd, mask)
        events = poll.poll(self._timeout_s * 1000)
        if not events:
            raise NothingMoved(sorted(masks), self._timeout_s)
        found = {fd: _satisfied(mask) for fd, mask in events}
        if found.pop(self._wake.fd, 0):
            self._wake.clear()  # broken, which `run` will see, or something for another lane
        return found


def _satisfied(events: int) -> int:
    """Translate what poll saw into the wants that may go on; an error wakes both directions."""
    found = 0
    if events & _READABLE:
        found |= select.POLLIN
    if events & _WRITABLE:
        found |= select.POLLOUT
    return found
