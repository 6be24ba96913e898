"""Frames in and out of one non-blocking bulk socket.

What belongs here: the two half machines of a stream, sending and receiving, each able to stop
anywhere and go on later. What does not: which frame comes next (rings and trees), waiting
(exchange), whose fault it is (linked).

Theory of operation. Nothing is ever closed between healthy peers because of an abort. A sender that
stops inside a frame copies what it still owes (at most one chunk) and pays it before anything else;
a receiver that stops inside a frame remembers how much of it to throw away. Frames of an older tag
are read and dropped. A frame of a newer tag means that the peer has gone on without this rank: it
is left unread, for the collective that will want it after the next switch.

Between processes of one machine large payloads lie in shared memory (`shared`), and only headers
travel through the socket. What has been put there needs nothing of the sender any more.
"""

import array
import contextlib
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

from worker.groups import frames
from worker.groups.frames import HEADER_BYTES, Kind
from worker.groups.pacing import PACING, Pacing
from worker.groups.shared import SHARED_BYTES_MIN, BadMemory, SharedReader, SharedWriter

_LOOKAHEAD_BYTES: Final = 4096
_TIMED_BYTES: Final = 1 << 17
"""Frames of this size and more are timed from their first byte to their last: what a connection
carries. The clock of a smaller one would say how soon this end looked. No ring cuts its chunks
smaller (`frames.chunk_bytes_for`)."""
_SCRATCH = bytearray(frames.CHUNK_BYTES_MAX)
_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_RIGHTS_BYTES: Final = socket.CMSG_SPACE(8)


class StreamFault(Exception):
    """Base of what interrupts a collective; names the stream it happened on."""

    def __init__(self, stream: "BulkStream", detail: str) -> None:
        super().__init__(detail)
        self.stream = stream


class StreamEnded(StreamFault):
    """The connection is gone; whether the peer died is for the monitor to say."""


class PeerMovedOn(StreamFault):
    """The peer is at a newer epoch: it gave this collective up."""


class OutOfStep(StreamFault):
    """The peer is in another collective, or in this one with another size."""


class BulkStream:
    """One bulk socket; used by one thread at a time (or by one that sends and one that receives).

    `shares`: large payloads go through shared memory, as they can where the socket is a local one.
    `pacing`: makes it slow, where somebody injects faults.
    """

    def __init__(self, sock: socket.socket, pacing: Pacing | None = PACING) -> None:
        sock.setblocking(False)
        self._pacing = pacing
        self.shares = self._is_local = sock.family == socket.AF_UNIX
        if not self._is_local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        fd = sock.fileno()
        self.want_read = (fd, select.POLLIN)
        self.want_write = (fd, select.POLLOUT)
        self.sent_bytes = 0
        self.received_bytes = 0
        self.carried_bytes = 0
        self.carried_s = 0.0
        self._began_s = 0.0
        self._outgoing: list[bytes | memoryview] = []
        self._owed = 0
        self._frame_bytes = 0
        self._frame_shared = False
        self._writer: SharedWriter | None = None
        self._passing: list[int] = []
        self._reader: SharedReader | None = None
        self._passed: list[int] = []
        self.elsewhere: memoryview | None = None
        self._buffer = bytearray(_LOOKAHEAD_BYTES)
        self._view = memoryview(self._buffer)
        self._low = 0
        self._high = 0
        self._skip = 0
        self._target: memoryview | None = None
        self._expected = (0, 0, 0)
        self._filled = -1

    # --- sending ----------------------------------------------------------------------------------

    @property
    def descriptors(self) -> set[int]:
        """What a lane of this stream may be waiting for."""
        room = set() if self._writer is None else {self._writer.want_room[0]}
        return {self.want_read[0], *room}

    @property
    def want_room(self) -> tuple[int, int]:
        """What to wait for when `begin_send` found no room."""
        assert self._writer is not None
        return self._writer.want_room

    def begin_send(self, tag: int, sequence: int, chunk: int, payload: memoryview) -> bool:
        """Queue one DATA frame; `flush` sends it. The payload must stay unchanged until then.

        False: nothing was queued, since there is no room before `want_room` is ready.
        """
        size = payload.nbytes
        shared = self.shares and size >= SHARED_BYTES_MIN and self._share()
        if shared:
            assert self._writer is not None
            if not self._writer.put(payload):
                return False
            self.sent_bytes += size
        self._outgoing.append(frames.pack(Kind.DATA, tag, sequence, chunk, size, shared=shared))
        self._frame_bytes, self._frame_shared = HEADER_BYTES, shared
        if size and not shared:
            self._outgoing.append(payload)
            self._frame_bytes += size
        self._owed += self._frame_bytes
        return True

    def _share(self) -> bool:
        """Whether there is memory to put payloads into; made at the first call, and passed on."""
        if self._writer is None:
            try:
                self._writer = SharedWriter()
            except OSError:
                self.shares = False  # then through the socket, as between machines
                return False
            self._passing = self._writer.fds
            self._outgoing.append(frames.pack(Kind.SHARE, 0, 0, 0, 0))
            self._owed += HEADER_BYTES
        return True

    def flush(self) -> bool:
        """Send what is queued; False when the socket takes no more for now.

        Raises:
            StreamEnded: the connection is gone.
        """
        while self._outgoing:
            try:
                sent = self._push()
            except BlockingIOError:
                return False
            except OSError as error:
                raise StreamEnded(self, f"send: {error.strerror}") from None
            self._sent(sent)
        return True

    def _push(self) -> int:
        """Send some of what is queued; how many bytes."""
        if self._pacing is None:
            return self._sock.sendmsg(self._outgoing, self._ancillary(), _FLAGS)
        began_s = time.thread_time()
        sent = self._sock.sendmsg(self._pacing.cut(self._outgoing), self._ancillary(), _FLAGS)
        self._pacing.rest(time.thread_time() - began_s)
        return sent

    def _ancillary(self) -> list[tuple[int, int, Any]]:
        if not self._passing:
            return []
        return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", self._passing))]

    def _sent(self, count: int) -> None:
        if self._passing and self._writer is not None:  # they travel with the first byte
            self._passing = []
            self._writer.passed()
        self.sent_bytes += count
        self._owed -= count
        if not self._owed:
            self._outgoing.clear()
            return
        while count:
            head = memoryview(self._outgoing[0])
            if count < head.nbytes:
                self._outgoing[0] = head[count:]
                return
            count -= head.nbytes
            del self._outgoing[0]

    def abandon_send(self) -> None:
        """Forget the frame in flight, but own what the peer must still get to stay in step."""
        if not self._outgoing:
            return
        owed = b"".join(self._outgoing)
        if self._owed >= self._frame_bytes:  # its header has not left: the frame never existed
            owed = owed[: self._owed - self._frame_bytes]
            if self._frame_shared and self._writer is not None:
                self._writer.take_back()
        self._outgoing = [owed] if owed else []
        self._owed = len(owed)
        self._frame_bytes = HEADER_BYTES + self._owed + 1  # all of it is owed, whatever comes

    # --- receiving --------------------------------------------------------------------------------

    def begin_receive(self, tag: int, sequence: int, chunk: int, target: memoryview) -> None:
        """Say which frame must come next and where its payload goes; `fill` receives it."""
        self._target = target
        self._expected = (tag, sequence & 0xFFFFFFFF, chunk)
        self._filled = -1
        self.elsewhere = None

    def release(self) -> None:
        """Let the sender have the room of what was received `elsewhere`; it is not read again."""
        self.elsewhere = None
        if self._reader is not None:
            self._reader.release()

    def fill(self) -> bool:
        """Receive towards the target; True when the frame is complete, False when nothing is there.

        A payload that lies in shared memory is left there: `elsewhere`.

        Raises:
            StreamEnded: the connection is gone.
            PeerMovedOn: the next frame is of a newer tag.
            OutOfStep: the next frame is of this tag, but not the one that must come.
        """
        target = self._target
        assert target is not None
        while self._filled < 0:
            if not self._next_header(target):
                return False
        size = target.nbytes
        while self._filled < size:
            # The buffer is empty here, so the next header can ride along in the same call.
            count = self._receive([target[self._filled :], self._view])
            if count < 0:
                return False
            used = min(count, size - self._filled)
            self._filled += used
            self._low, self._high = 0, count - used
        self._target = None
        self._filled = -1
        if self._began_s:
            self.carried_bytes += size
            self.carried_s += time.perf_counter() - self._began_s
            self._began_s = 0.0
        return True

    def _next_header(self, target: memoryview) -> bool:
        if self._skip:
            return self._discard()
        if self._high - self._low < HEADER_BYTES:
            return self._look_ahead()
        self._match_header(target)
        return True

    def _match_header(self, target: memoryview) -> None:
        try:
            header = frames.unpack(self._buffer, self._low)
        except frames.BadFrame as error:
            raise StreamEnded(self, f"not a frame: {error}") from None
        if header.kind == Kind.SHARE:
            self._low += HEADER_BYTES
            self._map()
            return
        tag = self._expected[0]
        if header.tag > tag:
            raise PeerMovedOn(self, f"peer is at epoch {header.tag >> 32}, not {tag >> 32}")
        if header.tag < tag:
            self._low += HEADER_BYTES
            if header.shared:
                self._take(header.payload_bytes)
                self.release()
            else:
                self._skip = header.payload_bytes
            return
        found = (header.tag, header.sequence, header.chunk)
        if found != self._expected or header.payload_bytes != target.nbytes:
            raise OutOfStep(self, self._mismatch(header, target.nbytes))
        self._low += HEADER_BYTES
        if header.shared:
            self.elsewhere = self._take(target.nbytes)
            self._filled = target.nbytes
            self.received_bytes += target.nbytes
            return
        used = min(self._high - self._low, target.nbytes)
        target[:used] = self._view[self._low : self._low + used]
        self._low += used
        self._filled = used
        self._began_s = time.perf_counter() if header.payload_bytes >= _TIMED_BYTES else 0.0

    def _map(self) -> None:
        try:
            self._reader = SharedReader(self._passed)
        except BadMemory as error:
            raise StreamEnded(self, f"shared memory: {error}") from None
        self._passed = []

    def _take(self, nbytes: int) -> memoryview:
        if self._reader is None:
            raise StreamEnded(self, "a payload in memory that nobody passed")
        return self._reader.take(nbytes)

    def _mismatch(self, header: frames.Header, wanted_bytes: int) -> str:
        _, sequence, chunk = self._expected
        return (
            f"expected collective {sequence} chunk {chunk} of {wanted_bytes} bytes, "
            f"peer sent {header.sequence} chunk {header.chunk} of {header.payload_bytes} bytes"
        )

    def _look_ahead(self) -> bool:
        kept = self._high - self._low
        if self._low:
            self._view[:kept] = bytes(self._view[self._low : self._high])
            self._low, self._high = 0, kept
        count = self._receive([self._view[kept:]])
        if count < 0:
            return False
        self._high += count
        return True

    def _discard(self) -> bool:
        buffered = min(self._skip, self._high - self._low)
        self._low += buffered
        self._skip -= buffered
        while self._skip:
            count = self._receive([memoryview(_SCRATCH)[: self._skip]])
            if count < 0:
                return False
            self._skip -= count
        return True

    def _receive(self, into: list[memoryview]) -> int:
        """Receive at least one byte; -1 when there is none for now."""
        if self._pacing is None:
            return self._pull(into)
        began_s = time.thread_time()
        count = self._pull(self._pacing.cut(into))
        self._pacing.rest(time.thread_time() - began_s)
        return count

    def _pull(self, into: Sequence[memoryview]) -> int:
        try:
            if self._is_local and self._reader is None:
                flags = _FLAGS | socket.MSG_CMSG_CLOEXEC
                count, ancillary, _, _ = self._sock.recvmsg_into(into, _RIGHTS_BYTES, flags)
                for _level, _kind, raw in ancillary:
                    self._passed += array.array("i", raw)
            else:
                count = self._sock.recvmsg_into(into, 0, _FLAGS)[0]
        except BlockingIOError:
            return -1
        except OSError as error:
            raise StreamEnded(self, f"receive: {error.strerror}") from None
        if count == 0:
            raise StreamEnded(self, "receive: end of stream")
        self.received_bytes += count
        return count

    def abandon_receive(self) -> None:
        """Stop expecting; the rest of a half-received frame will be thrown away."""
        if self._target is not None and self._filled >= 0:
            self._skip += self._target.nbytes - self._filled
        self._target = None
        self._filled = -1

    # --- the end ----------------------------------------------------------------------------------

    def end_sending(self) -> None:
        """Tell the peer that nothing more will come."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def drain(self) -> None:
        """Throw away what has arrived: closing on unread bytes would reset what the peer reads."""
        with contextlib.suppress(OSError):
            while self._sock.recv_into(_SCRATCH, 0, _FLAGS):
                pass

    def close(self) -> None:
        """Free descriptors; nobody may be using the stream."""
        self._sock.close()
        for end in (self._writer, self._reader):
            if end is not None:
                end.close()
        for fd in self._passed:
            os.close(fd)
        self._passed = []
