"""Short slices are asked for, inherited, and taken back; without them everything works the same."""

import platform
import subprocess
import sys

import pytest

from controlplane.eventlog import promptness
from controlplane.eventlog.promptness import SLICE_NS, be_prompt, slice_ns, starting

ASK = "from controlplane.eventlog.promptness import slice_ns; print(slice_ns())"


def in_child() -> int:
    """The slice that a child has."""
    return int(subprocess.run([sys.executable, "-c", ASK], capture_output=True, check=True).stdout)


@pytest.fixture
def granted() -> int:
    """The ordinary slice, where the kernel grants others."""
    before = slice_ns()
    with starting(prompt=True):
        if slice_ns() != SLICE_NS:
            pytest.skip("this kernel has no slices of one's own")
    return before


def test_what_is_started_is_prompt_or_not_as_asked(granted: int) -> None:
    """A child inherits what was asked for in the body, and this thread is as before after it."""
    with starting(prompt=True):
        assert in_child() == SLICE_NS
    assert slice_ns() == granted
    assert in_child() == granted


def test_a_prompt_process_starts_ordinary_ones(granted: int) -> None:
    """An agent stays prompt while the training process that it starts is not."""
    try:
        assert be_prompt()
        with starting(prompt=False):
            assert in_child() == granted
        assert slice_ns() == SLICE_NS
    finally:
        with starting(prompt=False):
            pass
        promptness._ask_for(0)


def test_an_unknown_machine_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the call's number is not known, nothing is asked for."""
    monkeypatch.setattr(platform, "machine", lambda: "abacus")

    assert not be_prompt()
    assert slice_ns() == 0
    with starting(prompt=True):
        pass
