"""How the two ends of a connection prove who they are.

What belongs here: the three messages of a hello, their proofs, and the reasons for a refusal. What
does not: listening, links.

1. listener -> dialer: `MARK`, a fresh challenge;
2. dialer -> listener: its claim (both identities, job, group, transition, role), a challenge of its
   own, and a proof over both challenges and the claim;
3. listener -> dialer: a verdict byte and a proof over the same with the verdict.

A proof is HMAC-SHA256 under the token of the claim's transition, which follows from the fleet's
secret and is good for no other transition; the direction is mixed in, so that neither side's proof
can be played back as the other's. Nothing here is encrypted, and nothing is unpickled.
"""

import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Final

from worker.groups.port import HelloRefused

MARK: Final = b"CHGOVR1\n"
CHALLENGE_BYTES: Final = 32
PROOF_BYTES: Final = 32
CLAIM_BYTES_MAX: Final = 4096
_LENGTH: Final = struct.Struct("<H")
GREETING_BYTES: Final = len(MARK) + CHALLENGE_BYTES
ANSWER_BYTES: Final = 1 + PROOF_BYTES


class Role(IntEnum):
    """Which of a link's two sockets a connection becomes."""

    CONTROL = 1
    BULK = 2


class Verdict(IntEnum):
    """The listener's answer."""

    WELCOME = 0
    BAD_PROOF = 1
    WRONG_INCARNATION = 2
    WRONG_JOB = 3
    MALFORMED = 4
    SHUTTING_DOWN = 5
    NOT_A_MEMBER = 6


@dataclass(frozen=True, slots=True)
class Claim:
    """What a dialer says about itself and about whom it wants."""

    job: str
    group: str
    channel: int
    transition: int
    role: int
    link: str
    node: str
    incarnation: int
    to_node: str
    to_incarnation: int

    def encode(self) -> bytes:
        """Return the claim as compact JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @staticmethod
    def decode(raw: bytes) -> "Claim":
        """Parse a claim from the network.

        Raises:
            ValueError: it is not a claim, or a field has the wrong type.
        """
        found = json.loads(raw)
        if not isinstance(found, dict):
            raise ValueError("claim is not an object")  # noqa: TRY004 - malformed, like the rest
        try:
            claim = Claim(**found)
        except TypeError as error:
            raise ValueError(str(error)) from None
        for name, kind in Claim.__annotations__.items():
            if type(getattr(claim, name)) is not kind:
                raise ValueError(f"field {name} is not of type {kind.__name__}")
        return claim


def greeting() -> tuple[bytes, bytes]:
    """Message 1: what to send, and the challenge in it."""
    challenge = secrets.token_bytes(CHALLENGE_BYTES)
    return MARK + challenge, challenge


def token(secret: bytes, job: str, transition: int) -> bytes:
    """What both ends of a link prove that they have: of one job's transition, and of no other."""
    return hmac.digest(secret, b"\0".join((b"link", job.encode(), b"%d" % transition)), "sha256")


def _token_of(secret: bytes, raw_claim: bytes) -> bytes:
    claim = Claim.decode(raw_claim)
    return token(secret, claim.job, claim.transition)


def _proof(key: bytes, direction: bytes, *parts: bytes) -> bytes:
    digest = hmac.new(key, direction, "sha256")
    for part in parts:
        digest.update(_LENGTH.pack(len(part)))
        digest.update(part)
    return digest.digest()


def prove(secret: bytes, challenge: bytes, claim: Claim) -> tuple[bytes, bytes, bytes]:
    """Message 2: what to send, and the dialer's challenge and raw claim, to check the answer by."""
    raw = claim.encode()
    own = secrets.token_bytes(CHALLENGE_BYTES)
    key = token(secret, claim.job, claim.transition)
    message = _LENGTH.pack(len(raw)) + raw + own + _proof(key, b"dial", challenge, own, raw)
    return message, own, raw


@dataclass(frozen=True, slots=True)
class Hello:
    """A received message 2, not yet believed."""

    raw_claim: bytes
    challenge: bytes
    proof: bytes


def parse(buffer: bytes) -> Hello | None:
    """Message 2 from what has arrived so far; None while it is incomplete.

    Raises:
        ValueError: the claim is longer than a claim may be.
    """
    if len(buffer) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack_from(buffer)
    if size > CLAIM_BYTES_MAX:
        raise ValueError(f"claim of {size} bytes")
    end = _LENGTH.size + size
    if len(buffer) < end + CHALLENGE_BYTES + PROOF_BYTES:
        return None
    own_end = end + CHALLENGE_BYTES
    return Hello(
        buffer[_LENGTH.size : end], buffer[end:own_end], buffer[own_end : own_end + PROOF_BYTES]
    )


def check(secret: bytes, challenge: bytes, hello: Hello) -> bool:
    """Whether a message 2 was made by somebody who has its transition's token, for this challenge.

    Raises:
        ValueError: it is no claim.
    """
    key = _token_of(secret, hello.raw_claim)
    expected = _proof(key, b"dial", challenge, hello.challenge, hello.raw_claim)
    return hmac.compare_digest(expected, hello.proof)


def answer(secret: bytes, challenge: bytes, hello: Hello | None, verdict: Verdict) -> bytes:
    """Message 3. A dialer that proved nothing gets no proof either."""
    if hello is None or verdict is Verdict.BAD_PROOF:
        return bytes([verdict]) + bytes(PROOF_BYTES)
    code = bytes([verdict])
    key = _token_of(secret, hello.raw_claim)
    return code + _proof(key, b"accept", code, challenge, hello.challenge, hello.raw_claim)


def local_name(address: tuple[str, int]) -> str:
    """Where the listener at `address` also listens for processes of its own machine.

    A name in the kernel's abstract space: no file, and only seen within one network namespace.
    """
    return f"\0changeover-links/{address[0]}:{address[1]}"


def _connect(address: tuple[str, int], deadline_s: float, *, locally: bool) -> socket.socket:
    """Connect through the machine itself if the listener is on it, else through the network."""
    if locally:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(deadline_s)
            sock.connect(local_name(address))
            return sock
        except (ConnectionRefusedError, FileNotFoundError, BlockingIOError):
            sock.close()
        except BaseException:
            sock.close()
            raise
    sock = socket.create_connection(address, timeout=deadline_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def dial(
    address: tuple[str, int],
    secret: bytes,
    claims: Sequence[Claim],
    deadline_s: float,
    *,
    locally: bool = True,
) -> list[socket.socket]:
    """Connect to a listener, once for each claim, and carry out their hellos within `deadline_s`.

    The hellos run beside each other: each side is woken once for all of them at each message.
    `locally`: prefer sockets of this machine, if the listener is on it; it proves itself alike.

    Raises:
        HelloRefused: the listener refused, or did not prove itself.
        OSError: no connection, or no answer in time (TimeoutError).
    """
    ends_at = time.monotonic() + deadline_s
    socks: list[socket.socket] = []
    try:
        for _ in claims:
            socks.append(_connect(address, ends_at - time.monotonic(), locally=locally))  # noqa: PERF401  (a failing one must not lose those before it)
        introduced = [
            _introduce(sock, address, secret, claim, ends_at)
            for sock, claim in zip(socks, claims, strict=True)
        ]
        for sock, proven in zip(socks, introduced, strict=True):
            _check_answer(secret, *proven, _read_exactly(sock, ANSWER_BYTES, ends_at))
    except BaseException:
        for sock in socks:
            sock.close()
        raise
    return socks


def _introduce(
    sock: socket.socket, address: tuple[str, int], secret: bytes, claim: Claim, ends_at: float
) -> tuple[bytes, bytes, bytes]:
    """Take the listener's challenge and make the claim; both challenges and the claim as sent."""
    start = _read_exactly(sock, GREETING_BYTES, ends_at)
    if not start.startswith(MARK):
        raise HelloRefused(f"{address[0]}:{address[1]} is not one of our listeners")
    challenge = start[len(MARK) :]
    message, own, raw = prove(secret, challenge, claim)
    sock.sendall(message)
    return challenge, own, raw


def _check_answer(secret: bytes, challenge: bytes, own: bytes, raw: bytes, reply: bytes) -> None:
    code, proof = reply[:1], reply[1:]
    if code[0] == Verdict.BAD_PROOF:
        raise HelloRefused("the listener does not accept our secret")
    expected = _proof(_token_of(secret, raw), b"accept", code, challenge, own, raw)
    if not hmac.compare_digest(expected, proof):
        raise HelloRefused("the listener did not prove that it knows the secret")
    if code[0] != Verdict.WELCOME:
        name = Verdict(code[0]).name.lower().replace("_", " ")
        raise HelloRefused(f"refused by the listener: {name}")


def _read_exactly(sock: socket.socket, count: int, ends_at: float) -> bytes:
    found = b""
    while len(found) < count:
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer to hello in time")
        sock.settimeout(left_s)
        part = sock.recv(count - len(found))
        if not part:
            raise ConnectionResetError("the listener hung up during hello")
        found += part
    return found
