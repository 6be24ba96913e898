"""Claims: a demo that did not hold says which one did not, and why."""

import pytest

from controlplane.demo.greys import GREYS
from controlplane.demo.options import DemoOptions, Faults
from controlplane.demo.outcome import ClaimOutcome, Outcome
from controlplane.demo.plot import GREY, KILL, Hurt, Identity
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
from statemachine.ids import Incarnation, JobId, NodeId, Position, Slot, SweepId

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


# --- what is right to say of a grey node ------------------------------------------------------

FOUND = {
    "compute": "solo: gemm_gflops_best 70 against 100 usual: 1.43x worse",
    "memory": "solo: memory_gbps_best 20 against 28 usual: 1.40x worse",
    "link": "pair: link_mbps_out_best 1000 against 6000 usual; third: link_mbps_out_best 1000",
    "input": "solo: gemm_gflops_best 100 against 100 usual: 1.00x worse",
}
CAUSE = {
    "compute": "compute: it computes longer",
    "memory": "compute",
    "link": "communication: its links",
    "input": "input: it waits for data",
}


def told(cause: str, *sweeps: tuple[e.SweepOutcome, str]) -> list[e.Recorded]:
    """A verdict with a cause, sweeps while the node is grey, and one that passes after it was."""
    node, one = NodeId("n2"), Incarnation(1)
    verdict = e.VerdictIssued(
        node=node,
        incarnation=one,
        verdict=e.Verdict.FAULTY,
        reason="x",
        detector="peers",
        cause=cause,
    )
    swept = [
        e.SweepFinished(
            sweep=SweepId(number), node=node, incarnation=one, outcome=outcome, reason=reason
        )
        for number, (outcome, reason) in enumerate([*sweeps, (e.SweepOutcome.PASSED, "well")], 1)
    ]
    events: list[e.AnyEvent] = [
        verdict,
        *swept[:-1],
        e.FaultLifted(node=node, kind=GREY),
        swept[-1],
    ]
    return [
        e.Recorded(position=Position(number), at_ms=number, writer="w", event=event)
        for number, event in enumerate(events, 1)
    ]


def rightly(kind: str, log: list[e.Recorded]) -> list[bool]:
    """Whether the cause was named, and whether the sweep decided rightly."""
    options = DemoOptions(faults=Faults.GREY, grey_kind=kind, steps=40)
    hurt = Hurt(GREY, NodeId("n2"), 0, {})
    finish = Finish(39, ("a",) * 4, (1.0,) * 4)
    claims = claims_of_run(options, log, [hurt], falling(), finish)
    return [c.holds for c in claims if "named the cause" in c.text or "while it was grey" in c.text]


@pytest.mark.parametrize("kind", list(GREYS))
def test_each_kind_of_grey_has_one_right_answer(kind: str) -> None:
    """The cause of its own kind and the sweep that finds what is slow, or nothing if nothing is;
    what a sweep could not tell is no answer, and what it says once the fault is lifted is none.
    """
    right = GREYS[kind].outcome
    wrong = next(o for o in (e.SweepOutcome.PASSED, e.SweepOutcome.FAILED) if o is not right)
    unsure = (e.SweepOutcome.INCONCLUSIVE, "disturbed")

    assert rightly(kind, told(CAUSE[kind], unsure, (right, FOUND[kind]))) == [True, True]
    assert rightly(kind, told(CAUSE[kind], (wrong, FOUND[kind]))) == [True, False]
    assert rightly(kind, told(CAUSE[kind], unsure)) == [True, False]
    assert rightly(kind, told("", (right, FOUND[kind]))) == [False, True]


def test_a_sweep_that_fails_by_something_else_has_not_found_it() -> None:
    """A node whose links are slow did not fail rightly by its memory."""
    assert rightly("link", told(CAUSE["link"], (e.SweepOutcome.FAILED, FOUND["memory"]))) == [
        True,
        False,
    ]
