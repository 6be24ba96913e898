"""This rank's groups: made once, and switched together at a boundary.

What belongs here: which managed groups a rank holds, and putting a seat's plans in force in them.
When that happens is the loop's.
"""

import time
from collections.abc import Callable, Mapping

from statemachine.ids import Slot
from statemachine.layout import Layout
from worker.faultpoints import reach
from worker.groups.backend import GroupBackend
from worker.groups.managed import ManagedGroup
from worker.seat import Seat


def make_groups(
    layout: Layout, local_rank: int, make_backend: Callable[[str], GroupBackend]
) -> dict[str, ManagedGroup]:
    """One managed group for each kind that has more than one rank in the layout."""
    groups = layout.groups_of_rank(layout.ranks_of(Slot(0))[local_rank])
    sizes = {group.kind: len(group.ranks) for group in groups}
    return {
        kind: ManagedGroup(kind, size, make_backend(kind))
        for kind, size in sizes.items()
        if size > 1
    }


def switch_groups(
    groups: Mapping[str, ManagedGroup], seat: Seat, before: Seat | None, *, everything: bool
) -> float:
    """Put a seat's plans in force: all, or those whose members changed; how long it took, in ms."""
    began_s = time.perf_counter()
    for kind in seat.plans if everything else seat.changed_kinds(before):
        groups[kind].switch(seat.plans[kind])
        reach("switch.between")
    return (time.perf_counter() - began_s) * 1000


def peers_of(seat: Seat) -> tuple[str, ...]:
    """Everybody else who holds a slot with a seat, as `node.incarnation`."""
    names = {f"{h.node}.{h.incarnation}" for h in seat.members if h.slot != seat.slot}
    return tuple(sorted(names))
