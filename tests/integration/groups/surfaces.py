"""Torch's own layers on top of a managed group, each as a user would call it; run in a rank.

What belongs here: one function per layer. It gets the group and its plan, and returns what it
computed beside what it must be. What does not: any knowledge of links.
"""

import itertools
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from worker.groups.delta import DeltaBackend
from worker.groups.managed import ManagedGroup
from worker.groups.port import GroupPlan
from worker.groups.registry import publish

STEPS: Final = 3
_numbers = itertools.count(1)
Found = dict[str, Any]
_shared: Any = dist  # whose stubs leave out what every program uses


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))


def _batch(step: int, index: int) -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(100 * step + index))


def _weights(model: nn.Module) -> Tensor:
    parts = []
    for one in model.parameters():
        whole = one.full_tensor() if isinstance(one, DTensor) else one
        parts.append(whole.detach().flatten())
    return torch.cat(parts)


def _trained(model: nn.Module, loss_of: Callable[[int], Tensor]) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        loss_of(step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return _weights(model)


def _reference(size: int) -> Tensor:
    """The same training by one process that sees every member's batch."""
    model = _model()

    def loss(step: int) -> Tensor:
        losses = [model(_batch(step, index)).square().mean() for index in range(size)]
        return torch.stack(losses).mean()

    return _trained(model, loss)


def _compare(model: nn.Module, wrapped: Any, plan: GroupPlan) -> Found:
    found = _trained(model, lambda step: wrapped(_batch(step, plan.me)).square().mean())
    return {"found": found.tolist(), "expected": _reference(plan.size).tolist()}


def _mesh(group: ManagedGroup) -> DeviceMesh:
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))


def ddp(group: ManagedGroup, plan: GroupPlan) -> Found:
    """DistributedDataParallel with its options that change what it asks of a group."""
    model = _model()
    wrapped = DistributedDataParallel(
        model, process_group=group, gradient_as_bucket_view=True, find_unused_parameters=True
    )
    return _compare(model, wrapped, plan)


def ddp_that_accumulates(group: ManagedGroup, plan: GroupPlan) -> Found:
    """no_sync: two half steps are one, whose gradients are averaged once."""
    model = _model()
    wrapped = DistributedDataParallel(model, process_group=group)
    with wrapped.no_sync():
        wrapped(_batch(0, plan.me)).square().mean().backward()
    wrapped(_batch(1, plan.me)).square().mean().backward()
    found = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
    alone = _model()
    for step in range(2):
        for index in range(plan.size):
            (alone(_batch(step, index)).square().mean() / plan.size).backward()
    expected = torch.cat([one.grad.flatten() for one in alone.parameters() if one.grad is not None])
    return {"found": found.tolist(), "expected": expected.tolist()}


def composable_replicate(group: ManagedGroup, plan: GroupPlan) -> Found:
    """`replicate`, the composable form of data parallelism, on a mesh."""
    model = _model()
    replicate(model, device_mesh=_mesh(group))
    return _compare(model, model, plan)


def fsdp2(group: ManagedGroup, plan: GroupPlan) -> Found:
    """`fully_shard`: parameters sharded over the group, gathered and reduced through it."""
    model = _model()
    fully_shard(model, mesh=_mesh(group))
    return _compare(model, model, plan)


def fsdp2_replicated(group: ManagedGroup, plan: GroupPlan) -> Found:
    """`fully_shard` on two axes, of which the managed group is the replicate one (HSDP)."""
    model = _model()
    fully_shard(model, mesh=_two_axes(group, plan))
    return _compare(model, model, plan)


def _two_axes(group: ManagedGroup, plan: GroupPlan) -> DeviceMesh:
    """A mesh of the managed group and an axis of one."""
    backend: Any = group.backend
    label = f"shard{next(_numbers)}"
    alone = ManagedGroup(label, 1, DeltaBackend(label, backend._endpoint), 0)
    publish(alone, [plan.me])
    places = torch.arange(plan.size).view(-1, 1)
    names = ("replicate", "shard")
    return DeviceMesh.from_group([group, alone], "cpu", mesh=places, mesh_dim_names=names)


def meshes(group: ManagedGroup, plan: GroupPlan) -> Found:
    """A device mesh over all ranks is the managed group itself, made either way."""
    made = init_device_mesh("cpu", (plan.size,), mesh_dim_names=("dp",))
    same = [made.get_group("dp") is group, _mesh(group).get_group("dp") is group]
    return {"found": [*same, made.get_local_rank()], "expected": [True, True, plan.me]}


def dtensor(group: ManagedGroup, plan: GroupPlan) -> Found:
    """DTensor: distribute, redistribute, reduce what is partial, multiply."""
    mesh = _mesh(group)
    whole = torch.arange(24.0).view(6, 4)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    ones = distribute_tensor(torch.ones(4, 2), mesh, [Replicate()])
    partial = DTensor.from_local(torch.full((2,), plan.me + 1.0), mesh, [Partial()])
    product: Any = rows @ ones
    found = [
        rows.full_tensor(),
        rows.redistribute(mesh, [Shard(1)]).full_tensor(),
        partial.full_tensor(),
        product.full_tensor(),
    ]
    total = plan.size * (plan.size + 1) / 2
    expected = [whole, whole, torch.full((2,), total), whole @ torch.ones(4, 2)]
    return {
        "found": torch.cat([one.flatten() for one in found]).tolist(),
        "expected": torch.cat([one.flatten() for one in expected]).tolist(),
    }


def batched_messages(group: ManagedGroup, plan: GroupPlan) -> Found:
    """`batch_isend_irecv`, as pipeline schedules use it: once around."""
    own, received = torch.full((3,), float(plan.me)), torch.zeros(3)
    after, before = (plan.me + 1) % plan.size, (plan.me - 1) % plan.size
    asked = [
        _shared.P2POp(_shared.isend, own, after, group=group),
        _shared.P2POp(_shared.irecv, received, before, group=group),
    ]
    for work in _shared.batch_isend_irecv(asked):
        work.wait()
    return {"found": received.tolist(), "expected": [float(before)] * 3}


def coalesced(group: ManagedGroup, plan: GroupPlan) -> Found:
    """Several reductions in one block."""
    tensors = [torch.full((size,), plan.me + 1.0) for size in (1, 2, 3)]
    with _shared._coalescing_manager(group=group, async_ops=False):
        for tensor in tensors:
            _shared.all_reduce(tensor, group=group)
    total = plan.size * (plan.size + 1) / 2
    return {"found": torch.cat(tensors).tolist(), "expected": [total] * 6}


def across_a_swap(group: ManagedGroup, plan: GroupPlan, begun: "Begun") -> Found:
    """Go on with a replicated, sharded model whose group has other members than it began with.

    Whoever is new takes weights and optimizer from member 0, through the very group.
    """
    for one in begun.model.parameters():
        local = one.to_local() if isinstance(one, DTensor) else one
        _shared.broadcast(local.data, group=group, group_src=0)
    begun.train(plan, begun.next, begun.next + STEPS)
    return {"found": _weights(begun.model).tolist()}


class Begun:
    """A training that is interrupted by a swap."""

    def __init__(self, group: ManagedGroup, plan: GroupPlan) -> None:
        self.model = _model()
        fully_shard(self.model, mesh=_two_axes(group, plan))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.next = 0

    def train(self, plan: GroupPlan, first: int, end: int) -> None:
        """Take the steps from `first` to before `end`."""
        for step in range(first, end):
            self.model(_batch(step, plan.me)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.next = end
