"""Hooks: told once and surely, in order, without a secret, and never at the term's expense."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.eventlog import Batch, EventLog
from controlplane.eventlog.memory import MemoryStore
from controlplane.hooks.dispatch import QUEUE_MAX, Dispatcher
from controlplane.hooks.heartbeat import beat
from controlplane.hooks.hook import Heartbeat, Hook
from controlplane.metrics import Meters
from statemachine import events as e
from statemachine.codec import encode_recorded
from statemachine.ids import Incarnation, NodeId, Position
from statemachine.state import FleetState
from tests.unit.controlplane.hooks.conftest import Receiver

SECRET = "s3cr3t-of-the-pager"
ENVIRONMENT = {"PAGER_TOKEN": SECRET, "PAGER_URL": "set below"}


def lost(position: int, node: str = "n7") -> e.Recorded:
    """A loss in the log."""
    return e.Recorded(
        position=Position(position),
        at_ms=1_000 + position,
        writer="c0",
        event=e.NodeLost(
            node=NodeId(node), incarnation=Incarnation(1), reason="its link was reset"
        ),
    )


def hook(receiver: Receiver | None = None, **more: Any) -> Hook:
    """A hook that hears of losses."""
    fields: dict[str, Any] = {"name": "pager", "on": ("NodeLost",), "first_pause_s": 0.01}
    if receiver is not None:
        fields["url"] = receiver.url
    return Hook(**(fields | more))


@asynccontextmanager
async def dispatching(hooks: Sequence[Hook], meters: Meters) -> AsyncIterator[Dispatcher]:
    """A dispatcher at work."""
    made = Dispatcher("lab", hooks, meters, environment=ENVIRONMENT)
    async with anyio.create_task_group() as group:
        group.start_soon(made.run)
        yield made
        group.cancel_scope.cancel()


def counts(meters: Meters) -> dict[str, float]:
    """Deliveries by outcome, of all hooks."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(meters.render().decode()):
        for sample in family.samples:
            if sample.name == "changeover_hook_deliveries_total":
                outcome = sample.labels["outcome"]
                found[outcome] = found.get(outcome, 0) + sample.value
    return found


async def until(meters: Meters, outcome: str, count: int) -> None:
    """Wait until so many deliveries came out so."""
    with anyio.fail_after(10):
        while counts(meters).get(outcome, 0) < count:  # noqa: ASYNC110 - as a scraper sees it
            await anyio.sleep(0.005)


async def test_a_webhook_hears_of_an_event_once_with_its_key(receiver: Receiver) -> None:
    """The event as JSON, the token in the header, a key that names fleet, position and hook."""
    meters = Meters()
    async with dispatching([hook(receiver, authorization_env="PAGER_TOKEN")], meters) as told:
        told.heard([lost(17)], FleetState())
        await until(meters, "delivered", 1)

    ((headers, body),) = receiver.got
    assert headers["X-Changeover-Key"] == "lab/17/pager"
    assert headers["Authorization"] == f"Bearer {SECRET}"
    said = json.loads(body)
    assert (said["type"], said["position"], said["event"]["node"]) == ("NodeLost", 17, "n7")


async def test_a_failed_delivery_is_made_again_with_the_same_key_and_in_order(
    receiver: Receiver,
) -> None:
    """The second event waits for the first: a receiver never sees the end before the beginning."""
    receiver.codes = [500, 503, 429]
    meters = Meters()
    async with dispatching([hook(receiver)], meters) as told:
        told.heard([lost(1), lost(2)], FleetState())
        await until(meters, "delivered", 2)

    keys = [headers["X-Changeover-Key"] for headers, _ in receiver.got]
    assert keys == ["lab/1/pager"] * 4 + ["lab/2/pager"]
    assert counts(meters) == {"retried": 3, "delivered": 2}


@pytest.mark.parametrize("code", [400, 401, 404])
async def test_what_will_not_get_better_is_not_tried_again(receiver: Receiver, code: int) -> None:
    """A request that the receiver does not understand fails at once, and the next is made."""
    receiver.codes = [code]
    meters = Meters()
    async with dispatching([hook(receiver)], meters) as told:
        told.heard([lost(1), lost(2)], FleetState())
        await until(meters, "delivered", 1)

    assert counts(meters) == {"failed": 1, "delivered": 1}


async def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    """Whoever it names must not get the header."""
    receiver.codes = [302, 302]
    meters = Meters()
    async with dispatching([hook(receiver, tries=1)], meters) as told:
        told.heard([lost(1)], FleetState())
        await until(meters, "failed", 1)

    assert len(receiver.got) == 1


async def test_repetitions_of_a_key_are_held_back(receiver: Receiver) -> None:
    """Two losses of one node within the window are one page; another node's is its own."""
    meters = Meters()
    once = hook(receiver, key="{{ type }}/{{ node }}", once_per_s=300.0)
    async with dispatching([once], meters) as told:
        told.heard([lost(1), lost(2), lost(3, "n8")], FleetState())
        await until(meters, "delivered", 2)

    assert counts(meters) == {"delivered": 2, "repeated": 1}


async def test_no_secret_reaches_log_or_metrics(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither header nor address, whether it succeeds, is refused, or nobody listens."""
    caplog.set_level(logging.DEBUG, logger="changeover")
    logging.getLogger("changeover").propagate = True
    receiver.codes = [500, 400]
    meters = Meters()
    gone = Receiver()
    gone.close()
    hooks = [
        hook(receiver, authorization_env="PAGER_TOKEN"),
        hook(gone, name="gone", authorization_env="PAGER_TOKEN", tries=1),
    ]
    async with dispatching(hooks, meters) as told:
        told.heard([lost(1), lost(2)], FleetState())
        await until(meters, "delivered", 1)
        await until(meters, "failed", 3)

    said = "\n".join(f"{r.getMessage()} {getattr(r, 'fields', '')}" for r in caplog.records)
    assert "a hook failed" in said
    for secret in (SECRET, "in-the-address"):
        assert secret not in said
        assert secret not in meters.render().decode()


async def test_a_program_gets_the_event_and_nothing_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments from templates, no shell; the event on stdin; no variable of ours but a few."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for hooks")
    target = tmp_path / "seen.json"
    script = (
        "import json, os, sys; seen = [sys.argv[2:], sys.stdin.read(), dict(os.environ)];"
        "open(sys.argv[1], 'w').write(json.dumps(seen))"
    )
    meters = Meters()
    program = hook(exec=(sys.executable, "-c", script, str(target), "{{ node }}; rm -rf x"))
    async with dispatching([program], meters) as told:
        told.heard([lost(5)], FleetState())
        await until(meters, "delivered", 1)

    arguments, body, environment = json.loads(await anyio.Path(target).read_text())
    assert arguments == ["n7; rm -rf x"]
    assert json.loads(body)["position"] == 5
    assert environment["CHANGEOVER_POSITION"] == "5"
    assert "AWS_SECRET_ACCESS_KEY" not in environment


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (("/no/such/program",), "no such program"),
        ((sys.executable, "-c", "raise SystemExit('broken')"), "broken"),
    ],
)
async def test_a_program_that_fails_is_told_and_hurts_nobody(
    program: tuple[str, ...], why: str, caplog: pytest.LogCaptureFixture, receiver: Receiver
) -> None:
    """The other hook hears of the event all the same."""
    logging.getLogger("changeover").propagate = True
    caplog.set_level(logging.WARNING, logger="changeover")
    meters = Meters()
    async with dispatching([hook(exec=program, tries=1), hook(receiver, name="b")], meters) as told:
        told.heard([lost(1)], FleetState())
        await until(meters, "failed", 1)
        await until(meters, "delivered", 1)

    assert any(why in str(getattr(r, "fields", "")) for r in caplog.records)


async def test_a_queue_that_is_full_drops_its_oldest_and_says_so(receiver: Receiver) -> None:
    """Nothing grows without end; the newest is what people need."""
    meters = Meters()
    made = Dispatcher("lab", [hook(receiver)], meters, environment=ENVIRONMENT)

    made.heard([lost(n) for n in range(1, QUEUE_MAX + 4)], FleetState())

    assert counts(meters) == {"dropped": 3}


async def test_a_takeover_tells_the_last_minute_again_and_nothing_older(receiver: Receiver) -> None:
    """With the same keys; a year of log, replayed or imported, tells nobody anything."""
    log = EventLog(MemoryStore(), "lab")
    leadership = await log.campaign("c0", 5.0)
    now_ms = 10_000_000
    entries = [
        msgspec.structs.replace(lost(1), at_ms=now_ms - 61_000),
        msgspec.structs.replace(lost(2), at_ms=now_ms - 59_000),
    ]
    raw = tuple(encode_recorded(entry) for entry in entries)
    await leadership.append(Batch(after=Position(0), entries=raw))
    meters = Meters()
    async with dispatching([hook(receiver)], meters) as told:
        await told.begin(log, Position(2), now_ms)
        await until(meters, "delivered", 1)

    assert [headers["X-Changeover-Key"] for headers, _ in receiver.got] == ["lab/2/pager"]


async def test_the_heartbeat_stops_with_the_store(receiver: Receiver) -> None:
    """As long as the log answers it is heard; when it does not, nobody hears anything."""
    answers = True

    async def head() -> int:
        if not answers:
            await anyio.sleep_forever()
        return 1

    heartbeat = Heartbeat(url=receiver.url, every_s=0.02, timeout_s=0.1)
    async with anyio.create_task_group() as group:
        group.start_soon(beat, heartbeat, "lab", head)
        with anyio.fail_after(10):
            while len(receiver.got) < 3:  # noqa: ASYNC110 - another thread receives
                await anyio.sleep(0.005)
        answers = False
        await anyio.sleep(0.15)  # one sign may be on its way
        heard = len(receiver.got)
        await anyio.sleep(0.3)
        group.cancel_scope.cancel()

    assert len(receiver.got) == heard
