"""Bounds of a rehearsal: time and memory, watched while the training thread may be stuck."""

import os
import threading
import time
from typing import Any

import pytest

from statemachine.topology import WarmupCaps
from worker.standing_back import may_stand_back
from worker.warmup import caps
from worker.warmup.caps import EXIT_CODE, Bounds, resident_bytes
from worker.warmup.lastwords import described


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (WarmupCaps(deadline_s=0.2), "hangs: no end within 0.2 s"),
        (WarmupCaps(memory_bytes=1 << 20), "takes too much memory"),
    ],
)
def test_a_bound_that_is_passed_is_told_before_the_process_ends(
    bounds: WarmupCaps, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The reason first, then the end, from another thread than the one that is stuck."""
    told: list[str] = []
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    with Bounds(bounds, told.append, end):
        assert ended.wait(10)
    assert words in told[0]
    assert codes == [EXIT_CODE]
    assert "most recent call first" in capfd.readouterr().err, "every thread's stack is in the log"


def test_within_its_bounds_nothing_is_told() -> None:
    """A rehearsal that ends in time leaves no thread, and its thread has its full share again."""
    threads = threading.active_count()
    told: list[Any] = []
    with Bounds(WarmupCaps(deadline_s=60, memory_bytes=1 << 50), told.append, told.append):
        back = os.SCHED_IDLE if may_stand_back() else os.SCHED_OTHER
        assert os.sched_getscheduler(0) == back
    assert told == []
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert threading.active_count() == threads


def test_what_the_run_waits_for_does_not_stand_back() -> None:
    """Priming for a slot that is vacant has its full share all the time."""
    with Bounds(WarmupCaps(deadline_s=60), lambda _: None, stand_back=False):
        assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.skipif(not may_stand_back(), reason="nobody stands back here")
def test_a_rehearsal_comes_forth_when_its_node_is_needed() -> None:
    """An order that arrives in the middle of a rehearsed step is not kept waiting by the run."""
    wanted = threading.Event()
    with Bounds(WarmupCaps(), lambda _: None, wanted=wanted.is_set):
        assert os.sched_getscheduler(0) == os.SCHED_IDLE
        wanted.set()
        assert forth_within(5)


@pytest.mark.skipif(not may_stand_back(), reason="nobody stands back here")
@pytest.mark.parametrize(("most_s", "deadline_s"), [(0.1, 0.0), (60.0, 3.0)])
def test_no_rehearsal_stands_back_for_ever(
    monkeypatch: pytest.MonkeyPatch, most_s: float, deadline_s: float
) -> None:
    """On a machine that never rests it gets its share in the end, and long before its deadline."""
    monkeypatch.setattr(caps, "STAND_BACK_S_MAX", most_s)
    told: list[str] = []
    with Bounds(WarmupCaps(deadline_s=deadline_s), told.append, lambda _: None):
        assert forth_within(5)
        assert told == []


def forth_within(patience_s: float) -> bool:
    """Whether this thread gets its full share in time."""
    ends_at_s = time.monotonic() + patience_s
    while os.sched_getscheduler(0) == os.SCHED_IDLE and time.monotonic() < ends_at_s:
        time.sleep(0.01)
    return os.sched_getscheduler(0) == os.SCHED_OTHER


def test_what_is_resident_grows_with_what_is_held() -> None:
    """Sixty-four more MiB show."""
    before = resident_bytes()
    held = bytearray(os.urandom(1) * (64 << 20))
    assert resident_bytes() - before > 48 << 20
    assert held


def test_an_exception_is_described_in_one_line() -> None:
    """What, why and where in the script; a long or broken message stays one line."""
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        said = described(type(error), error, error.__traceback__)
    assert said.startswith("ValueError: first second (test_caps.py:")
    assert described(KeyError, KeyError(), None) == "KeyError"
