"""The page's addresses: who may read, who may act, and what is never sent."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest

from controlplane.errors import BadConfig
from controlplane.eventlog import EventLog
from controlplane.eventlog.memory import MemoryStore
from controlplane.picture import Watcher
from controlplane.web.app import PART_TYPES
from controlplane.web.hub import Hub
from controlplane.web.serving import Address, address_of, read_token, serving
from statemachine import events as e
from tests.unit.controlplane.web.conftest import TOKEN, Answer, Served, serving_fleet

BEARER = f"Bearer {TOKEN}"


async def act(served: Served, name: str, wish: Any, **headers: str) -> Answer:
    """Ask for an act."""
    body = wish if isinstance(wish, bytes) else json.dumps(wish).encode()
    return await served.client.ask(f"/api/acts/{name}", method="POST", body=body, **headers)


async def acts_in(log: EventLog) -> list[str]:
    """Acts of operators in the log."""
    return [
        type(recorded.event).__name__
        async for recorded in log.read()
        if recorded.writer.startswith("operator.")
    ]


async def test_an_act_with_the_token_is_in_the_log_with_its_name_and_comment(
    served: Served,
) -> None:
    """As from the command line."""
    wish = {"by": "ada", "comment": "network work"}

    answer = await act(served, "pause", wish, authorization=BEARER)

    assert (answer.code, answer.values["act"]) == (200, "DecisionsPaused")
    assert answer.values["position"] > 0
    events = [r.event async for r in served.log.read() if isinstance(r.event, e.DecisionsPaused)]
    assert events == [e.DecisionsPaused(by="ada", comment="network work")]


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eDp5"}, {"cookie": "a=b"}],
)
async def test_an_act_without_the_token_is_refused(served: Served, headers: dict[str, str]) -> None:
    """A cookie is no token: a page of another origin has nothing to send."""
    answer = await act(served, "pause", {"by": "ada"}, **headers)

    assert answer.code == 401
    assert await acts_in(served.log) == []


async def test_a_page_without_a_token_only_shows() -> None:
    """Whatever is sent, nobody may act, and it says so."""
    async with serving_fleet(token="") as served:
        answer = await act(served, "pause", {"by": "ada"}, authorization="Bearer ")

    assert answer.code == 403
    assert "without a token" in answer.values["error"]


@pytest.mark.parametrize(
    ("name", "wish", "code", "words"),
    [
        ("drain", {"by": "ada", "node": "n9"}, 400, "no node 'n9' ever joined"),
        ("drain", {"by": "ada", "node": "<b>"}, 400, "node name"),
        ("drain", {"by": "A B", "node": "n1"}, 400, "operator name"),
        ("explode", {"by": "ada", "node": "n1"}, 400, "is no act"),
        ("release", {"by": "ada", "node": "n1", "force": True}, 400, "say why"),
        ("pause", b"{", 400, "truncated"),
        ("pause", {"by": "ada", "colour": "red"}, 400, "colour"),
        ("pause", b"x" * 20_000, 413, "too long"),
    ],
)
async def test_what_cannot_be_meant_is_refused_with_its_reason(
    served: Served, name: str, wish: Any, code: int, words: str
) -> None:
    """One line, as on the command line, and nothing in the log."""
    answer = await act(served, name, wish, authorization=BEARER)

    assert answer.code == code
    assert words in answer.values["error"]
    assert await acts_in(served.log) == []


async def test_a_name_that_was_made_to_point_here_is_refused(served: Served) -> None:
    """DNS rebinding: the Host of another site reads nothing."""
    assert (await served.client.ask("/metrics", host="evil.example")).code == 400
    assert (await served.client.ask("/metrics", host="localhost:1")).code == 200


@pytest.mark.parametrize("name", sorted(PART_TYPES))
async def test_every_part_is_served_with_a_strict_policy(served: Served, name: str) -> None:
    """Nothing from elsewhere, nothing inline, no frame around it."""
    answer = await served.client.ask("/" if name == "index.html" else f"/static/{name}")

    assert answer.code == 200
    assert answer.headers["content-type"] == PART_TYPES[name]
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "access-control-allow-origin" not in answer.headers
    text = answer.body.decode()
    assert "https://" not in text.replace("http://www.w3.org", "")
    assert "innerHTML" not in text


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e%2fapp.py", "/static/x"])
async def test_nothing_else_is_served(served: Served, path: str) -> None:
    """There is a list of parts, and no folder."""
    assert (await served.client.ask(path)).code == 404


async def test_a_reader_gets_everything_and_then_what_changes(served: Served) -> None:
    """The first message has the fleet; an act appears in a later one, by itself."""
    reader, writer = await served.client.open("/events")
    with anyio.fail_after(10):
        await reader.readuntil(b"event: all\n")
        first = await reader.readuntil(b"\n\n")
        assert json.loads(first.split(b"data: ", 1)[1])["set"]["fleet"]["leader"] == "c0"
        await act(served, "pause", {"by": "ada"}, authorization=BEARER)
        later = await reader.readuntil(b'"paused_by":"ada"')
    writer.close()

    assert b"event: change" in later


async def test_history_is_searched_backwards_by_words_and_position(served: Served) -> None:
    """All words must be there; a limit says where to go on."""
    for name in ("ada", "bob"):
        await act(served, "pause", {"by": name}, authorization=BEARER)
        await act(served, "resume", {"by": name}, authorization=BEARER)

    found = (await served.client.ask("/api/history?q=decisionspaused%20bob")).values
    assert [line["type"] for line in found["lines"]] == ["DecisionsPaused"]

    newest = (await served.client.ask("/api/history?limit=1")).values
    older = (await served.client.ask(f"/api/history?limit=1&before={newest['before']}")).values
    assert newest["more"]
    assert older["lines"][0]["position"] == newest["lines"][0]["position"] - 1
    assert (await served.client.ask("/api/history?limit=x")).code == 400


async def test_a_subject_that_the_log_does_not_know_is_told(served: Served) -> None:
    """With where to look."""
    answer = await served.client.ask("/api/explain?subject=n9")

    assert answer.code == 400
    assert "knows no node or transition 'n9'" in answer.values["error"]


async def test_metrics_are_of_the_same_picture(served: Served) -> None:
    """What the page shows is what Prometheus scrapes."""
    text = (await served.client.ask("/metrics")).body.decode()

    assert 'changeover_leader{controller="c0"} 1.0' in text
    assert "changeover_log_position" in text


class Broken(Hub):
    """A hub with a fault: the first time that it follows, it raises."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(log)
        self.tries = 0

    async def _follow(self, watcher: Watcher) -> NoReturn:
        self.tries += 1
        if self.tries == 1:
            raise ZeroDivisionError("ours")
        await super()._follow(watcher)


async def test_a_fault_of_the_page_ends_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, and begun anew."""
    monkeypatch.setattr("controlplane.web.hub.RETRY_S", 0.01)
    logging.getLogger("changeover").propagate = True
    hub = Broken(EventLog(MemoryStore(), "lab"))
    with anyio.fail_after(10):
        async with serving(hub.log, Address("127.0.0.1", 0), hub=hub):
            await hub.connected.wait()

    assert hub.tries == 2
    assert "a fault of the page" in caplog.text


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("8787", "127.0.0.1", 8787, True),
        ("127.0.0.1:0", "127.0.0.1", 0, True),
        ("[::1]:80", "::1", 80, True),
        ("0.0.0.0:8787", "0.0.0.0", 8787, False),
    ],
)
def test_an_address_is_loopback_unless_it_says_otherwise(
    text: str, host: str, port: int, loopback: bool
) -> None:
    """A port alone is of this machine."""
    found = address_of(text)

    assert (found.host, found.port, found.is_loopback) == (host, port, loopback)


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """Also one that is missing, or too short to be a token."""
    target = tmp_path / "token"
    with pytest.raises(BadConfig, match="cannot be read"):
        read_token(target)
    target.write_text(TOKEN)
    target.chmod(0o644)
    with pytest.raises(BadConfig, match="chmod 600"):
        read_token(target)
    target.chmod(0o600)
    assert read_token(target) == TOKEN
    target.write_text("short")
    with pytest.raises(BadConfig, match="16 characters"):
        read_token(target)


async def test_an_address_that_is_taken_is_told(served: Served) -> None:
    """In one line that names it."""
    port = served.client.address.port
    with pytest.raises(BadConfig, match=rf"127.0.0.1:{port}.*cannot be listened on"):
        async with serving(EventLog(MemoryStore(), "lab"), Address("127.0.0.1", port)):
            pass
