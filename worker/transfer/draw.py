"""One source of a transfer: connect, prove, take the header, then chunks until nothing is missing.

Rules of this file: one connection, one thread. What it does not finish goes back into the pool; it
never raises into the transfer, it reports how it ended.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from worker.transfer import wire
from worker.transfer.errors import ImageRefused, PeerRefused
from worker.transfer.image import CHUNK_BYTES
from worker.transfer.pool import ChunkPool, Destination
from worker.transfer.seal import HEADER_INDEX, SEAL_BYTES, Sealer
from worker.transfer.token import NONCE_BYTES, Binding, Handshake, Party, fresh_nonce, same

BAD_CHUNKS_MAX: Final = 3
"""A source that gave this many bad chunks is left out."""

WINDOW_CHUNKS_MAX: Final = 32
"""Chunks asked for ahead at most: enough that a source goes on while we are not scheduled."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where one source listens, and who it must prove to be.

    `locally`: one on this machine is asked through the machine, and not through the network.
    """

    host: str
    port: int
    party: Party
    locally: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a source may take, in seconds, to connect, to open its offer, and to be silent."""

    connect_s: float
    offer_wait_s: float
    stall_s: float


@dataclass(slots=True)
class SourceReport:
    """What one source gave: verified bytes and chunks, refused chunks by name, how it ended."""

    node: str
    nbytes: int = 0
    chunks: int = 0
    bad_chunks: list[str] = field(default_factory=list)
    outcome: str = "not reached"


def _socket_to(source: Source) -> tuple[socket.socket, bool]:
    """A socket to talk to a source by, and whether it is connected: it is if the source is on this
    machine, where connecting waits for nobody.
    """
    if source.locally:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.setblocking(False)
        try:
            local.connect(wire.local_name(source.host, source.port))
        except OSError:
            local.close()
        else:
            local.setblocking(True)
            return local, True
    family = socket.AF_INET6 if ":" in source.host else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM), False


class Draw:
    """The conversation with one source; `run` it in a thread of its own."""

    def __init__(
        self, source: Source, binding: Binding, secret: bytes, into: Destination, limits: Limits
    ) -> None:
        """Prepare; raises ValueError on a secret that is too short."""
        self.report = SourceReport(source.party.node)
        self.drawing = False
        self.source = source
        self._binding, self._into, self._limits = binding, into, limits
        self._token = binding.token(secret)
        self._sock, self._is_connected = _socket_to(source)
        self._channel = wire.Channel(self._sock, limits.connect_s)

    def hang_up(self) -> None:
        """End the conversation from another thread; `run` returns at once."""
        self._channel.hang_up()

    def run(self) -> None:
        """Talk to the source until nothing is missing or it is of no more use."""
        try:
            self._connect()
            sealer = self._prove()
            pool = self._into.adopt(self._take_header(sealer))
            self.drawing = True
            self._take_chunks(pool, sealer)
            self.report.outcome = "complete" if pool.complete else "stopped"
        except TimeoutError as error:
            self.report.outcome = f"lost: {error}"
        except (OSError, ValueError) as error:
            self.report.outcome = f"lost: {error or type(error).__name__}"
        except (PeerRefused, ImageRefused) as error:
            self.report.outcome = f"left out: {error}"
        finally:
            self._channel.close()

    def _connect(self) -> None:
        if self._is_connected:
            return
        try:
            self._sock.connect((self.source.host, self.source.port))
        except BlockingIOError:
            raise TimeoutError("no connection in time") from None

    def _prove(self) -> Sealer:
        """Let both ends prove that they have the token; returns the session's sealer."""
        nonce, ours = fresh_nonce(), self._binding
        self._channel.set_stall(self._limits.stall_s)
        self._channel.send_json(
            wire.HELLO,
            job=ours.job,
            transition=ours.transition,
            attempt=ours.attempt,
            source=[ours.source.node, ours.source.incarnation],
            joiner=[ours.joiner.node, ours.joiner.incarnation],
            nonce=nonce.hex(),
            offer_wait_s=self._limits.offer_wait_s,
        )
        challenge = self._channel.receive_json(wire.CHALLENGE)
        try:
            source_nonce = bytes.fromhex(challenge["nonce"])
            proof = bytes.fromhex(challenge["proof"])
        except (KeyError, TypeError, ValueError):
            raise PeerRefused("challenge is malformed") from None
        handshake = Handshake.of(self._token, nonce, source_nonce)
        if len(source_nonce) != NONCE_BYTES or not same(proof, handshake.source_proof):
            raise PeerRefused("it could not prove that it is the source that was named")
        self._channel.send_frame(wire.PROOF, handshake.joiner_proof)
        return Sealer(handshake.session_key)

    def _take_header(self, sealer: Sealer) -> bytes:
        self._channel.set_stall(self._limits.offer_wait_s + self._limits.stall_s)
        body = self._channel.receive_frame(wire.HEADER)
        given, header = body[:SEAL_BYTES], body[SEAL_BYTES:]
        if not sealer.fits(given, HEADER_INDEX, header):
            raise PeerRefused("its header does not fit its seal")
        self._channel.set_stall(self._limits.stall_s)
        return header

    def _take_chunks(self, pool: ChunkPool, sealer: Sealer) -> None:
        asked: deque[int] = deque()
        scratch = memoryview(bytearray(CHUNK_BYTES))
        try:
            while True:
                taken = pool.take(len(asked), WINDOW_CHUNKS_MAX, wait=not asked)
                asked.extend(taken)
                if not asked:
                    break
                if taken:
                    self._channel.send(b"".join(wire.WANT.pack(*run) for run in _runs(taken)))
                good = self._take_chunk(pool, asked[0], sealer, scratch)
                index = asked.popleft()
                if good:
                    pool.arrived()
                else:
                    pool.give_back([index], last=True)
                    self._refuse(pool, index)
        finally:
            pool.give_back(asked)
        if pool.complete:
            self._channel.send(wire.WANT.pack(0, 0))

    def _take_chunk(self, pool: ChunkPool, index: int, sealer: Sealer, scratch: memoryview) -> bool:
        """Receive chunk `index` where it belongs; False if it does not fit its seal."""
        head = self._channel.receive(wire.CHUNK.size)
        got, size, given = wire.CHUNK.unpack(head)
        if got != index or size != pool.chunks.size(index):
            raise PeerRefused("it answered with another chunk than was asked for")
        landing = pool.chunks.landing(index, scratch)
        self._channel.receive_into(landing)
        if not sealer.fits(given, index, landing):
            return False
        pool.chunks.settle(index, landing)
        self.report.nbytes += size
        self.report.chunks += 1
        return True

    def _refuse(self, pool: ChunkPool, index: int) -> None:
        bad = self.report.bad_chunks
        bad.append(pool.chunks.describe(index))
        if len(bad) >= BAD_CHUNKS_MAX:
            raise PeerRefused(f"{len(bad)} chunks did not fit their seals, the last was {bad[-1]}")


def _runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Indices as runs (first, count) without a gap, in the order given."""
    first, count = indices[0], 0
    for index in indices:
        if index != first + count:
            yield first, count
            first, count = index, 0
        count += 1
    yield first, count
