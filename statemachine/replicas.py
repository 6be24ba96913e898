"""Which slots hold the same state, and which form one data-parallel replica.

What belongs here: arithmetic on a layout along its replica axis. A *part* is one index along that
axis: all slots of a part together hold one whole copy of the training state.
"""

from collections.abc import Iterable

from statemachine.ids import Slot
from statemachine.layout import Layout


def part_of(layout: Layout, slot: int) -> int | None:
    """The one part that every rank of a slot belongs to; None if its ranks are of several, or if
    the layout has no replicas.
    """
    if layout.data_parts < 2:
        return None
    found = {layout.data_part(rank) for rank in layout.ranks_of(slot)}
    return min(found) if len(found) == 1 else None


def slots_of_part(layout: Layout, part: int) -> tuple[Slot, ...]:
    """The slots of a part, ascending; meaningful where every slot is of one part."""
    slots = (Slot(slot) for slot in range(layout.slot_count))
    return tuple(slot for slot in slots if part_of(layout, slot) == part)


def first_replicas(layout: Layout, slots: Iterable[Slot]) -> dict[Slot, Slot]:
    """Slot -> the lowest of `slots` that holds all of its state; that may be itself.

    Slots that hold equal sets of shards are replicas of each other, so one pass does for them; a
    layout in which a slot may hold more than another is asked slot by slot.
    """
    ordered = sorted(slots)
    shards = {slot: layout.shards_of(slot) for slot in ordered}
    firsts: dict[tuple[int, ...], Slot] = {}
    if len({len(held) for held in shards.values()}) <= 1:
        return {slot: firsts.setdefault(shards[slot], slot) for slot in ordered}
    known = set(ordered)
    found = {}
    for slot in ordered:
        holders = [other for other in layout.replicas_of(slot) if other in known]
        found[slot] = min((slot, *holders))
    return found
