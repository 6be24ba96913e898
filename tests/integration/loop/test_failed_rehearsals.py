"""A rehearsal that fails is told with its reason; the run never notices, the standby retries."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from statemachine import events as e
from tests.integration.loop.core_fleet import JOB

Launch = Callable[..., Awaitable[Any]]

SCRIPT = Path(__file__).with_name("train_stages.py")
SLOW = ["--slow-ms", "20"]
AXES = {"pp": 3, "dp": 1}
STEPS = 20_000
"""More than there is time for: the run is stopped once all was seen."""
REASONS = {
    "nan": "holds a NaN or an infinity",
    "assert": "the training step raised AssertionError: activations out of range (train_stages.py",
    "raise": "the training step raised RuntimeError: device-side failure (train_stages.py",
    "hang": "hangs: no end within 4.5 s; its stack is in the log",
    "memory": "takes too much memory: ",
}
QUICK = {
    "store_try_s": 0.1, "renew_interval_s": 0.2, "self_fence_s": 0.3, "lease_ttl_s": 0.4,
    "abort_deadline_s": 1.0, "loss_grace_s": 0.1, "takeover_grace_s": 0.2,
    "prepare_deadline_s": 4.9, "warmup_deadline_s": 5.0, "retry_cooldown_s": 0.2,
}  # fmt: skip
"""Timeouts of minutes, in seconds."""
PATIENT = QUICK | {"warmup_deadline_s": 60.0}
"""For what must succeed, however busy the machine is."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", REASONS)
async def test_a_failed_rehearsal_is_told_and_done_again(launch: Launch, fault: str) -> None:
    """The event says what went wrong, no member is disturbed, and without the fault it passes."""
    knobs = QUICK | ({"warmup_memory_mib": 700} if fault == "memory" else {})
    fleet = await launch(
        nodes=3, standbys=0, steps=STEPS, axes=AXES, extra=SLOW, script=SCRIPT, knobs=knobs
    )
    await fleet.until("recorded", lambda: len(fleet.events(e.RecordingMade)) == 3, 60.0)
    path = fleet.folder / "n3.rehearsal-fault"
    path.write_text(fault)
    node = await fleet.start("n3")
    await fleet.until("it failed", lambda: bool(fleet.events(e.WarmupFailed)), 60.0)
    failed = fleet.events(e.WarmupFailed)[0].event
    path.unlink()
    fleet.say(e.PolicyChanged(version=2, knobs=PATIENT, by="test"))
    if fault != "nan":  # its process is gone: the agent starts another
        await asyncio.wait_for(node.process.wait(), 10.0)
        node.process.close()
        node.channel.close()
        await fleet.start("n3", incarnation=2)
    await fleet.until("it is warm", lambda: "n3" in fleet.warm(), 60.0)
    await fleet.until("for all roles", lambda: not fleet.state.unready, 60.0)
    fleet.say(e.JobStopRequested(job=JOB, by="test"))
    await fleet.digests()

    assert REASONS[fault] in failed.reason, failed
    assert failed.node == "n3"
    assert {name for name in fleet.lost() if name != "n3"} == set(), fleet.story()
    assert len(fleet.events(e.TransitionCommitted)) == 1, "the launch alone"
    steps = fleet.nodes["n0"].steps()
    assert [line["step"] for line in steps] == list(range(len(steps)))
    if fault == "hang":
        assert (
            "signal.pause" in (fleet.folder / "n3.1.log").read_text()
            or "in meet" in (fleet.folder / "n3.1.log").read_text()
        ), "where it hung is in its log"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("hang", "hangs: no end within 5.0 s; its stack is in the log"), ("raise", REASONS["raise"])],
)
async def test_a_process_that_cannot_be_primed_is_told_and_replaced(
    launch: Launch, fault: str, reason: str
) -> None:
    """A machine whose first steps hang or raise says so and ends; the run goes on, and its next
    process takes part.
    """
    fleet = await launch(
        nodes=3, standbys=0, steps=STEPS, axes=AXES, extra=SLOW, script=SCRIPT, knobs=QUICK
    )
    await fleet.until("it runs", lambda: len(fleet.nodes["n0"].steps()) > 1, 60.0)
    path = fleet.folder / "n3.priming-fault"
    path.write_text(fault)
    node = await fleet.start("n3")
    await fleet.until("it failed", lambda: bool(fleet.events(e.WarmupFailed)), 60.0)
    failed = fleet.events(e.WarmupFailed)[0].event
    await asyncio.wait_for(node.process.wait(), 10.0)
    await fleet.until("it is lost", lambda: fleet.lost() == ["n3"], 20.0)
    path.unlink()
    fleet.say(e.PolicyChanged(version=2, knobs=PATIENT, by="test"))
    node.process.close()
    node.channel.close()
    await fleet.start("n3", incarnation=2)
    await fleet.until("it is warm", lambda: "n3" in fleet.warm(), 60.0)
    fleet.say(e.JobStopRequested(job=JOB, by="test"))
    await fleet.digests()

    assert failed.reason.startswith("while priming: "), failed
    assert reason in failed.reason, failed
    assert not any(r.event.incarnation == 1 for r in fleet.events(e.WorkerReady)[3:])
    assert len(fleet.events(e.TransitionCommitted)) == 1, "the launch alone"
    steps = fleet.nodes["n0"].steps()
    assert [line["step"] for line in steps] == list(range(len(steps)))
