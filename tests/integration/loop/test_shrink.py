"""A job that nobody can fill goes on without a replica, computes the right mean, and grows back.

The reference is computed here, in one process, from nothing but which parts of the batch took part
in which step: that is what a shrunk run is documented to compute.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from statemachine import events as e
from statemachine.lifecycle import NodeState
from tests.integration.loop.train_tiny import PLAIN_RATE, loss_of, network
from worker.state import seed_step

Launch = Callable[..., Awaitable[Any]]

STEPS = 240
SEED = 7
WIDTH = 64
TOLERANCE = 1e-4
"""Of single precision summed in another order; a mean over the wrong number is off by a third."""
KNOBS = {"on_loss": ["standby", "shrink"]}
AXES_SCRIPT = Path(__file__).with_name("train_axes.py")


def _reference(present: dict[int, list[int]]) -> dict[tuple[int, int], float]:
    """Loss by (part, step), where the gradient is the mean over the parts that were present."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = network(WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=PLAIN_RATE)
    losses = {}
    for step in sorted(present):
        for part in present[step]:
            seed_step(SEED, step, part)
            loss = loss_of(model, step, part)
            (loss / len(present[step])).backward()
            losses[part, step] = loss.item()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _present(losses: dict[tuple[int, int], set[float]]) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {}
    for slot, step in sorted(losses):
        steps.setdefault(step, []).append(slot)
    return steps


def _apart(
    losses: dict[tuple[int, int], set[float]], expected: dict[tuple[int, int], float]
) -> float:
    """The largest relative difference of a loss from what is expected."""
    return max(
        abs(loss - expected[key]) / expected[key] for key, found in losses.items() for loss in found
    )


def _idle(fleet: Any) -> set[int]:
    return {int(slot) for slot in fleet.state.jobs["tiny"].idle}


def _runs_on(fleet: Any, name: str, steps: int) -> Callable[[], bool]:
    began = len(fleet.nodes[name].steps())
    return lambda: len(fleet.nodes[name].steps()) >= began + steps


@pytest.mark.timeout(90)
async def test_a_replica_is_left_out_and_comes_back(launch: Launch) -> None:
    """Without a standby the job goes on with two of three parts, averages over these, and is whole
    again when a machine comes; every loss is that of a computation in one process.
    """
    fleet = await launch(
        nodes=3, standbys=0, steps=STEPS, extra=["--plain", "--slow-ms", "20"], knobs=KNOBS
    )
    await fleet.until("it trains", lambda: len(fleet.nodes["n1"].steps()) > 3 and fleet.idle())
    pids = {name: fleet.nodes[name].process.pid for name in ("n0", "n2")}
    fleet.kill("n1")
    await fleet.until("it shrank", lambda: fleet.idle() and _idle(fleet) == {1})
    await fleet.until("it goes on", _runs_on(fleet, "n2", 10))
    await fleet.start("n3")
    await fleet.until("it grew", lambda: fleet.idle() and not _idle(fleet))
    await fleet.until("the joiner trains", _runs_on(fleet, "n3", 5))
    await fleet.digest()
    losses = fleet.losses()
    present = _present(losses)
    expected = _reference(present)

    assert list(dict.fromkeys(map(tuple, present.values()))) == [(0, 1, 2), (0, 2)], present
    assert sorted(present) == list(range(STEPS))
    assert present[STEPS - 1] == [0, 1, 2]
    assert _apart(losses, expected) < TOLERANCE, fleet.story()
    assert fleet.lost() == ["n1"], fleet.story()
    assert fleet.holder(1) == "n3"
    assert {name: fleet.nodes[name].process.pid for name in pids} == pids


@pytest.mark.timeout(120)
async def test_healthy_leftovers_of_a_replica_become_standbys(launch: Launch) -> None:
    """Where one stage of a replica is lost, its other stage waits as a standby, in the same
    process, and takes part again when a machine comes for the lost one.
    """
    fleet = await launch(
        nodes=4,
        standbys=0,
        steps=STEPS,
        axes={"dp": 2, "pp": 2, "tp": 1},
        extra=["--slow-ms", "20"],
        knobs=KNOBS,
        script=AXES_SCRIPT,
    )
    await fleet.until("it trains", lambda: len(fleet.nodes["n3"].steps()) > 3 and fleet.idle())
    pid = fleet.nodes["n3"].process.pid
    fleet.kill(fleet.holder(2))
    await fleet.until("it shrank", lambda: fleet.idle() and _idle(fleet) == {2, 3})
    await fleet.until("it goes on alone", _runs_on(fleet, "n0", 10))
    await fleet.until("the leftover is warm", lambda: fleet.warm() == ["n3"])
    await fleet.start("n4")
    await fleet.until("it grew", lambda: fleet.idle() and not _idle(fleet), 40.0)
    digests = await fleet.digests()
    losses = fleet.losses()

    assert digests[0] == digests[2], fleet.story()
    assert digests[1] == digests[3], fleet.story()
    assert fleet.lost() == ["n2"], fleet.story()
    assert {fleet.holder(2), fleet.holder(3)} == {"n3", "n4"}
    assert fleet.nodes["n3"].process.pid == pid
    assert sorted({step for _, step in losses}) == list(range(STEPS))
    grown = fleet.events(e.TransitionPlanned)[-1].event
    assert grown.motive is e.Motive.PLANNED, grown
    assert fleet.state.nodes["n3"].state is not NodeState.LOST


@pytest.mark.timeout(90)
async def test_a_further_loss_in_a_shrunk_job_is_answered(launch: Launch) -> None:
    """A shrunk job that loses another part is shrunk again, down to the floor of its policy, where
    it waits; a machine that comes then gets it going.
    """
    knobs = {"on_loss": ["standby", "shrink", "wait"]}
    fleet = await launch(
        nodes=3, standbys=0, steps=STEPS, extra=["--plain", "--slow-ms", "20"], knobs=knobs
    )
    await fleet.until("it trains", lambda: len(fleet.nodes["n1"].steps()) > 3 and fleet.idle())
    fleet.kill("n0")
    await fleet.until("it shrank", lambda: fleet.idle() and _idle(fleet) == {0})
    await fleet.until("it goes on", _runs_on(fleet, "n2", 5))
    fleet.kill("n2")
    await fleet.until("it shrank again", lambda: fleet.idle() and _idle(fleet) == {0, 2})
    await fleet.until("it goes on alone", _runs_on(fleet, "n1", 5))
    await fleet.start("n3")
    await fleet.until("it grew", lambda: fleet.idle() and len(_idle(fleet)) == 1)
    await fleet.digest()
    losses = fleet.losses()
    expected = _reference(_present(losses))

    assert _apart(losses, expected) < TOLERANCE, fleet.story()
    assert fleet.lost() == ["n0", "n2"], fleet.story()
