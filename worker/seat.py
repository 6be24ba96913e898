"""A seat: which rank this process is, and the plan of every group it belongs to.

Pure: from the members that the control plane announced and the job's layout to the plans that the
groups are asked to prepare. No sockets, no torch.
"""

from dataclasses import dataclass

from statemachine.errors import BadLayout
from statemachine.events import JobDeclared
from statemachine.ids import Epoch, JobId, Rank, Slot, TransitionId
from statemachine.layout import Layout
from statemachine.messages import Prepare
from statemachine.topology import Holder
from worker.groups.port import GroupPlan, Member


def layout_of(declared: JobDeclared) -> Layout:
    """The layout that a job was declared with.

    Raises:
        BadLayout: the declaration is contradictory, or wants several ranks in one process.
    """
    if declared.ranks_per_node != 1:
        raise BadLayout(
            f"job {declared.job}: ranks_per_node = {declared.ranks_per_node}: a training process "
            "is one rank; declare 1, and run an agent for each rank of a machine"
        )
    return Layout.of(
        declared.axes,
        ranks_per_node=declared.ranks_per_node,
        groups=declared.groups,
        rank_sets=declared.rank_sets,
        replica_axis=declared.replica_axis,
    )


@dataclass(frozen=True, slots=True)
class Seat:
    """This process's place at one epoch: its plans by kind of group (``dp``, ``tp``, ...)."""

    slot: Slot
    rank: Rank
    epoch: Epoch
    transition: TransitionId
    members: tuple[Holder, ...]
    plans: dict[str, GroupPlan]
    names: dict[str, str]
    """Full names of the groups, such as ``dp[3]``, by kind."""

    @property
    def shape(self) -> dict[str, tuple[int, int]]:
        """By kind of group: this rank's index in it, and how many take part."""
        return {kind: (plan.me, plan.size) for kind, plan in self.plans.items()}

    def changed_kinds(self, before: "Seat | None") -> list[str]:
        """Kinds whose members differ from those of `before`, in the layout's order."""
        if before is None:
            return list(self.plans)
        return [
            kind
            for kind, plan in self.plans.items()
            if kind not in before.plans or before.plans[kind].members != plan.members
        ]


def seat_of(job: JobId, layout: Layout, told: Prepare, local_rank: int) -> Seat:
    """The seat of one local rank of the slot that a preparation names.

    Plans are named by kind: a process is in one group of a kind, whichever slot it takes, and so
    keeps one managed group for it from before it knows its slot.

    A group is built without the ranks of slots that are idle on purpose, be it with one member
    alone; one with a slot that nobody holds by accident has no plan at this epoch.
    """
    rank = layout.ranks_of(told.slot)[local_rank]
    held = {holder.slot: holder for holder in told.members}
    idle = set(told.idle)
    plans: dict[str, GroupPlan] = {}
    names: dict[str, str] = {}
    for group in layout.groups_of_rank(rank):
        present = [one for one in sorted(group.ranks) if layout.slot_of(one) not in idle]
        if len(group.ranks) > 1 and all(layout.slot_of(one) in held for one in present):
            listed = tuple(_member(held[layout.slot_of(one)], one) for one in present)
            kind = group.name.partition("[")[0]
            names[kind] = group.name
            plans[kind] = GroupPlan(
                name=kind,
                job=job,
                epoch=told.epoch,
                transition=told.transition,
                me=present.index(rank),
                members=listed,
            )
    return Seat(told.slot, rank, told.epoch, told.transition, told.members, plans, names)


def _member(holder: Holder, rank: Rank) -> Member:
    return Member(
        slot=holder.slot,
        rank=rank,
        node=holder.node,
        incarnation=holder.incarnation,
        host=holder.host,
        port=holder.port,
    )
