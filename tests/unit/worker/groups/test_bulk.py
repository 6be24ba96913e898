"""Frames over one socket pair: stopping anywhere and going on must keep both ends in step."""

import os
import random
import socket
from collections.abc import Iterator

import pytest

from worker.groups import frames
from worker.groups.bulk import BulkStream, OutOfStep, PeerMovedOn, StreamEnded

CHUNK = frames.CHUNK_BYTES_MAX


@pytest.fixture
def pair() -> Iterator[tuple[BulkStream, BulkStream]]:
    """Two ends with buffers small enough that a chunk never fits."""
    left, right = socket.socketpair()
    for one in (left, right):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    streams = _Plain(left), _Plain(right)
    yield streams
    for stream in streams:
        stream.close()


class _Plain(BulkStream):
    """A stream over a socket that is not TCP, so has no TCP options."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(_WithoutOptions(fileno=sock.detach()))


class _WithoutOptions(socket.socket):
    def setsockopt(self, *args: object) -> None:
        """Accept any option."""


def pump(
    sender: BulkStream, receiver: BulkStream, payload: bytes, stamp: tuple[int, int, int]
) -> bytes:
    """Carry one frame across."""
    target = bytearray(len(payload))
    sender.begin_send(*stamp, memoryview(payload))
    receiver.begin_receive(*stamp, memoryview(target))
    sent = received = False
    while not (sent and received):
        sent = sent or sender.flush()
        received = received or receiver.fill()
    return bytes(target)


@pytest.mark.parametrize("size", [0, 1, 4071, 4072, 4073, 4096, 70_000, CHUNK])
def test_a_frame_arrives_whole(pair: tuple[BulkStream, BulkStream], size: int) -> None:
    """Any payload up to a chunk, including none, arrives as it was sent."""
    payload = os.urandom(size)

    assert pump(*pair, payload, (1, 1, 0)) == payload


def test_frames_ride_together(pair: tuple[BulkStream, BulkStream]) -> None:
    """Many small frames that arrive in one piece are taken apart in order."""
    sender, receiver = pair
    for number in range(20):
        sender.begin_send(1, number, 0, memoryview(bytes([number]) * 40))
        assert sender.flush()
    for number in range(20):
        target = bytearray(40)
        receiver.begin_receive(1, number, 0, memoryview(target))
        assert receiver.fill()
        assert target == bytes([number]) * 40


@pytest.mark.parametrize("seed", range(30))
def test_both_ends_stay_in_step_wherever_they_stop(
    pair: tuple[BulkStream, BulkStream], seed: int
) -> None:
    """However an epoch was cut short at either end, the next epoch's frame is the next one read."""
    chance = random.Random(seed)
    sizes = [0, 10, 4072, 5000, 60_000]
    for tag in range(1, 30):
        for sequence in range(chance.randrange(3)):
            payload = chance.randbytes(chance.choice(sizes))
            assert pump(*pair, payload, (tag, sequence, 0)) == payload, f"seed {seed}, tag {tag}"
        cut_short(*pair, tag, chance.randbytes(chance.choice(sizes)), chance)


def cut_short(
    sender: BulkStream, receiver: BulkStream, tag: int, payload: bytes, chance: random.Random
) -> None:
    """Begin a frame, get it some of the way, and abandon it at both ends."""
    target = memoryview(bytearray(len(payload)))
    begun = chance.random() < 0.8
    if begun:
        sender.begin_send(tag, 77, 0, memoryview(payload))
    receiver.begin_receive(tag, 77, 0, target)
    for _ in range(chance.randrange(4)):
        sender.flush()
        if chance.random() < 0.5 and receiver.fill():
            break
    receiver.abandon_receive()
    sender.abandon_send()
    if chance.random() < 0.3:
        sender.abandon_send()


def test_a_newer_tag_is_left_for_later(pair: tuple[BulkStream, BulkStream]) -> None:
    """A frame of the next epoch interrupts this one, and is still there afterwards."""
    sender, receiver = pair
    sender.begin_send(6, 1, 0, memoryview(b"future"))
    assert sender.flush()
    target = bytearray(6)
    receiver.begin_receive(5, 1, 0, memoryview(target))
    with pytest.raises(PeerMovedOn):
        receiver.fill()
    receiver.abandon_receive()
    receiver.begin_receive(6, 1, 0, memoryview(target))

    assert receiver.fill()
    assert target == b"future"


@pytest.mark.parametrize("wrong", [(5, 2, 0, 4), (5, 1, 1, 4), (5, 1, 0, 5)])
def test_another_collective_is_told_apart(
    pair: tuple[BulkStream, BulkStream], wrong: tuple[int, int, int, int]
) -> None:
    """A wrong collective, chunk or size is refused before its payload is used."""
    sender, receiver = pair
    tag, sequence, chunk, size = wrong
    sender.begin_send(tag, sequence, chunk, memoryview(bytes(size)))
    sender.flush()
    receiver.begin_receive(5, 1, 0, memoryview(bytearray(4)))

    with pytest.raises(OutOfStep):
        receiver.fill()


def test_the_end_of_a_stream_is_told(pair: tuple[BulkStream, BulkStream]) -> None:
    """A closed peer ends the stream, but not before what it had sent was read."""
    sender, receiver = pair
    sender.begin_send(1, 1, 0, memoryview(b"last"))
    sender.flush()
    sender.end_sending()
    target = bytearray(4)
    receiver.begin_receive(1, 1, 0, memoryview(target))
    assert receiver.fill()
    receiver.begin_receive(1, 2, 0, memoryview(target))

    with pytest.raises(StreamEnded):
        receiver.fill()


def test_bytes_that_are_no_frame_end_the_stream(pair: tuple[BulkStream, BulkStream]) -> None:
    """Garbage is not parsed any further."""
    sender, receiver = pair
    sender._sock.send(b"x" * frames.HEADER_BYTES)
    receiver.begin_receive(1, 1, 0, memoryview(bytearray(4)))

    with pytest.raises(StreamEnded, match="not a frame"):
        receiver.fill()


def test_a_header_cannot_claim_more_than_a_chunk() -> None:
    """A hostile size is refused where it is read."""
    header = frames.pack(frames.Kind.DATA, 1, 1, 0, CHUNK + 1)
    with pytest.raises(frames.BadFrame):
        frames.unpack(header)
