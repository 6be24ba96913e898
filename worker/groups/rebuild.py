"""Groups that are built anew for each plan, in the background, and swapped at the boundary: gloo.

What belongs here: torch's own gloo group behind our port. What does not: nccl, which is this file's
child (`rebuild_nccl`), what the installed torch can do (`installed`), links (delta is the default
for CPU tensors; this backend is for comparison and for whoever must use torch's own).

Rules. One live store, one prefix per (job, group, epoch, transition), never reused: a fresh store
has a tail of seconds, a reused key is somebody's dead address. Tearing a group down takes 10 ms per
member, so it happens in the background. gloo's abort does nothing; ours half-closes the group's own
connections, and waits are sliced, because neither alone is certain. Collectives run on copies: what
a broken group may still write later must not be the user's memory.

A half-closed connection looks like a death to the peer, so this backend accuses nobody.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from worker.groups import sockets
from worker.groups.backend import Capabilities, DirectTicket
from worker.groups.port import (
    Cause,
    CauseKind,
    GroupPlan,
    LinkCounts,
    NotPrepared,
    Prepared,
    PrepareRefused,
    ReduceOp,
    Waits,
)

SLICE: Final = timedelta(milliseconds=20)
_torch: Any = dist
_building = threading.Lock()


@dataclass(slots=True)
class Built:
    """A gloo group and the connections that are its own."""

    plan: GroupPlan
    group: Any
    connections: list[sockets.TcpSocket]


class RebuildBackend:
    """The port over gloo groups.

    `store` is a torch store that outlives epochs and is used by nothing else in this process.
    """

    capabilities = Capabilities(
        name="rebuild-gloo",
        abort_is_immediate=False,
        prepares_in_background=True,
        links_survive_switch=False,
        direct_messages=False,
        notices_reset_while_idle=False,
    )

    device: Any = None
    """Where the vote's integers live; None: on the host."""

    def __init__(
        self, name: str, store: Any, op_timeout_s: float = 300.0, host: str = "127.0.0.1"
    ) -> None:
        self.name = name
        self._store = store
        self._host = host
        self._op_timeout_s = op_timeout_s
        self._lock = threading.Lock()
        self._built: Built | None = None
        self._broken: Cause | None = None
        self._prepared: dict[int, Built] = {}
        self._counts = LinkCounts()
        self._waits = Waits()

    @property
    def plan(self) -> GroupPlan | None:
        """The plan in force; None before the first switch."""
        return self._built.plan if self._built else None

    @property
    def broken(self) -> Cause | None:
        """Why results are no longer valid, until the next switch."""
        return self._broken

    @property
    def counts(self) -> LinkCounts:
        """Connections so far; gloo does not tell bytes."""
        return self._counts

    def waits(self) -> Waits:
        """Where the time went since the last reset; gloo's own work counts as waiting."""
        return self._waits

    def reset_waits(self) -> None:
        """Start counting afresh."""
        self._waits = Waits()

    # --- prepare, switch, break -------------------------------------------------------------------

    def prepare(self, plan: GroupPlan, deadline_s: float) -> Prepared:
        """Build the group of `plan`; blocks this thread until all members build it too.

        Raises:
            PrepareRefused: not all members came within `deadline_s`.
        """
        started = time.monotonic()
        try:
            with _building:  # the connections found afterwards must be this group's
                built = self._build(plan, deadline_s)
        except (RuntimeError, dist.DistError) as error:
            reason = str(error).splitlines()[0]
            raise PrepareRefused(f"{plan.name}: gloo: {reason}", None) from None
        opened = len(built.connections)
        with self._lock:
            self._prepared[plan.tag] = built
            self._counts.opened += opened
            by = self._counts.opened_by_transition
            by[plan.transition] = by.get(plan.transition, 0) + opened
        return Prepared(plan.tag, opened, 0, time.monotonic() - started)

    def _store_for(self, plan: GroupPlan, deadline_s: float) -> Any:
        """The part of the store that belongs to one plan, and to no other ever."""
        prefix = f"{plan.job}/{plan.name}/{plan.epoch}.{plan.transition}"
        store = _torch.PrefixStore(prefix, self._store)
        store.set_timeout(timedelta(seconds=deadline_s))
        return store

    def _build(self, plan: GroupPlan, deadline_s: float) -> Built:
        store = self._store_for(plan, deadline_s)
        before = {one.inode for one in sockets.own_sockets()}
        options = _torch.ProcessGroupGloo._Options()
        options._devices = [_torch.ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = timedelta(seconds=deadline_s)
        listeners = {
            one.local_port
            for one in sockets.own_sockets()
            if one.listening and one.inode not in before
        }
        store.set(f"ports/{plan.me}", ",".join(map(str, sorted(listeners))))
        group = _torch.ProcessGroupGloo(store, plan.me, plan.size, options)
        group._set_default_timeout(timedelta(seconds=self._op_timeout_s))
        peers = [store.get(f"ports/{index}").decode() for index in range(plan.size)]
        ports = {int(port) for one in peers for port in one.split(",") if port}
        return Built(plan, group, sockets.connections_of(listeners, ports - listeners))

    def switch(self, plan: GroupPlan) -> None:
        """Use the group built for `plan`; the old one is torn down in the background.

        Raises:
            NotPrepared: it was not built.
        """
        with self._lock:
            built = self._prepared.pop(plan.tag, None)
            if built is None or built.plan != plan:
                raise NotPrepared(f"{self.name}: epoch {plan.epoch} was not prepared")
            old = [self._built, *self._prepared.values()]
            self._prepared = {}
            self._built, self._broken = built, None
        self._tear_down([one for one in old if one is not None], plan.transition)

    def _tear_down(self, old: list[Built], transition: int) -> None:
        closed = sum(len(one.connections) for one in old)
        self._counts.closed += closed
        by = self._counts.closed_by_transition
        by[transition] = by.get(transition, 0) + closed

        def drop() -> None:
            with _building:
                old.clear()

        threading.Thread(target=drop, name="group-teardown", daemon=True).start()

    def abort(self, cause: Cause) -> None:
        """Break the group: end its connections, which frees gloo's threads and its peers."""
        with self._lock:
            built = self._built
            if built is None or self._broken is not None:
                return
            self._broken = cause
        self._get_out(built)

    def _get_out(self, built: Built) -> None:
        """End whatever runs in a group that is broken."""
        sockets.half_close(built.connections)

    def detach(self) -> None:
        """Let go of the plan in force."""
        with self._lock:
            old = [one for one in (self._built, *self._prepared.values()) if one is not None]
            transition = self._built.plan.transition if self._built else 0
            self._built, self._broken, self._prepared = None, None, {}
        self._tear_down(old, transition)

    def close(self) -> None:
        """Leave for good."""
        self.detach()

    # --- collectives ------------------------------------------------------------------------------

    def _is_broken(self) -> bool:
        return self._broken is not None

    def _finish(self, start: Callable[[Any], Any]) -> bool:
        """Start a collective and wait for it in slices; False when the group is or gets broken."""
        built = self._built
        if built is None or self._is_broken():
            return False
        began = time.monotonic()
        try:
            work = start(built.group)
            while not self._completed(work):
                if self._is_broken():
                    return False
                if time.monotonic() - began > self._op_timeout_s:
                    self.abort(Cause(CauseKind.TIMED_OUT, None, f"{self._op_timeout_s:g} s"))
                    return False
        except RuntimeError as error:
            self.abort(Cause(CauseKind.LINK_FAILED, None, str(error).splitlines()[0]))
            return False
        finally:
            self._waits.operations += 1
            self._waits.wait_s += time.monotonic() - began
        return not self._is_broken()

    @staticmethod
    def _completed(work: Any) -> bool:
        """Wait one slice.

        Raises:
            RuntimeError: the collective failed.
        """
        try:
            work.wait(SLICE)
        except RuntimeError as error:
            if "timed out" not in str(error).lower():
                raise
            if not work.is_completed():
                return False
            work.wait()  # it ended right after the slice did: well, or with an error of its own
        return True

    def _in_place(self, tensor: Tensor, start: Callable[[Any, Tensor], Any]) -> bool:
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        done = self._finish(lambda group: start(group, copy))
        if done:
            tensor.detach().copy_(copy)
        return done

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> bool:
        """Reduce in place over all members."""
        options = _torch.AllreduceOptions()
        options.reduceOp = _torch_op(op)
        size = self.plan.size if self.plan else 1
        done = self._in_place(tensor, lambda group, copy: group.allreduce([copy], options))
        if done and op is ReduceOp.AVG:
            tensor.detach().div_(size)
        return done

    def vote(self, values: Sequence[int]) -> list[int] | None:
        """Element-wise minimum over members; None if broken before the outcome was known."""
        tensor = torch.tensor(list(values), dtype=torch.int64, device=self.device)
        return tensor.tolist() if self.all_reduce(tensor, ReduceOp.MIN) else None

    def barrier(self) -> bool:
        """Return when all members have called it."""
        return self._finish(lambda group: group.barrier())

    def broadcast(self, tensor: Tensor, root: int) -> bool:
        """Copy the root's tensor to all members."""
        options = _torch.BroadcastOptions()
        options.rootRank = root
        return self._in_place(tensor, lambda group, copy: group.broadcast([copy], options))

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> bool:
        """Give every member each member's tensor."""
        own = tensor.detach().clone(memory_format=torch.contiguous_format)
        copies = [torch.empty_like(own) for _ in outputs]
        done = self._finish(lambda group: group.allgather([copies], [own]))
        if done:
            for output, copy in zip(outputs, copies, strict=True):
                output.detach().copy_(copy)
        return done

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp) -> bool:
        """Reduce `inputs[i]` of all members into the output of member i."""
        whole = torch.stack([one.detach() for one in inputs])
        done = self.all_reduce(whole, op)
        if done and self.plan is not None:
            output.detach().copy_(whole[self.plan.me])
        return done

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp) -> bool:
        """Reduce into the root's tensor; others keep theirs."""
        copy = tensor.detach().clone()
        done = self.all_reduce(copy, op)
        if done and self.plan is not None and self.plan.me == root:
            tensor.detach().copy_(copy)
        return done

    def gather(self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int) -> bool:
        """Give the root each member's tensor."""
        size = self.plan.size if self.plan else 0
        spare = [torch.empty_like(tensor) for _ in range(size)]
        at_root = outputs is not None and self.plan is not None and self.plan.me == root
        return self.all_gather(outputs if at_root and outputs is not None else spare, tensor)

    def scatter(self, output: Tensor, inputs: Sequence[Tensor] | None, root: int) -> bool:
        """Give member i the root's `inputs[i]`."""
        if self.plan is None:
            return False
        every = torch.empty((self.plan.size, *output.shape), dtype=output.dtype)
        if self.plan.me == root and inputs is not None:
            every = torch.stack([one.detach() for one in inputs])
        done = self.broadcast(every, root)
        if done:
            output.detach().copy_(every[self.plan.me])
        return done

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
        """Refuse: use `delta`."""
        raise NotImplementedError("all_to_all over rebuilt gloo groups")

    def post_send(self, tensor: Tensor, peer: int, tag: int) -> DirectTicket | None:
        """Refuse: use `delta`."""
        raise NotImplementedError("messages over rebuilt gloo groups")

    def post_receive(self, tensor: Tensor, peer: int, tag: int) -> DirectTicket | None:
        """Refuse: use `delta`."""
        raise NotImplementedError("messages over rebuilt gloo groups")


def _torch_op(op: ReduceOp) -> Any:
    """Torch's reduction; gloo cannot average, so that is a sum here."""
    return getattr(_torch.ReduceOp, "SUM" if op is ReduceOp.AVG else op.name)
