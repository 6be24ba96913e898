"""A layout with several axes loses and gives away members; untouched groups notice nothing."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from statemachine import events as e
from statemachine.ids import NodeId
from tests.integration.loop.core_fleet import Machine
from worker.faultpoints import Act

Launch = Callable[..., Awaitable[Any]]

SCRIPT = Path(__file__).with_name("train_axes.py")
STEPS = 150
SLOW = ["--slow-ms", "20"]
VOTE = {
    "in the vote's first axis": ["vote.before", "exchange.waiting"],
    "between its axes": ["vote.before", "exchange.end"],
    "in its last axis": ["vote.before", "exchange.end", "exchange.waiting"],
    "having its outcome": ["vote.before", "exchange.end", "exchange.end"],
}
LAYOUTS = {"dp x pp x tp": {"dp": 2, "pp": 2, "tp": 2}, "dp x pp": {"dp": 2, "pp": 2}}


def _axes(name: str) -> dict[str, int]:
    return {"dp": 1, "pp": 1, "tp": 1} | LAYOUTS[name]


async def _run(
    launch: Launch, name: str, standbys: int, extra: list[str], steps: int = STEPS
) -> Any:
    axes = _axes(name)
    nodes = axes["dp"] * axes["pp"] * axes["tp"]
    return await launch(
        nodes=nodes, standbys=standbys, steps=steps, axes=axes, extra=extra, script=SCRIPT
    )


def _touched(fleet: Any, transition: int) -> set[tuple[int, str]]:
    """(slot, kind) of every group that a transition's changes touch."""
    layout = fleet.state.jobs["tiny"].layout
    plans = [r.event for r in fleet.events(e.TransitionPlanned)]
    changed = {c.slot for plan in plans if plan.transition == transition for c in plan.changes}
    found = set()
    for slot in range(layout.slot_count):
        for group in layout.groups_of_rank(layout.ranks_of(slot)[0]):
            if {layout.slot_of(rank) for rank in group.ranks} & changed:
                found.add((slot, group.kind))
    return found


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.timeout(150)
async def test_a_loss_and_a_drain_in_a_layout_of_several_axes(launch: Launch, name: str) -> None:
    """Every shard ends with the weights of an undisturbed run; other groups open no link."""
    calm = await _run(launch, name, 0, [])
    expected = await calm.digests()
    expected_losses = calm.losses()
    await calm.stop()

    fleet = await _run(launch, name, 2, SLOW)
    await fleet.until("two are warm", lambda: len(fleet.warm()) == 2 and fleet.idle(), 60.0)
    dead, leaver = fleet.holder(1), fleet.holder(2)
    fleet.arm(dead, ["step.begin", "exchange.waiting"], Act.KILL)
    await fleet.until("the loss is answered", lambda: fleet.lost() == [dead] and fleet.idle(), 60.0)
    fleet.say(e.DrainRequested(node=NodeId(leaver), by="test"))
    await fleet.until("it left", lambda: fleet.holder(2) != leaver and fleet.idle(), 60.0)
    found = await fleet.digests()
    losses = fleet.losses()

    assert found == expected, fleet.story()
    assert {k: v for k, v in losses.items() if v != expected_losses[k]} == {}
    assert fleet.lost() == [dead], fleet.story()
    _untouched_groups_kept_their_links(fleet)


def _untouched_groups_kept_their_links(fleet: Any) -> None:
    swaps = [r.event.transition for r in fleet.events(e.TransitionFinished)][1:]
    assert len(swaps) == 2, fleet.story()
    counted = 0
    for slot in fleet.state.jobs["tiny"].holders:
        links = json.loads((fleet.folder / f"{fleet.holder(slot)}.links").read_text())
        for kind, (opened, closed) in links.items():
            for transition in swaps:
                if (slot, kind) in _touched(fleet, transition):
                    counted += opened.get(str(transition), 0)
                    continue
                assert str(transition) not in opened, (slot, kind, transition, links)
                assert str(transition) not in closed, (slot, kind, transition, links)
    assert counted, "no link was opened by any swap: nothing was measured"


@pytest.mark.timeout(150)
async def test_a_machine_of_several_ranks_is_lost(launch: Launch) -> None:
    """A machine that dies takes all of its ranks with it, each with an agent of its own: all are
    replaced by those of another machine in one resumption, and no other rank is accused.
    """
    machines = {f"n{number}": Machine(f"127.0.0.{2 + number // 2}") for number in range(6)}
    axes, steps = {"dp": 2, "pp": 1, "tp": 2}, 150
    whole = {"nodes": 4, "steps": steps, "axes": axes, "script": SCRIPT, "machines": machines}
    calm = await launch(standbys=0, **whole)
    expected, expected_losses = await calm.digests(), calm.losses()
    await calm.stop()

    fleet = await launch(standbys=2, extra=SLOW, **whole)
    await fleet.until("two are warm", lambda: len(fleet.warm()) == 2 and fleet.idle(), 60.0)
    fleet.agents_tell = False
    hosts = [machines[fleet.holder(slot)].host for slot in range(4)]
    assert hosts == ["127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"], "a tp group a machine"
    for name in ("n0", "n1"):
        fleet.kill(name)
    await fleet.until("the job runs again", lambda: len(fleet.lost()) == 2 and fleet.idle(), 60.0)
    found, losses = await fleet.digests(), fleet.losses()

    assert found == expected, fleet.story()
    assert {k: v for k, v in losses.items() if v != expected_losses[k]} == {}
    assert sorted(fleet.lost()) == ["n0", "n1"], fleet.story()
    assert [machines[fleet.holder(slot)].host for slot in (0, 1)] == ["127.0.0.4"] * 2
    assert len(fleet.events(e.TransitionFinished)) == 2, "the launch, and one resumption"


@pytest.mark.timeout(150)
async def test_a_rank_dies_at_each_point_of_a_vote_along_two_axes(launch: Launch) -> None:
    """A vote is a minimum along one axis after the other: whoever dies in it, and wherever, all who
    live agree whether the step counts, and nothing is applied twice or left out.
    """
    steps = 300
    calm = await _run(launch, "dp x pp", 0, [], steps)
    expected, expected_losses = await calm.digests(), calm.losses()
    await calm.stop()
    fleet = await _run(launch, "dp x pp", 1, SLOW, steps)
    dead = []
    for slot, (where, points) in enumerate(VOTE.items()):
        await fleet.until("a standby is warm", lambda: bool(fleet.warm()) and fleet.idle(), 60.0)
        victim = fleet.holder(slot)
        fleet.arm(victim, points, Act.KILL)
        dead.append(victim)
        await fleet.until(f"{victim} is lost {where}", lambda: fleet.lost() == dead, 60.0)
        await fleet.until("the swap is done", fleet.idle, 60.0)
        assert fleet.met(victim), f"{victim} never came to the point {where}"
        await fleet.add_standby()
    found = await fleet.digests()
    wrong = {k: v for k, v in fleet.losses().items() if v != expected_losses[k]}

    assert not wrong, f"losses differ from {min(wrong, key=lambda k: k[1])} on"
    assert found == expected, fleet.story()
    assert fleet.lost() == dead, fleet.story()
