"""NCCL behind the port, where there is a GPU: one group of one rank is what one device can show."""

from collections.abc import Iterator

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from worker.groups.installed import probe
from worker.groups.managed import ManagedGroup
from worker.groups.port import Cause, CauseKind, GroupPlan, Member, ReduceOp
from worker.groups.rebuild_nccl import NcclBackend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() and probe().nccl), reason="no NVIDIA GPU with NCCL here"
    ),
]


def plan(epoch: int) -> GroupPlan:
    """The plan of a group of one."""
    return GroupPlan("dp", "job", epoch, epoch, 0, (Member(0, 0, "n0", 1, "127.0.0.1", 1),))


@pytest.fixture
def backend() -> Iterator[NcclBackend]:
    """A backend with a store of its own."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = NcclBackend("dp", store)
    yield found
    found.close()


def test_a_group_is_built_swapped_and_computes(backend: NcclBackend) -> None:
    """Collectives are right before and after the group was built anew."""
    for epoch in (1, 2):
        backend.prepare(plan(epoch), 30.0)
        backend.switch(plan(epoch))
        tensor = torch.arange(5.0, device="cuda")
        assert backend.all_reduce(tensor, ReduceOp.SUM)
        assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert backend.vote([3, 1]) == [3, 1]


def test_an_aborted_group_answers_at_once_and_the_next_is_whole(backend: NcclBackend) -> None:
    """After an abort nothing is waited for; the next plan's group works."""
    group = ManagedGroup("dp", 1, backend)
    group.prepare(plan(1))
    group.switch(plan(1))
    group.break_off(Cause(CauseKind.TOLD, None, "by the test"))
    assert group.vote([1]) is None
    group.prepare(plan(2))
    group.switch(plan(2))

    assert group.vote([1]) == [1]
    assert {"group_abort_ms.rebuild-nccl", "group_switch_ms.rebuild-nccl"} <= set(
        group.take_costs()
    )


def test_the_probe_knows_the_installed_nccl() -> None:
    """The version is read, and what follows from it is consistent."""
    found = probe()

    assert found.nccl_version >= (2, 4)
    assert "abort" in found.nccl_calls
    assert found.nccl_abort
