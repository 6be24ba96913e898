"""Lanes taking turns: ending, waiting, being interrupted, and running beside."""

import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from worker.groups.exchange import MORE, OTHER_LANE, Exchange, Interrupted, Lane, NothingMoved
from worker.groups.rings import Progress
from worker.groups.sideline import Sideline
from worker.groups.wakeup import WakeUp


class Broken:
    """Whether the group is broken, as an exchange asks."""

    def __init__(self) -> None:
        self.now = False

    def __call__(self) -> bool:
        return self.now


@pytest.fixture
def silent() -> Iterator[tuple[int, int]]:
    """What a lane wants that waits for a socket on which nothing ever comes."""
    left, right = socket.socketpair()
    with left, right:
        yield (left.fileno(), select.POLLIN)


def counting(upto: int, seen: list[int]) -> Lane:
    """A lane that always has more to do, up to an end."""
    for number in range(upto):
        seen.append(number)
        yield MORE


def blocked(want: tuple[int, int]) -> Lane:
    """A lane that waits for ever."""
    while True:
        yield want


def test_a_run_ends_with_its_lanes_and_leaves_the_background(silent: tuple[int, int]) -> None:
    """Background lanes get turns, and are neither awaited nor ended."""
    exchange = Exchange(WakeUp(), Broken(), 5.0)
    seen: list[int] = []
    beside: list[int] = []
    background = counting(1000, beside)
    exchange.run([counting(10, seen)], [background, blocked(silent)])

    assert seen == list(range(10))
    assert 10 <= len(beside) < 1000
    assert next(background) is MORE


def test_nothing_moving_ends_with_the_backstop(silent: tuple[int, int]) -> None:
    """Waiting for ever is impossible, and the error names the socket."""
    exchange = Exchange(WakeUp(), Broken(), 0.05)
    with pytest.raises(NothingMoved) as met:
        exchange.run([blocked(silent)])

    assert met.value.fds == [silent[0]]


def test_a_break_from_another_thread_interrupts_at_once(silent: tuple[int, int]) -> None:
    """A blocked run ends within milliseconds of being told."""
    wake, broken = WakeUp(), Broken()
    exchange = Exchange(wake, broken, 30.0)
    told_at = 0.0

    def tell() -> None:
        nonlocal told_at
        time.sleep(0.1)  # let the run block first; it is right either way
        told_at = time.monotonic()
        broken.now = True
        wake.signal()

    thread = threading.Thread(target=tell)
    thread.start()
    with pytest.raises(Interrupted):
        exchange.run([blocked(silent)])
    ended_at = time.monotonic()
    thread.join()

    assert ended_at - told_at < 0.5


def test_waiting_is_told_apart_from_work() -> None:
    """Time in poll counts as waiting, the rest as this rank's own."""
    left, right = socket.socketpair()
    exchange = Exchange(WakeUp(), Broken(), 5.0)

    def receiving() -> Lane:
        yield (left.fileno(), select.POLLIN)
        ends = time.monotonic() + 0.05
        while time.monotonic() < ends:
            pass

    def answer() -> None:
        time.sleep(0.2)
        right.send(b"x")

    thread = threading.Thread(target=answer)
    thread.start()
    with left, right:
        exchange.run([receiving()])
        thread.join()

    assert exchange.waits.wait_s > 0.1
    assert 0.04 < exchange.waits.busy_s < 1.0
    assert exchange.waits.operations == 1


def test_two_threads_hand_chunks_over_without_losing_a_wake_up() -> None:
    """A sender on the second thread that waits for arrivals never sleeps through one."""
    wake, broken = WakeUp(), Broken()
    exchange, sideline = Exchange(wake, broken, 5.0), Sideline(broken, 5.0)
    for _ in range(300):
        progress = Progress()
        progress.across_threads(sideline.wake)
        sent: list[int] = []
        errand = sideline.start([forwarding(progress, sent)], wake)
        exchange.run([arriving(progress), errand.joined()])
        assert sent == list(range(20))
    sideline.stop()


def arriving(progress: Progress) -> Lane:
    """Chunks that arrive one by one."""
    for number in range(20):
        progress.arrived(number + 1)
        yield MORE


def forwarding(progress: Progress, sent: list[int]) -> Lane:
    """Send each chunk on once it is there."""
    for number in range(20):
        yield from progress.wait_for(number + 1)
        sent.append(number)
        yield MORE


def test_what_goes_wrong_on_the_second_thread_is_raised_where_it_is_joined() -> None:
    """An error beside must not pass for success."""
    wake, broken = WakeUp(), Broken()
    exchange, sideline = Exchange(wake, broken, 5.0), Sideline(broken, 5.0)

    def failing() -> Lane:
        yield MORE
        raise OSError("the wire is cut")

    errand = sideline.start([failing()], wake)
    with pytest.raises(OSError, match="the wire is cut"):
        exchange.run([errand.joined()])
    sideline.stop()


def test_a_break_settles_the_second_thread() -> None:
    """Once the group is broken the second thread lets go of what it was doing."""
    broken = Broken()
    sideline = Sideline(broken, 30.0)

    def waiting() -> Lane:
        while True:
            yield OTHER_LANE

    errand = sideline.start([waiting()], WakeUp())
    broken.now = True
    sideline.wake.signal()
    settled = threading.Thread(target=errand.settle)
    settled.start()
    settled.join(5)

    assert not settled.is_alive()
    sideline.stop()
