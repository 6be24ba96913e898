"""Become another program, one that ends when its parent does.

What belongs here: one request to the kernel and one exec. It runs in a bare interpreter
(`python -I -S tether.py PARENT PROGRAM ...`), so the standard library is all it may use.

Theory of operation. Nothing survives a fleet that was ended by SIGKILL, a closed terminal or a
crash: the kernel sends SIGKILL to a tethered program when its parent's starting thread is gone.
The request survives the exec. A parent that ended before the request was made is noticed by its
process id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Tether this process to its parent and become the program named in `arguments`."""
    parent, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent and os.getppid() != parent:
            return 1
    try:
        os.execvp(program[0], program)  # noqa: S606 - arguments are a list
    except OSError as error:
        print(f"{program[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201 - into the log
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
