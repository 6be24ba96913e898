"""A second rank dies at every point of the transition that answers the first.

What must hold: the transition is planned anew, exactly the two are declared lost, and the run ends
with the weights and losses of a run that nobody disturbed.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statemachine import events as e
from statemachine.ids import NodeId
from statemachine.lifecycle import NodeState
from worker.faultpoints import Act

Launch = Callable[..., Awaitable[Any]]

SLOTS = 3
STEPS = 300
EXTRA = ["--slow-ms", "20", "--width", "4096"]  # some 2 MB of state: several chunks to transfer
KNOBS = {"retry_cooldown_s": 0.2}

POINTS = {
    "preparing": "prepare.begin",
    "prepared": "prepare.linked",
    "parked": "parked",
    "waiting in its step": "parked.in_step",
    "offering its state early": "transfer.offered",
    "serving its state early": "transfer.serving",
    "offering its state": "transfer.offered",
    "serving its state": "transfer.serving",
    "about to switch": "switch.before",
    "having switched": "switch.between",
    "having said so": "switch.after",
}
IN_STEP = [point for point in POINTS if point.endswith(("step", "early"))]
"""Where the first loss finds the others in a step in which they have met nobody yet."""

JOINER_POINTS = {
    "preparing": "prepare.begin",
    "prepared": "prepare.linked",
    "receiving its state": "transfer.receiving",
    "about to switch": "switch.before",
    "having switched": "switch.between",
    "having said so": "switch.after",
    "in its first step": "step.begin",
    "in its first vote": "vote.before",
}


async def _fleet(launch: Launch) -> Any:
    fleet = await launch(nodes=SLOTS, standbys=2, steps=STEPS, extra=EXTRA, knobs=KNOBS)
    await fleet.until("two standbys are warm", lambda: len(fleet.warm()) == 2 and fleet.idle())
    return fleet


async def _same_as_calm(fleet: Any, calm: Callable[..., Any]) -> None:
    digest = await fleet.digest()
    losses = fleet.losses()
    expected_digest, expected = await calm(SLOTS, STEPS, extra=EXTRA[2:])
    wrong = {k: (v, expected.get(k)) for k, v in losses.items() if v != expected.get(k)}

    assert not wrong, f"losses differ at {min(wrong, key=lambda k: k[1])}: {wrong}"[:2000]
    assert digest == expected_digest, fleet.story()
    assert not fleet.events(e.GroupBroken), fleet.story()  # a swap needs no mending


@pytest.mark.parametrize("slot", [0, 2])
@pytest.mark.parametrize("point", POINTS)
async def test_a_survivor_dies_while_a_loss_is_answered(
    launch: Launch, calm: Callable[..., Any], point: str, slot: int
) -> None:
    """Whoever dies at whatever point of the transition, both slots are filled in the end."""
    fleet = await _fleet(launch)
    second = fleet.holder(slot)
    serves = point.startswith(("serving", "offering"))
    fleet.arm(second, [POINTS[point]], Act.KILL)
    fleet.arm(fleet.holder(1), ["step.begin" if point in IN_STEP else "vote.before"], Act.KILL)
    if not serves:
        await fleet.until("both are lost", lambda: sorted(fleet.lost()) == sorted([second, "n1"]))
    await fleet.until("the job runs again", lambda: "n1" in fleet.lost() and fleet.idle())
    if fleet.met(second):
        await fleet.until("both are lost", lambda: sorted(fleet.lost()) == sorted([second, "n1"]))
        await fleet.until("the job runs again", fleet.idle)
    await _same_as_calm(fleet, calm)

    assert fleet.met(second) or serves  # a small state may have come from the other replica whole
    assert sorted(fleet.lost()) == sorted(["n1", *([second] if fleet.met(second) else [])])


@pytest.mark.parametrize("point", JOINER_POINTS)
async def test_a_joiner_dies_and_the_next_standby_takes_its_place(
    launch: Launch, calm: Callable[..., Any], point: str
) -> None:
    """A joiner that dies at whatever point is replaced by the next standby."""
    fleet = await _fleet(launch)
    fleet.arm("n3", [JOINER_POINTS[point]], Act.KILL)
    fleet.kill("n1")
    await fleet.until("both are lost", lambda: sorted(fleet.lost()) == ["n1", "n3"])
    await fleet.until("the job runs again", lambda: fleet.idle() and fleet.holder(1) == "n4")
    await _same_as_calm(fleet, calm)

    assert fleet.met("n3"), fleet.story()
    assert sorted(fleet.lost()) == ["n1", "n3"], fleet.story()


async def test_two_die_at_once(launch: Launch, calm: Callable[..., Any]) -> None:
    """Two losses in the same instant, the first slot among them, cost one resumption."""
    fleet = await _fleet(launch)
    fleet.kill("n0")
    fleet.kill("n2")
    await fleet.until("both are lost", lambda: sorted(fleet.lost()) == ["n0", "n2"])
    await fleet.until("the job runs again", fleet.idle)
    await fleet.until("steps go on", lambda: len(fleet.events(e.StepResumed)) == 6)
    await _same_as_calm(fleet, calm)

    assert sorted(fleet.lost()) == ["n0", "n2"], fleet.story()


@pytest.mark.parametrize(
    "point", ["prepare.begin", "prepare.linked", "transfer.offered", "transfer.serving"]
)
async def test_a_leaver_dies_before_it_has_left(
    launch: Launch, calm: Callable[..., Any], point: str
) -> None:
    """A planned swap whose leaver dies, while it is prepared or while it hands its state over,
    becomes an unplanned one, to the same joiner.
    """
    fleet = await _fleet(launch)
    fleet.arm("n1", [point], Act.KILL)
    fleet.say(e.DrainRequested(node=NodeId("n1"), by="test"))
    await fleet.until("the leaver is lost", lambda: fleet.lost() == ["n1"])
    await fleet.until("the job runs again", fleet.idle)
    await _same_as_calm(fleet, calm)

    assert fleet.lost() == ["n1"], fleet.story()
    assert fleet.holder(1) == "n3"


@pytest.mark.parametrize(
    "point", ["prepare.begin", "prepare.linked", "switch.before", "switch.between", "switch.after"]
)
async def test_a_stayer_dies_in_a_planned_swap(
    launch: Launch, calm: Callable[..., Any], point: str
) -> None:
    """Whoever dies while a swap that does not concern its slot is prepared or switched is replaced,
    and the leaver leaves all the same.
    """
    fleet = await _fleet(launch)
    fleet.arm("n0", [point], Act.KILL)
    fleet.say(e.DrainRequested(node=NodeId("n1"), by="test"))
    await fleet.until("the stayer is lost", lambda: fleet.lost() == ["n0"])
    await fleet.until(
        "both slots changed hands",
        lambda: fleet.idle() and {fleet.holder(0), fleet.holder(1)} == {"n3", "n4"},
    )
    await _same_as_calm(fleet, calm)

    assert fleet.lost() == ["n0"], fleet.story()
    assert fleet.state.nodes["n1"].state is NodeState.DRAINED


@pytest.mark.parametrize("point", ["prepare.begin", "prepare.linked", "transfer.receiving"])
async def test_a_joiner_dies_in_a_planned_swap(
    launch: Launch, calm: Callable[..., Any], point: str
) -> None:
    """A planned swap whose joiner dies is done with the next standby, and no step is lost."""
    fleet = await _fleet(launch)
    fleet.arm("n3", [point], Act.KILL)
    fleet.say(e.DrainRequested(node=NodeId("n1"), by="test"))
    await fleet.until("the joiner is lost", lambda: fleet.lost() == ["n3"])
    await fleet.until(
        "the next one took the slot", lambda: fleet.idle() and fleet.holder(1) == "n4"
    )
    await _same_as_calm(fleet, calm)

    assert fleet.lost() == ["n3"], fleet.story()
    assert fleet.state.nodes["n1"].state is NodeState.DRAINED


async def test_two_swaps_in_one_transition(launch: Launch, calm: Callable[..., Any]) -> None:
    """Two leavers give their slots away at one boundary; no step is lost or repeated."""
    fleet = await _fleet(launch)
    before = len(fleet.events(e.TransitionPlanned))
    settle = fleet.settle
    fleet.settle = lambda: None
    fleet.say(e.DrainRequested(node=NodeId("n0"), by="test"))
    fleet.settle = settle
    fleet.say(e.DrainRequested(node=NodeId("n2"), by="test"))
    await fleet.until("both are drained", lambda: fleet.idle() and fleet.holder(2) == "n4")
    await _same_as_calm(fleet, calm)

    assert len(fleet.events(e.TransitionPlanned)) == before + 1, fleet.story()
    assert not fleet.lost(), fleet.story()
    assert {fleet.state.nodes[n].state for n in ("n0", "n2")} == {NodeState.DRAINED}


async def test_a_preparation_that_fails_is_refused_and_tried_again(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """Whatever goes wrong in a background thread is said at once, and costs nobody its place."""
    fleet = await _fleet(launch)
    fleet.arm("n3", ["prepare.begin"], Act.RAISE)
    fleet.say(e.DrainRequested(node=NodeId("n1"), by="test"))
    await fleet.until("it is refused", lambda: bool(fleet.events(e.TransitionRefused)))
    await fleet.until("n1 is replaced", lambda: fleet.idle() and fleet.holder(1) != "n1")
    await _same_as_calm(fleet, calm)

    assert "FaultHere" in fleet.events(e.TransitionRefused)[0].event.reason
    assert not fleet.lost(), fleet.story()


async def test_a_preparation_given_up_leaves_the_run_untouched(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """A planned swap that is aborted before its commit costs no step and no member."""
    fleet = await launch(
        nodes=SLOTS,
        standbys=1,
        steps=STEPS,
        extra=EXTRA,
        knobs={
            "lease_ttl_s": 0.4,
            "self_fence_s": 0.3,
            "renew_interval_s": 0.2,
            "store_try_s": 0.1,
            "loss_grace_s": 0.1,
            "takeover_grace_s": 0.2,
            "abort_deadline_s": 0.3,
            "prepare_deadline_s": 1.0,
        },
    )
    await fleet.until("a standby is warm", lambda: bool(fleet.warm()) and fleet.idle())
    fleet.arm("n3", ["prepare.begin"], Act.HOLD)
    fleet.say(e.DrainRequested(node=NodeId("n1"), by="test"))
    await fleet.until("it is given up", lambda: bool(fleet.events(e.TransitionAborted)))
    step = max(line["step"] for line in fleet.nodes["n0"].steps())
    await fleet.until("goes on", lambda: fleet.nodes["n0"].steps()[-1]["step"] > step + 5)
    fleet.release("n3")
    await fleet.until("the second try succeeds", lambda: fleet.idle() and fleet.holder(1) == "n3")
    await _same_as_calm(fleet, calm)

    aborted = fleet.events(e.TransitionAborted)[0].event
    assert "n3" in aborted.blockers, aborted
    assert not fleet.lost(), fleet.story()
