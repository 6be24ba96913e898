"""At a terminal of forty columns: what is watched is readable, and Ctrl-C ends it in good order.

The terminal is a real one (a pty that controls the command), and Ctrl-C is the key.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest
from msgspec import Struct

from tests.integration.controlplane.test_operating import DEMO, ROOT, offline, running

if TYPE_CHECKING:
    from controlplane.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd

WAIT_S: Final = 30.0
COLUMNS: Final = 40
CLEAR: Final = "\x1b[2J\x1b[1;1H"

TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""

WATCHED = {
    ("status", "--watch"): ("fleet still", "slot", "dp=4", "vacant", "standbys: n2"),
    ("nodes", "--watch"): ("node", "verdict", "n0/1", "n4/1"),
    ("history", "--watch"): ("loss", "grey", "useful", "standbys idled"),
    ("explain", "n1", "--watch"): ("what", "why", "from the log", "NodeLost"),
    ("topology", "show", "--watch"): ("slot", "coordinates", "dp=3"),
    ("log", "tail", "-f"): ("StepResumed", "JobFinished"),
}
"""Every verb that goes on until Ctrl-C -> words of its first picture."""


class AtTerminal(Struct):
    """A command that runs at a terminal."""

    process: subprocess.Popen[bytes]
    screen: int
    said: str = ""

    def until(self, *words: str) -> None:
        """Read until the words are there."""
        give_up_at = time.monotonic() + WAIT_S
        while missing := [word for word in words if word not in self.said]:
            left_s = give_up_at - time.monotonic()
            ready, _, _ = select.select([self.screen], [], [], max(0.0, left_s))
            piece = self._read() if ready else ""
            assert piece, f"{missing} never came:\n{self.said}"
            self.said += piece

    def end(self) -> int:
        """Wait for its end, and read what is left; the exit code."""
        code = self.process.wait(WAIT_S)
        while select.select([self.screen], [], [], 0)[0] and (piece := self._read()):
            self.said += piece
        return code

    def _read(self) -> str:
        try:
            return os.read(self.screen, 65536).decode()
        except OSError:  # nobody holds the other side any more
            return ""


@contextlib.contextmanager
def at_terminal(*command: str) -> Iterator[AtTerminal]:
    """Run `changeover` at a terminal of its own."""
    screen, keyboard = os.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    before = termios.tcgetattr(keyboard)
    line = [sys.executable, "-c", TAKE_TERMINAL, sys.executable, "-m", "controlplane", *command]
    process = subprocess.Popen(
        line, stdin=keyboard, stdout=keyboard, stderr=keyboard, cwd=ROOT, start_new_session=True
    )
    try:
        yield AtTerminal(process, screen)
        assert termios.tcgetattr(keyboard) == before, "the terminal is not as it was"
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)
        os.close(screen)


@pytest.fixture(scope="module")
def place(etcd: EtcdServer) -> tuple[str, ...]:
    """Where a fleet is that has the log of a demo, as options."""
    fleet = f"still-narrow-{os.getpid()}"
    running(etcd, fleet)
    return ("--etcd", etcd.url, "--fleet", fleet)


@pytest.mark.parametrize("words", WATCHED, ids=" ".join)
def test_ctrl_c_ends_what_is_watched(place: tuple[str, ...], words: tuple[str, ...]) -> None:
    """130, no traceback, and the terminal as it was; before that, all of a picture is there."""
    with at_terminal(*words, *place) as at:
        at.until(*WATCHED[words])
        os.write(at.screen, b"\x03")
        at.until("^C")
        assert at.end() == 130, at.said

    assert "Traceback" not in at.said
    assert "\x1b" not in at.said.replace(CLEAR, ""), "only ever cleared"


def test_forty_columns_cut_nothing_off() -> None:
    """A log reads at a narrow terminal as in a file: lines are the terminal's to fold."""
    with at_terminal("timeline", str(DEMO)) as at:
        at.until("standbys idled", "beside that")
        assert at.end() == 0

    assert at.said.replace("\r\n", "\n") == offline("timeline", str(DEMO)).stdout


def test_a_doctor_is_read_in_forty_columns(place: tuple[str, ...]) -> None:
    """Each finding begins its line, each cure has an arrow; bad is 1."""
    with at_terminal("doctor", *place) as at:
        at.until("standbys", "-> start one")
        assert at.end() == 1, at.said

    found = re.findall(r"^(good|bad|warning|unknown) +\S", at.said, re.MULTILINE)
    assert len(found) >= 8, at.said
    assert "\x1b" not in at.said
