"""Controllers as processes of their own, on a real etcd."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from controlplane.etcd_server import EtcdServer

ROOT = Path(__file__).parents[3]
WAIT_S = 20.0


class Run(Protocol):
    """Runs a command line of `changeover` to its end."""

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]: ...


class Controllers:
    """Starts controllers and ends them, kindly or not."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *more: str) -> subprocess.Popen[bytes]:
        """Start a controller; it is campaigning when this returns."""
        command = [sys.executable, "-m", "controlplane", "controller", "--name", name]
        command += ["--leader-ttl-s", "1", *more]
        with (self._folder / f"{name}.log").open("wb") as sink:
            process = subprocess.Popen(command, env=self._environment, cwd=ROOT, stderr=sink)
        self._running[name] = process
        self.wait_for(name, "campaigning")
        return process

    def said(self, name: str) -> str:
        """What a controller wrote to stderr so far."""
        return (self._folder / f"{name}.log").read_text("utf-8")

    def wait_for(self, name: str, words: str) -> float:
        """Wait until a controller said something; return when that was seen, monotonic s."""
        give_up_at = time.monotonic() + WAIT_S
        while words not in self.said(name):
            assert time.monotonic() < give_up_at, f"{name} never said {words!r}:\n{self.said(name)}"
            time.sleep(0.01)
        return time.monotonic()

    def stop_all(self) -> None:
        """End whatever still runs."""
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(5)


@pytest.fixture
def environment(etcd: EtcdServer, fleet: str) -> dict[str, str]:
    """The environment in which commands find this test's fleet."""
    return os.environ | {"CHANGEOVER_ETCD": etcd.url, "CHANGEOVER_FLEET": fleet}


@pytest.fixture
def controllers(environment: dict[str, str], tmp_path: Path) -> Iterator[Controllers]:
    """Controllers of this test's fleet."""
    made = Controllers(environment, tmp_path)
    yield made
    made.stop_all()


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Runs `changeover` on this test's fleet."""

    def run_to_end(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "controlplane", *arguments],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    return run_to_end
