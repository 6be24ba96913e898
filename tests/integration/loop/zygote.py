"""Starts training processes by forking one that has torch loaded: 30 ms each instead of seconds.

What it forks are processes of their own in every respect: a session, a signal's target, a log.
Nothing is computed before the fork, so that no thread of torch is lost in it.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_CLONE_NEWNET = 0x40000000
EXAMPLES = ROOT / "examples"


class Forked:
    """A training process, known by a descriptor that no reuse of its number can mislead."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    @property
    def running(self) -> bool:
        """Whether it has not ended; a stopped process runs in this sense."""
        return not select.select([self._pidfd], [], [], 0)[0]

    def signal(self, number: int) -> None:
        """Send a signal to it and nobody else; nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    async def wait(self) -> None:
        """Wait for its end."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._pidfd)

    def close(self) -> None:
        """Forget it."""
        os.close(self._pidfd)


class Zygote:
    """The process that forks. Close it when the last test is over."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock = ours
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(number)],
                pass_fds=(number,),
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{EXAMPLES}"},
            )
        self._sock.settimeout(180.0)
        assert self._sock.recv(16) == b"loaded", "the zygote did not load"

    def fork(
        self,
        script: Path,
        arguments: Sequence[str],
        environment: dict[str, str],
        log: Path,
        fd: int,
        *,
        namespace: str = "",
    ) -> Forked:
        """Run `script` in a fork; `fd` keeps its number's meaning under CHANGEOVER_AGENT_FD.

        `namespace` is the file of a network namespace to run in.
        """
        order = {
            "script": str(script),
            "arguments": list(arguments),
            "environment": environment,
            "log": str(log),
            "namespace": namespace,
        }
        socket.send_fds(self._sock, [json.dumps(order).encode()], [fd])
        return Forked(int(self._sock.recv(16)))

    def close(self) -> None:
        """End it; what it forked goes on."""
        self._sock.close()
        self._process.kill()
        self._process.wait()


def _serve(sock: socket.socket) -> None:
    import torch._dynamo  # what optimizers load at their first use
    import torch.nn.parallel  # noqa: F401

    import worker.loop  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # collects them
    sock.send(b"loaded")
    while True:
        raw, fds, _, _ = socket.recv_fds(sock, 65536, 1)
        if not raw:
            return
        pid = os.fork()
        if not pid:
            sock.close()
            _become(json.loads(raw), fds[0])
        os.close(fds[0])
        sock.send(str(pid).encode())


def _enter(namespace: str) -> None:
    """Move this process into a network namespace (setns; the standard library has it from 3.12)."""
    entered = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None, use_errno=True).setns(entered, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(entered)


def _become(order: dict[str, Any], fd: int) -> None:
    """Be the training process, to its end."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        output = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if order["namespace"]:
            _enter(order["namespace"])
        os.environ.update(order["environment"], CHANGEOVER_AGENT_FD=str(fd))
        sys.argv = [order["script"], *order["arguments"]]
        sys.path[0] = str(Path(order["script"]).parent)
        runpy.run_path(order["script"], run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
        sys.excepthook(*sys.exc_info())  # as the interpreter would
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
