"""A receiver of webhooks: a real server on loopback that answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Receiver:
    """What was received, and how to answer: the codes in turn, then 200."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.codes: list[int] = []
        self.arrived = threading.Condition()
        receiver = self

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with receiver.arrived:
                    receiver.got.append((dict(self.headers), body))
                    code = receiver.codes.pop(0) if receiver.codes else 200
                    receiver.arrived.notify_all()
                self.send_response(code)
                if code in (301, 302, 307):
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?token=in-the-address"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self._thread.start()

    def wait_for(self, count: int, within_s: float = 10.0) -> None:
        """Wait until so many deliveries arrived."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.got) >= count, within_s), self.got

    def close(self) -> None:
        """Stop."""
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of this test's own."""
    made = Receiver()
    yield made
    made.close()
