"""The first collective of a step waits for a loss to be answered, and no other one does."""

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from worker.groups.backend import GroupBackend
from worker.groups.keeping import KEEP_BYTES_MAX, Keeping
from worker.groups.managed import ManagedGroup
from worker.groups.port import Cause, CauseKind, GroupPlan, Member, ReduceOp

PLAN = GroupPlan("dp", "j", 1, 1, 0, tuple(Member(i, i, f"n{i}", 1, "h", i) for i in range(2)))
LOST = Cause(CauseKind.PEER_RESET, 1)


class Doubling:
    """A backend of two equal members, which breaks at given calls after it spoilt the input."""

    def __init__(self, breaks_at: set[int]) -> None:
        self.plan = PLAN
        self.broken: Cause | None = None
        self.calls = 0
        self._breaks_at = breaks_at

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> bool:
        """Double it, or spoil it and break."""
        self.calls += 1
        tensor.mul_(2)
        if self.calls in self._breaks_at:
            tensor.add_(100)
            self.broken = LOST
        return self.broken is None

    def barrier(self) -> bool:
        """Answer at once."""
        self.calls += 1
        return self.broken is None

    def post_send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        """Take a message."""
        return None


def group_of(backend: Doubling, mends: bool) -> tuple[ManagedGroup, list[int]]:
    """A group whose losses are answered (or not), and the calls so far at each question."""
    asked: list[int] = []

    def mend() -> bool:
        asked.append(backend.calls)
        if mends:
            backend.broken = None
        return mends

    group = ManagedGroup("dp", 2, cast("GroupBackend", backend), 0)
    group.keeping = Keeping(mend)
    group.keeping.step_begins()
    return group, asked


def test_the_first_collective_runs_again_on_its_own_inputs() -> None:
    """What the broken try had done to the tensor is undone before the second one."""
    backend = Doubling({1, 2})
    group, asked = group_of(backend, mends=True)
    tensor = torch.tensor([1.0, 3.0])
    group.allreduce([tensor])

    assert tensor.tolist() == [2.0, 6.0]
    assert asked == [1, 2]


def test_a_loss_that_is_answered_otherwise_leaves_the_input_and_is_not_asked_about_again() -> None:
    """The step is given up: later collectives return at once with tensors as they are."""
    backend = Doubling({1})
    group, asked = group_of(backend, mends=False)
    tensor = torch.tensor([1.0])
    group.allreduce([tensor])
    group.allreduce([tensor])

    assert tensor.tolist() == [1.0]
    assert asked == [1]
    assert backend.calls == 1


def _reduced(group: ManagedGroup) -> None:
    group.allreduce([torch.ones(1)])


def _sent(group: ManagedGroup) -> None:
    group.send([torch.ones(1)], 1)


def _met(group: ManagedGroup) -> None:
    group.barrier()


@pytest.mark.parametrize("before", [_reduced, _sent, _met])
def test_a_step_that_has_met_a_peer_is_not_kept(before: Callable[[ManagedGroup], None]) -> None:
    """Whoever has had something of a peer cannot go on beside a joiner that has not."""
    backend = Doubling({2} if before is not _sent else {1})
    group, asked = group_of(backend, mends=True)
    before(group)
    group.allreduce([torch.ones(1)])

    assert asked == []
    assert group.broken


def test_inputs_that_are_too_large_to_copy_are_not_kept() -> None:
    """No step pays for a copy of more than a few MiB."""
    backend = Doubling({1})
    group, asked = group_of(backend, mends=True)
    group.allreduce([torch.ones(KEEP_BYTES_MAX // 4 + 1)])

    assert asked == []


def test_only_the_thread_that_began_the_step_waits() -> None:
    """A collective of some other thread is answered with dummy values, as ever."""
    backend = Doubling({1})
    group, asked = group_of(backend, mends=True)
    other = threading.Thread(target=_reduced, args=(group,))
    other.start()
    other.join()

    assert asked == []
    assert group.broken
