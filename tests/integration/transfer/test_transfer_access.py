"""State is given to exactly those for whom it is on offer, once."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from worker.transfer import (
    Party,
    PeerRefused,
    Source,
    StateImage,
    TensorSpec,
    TensorView,
    TransferFailed,
    TransferReport,
    TransferServer,
    fetch,
    wire,
)

SECRET = bytes(range(32))
SOURCE, JOINER = Party("n0", 4), Party("n9", 3)


def image() -> StateImage:
    """A small image."""
    memory = memoryview(bytearray(b"state of the run"))
    return StateImage((TensorView(TensorSpec("t", "U8", (16,)), memory),), {"step": 1})


@pytest.fixture
def server() -> Iterator[TransferServer]:
    """A listening source."""
    with TransferServer(secret=SECRET, job="job", me=SOURCE, stall_s=5.0) as listening:
        yield listening


def take(server: TransferServer, **told: Any) -> TransferReport:
    """Fetch from `server` as the joiner that it expects, except for what is told."""
    party = told.pop("party", SOURCE)
    given: dict[str, Any] = {
        "secret": SECRET,
        "job": "job",
        "transition": 7,
        "joiner": JOINER,
        "into": StateImage.allocate,
        "offer_wait_s": 0.0,
        "stall_s": 5.0,
    }
    return fetch([Source(*server.address, party)], **(given | told))


def test_the_expected_joiner_receives(server: TransferServer) -> None:
    """The joiner of the offer gets the image, and the source learns that it has it."""
    with server.offer(7, JOINER, image()) as offer:
        report = take(server)

        assert offer.wait(5)
        assert (offer.completed, offer.cause, offer.bytes_sent) == (True, "completed", 16)
    assert report.image.digest() == image().digest()
    assert report.image.meta == {"step": 1}


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"secret": b"x" * 32}, "could not prove"),
        ({"transition": 8}, "nothing is on offer"),
        ({"attempt": 1}, "nothing is on offer"),
        ({"joiner": replace(JOINER, node="n8")}, "nothing is on offer"),
        ({"joiner": replace(JOINER, incarnation=4)}, "nothing is on offer"),
        ({"party": replace(SOURCE, incarnation=5)}, "another job, node or incarnation"),
        ({"party": replace(SOURCE, node="n1")}, "another job, node or incarnation"),
        ({"job": "other"}, "another job, node or incarnation"),
    ],
)
def test_anybody_else_is_refused(server: TransferServer, told: Any, reason: str) -> None:
    """Another secret, transition, attempt, job, node or incarnation gets nothing but a reason."""
    with server.offer(7, JOINER, image()) as offer:
        with pytest.raises(TransferFailed, match=reason):
            take(server, **told)

        assert not offer.claimed
        take(server)
        assert offer.wait(5)


def test_a_token_works_once(server: TransferServer) -> None:
    """After one use the same joiner is refused; the next attempt has a token of its own."""
    with server.offer(7, JOINER, image()) as offer:
        take(server)
        assert offer.wait(5)
    with pytest.raises(TransferFailed, match="token already used"):
        take(server)
    assert server.refusals["token already used"] == 1
    with pytest.raises(ValueError, match="take another attempt"):
        server.offer(7, JOINER, image())

    with server.offer(7, JOINER, image(), attempt=1):
        assert take(server, attempt=1).nbytes == 16


def test_a_caller_without_the_token_learns_nothing_and_is_counted(server: TransferServer) -> None:
    """A hello with the right names and a wrong proof is refused before any header is sent."""
    with server.offer(7, JOINER, image()), socket.create_connection(server.address) as sock:
        channel = wire.Channel(sock, 5.0)
        channel.send_json(
            wire.HELLO,
            job="job",
            transition=7,
            attempt=0,
            source=["n0", 4],
            joiner=["n9", 3],
            nonce="00" * 16,
            offer_wait_s=0,
        )
        assert len(bytes.fromhex(channel.receive_json(wire.CHALLENGE)["proof"])) == 32
        channel.send_frame(wire.PROOF, b"\0" * 32)

        with pytest.raises(PeerRefused, match="does not have the token"):
            channel.receive_frame(wire.HEADER)

        assert server.refusals["caller does not have the token"] == 1
        assert take(server).nbytes == 16


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        wire._FRAME.pack(wire.MAGIC, wire.HELLO, 1 << 60),
        wire._FRAME.pack(wire.MAGIC, wire.HELLO, 4) + b"null",
        wire._FRAME.pack(wire.MAGIC, wire.HELLO, 2) + b"{}",
        wire._FRAME.pack(wire.MAGIC, wire.HELLO, 6) + b"[[[[[[",
    ],
)
def test_noise_is_cut_off_and_harms_nobody(server: TransferServer, noise: bytes) -> None:
    """What is not our protocol is hung up on, and the next joiner is served."""
    with socket.create_connection(server.address) as sock:
        sock.settimeout(10)
        sock.sendall(noise)
        with suppress(ConnectionResetError):
            while sock.recv(4096):
                pass

    with server.offer(7, JOINER, image()):
        assert take(server).nbytes == 16


def test_an_impostor_source_is_found_out(server: TransferServer) -> None:
    """A process that took over a source's address cannot prove to be it, and gives nothing."""
    with TransferServer(secret=b"y" * 32, job="job", me=SOURCE) as impostor:
        impostor.offer(7, JOINER, image())
        with pytest.raises(TransferFailed, match="could not prove that it is the source"):
            take(impostor)


def test_a_joiner_that_comes_early_waits_for_its_offer(server: TransferServer) -> None:
    """The joiner may ask before the source has opened its offer."""
    got: list[TransferReport] = []
    thread = threading.Thread(target=lambda: got.append(take(server, offer_wait_s=20.0)))
    thread.start()
    deadline = time.monotonic() + 10
    while not server.callers and time.monotonic() < deadline:
        time.sleep(0.002)
    assert server.callers == 1

    with server.offer(7, JOINER, image()) as offer:
        assert offer.wait(10)
    thread.join(10)

    assert got[0].nbytes == 16


def test_a_closed_offer_is_not_served(server: TransferServer) -> None:
    """Closing an offer that nobody claimed leaves nothing to take; it may be opened again."""
    server.offer(7, JOINER, image()).close()
    with pytest.raises(TransferFailed, match="closed"):
        take(server)

    with server.offer(7, JOINER, image()):
        assert take(server).nbytes == 16


def test_closing_an_offer_cuts_a_joiner_that_takes_nothing(server: TransferServer) -> None:
    """When `close` returns the image is not read any more, whatever the joiner does."""
    large = StateImage(
        (TensorView(TensorSpec("t", "U8", (64 << 20,)), memoryview(bytearray(64 << 20))),)
    )
    abort, offer = threading.Event(), server.offer(7, JOINER, large)
    stuck = threading.Event()

    def hold(header: Any) -> StateImage:
        stuck.set()
        abort.wait(20)
        return StateImage.allocate(header)

    failed: list[BaseException] = []

    def run() -> None:
        try:
            take(server, into=hold)
        except TransferFailed as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert stuck.wait(10)

    started = time.monotonic()
    offer.close()

    assert time.monotonic() - started < 1
    assert (offer.completed, offer.cause) == (False, "closed by its source")
    abort.set()
    thread.join(10)
    assert "n0: lost" in str(failed[0])


def test_a_joiner_that_takes_nothing_is_given_up() -> None:
    """A claimed offer ends by itself when its joiner neither takes nor asks for `stall_s`."""
    with TransferServer(secret=SECRET, job="job", me=SOURCE, stall_s=0.3) as server:
        offer, released = server.offer(7, JOINER, image()), threading.Event()

        def hold(header: Any) -> StateImage:
            assert offer.wait(10)
            released.set()
            return StateImage.allocate(header)

        with pytest.raises(TransferFailed, match="n0: lost"):
            take(server, into=hold)

        assert released.is_set()
        assert (offer.completed, offer.cause) == (False, "joiner took nothing for too long")


def test_a_short_secret_is_refused_on_both_sides(server: TransferServer) -> None:
    """A secret that could be guessed is an error at once, not a weak token."""
    with pytest.raises(ValueError, match="at least 16 are needed"):
        take(server, secret=b"short")
    with (
        TransferServer(secret=b"short", job="job", me=SOURCE) as weak,
        pytest.raises(ValueError, match="at least 16 are needed"),
    ):
        weak.offer(7, JOINER, image())


def test_close_leaves_no_thread_and_frees_the_port(server: TransferServer) -> None:
    """After `close` nothing of the server is left."""
    with socket.create_connection(server.address):
        server.close()

    assert not [each for each in threading.enumerate() if each.name.startswith("transfer-")]
    with socket.create_server(server.address):
        pass
