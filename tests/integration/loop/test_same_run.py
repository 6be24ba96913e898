"""Whatever makes a run the same run comes whole from each source of state, bit for bit.

Sources in order: the leaver, replicas (each a part), the memory of a buddy, the checkpoint. What is
compared with a run that nobody disturbs: weights, optimizer, schedule, gradient scaler, data
position, the user's own values, and every loss, into which the three generators go.
"""

import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from statemachine import events as e
from statemachine.ids import NodeId

Launch = Callable[..., Awaitable[Any]]

SCRIPT = Path(__file__).with_name("train_whole.py")
STEPS = 120
COPY, SAVE = 8, 24
SLOW = ["--slow-ms", "30"]
OWN = ["--own", "--copy", str(COPY), "--checkpoint", str(SAVE)]
KEPT = {"model", "optimizer", "data", "schedule", "scaler", "extra", "skipped"}


async def run_of(launch: Launch, standbys: int, extra: list[str], *, own: bool) -> Any:
    """Three ranks; with `own` no rank is a replica of another."""
    more = {"replica_axis": ""} if own else {}
    return await launch(
        nodes=3, standbys=standbys, steps=STEPS, extra=extra, script=SCRIPT, more=more
    )


async def ended(fleet: Any) -> tuple[dict[int, dict[str, str]], Any]:
    """What everything has come to in each slot, and every loss."""
    await fleet.digests()
    paths = [fleet.folder / f"{fleet.holder(slot)}.whole" for slot in range(3)]
    await fleet.until("all have told", lambda: all(path.exists() for path in paths), 30.0)
    return {slot: json.loads(path.read_text()) for slot, path in enumerate(paths)}, fleet.losses()


async def calm_of(launch: Launch, *, own: bool) -> tuple[dict[int, dict[str, str]], Any]:
    """The same of a run that nobody disturbs."""
    fleet = await run_of(launch, 0, ["--own"] if own else [], own=own)
    found = await ended(fleet)
    await fleet.stop()
    for said in found[0].values():
        assert said.keys() == KEPT
        assert int(said["skipped"]) > 3, "the scaler never skipped: it was not tested"
    return found


def same(fleet: Any, calm: tuple[Any, Any], found: tuple[Any, Any]) -> None:
    """Fail with whatever differs."""
    assert found[0] == calm[0], fleet.story()
    differing = {key: seen for key, seen in found[1].items() if seen != calm[1][key]}
    assert differing == {}, fleet.story()


def handed(fleet: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Kind and sources of every handover of the last transition."""
    event = fleet.events(e.TransitionCommitted)[-1].event
    return [(h.kind, h.sources) for h in event.handovers]


def last_step(fleet: Any, name: str) -> int:
    """The last step that a node has committed."""
    steps = fleet.nodes[name].steps()
    return int(steps[-1]["step"]) if steps else -1


async def warm(fleet: Any, count: int) -> None:
    """Wait for standbys."""
    await fleet.until("warm", lambda: len(fleet.warm()) == count and fleet.idle(), 60.0)


@pytest.mark.timeout(240)
async def test_everything_comes_from_the_replicas_and_from_the_leaver(launch: Launch) -> None:
    """A killed rank's state is given by both replicas, a drained one's by itself."""
    calm = await calm_of(launch, own=False)
    fleet = await run_of(launch, 2, SLOW, own=False)
    await warm(fleet, 2)
    fleet.kill("n1")
    await fleet.until("filled", lambda: fleet.holder(1) != "n1" and fleet.idle(), 60.0)
    assert handed(fleet) == [("replica", ("n0", "n2"))]
    await warm(fleet, 1)
    fleet.say(e.DrainRequested(node=NodeId("n2"), by="test"))
    await fleet.until("left", lambda: fleet.holder(2) != "n2" and fleet.idle(), 60.0)

    assert handed(fleet) == [("leaver", ("n2",))]
    same(fleet, calm, await ended(fleet))
    assert [r.event.repeats for r in fleet.events(e.TransitionCommitted)] == [0, 0, 0]


@pytest.mark.timeout(240)
async def test_everything_comes_from_a_buddy_and_from_the_disk(launch: Launch) -> None:
    """Under the default policy a shard that nobody else holds comes from its buddy's memory; if
    node and buddy are lost, all shards come from the disk. Who lives keeps its process, and the log
    says from where, to which step, and how many are repeated.
    """
    calm = await calm_of(launch, own=True)
    fleet = await run_of(launch, 3, [*SLOW, *OWN], own=True)
    await warm(fleet, 3)
    written = fleet.events
    await fleet.until("saved", lambda: len(written(e.CheckpointWritten)) >= 3, 60.0)
    await fleet.until("steps on", lambda: last_step(fleet, "n1") > SAVE + COPY + 2, 60.0)

    committed = await lose(fleet, ["n1"])
    assert "slot 1: the memory of n2" in committed.reason, committed
    assert committed.resume_step % COPY == 0
    assert 0 <= committed.repeats <= 3 * COPY, "no more than the newest copies are lost"

    await fleet.until("steps on", lambda: last_step(fleet, "n0") > SAVE + 5 * COPY, 60.0)
    committed = await lose(fleet, [fleet.holder(1), "n2"])
    assert "slot 1: the disk" in committed.reason, committed
    assert committed.resume_step % SAVE == 0

    same(fleet, calm, await ended(fleet))
    assert {r.event.pid for r in fleet.events(e.WorkerReady) if r.event.node == "n0"} == {
        fleet.nodes["n0"].process.pid
    }, "who lives keeps its process"
    assert fleet.events(e.JobRestarted) == []


async def lose(fleet: Any, lost: list[str]) -> Any:
    """Lose machines, memory and all; what was committed then. What it says of repeated steps is
    what the survivors themselves noted.
    """
    start = len(fleet.log)
    for name in lost:
        fleet.kill(name)
        shutil.rmtree(fleet.folder / "memory" / name, ignore_errors=True)

    def loads() -> list[Any]:
        commits = (r.event for r in fleet.log[start:] if isinstance(r.event, e.TransitionCommitted))
        return [event for event in commits if event.loads]

    await fleet.until("all load", lambda: bool(loads()) and fleet.idle(), 60.0)
    committed = loads()[-1]
    steps = [line for line in fleet.nodes["n0"].steps() if line["epoch"] < committed.epoch]
    reached = max(line["step"] for line in steps)
    assert committed.repeats == reached + 1 - committed.resume_step, fleet.story()
    return committed
