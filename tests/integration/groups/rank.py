"""One rank of a group as a process of its own, told what to do over a pipe.

What belongs here: what runs in the child. A command is a method of `Rank` with its arguments; the
answer is what it returns. Commands run on the main thread, as training does, one after the other;
those in `AT_ONCE` run on the thread that reads the pipe, as an agent's would.
"""

import contextlib
import faulthandler
import hashlib
import os
import queue
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from tests.integration.groups import surfaces
from worker.groups.delta import DeltaBackend
from worker.groups.links import LinkEndpoint
from worker.groups.managed import ManagedGroup
from worker.groups.port import (
    Cause,
    CauseKind,
    GroupPlan,
    Member,
    NotPrepared,
    PrepareRefused,
    ReduceOp,
)
from worker.groups.rebuild import RebuildBackend
from worker.groups.registry import publish, withdraw

SECRET: Final = b"only for tests, never for a fleet"
AT_ONCE: Final = {"break_off", "look"}
_WIDE: Final = {torch.bool: torch.int64}


def tensor_of(seed: int, index: int, dtype: torch.dtype, size: int) -> Tensor:
    """The tensor that member `index` brings: small numbers, the same in every process."""
    source = torch.Generator().manual_seed(seed * 1000 + index)
    if dtype.is_floating_point:
        return torch.randn(size, generator=source, dtype=torch.float64).to(dtype)
    high = 2 if dtype is torch.bool else 5
    return torch.randint(0, high, (size,), generator=source).to(dtype)


def reduced(tensors: list[Tensor], op: ReduceOp) -> Tensor:
    """What a reduction must give, computed by torch in wide arithmetic."""
    dtype = tensors[0].dtype
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    stack = torch.stack([one.to(wide) for one in tensors])
    if op is ReduceOp.AVG:
        mean = (
            stack.sum(0) / len(tensors)
            if dtype.is_floating_point
            else stack.sum(0).div(len(tensors), rounding_mode="floor")
        )
        return mean.to(dtype)
    result = stack[0].clone()
    for one in stack[1:]:
        result = {
            ReduceOp.SUM: torch.add,
            ReduceOp.MIN: torch.minimum,
            ReduceOp.MAX: torch.maximum,
            ReduceOp.PRODUCT: torch.multiply,
        }.get(op, _bitwise(op))(result, one)
    return result.to(dtype)


def _bitwise(op: ReduceOp) -> Any:
    return {
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }.get(op)


def digest_of(*tensors: Tensor) -> str:
    """Name the exact bits of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


class Rank:
    """What a child can be told."""

    def __init__(self, node: str, incarnation: int, secret: bytes, *, locally: bool) -> None:
        self.node = node
        self.endpoint = LinkEndpoint("job", node, incarnation, secret, locally=locally)
        self.groups: dict[str, ManagedGroup] = {}
        self.resets: list[tuple[str, int, str, float]] = []
        self.plans: dict[str, GroupPlan] = {}
        self.begun: surfaces.Begun

    # --- life -------------------------------------------------------------------------------------

    def make(self, name: str, size: int, op_timeout_s: float = 30.0) -> None:
        """Create a managed group."""

        def reset(member: Member, group: str) -> None:
            self.resets.append((member.node, member.incarnation, group, time.monotonic()))

        backend = DeltaBackend(name, self.endpoint, reset, op_timeout_s)
        self.groups[name] = ManagedGroup(name, size, backend)

    def make_rebuilt(self, name: str, size: int, port: int) -> None:
        """Create a managed group over gloo, with a client of the store at `port`."""
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        self.groups[name] = ManagedGroup(name, size, RebuildBackend(name, store, 30.0))

    def prepare(self, plan: GroupPlan, deadline_s: float = 5.0) -> dict[str, Any]:
        """Prepare a plan on a background thread, as the agent's side does."""
        answer: dict[str, Any] = {}

        def go() -> None:
            try:
                done = self.groups[plan.name].prepare(plan, deadline_s)
                answer.update(opened=done.links_opened, kept=done.links_kept, took_s=done.took_s)
            except PrepareRefused as refused:
                answer.update(refused=refused.reason, peer=refused.peer and refused.peer.node)

        thread = threading.Thread(target=go)
        thread.start()
        thread.join()
        return answer

    def switch(self, plan: GroupPlan) -> str:
        """Switch to a plan."""
        try:
            self.groups[plan.name].switch(plan)
        except NotPrepared:
            return "not prepared"
        self.plans[plan.name] = plan
        return "switched"

    def detach(self, name: str) -> None:
        """Give the members up."""
        self.groups[name].detach()

    def close(self) -> None:
        """Leave in order."""
        for group in self.groups.values():
            group.close()
        self.endpoint.close()

    # --- at once ----------------------------------------------------------------------------------

    def break_off(self, name: str, index: int | None = None) -> float:
        """Abort from another thread; returns when."""
        now = time.monotonic()
        self.groups[name].break_off(Cause(CauseKind.ABORTED, index, "told by the test"))
        return now

    def look(self, name: str) -> dict[str, Any]:
        """What can be seen from outside."""
        group = self.groups[name]
        counts = group.counts
        return {
            "broken": group.broken,
            "cause": str(group.cause),
            "kind": group.cause.kind if group.cause else None,
            "index": group.cause.index if group.cause else None,
            "resets": list(self.resets),
            "opened": dict(counts.opened_by_transition),
            "closed": dict(counts.closed_by_transition),
            "sent_bytes": counts.sent_bytes,
            "refused": dict(self.endpoint.refused),
            "wait_s": group.waits().wait_s,
            "busy_s": group.waits().busy_s,
            "operations": group.waits().operations,
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "sockets": _own_sockets(),
            "resident_kib": int(Path("/proc/self/statm").read_text().split()[1]) * 4,
        }

    # --- collectives ------------------------------------------------------------------------------

    @contextmanager
    def _timed(self, name: str, answer: dict[str, Any]) -> Iterator[None]:
        began = time.monotonic()
        yield
        ended = time.monotonic()
        answer.update(began=began, ended=ended, broken=self.groups[name].broken)

    def vote(self, name: str, values: list[int]) -> dict[str, Any]:
        """Take part in a vote."""
        answer: dict[str, Any] = {}
        with self._timed(name, answer):
            answer["outcome"] = self.groups[name].vote(values)
        return answer

    def collective(  # noqa: PLR0917 - arguments arrive over a pipe, in order
        self,
        name: str,
        operation: str,
        dtype: str,
        size: int,
        op: str = "sum",
        root: int = 0,
        seed: int = 1,
    ) -> dict[str, Any]:
        """Run one collective through torch's names and compare with what it must give."""
        plan, kind = self.plans[name], getattr(torch, dtype)
        every = [tensor_of(seed, index, kind, size) for index in range(plan.size)]
        answer: dict[str, Any] = {}
        run = getattr(self, f"_{operation}")
        with self._timed(name, answer):
            found, expected = run(self.groups[name], plan, every, ReduceOp(op), root)
        answer["digest"] = digest_of(*found)
        answer["error"] = max(
            (_distance(a, b) for a, b in zip(found, expected, strict=True)), default=0.0
        )
        return answer

    def _all_reduce(
        self, group: ManagedGroup, plan: GroupPlan, every: list[Tensor], op: ReduceOp, _root: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        own = every[plan.me].clone()
        dist.all_reduce(own, _torch_op(op), group=group)
        return [own], [reduced(every, op)]

    def _broadcast(
        self, group: ManagedGroup, plan: GroupPlan, every: list[Tensor], _op: ReduceOp, root: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        own = every[plan.me].clone()
        dist.broadcast(own, group=group, group_src=root)
        return [own], [every[root]]

    def _all_gather(
        self, group: ManagedGroup, plan: GroupPlan, every: list[Tensor], _op: ReduceOp, _root: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        outputs = [torch.zeros_like(one) for one in every]
        dist.all_gather(outputs, every[plan.me], group=group)
        return outputs, every

    def _reduce_scatter(
        self, group: ManagedGroup, plan: GroupPlan, every: list[Tensor], op: ReduceOp, _root: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        inputs = [every[plan.me].roll(part) for part in range(plan.size)]
        output = torch.zeros_like(inputs[0])
        dist.reduce_scatter(output, inputs, _torch_op(op), group=group)
        return [output], [reduced([one.roll(plan.me) for one in every], op)]

    def _reduce(
        self, group: ManagedGroup, plan: GroupPlan, every: list[Tensor], op: ReduceOp, root: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        own = every[plan.me].clone()
        dist.reduce(own, op=_torch_op(op), group=group, group_dst=root)
        return [own], [reduced(every, op) if plan.me == root else every[plan.me]]

    def _gather(
        self, group: ManagedGroup, plan: GroupPlan, every: list[Tensor], _op: ReduceOp, root: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        outputs = [torch.zeros_like(one) for one in every] if plan.me == root else []
        options = dist.GatherOptions()
        options.rootRank = root
        group.gather([outputs] if outputs else [], [every[plan.me]], options)
        return outputs, every if outputs else []

    def _scatter(
        self, group: ManagedGroup, plan: GroupPlan, every: list[Tensor], _op: ReduceOp, root: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        output = torch.zeros_like(every[0])
        options = dist.ScatterOptions()
        options.rootRank = root
        group.scatter([output], [every] if plan.me == root else [], options)
        return [output], [every[plan.me]]

    def _all_to_all(
        self, group: ManagedGroup, plan: GroupPlan, every: list[Tensor], _op: ReduceOp, _root: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        inputs = [every[plan.me].roll(to) for to in range(plan.size)]
        outputs = [torch.zeros_like(one) for one in inputs]
        dist.all_to_all(outputs, inputs, group=group)
        return outputs, [one.roll(plan.me) for one in every]

    def _messages(
        self, group: ManagedGroup, plan: GroupPlan, every: list[Tensor], _op: ReduceOp, _root: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Everybody posts to everybody, sends first on even indices, and only then waits."""
        others = [index for index in range(plan.size) if index != plan.me]
        outputs = [torch.zeros_like(one) for one in every]
        outputs[plan.me] = every[plan.me]
        works: list[Any] = []
        for sending in (True, False) if plan.me % 2 == 0 else (False, True):
            for other in others:
                if sending:
                    works.append(group.send([every[plan.me]], other, 7))
                else:
                    works.append(group.recv([outputs[other]], other, 7))
        for work in works:
            work.wait()
        return outputs, every

    def _functional(
        self, group: ManagedGroup, plan: GroupPlan, every: list[Tensor], op: ReduceOp, root: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What looks groups up by name: global ranks, functional collectives, a mesh, DTensor."""
        publish(group, range(plan.size), default=True)
        spread = every[plan.me].clone()
        dist.broadcast(spread, src=root, group=group)
        summed = funcol.all_reduce(every[plan.me], op.value, group) + 0
        mesh = DeviceMesh.from_group(group, "cpu")
        sharded = DTensor.from_local(every[plan.me], mesh, [Shard(0)])
        whole = sharded.full_tensor()
        withdraw(group)
        return [spread, summed, whole], [every[root], reduced(every, op), torch.cat(every)]

    def _barrier(
        self, group: ManagedGroup, _plan: GroupPlan, _every: list[Tensor], _op: ReduceOp, _root: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        dist.barrier(group=group)
        return [], []

    def costs(self, name: str) -> dict[str, list[float]]:
        """What changes of members cost."""
        return self.groups[name].take_costs()

    # --- torch's layers (surfaces) ----------------------------------------------------------------

    def publish_as_default(self, name: str) -> None:
        """Let torch know the group, as the one of all ranks."""
        publish(self.groups[name], range(self.groups[name].size()), default=True)

    def surface(self, name: str, layer: str) -> dict[str, Any]:
        """Run one of torch's layers on the group."""
        found: dict[str, Any] = getattr(surfaces, layer)(self.groups[name], self.plans[name])
        return found

    def begin(self, name: str, steps: int) -> None:
        """Begin a training that will be interrupted."""
        self.begun = surfaces.Begun(self.groups[name], self.plans[name])
        self.begun.train(self.plans[name], 0, steps)

    def skip_to(self, step: int) -> None:
        """Join a training that is at a step."""
        self.begun.next = step

    def go_on(self, name: str) -> dict[str, Any]:
        """Go on with it."""
        return surfaces.across_a_swap(self.groups[name], self.plans[name], self.begun)

    def make_new_group(self) -> str:
        """Ask torch for a group of its own; what it says."""
        shared: Any = dist
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                shared.new_group([0, 1])
            except AssertionError as error:
                return str(error)
        return "made"

    # --- long-running -----------------------------------------------------------------------------

    def reduce_until_broken(self, name: str, size: int) -> dict[str, Any]:
        """All-reduce one tensor again and again; returns when the group is broken."""
        group = self.groups[name]
        own = torch.zeros(size)
        answer: dict[str, Any] = {"rounds": 0}
        with self._timed(name, answer):
            while not group.broken:
                own[:1000] = 1.0
                dist.all_reduce(own, group=group)
                answer["rounds"] += 1
        return answer

    def compute(self, duration_s: float) -> None:
        """Do not take part in anything for a while."""
        ends = time.monotonic() + duration_s
        while time.monotonic() < ends:
            torch.ones(64, 64).mm(torch.ones(64, 64))

    def fork_sleeper(self) -> int:
        """Fork a child that outlives us; returns its pid."""
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        return child

    def train(self, name: str, store: str, steps: int) -> dict[str, Any]:
        """Train one model twice from the same start: on the managed group and on gloo."""
        plan = self.plans[name]
        shared: Any = dist
        gloo = shared.ProcessGroupGloo(shared.FileStore(store, plan.size), plan.me, plan.size)
        reference = shared.ProcessGroup(plan.me, plan.size)
        device, kind = torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO
        reference._register_backend(device, kind, gloo)
        reference._set_default_backend(kind)
        ours, weights = _train(self.groups[name], plan.me, steps)
        theirs, reference_weights = _train(reference, plan.me, steps)
        return {
            "ours": ours,
            "theirs": theirs,
            "distance": _distance(weights, reference_weights),
            "digest": digest_of(weights),
        }


def _train(group: Any, index: int, steps: int) -> tuple[list[float], Tensor]:
    torch.manual_seed(index)  # on purpose not the same: wrapping must make them so
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 128),
        torch.nn.Tanh(),
        torch.nn.BatchNorm1d(128),
        torch.nn.Linear(128, 1),
    )
    wrapped = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9)
    losses = []
    source = torch.Generator().manual_seed(100 + index)
    for _ in range(steps):
        x = torch.randn(64, 32, generator=source)
        loss = (wrapped(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, torch.cat([one.detach().flatten() for one in model.parameters()])


def _own_sockets() -> set[str]:
    """Every socket that this process has open, by what the kernel calls it."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since it was listed
            found.add(str(entry.readlink()))
    return {target for target in found if target.startswith("socket:")}


def _torch_op(op: ReduceOp) -> Any:
    return getattr(dist.ReduceOp, op.name)


def _distance(found: Tensor, expected: Tensor) -> float:
    """Largest error, relative to the largest expected number."""
    if not found.numel():
        return 0.0
    wide = torch.float64
    scale = max(1.0, expected.to(wide).abs().max().item())
    return (found.to(wide) - expected.to(wide)).abs().max().item() / scale


def run(pipe: Connection, node: str, incarnation: int, secret: bytes, locally: bool) -> None:
    """Obey until told to stop."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    rank = Rank(node, incarnation, secret, locally=locally)
    pipe.send(("ready", rank.endpoint.address))
    orders: queue.Queue[tuple[int, str, tuple[Any, ...]] | None] = queue.Queue()
    speaking = threading.Lock()

    def obey(number: int, command: str, arguments: tuple[Any, ...]) -> None:
        try:
            answer = getattr(rank, command)(*arguments)
        except Exception as error:  # noqa: BLE001 - the test process raises it
            error.add_note(traceback.format_exc())
            answer = error
        with speaking:
            pipe.send((number, answer))

    def read() -> None:
        while True:
            try:
                number, command, arguments = pipe.recv()
            except (EOFError, OSError):
                os._exit(0)
            if command in AT_ONCE:
                obey(number, command, arguments)
            else:
                orders.put((number, command, arguments))

    threading.Thread(target=read, daemon=True).start()
    while (order := orders.get()) is not None:
        obey(*order)
