"""Who gets in: hellos against a real listener on loopback."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from worker.groups import hello
from worker.groups.hello import Claim, Verdict
from worker.groups.listener import LinkListener
from worker.groups.port import HelloRefused

SECRET = b"a secret for these tests"
CLAIM = Claim("job", "dp[0]", 0, 7, 1, "ab" * 16, "n0", 1, "n1", 2)


class Door:
    """A listener for n1.2 that remembers whom it let in."""

    def __init__(self) -> None:
        self.welcomed: list[Claim] = []
        self.sockets: list[socket.socket] = []
        self.arrived = threading.Event()
        self.listener = LinkListener("127.0.0.1", SECRET, self._judge, self._welcome)

    def _judge(self, claim: Claim) -> Verdict:
        ours = (claim.to_node, claim.to_incarnation) == ("n1", 2)
        return Verdict.WELCOME if ours else Verdict.WRONG_INCARNATION

    def _welcome(self, claim: Claim, sock: socket.socket) -> None:
        self.welcomed.append(claim)
        self.sockets.append(sock)
        self.arrived.set()


@pytest.fixture
def door() -> Iterator[Door]:
    """An open door."""
    found = Door()
    yield found
    found.listener.close()
    for sock in found.sockets:
        sock.close()


def test_who_knows_the_secret_gets_in(door: Door) -> None:
    """A proven claim reaches the listener's owner as it was made."""
    hello.dial(door.listener.address, SECRET, [CLAIM], 2.0)[0].close()

    assert door.arrived.wait(2)
    assert door.welcomed == [CLAIM]
    assert not door.listener.refused


def test_a_wrong_secret_is_refused_and_counted(door: Door) -> None:
    """Without the secret nothing is proven, and nothing is told."""
    with pytest.raises(HelloRefused, match="secret"):
        hello.dial(door.listener.address, b"guessed", [CLAIM], 2.0)

    assert door.listener.refused == {"bad_proof": 1}
    assert door.welcomed == []


def test_a_claim_for_another_incarnation_is_refused_and_counted(door: Door) -> None:
    """A proven dialer that looks for somebody else is told so."""
    with pytest.raises(HelloRefused, match="wrong incarnation"):
        hello.dial(door.listener.address, SECRET, [replace(CLAIM, to_incarnation=1)], 2.0)

    assert door.listener.refused == {"wrong_incarnation": 1}


def test_the_token_of_another_transition_opens_nothing(door: Door) -> None:
    """A claim is proved with its own transition's token: no other's will do."""
    with socket.create_connection(door.listener.address, 2) as sock:
        greeting = sock.recv(hello.GREETING_BYTES, socket.MSG_WAITALL)
        message, _, raw = hello.prove(SECRET, greeting[len(hello.MARK) :], CLAIM)
        later = replace(CLAIM, transition=8).encode()
        sock.sendall(message.replace(raw, later))
        answer = sock.recv(hello.ANSWER_BYTES, socket.MSG_WAITALL)

    assert len(later) == len(raw)
    assert answer[0] == Verdict.BAD_PROOF


@pytest.mark.parametrize("locally", [True, False])
def test_a_link_goes_through_the_machine_or_the_network(door: Door, locally: bool) -> None:
    """A listener on the same machine is found there, with the same proofs, unless told not to."""
    (sock,) = hello.dial(door.listener.address, SECRET, [CLAIM], 2.0, locally=locally)

    assert sock.family == (socket.AF_UNIX if locally else socket.AF_INET)
    assert door.arrived.wait(2)
    assert door.sockets[0].family == sock.family
    sock.close()


def test_two_listeners_of_one_machine_have_names_of_their_own(door: Door) -> None:
    """The local name is made of the address, so a dialer reaches the very one it asked for."""
    other = Door()
    hello.dial(other.listener.address, SECRET, [CLAIM], 2.0)[0].close()
    assert other.arrived.wait(2)
    other.listener.close()
    other.sockets[0].close()

    assert not door.arrived.is_set()
    assert hello.local_name(door.listener.address) != hello.local_name(other.listener.address)


def test_a_recorded_hello_cannot_be_played_again(door: Door) -> None:
    """The proof is over the listener's fresh challenge."""
    with socket.create_connection(door.listener.address, 2) as first:
        greeting = first.recv(hello.GREETING_BYTES, socket.MSG_WAITALL)
        message, _, _ = hello.prove(SECRET, greeting[len(hello.MARK) :], CLAIM)
        first.sendall(message)
        assert first.recv(hello.ANSWER_BYTES, socket.MSG_WAITALL)[0] == Verdict.WELCOME
    with socket.create_connection(door.listener.address, 2) as second:
        second.recv(hello.GREETING_BYTES, socket.MSG_WAITALL)
        second.sendall(message)
        answer = second.recv(hello.ANSWER_BYTES, socket.MSG_WAITALL)

    assert answer[0] == Verdict.BAD_PROOF
    assert answer[1:] == bytes(hello.PROOF_BYTES), "an unproven dialer gets no proof to study"


def test_a_listener_that_does_not_know_the_secret_is_found_out() -> None:
    """The dialer believes nobody: a listener must prove itself too."""
    server = socket.create_server(("127.0.0.1", 0))

    def pretend() -> None:
        sock, _ = server.accept()
        with sock:
            sock.sendall(hello.greeting()[0])
            sock.recv(4096)
            sock.sendall(bytes([Verdict.WELCOME]) + bytes(hello.PROOF_BYTES))

    thread = threading.Thread(target=pretend)
    thread.start()
    with server, pytest.raises(HelloRefused, match="did not prove"):
        hello.dial(server.getsockname()[:2], SECRET, [CLAIM], 2.0)
    thread.join()


def test_a_silent_dialer_keeps_nobody_waiting(door: Door) -> None:
    """Connections that say nothing, or half a hello, do not delay the next one."""
    silent = [socket.create_connection(door.listener.address, 2) for _ in range(20)]
    for sock in silent[:10]:
        sock.sendall(b"\x10\x00half")
    hello.dial(door.listener.address, SECRET, [CLAIM], 2.0)[0].close()
    for sock in silent:
        sock.close()

    assert door.arrived.wait(2)


def test_oversized_and_meaningless_claims_are_refused(door: Door) -> None:
    """What is not a claim is refused as malformed, whatever its size says."""
    with socket.create_connection(door.listener.address, 2) as sock:
        sock.recv(hello.GREETING_BYTES, socket.MSG_WAITALL)
        sock.sendall(b"\xff\xff" + b"x" * 100)
        assert sock.recv(hello.ANSWER_BYTES, socket.MSG_WAITALL)[0] == Verdict.MALFORMED

    assert door.listener.refused == {"malformed": 1}


def test_a_listener_that_never_answers_costs_the_deadline_and_no_more() -> None:
    """A hung process accepts connections in its backlog; the dialer's deadline ends that."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(TimeoutError):
        hello.dial(server.getsockname()[:2], SECRET, [CLAIM], 0.2)


@pytest.mark.parametrize(
    "raw",
    [b"[]", b"{}", b"nonsense", CLAIM.encode().replace(b'"incarnation":1', b'"incarnation":"1"')],
)
def test_decoding_refuses_what_is_not_a_claim(raw: bytes) -> None:
    """Wrong shapes and wrong types raise instead of passing through."""
    with pytest.raises(ValueError, match=r".*"):
        Claim.decode(raw)
