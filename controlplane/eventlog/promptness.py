"""Asking the kernel to run a thread soon after it wakes.

What belongs here: one request to the scheduler, for those who answer rather than compute: agents,
controllers, the store that we start, and in a training process the threads that hear, link and give
state. Nothing depends on its being granted.

Theory of operation. On a machine whose processors are all computing, a thread that wakes waits for
somebody's slice to end: milliseconds, at each of the dozen hops between a loss and its answer. A
thread may ask for shorter slices of its own (Linux 6.12 and later, no privilege needed); it gets no
larger share of the processor, but its turn comes at once. A child inherits the request.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SLICE_NS: Final = 100_000
"""The shortest slice that the kernel grants."""

_ORDINARY: Final = 0
"""The policy of whatever is neither real-time nor for idle times only."""

_IDLE: Final = 5
"""The policy of what is for idle times only; whoever asks to be prompt is so no more."""

_CALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of sched_setattr and sched_getattr, which the C library has no names for."""


class _Attributes(ctypes.Structure):
    """`struct sched_attr`."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def be_prompt() -> bool:
    """Ask for the calling thread, and what it starts; whether the kernel took the request."""
    return _ask_for(SLICE_NS)


@contextmanager
def starting(*, prompt: bool) -> Iterator[None]:
    """Let what this thread starts in the body be prompt or ordinary, whatever this thread is."""
    found = _read()
    was_prompt = found is not None and found.runtime == SLICE_NS
    _ask_for(SLICE_NS if prompt else 0)
    try:
        yield
    finally:
        _ask_for(SLICE_NS if was_prompt else 0)


def slice_ns(thread: int = 0) -> int:
    """The slice of a thread in ns, of the calling one by default; 0 where the kernel does not
    say.
    """
    found = _read(thread)
    return int(found.runtime) if found is not None and found.policy == _ORDINARY else 0


def _read(thread: int = 0) -> _Attributes | None:
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        return None
    _, read = _CALLS[platform.machine()]
    found = _Attributes()
    size = ctypes.sizeof(found)
    failed = ctypes.CDLL(None).syscall(read, thread, ctypes.byref(found), size, 0)
    return found if not failed and found.policy in (_ORDINARY, _IDLE) else None


def _ask_for(runtime_ns: int) -> bool:
    wanted = _read()
    if wanted is None:
        return False
    if wanted.policy == _IDLE and not runtime_ns:
        return False  # an ordinary slice says nothing among the idle
    wanted.policy = _ORDINARY
    wanted.size, wanted.runtime = ctypes.sizeof(wanted), runtime_ns
    write, _ = _CALLS[platform.machine()]
    return bool(ctypes.CDLL(None).syscall(write, 0, ctypes.byref(wanted), 0) == 0)
