"""Which of this process's sockets belong to a gloo group, and how to half-close exactly those.

What belongs here: reading /proc, and `shutdown(2)` on descriptors that somebody else owns. What
does not: when to do it (rebuild).

gloo offers no way out of a collective whose peer is gone; ending its connections does. Measured
hazards: shutting its *listener* terminates the process, and descriptor numbers are reused, so a
socket is named by its inode and checked right before the shutdown.
"""

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
_ESTABLISHED: Final = "01"


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """One TCP socket of this process."""

    fd: int
    inode: int
    local_port: int
    remote_port: int
    listening: bool
    established: bool


def own_sockets() -> list[TcpSocket]:
    """Every TCP socket that this process has open."""
    known = _kernel_table()
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        inode = _inode_of(int(entry.name))
        if inode in known:
            local, remote, state = known[inode]
            found.append(
                TcpSocket(
                    int(entry.name), inode, local, remote, state == _LISTEN, state == _ESTABLISHED
                )
            )
    return found


def _inode_of(fd: int) -> int:
    """Inode of a socket descriptor; 0 for anything else."""
    try:
        target = str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return 0
    return int(target[8:-1]) if target.startswith("socket:[") else 0


def _kernel_table() -> dict[int, tuple[int, int, str]]:
    """Ports and state by inode, from the kernel's tables."""
    found = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
                part = line.split()
                local, remote = (int(one.rpartition(":")[2], 16) for one in part[1:3])
                found[int(part[9])] = (local, remote, part[3])
    return found


def connections_of(our_ports: set[int], peer_ports: set[int]) -> list[TcpSocket]:
    """Connections accepted on one of our listeners' ports, or dialled to one of the peers'."""
    return [
        one
        for one in own_sockets()
        if one.established and (one.local_port in our_ports or one.remote_port in peer_ports)
    ]


def half_close(found: list[TcpSocket]) -> int:
    """End both directions of each connection that is still what it was; returns how many."""
    ended = 0
    for one in found:
        if _inode_of(one.fd) != one.inode:
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(one.fd)) as copy:
            copy.shutdown(socket.SHUT_RDWR)
            ended += 1
    return ended
