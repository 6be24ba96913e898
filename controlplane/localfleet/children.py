"""Processes that we start: each the head of a session of its own, and none outlives us.

What belongs here: one process with all its descendants, started, looked at and ended. Groups of
them: `fleet`.

Rule: a child is ended together with its process group and with whatever it started outside of that
group (`torchrun` gives each worker a session of its own); who they are is read before the kill.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import psutil

TETHER: Final = Path(__file__).with_name("tether.py")

_LOOK_S: Final = 0.02


def tethered(parent: int, command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` until `parent` ends; 0 stands for any parent."""
    return [sys.executable, "-I", "-S", str(TETHER), str(parent), *command]


class Child:
    """One program that we started. Call `started` on the main thread: the tether is tied to it."""

    def __init__(self, name: str, log_path: Path, running: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.log_path = log_path
        self._running = running

    @classmethod
    def started(
        cls,
        name: str,
        command: Sequence[str],
        log_path: Path,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a program with its output appended to `log_path`."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            running = subprocess.Popen(
                tethered(os.getpid(), command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        return cls(name, log_path, running)

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its process group."""
        return self._running.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code; negative: the signal that ended it; None while it runs."""
        return self._running.poll()

    def last_words(self) -> str:
        """The last line that it wrote, for an error in one line."""
        return last_line(self.log_path)

    async def ended(self) -> int:
        """Wait for its end; return the exit code."""
        while (code := self._running.poll()) is None:  # noqa: ASYNC110 - no event to wait for
            await anyio.sleep(_LOOK_S)
        return code

    def kill_group(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to its process group, as a machine that loses power would get it."""
        with suppress(ProcessLookupError):
            os.killpg(self._running.pid, number)

    async def stop(self, grace_s: float) -> None:
        """End it in order, then, after `grace_s` seconds, by force with everything below it."""
        family = _descendants(self._running.pid)
        if self._running.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._running.pid, signal.SIGTERM)
            with anyio.move_on_after(grace_s):
                await self.ended()
            family |= _descendants(self._running.pid)
        self.kill_group()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with anyio.move_on_after(grace_s + 1), suppress(ProcessLookupError):
            await self.ended()


def last_line(path: Path) -> str:
    """The last line of a log that says something, cut to one that fits into an error."""
    with suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        for line in reversed(lines):
            if line.strip():
                return line.strip()[:300]
    return "it wrote nothing"


def _descendants(pid: int) -> set[psutil.Process]:
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()
