"""What asks before harm asks on a real terminal, and what is not answered with yes does nothing."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.integration.controlplane.conftest import ROOT, WAIT_S, Controllers, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.etcd

SEATED = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, '-m', 'controlplane', *sys.argv[1:]])"
)
"""A process with a terminal of its own, which is what turns Ctrl-C into an interrupt."""

HARMFUL = [
    ("drain", "n0"),
    ("release", "n0", "--force", "--reason", "mended"),
    ("policy", "set", "loss_grace_s=2"),
]


class Terminal:
    """A command at a terminal: what it showed, and what somebody types."""

    def __init__(self, environment: Mapping[str, str], *arguments: str) -> None:
        self._mine, theirs = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SEATED, *arguments],
            env=environment,
            cwd=ROOT,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.shown = ""

    def until(self, words: str) -> None:
        """Read on until something was shown."""
        give_up_at = time.monotonic() + WAIT_S
        while words not in self.shown:
            left_s = give_up_at - time.monotonic()
            assert left_s > 0, f"never shown: {words!r}; shown:\n{self.shown}"
            if select.select([self._mine], [], [], left_s)[0] and not self._read():
                raise AssertionError(f"ended without {words!r}; shown:\n{self.shown}")

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._mine, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C, and again as anybody would: one that comes between the question and the
        read that follows is noticed with the next key.
        """
        give_up_at = time.monotonic() + WAIT_S
        while self.process.poll() is None:
            assert time.monotonic() < give_up_at, f"not interrupted; shown:\n{self.shown}"
            self.type("\x03")
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        """End it if it still runs."""
        self.process.kill()
        self.process.wait()
        os.close(self._mine)

    def _read(self) -> bool:
        try:
            came = os.read(self._mine, 4096)
        except OSError:  # the other end is closed
            return False
        self.shown += came.decode("utf-8", "replace")
        return bool(came)


@pytest.fixture
def asked(environment: dict[str, str]) -> Iterator[list[Terminal]]:
    """Terminals of this test."""
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.close()


def at(asked: list[Terminal], environment: dict[str, str], *arguments: str) -> Terminal:
    """Start a command at a terminal, and wait for its question."""
    terminal = Terminal(environment, *arguments)
    asked.append(terminal)
    terminal.until("[y/N]")
    return terminal


@pytest.mark.parametrize("verb", HARMFUL, ids=lambda verb: " ".join(verb[:2]))
def test_no_is_no(
    environment: dict[str, str], asked: list[Terminal], run: Run, verb: tuple[str, ...]
) -> None:
    """Each verb that harms asks; after No it exits with 130, and nothing was stated."""
    terminal = at(asked, environment, *verb)
    terminal.type("n\r")

    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown
    assert stated(run) == 0


def test_ctrl_c_at_a_question_is_no(
    environment: dict[str, str], asked: list[Terminal], run: Run
) -> None:
    """An interrupt ends it in silence, with 130, and nothing was stated."""
    terminal = at(asked, environment, "pause")
    terminal.interrupt()

    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown
    assert stated(run) == 0


def test_an_empty_answer_is_no_and_yes_is_yes(
    environment: dict[str, str], asked: list[Terminal], run: Run, controllers: Controllers
) -> None:
    """Return alone takes the default, which is not to; y does it, and says where it stands."""
    controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    terminal = at(asked, environment, "pause", "--as", "ada")
    terminal.type("\r")
    assert terminal.end() == 130
    assert "PAUSED" not in run("status").stdout

    terminal = at(asked, environment, "pause", "--as", "ada")
    terminal.type("y\r")
    assert terminal.end() == 0
    assert "at position" in terminal.shown
    assert "PAUSED by ada" in run("status").stdout


def test_yes_and_a_script_are_not_asked(
    environment: dict[str, str], asked: list[Terminal], run: Run
) -> None:
    """--yes at a terminal, or no terminal at all: the act is stated."""
    terminal = Terminal(environment, "pause", "--yes")
    asked.append(terminal)
    assert terminal.end() == 0
    assert "[y/N]" not in terminal.shown
    assert run("resume").returncode == 0
    assert stated(run) == 2


def stated(run: Run) -> int:
    """Facts that wait for a controller."""
    done = run("log", "stats", "--json")
    assert done.returncode == 0, done.stderr
    waiting = done.stdout.partition('"waiting_facts": ')[2].partition(",")[0]
    return int(waiting)
