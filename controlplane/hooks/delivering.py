"""One try of one delivery: a request or a program, under a deadline.

What belongs here: the world outside. A failure is told in words that hold no secret: neither the
address nor the header nor the answer's body, but the hook's name, the host and what went wrong.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process
from msgspec import Struct

KEY_HEADER: Final = "X-Changeover-Key"
"""The same whenever the same event is told again."""

KEPT_ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""What a program gets of our environment: nothing that could be a secret."""

WORDS_CHARS_MAX: Final = 200
OUTPUT_BYTES_MAX: Final = 1 << 20
"""What is kept of a program's output; one that never stops must not fill our memory."""


class NotDelivered(Exception):
    """A try that failed. `final` if another would fail alike."""

    def __init__(self, words: str, *, final: bool = False) -> None:
        self.final = final
        super().__init__(words[:WORDS_CHARS_MAX])


class Request_(Struct, frozen=True, kw_only=True):  # noqa: N801 - urllib has the plain name
    """A webhook to be called; `authorization` goes into the header of that name."""

    url: str
    body: bytes
    content_type: str
    key: str
    authorization: str = ""


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would carry the header to whoever is named: it is a failure."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


_opener = build_opener(_NoRedirect)


async def call(request: Request_, timeout_s: float) -> None:
    """Call a webhook.

    Raises:
        NotDelivered: it did not answer in time, or not with 2xx.
    """
    with anyio.move_on_after(timeout_s + 1.0) as scope:
        await anyio.to_thread.run_sync(_call, request, timeout_s, abandon_on_cancel=True)
    if scope.cancelled_caught:
        raise NotDelivered(f"no answer within {timeout_s:g} s")


def _call(request: Request_, timeout_s: float) -> None:
    headers = {
        "Content-Type": request.content_type,
        KEY_HEADER: request.key,
        "User-Agent": "changeover",
    }
    if request.authorization:
        headers["Authorization"] = f"Bearer {request.authorization}"
    host = urlsplit(request.url).hostname
    made = Request(request.url, data=request.body, headers=headers, method="POST")  # noqa: S310
    try:
        with _opener.open(made, timeout=timeout_s) as answer:
            answer.read(1)
    except HTTPError as error:
        error.close()
        # 408 and 429 ask to come again; any other 4xx will be no better the next time
        final = 400 <= error.code < 500 and error.code not in (408, 429)
        raise NotDelivered(f"{host} answered {error.code}", final=final) from None
    except (URLError, HTTPException, OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise NotDelivered(f"{host}: {type(why).__name__}") from None


async def execute(
    arguments: Sequence[str], body: bytes, more: Mapping[str, str], timeout_s: float
) -> str:
    """Run a program with the body on stdin; returns what it said on stdout.

    Raises:
        NotDelivered: it is missing, took too long, or did not exit with 0.
    """
    kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    program = arguments[0]
    try:
        process = await anyio.open_process(
            list(arguments),
            env=kept | dict(more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise NotDelivered(f"{program}: no such program", final=True) from None
    except OSError as error:
        raise NotDelivered(f"{program}: {error.strerror}", final=True) from None
    ended = False
    try:
        with anyio.fail_after(timeout_s):
            said, complained = await _converse(process, body)
            code = await process.wait()
        ended = True
    except TimeoutError:
        raise NotDelivered(f"{program}: not done within {timeout_s:g} s") from None
    finally:
        if not ended:
            _kill_all(process)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    if code != 0:
        raise NotDelivered(f"{program} exited with {code}: {' '.join(complained.split())}")
    return said


async def _converse(process: Process, body: bytes) -> tuple[str, str]:
    """Give a program its input; what it says on stdout and stderr, of each the beginning."""
    heard = {"out": bytearray(), "err": bytearray()}
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None

    async def hear(stream: ByteReceiveStream, kept: bytearray) -> None:
        async for chunk in stream:  # to its end: a program whose pipe is full stands still
            kept += chunk[: OUTPUT_BYTES_MAX - len(kept)]

    async with anyio.create_task_group() as group:
        group.start_soon(hear, process.stdout, heard["out"])
        group.start_soon(hear, process.stderr, heard["err"])
        with suppress(anyio.BrokenResourceError):  # not everybody reads what it is given
            await process.stdin.send(body)
        await process.stdin.aclose()
    return heard["out"].decode("utf-8", "replace"), heard["err"].decode("utf-8", "replace")


def _kill_all(process: Process) -> None:
    """End a program with whatever it started: a script's child would go on, and hold its pipes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
