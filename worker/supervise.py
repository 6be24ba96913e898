"""The training process of a node: started, watched, ended. Nothing of it outlives its agent.

What belongs here: one operating-system process and its descendants. What its end means, and what
it says, does not.

Theory of operation.
- The process stays in the agent's process group: a node is one group, killable alone.
- It dies with its agent: a tiny launcher sets the parent-death signal before it becomes the
  training process. Setting it between fork and exec would run Python in a forked copy of a process
  that has threads (gRPC's); the launcher costs about 10 ms and no such risk.
- Its end is noticed through a pidfd, in the event loop, within a millisecond.
- What it started (data loaders) carries a mark in its environment and is ended with it, orphans
  included: the agent adopts them (`adopt_orphans`) and finds them by the mark.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import psutil

from worker.channel import FD_VARIABLE, AgentChannel, open_pair

MARK_VARIABLE: Final = "CHANGEOVER_STARTED_BY"
"""Environment variable by which descendants of a training process are known."""

_PR_SET_CHILD_SUBREAPER: Final = 36

_LAUNCHER: Final = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot start {sys.argv[2]}: {error.strerror}")
"""

_REAP_AFTER_S: Final = 0.5

_serial = itertools.count(1)


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: with a code, or by a signal; the other one is None."""

    code: int | None = None
    signal: int | None = None

    @property
    def is_clean(self) -> bool:
        """Whether it ended of itself and reports success."""
        return self.code == 0

    def __str__(self) -> str:
        """Say it as a person would."""
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


def adopt_orphans() -> None:
    """Make this process the parent of every orphan among its descendants (PR_SET_CHILD_SUBREAPER).

    Call it once, early, in a process whose children nobody else waits for by "any child".
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _reap(pids: Sequence[int]) -> None:
    """Collect those of ended processes that became children of this one."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


class TrainingProcess:
    """One running training process. Made by `start`; `wait` may be awaited by many."""

    def __init__(self, popen: subprocess.Popen[bytes], channel: AgentChannel, mark: str) -> None:
        self.channel = channel
        self.pid = popen.pid
        self._popen = popen
        self._mark = mark
        self._exit: Exit | None = None
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(popen.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> TrainingProcess:
        """Start `command` with a channel to this process; its output is appended to `log_path`.

        Call it on the main thread: the process dies with the *thread* that started it. A command
        that cannot be started shows as a process that ends with code 1 and says so in its log.

        Raises:
            OSError: the log cannot be opened, or no process can be made.
        """
        channel, theirs = await open_pair()
        mark = f"{os.getpid()}.{next(_serial)}"
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        env[FD_VARIABLE] = str(theirs.fileno())
        env[MARK_VARIABLE] = mark
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
        try:
            with theirs, log_path.open("ab") as output:
                popen = subprocess.Popen(  # noqa: ASYNC220 - returns once the launcher runs
                    launcher,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=env,
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            channel.close()
            raise
        return cls(popen, channel, mark)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        returned = self._popen.wait()  # it has ended: this only collects it
        self._exit = Exit(signal=-returned) if returned < 0 else Exit(code=returned)
        self._kill_descendants()
        self._ended.set()

    @property
    def exit(self) -> Exit | None:
        """How it ended; None while it runs."""
        return self._exit

    async def wait(self) -> Exit:
        """Wait for its end."""
        await self._ended.wait()
        assert self._exit is not None
        return self._exit

    def terminate(self) -> None:
        """Ask it to end (SIGTERM); nothing if it has."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and its descendants now (SIGKILL); nothing if it has ended."""
        if self._exit is None:
            self._signal(signal.SIGKILL)
            self._kill_descendants()

    def _signal(self, number: signal.Signals) -> None:
        if self._exit is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)  # not yet waited for, so the id is still its own

    def _kill_descendants(self) -> None:
        """End what it started, wherever it hangs in the tree of this process."""
        killed = []
        for child in psutil.Process().children(recursive=True):
            if child.pid == self.pid:
                continue
            with suppress(psutil.Error):
                if child.environ().get(MARK_VARIABLE) == self._mark:
                    child.kill()
                    killed.append(child.pid)
        if killed:
            asyncio.get_running_loop().call_later(_REAP_AFTER_S, _reap, killed)

    async def stop(self, grace_s: float) -> Exit:
        """Wait up to `grace_s` seconds for its end, then end it; its channel is closed.

        Whoever asked it to end did so before.
        """
        try:
            async with asyncio.timeout(grace_s):
                await self.wait()
        except TimeoutError:
            self.kill()
        ended = await self.wait()
        self.channel.close()
        return ended
