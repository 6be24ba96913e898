"""A general standby rehearses each role of a pipeline with recorded answers, and takes any slot."""

import contextlib
import math
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from statemachine import events as e
from statemachine.ids import NodeId
from tests.integration.loop.cable import cable
from tests.integration.loop.core_fleet import Machine
from worker.standing_back import may_stand_back

Launch = Callable[..., Awaitable[Any]]

SCRIPT = Path(__file__).with_name("train_stages.py")
SLOW = ["--slow-ms", "100"]  # until a story is over: a run must not end before
AXES = {"pp": 3, "dp": 2}
WIDE = {"pp": 3, "tp": 2, "dp": 1}
WHOLE = {"pp": 3, "tp": 2, "dp": 2}
STEPS = 110
ROLES = {"first", "middle", "last"}


async def run_of(launch: Launch, standbys: int, extra: list[str], **more: Any) -> Any:
    """As many nodes as the axes have ranks, as a pipeline, and standbys."""
    more = {"axes": AXES, "steps": STEPS, **more}
    nodes = math.prod(more["axes"].values())
    return await launch(nodes=nodes, standbys=standbys, extra=extra, script=SCRIPT, **more)


async def calm_of(
    launch: Launch, extra: list[str], within_s: float = 60.0, **more: Any
) -> tuple[Any, Any]:
    """Weights by slot, and losses, of a run that nobody disturbs."""
    fleet = await run_of(launch, 0, extra, **more)
    digests = await fleet.digests(within_s)
    losses = fleet.losses()
    await fleet.stop()
    return digests, losses


def passed(fleet: Any, node: str) -> dict[str, Any]:
    """The last rehearsal that a node passed, by role."""
    found = (r.event for r in fleet.events(e.WarmupPassed))
    return {event.role: event for event in found if event.node == node}


def made(fleet: Any) -> dict[str, Any]:
    """Each role's recording."""
    return {r.event.role: r.event for r in fleet.events(e.RecordingMade)}


def picked(axes: dict[str, int]) -> list[tuple[int, str]]:
    """A slot of each role: the second of the first stage, one of the last, one of the middle."""
    each = math.prod(axes.values()) // axes["pp"]
    return [(1, "first"), (2 * each, "last"), (each + 1, "middle")]


async def warm(fleet: Any, count: int = 1) -> None:
    """Wait until standbys are warm for every role."""
    await fleet.until("warm", lambda: len(fleet.warm()) >= count and fleet.idle(), 60.0)
    await fleet.until("warm for every role", lambda: not fleet.state.unready, 60.0)


async def lose(fleet: Any, slot: int) -> str:
    """Kill the node in a slot; who took it."""
    fleet.kill(fleet.holder(slot))
    before = fleet.holder(slot)
    await fleet.until(
        f"slot {slot} is filled", lambda: fleet.holder(slot) != before and fleet.idle(), 60.0
    )
    return str(fleet.holder(slot))


async def drain(fleet: Any, slot: int) -> str:
    """Drain the node in a slot; who took it."""
    leaver = fleet.holder(slot)
    fleet.say(e.DrainRequested(node=NodeId(leaver), by="test"))
    await fleet.until("left", lambda: fleet.holder(slot) != leaver and fleet.idle(), 60.0)
    return str(fleet.holder(slot))


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "axes",
    [
        pytest.param(AXES, id="pp3 dp2"),
        pytest.param(WIDE, id="pp3 tp2", marks=pytest.mark.soak),
        pytest.param(WHOLE, id="pp3 tp2 dp2", marks=pytest.mark.soak),
    ],
)
async def test_a_general_standby_takes_any_slot(launch: Launch, axes: dict[str, int]) -> None:
    """Standbys that rehearsed all roles take first, last and middle; weights and losses stay."""
    expected, losses = await calm_of(launch, [], axes=axes)
    fleet = await run_of(launch, 1, SLOW, axes=axes)
    await warm(fleet)
    replicas = axes["dp"] > 1
    taken = {}
    for slot, role in picked(axes):
        standby = fleet.warm()[0]
        assert passed(fleet, standby).keys() == ROLES, fleet.story()
        if replicas:
            taken[role] = await lose(fleet, slot)
        else:  # without a replica only the leaver has the state
            taken[role] = await drain(fleet, slot)
        assert taken[role] == standby, fleet.story()
        await fleet.add_standby()
        await warm(fleet)

    assert await fleet.digests() == expected, fleet.story()
    assert {key: seen for key, seen in fleet.losses().items() if seen != losses[key]} == {}
    recordings = made(fleet)
    assert recordings.keys() == ROLES
    assert len(fleet.events(e.RecordingMade)) == 3, "recorded once per role"
    for event in (r.event for r in fleet.events(e.WarmupPassed)):
        assert event.recording == recordings[event.role].recording
        assert event.allocate_bytes > 0


@pytest.mark.timeout(240)
async def test_what_a_role_must_still_allocate_is_told(launch: Launch) -> None:
    """Whoever takes another slot than its resident role's allocates weights and gradients, builds
    nothing and primes nothing; what the whole state will take was told with the rehearsal.
    """
    fleet = await run_of(launch, 1, SLOW, steps=100)
    await warm(fleet)
    standby = fleet.warm()[0]
    wanted = passed(fleet, standby)
    await lose(fleet, 1)
    said = [r.event for r in fleet.events(e.TransitionApplied) if r.event.node == standby]

    assert said, fleet.story()
    assert said[0].phases_ms["parts"] > 0
    log = (fleet.folder / f"{standby}.1.log").read_text()
    (line,) = [line for line in log.splitlines() if "the parts of slot 1" in line]
    assert "built=False" in line
    allocated = int(line.partition("allocated_bytes=")[2].partition(",")[0])
    assert 0 < allocated < wanted["first"].allocate_bytes


@pytest.mark.timeout(240)
async def test_nothing_crosses_the_sandbox(launch: Launch, tmp_path: Path) -> None:
    """While a standby rehearses no TCP connection of its process carries a byte or comes to be, no
    file is opened for writing, what is wrapped as outside does nothing, and no member's loss or
    link is another than without it.
    """
    _, losses = await calm_of(launch, ["--traffic"], steps=40)
    fleet = await run_of(launch, 1, [*SLOW, "--traffic"], steps=40)
    await warm(fleet)
    (standby,) = fleet.warm()
    seen = fleet.traffic(standby)
    await fleet.digests()

    roles = {line["role"] for line in seen if line["rehearsal"]}
    assert roles == {0, 1, 2}, "every stage was rehearsed"
    assert fleet.crossed(seen) == [], fleet.story()
    assert not (fleet.folder / f"{standby}.checkpoint").exists()
    assert (fleet.folder / "n0.checkpoint").exists(), "members do write"
    assert {key: found for key, found in fleet.losses().items() if found != losses[key]} == {}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("leak", ["socket", "file"])
async def test_the_proof_of_the_sandbox_would_see_a_leak(launch: Launch, leak: str) -> None:
    """A rehearsed step that connects to another process, or writes a file, is seen."""
    fleet = await run_of(launch, 0, [*SLOW, "--traffic"], steps=100)
    await fleet.until("it trains", lambda: len(made(fleet)) == 3, 60.0)
    (fleet.folder / "n6.rehearsal-fault").write_text(leak)
    await fleet.start("n6")
    await warm(fleet)

    assert fleet.crossed(fleet.traffic("n6")), "the leak went unseen"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("leak", ["", "datagram", pytest.param("socket", marks=pytest.mark.soak)])
async def test_nothing_is_sent_from_a_network_in_which_a_standby_is_alone(
    launch: Launch, leak: str
) -> None:
    """On a machine of its own, where links cannot go by the machine, the kernel counts no data, no
    connection and no datagram sent by anybody during a rehearsed step; a leaking step is seen.
    """
    with cable(f"changeover-{os.getpid()}") as (machine, _):
        here = Machine(machine.host.rpartition(".")[0] + ".1")
        machines = {**{f"n{number}": here for number in range(3)}, "n3": machine}
        shape = {"axes": {"pp": 3, "dp": 1}, "machines": machines, "steps": 10_000}
        fleet = await run_of(launch, 0, [*SLOW, "--traffic"], **shape)
        await fleet.until("it trains", lambda: len(made(fleet)) == 3, 60.0)
        (fleet.folder / "n3.alone").touch()
        (fleet.folder / "n3.rehearsal-fault").write_text(leak)
        await fleet.start("n3")
        await warm(fleet)
        seen = fleet.traffic("n3")
        await fleet.stop()

    assert {line["role"] for line in seen if line["rehearsal"]} == {0, 1, 2}
    assert seen[-1]["packets"]["TcpExt:TCPOrigDataSent"] > 0, "it fetched recordings before"
    assert bool(fleet.crossed(seen)) == bool(leak), fleet.crossed(seen)


@pytest.mark.soak
@pytest.mark.timeout(1500)
async def test_compiled_stages_are_rehearsed_and_taken(launch: Launch, tmp_path: Path) -> None:
    """With torch.compile a standby has compiled every stage before it takes one: its first step
    compiles nothing, and the weights are those of a calm run.
    """
    axes, slow_ms = {"pp": 3, "dp": 1}, 1000
    cache = tmp_path / "compiled"  # the second fleet finds the code of the first
    compiled = ["--compile", "--cache", str(cache)]
    expected, _ = await calm_of(launch, compiled, within_s=600.0, axes=axes, steps=200)
    extra = ["--slow-ms", str(slow_ms), *compiled]
    fleet = await run_of(launch, 1, extra, axes=axes, steps=200)
    await fleet.until("warm", lambda: len(fleet.warm()) >= 1 and fleet.idle(), 600.0)
    await fleet.until("warm for every role", lambda: not fleet.state.unready, 600.0)
    (standby,) = fleet.warm()
    told = passed(fleet, standby)
    assert await drain(fleet, 0) == standby
    resumes = fleet.events
    await fleet.until("it trains", lambda: standby in _nodes(resumes(e.StepResumed)), 60.0)
    digests = await fleet.digests(600.0)
    (resumed,) = [r.event for r in fleet.events(e.StepResumed) if r.event.node == standby]
    first_ms, slept_ms = told["first"].first_step_ms, float(slow_ms)
    print(f"rehearsed first step {first_ms:.0f} ms, real one {resumed.step_ms - slept_ms:.0f} ms")

    assert digests == expected, fleet.story()
    assert told.keys() == ROLES
    assert resumed.step_ms - slept_ms < first_ms / 2, "the rehearsal paid for compiling"


def _nodes(entries: list[Any]) -> set[str]:
    return {str(entry.event.node) for entry in entries}


@pytest.mark.skipif(not may_stand_back(), reason="nobody stands back here")
async def test_a_newcomer_stands_back_behind_the_run_and_a_warm_standby_does_not(
    launch: Launch,
) -> None:
    """From its start until it is ready each thread is idle's; warm, it has its share to the last
    thread, and so had whoever the launch waited for.
    """
    fleet = await launch(nodes=2, standbys=0, steps=10_000, extra=["--slow-ms", "20"])
    seen = {name: classes(fleet, name) for name in ("n0", "n1")}
    await fleet.until("it runs", fleet.idle)
    await fleet.start("n2")
    seen["starting"] = classes(fleet, "n2")
    await fleet.until("it is warm", lambda: "n2" in fleet.warm(), 60.0)
    seen["warm"] = classes(fleet, "n2")
    await fleet.stop()

    ordinary, idle = {os.SCHED_OTHER}, {os.SCHED_IDLE}
    assert seen == {"n0": ordinary, "n1": ordinary, "starting": idle, "warm": ordinary}


def classes(fleet: Any, node: str) -> set[int]:
    """In which scheduling classes a node's threads are."""
    found = set()
    for task in Path(f"/proc/{fleet.nodes[node].process.pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            found.add(os.sched_getscheduler(int(task.name)))
    return found
