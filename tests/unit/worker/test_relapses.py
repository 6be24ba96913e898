"""When an agent gives up: a command that cannot work, a script that fails at the same step."""

import pytest

from worker.agent_node import End, EndKind
from worker.relapses import FALSE_STARTS_MAX, RELAPSES_MAX, UNRELATED_S, Relapses


def life(
    reached: int, kind: EndKind = EndKind.CRASHED, *, ready: bool = True, duty: bool = True
) -> End:
    """How a life ended."""
    return End(kind, "why", was_ready=ready, reached=reached, in_duty=duty)


def after(*lives: End, lived_s: float = 1.0) -> Relapses:
    """What was made of them."""
    relapses = Relapses()
    for end in lives:
        relapses.heed(end, lived_s)
    return relapses


@pytest.mark.parametrize("lived_s", [1.0, 600.0])
def test_a_script_that_fails_at_the_same_step_is_given_up(lived_s: float) -> None:
    """However long it takes to get there, and with the step in the reason."""
    before = after(*[life(99)] * (RELAPSES_MAX - 1), lived_s=lived_s)
    assert before.hopeless() == ""

    assert "at step 100" in after(*[life(99)] * RELAPSES_MAX, lived_s=lived_s).hopeless()


def test_a_life_that_committed_a_step_starts_the_count_anew() -> None:
    """As long as it gets on, it is worth a start."""
    assert after(*[life(step) for step in range(4 * RELAPSES_MAX)]).hopeless() == ""


def test_a_life_of_hours_has_nothing_to_do_with_the_crash_before() -> None:
    """Such as that of a node that stood by in between."""
    assert after(*[life(7)] * (2 * RELAPSES_MAX), lived_s=UNRELATED_S + 1).hopeless() == ""


@pytest.mark.parametrize(
    "end",
    [life(7, duty=False), life(7, EndKind.FENCED), life(7, EndKind.ASSIGNED)],
    ids=["standing by", "declared lost", "lent"],
)
def test_what_is_not_its_script_in_a_slot_is_never_given_up(end: End) -> None:
    """A network that fails, or a standby that is hurt: the script is not to blame."""
    assert after(*[end] * (2 * RELAPSES_MAX)).hopeless() == ""


def test_a_process_that_never_reaches_its_loop_is_given_up_sooner() -> None:
    """A command that cannot work."""
    before = after(*[life(-1, ready=False)] * (FALSE_STARTS_MAX - 1))
    assert before.hopeless() == ""

    before.heed(life(-1, ready=False), 1.0)

    assert "before their step loop" in before.hopeless()
