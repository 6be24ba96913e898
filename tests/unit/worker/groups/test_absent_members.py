"""A group of which only one declared member is there: what a job shrunk to one replica runs on."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from worker.groups.delta import DeltaBackend
from worker.groups.links import LinkEndpoint
from worker.groups.managed import ManagedGroup
from worker.groups.port import GroupPlan, Member


@pytest.fixture
def alone() -> Iterator[ManagedGroup]:
    """Declared for 4, with a plan for the third alone."""
    endpoint = LinkEndpoint("job", "n2", 1, b"sixteen bytes or more")
    group = ManagedGroup("dp", 4, DeltaBackend("dp", endpoint))
    host, port = endpoint.address
    plan = GroupPlan("dp", "job", 2, 3, 0, (Member(2, 2, "n2", 1, host, port),))
    group.prepare(plan)
    group.switch(plan)
    yield group
    group.close()
    endpoint.close()


def test_its_size_and_rank_are_those_of_who_is_there(alone: ManagedGroup) -> None:
    """The size is what a sum is to be divided by; detached, it is the declared one again."""
    assert (alone.size(), alone.rank(), alone.broken) == (1, 0, False)
    alone.detach()
    assert alone.size() == 4


def test_collectives_among_one_return_its_own(alone: ManagedGroup) -> None:
    """Sum, mean, gather, scatter, barrier and vote, with sizes of the present."""
    own = torch.arange(6.0)
    summed, mean, whole, part = own.clone(), own.clone(), torch.zeros(6), torch.zeros(6)
    dist.all_reduce(summed, group=alone)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=alone)
    dist.all_gather_into_tensor(whole, own, group=alone)
    dist.reduce_scatter_tensor(part, own, group=alone)
    dist.barrier(group=alone)

    assert all(torch.equal(one, own) for one in (summed, mean, whole, part))
    assert alone.vote([3, 1]) == [3, 1]


def test_the_mean_of_ddp_is_over_those_who_are_there(alone: ManagedGroup) -> None:
    """A model that was wrapped while four were declared divides by one."""
    alone.detach()
    model = torch.nn.Linear(2, 1, bias=False)
    wrapped = DistributedDataParallel(model, process_group=alone)
    wrapped(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None
    assert torch.equal(model.weight.grad, torch.full((1, 2), 0.25))  # each of four has as much

    host, port = alone.backend._endpoint.address  # type: ignore[attr-defined]
    plan = GroupPlan("dp", "job", 3, 4, 0, (Member(2, 2, "n2", 1, host, port),))
    alone.prepare(plan)
    alone.switch(plan)
    model.zero_grad()
    wrapped(torch.ones(1, 2)).sum().backward()

    assert torch.equal(model.weight.grad, torch.ones(1, 2))
