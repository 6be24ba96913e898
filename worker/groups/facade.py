"""torch's names for collectives, in front of one backend.

What belongs here: every entry point of `torch.distributed.ProcessGroup` that CPU training uses, and
what each returns when nobody is there or the group is broken. What does not: how collectives run
(backends), when members change (managed).

Two callers arrive here: Python (`torch.distributed.all_reduce`) and C++ (the reducer of
`DistributedDataParallel`), which dispatches through torch's trampoline; the names and the argument
order are theirs, read in torch 2.13, with older names kept as aliases.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from worker.groups.backend import DirectTicket, GroupBackend
from worker.groups.costs import Costs
from worker.groups.forms import op_of, rows, split_first_axis
from worker.groups.keeping import Keeping
from worker.groups.port import Cause, GroupPlan
from worker.groups.work import CompletedWork, PostedWork

_ProcessGroup: Any = dist.ProcessGroup  # typed with every legacy calling form; we take torch's own


class Sandbox(Protocol):
    """Supplies a detached group's outputs from a recording."""

    def supply(self, group: str, operation: str, outputs: Sequence[Tensor]) -> bool:
        """Fill `outputs` in place; False leaves the local answer."""
        ...


class Listener(Protocol):
    """Hears what an attached group's calls returned."""

    def took(self, group: str, operation: str, outputs: Sequence[Tensor]) -> None:
        """A call is complete."""
        ...

    def place(self, group: str, operation: str) -> int:
        """A call was made that is complete once it has been waited for."""
        ...

    def fill(self, place: int, outputs: Sequence[Tensor]) -> None:
        """That call is complete."""
        ...


class CollectiveFacade(_ProcessGroup):  # type: ignore[misc]
    """A process group in front of a backend; see `ManagedGroup`."""

    def __init__(
        self,
        name: str,
        size: int,
        backend: GroupBackend,
        rank: int | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        super().__init__(rank or 0, size)
        self.label = name
        self._torch_name = name
        self.sandbox = sandbox
        self.recorder: Listener | None = None
        self.keeping: Keeping | None = None
        self._backend = backend
        self._rank = rank or 0
        self._costs = Costs()
        self._size = size

    @property
    def backend(self) -> GroupBackend:
        """What runs inside."""
        return self._backend

    @property
    def plan(self) -> GroupPlan | None:
        """The plan in force; None while detached."""
        return self._backend.plan

    @property
    def attached(self) -> bool:
        """Whether a plan is in force, broken or not."""
        return self._backend.plan is not None

    @property
    def broken(self) -> bool:
        """Whether results have stopped being valid."""
        return self._backend.broken is not None

    @property
    def cause(self) -> Cause | None:
        """Why the group is broken."""
        return self._backend.broken

    # --- what torch asks --------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return a backend name that torch will not mistake for one of its own."""
        return "changeover"

    def getRank(self) -> int:  # noqa: N802 - torch's name
        """Return this member's index."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802 - torch's name
        """Return how many members take part now; while nobody is there, how many were declared."""
        plan = self._backend.plan
        return self._size if plan is None else plan.size

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Return the name in torch's registry (see `registry`)."""
        return self._torch_name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Take the name in torch's registry."""
        self._torch_name = name

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """Return the group's name in the layout."""
        return self.label

    def abort(self) -> None:
        """Do nothing: torch may not break what the loop looks after. See `break_off`."""

    def shutdown(self) -> None:
        """Do nothing: see `close`."""

    def _run(
        self,
        operation: str,
        outputs: Sequence[Tensor],
        attached: Callable[[], object],
        alone: Callable[[], object],
        *,
        changes: Sequence[Tensor] = (),
    ) -> CompletedWork:
        """Run a collective in whatever state the group is in; outputs are always usable.

        `changes` are inputs that are changed in place, and stay as they were if it fails and the
        step is kept.
        """
        with torch.no_grad():
            if not self.attached:
                sandbox = self.sandbox
                if sandbox is None or not sandbox.supply(self.label, operation, outputs):
                    alone()
            elif not self._carried_out(attached, changes):
                alone()
            elif self.recorder is not None:
                self.recorder.took(self.label, operation, outputs)
        return CompletedWork(outputs)

    def _carried_out(self, attached: Callable[[], object], changes: Sequence[Tensor]) -> bool:
        """Run a collective; in a step that can be kept, in a new group if this one breaks."""
        keeping = self.keeping
        if keeping is None or not keeping.fresh:
            return not self.broken and attached() is not False
        while True:
            kept = keeping.copy_of(changes)
            if not self.broken and attached() is not False:
                keeping.spend()
                return True
            if kept is None:
                keeping.spend()
                return False
            for one, before in zip(changes, kept, strict=True):
                one.copy_(before)
            if not keeping.mend():
                return False

    # --- reductions -------------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> CompletedWork:
        """Reduce each tensor in place."""
        op = op_of(opts)
        backend = self._backend
        return self._run(
            "all_reduce",
            tensors,
            lambda: all(backend.all_reduce(one, op) for one in tensors),
            lambda: None,
            changes=tensors,
        )

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> CompletedWork:
        """Reduce each tensor in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[Tensor], opts: Any = None) -> CompletedWork:
        """Reduce into the root's tensors."""
        op = op_of(opts)
        root = opts.rootRank if opts is not None else 0
        backend = self._backend
        return self._run(
            "reduce",
            tensors,
            lambda: all(backend.reduce(one, root, op) for one in tensors),
            lambda: None,
        )

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> CompletedWork:
        """Reduce, and keep this member's part."""
        op = op_of(opts)
        backend = self._backend
        pairs = list(zip(outputs, inputs, strict=True))
        return self._run(
            "reduce_scatter",
            outputs,
            lambda: all(backend.reduce_scatter(out, parts, op) for out, parts in pairs),
            lambda: [out.copy_(parts[self._rank]) for out, parts in pairs],
        )

    def reduce_scatter_single(
        self, output: Tensor, source: Tensor, opts: Any = None
    ) -> CompletedWork:
        """Reduce one tensor whose first axis is cut into members' parts."""
        return self.reduce_scatter([output], [rows(source, output, self.getSize())], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], sources: Sequence[Tensor], opts: Any = None
    ) -> CompletedWork:
        """Reduce several such tensors."""
        pairs = zip(outputs, sources, strict=True)
        return self.reduce_scatter(
            outputs, [rows(src, out, self.getSize()) for out, src in pairs], opts
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- copies -----------------------------------------------------------------------------------

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> CompletedWork:
        """Copy the root's tensors to all."""
        root = opts.rootRank if opts is not None else 0
        backend = self._backend
        return self._run(
            "broadcast",
            tensors,
            lambda: all(backend.broadcast(one, root) for one in tensors),
            lambda: None,
        )

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> CompletedWork:
        """Give every member each member's tensors."""
        backend = self._backend
        pairs = list(zip(outputs, inputs, strict=True))
        return self._run(
            "all_gather",
            [out for row in outputs for out in row],
            lambda: all(backend.all_gather(row, own) for row, own in pairs),
            lambda: [out.copy_(own) for row, own in pairs for out in row],
        )

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> CompletedWork:
        """Gather into one tensor whose first axis holds members' parts."""
        return self.allgather([rows(output, source, self.getSize())], [source], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], sources: Sequence[Tensor], opts: Any = None
    ) -> CompletedWork:
        """Gather several such tensors."""
        pairs = zip(outputs, sources, strict=True)
        return self.allgather([rows(out, src, self._size) for out, src in pairs], sources, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> CompletedWork:
        """Give the root each member's tensor."""
        root = opts.rootRank if opts is not None else 0
        row = outputs[0] if outputs else None
        backend, own = self._backend, inputs[0]
        return self._run(
            "gather",
            list(row or []),
            lambda: backend.gather(row, own, root),
            lambda: [out.copy_(own) for out in row or []],
        )

    def scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> CompletedWork:
        """Give each member its part of the root's."""
        root = opts.rootRank if opts is not None else 0
        parts = inputs[0] if inputs else None
        backend, output = self._backend, outputs[0]
        return self._run(
            "scatter",
            outputs,
            lambda: backend.scatter(output, parts, root),
            lambda: output.copy_(parts[self._rank]) if parts else None,
        )

    def alltoall(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> CompletedWork:
        """Exchange parts between every two members."""
        backend = self._backend

        def alone() -> None:
            for output, own in zip(outputs, inputs, strict=True):
                if output.shape == own.shape:
                    output.copy_(own)

        return self._run("all_to_all", outputs, lambda: backend.all_to_all(outputs, inputs), alone)

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> CompletedWork:
        """Exchange parts of one tensor, cut along its first axis."""
        outputs = split_first_axis(output, output_splits, self.getSize())
        return self.alltoall(outputs, split_first_axis(source, input_splits, self.getSize()), opts)

    alltoall_base = all_to_all_single

    # --- direct messages and barriers -------------------------------------------------------------

    def send(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> CompletedWork:
        """Send to one member; the handle's `wait` finishes it."""
        return self._post("send", tensors, peer, tag, self._backend.post_send)

    def recv(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> CompletedWork:
        """Receive from one member; the handle's `wait` finishes it."""
        return self._post("recv", tensors, peer, tag, self._backend.post_receive)

    def _post(
        self,
        operation: str,
        tensors: Sequence[Tensor],
        peer: int,
        tag: int,
        post: Callable[[Tensor, int, int], DirectTicket | None],
    ) -> CompletedWork:
        if not self.attached or self.broken:
            return self._run(operation, tensors, lambda: None, lambda: None)
        if self.keeping is not None:
            self.keeping.spend()
        recorder = self.recorder
        then: Callable[[], None] | None = None
        if recorder is not None and operation == "recv":
            place = recorder.place(self.label, operation)
            then = lambda: recorder.fill(place, tensors)  # noqa: E731
        return PostedWork(tensors, [post(one, peer, tag) for one in tensors], then)

    def barrier(self, opts: Any = None) -> CompletedWork:
        """Return when all members have called it."""
        return self._run("barrier", [], self._backend.barrier, lambda: None)
