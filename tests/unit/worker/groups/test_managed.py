"""A managed group while nobody is there, and the port's own rules."""

import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from worker.groups.delta import DeltaBackend
from worker.groups.links import LinkEndpoint
from worker.groups.managed import ManagedGroup
from worker.groups.port import Cause, CauseKind, GroupPlan, Member, PrepareRefused


@pytest.fixture
def endpoint() -> Iterator[LinkEndpoint]:
    """An endpoint with nobody at the other end."""
    found = LinkEndpoint("job", "n0", 1, b"sixteen bytes or more")
    yield found
    found.close()


@pytest.fixture
def alone(endpoint: LinkEndpoint) -> ManagedGroup:
    """A detached group of declared size 4."""
    return ManagedGroup("dp", 4, DeltaBackend("dp", endpoint))


def test_a_detached_group_has_its_declared_size(alone: ManagedGroup) -> None:
    """Size is known before anybody is there."""
    assert (alone.size(), alone.rank(), alone.attached, alone.broken) == (4, 0, False, False)


def test_detached_collectives_answer_with_what_this_rank_has(alone: ManagedGroup) -> None:
    """Reductions leave the tensor, gathers repeat it: never zeros, never a hang."""
    own = torch.arange(6.0)
    reduced = own.clone()
    dist.all_reduce(reduced, group=alone)
    gathered = [torch.zeros(6) for _ in range(4)]
    dist.all_gather(gathered, own, group=alone)
    part = torch.zeros(6)
    dist.reduce_scatter(part, [own + index for index in range(4)], group=alone)
    whole = torch.zeros(24)
    dist.all_gather_into_tensor(whole, own, group=alone)
    dist.barrier(group=alone)

    assert torch.equal(reduced, own)
    assert all(torch.equal(one, own) for one in gathered)
    assert torch.equal(part, own)
    assert torch.equal(whole.view(4, 6), own.expand(4, 6))
    assert alone.vote([3, 1]) == [3, 1]


def test_a_sandbox_supplies_what_was_recorded(alone: ManagedGroup) -> None:
    """A detached group asks the sandbox first, and falls back to the local answer."""
    asked: list[tuple[str, str, int]] = []

    class Recorded:
        def supply(self, group: str, operation: str, outputs: Sequence[Tensor]) -> bool:
            asked.append((group, operation, len(outputs)))
            if operation != "all_reduce":
                return False
            outputs[0].fill_(7.0)
            return True

    alone.sandbox = Recorded()
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=alone)
    dist.barrier(group=alone)

    assert torch.equal(tensor, torch.full((3,), 7.0))
    assert asked == [("dp", "all_reduce", 1), ("dp", "barrier", 0)]


def test_ddp_runs_detached(alone: ManagedGroup) -> None:
    """A standby can wrap its model and rehearse steps before it has any peer."""
    model = DistributedDataParallel(torch.nn.Linear(4, 2), process_group=alone)
    model(torch.ones(3, 4)).sum().backward()

    assert all(one.grad is not None for one in model.parameters())


def test_a_plan_of_more_members_or_for_another_node_is_refused(alone: ManagedGroup) -> None:
    """The layout is declared once; a plan has no more members than it, and must be ours."""
    members = tuple(Member(i, i, f"n{i}", 1, "127.0.0.1", 1) for i in range(5))
    with pytest.raises(PrepareRefused, match="declared"):
        alone.prepare(GroupPlan("dp", "job", 1, 1, 0, members))
    with pytest.raises(PrepareRefused, match="not us"):
        alone.prepare(GroupPlan("dp", "job", 1, 1, 2, members[:4]))
    with pytest.raises(PrepareRefused, match="plan is for"):
        alone.prepare(GroupPlan("tp", "job", 1, 1, 0, members[:4]))


def test_a_group_of_one_reduces_alone(endpoint: LinkEndpoint) -> None:
    """A layout with an axis of one needs no link and computes right."""
    group = ManagedGroup("dp", 1, DeltaBackend("dp", endpoint))
    plan = GroupPlan("dp", "job", 1, 1, 0, (Member(0, 0, "n0", 1, *endpoint.address),))
    assert group.prepare(plan).links_opened == 0
    group.switch(plan)
    tensor = torch.arange(5.0)
    dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)

    assert torch.equal(tensor, torch.arange(5.0))
    assert group.vote([4]) == [4]
    group.break_off(Cause(CauseKind.ABORTED))
    assert group.vote([4]) is None


def test_a_reduction_without_meaning_is_refused_before_anything_is_sent(
    endpoint: LinkEndpoint,
) -> None:
    """Bitwise reductions of fractions are the caller's mistake, and the group stays whole."""
    group = ManagedGroup("dp", 1, DeltaBackend("dp", endpoint))
    plan = GroupPlan("dp", "job", 1, 1, 0, (Member(0, 0, "n0", 1, *endpoint.address),))
    group.prepare(plan)
    group.switch(plan)
    with pytest.raises(TypeError, match="band is not defined"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND, group=group)

    assert not group.broken


def test_members_must_be_in_slot_order() -> None:
    """Two members that read a plan differently would compute different bits."""
    first, second = (Member(i, i, f"n{i}", 1, "127.0.0.1", 1) for i in (0, 1))
    with pytest.raises(ValueError, match="slot order"):
        GroupPlan("dp", "job", 1, 1, 0, (second, first))
    with pytest.raises(ValueError, match="outside"):
        GroupPlan("dp", "job", 1, 1, 2, (first, second))


@pytest.mark.parametrize("module", ["worker.groups.port", "worker.groups.links"])
def test_the_port_and_the_links_load_without_torch(module: str) -> None:
    """An agent that only carries plans and links does not pay for torch."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
