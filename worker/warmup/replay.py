"""The far side of the sandbox: what a group answers while nobody is there.

Rules of this file: it fills outputs and takes note of what does not fit; it opens nothing and sends
nothing. `send` and `barrier` are skipped.

With a recording, the n-th call of an operation on a group gets what the n-th such call of the
recorded step got. A step that asks for something else than was recorded is not the recorded step:
it is answered with harmless values, so that it comes to its end, and the misfit is told.
Without one (before the job has a recording), messages get small random numbers: what lies in fresh
memory could be anything, and zeros make NaN in many a normalisation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from worker.warmup.recorder import SILENT
from worker.warmup.recording import Recording

_FROM_OTHERS: Final = frozenset({"recv", "scatter"})
"""Operations whose outputs hold nothing before somebody else has spoken."""

_SCALE: Final = 0.02


class StandIn:
    """Answers before there is a recording."""

    def __init__(self) -> None:
        self._chance = torch.Generator().manual_seed(1)

    def supply(self, group: str, operation: str, outputs: Sequence[Tensor]) -> bool:
        """Fill what only others could have filled; leave the rest to the local answer."""
        if operation not in _FROM_OTHERS:
            return operation in SILENT
        for output in outputs:
            self.fill(output)
        return True

    def fill(self, output: Tensor) -> None:
        """Small random numbers, the same in every process."""
        if output.is_floating_point():
            made = torch.randn(output.shape, generator=self._chance) * _SCALE
            output.copy_(made.to(output.dtype))
        else:
            output.zero_()


class Replay:
    """Answers from a recording; `misfits` tells what the step asked for that was not recorded."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.misfits: list[str] = []
        self.answered = 0
        self._answers: dict[tuple[str, str], list[list[Tensor]]] = defaultdict(list)
        tensors = recording.tensors()
        for answer in recording.answers:
            outputs = [tensors[name] for name in answer.outputs]
            self._answers[answer.group, answer.operation].append(outputs)
        self._asked: Counter[tuple[str, str]] = Counter()
        self._stand_in = StandIn()

    def begin_step(self) -> None:
        """The recorded step begins again."""
        self._asked.clear()

    def end_step(self) -> None:
        """Take note of what was recorded and not asked for."""
        for (group, operation), answers in self._answers.items():
            asked = self._asked[group, operation]
            if asked < len(answers):
                self.misfits.append(
                    f"the step made {asked} of {len(answers)} recorded {operation} of {group}"
                )

    def supply(self, group: str, operation: str, outputs: Sequence[Tensor]) -> bool:
        """Fill `outputs` with what was recorded for this call."""
        if operation in SILENT:
            return True
        answers = self._answers[group, operation]
        number = self._asked[group, operation]
        self._asked[group, operation] += 1
        if number >= len(answers):
            self._misfit(f"call {number + 1} of {operation} of {group} was not recorded", outputs)
            return True
        recorded = answers[number]
        if _shapes(recorded) != _shapes(outputs):
            where = f"call {number + 1} of {operation} of {group}"
            told = f"{where} gives {_shapes(outputs)}, recorded was {_shapes(recorded)}"
            self._misfit(told, outputs)
            return True
        for output, tensor in zip(outputs, recorded, strict=True):
            output.copy_(tensor)
        self.answered += 1
        return True

    def _misfit(self, told: str, outputs: Sequence[Tensor]) -> None:
        self.misfits.append(told)
        for output in outputs:
            self._stand_in.fill(output)


def _shapes(tensors: Sequence[Tensor]) -> list[str]:
    return [f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in tensors]
