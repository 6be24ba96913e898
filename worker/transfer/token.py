"""Who may take which state: the one-time token of a transfer, and proofs of knowing it.

Rules of this file: pure functions over bytes; no sockets. The token never travels. Both ends derive
it from the fleet's secret and from what the transfer is *for*; each proves to the other that it has
it by answering a fresh nonce, and both derive the session key that seals every chunk.

All fields go into the derivation length-prefixed, so that no two different bindings share a token.
One-time is not a property of these bytes: the source keeps the list of used tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

NONCE_BYTES: Final = 16
SECRET_BYTES_MIN: Final = 16

LENT: Final = -1
"""The transition of what is not handed over but lent, to any node of the job, as often as it asks;
the attempt is then the number under which it is lent."""


@dataclass(frozen=True, slots=True)
class Party:
    """One life of one node: a restarted node has another incarnation and is somebody else."""

    node: str
    incarnation: int

    def __str__(self) -> str:
        """The node's name, for messages."""
        return self.node


@dataclass(frozen=True, slots=True)
class Binding:
    """What one token is good for: this state, from this source, to this joiner, once.

    `attempt` tells repeated tries within one transition apart; each has a token of its own.
    """

    job: str
    transition: int
    attempt: int
    source: Party
    joiner: Party

    def token(self, secret: bytes) -> bytes:
        """HMAC-SHA256 of the binding under the fleet secret; ValueError if that is short."""
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(
                f"fleet secret has {len(secret)} bytes; at least {SECRET_BYTES_MIN} are needed"
            )
        return _mac(
            secret,
            b"changeover transfer token 1",
            self.job,
            str(self.transition),
            str(self.attempt),
            self.source.node,
            str(self.source.incarnation),
            self.joiner.node,
            str(self.joiner.incarnation),
        )


@dataclass(frozen=True, slots=True)
class Handshake:
    """The three values that two ends derive from a token and both nonces."""

    source_proof: bytes
    joiner_proof: bytes
    session_key: bytes

    @classmethod
    def of(cls, token: bytes, joiner_nonce: bytes, source_nonce: bytes) -> Handshake:
        """Derive proofs and session key; fresh nonces make every session different."""
        return cls(
            _mac(token, b"source proof", joiner_nonce, source_nonce),
            _mac(token, b"joiner proof", joiner_nonce, source_nonce),
            _mac(token, b"session key", joiner_nonce, source_nonce),
        )


def fresh_nonce() -> bytes:
    """Random bytes from the operating system."""
    return secrets.token_bytes(NONCE_BYTES)


def same(proof: bytes, expected: bytes) -> bool:
    """Compare without telling by time how much of it was right."""
    return hmac.compare_digest(proof, expected)


def _mac(key: bytes, *fields: bytes | str) -> bytes:
    seal = hmac.new(key, digestmod=hashlib.sha256)
    for each in fields:
        raw = each.encode() if isinstance(each, str) else each
        seal.update(len(raw).to_bytes(4, "big"))
        seal.update(raw)
    return seal.digest()
