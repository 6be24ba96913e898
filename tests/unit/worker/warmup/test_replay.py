"""What answers in the sandbox: recorded answers in their order, and nothing out of order."""

import re

import pytest
import torch
from torch import Tensor

from worker.warmup.recorder import Recorder
from worker.warmup.recording import Recording
from worker.warmup.replay import Replay, StandIn
from worker.warmup.stamp import Stamp

STAMP = Stamp(code="c", arguments="a", layout="dp=2", versions="torch 9", dtypes="F32")


def replay_of(*calls: tuple[str, str, Tensor]) -> Replay:
    """A replay of these calls."""
    recorder = Recorder()
    recorder.begin()
    for group, operation, output in calls:
        recorder.took(group, operation, [output])
    found: Recording = recorder.finish("middle", 0, STAMP)
    return Replay(found)


def test_each_call_gets_its_own_answer_in_every_step() -> None:
    """The n-th call of an operation on a group gets what the n-th one got, step after step."""
    replay = replay_of(
        ("dp", "all_reduce", torch.tensor([1.0])),
        ("pp", "recv", torch.tensor([7.0])),
        ("dp", "all_reduce", torch.tensor([2.0])),
    )
    for _ in range(2):
        replay.begin_step()
        out = torch.zeros(1)
        seen = []
        for group, operation in (("pp", "recv"), ("dp", "all_reduce"), ("dp", "all_reduce")):
            assert replay.supply(group, operation, [out])
            seen.append(out.item())
        assert seen == [7.0, 1.0, 2.0]
        replay.end_step()
    assert replay.misfits == []
    assert replay.answered == 6


def test_what_needs_no_answer_is_skipped() -> None:
    """Sends and barriers go nowhere, recorded or not."""
    replay = replay_of(("dp", "all_reduce", torch.ones(1)))
    sent = torch.full((2,), 3.0)
    assert replay.supply("pp", "send", [sent])
    assert replay.supply("dp", "barrier", [])
    assert StandIn().supply("pp", "send", [sent])
    assert sent.tolist() == [3.0, 3.0]
    assert replay.misfits == []


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([("dp", "all_gather", (1,))], "call 1 of all_gather of dp was not recorded"),
        ([("dp", "all_reduce", (1,))] * 2, "call 2 of all_reduce of dp was not recorded"),
        (
            [("dp", "all_reduce", (2,))],
            r"gives \['float32\[2\]'\], recorded was \['float32\[1\]'\]",
        ),
        ([], "the step made 0 of 1 recorded all_reduce of dp"),
    ],
)
def test_a_step_that_is_not_the_recorded_one_is_told(
    calls: list[tuple[str, str, tuple[int, ...]]], words: str
) -> None:
    """One call more, less, of another kind or shape: the misfit says which."""
    replay = replay_of(("dp", "all_reduce", torch.ones(1)))
    replay.begin_step()
    for group, operation, shape in calls:
        out = torch.full(shape, float("nan"))
        assert replay.supply(group, operation, [out])
        assert torch.isfinite(out).all(), "a misfit is answered with harmless values"
    replay.end_step()
    assert re.search(words, replay.misfits[0])


def test_without_a_recording_what_others_would_send_is_harmless() -> None:
    """Fresh memory may hold anything; a message is filled with small numbers, the same anywhere."""
    one, two = (torch.full((64,), float("nan")) for _ in range(2))
    assert StandIn().supply("pp", "recv", [one])
    assert StandIn().supply("pp", "recv", [two])
    assert torch.equal(one, two)
    assert 0 < one.abs().max() < 1
    whole = torch.full((4,), 9)
    assert StandIn().supply("pp", "recv", [whole])
    assert whole.tolist() == [0, 0, 0, 0]
    assert not StandIn().supply("dp", "all_reduce", [one]), "a sum of one is left as it is"
