"""Two ends of a connection that measure it together: requests, and the partner that serves them.

Rules of this file: how bytes go to and fro; no statistics. A request is one letter and a size, and
every size and every wait is bounded, so that a stranger who finds the port can make nobody allocate
or hang. Where there is a fleet's secret, both ends prove that they know it before anything else,
the caller first: a stranger learns nothing, occupies nobody, and cannot pose as a slow partner. The
partner is slowed by its own node's fault, as any of its work is.
"""

import hmac
import secrets
import socket
import struct
import time
from typing import Final

import numpy as np

from worker.faults import SlowCompute, SlowKind
from worker.probes.pacing import FULL, Pace

Floats = np.ndarray[tuple[int], np.dtype[np.float32]]

SIZE_MAX: Final = 16 << 20
IDLE_S: Final = 5.0
"""Longest wait for the other end."""

PICK_UP_S: Final = 40.0
"""Longest wait of a caller until the partner has started: beside a run it takes its time."""

CALLER_S: Final = 60.0
"""Longest that one caller is served."""

_REQUEST: Final = struct.Struct("<cI")
_SLICE: Final = 64 << 10
"""Sent before as much is received, when both ends send: small enough for any socket's buffer."""


class Ends:
    """One connection, seen from the end that asks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._out = np.ones(SIZE_MAX // 4, dtype=np.float32)
        self._in = np.ones(SIZE_MAX // 4, dtype=np.float32)

    def out(self, size: int) -> None:
        """Send `size` bytes; returns when the partner has them."""
        self._ask(b"o", size)
        self._sock.sendall(self._bytes(self._out, size))
        self._fill(self._bytes(self._in, 1))

    def back(self, size: int) -> None:
        """Receive `size` bytes."""
        self._ask(b"b", size)
        self._fill(self._bytes(self._in, size))

    def sum(self, size: int) -> Floats:
        """Add up `size` bytes of float32 on both ends: each sends all, and adds what it gets."""
        self._ask(b"s", size)
        return self._exchange(size)

    def hang_up(self) -> None:
        """End the conversation; the partner's end returns."""
        self._sock.close()

    def serve(self, slow: SlowCompute) -> None:
        """Answer the other end until it hangs up; raises OSError if it is silent too long."""
        ends_at = time.monotonic() + CALLER_S
        while time.monotonic() < ends_at:
            try:
                kind, size = _REQUEST.unpack(self._receive(_REQUEST.size))
            except ConnectionResetError:
                return
            if size > SIZE_MAX or kind not in b"obs":
                return
            began_s = time.thread_time()
            self._answer(kind, size)
            slow.burn(time.thread_time() - began_s, SlowKind.LINK)

    def _answer(self, kind: bytes, size: int) -> None:
        if kind == b"o":
            self._fill(self._bytes(self._in, size))
            self._sock.sendall(b"!")
        elif kind == b"b":
            self._sock.sendall(self._bytes(self._out, size))
        else:
            self._exchange(size)

    def _exchange(self, size: int) -> Floats:
        mine, theirs = self._bytes(self._out, size), self._bytes(self._in, size)
        for at in range(0, size, _SLICE):
            self._sock.sendall(mine[at : at + _SLICE])
            self._fill(theirs[at : at + _SLICE])
        total = self._in[: size // 4]
        return np.add(total, self._out[: size // 4], out=total)

    def _ask(self, kind: bytes, size: int) -> None:
        self._sock.sendall(_REQUEST.pack(kind, size))

    def _receive(self, size: int) -> bytes:
        buffer = bytearray(size)
        self._fill(memoryview(buffer))
        return bytes(buffer)

    def _fill(self, memory: memoryview) -> None:
        got = 0
        while got < len(memory):
            count = self._sock.recv_into(memory[got:])
            if not count:
                raise ConnectionResetError("the other end hung up")
            got += count

    @staticmethod
    def _bytes(array: Floats, size: int) -> memoryview:
        return array.data.cast("B")[:size]


class Stranger(PermissionError):
    """The other end does not know the fleet's secret."""


def prove(sock: socket.socket, secret: bytes, *, calls: bool, wait_s: float = IDLE_S) -> None:
    """Prove to the other end that this one knows the secret, and have it prove the same.

    Each proof is HMAC-SHA256 over the side and both ends' fresh challenges, so neither can be
    played back, to the same end or to the other. The other's first word is waited for `wait_s`
    seconds.

    Raises:
        Stranger: the other end could not.
        OSError: it went away, or was silent too long.
    """
    sock.settimeout(wait_s)
    own = secrets.token_bytes(_CHALLENGE_BYTES)
    sock.sendall(own)
    other = _exactly(sock, _CHALLENGE_BYTES)
    sock.settimeout(IDLE_S)
    both = own + other if calls else other + own
    proofs = {side: hmac.digest(secret, b"probe " + side + both, "sha256") for side in _SIDES}
    mine, theirs = _SIDES if calls else _SIDES[::-1]
    if calls:
        sock.sendall(proofs[mine])
    if not hmac.compare_digest(_exactly(sock, len(proofs[theirs])), proofs[theirs]):
        raise Stranger("the other end does not know the fleet's secret")
    if not calls:
        sock.sendall(proofs[mine])


_CHALLENGE_BYTES: Final = 32
_SIDES: Final = (b"caller", b"partner")


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = sock.recv(size - len(found))
        if not part:
            raise ConnectionResetError("the other end hung up before it had proved itself")
        found += part
    return bytes(found)


def connect(host: str, port: int, secret: bytes | None = None) -> Ends:
    """Call a partner.

    Raises:
        Stranger: it does not know the secret.
        OSError: nobody answers.
    """
    sock = socket.create_connection((host, port), timeout=IDLE_S)
    try:
        if secret is not None:
            prove(sock, secret, calls=True, wait_s=PICK_UP_S)
    except OSError:
        sock.close()
        raise
    return Ends(sock)


def echo(
    listener: socket.socket, slow: SlowCompute, secret: bytes | None = None, pace: Pace = FULL
) -> None:
    """Serve one caller, then return; a stranger is hung up on. What is asked is paced by the
    caller, and by `pace` only what comes before.

    A listener that was made non-blocking stays so: the description is shared with its owner.

    Raises:
        OSError: nobody calls, or the caller goes silent.
    """
    listener.settimeout(IDLE_S)
    with listener.accept()[0] as sock:
        if secret is not None:
            try:
                prove(sock, secret, calls=False)
            except OSError:  # its affair: this end did its part, and is free for the next
                return
        ends = Ends(sock)
        pace.end()
        ends.serve(slow)
