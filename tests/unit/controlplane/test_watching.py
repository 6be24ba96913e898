"""`--watch`: every table can be watched, and is shown anew when the log grows, and only then."""

from __future__ import annotations

import importlib

import anyio
import click
import pytest

from controlplane.cli import VERBS
from controlplane.cli.watching import show_log
from controlplane.eventlog import Batch, EventLog
from controlplane.eventlog.leadership import Leadership
from controlplane.eventlog.memory import MemoryStore
from statemachine import events as e
from statemachine.codec import encode_recorded
from statemachine.ids import Incarnation, NodeId, Position

TABLES = ("status", "nodes", "history", "explain", "topology show")


def verb(path: str) -> click.Command:
    """A verb, or one of a group of verbs."""
    first, _, rest = path.partition(" ")
    module, name, _ = VERBS[first]
    command = getattr(importlib.import_module(module), name)
    found = command.commands[rest] if rest else command
    assert isinstance(found, click.Command)
    return found


@pytest.mark.parametrize("path", TABLES)
def test_every_table_can_be_watched(path: str) -> None:
    """With the same option, in the same words."""
    (watch,) = [each for each in verb(path).params if each.name == "watch"]

    assert isinstance(watch, click.Option)
    assert watch.opts == ["-w", "--watch"]
    assert watch.help == "show it anew whenever it changes"


async def joins(leadership: Leadership, number: int) -> None:
    """A node joins, at the head of the log."""
    joined = e.NodeJoined(node=NodeId(f"n{number}"), incarnation=Incarnation(1), host="h")
    at = Position(leadership.head + 1)
    entry = e.Recorded(position=at, at_ms=at, writer=joined.node, event=joined)
    await leadership.append(Batch(after=leadership.head, entries=(encode_recorded(entry),)))


async def test_a_watched_log_is_shown_anew_when_it_grows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is there first, then each change; a picture that does not differ is not repeated."""
    log = EventLog(MemoryStore(), "lab")
    leadership = await log.campaign("c0", 30)
    await joins(leadership, 0)
    names: list[str] = []
    shown, told = anyio.Event(), anyio.Event()

    def hear(recorded: e.Recorded) -> None:
        names.append(recorded.writer)
        if recorded.position == 3:
            told.set()

    def picture() -> str:
        shown.set()
        return " ".join(name for name in names if name != "n1")

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await show_log(log, hear, picture, as_json=True, watch=True)

            group.start_soon(watch)
            await shown.wait()
            await joins(leadership, 1)
            await joins(leadership, 2)
            await told.wait()
            group.cancel_scope.cancel()

    assert capsys.readouterr().out.splitlines() == ["n0", "n0 n2"]
    await leadership.resign()


async def test_without_watching_it_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    """And the command ends."""
    log = EventLog(MemoryStore(), "lab")
    leadership = await log.campaign("c0", 30)
    await joins(leadership, 0)
    names: list[str] = []

    with anyio.fail_after(10):
        await show_log(
            log,
            lambda recorded: names.append(recorded.writer),
            lambda: " ".join(names),
            as_json=False,
            watch=False,
        )

    assert capsys.readouterr().out == "n0\n"
    await leadership.resign()
