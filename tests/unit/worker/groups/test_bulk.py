"""Frames over one socket pair: stopping anywhere and going on must keep both ends in step."""

import fcntl
import os
import random
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.groups import frames
from worker.groups.bulk import BulkStream, OutOfStep, PeerMovedOn, StreamEnded
from worker.groups.shared import RING_BYTES, BadMemory, SharedReader

CHUNK = frames.CHUNK_BYTES_MAX


@pytest.fixture(params=["through the socket", "in shared memory"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[BulkStream, BulkStream]]:
    """Two ends with buffers small enough that a chunk never fits."""
    left, right = socket.socketpair()
    for one in (left, right):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    streams = BulkStream(left), BulkStream(right)
    for stream in streams:
        stream.shares = request.param == "in shared memory"
    yield streams
    for stream in streams:
        stream.close()


def pump(
    sender: BulkStream, receiver: BulkStream, payload: bytes, stamp: tuple[int, int, int]
) -> bytes:
    """Carry one frame across."""
    target = bytearray(len(payload))
    receiver.begin_receive(*stamp, memoryview(target))
    begun = sent = received = False
    while not (sent and received):
        begun = begun or sender.begin_send(*stamp, memoryview(payload))
        sent = sender.flush() and begun
        received = received or receiver.fill()
    if receiver.elsewhere is not None:
        target[:] = receiver.elsewhere
        receiver.release()
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
        sender.begin_send(tag, 77, 0, memoryview(payload))  # or finds no room, and gives up at once
    receiver.begin_receive(tag, 77, 0, target)
    for _ in range(chance.randrange(4)):
        sender.flush()
        if chance.random() < 0.5 and receiver.fill():
            if receiver.elsewhere is not None and chance.random() < 0.5:
                receiver.release()
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


def test_memory_that_is_full_is_waited_for_and_goes_on(
    pair: tuple[BulkStream, BulkStream],
) -> None:
    """A sender without room queues nothing, and finds room once the receiver has let go of some."""
    sender, receiver = pair
    if not sender.shares:
        return
    payloads = [os.urandom(CHUNK) for _ in range(RING_BYTES // CHUNK)]
    for number, payload in enumerate(payloads):
        assert sender.begin_send(1, number, 0, memoryview(payload))
        assert sender.flush()
    one_more = memoryview(os.urandom(CHUNK))
    assert not sender.begin_send(1, 99, 0, one_more)
    assert not select.select([sender.want_room[0]], [], [], 0)[0]
    receiver.begin_receive(1, 0, 0, memoryview(bytearray(CHUNK)))
    assert receiver.fill()
    assert _bytes_elsewhere(receiver) == payloads[0]
    assert not sender.begin_send(1, 99, 0, one_more), "what is still read must not be written over"
    receiver.release()

    assert select.select([sender.want_room[0]], [], [], 1)[0]
    assert sender.begin_send(1, 99, 0, one_more)
    assert sender.flush()
    for number, payload in [*enumerate(payloads[1:], 1), (99, bytes(one_more))]:
        receiver.begin_receive(1, number, 0, memoryview(bytearray(CHUNK)))
        assert receiver.fill()
        assert _bytes_elsewhere(receiver) == payload
        receiver.release()


def _bytes_elsewhere(receiver: BulkStream) -> bytes:
    assert receiver.elsewhere is not None
    return bytes(receiver.elsewhere)


def test_memory_that_is_not_of_a_link_is_refused() -> None:
    """A file of another size, or one that its maker could shrink again, is never mapped."""
    for size, sealed in ((4096, True), (RING_BYTES + 4096, False)):
        fd = os.memfd_create("other", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        if sealed:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        room = os.eventfd(0)
        with pytest.raises(BadMemory):
            SharedReader([fd, room])
        for closed in (fd, room):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(closed)


def test_a_stream_leaves_no_descriptor_behind() -> None:
    """Memory, signals and sockets of both ends go with the streams."""
    before = sorted(Path("/proc/self/fd").iterdir())
    left, right = (BulkStream(one) for one in socket.socketpair())
    for number in range(3):
        assert pump(left, right, os.urandom(70_000), (1, number, 0))
        assert pump(right, left, os.urandom(70_000), (1, number, 0))
    left.close()
    right.close()

    assert sorted(Path("/proc/self/fd").iterdir()) == before
