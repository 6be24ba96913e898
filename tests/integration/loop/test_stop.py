"""A run that an operator stops: every rank leaves after the same step."""

from collections.abc import Awaitable, Callable
from typing import Any

from statemachine import events as e
from statemachine.ids import JobId

Launch = Callable[..., Awaitable[Any]]

JOB = JobId("tiny")
ENDLESS = 1_000_000


async def test_a_stopped_run_ends_where_all_ranks_agree(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """The weights are those of a run that had as many steps from the start."""
    fleet = await launch(nodes=3, steps=ENDLESS)
    await fleet.until("it trains", lambda: fleet.state.jobs[JOB].launched and fleet.idle())
    fleet.say(e.JobStopRequested(job=JOB, by="test"))
    digest = await fleet.digest()
    finished = fleet.events(e.JobFinished)[0].event
    expected, _ = await calm(3, finished.step + 1)

    assert digest == expected, fleet.story()
    assert not fleet.lost(), fleet.story()


async def test_behind_the_loop_only_those_act_who_did_the_last_step(launch: Launch) -> None:
    """Standbys come out of the loop as well, with weights that nobody trained: what a script does
    `outside` there, such as saving the model, is done by the ranks, each with its coordinate.
    """
    fleet = await launch(nodes=2, standbys=1, steps=20)
    await fleet.digest()
    names = [f"n{number}" for number in range(3)]
    left = [fleet.folder / f"{name}.left" for name in names]
    await fleet.until("all have left", lambda: all(path.exists() for path in left), 30.0)
    finals = {path.stem: path.read_text() for path in fleet.folder.glob("*.final")}

    assert finals == {str(fleet.holder(slot)): str(slot) for slot in range(2)}, fleet.story()


async def test_a_loss_while_the_run_is_being_stopped_changes_no_weight(
    launch: Launch, calm: Callable[..., Any]
) -> None:
    """Whoever stopped at a vote that the others missed goes on with them, and stops with them."""
    fleet = await launch(nodes=3, standbys=1, steps=ENDLESS, extra=["--slow-ms", "20"])
    await fleet.until("a standby is warm", lambda: bool(fleet.warm()) and fleet.idle())
    fleet.agents_tell = False
    fleet.kill("n1")
    fleet.say(e.JobStopRequested(job=JOB, by="test"))
    digest = await fleet.digest()
    finished = fleet.events(e.JobFinished)[0].event
    expected, _ = await calm(3, finished.step + 1)

    assert digest == expected, fleet.story()
    assert fleet.lost() == ["n1"], fleet.story()
