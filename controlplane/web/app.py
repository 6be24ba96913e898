"""The page's addresses: what may be asked, by whom, and what is answered.

    GET  /                     the page           GET /static/...        its parts
    GET  /events               all, then changes, as server-sent events
    GET  /api/history          lines of the log   GET /api/explain       the story of a subject
    POST /api/acts/{act}       an operator's act: needs the token
    GET  /metrics              for Prometheus     GET /healthz           200 while it can follow

Rules. Reading is free to whoever reaches the socket, loopback unless it was told otherwise; acting
needs a token, which comes from a file and is compared in constant time. A page of another
origin can neither read (no CORS header is ever sent) nor act (the token is in a header that it
cannot set), and a name that was made to point here is refused by its Host. What nodes report is
JSON, never markup.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Mapping
from importlib.resources import files
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.acting import act
from controlplane.errors import ActRefusedError
from controlplane.eventlog import EventLog, EventLogError
from controlplane.explaining import story_of
from controlplane.metrics import CONTENT_TYPE, Meters
from controlplane.term import unix_ms
from controlplane.web.hub import Hub, line_values
from statemachine import events as e
from statemachine.errors import ChangeoverError, UsageError
from statemachine.ids import NodeId, Position, check_name

PART_TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "draw.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

HEADERS: Final = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; "
    b"img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}

HISTORY_WINDOW: Final = 1_000
HISTORY_WINDOWS_MAX: Final = 20
"""Windows of the log that one search reads back; the answer says where it stopped."""

STORY_ENTRIES_MAX: Final = 20_000
"""Entries that an explanation looks back."""

BODY_BYTES_MAX: Final = 16 * 1024

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]", "::1")


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator asks for on the page."""

    by: str
    node: str = ""
    to: str = ""
    comment: str = ""
    force: bool = False


def event_of(name: str, wish: Wish) -> e.AnyEvent:
    """The event of an act.

    Raises:
        UsageError: no such act, or it lacks something.
    """
    check_name("operator", wish.by)
    node, by, comment = NodeId(wish.node), wish.by, wish.comment
    if name in ("pause", "resume"):
        kind = e.DecisionsPaused if name == "pause" else e.DecisionsResumed
        return kind(by=by, comment=comment)
    check_name("node", wish.node)
    match name:
        case "drain":
            return e.DrainRequested(node=node, by=by, comment=comment)
        case "switchover":
            return e.SwitchoverRequested(node=node, by=by, to=NodeId(wish.to), comment=comment)
        case "quarantine":
            return e.QuarantineRequested(node=node, by=by, comment=comment)
        case "sweep":
            return e.SweepAsked(node=node, by=by, comment=comment)
        case "release":
            if wish.force and not comment:
                raise UsageError("release: force skips the sweep: say why in the comment")
            return e.ReleaseRequested(node=node, by=by, force=wish.force, comment=comment)
        case _:
            raise UsageError(f"{name!r} is no act")


class Page:
    """Answers requests about one fleet. Without a token nobody may act."""

    def __init__(self, log: EventLog, hub: Hub, meters: Meters, token: str = "") -> None:
        self._log = log
        self._hub = hub
        self._meters = meters
        self._token = token

    async def part(self, request: Request) -> Response:
        """The page itself, and what belongs to it."""
        name = request.path_params.get("name", "index.html")
        if name not in PART_TYPES:
            return _error(404, f"{name}: no such part of the page")
        content = files("controlplane.web").joinpath("static", name).read_bytes()
        return Response(content, media_type=PART_TYPES[name])

    async def events(self, request: Request) -> Response:
        """Everything, then what changes, for as long as the reader stays."""

        async def messages() -> AsyncIterator[bytes]:
            acts = msgspec.json.encode({"may_act": bool(self._token)})
            yield b"retry: 1000\nevent: hello\ndata: " + acts + b"\n\n"
            await self._hub.connected.wait()
            async with self._hub.reading() as reader:
                async for message in reader:
                    yield message

        return StreamingResponse(messages(), media_type="text/event-stream")

    async def history(self, request: Request) -> Response:
        """Lines of the log that hold all words of `q`, the newest first, before a position."""
        asked = request.query_params
        words = asked.get("q", "").lower().split()
        limit = min(_number(asked, "limit", 200), 1000)
        before = _number(asked, "before", await self._log.head() + 1)
        oldest = await self._log.oldest()
        found: list[dict[str, Any]] = []
        for _ in range(HISTORY_WINDOWS_MAX):
            start = max(oldest, before - HISTORY_WINDOW)
            if before <= oldest or len(found) >= limit:
                break
            lines = [
                line_values(entry.recorded())
                async for entries in self._log.read_entries(Position(start), Position(before - 1))
                for entry in entries
            ]
            found += [line for line in reversed(lines) if _holds(line, words)]
            before = start
        more = len(found) > limit or before > oldest
        if len(found) > limit:
            before = found[limit - 1]["position"]
        return _answer({"lines": found[:limit], "before": before, "more": more})

    async def explain(self, request: Request) -> Response:
        """The story of a node or a transition."""
        subject = request.query_params.get("subject", "")
        head, oldest = await self._log.head(), await self._log.oldest()
        start = Position(max(oldest, head - STORY_ENTRIES_MAX + 1))
        entries = [recorded async for recorded in self._log.read(start)]
        story = story_of(entries, subject, self._log.fleet)
        return _answer({"from": start, "lines": [line_values(each) for each in story]})

    async def act(self, request: Request) -> Response:
        """State an act, and say what became of it."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not self._token:
            return _error(403, "this page only shows: it was started without a token")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return _error(401, "the token is missing or wrong")
        body = await request.body()
        if len(body) > BODY_BYTES_MAX:
            return _error(413, "too long")
        try:
            wish = msgspec.json.decode(body, type=Wish)
        except msgspec.MsgspecError as error:
            return _error(400, str(error))
        event = event_of(request.path_params["act"], wish)
        acted = await act(self._log, wish.by, event, unix_ms())
        return _answer(acted.as_values())

    async def metrics(self, request: Request) -> Response:
        """What Prometheus scrapes."""
        return Response(self._meters.render(), media_type=CONTENT_TYPE)

    async def healthz(self, request: Request) -> Response:
        """Whether the fleet is being followed."""
        watcher = self._hub.watcher
        if watcher is None:
            return _error(503, "the log is not being followed: the store does not answer")
        return _answer({"ok": True, "position": watcher.picture.state.position})


def make_app(page: Page, hosts: tuple[str, ...] = LOOPBACK) -> Starlette:
    """The ASGI application. `hosts` are the names under which it may be called."""
    routes = [
        Route("/", page.part),
        Route("/static/{name}", page.part),
        Route("/events", page.events),
        Route("/api/history", page.history),
        Route("/api/explain", page.explain),
        Route("/api/acts/{act}", page.act, methods=["POST"]),
        Route("/metrics", page.metrics),
        Route("/healthz", page.healthz),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(_Headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)),
        ],
        exception_handlers={ChangeoverError: _told, EventLogError: _told},
    )


async def _told(_: Request, error: Exception) -> Response:
    """An error of ours as one line, with whose fault it is as the code."""
    match error:
        case ActRefusedError():
            return _error(409, str(error))
        case UsageError():
            return _error(400, str(error))
        case _:
            return _error(503, str(error))


class _Headers:
    """Adds what a browser must know to every answer. Plain ASGI: streams pass through."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS.items()]
            await send(message)

        await self._app(scope, receive, sending)


def _answer(values: Any) -> Response:
    return Response(msgspec.json.encode(values), media_type="application/json")


def _error(code: int, words: str) -> Response:
    return JSONResponse({"error": words}, status_code=code)


def _number(asked: Mapping[str, str], name: str, default: int) -> int:
    text = asked.get(name, "")
    if not text:
        return default
    if not text.isdigit() or len(text) > 18:
        raise UsageError(f"{name}: {text[:20]!r} is no number")
    return int(text)


def _holds(line: dict[str, Any], words: list[str]) -> bool:
    text = f"{line['position']} {line['type']} {line['writer']} {line['words']}".lower()
    return all(word in text for word in words)
