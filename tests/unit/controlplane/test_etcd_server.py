"""One etcd of our own: it starts, keeps what it was told, and never outlives us."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from controlplane.etcd_binary import EtcdBinary
from controlplane.etcd_server import EtcdServer, EtcdServerError, PortTaken
from controlplane.eventlog import open_store
from controlplane.eventlog.store import Put

pytestmark = pytest.mark.etcd


@contextmanager
def listening() -> Iterator[int]:
    """A port of loopback that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield int(taken.getsockname()[1])


def is_gone(pid: int) -> bool:
    """Whether a process has ended, within five seconds."""
    give_up_at = time.monotonic() + 5
    while time.monotonic() < give_up_at:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


async def test_it_serves_and_ends(etcd_binary: EtcdBinary, tmp_path: Path) -> None:
    """Inside its block a server answers on loopback; after it, its process is gone."""
    async with EtcdServer(etcd_binary, tmp_path) as server:
        pid = server.pid
        store = await open_store(server.url)
        written = await store.txn((), (Put(b"a", b"1"),))
        await store.aclose()

    assert written.succeeded
    assert is_gone(pid)
    assert server.pid == 0
    await server.stop()


async def test_a_kill_loses_no_write(own_etcd: EtcdServer) -> None:
    """What was acknowledged before a kill -9 is there after the restart, at the same address."""
    url = own_etcd.url
    store = await open_store(url)
    for number in range(50):
        await store.txn((), (Put(b"k%d" % number, b""),))
    own_etcd.kill()

    await own_etcd.start()

    assert own_etcd.url == url
    assert len((await store.range(b"k", b"l")).kvs) == 50
    await store.aclose()


async def test_a_taken_port_is_one_line(etcd_binary: EtcdBinary, tmp_path: Path) -> None:
    """A port in use is reported before anything is started: which, and what to do."""
    with listening() as port:
        server = EtcdServer(etcd_binary, tmp_path / "etcd", port=port)
        with pytest.raises(PortTaken, match=f"port {port} .* name another port") as caught:
            await server.start()

    assert "\n" not in str(caught.value)
    assert not (tmp_path / "etcd").exists()


async def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    """A program that ends at once is reported with its exit code and its last words."""
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 7\n")
    program.chmod(0o755)
    server = EtcdServer(EtcdBinary(program, "3.5.16"), tmp_path / "folder")

    with pytest.raises(EtcdServerError, match="ended with code 7: no such luck"):
        await server.start()

    assert server.pid == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_it_dies_with_its_parent(etcd_binary: EtcdBinary, tmp_path: Path) -> None:
    """A server whose parent is killed with SIGKILL is gone at once."""
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from controlplane.etcd_binary import EtcdBinary\n"
        "from controlplane.etcd_server import EtcdServer\n"
        "server = EtcdServer(EtcdBinary(Path(sys.argv[1]), ''), Path(sys.argv[2]))\n"
        "server.start_blocking()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(etcd_binary.path), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()

        assert is_gone(pid)


async def test_a_frozen_server_can_be_stopped(etcd_binary: EtcdBinary, tmp_path: Path) -> None:
    """Stopping a server that was frozen ends it all the same."""
    async with EtcdServer(etcd_binary, tmp_path) as server:
        pid = server.pid
        server.pause()

    assert is_gone(pid)
