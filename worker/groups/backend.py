"""The port that every backend offers: `delta` over our own links, `rebuild` over gloo.

What belongs here: the calls, and what a backend says about itself. What does not: any
implementation. The values that travel in the calls are in `port`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from worker.groups.port import Cause, GroupPlan, LinkCounts, Prepared, ReduceOp, Waits


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; asked before a plan relies on it."""

    name: str
    abort_is_immediate: bool
    prepares_in_background: bool
    links_survive_switch: bool
    direct_messages: bool
    notices_reset_while_idle: bool


class DirectTicket(Protocol):
    """A message between two members that was posted."""

    @property
    def done(self) -> bool:
        """Whether it has been sent or received."""
        ...

    def wait(self) -> bool:
        """Block until it has; False when the group is or becomes broken."""
        ...


class GroupBackend(Protocol):
    """One communicator's inside. Collectives return True when the result is valid.

    `prepare` may run on a background thread while the running group is in use; `abort` may come
    from any thread. All other calls belong to the training thread. Tensors are changed in place
    exactly as their namesakes in `torch.distributed` do.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""
        ...

    @property
    def plan(self) -> GroupPlan | None:
        """The plan in force; None before the first switch."""
        ...

    @property
    def broken(self) -> Cause | None:
        """Why results are no longer valid, until the next switch."""
        ...

    @property
    def counts(self) -> LinkCounts:
        """Links and bytes so far."""
        ...

    def prepare(self, plan: GroupPlan, deadline_s: float) -> Prepared:
        """Make `plan` ready to switch to, within `deadline_s` seconds.

        Raises:
            PrepareRefused: a peer cannot be reached or did not answer in time.
        """
        ...

    def switch(self, plan: GroupPlan) -> None:
        """Use the prepared `plan` from now on; the group is whole again.

        Raises:
            NotPrepared: `plan` was not prepared.
        """
        ...

    def abort(self, cause: Cause) -> None:
        """Break the group at once: a blocked rank returns within milliseconds."""
        ...

    def detach(self) -> None:
        """Leave in order and be as before the first switch: nobody is there."""
        ...

    def close(self) -> None:
        """Leave in order, for good; peers do not take it for a death."""
        ...

    def waits(self) -> Waits:
        """Where the time went since the last reset."""
        ...

    def reset_waits(self) -> None:
        """Start counting afresh."""
        ...

    def vote(self, values: Sequence[int]) -> list[int] | None:
        """Element-wise minimum over members; None if the outcome is not known to this rank."""
        ...

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> bool:
        """Reduce in place over all members."""
        ...

    def broadcast(self, tensor: Tensor, root: int) -> bool:
        """Copy the root's tensor to all members."""
        ...

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> bool:
        """Give every member each member's tensor."""
        ...

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp) -> bool:
        """Reduce `inputs[i]` of all members into the output of member i."""
        ...

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp) -> bool:
        """Reduce into the root's tensor; others keep theirs."""
        ...

    def gather(self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int) -> bool:
        """Give the root each member's tensor."""
        ...

    def scatter(self, output: Tensor, inputs: Sequence[Tensor] | None, root: int) -> bool:
        """Give member i the root's `inputs[i]`."""
        ...

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
        """Give member j `inputs[j]`, and put what member j gave into `outputs[j]`."""
        ...

    def post_send(self, tensor: Tensor, peer: int, tag: int) -> DirectTicket | None:
        """Send to one member, not waiting; the tensor must not change meanwhile. None: broken."""
        ...

    def post_receive(self, tensor: Tensor, peer: int, tag: int) -> DirectTicket | None:
        """Receive from one member, not waiting. None: broken."""
        ...

    def barrier(self) -> bool:
        """Return when all members have called it."""
        ...
