"""Where a training process stands in its job, as the user's code asks.

What belongs here: groups, coordinates and sizes, which hold within one step. What changes them is
the loop's.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from statemachine.layout import Layout
from worker.groups.managed import ManagedGroup
from worker.roles import Roles
from worker.seat import Seat

P = ParamSpec("P")
R = TypeVar("R")


class Place:
    """The part of a run that says where this process stands."""

    layout: Layout
    _groups: dict[str, ManagedGroup]
    _seat: Seat | None
    _ended_in: Seat | None = None
    """What it held when all steps were done; None before, on a standby, and if it left early."""
    _roles: Roles
    _local_rank: int

    def group(self, kind: str) -> ManagedGroup:
        """The process group of this rank along an axis (or of a named group), such as ``dp``.

        What is inside it changes at step boundaries; the object stays.

        Raises:
            KeyError: the layout has no such group with more than one rank.
        """
        if kind not in self._groups:
            known = ", ".join(self._groups) or "none"
            raise KeyError(f"no group {kind!r} in this job's layout; its groups: {known}")
        return self._groups[kind]

    def coordinate(self, axis: str) -> int:
        """This rank's index along an axis; in a rehearsal, that of the rehearsed slot; after the
        last step, that of the slot which it held then.
        """
        seat = self._seat or self._ended_in
        slot = seat.slot if seat is not None else self._roles.slot
        rank = self.layout.ranks_of(slot)[self._local_rank]
        return self.layout.coordinates(rank)[axis]

    def size(self, axis: str) -> int:
        """Number of ranks along an axis in the layout: in as many parts is a batch cut, always."""
        return dict(self.layout.axes)[axis]

    def present(self, axis: str) -> int:
        """Number of ranks along an axis that take part now: fewer while replicas are absent.

        What a sum over `group(axis)` is to be divided by for a mean. It changes between steps only.
        """
        return int(self._groups[axis].size()) if axis in self._groups else self.size(axis)

    def outside(self, act: Callable[P, R]) -> Callable[P, R | None]:
        """Wrap what a step does to the world outside, such as writing a checkpoint or a log: what
        is returned does it when it is called, `run.outside(print)("loss", loss)`.

        A rehearsal skips it and gets None: nothing of it may leave the sandbox. After the loop it
        is done by who held a slot at the last step, and skipped by standbys and by who left early.
        """

        @wraps(act)
        def within(*args: P.args, **kwargs: P.kwargs) -> R | None:
            holds = self._seat is not None or self._ended_in is not None
            return act(*args, **kwargs) if holds else None

        return within
