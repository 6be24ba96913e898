"""Memory that the two ends of a link share, where both are on one machine.

What belongs here: one direction's memory: where payloads go, and how room is given back. What does
not: frames (bulk), when to use it.

Theory of operation. The sender makes the memory when it first has something large to send, and
passes it through the link's own socket; it has no name, so nothing is left behind however either
process ends. Payloads lie in it one after the other, round and round; both ends work out where from
the sizes alone, in the order of the frames. The header of a frame still goes through the socket: it
says that a payload is there, and wakes whoever waits. What the receiver has consumed is counted in
the first page, and signalled, so that a sender that found no room can wait for it in poll.

Copying once into memory and folding straight out of it takes a third of the processor time of two
copies through a socket.
"""

import contextlib
import fcntl
import mmap
import os
import select
import struct
from typing import Final

from worker.groups.frames import CHUNK_BYTES_MAX

SHARED_BYTES_MIN: Final = 24 * 1024
"""Smaller payloads go through the socket: one copy more, and one signal less."""

RING_BYTES: Final = 4 * CHUNK_BYTES_MAX
_PAGE: Final = 4096
_COUNT: Final = struct.Struct("<Q")
_ALIGNED: Final = 64
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class BadMemory(Exception):
    """What a peer passed is not memory of ours."""


def _after(position: int, nbytes: int) -> tuple[int, int]:
    """Where a payload lies that is placed at `position` or later, and the position behind it."""
    start = position % RING_BYTES
    if start + nbytes > RING_BYTES:  # does not fit before the end: begin anew
        position += RING_BYTES - start
        start = 0
    return _PAGE + start, position + nbytes + -nbytes % _ALIGNED


def _unmap(view: memoryview, memory: mmap.mmap) -> None:
    """Let go of memory now; what still looks at a part of it keeps it until it does not."""
    with contextlib.suppress(BufferError):
        view.release()
        memory.close()


class SharedWriter:
    """The sending end. `fds` are what the receiver needs."""

    def __init__(self) -> None:
        """Make the memory; raises OSError if there is none to be had."""
        memory = os.memfd_create("changeover-link", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memory, _PAGE + RING_BYTES)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
            self._memory = mmap.mmap(memory, _PAGE + RING_BYTES)
            self._room = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except BaseException:
            os.close(memory)
            raise
        self._memory_fd = memory
        self._view = memoryview(self._memory)
        self._position = self._before = 0
        self.want_room = (self._room, select.POLLIN)

    @property
    def fds(self) -> list[int]:
        """Descriptors to pass to the receiver."""
        return [self._memory_fd, self._room]

    def passed(self) -> None:
        """The receiver has been sent the descriptors."""
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd = -1

    def put(self, payload: memoryview) -> bool:
        """Copy a payload in; False if there is no room before `want_room` is ready."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._room)  # before looking: what is consumed later signals anew
        at, end = _after(self._position, payload.nbytes)
        if end - _COUNT.unpack_from(self._memory)[0] > RING_BYTES:
            return False
        self._view[at : at + payload.nbytes] = payload
        self._before, self._position = self._position, end
        return True

    def take_back(self) -> None:
        """Forget the last payload: no word of it has left."""
        self._position = self._before

    def close(self) -> None:
        """Free descriptors; the memory goes with its last user."""
        self.passed()
        if self._room >= 0:
            os.close(self._room)
            self._room = -1
            _unmap(self._view, self._memory)


class SharedReader:
    """The receiving end of memory that a peer made."""

    def __init__(self, fds: list[int]) -> None:
        """Map what was passed; the descriptors belong to this object from now on.

        Raises:
            BadMemory: it is not memory of ours.
        """
        self._room = -1
        try:
            if len(fds) != 2 or os.fstat(fds[0]).st_size != _PAGE + RING_BYTES:
                raise BadMemory("not memory of a link")
            if fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise BadMemory("memory that could be taken away")
            self._memory = mmap.mmap(fds[0], _PAGE + RING_BYTES)
            self._room = fds.pop()
        except OSError as error:
            raise BadMemory(str(error)) from None
        finally:
            for fd in fds:
                os.close(fd)
        self._view = memoryview(self._memory)
        self._position = 0

    def take(self, nbytes: int) -> memoryview:
        """The next payload, in place; it stays until `release`."""
        at, self._position = _after(self._position, nbytes)
        return self._view[at : at + nbytes]

    def release(self) -> None:
        """Give the room of everything taken so far back to the sender."""
        _COUNT.pack_into(self._memory, 0, self._position)
        os.eventfd_write(self._room, 1)

    def close(self) -> None:
        """Free descriptors; the memory goes with its last user."""
        if self._room >= 0:
            os.close(self._room)
            self._room = -1
            _unmap(self._view, self._memory)
