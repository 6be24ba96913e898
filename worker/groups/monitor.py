"""The monitor: one thread that reads every control socket of a process.

What belongs here: noticing that a peer ended, left or aborted, while the training thread computes
or is blocked elsewhere; and ending links in an orderly way, off any pause. What does not: what the
news means for a group.

Theory of operation. A process that dies lets the kernel end its sockets; a process that leaves
says GOODBYE first, and waits for the other side's GOODBYE before it closes, so that no reset can
overtake it. Hence: an end without GOODBYE is evidence that the peer's *process* ended. An ABORT is
evidence against its subject, never against its sender. The thread sleeps in poll; bulk data never
wakes it.
"""

import contextlib
import errno
import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from controlplane.eventlog.promptness import be_prompt
from worker.groups import frames
from worker.groups.frames import HEADER_BYTES, Kind
from worker.groups.wakeup import WakeUp

if TYPE_CHECKING:
    from worker.groups.link import Link
    from worker.groups.links import LinkEndpoint

GOODBYE_WAIT_S: Final = 2.0
_READ: Final = select.POLLIN | select.POLLRDHUP
_DEATHS: Final = (errno.ECONNRESET, errno.EPIPE)

log = logging.getLogger(__name__)


class LinkMonitor:
    """Watches links for one endpoint, which it tells what it sees."""

    def __init__(self, endpoint: "LinkEndpoint") -> None:
        self._endpoint = endpoint
        self._poll = select.poll()
        self._links: dict[int, Link] = {}
        self._retiring: dict[int, float] = {}
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = WakeUp()
        self._poll.register(self._wake.fd, select.POLLIN)
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="link-monitor", daemon=True)
        self._thread.start()

    # --- from any thread --------------------------------------------------------------------------

    def watch(self, link: "Link") -> None:
        """Notice what happens to `link` from now on."""
        self._command(lambda: self._watch(link))

    def retire(self, link: "Link") -> None:
        """End `link` in an orderly way; its user has let go of it."""
        link.retiring = True
        self._command(lambda: self._retire(link))

    def say_abort(self, link: "Link", tag: int, index: int | None) -> None:
        """Send an ABORT frame; what does not fit the socket now follows from this thread."""
        chunk = 0 if index is None else index + 1
        if self._say(link, frames.pack(Kind.ABORT, tag, 0, chunk, 0)):
            self._command(lambda: self._want_write(link))

    def close(self, wait_s: float) -> None:
        """Finish retiring, for `wait_s` seconds at most, and stop."""

        def stop() -> None:
            self._stop_at = time.monotonic() + wait_s

        self._command(stop)
        self._thread.join()

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._wake.signal()

    def _say(self, link: "Link", frame: bytes) -> bool:
        """Send or queue; True when something is left for the monitor to send."""
        with link.control_lock:
            link.outbox += frame
            with contextlib.suppress(OSError):  # full, or gone: the reading side tells which
                sent = link.control.send(link.outbox)
                del link.outbox[:sent]
            return bool(link.outbox)

    # --- the monitor's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        be_prompt()
        while not self._done():
            for fd, events in self._poll.poll(self._timeout_ms()):
                if fd == self._wake.fd:
                    self._wake.clear()
                else:
                    self._attend_safely(fd, events)
            while self._commands:
                self._commands.popleft()()
            self._expire()
        for link in list(self._links.values()):
            self._end(link)

    def _done(self) -> bool:
        if self._stop_at is None:
            return False
        return not self._links or time.monotonic() >= self._stop_at

    def _timeout_ms(self) -> float | None:
        ends = list(self._retiring.values())
        if self._stop_at is not None:
            ends.append(self._stop_at)
        return max(0.0, (min(ends) - time.monotonic()) * 1000) if ends else None

    def _attend_safely(self, fd: int, events: int) -> None:
        """One link's trouble, or its owner's, must not blind this process to the others."""
        try:
            self._attend(fd, events)
        except Exception:
            log.exception("link monitor: an event on descriptor %d was not handled", fd)

    def _attend(self, fd: int, events: int) -> None:
        link = self._links.get(fd)
        if link is None:
            return
        if events & select.POLLOUT:
            self._flush(link)
        if events & ~select.POLLOUT:
            self._read(link)

    def _watch(self, link: "Link") -> None:
        fd = link.control.fileno()
        if fd < 0:
            return
        self._links[fd] = link
        self._poll.register(fd, _READ)

    def _want_write(self, link: "Link") -> None:
        fd = link.control.fileno()
        if fd in self._links:
            self._poll.modify(fd, _READ | select.POLLOUT)

    def _flush(self, link: "Link") -> None:
        if not self._say(link, b""):
            self._poll.modify(link.control.fileno(), _READ)

    def _read(self, link: "Link") -> None:
        died = True
        try:
            part = link.control.recv(HEADER_BYTES * 64)
        except BlockingIOError:
            return
        except OSError as error:
            part, died = b"", error.errno in _DEATHS
        if not part:
            self._ended(link, died=died)
            return
        link.inbox += part
        while len(link.inbox) >= HEADER_BYTES and not link.has_ended:
            try:
                header = frames.unpack(link.inbox)
            except frames.BadFrame:
                self._ended(link, died=False)
                return
            del link.inbox[:HEADER_BYTES]
            self._heard(link, header)

    def _heard(self, link: "Link", header: frames.Header) -> None:
        if header.kind == Kind.ABORT:
            index = header.chunk - 1 if header.chunk else None
            self._endpoint.link_abort(link, header.tag, index)
        elif header.kind == Kind.GOODBYE:
            link.has_left = True
            self._say_goodbye(link)
            if link.retiring:
                self._end(link)
            else:
                self._endpoint.link_left(link)

    def _say_goodbye(self, link: "Link") -> None:
        if link.said_goodbye:
            return
        link.said_goodbye = True
        if self._say(link, frames.pack(Kind.GOODBYE, 0, 0, 0, 0)):
            self._want_write(link)

    def _ended(self, link: "Link", *, died: bool) -> None:
        """The control connection is over: a death, unless one of us had said goodbye.

        A network that lost the peer (`died` is False) says nothing about the peer's process.
        """
        orderly = link.retiring or link.has_left
        link.died = died and not orderly
        self._end(link)
        if not orderly:
            self._endpoint.link_ended(link, died=died)

    def _end(self, link: "Link") -> None:
        fd = link.control.fileno()
        if self._links.pop(fd, None) is not None:
            self._poll.unregister(fd)
        self._retiring.pop(fd, None)
        link.has_ended = True
        with link.control_lock:
            link.control.close()
        if link.retiring:
            link.bulk.drain()
            link.bulk.close()

    def _retire(self, link: "Link") -> None:
        fd = link.control.fileno()
        if fd not in self._links:  # ended before: only the bulk stream is left
            link.bulk.close()
            return
        self._say_goodbye(link)
        link.bulk.end_sending()
        if link.has_left:
            self._end(link)
        else:
            self._retiring[fd] = time.monotonic() + GOODBYE_WAIT_S

    def _expire(self) -> None:
        now = time.monotonic()
        for fd in [fd for fd, ends_at in self._retiring.items() if ends_at <= now]:
            self._end(self._links[fd])
