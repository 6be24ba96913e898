"""A real Chromium, spoken to over its debugging pipe: no driver, no port, no download.

Messages are JSON ended by a zero byte; the browser reads descriptor 3 and writes descriptor 4.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WAIT_S = 20.0

WIRED = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Puts the pipe where the browser looks for it; a shell takes only one digit."""


def find_chromium() -> str | None:
    """Where a Chromium is, if this machine has one; ``CHANGEOVER_CHROMIUM`` names another."""
    named = os.environ.get("CHANGEOVER_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """One page. What it throws, and what its policy forbids, is in `complaints`."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []

    async def do(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command."""
        return await self._browser.do(method, self._session, **params)

    async def get(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = await self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    async def until(self, expression: str, within_s: float = WAIT_S) -> Any:
        """Wait until an expression is true in the page; looks every few milliseconds."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + within_s
        while not (value := await self.get(expression)):
            if loop.time() > give_up_at:
                shown = await self.get("document.body.innerText")
                raise AssertionError(f"not within {within_s} s: {expression}; it shows:\n{shown}")
            await asyncio.sleep(0.02)
        return value

    async def press(self, key: str) -> None:
        """Press and let go of a key."""
        for kind in ("keyDown", "keyUp"):
            await self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def shot(self, path: Path) -> None:
        """Take a picture of the whole page."""
        answer = await self.do("Page.captureScreenshot", captureBeyondViewport=True)
        await anyio.Path(path).write_bytes(base64.b64decode(answer["data"]))


class Browser:
    """The process and its pipe."""

    def __init__(self, reader: asyncio.StreamReader, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}

    async def do(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self._waiting[number] = asyncio.get_running_loop().create_future()
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(WAIT_S):
            answer = await self._waiting[number]
        assert "error" not in answer, f"{method}: {answer['error']}"
        result = answer["result"]
        assert isinstance(result, dict)
        return result

    async def listen(self) -> None:
        """Take in what the browser says, until it is gone."""
        with suppress(asyncio.IncompleteReadError):
            while True:
                raw = await self._reader.readuntil(b"\0")
                said = json.loads(raw[:-1])
                waiting = self._waiting.pop(said.get("id", 0), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(said)
                elif said.get("sessionId") in self._tabs:
                    self._heard(self._tabs[said["sessionId"]], said)

    @staticmethod
    def _heard(tab: Tab, said: dict[str, Any]) -> None:
        match said["method"]:
            case "Runtime.exceptionThrown":
                tab.complaints.append(str(said["params"]["exceptionDetails"]))
            case "Log.entryAdded" if said["params"]["entry"]["level"] == "error":
                tab.complaints.append(str(said["params"]["entry"]))
            case _:
                pass

    async def open(self, url: str, *, dark: bool = False) -> Tab:
        """Open a page."""
        target = (await self.do("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.do("Target.attachToTarget", targetId=target, flatten=True))[
            "sessionId"
        ]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Runtime", "Log", "Page"):
            await tab.do(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await tab.do("Emulation.setEmulatedMedia", features=[scheme])
        await tab.do(
            "Emulation.setDeviceMetricsOverride",
            width=1280,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        await tab.do("Page.navigate", url=url)
        return tab


@asynccontextmanager
async def chromium(program: str, profile: Path) -> AsyncIterator[Browser]:
    """Run a browser for as long as the body runs; nothing of it stays."""
    from_us, to_us = os.pipe(), os.pipe()
    command = [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    command += ["--no-first-run", "--disable-gpu", "--disable-extensions", "--no-sandbox"]
    command += ["--disable-dev-shm-usage", "--disable-background-networking", "about:blank"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WIRED,
        str(from_us[0]),
        str(to_us[1]),
        *command,
        pass_fds=(from_us[0], to_us[1]),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(from_us[0])
    os.close(to_us[1])
    reader = asyncio.StreamReader(limit=64 * 2**20)
    pipe = os.fdopen(to_us[0], "rb")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    browser = Browser(reader, from_us[1])
    listening = asyncio.create_task(browser.listen())
    try:
        yield browser
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        transport.close()
        os.close(from_us[1])
