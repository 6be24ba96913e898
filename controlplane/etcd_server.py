"""One etcd server of our own, on loopback, that never outlives us.

What belongs here: starting, health, and ending of one server process. Where the program comes from
is `etcd_binary`. As a command, `python -m controlplane.etcd_server --fetch DIR` brings one.

Theory of operation. The server runs in a session of its own, so that Ctrl-C at the terminal reaches
us first and training can end in order; the kernel kills it if we die without a chance to. That
request is tied to the thread which starts it, hence `spawn` belongs on the main thread. Heartbeat
and election of a lone server are short, because it needs to convince nobody: it starts in 0.2 s.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, Self

import anyio
import anyio.to_thread

from controlplane.etcd_binary import EtcdBinary, EtcdMissing, default_folder, ensure_etcd
from controlplane.eventlog.promptness import starting
from controlplane.eventlog.versions import parse_version

START_S: Final = 10.0
"""Seconds a server may take until it answers."""

_STOP_S: Final = 3.0
_LOOK_S: Final = 0.2
_LOOPBACK: Final = "127.0.0.1"
_SKIPS_SYNC: Final = (3, 5, 0)

# Runs in a fresh interpreter: die with the parent, then become the server. PR_SET_PDEATHSIG is 1.
_DIE_WITH_PARENT: Final = """
import ctypes, os, signal, sys
parent, program = int(sys.argv[1]), sys.argv[2]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
os.execv(program, sys.argv[2:])
"""


class EtcdServerError(Exception):
    """A server did not start. The message is fit for an operator."""


class PortTaken(EtcdServerError):
    """The port that was asked for is in use."""


def free_port() -> int:
    """Return a port of loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError as error:
            msg = (
                f"port {port} of {_LOOPBACK} cannot be used for etcd ({error.strerror}): "
                "stop whoever has it, or name another port"
            )
            raise PortTaken(msg) from error


class EtcdServer:
    """One server on loopback. `async with EtcdServer(...) as server: server.url`.

    Ports of 0 are chosen; `quota_bytes` of 0 is etcd's default. `certificates` is a folder with
    `ca.pem`, `server.pem` and `server.key`: clients must then show one that the authority signed.
    `peers`, for a cluster, names each member's peer port, that of `name` among them. Without
    `durable` nothing waits for the disk: a killed server still loses nothing, a power cut may.
    """

    def __init__(
        self,
        binary: EtcdBinary,
        folder: Path,
        *,
        port: int = 0,
        peer_port: int = 0,
        quota_bytes: int = 0,
        certificates: Path | None = None,
        name: str = "changeover",
        peers: Mapping[str, int] | None = None,
        durable: bool = True,
    ) -> None:
        self.binary = binary
        self.folder = folder
        self.log_path = folder / "etcd.log"
        self._name, self._peers = name, dict(peers or {})
        self._asked = (port, self._peers.get(name, peer_port))
        self._port, self._peer_port = self._asked
        self._health_port = 0  # apart from the clients' port, so that no certificate is needed
        self._quota_bytes = quota_bytes
        self._certificates = certificates
        self._durable = durable
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"{'https' if self._certificates else 'http'}://{_LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        """Process id, which is also that of its process group; 0 while it does not run."""
        return self._running.pid if self._running else 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.stop()

    async def start(self) -> None:
        """Start the server, on the same ports as before if it ran before, and wait for health.

        Raises:
            PortTaken: a port that was asked for is in use.
            EtcdServerError: it ended, or did not answer in time; says what its log says.
        """
        self.spawn()
        try:
            await self.wait_healthy()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise

    async def wait_healthy(self) -> None:
        """Return once a linearizable read works. Raises EtcdServerError."""
        await anyio.to_thread.run_sync(self._wait_healthy, abandon_on_cancel=True)

    def start_blocking(self) -> None:
        """Do what `start` does where no event loop can help."""
        self.spawn()
        try:
            self._wait_healthy()
        except BaseException:
            self.stop_blocking()
            raise

    def spawn(self) -> None:
        """Start the process and return at once. Call it on the main thread."""
        for asked in filter(None, self._asked):
            _check_port(asked)
        self._port = self._port or free_port()
        self._peer_port = self._peer_port or free_port()
        self._health_port = free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log, starting(prompt=True):
            wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
            self._running = subprocess.Popen(
                [*wrapper, *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        peers = self._peers or {self._name: self._peer_port}
        urls = {name: f"http://{_LOOPBACK}:{port}" for name, port in peers.items()}
        peer_url = urls[self._name]
        heartbeat_ms, election_ms = ("100", "1000") if len(peers) > 1 else ("20", "200")
        command = [
            *(str(self.binary.path), "--name", self._name),
            *("--data-dir", str(self.folder / "etcd-data")),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", ",".join(f"{name}={url}" for name, url in urls.items())),
            *("--listen-metrics-urls", f"http://{_LOOPBACK}:{self._health_port}"),
            *("--heartbeat-interval", heartbeat_ms, "--election-timeout", election_ms),
            *("--auto-compaction-mode", "revision", "--auto-compaction-retention", "10000"),
            *("--logger", "zap", "--log-level", "warn"),
        ]
        if not self._durable and parse_version(self.binary.version) >= _SKIPS_SYNC:
            command += ["--unsafe-no-fsync"]
        if self._quota_bytes:
            command += ["--quota-backend-bytes", str(self._quota_bytes)]
        if self._certificates:
            command += [
                "--client-cert-auth",
                "--trusted-ca-file",
                str(self._certificates / "ca.pem"),
            ]
            command += ["--cert-file", str(self._certificates / "server.pem")]
            command += ["--key-file", str(self._certificates / "server.key")]
        return command

    def _wait_healthy(self) -> None:
        give_up_at = time.monotonic() + START_S
        while not self.is_healthy():
            code = self._running.poll() if self._running else 0
            if code is not None:
                msg = f"etcd ended with code {code}: {self._last_words()}"
                raise EtcdServerError(msg)
            if time.monotonic() >= give_up_at:
                msg = f"etcd did not answer within {START_S:g} s: {self._last_words()}"
                raise EtcdServerError(msg)
            time.sleep(0.02)

    def is_healthy(self) -> bool:
        """Ask whether a linearizable read works; blocks for a second at most."""
        asking = http.client.HTTPConnection(_LOOPBACK, self._health_port, timeout=1)
        try:
            asking.request("GET", "/health")
            return b'"health":"true"' in asking.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            asking.close()

    def _last_words(self) -> str:
        try:
            lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        last = lines[-1][:300] if lines else "it wrote nothing"
        return f"{last} (log: {self.log_path})"

    async def watch(self) -> NoReturn:
        """Watch over the server until cancelled.

        Raises:
            EtcdServerError: it ended, and nobody here had asked it to.
        """
        while self._running is None or self._running.poll() is None:  # noqa: ASYNC110 (a child)
            await anyio.sleep(_LOOK_S)
        code = self._running.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        msg = f"etcd ended while it was in use ({how}); its last words: {self._last_words()}"
        raise EtcdServerError(msg)

    async def stop(self) -> None:
        """End the server in order, then by force; idempotent."""
        await anyio.to_thread.run_sync(self.stop_blocking)

    def stop_blocking(self) -> None:
        """Do what `stop` does where no event loop can help."""
        if self._running is None:
            return
        self.resume()
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._running.wait(_STOP_S)
        self.kill()

    def kill(self) -> None:
        """End the server at once, as a power cut would; `start` brings it back with its data."""
        if self._running is not None:
            self._signal(signal.SIGKILL)
            self._running.wait()
            self._running = None

    def pause(self) -> None:
        """Freeze the server: its connections stay, it answers nothing. Returns once it is."""
        self._signal(signal.SIGSTOP)
        if self._running is not None:  # a busy machine takes a while to stop the last thread
            os.waitid(os.P_PID, self._running.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a frozen server go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._running is not None and self._running.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._running.pid, number)


def main(arguments: list[str] | None = None) -> int:
    """Bring an etcd into a folder unless one is at hand; print one line about it."""
    parser = argparse.ArgumentParser(
        prog="python -m controlplane.etcd_server", description=main.__doc__
    )
    parser.add_argument(
        "--fetch", metavar="DIR", type=Path, default=default_folder(), help="the folder"
    )
    options = parser.parse_args(arguments)
    try:
        binary = ensure_etcd(options.fetch)
    except EtcdMissing as missing:
        print(f"etcd: {missing}", file=sys.stderr)
        return 1
    warning = f" (warning: {binary.warning})" if binary.warning else ""
    print(f"etcd {binary.version}: {binary.path}{warning}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
