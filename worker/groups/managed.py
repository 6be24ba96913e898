"""The process group that the user's code holds, while its members change underneath.

What belongs here: the life of the group as the loop sees it. What does not: torch's entry points
(facade), how collectives run (backends), when members change (the loop).

- **detached**: before the first switch, and in a standby. Nobody is there: reductions return this
  rank's own tensor, gathers repeat it, unless a sandbox supplies recorded outputs.
- **attached**: the backend runs the collective.
- **broken**: poisoned until the next switch. Collectives return at once, as if successful, with
  tensors as they are; nothing is raised into autograd. `vote` returns None: that is the truth.

The size is that of the plan in force: the layout's, or less while replicas are absent, so ask for
it in each step. `DistributedDataParallel` does, and averages over those who take part. The rank is
this member's index among them, which a standby learns at its first switch.
"""

from collections.abc import Sequence

from worker.groups.facade import CollectiveFacade, Sandbox
from worker.groups.port import Cause, GroupPlan, LinkCounts, Prepared, PrepareRefused, Waits

__all__ = ["ManagedGroup", "Sandbox"]


class ManagedGroup(CollectiveFacade):
    """One axis group of the job.

    `rank` is the index within the group, or None where it is not known yet (a standby).
    """

    @property
    def counts(self) -> LinkCounts:
        """Links and bytes so far."""
        return self._backend.counts

    def prepare(self, plan: GroupPlan, deadline_s: float = 5.0) -> Prepared:
        """Make `plan` ready in the background; the running group is untouched.

        Raises:
            PrepareRefused: a peer cannot be reached in time, or the plan does not fit the layout.
        """
        if plan.size > self._size:
            raise PrepareRefused(f"{self.label}: size is declared as {self._size}", None)
        with self._costs.timed("group_prepare_ms", self._backend.capabilities.name):
            return self._backend.prepare(plan, deadline_s)

    def switch(self, plan: GroupPlan) -> None:
        """Put a prepared plan in force; broken no more.

        Raises:
            NotPrepared: `plan` was not prepared.
        """
        with self._costs.timed("group_switch_ms", self._backend.capabilities.name):
            self._backend.switch(plan)
        self._rank = plan.me

    def stand_at(self, index: int) -> None:
        """Answer as this member while nobody is there: the place that is rehearsed."""
        if not self.attached:
            self._rank = index

    def break_off(self, cause: Cause) -> None:
        """Break the group from any thread; a blocked rank returns within milliseconds."""
        if not self.attached or self.broken:
            self._backend.abort(cause)  # nothing to break; at most a cause to be told better
            return
        with self._costs.timed("group_abort_ms", self._backend.capabilities.name):
            self._backend.abort(cause)

    def take_costs(self) -> dict[str, list[float]]:
        """What changes of members cost since this was asked last, in ms, by metric of vitals."""
        return self._costs.take()

    def vote(self, values: Sequence[int]) -> list[int] | None:
        """Element-wise minimum over members; None: broken before this rank knew the outcome."""
        if not self.attached:
            return list(values)
        return self._backend.vote(values)

    def waits(self) -> Waits:
        """Where the time of collectives went since the last reset."""
        return self._backend.waits()

    def reset_waits(self) -> None:
        """Start counting afresh."""
        self._backend.reset_waits()

    def detach(self) -> None:
        """Leave in order; until the next switch every collective is local again."""
        self._backend.detach()

    def waited_s(self) -> float:
        """Seconds blocked on peers since the group exists."""
        return self._backend.waits().wait_s

    def carried(self) -> dict[str, tuple[int, float]]:
        """By peer: bytes of large messages that came from it since its link is open, and the
        seconds that took; nothing from a backend whose sockets are not its own.
        """
        tell = getattr(self._backend, "carried", None)
        return tell() if tell is not None else {}

    def close(self) -> None:
        """Leave in order."""
        self._backend.close()
