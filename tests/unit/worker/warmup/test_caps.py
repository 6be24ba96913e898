"""Bounds of a rehearsal: time and memory, watched while the training thread may be stuck."""

import os
import threading

import pytest

from statemachine.topology import WarmupCaps
from worker.warmup.caps import EXIT_CODE, Bounds, resident_bytes
from worker.warmup.lastwords import described


@pytest.mark.parametrize(
    ("caps", "words"),
    [
        (WarmupCaps(deadline_s=0.2), "hangs: no end within 0.2 s"),
        (WarmupCaps(memory_bytes=1 << 20), "takes too much memory"),
    ],
)
def test_a_bound_that_is_passed_is_told_before_the_process_ends(
    caps: WarmupCaps, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The reason first, then the end, from another thread than the one that is stuck."""
    told: list[str] = []
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    with Bounds(caps, told.append, end):
        assert ended.wait(10)
    assert words in told[0]
    assert codes == [EXIT_CODE]
    assert "most recent call first" in capfd.readouterr().err, "every thread's stack is in the log"


def test_within_its_bounds_nothing_is_told() -> None:
    """A rehearsal that ends in time leaves no thread, and the priority it came with."""
    before, threads = os.getpriority(os.PRIO_PROCESS, 0), threading.active_count()
    told: list[str] = []
    with Bounds(WarmupCaps(deadline_s=60, memory_bytes=1 << 50), told.append, told.append):  # type: ignore[arg-type]
        assert os.getpriority(os.PRIO_PROCESS, 0) >= before
    assert told == []
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert threading.active_count() == threads


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
