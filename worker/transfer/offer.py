"""One offer: state held out to one joiner for one transition.

Rules of this file: the life of an offer and the giving of its chunks. Who may claim it is the
server's business.

Life: open -> claimed (the token is used up, whatever happens to the connection afterwards) ->
completed, when the joiner says that it has everything, or lost. `close` ends it at any point and
cuts the connection, so that its owner may change the bytes again.
"""

from __future__ import annotations

import threading
from typing import Self

from worker.faultpoints import reach
from worker.transfer import wire
from worker.transfer.errors import PeerRefused
from worker.transfer.image import CHUNK_BYTES, ChunkMap, StateImage
from worker.transfer.seal import HEADER_INDEX, Sealer
from worker.transfer.token import Binding


class Offer:
    """State on offer. Close it, or use it as a context; `cause` says how it ended or stands."""

    def __init__(self, binding: Binding, image: StateImage) -> None:
        self.binding = binding
        self.claimed = False
        self.completed = False
        self.bytes_sent = 0
        self.cause = "not asked for yet"
        self._chunks = ChunkMap(image)
        self._header = image.header.encoded()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._channel: wire.Channel | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing will be read from the image any more."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the offer has ended, True if it has; `completed` tells how."""
        return self._ended.wait(timeout_s)

    def close(self) -> None:
        """Stop serving; when this returns no byte of the image is read any more. Idempotent."""
        with self._lock:
            if self._channel is None:
                self._settle("closed by its source", completed=False)
                return
            self.cause = "closed by its source"
            self._channel.hang_up()
        self._ended.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, channel: wire.Channel, sealer: Sealer) -> None:
        """Give a proven caller the header and every chunk it asks for, until it has all.

        Raises PeerRefused if the offer was claimed before or is closed, OSError if the joiner goes
        away. Either way the offer, once claimed, has ended.
        """
        self._claim(channel)
        cause, completed = "joiner went away", False
        try:
            self._give(channel, sealer)
            cause, completed = "completed", True
        except TimeoutError:
            cause = "joiner took nothing for too long"
            raise
        except PeerRefused as refusal:
            cause = str(refusal)
            raise
        finally:
            with self._lock:
                self._channel = None
                self._settle(cause, completed=completed)

    def _claim(self, channel: wire.Channel) -> None:
        with self._lock:
            if self.claimed:
                raise PeerRefused("token already used")
            if self.ended:
                raise PeerRefused("offer is closed")
            self.claimed = True
            self.cause = "being served"
            self._channel = channel

    def _settle(self, cause: str, *, completed: bool) -> None:
        if not self.ended:
            if completed or self.cause != "closed by its source":
                self.cause = cause
            self.completed = completed
            self._ended.set()

    def _give(self, channel: wire.Channel, sealer: Sealer) -> None:
        header = self._header
        channel.send_frame(wire.HEADER, sealer.seal(HEADER_INDEX, header) + header)
        scratch = memoryview(bytearray(CHUNK_BYTES))
        while True:
            first, count = wire.WANT.unpack(channel.receive(wire.WANT.size))
            if not count:
                return
            if first + count > self._chunks.count:
                raise PeerRefused("joiner asked for chunks that do not exist")
            for index in range(first, first + count):
                chunk = self._chunks.gather(index, scratch)
                seal = sealer.seal(index, chunk)
                channel.send(wire.CHUNK.pack(index, chunk.nbytes, seal), chunk)
                self.bytes_sent += chunk.nbytes
                reach("transfer.serving")
