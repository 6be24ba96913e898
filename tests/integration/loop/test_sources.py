"""Without a replica a run goes on from a copy in memory, or from the disk, and ends the same."""

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from statemachine import events as e

Launch = Callable[..., Awaitable[Any]]

SCRIPT = Path(__file__).with_name("train_stages.py")
AXES = {"pp": 3, "dp": 1}
STEPS = 130
COPY, SAVE = 4, 24
KNOBS = {"on_loss": ["standby", "restart"], "retry_cooldown_s": 0.2}


async def _run(launch: Launch, extra: list[str]) -> Any:
    return await launch(
        nodes=3, standbys=0, steps=STEPS, axes=AXES, extra=extra, script=SCRIPT, knobs=KNOBS
    )


async def _lose_and_restart(fleet: Any, lost: list[str]) -> tuple[Any, int]:
    """Lose nodes, machine and memory; the others come back with theirs, new ones for the lost.
    What was committed then, and the last step that the others had done.
    """
    for name in lost:
        fleet.kill(name)
    await fleet.until("it is restarted", lambda: bool(fleet.events(e.JobRestarted)), 60.0)
    old = [fleet.nodes[f"n{number}"] for number in range(3)]
    for node in old:
        await asyncio.wait_for(node.process.wait(), 30.0)
    for name in lost:
        shutil.rmtree(fleet.folder / "memory" / name, ignore_errors=True)
    for number, name in enumerate(["n0", "n1", "n2"]):
        if name in lost:
            await fleet.start(f"n{number + 3}")
        else:
            old[number].process.close()
            old[number].channel.close()
            await fleet.start(name, incarnation=2)
    await fleet.until("it runs again", fleet.idle, 60.0)
    done = max(node.steps()[-1]["step"] for node in old if node.name not in lost)
    return fleet.events(e.TransitionCommitted)[-1].event, done


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("lost", "words", "back"),
    [
        (["n1"], r"slot \d: the memory of n\d", COPY),
        (["n1", "n2"], r"slot \d: the disk", SAVE),
    ],
    ids=["a node", "a node and its buddy"],
)
async def test_a_shard_without_a_replica_comes_back(
    launch: Launch, lost: list[str], words: str, back: int
) -> None:
    """One machine's memory is enough to go on from a few steps before; if it and its buddy are
    lost, the disk is. The log says from where, and the weights are those of a calm run.
    """
    calm = await _run(launch, [])
    expected = await calm.digests()
    await calm.stop()

    extra = ["--slow-ms", "20", "--checkpoint", str(SAVE), "--copy", str(COPY)]
    fleet = await _run(launch, extra)
    written = fleet.events
    await fleet.until("saved", lambda: len(written(e.CheckpointWritten)) >= 3, 60.0)
    await fleet.until(
        "steps on", lambda: fleet.nodes["n1"].steps()[-1]["step"] > SAVE + 3 * COPY, 60.0
    )
    reached = fleet.nodes["n1"].steps()[-1]["step"]
    committed, done = await _lose_and_restart(fleet, lost)
    found = re.search(r"load the checkpoint of step (\d+) \((.*?)\)", committed.reason)

    assert found is not None, committed.reason
    assert re.search(words, found[2]), committed.reason
    assert committed.resume_step == int(found[1]) + 1
    assert committed.repeats == done + 1 - committed.resume_step, "as the survivors' agents know"
    assert committed.resume_step % back == 0
    if back == COPY:
        assert reached - 3 * COPY <= int(found[1]), "no more than the newest copies are lost"
    assert await fleet.digests() == expected, fleet.story()
