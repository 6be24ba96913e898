"""A link that is made slow carries what it should, slowly, and who sends through it waits."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.faults import SlowCompute, SlowKind, set_fault
from worker.groups.bulk import BulkStream
from worker.groups.exchange import Exchange, receive, send
from worker.groups.pacing import SLICE_BYTES, Pacing, from_environment, rested_s
from worker.groups.port import Waits
from worker.groups.wakeup import WakeUp

FRAME = 1 << 20
FRAMES = 24


@pytest.fixture
def fault(tmp_path: Path) -> Path:
    """The control file of one node."""
    return tmp_path / "fault"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection through the network of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
    with left, right:
        yield left, right


def carried(
    ends: tuple[socket.socket, socket.socket], *, sends: Pacing | None, takes: Pacing | None
) -> tuple[float, Waits]:
    """Send frames across: bytes per second as the receiver saw them, and where the sender's time
    went.
    """
    sender, receiver = BulkStream(ends[0], sends), BulkStream(ends[1], takes)
    payload, target = os.urandom(FRAME), bytearray(FRAME)
    sending = Exchange(WakeUp(), lambda: False, 10.0)

    def push() -> None:
        for number in range(FRAMES):
            sending.run([send(sender, 1, number, 0, memoryview(payload))])

    thread = threading.Thread(target=push)
    thread.start()
    taking = Exchange(WakeUp(), lambda: False, 10.0)
    for number in range(FRAMES):
        taking.run([receive(receiver, 1, number, 0, memoryview(target))])
    thread.join()
    assert bytes(target) == payload
    return receiver.carried_bytes / receiver.carried_s, sending.waits


@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_a_slow_link_carries_a_fraction_whichever_end_is_slow(
    ends: tuple[socket.socket, socket.socket], fault: Path, side: str
) -> None:
    """At 12 times as long the receiver measures less than half the rate; all bytes are there."""
    pacing = Pacing(SlowCompute(fault))
    sends, takes = (pacing, None) if side == "sender" else (None, pacing)
    best_well = worst_slow = 0.0
    for _ in range(5):
        fault.unlink(missing_ok=True)
        best_well = max(best_well, carried(ends, sends=None, takes=None)[0])
        set_fault(fault, 12.0, SlowKind.LINK)
        worst_slow = max(worst_slow, carried(ends, sends=sends, takes=takes)[0])
        if best_well > 2 * worst_slow:
            break

    assert best_well > 2 * worst_slow, f"{best_well / 1e6:.0f} against {worst_slow / 1e6:.0f} MB/s"


def test_who_sends_through_a_slow_link_waits_and_does_not_work(
    ends: tuple[socket.socket, socket.socket], fault: Path
) -> None:
    """So a slow link is never taken for a rank that computes slowly."""
    set_fault(fault, 40.0, SlowKind.LINK)
    cpu_s = time.process_time()
    _, waits = carried(ends, sends=Pacing(SlowCompute(fault)), takes=None)
    cpu_s = time.process_time() - cpu_s

    assert waits.wait_s > 3 * waits.busy_s, waits
    assert waits.wait_s > 2 * cpu_s, "waiting takes no processor time"


@pytest.mark.parametrize("kind", [SlowKind.COMPUTE, SlowKind.MEMORY, SlowKind.INPUT])
def test_no_other_fault_slows_links(fault: Path, kind: SlowKind) -> None:
    """All of a frame goes at once, and nobody rests."""
    set_fault(fault, 10.0, kind)
    pacing = Pacing(SlowCompute(fault))
    parts: list[bytes | memoryview] = [b"header", memoryview(bytes(4 * SLICE_BYTES))]
    before_s = rested_s()
    pacing.rest(1.0)

    assert [part.nbytes for part in pacing.cut(parts)] == [6, 4 * SLICE_BYTES]
    assert rested_s() == before_s


def test_a_slow_link_is_cut_into_slices(fault: Path) -> None:
    """The header counts with the payload, and an empty part is no reason to stop."""
    set_fault(fault, 2.0, SlowKind.LINK)
    pacing = Pacing(SlowCompute(fault))
    parts: list[bytes | memoryview] = [
        b"header",
        memoryview(b""),
        memoryview(bytes(2 * SLICE_BYTES)),
        b"next",
    ]

    assert [part.nbytes for part in pacing.cut(parts)] == [6, 0, SLICE_BYTES - 6]


def test_nothing_of_it_is_in_a_process_that_nobody_injects_faults_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a fault file in the environment there is no pacing."""
    monkeypatch.delenv("CHANGEOVER_FAULT_FILE", raising=False)

    assert from_environment() is None
