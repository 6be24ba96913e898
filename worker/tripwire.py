"""A tripwire: an agent learns that its training process is being killed before its memory is gone.

What belongs here: the two ends of one robust mutex in memory that both processes map, and the one
number that outlives the process there: the last step that it committed. What the end of a process
means does not.

Theory of operation. The kernel takes a killed process's memory down first, and only then closes
its sockets and makes its pidfd readable. That takes 20 ms for a process that has loaded torch and
180 ms per gigabyte that it uses, so that the largest training processes are noticed last. A
*robust* mutex is let go before that, when the thread that holds it ends: a thread of the training
process holds one for its whole life, and whoever waits for it is woken within milliseconds.

Rules. It is a hint that comes early, never the only witness: a process is called dead here only if
the kernel says that it is ending and not in order; everything else is left to the pidfd. Where the
C library has no robust mutexes nothing is armed, and nothing is lost but the head start.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
import threading
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Final

FD_VARIABLE: Final = "CHANGEOVER_TRIPWIRE_FD"
"""Environment variable that holds the number of the inherited memory."""

_SHARED, _ROBUST = 1, 1
_OWNER_DIED: Final = 130
_BYTES: Final = 4096
_HOLDER_AT: Final = 2048
_HOLDER: Final = struct.Struct("<q")
_STEPS_AT: Final = _HOLDER_AT + _HOLDER.size
_held: list[mmap.mmap] = []
"""The memory that this process's agent left for it, if it did."""


def _library() -> ctypes.CDLL | None:
    """The C library, if it has robust mutexes."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "pthread_mutexattr_setrobust") else None


def _mutex_in(memory: mmap.mmap) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))


class Tripwire:
    """The agent's end. `fd` is for the training process to inherit; None: it cannot be armed."""

    def __init__(self) -> None:
        self.fd: int | None = None
        self._library = _library()
        self._memory: mmap.mmap | None = None
        if self._library is None:
            return
        fd = os.memfd_create("changeover-tripwire")
        os.ftruncate(fd, _BYTES)
        self._memory = mmap.mmap(fd, _BYTES)
        attributes = ctypes.create_string_buffer(64)
        calls = (
            self._library.pthread_mutexattr_init(attributes),
            self._library.pthread_mutexattr_setpshared(attributes, _SHARED),
            self._library.pthread_mutexattr_setrobust(attributes, _ROBUST),
            self._library.pthread_mutex_init(_mutex_in(self._memory), attributes),
        )
        if any(calls):
            os.close(fd)
            self._memory = None
            return
        self.fd = fd

    @property
    def environment(self) -> Mapping[str, str]:
        """What the training process needs to find it."""
        return {} if self.fd is None else {FD_VARIABLE: str(self.fd)}

    def close_fd(self) -> None:
        """Close this process's copy; the memory stays."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    @property
    def holder(self) -> int:
        """Process id of whoever holds it; 0 while nobody does."""
        if self._memory is None:
            return 0
        return int(_HOLDER.unpack_from(self._memory, _HOLDER_AT)[0])

    @property
    def reached(self) -> int:
        """The last step that the process has noted, whether it lives or not; -1: none."""
        if self._memory is None:
            return -1
        return int(_HOLDER.unpack_from(self._memory, _STEPS_AT)[0]) - 1

    def watch(self, pid: int, tell: Callable[[int], None]) -> bool:
        """Call `tell`, once, with the wait status of process `pid` when it begins to end badly.

        Called on a thread of its own, which is never joined: it waits for as long as the process
        lives. False if that process does not hold this wire, which is then of no use.
        """
        if self._memory is None or self.holder != pid:
            return False
        threading.Thread(target=self._wait, args=(pid, tell), name="tripwire", daemon=True).start()
        return True

    def _wait(self, pid: int, tell: Callable[[int], None]) -> None:
        assert self._library is not None
        assert self._memory is not None
        if self._library.pthread_mutex_lock(_mutex_in(self._memory)) != _OWNER_DIED:
            return
        status = ending_status(pid)
        if status:
            with contextlib.suppress(RuntimeError):  # whoever was to be told has ended itself
                tell(status)


def ending_status(pid: int) -> int:
    """Wait status of a process that is ending, or has and was not collected; 0 if it ends in order
    or does not end at all.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[-1])  # of the whole process, known before any of its memory is gone


def hold(environment: MutableMapping[str, str]) -> None:
    """Hold the wire that the agent left for this process, on a thread that never ends.

    The variable is removed, so that no child takes the wire for its own. Nothing if there is none.
    """
    number = environment.pop(FD_VARIABLE, "")
    library = _library()
    if not number or library is None:
        return
    try:
        memory = mmap.mmap(int(number), _BYTES)
        os.close(int(number))
    except (OSError, ValueError):
        return  # an agent's memory that this process did not inherit
    _held[:] = [memory]
    held = threading.Event()

    def keep() -> None:
        if library.pthread_mutex_lock(_mutex_in(memory)) == 0:
            _HOLDER.pack_into(memory, _HOLDER_AT, os.getpid())
            held.set()
            threading.Event().wait()

    threading.Thread(target=keep, name="tripwire", daemon=True).start()
    held.wait(1.0)


def note(step: int) -> None:
    """Leave for the agent, which looks when this process has ended, that a step is committed."""
    if _held:
        _HOLDER.pack_into(_held[0], _STEPS_AT, step + 1)
