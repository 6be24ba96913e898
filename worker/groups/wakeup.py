"""A descriptor that any thread can make readable, to get another thread out of poll."""

import contextlib
import os


class WakeUp:
    """An eventfd; closed with its last reference, so that a late signal never hits another file."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def signal(self) -> None:
        """Make `fd` readable until `clear`."""
        with contextlib.suppress(BlockingIOError):  # already as readable as can be
            os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Make `fd` unreadable again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)
