"""A controller with everything that tells others, as a process of its own on a real etcd.

Its settings are a file as docs/operate/hooks.md has it; what it tells is seen from outside: a
program that was run, a scheduler's command line, a scrape, a heartbeat, and its own lines.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Struct

from tests.integration.controlplane.test_operating import ROOT, Run, running

if TYPE_CHECKING:
    from controlplane.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd

WAIT_S = 20.0

SETTINGS = """
[fleet]
name = "{fleet}"
[etcd]
url = "{etcd}"
[log]
form = "json"
[web]
listen = "127.0.0.1:0"

[[hooks]]
name = "ticket"
on = ["NodeQuarantined"]
exec = ["sh", "-c", "cat > {folder}/ticket.part && mv {folder}/ticket.part {folder}/ticket"]
body = '{{{{ fleet }}}} {{{{ node }}}}: {{{{ reason }}}}'

[heartbeat]
url = "{heartbeat}"
every_s = 0.2

[provisioner]
kind = "exec"
machine = "m-{{node}}"
cordon = ["sh", "-c", "echo $0 $1 > {folder}/cordon", "{{machine}}", "{{reason}}"]
uncordon = ["true"]
"""


class Controller(Struct):
    """A controller at work, and where it tells what."""

    run: Run
    folder: Path
    beats: list[str]

    def lines(self) -> list[dict[str, Any]]:
        """What it wrote about its doings."""
        text = (self.folder / "log").read_text("utf-8")
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def until(self, what: str, found: Any) -> Any:
        """Wait until something is there."""
        give_up_at = time.monotonic() + WAIT_S
        while not (value := found()):
            assert time.monotonic() < give_up_at, f"{what}:\n{(self.folder / 'log').read_text()}"
            time.sleep(0.02)
        return value

    def read(self, name: str) -> str:
        """A file that somebody was told to write."""
        target = self.folder / name
        self.until(f"{name} never came", target.is_file)
        return target.read_text("utf-8")


@pytest.fixture(scope="module")
def heartbeats() -> Iterator[tuple[str, list[str]]]:
    """Somebody who listens for the heartbeat."""
    heard: list[str] = []

    class Listening(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.headers["X-Changeover-Key"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Listening)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", heard
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def controller(
    etcd: EtcdServer,
    heartbeats: tuple[str, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Controller]:
    """The controller, leading the fleet of a demo."""
    folder = tmp_path_factory.mktemp("outside")
    fleet = f"outside-{time.time_ns()}"
    run = running(etcd, fleet)
    config = folder / "changeover.toml"
    config.write_text(
        SETTINGS.format(fleet=fleet, etcd=etcd.url, folder=folder, heartbeat=heartbeats[0])
    )
    command = [sys.executable, "-m", "controlplane", "controller", "--config", str(config)]
    with (folder / "log").open("wb") as sink:
        process = subprocess.Popen([*command, "--name", "c1"], cwd=ROOT, stderr=sink)
    made = Controller(run, folder, heartbeats[1])
    try:
        made.until(
            "it never led",
            lambda: any("LeaderElected" in line["message"] for line in made.lines()),
        )
        yield made
    finally:
        process.terminate()
        assert process.wait(10) == 0


def test_an_event_reaches_a_program_and_the_scheduler(controller: Controller) -> None:
    """A quarantine: the ticket's words are the template's, the machine is named as configured."""
    done = controller.run("quarantine", "n3", "--as", "ada", "--reason", "smells", "--yes")
    assert done.returncode == 0, done.stderr

    assert controller.read("ticket").startswith("outside-")
    assert " n3: ada: smells" in controller.read("ticket")
    assert controller.read("cordon").startswith("m-n3 ada: smells")


def test_its_lines_carry_the_position_that_caused_them(controller: Controller) -> None:
    """As JSON, one object a line; positions never go back."""
    positions = [line["position"] for line in controller.lines() if "writer" in line]

    assert positions
    assert positions == sorted(positions)
    (elected,) = [line for line in controller.lines() if "LeaderElected" in line["message"]]
    assert elected["level"] == "info"
    assert elected["at"].endswith("+00:00")


def test_prometheus_finds_what_the_log_says(controller: Controller) -> None:
    """The scrape of a real process: it leads, and how many events of which type."""
    page = next(line for line in controller.lines() if line["message"] == "page")
    url = f"{page['address']}/metrics"

    def scraped() -> str:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own address
            text: str = answer.read().decode()
        return text if 'changeover_leader{controller="c1"} 1.0' in text else ""

    text = controller.until("it never said who leads", scraped)
    assert "changeover_leading 1.0" in text
    assert 'changeover_nodes{state="' in text
    assert "changeover_store_quota_ratio" in controller.until(
        "the store was never asked",
        lambda: text if "changeover_store_bytes" in (text := scraped()) else "",
    )


def test_somebody_outside_hears_that_it_works(controller: Controller) -> None:
    """The heartbeat comes, again and again."""
    before = len(controller.beats)
    controller.until("no heartbeat", lambda: len(controller.beats) >= before + 2)

    assert controller.beats[-1].endswith("/heartbeat")


def test_the_page_alone_runs_beside_a_fleet_and_ends_on_ctrl_c(controller: Controller) -> None:
    """It says where it is, answers, and leaves nothing behind."""
    settings = controller.folder / "changeover.toml"
    command = [sys.executable, "-m", "controlplane", "page", "--config", str(settings)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        url = said.rpartition(" ")[2].strip()

        def healthy() -> bool:
            try:
                with urllib.request.urlopen(f"{url}/healthz", timeout=5) as answer:  # noqa: S310
                    return bool(answer.status == 200)
            except urllib.error.HTTPError:
                return False

        assert said.startswith("fleet outside-")
        controller.until("the page never followed the log", healthy)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
