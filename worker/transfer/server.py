"""The giving side: a source of state, open only while something is on offer.

Rules of this file: who may call, and how long anybody may keep us waiting. It starts threads (one
that accepts, one per connection) and no processes.

A caller proves that it has the token before it learns anything. One that has it and comes before
its offer waits for it, since the joiner learns of a transition as early as its sources do; one that
does not is refused, and counted by reason.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from controlplane.eventlog.promptness import be_prompt
from worker.transfer import wire
from worker.transfer.errors import PeerRefused
from worker.transfer.image import StateImage
from worker.transfer.offer import Offer
from worker.transfer.seal import Sealer
from worker.transfer.token import LENT, NONCE_BYTES, Binding, Handshake, Party, fresh_nonce, same

HELLO_WAIT_S: Final = 2.0
"""A caller that has not proved who it is after this long is cut off."""

OFFER_WAIT_MAX_S: Final = 60.0
"""The longest that a proven caller may wait for its offer to open."""

CALLERS_MAX: Final = 64
"""Connections served at once; any more are closed unread."""


def _locally(address: tuple[str, int]) -> list[socket.socket]:
    """A second listener for joiners on this machine, at half the cost per byte; none if its name
    cannot be had.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(wire.local_name(*address))
        sock.listen(CALLERS_MAX)
    except OSError:
        sock.close()
        return []
    return [sock]


class TransferServer:
    """Listens for joiners; one per training process. Close it, or use it as a context.

    `secret` is the fleet's (16 bytes or more), `me` this life of this node. `stall_s` bounds how
    long a joiner may take nothing and ask nothing. `refusals` counts refused callers by reason.
    """

    def __init__(
        self,
        *,
        secret: bytes,
        job: str,
        me: Party,
        host: str = "127.0.0.1",
        port: int = 0,
        stall_s: float = 30.0,
    ) -> None:
        """Bind and listen; raises OSError if the address is taken."""
        self._secret, self._job, self._me, self._stall_s = secret, job, me, stall_s
        self.refusals: Counter[str] = Counter()
        self._offers: dict[Binding, Offer] = {}
        self._used: set[Binding] = set()
        self._channels: set[wire.Channel] = set()
        self._changed = threading.Condition()
        self._closing = False
        self._lender: Callable[[int], StateImage | None] = lambda _: None
        listener = socket.create_server((host, port), backlog=CALLERS_MAX)
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._listeners = [listener, *_locally(self.address)]
        self._acceptors = [
            threading.Thread(target=self._accept, args=(one,), name="transfer-accept", daemon=True)
            for one in self._listeners
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    def offer(self, transition: int, joiner: Party, image: StateImage, attempt: int = 0) -> Offer:
        """Hold `image` out to `joiner`; its bytes must stay as they are until the offer has ended.

        Raises ValueError if this token was used or is on offer already: take the next `attempt`.
        """
        binding = Binding(self._job, transition, attempt, self._me, joiner)
        binding.token(self._secret)  # refuses a bad secret here, not in a connection's thread
        opened = Offer(binding, image)
        with self._changed:
            current = self._offers.get(binding)
            if binding in self._used or (current is not None and not current.ended):
                raise ValueError(f"{binding} was offered before; take another attempt")
            self._offers[binding] = opened
            self._changed.notify_all()
        return opened

    def lend(self, lender: Callable[[int], StateImage | None]) -> None:
        """Give whoever proves to be of the job what `lender` has under a number.

        It is called on this server's threads; its bytes must never change. Such a token works more
        than once: what is lent is no secret within the job, and nobody's state.
        """
        self._lender = lender

    @property
    def callers(self) -> int:
        """Connections being served or waiting, proven or not."""
        return len(self._channels)

    def close(self) -> None:
        """Stop listening and cut every connection; returns when they have ended. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            for channel in self._channels:
                channel.hang_up()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        for acceptor in self._acceptors:
            acceptor.join()
        with self._changed:
            self._changed.wait_for(lambda: not self._channels, timeout=5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one connection ----------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        be_prompt()
        with listener:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    if self._closing:
                        return
                    continue  # the caller was gone before we took it
                with self._changed:
                    if self._closing or len(self._channels) >= CALLERS_MAX:
                        sock.close()
                        continue
                    channel = wire.Channel(sock, HELLO_WAIT_S)
                    self._channels.add(channel)
                threading.Thread(
                    target=self._attend, args=(channel,), name="transfer-serve", daemon=True
                ).start()

    def _attend(self, channel: wire.Channel) -> None:
        try:
            self._converse(channel)
        except PeerRefused as refusal:
            with self._changed:
                self.refusals[str(refusal)] += 1
            with contextlib.suppress(OSError):
                channel.send_json(wire.REFUSAL, reason=str(refusal))
        except (OSError, ValueError):
            pass  # the offer, if it was claimed, has recorded how it ended
        finally:
            channel.close()
            with self._changed:
                self._channels.discard(channel)
                self._changed.notify_all()

    def _converse(self, channel: wire.Channel) -> None:
        hello = channel.receive_json(wire.HELLO)
        binding, sealer = self._prove(channel, hello)
        if binding.transition == LENT:
            image = self._lender(binding.attempt)
            if image is None:
                raise PeerRefused("nothing is lent under this number")
            channel.set_stall(self._stall_s)
            Offer(binding, image).serve(channel, sealer)
            return
        opened = self._await_offer(binding, float(hello.get("offer_wait_s", 0.0)))
        channel.set_stall(self._stall_s)
        try:
            opened.serve(channel, sealer)
        finally:
            with self._changed:
                if opened.claimed:
                    self._used.add(binding)
                    self._offers.pop(binding, None)

    def _prove(self, channel: wire.Channel, hello: Mapping[str, Any]) -> tuple[Binding, Sealer]:
        """Let both ends prove that they have the token of the binding that the hello asks for."""
        binding, nonce = self._read(hello)
        source_nonce = fresh_nonce()
        handshake = Handshake.of(binding.token(self._secret), nonce, source_nonce)
        channel.send_json(
            wire.CHALLENGE, nonce=source_nonce.hex(), proof=handshake.source_proof.hex()
        )
        if not same(channel.receive_frame(wire.PROOF), handshake.joiner_proof):
            raise PeerRefused("caller does not have the token")
        return binding, Sealer(handshake.session_key)

    def _read(self, hello: Mapping[str, Any]) -> tuple[Binding, bytes]:
        """The binding and the nonce of a hello; refuses one that is not for us."""
        try:
            node, incarnation = hello["source"]
            source = Party(str(node), int(incarnation))
            node, incarnation = hello["joiner"]
            joiner = Party(str(node), int(incarnation))
            transition, attempt = int(hello["transition"]), int(hello["attempt"])
            job, nonce = str(hello["job"]), bytes.fromhex(hello["nonce"])
        except (KeyError, TypeError, ValueError):
            raise PeerRefused("hello is malformed") from None
        if job != self._job or source != self._me or len(nonce) != NONCE_BYTES:
            raise PeerRefused("hello is for another job, node or incarnation")
        return Binding(job, transition, attempt, source, joiner), nonce

    def _await_offer(self, binding: Binding, wait_s: float) -> Offer:
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or binding in self._used or binding in self._offers,
                timeout=min(max(wait_s, 0.0), OFFER_WAIT_MAX_S),
            )
            if binding in self._used:
                raise PeerRefused("token already used")
            if binding not in self._offers:
                raise PeerRefused("nothing is on offer")
            return self._offers[binding]
