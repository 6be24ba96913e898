"""What an agent starts: its training process and probes. Nothing of it outlives the agent.

What belongs here: one operating-system process and its descendants. What its end means, and what
it says, does not.

Theory of operation.
- A child stays in the agent's process group: a node is one group, killable alone.
- It dies with its agent: a tiny launcher sets the parent-death signal before it becomes the
  command. Setting it between fork and exec would run Python in a forked copy of a process that has
  threads (gRPC's); the launcher costs about 10 ms and no such risk.
- Its end is noticed through a pidfd, in the event loop, within a millisecond; that a training
  process is being killed is noticed before, by a tripwire.
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
from typing import IO, Final, Self

import msgspec
import psutil

from controlplane.eventlog.promptness import starting
from worker.channel import FD_VARIABLE, AgentChannel, open_pair
from worker.tripwire import Tripwire

MARK_VARIABLE: Final = "CHANGEOVER_STARTED_BY"
"""Environment variable by which descendants of a training process are known."""

_PR_SET_CHILD_SUBREAPER: Final = 36
_NICEST: Final = 19

_LAUNCHER: Final = """
import ctypes, os, sys
parent, niceness, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != int(parent):
    sys.exit(1)
os.nice(int(niceness))
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"cannot start {command[0]}: {error.strerror}")
"""

_REAP_AFTER_S: Final = 0.5
HEADER: Final = "--- "
"""With what the line begins that an agent writes before the output of a training process."""

_TAIL_BYTES: Final = 4096
_LINE_MAX: Final = 300

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


def yield_processor(pid: int) -> None:
    """Let everything else run before a process that is ending: the kernel takes its memory down in
    its name, which takes long, and nobody waits for it.
    """
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # that thread has ended
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICEST)


def why_it_ended(ended: Exit, log_path: Path) -> str:
    """How a training process ended, for whoever is not on its machine: of one that failed by
    itself with the last line that it wrote, which is the exception where there was one.
    """
    said = f"the training process ended ({ended})"
    return f"{said}: {_last_line(log_path)}" if ended.code else said


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(-min(_TAIL_BYTES, path.stat().st_size), os.SEEK_END)
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        return f"its log cannot be read: {error.strerror}"
    said = [" ".join(line.split()) for line in lines if line.strip()]
    if not said or said[-1].startswith(HEADER):
        return "it wrote nothing"
    return said[-1][:_LINE_MAX]


def _reap(pids: Sequence[int]) -> None:
    """Collect those of ended processes that became children of this one."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


class Child:
    """One running child. Made by `start`; `wait` may be awaited by many."""

    def __init__(self, popen: subprocess.Popen[bytes], mark: str) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._mark = mark
        self._exit: Exit | None = None
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(popen.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        stdout: IO[bytes],
        stderr: IO[bytes],
        environment: Mapping[str, str] | None = None,
        pass_fds: tuple[int, ...] = (),
        niceness: int = 0,
    ) -> Self:
        """Start `command` in this process's group, `niceness` nicer than this process.

        Call it on the main thread: the child dies with the *thread* that started it. A command
        that cannot be started shows as a child that ends with code 1 and says so on `stderr`.

        Raises:
            OSError: no process can be made.
        """
        mark = f"{os.getpid()}.{next(_serial)}"
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {}), MARK_VARIABLE: mark}
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(niceness)]
        with starting(prompt=False):
            popen = subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=env,
                pass_fds=pass_fds,
            )
        return cls(popen, mark)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        returned = self._popen.wait()  # it has ended: this only collects it
        self._exit = Exit(signal=-returned) if returned < 0 else Exit(code=returned)
        self._ended.set()
        asyncio.get_running_loop().call_soon(self._kill_descendants)  # after the news: it is slow

    @property
    def exit(self) -> Exit | None:
        """How it ended; None while it runs."""
        return self._exit

    async def wait(self) -> Exit:
        """Wait for its end."""
        await self._ended.wait()
        assert self._exit is not None
        return self._exit

    def kill(self) -> None:
        """End it and its descendants now (SIGKILL); nothing if it has ended."""
        if self._exit is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # not yet collected, so the id is still its own
            self._kill_descendants()

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
        """Wait up to `grace_s` seconds for its end, then end it.

        Whoever asked it to end did so before.
        """
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            self.kill()
        return await self.wait()


class TrainingProcess:
    """A training process: a child, and the channel to it. Made by `start`."""

    def __init__(self, child: Child, channel: AgentChannel, tripwire: Tripwire) -> None:
        self.child = child
        self.channel = channel
        self._tripwire = tripwire
        self._armed = False
        self._fate: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> TrainingProcess:
        """Start `command` with a channel to this process; its output is appended to `log_path`.

        Raises:
            OSError: the log cannot be opened, or no process can be made.
        """
        channel, theirs = await open_pair()
        tripwire = Tripwire()
        number = theirs.fileno()
        passed = {FD_VARIABLE: str(number), **tripwire.environment}
        try:
            with theirs, log_path.open("ab") as output:
                child = Child.start(
                    command,
                    stdout=output,
                    stderr=output,
                    environment={**(environment or {}), **passed},
                    pass_fds=tuple(fd for fd in (number, tripwire.fd) if fd is not None),
                )
        except BaseException:
            channel.close()
            raise
        finally:
            tripwire.close_fd()
        return cls(child, channel, tripwire)

    @property
    def reached(self) -> int:
        """The last step that it committed, which is known after its end, too; -1: none."""
        return self._tripwire.reached

    def arm(self) -> None:
        """Watch for a violent end from now on; call it once the process has spoken."""
        if self._armed:
            return
        loop = asyncio.get_running_loop()

        def tell(status: int) -> None:
            loop.call_soon_threadsafe(self._doomed, status)

        self._armed = self._tripwire.watch(self.child.pid, tell)

    def _doomed(self, status: int) -> None:
        yield_processor(self.child.pid)
        if not self._fate.done():
            code = os.waitstatus_to_exitcode(status)
            self._fate.set_result(Exit(signal=-code) if code < 0 else Exit(code=code))

    async def ending(self) -> Exit:
        """Wait until it is known how it ends: while it is being killed, or once it has ended."""
        ended = asyncio.ensure_future(self.child.wait())
        try:
            await asyncio.wait({ended, self._fate}, return_when=asyncio.FIRST_COMPLETED)
            return self._fate.result() if self._fate.done() else ended.result()
        finally:
            ended.cancel()
