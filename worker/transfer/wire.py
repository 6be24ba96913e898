"""The conversation of a transfer, byte by byte.

Rules of this file: frames and blocking sockets with a limit on every wait and every length. It does
not know what is being moved, and it decides nothing.

    joiner                                   source
      hello {binding, nonce, wait}         ->          who wants what, and how long it will wait
                                           <-  challenge {nonce, proof}
      proof                                ->          both have proved that they have the token
                                           <-  header (sealed)          the claim uses up the token
      want (first chunk, count) ...        ->
                                           <-  chunk (index, size, seal), bytes ...
      want (0, 0)                          ->          complete; anything else that ends is a loss

At any point before the header the source may send a refusal instead and hang up. Control frames are
JSON; their lengths are bounded, so a stranger can make neither side allocate.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any, Final

from worker.transfer.errors import PeerRefused
from worker.transfer.image import HEADER_BYTES_MAX
from worker.transfer.seal import SEAL_BYTES

MAGIC: Final = b"CHTR"
HELLO, CHALLENGE, PROOF, HEADER, REFUSAL = range(1, 6)
CONTROL_BYTES_MAX: Final = 16 << 10
WANT: Final = struct.Struct("<QQ")
CHUNK: Final = struct.Struct(f"<QQ{SEAL_BYTES}s")
_FRAME: Final = struct.Struct("<4sBQ")

LOCAL_BUFFER_BYTES: Final = 512 << 10
"""What may wait in a socket within this machine (the kernel grants less where it is set up so). Its
default of 208 KiB has both ends wake each other five times a chunk; with this they go on.
"""


def local_name(host: str, port: int) -> str:
    """Where a source at this address also listens for joiners on its own machine.

    A name in the kernel's abstract space: no file, and only seen within one network namespace.
    """
    return f"\0changeover-state/{host}:{port}"


class Channel:
    """One connection: frames for the conversation, raw spans of memory for the chunks.

    Every call raises `OSError` when the peer is gone (`ConnectionError`), silent for longer than
    `stall_s` (`TimeoutError`), or when `hang_up` was called from another thread.
    """

    def __init__(self, sock: socket.socket, stall_s: float) -> None:
        """Take over a connected socket."""
        self._sock = sock
        self._closing = threading.Lock()
        sock.settimeout(None)
        if sock.family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_BUFFER_BYTES)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.set_stall(stall_s)

    def set_stall(self, stall_s: float) -> None:
        """Bound every later wait for the peer; the kernel keeps the time, so a read is one call."""
        micros = max(1, int(stall_s * 1e6))
        limit = struct.pack("@ll", *divmod(micros, 1_000_000))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def hang_up(self) -> None:
        """End the conversation for both ends at once; safe from any thread, any number of times."""
        with self._closing, contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket; only the thread that uses the channel may do this."""
        with self._closing:  # else a late hang_up could hit a descriptor that was given away again
            self._sock.close()

    # -- raw spans ---------------------------------------------------------------------------------

    def receive_into(self, memory: memoryview) -> None:
        """Fill `memory` exactly."""
        got, total = 0, memory.nbytes
        while got < total:
            try:
                count = self._sock.recv_into(memory[got:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                raise TimeoutError("peer sent nothing for too long") from None
            if not count:
                raise ConnectionResetError("peer closed the connection")
            got += count

    def receive(self, nbytes: int) -> bytes:
        """Read exactly `nbytes`."""
        buffer = bytearray(nbytes)
        self.receive_into(memoryview(buffer))
        return bytes(buffer)

    def send(self, *spans: bytes | memoryview) -> None:
        """Send all spans, in order, without joining them first."""
        rest = [memoryview(span) for span in spans if len(span)]
        while rest:
            try:
                count = self._sock.sendmsg(rest)
            except BlockingIOError:
                raise TimeoutError("peer took nothing for too long") from None
            while rest and count >= rest[0].nbytes:
                count -= rest.pop(0).nbytes
            if count:
                rest[0] = rest[0][count:]

    # -- frames ------------------------------------------------------------------------------------

    def send_frame(self, kind: int, body: bytes) -> None:
        """Send one control frame."""
        self.send(_FRAME.pack(MAGIC, kind, len(body)), body)

    def send_json(self, kind: int, **fields: object) -> None:
        """Send one control frame of JSON fields."""
        self.send_frame(kind, json.dumps(fields).encode())

    def receive_frame(self, kind: int) -> bytes:
        """Read one frame of `kind`; raises `PeerRefused` on a refusal or on anything else."""
        magic, got, size = _FRAME.unpack(self.receive(_FRAME.size))
        limit = HEADER_BYTES_MAX if kind == HEADER else CONTROL_BYTES_MAX
        if magic != MAGIC or got not in (kind, REFUSAL) or size > limit:
            raise PeerRefused("peer does not speak this protocol")
        body = self.receive(size)
        if got == REFUSAL:
            raise PeerRefused(str(_fields(body).get("reason"))[:200])
        return body

    def receive_json(self, kind: int) -> Mapping[str, Any]:
        """Read one JSON frame of `kind`."""
        return _fields(self.receive_frame(kind))


def _fields(body: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise PeerRefused("peer sent a control frame that is not JSON") from None
    if not isinstance(fields, dict):
        raise PeerRefused("peer sent a control frame without fields")
    return fields
