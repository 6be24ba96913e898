"""Claims: a demo that did not hold says which one did not, and why."""

import pytest

from controlplane.demo.options import DemoOptions, Faults
from controlplane.demo.outcome import ClaimOutcome, Outcome
from controlplane.demo.plot import KILL, Hurt, Identity
from controlplane.demo.proof import (
    Claim,
    Finish,
    claims_of_run,
    claims_of_sameness,
    finish_of,
    survivors_unchanged,
)
from controlplane.demo.steps import JobStep
from statemachine import events as e
from statemachine.ids import Incarnation, JobId, NodeId, Position, Slot

PLAIN = DemoOptions(faults=Faults.NONE, steps=40)


def finished(node: str, digest: str, loss: float, step: int = 39) -> e.Recorded:
    """A node's last word."""
    event = e.WorkerFinished(
        node=NodeId(node),
        incarnation=Incarnation(1),
        job=JobId("demo"),
        step=step,
        weights_digest=digest,
        loss=loss,
    )
    return e.Recorded(position=Position(1), at_ms=1, writer=node, event=event)


def falling(count: int = 40) -> list[JobStep]:
    """Steps whose loss falls."""
    return [JobStep(step=n, at_ms=n, gap_ms=1, loss=5 - n / count) for n in range(count)]


def broken(claims: list[Claim]) -> list[str]:
    """The claims that do not hold."""
    return [claim.text for claim in claims if not claim.holds]


def test_a_finish_is_read_in_slot_order() -> None:
    """The mean of losses must not depend on who sat where or spoke first."""
    log = [finished("n1", "a", 0.1), finished("n0", "a", 0.2), finished("n9", "b", 9.0)]
    ended = finish_of(log, {Slot(0): NodeId("n0"), Slot(1): NodeId("n1")})
    assert ended == Finish(step=39, digests=("a", "a"), losses=(0.2, 0.1))
    assert ended.digest == "a"
    assert ended.loss == (0.2 + 0.1) / 2


def test_slots_with_different_weights_have_no_digest() -> None:
    """Replicas that drifted apart are a failure, not a choice."""
    apart = Finish(step=39, digests=("a", "b"), losses=(1.0, 1.0))
    assert apart.digest == ""
    assert len(broken(claims_of_sameness(apart, apart))) == 1


def test_one_bit_of_weights_or_loss_breaks_the_claim() -> None:
    """Equal means equal."""
    one = Finish(step=39, digests=("a", "a"), losses=(1.0, 2.0))
    assert broken(claims_of_sameness(one, one)) == []
    other = Finish(step=39, digests=("b", "b"), losses=(1.0, 2.0))
    assert len(broken(claims_of_sameness(one, other))) == 1
    nearly = Finish(step=39, digests=("a", "a"), losses=(1.0, 2.0000000000000004))
    assert len(broken(claims_of_sameness(one, nearly))) == 1


@pytest.mark.parametrize(
    ("finish", "steps", "words"),
    [
        (Finish(39, ("a",) * 4, (1.0,) * 4), falling(), []),
        (Finish(38, ("a",) * 4, (1.0,) * 4), falling(), ["all 39 steps"]),
        (Finish(39, ("a",) * 4, (1.0,) * 4), falling()[:-1], ["all 40 steps"]),
        (Finish(39, ("a",) * 3, (1.0,) * 3), falling(), ["all 40 steps"]),
        (Finish(39, ("a",) * 4, (1.0,) * 4), falling()[::-1], ["the loss fell"]),
        (Finish(39, ("a",) * 4, (1.0,) * 4), [], ["all 40 steps", "the loss fell"]),
    ],
)
def test_a_run_has_to_be_whole_and_to_learn(
    finish: Finish, steps: list[JobStep], words: list[str]
) -> None:
    """All steps in all slots, and a loss that is lower in the end."""
    found = broken(claims_of_run(PLAIN, [], [], steps, finish))
    assert len(found) == len(words)
    assert all(text.startswith(word) for text, word in zip(found, words, strict=True))


def test_a_fault_that_nobody_answered_is_a_failure() -> None:
    """The node was hurt, and no slot changed hands."""
    hurt = Hurt(KILL, NodeId("n1"), 5.0, {})
    claims = claims_of_run(PLAIN, [], [hurt], falling(), Finish(39, ("a",) * 4, (1.0,) * 4))
    assert broken(claims) == [
        "nobody was replaced who was not hurt",
        "n1 was replaced after kill",
        "no survivor was restarted",
    ]
    assert not survivors_unchanged([hurt], [])


def test_an_identity_is_more_than_a_process_id() -> None:
    """An id that was given to a later process does not count as the same one."""
    assert Identity(7, 1.0) != Identity(7, 2.0)


def test_the_cause_of_a_failure_is_one_line_each() -> None:
    """First what ended the demo, then each claim that did not hold, with its evidence."""
    outcome = Outcome(
        error="etcd ended",
        claims=[
            ClaimOutcome(claim="a", holds=True, detail=""),
            ClaimOutcome(claim="b", holds=False, detail="c"),
        ],
    )
    assert outcome.failures == ["etcd ended", "did not hold: b (c)"]
