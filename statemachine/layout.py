"""A job's layout: axes, slots, groups, and which of them a change touches.

What belongs here: arithmetic on the shape of a job. Nothing here knows nodes, epochs or time.

Theory of operation. A rank is a number in a mixed radix whose digits are its coordinates, the
outermost axis first; a slot is a block of `ranks_per_node` consecutive ranks. A *kind* of group is
a set of axes: its groups are the ranks that differ in these axes only, and the digits of the other
axes, read as one number, are the group's index. Every question is therefore answered by a few
divisions and an enumeration of the answer, never of the ranks: a layout of 65,536 ranks costs what
one of 64 costs.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Final

from msgspec import Struct

from statemachine.ids import GroupName, Rank, Role, Slot
from statemachine.layout_checks import (
    ENDS,
    INDEXED,
    bad,
    checked_axes,
    checked_groups,
    checked_rank_sets,
    listed,
)

STAGE_AXIS: Final = "pp"
"""The axis whose ends warm up unlike its middle."""

REPLICA_AXIS: Final = "dp"
"""The axis along which ranks hold equal state, unless the layout names another."""

FIRST: Final = Role("first")
MIDDLE: Final = Role("middle")
LAST: Final = Role("last")
ONLY: Final = Role("only")


class GroupRef(Struct, frozen=True, kw_only=True):
    """One group: its name such as ``dp[3]``, its ranks in ascending order.

    `local` says that all its ranks sit in one slot: no change of another slot touches it.
    """

    name: GroupName
    ranks: tuple[Rank, ...]
    local: bool = False

    @property
    def kind(self) -> str:
        """The axis or the declared name that the group belongs to."""
        return self.name.partition("[")[0]


class _Kind(Struct, frozen=True):
    """Groups along a set of axes, as (size, stride) of the axes inside and outside of it.

    Of an axis in `ends` only the first and the last coordinate are in a group: along it there are
    two ranks, a stride apart that spans the axis. Ranks between the ends are in no such group.
    """

    name: str
    inside: tuple[tuple[int, int], ...]
    outside: tuple[tuple[int, int], ...]
    ends: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        return prod(size for size, _ in self.outside)

    @property
    def span(self) -> int:
        """Distance between the lowest and the highest rank of a group."""
        return sum((size - 1) * stride for size, stride in self.inside)

    def holds(self, rank: int) -> bool:
        return all(rank // stride % size in (0, size - 1) for size, stride in self.ends)

    def index_of(self, rank: int) -> int:
        index = 0
        for size, stride in self.outside:
            index = index * size + rank // stride % size
        return index

    def base_of(self, index: int) -> int:
        base = 0
        for size, stride in reversed(self.outside):
            index, digit = divmod(index, size)
            base += digit * stride
        return base

    def ranks(self, index: int) -> tuple[Rank, ...]:
        found = [self.base_of(index)]
        for size, stride in self.inside:
            found = [rank + step for rank in found for step in range(0, size * stride, stride)]
        return tuple(Rank(rank) for rank in found)


class Layout(Struct, frozen=True, kw_only=True, dict=True):
    """The shape of a job, fixed for its life. Build it with `Layout.of`, which validates.

    `axes` are (name, size), the outermost first; `groups` are named sets of axes, of which one may
    be taken by its ends alone, such as ``pp:ends`` for tied embeddings; `rank_sets` are
    explicit groups by their full name. `replica_axis` may name an axis that is absent: then no
    two slots hold the same state.
    """

    axes: tuple[tuple[str, int], ...]
    ranks_per_node: int = 1
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    rank_sets: tuple[tuple[GroupName, tuple[Rank, ...]], ...] = ()
    replica_axis: str = REPLICA_AXIS

    @classmethod
    def of(
        cls,
        axes: Mapping[str, int],
        ranks_per_node: int = 1,
        groups: Mapping[str, Sequence[str]] | None = None,
        rank_sets: Mapping[str, Sequence[int]] | None = None,
        replica_axis: str = REPLICA_AXIS,
    ) -> "Layout":
        """Validate and build.

        A key of `rank_sets` is ``name`` (short for ``name[0]``) or ``name[index]``; the indices of
        a name are dense from 0, and a rank is in at most one set of a name.

        Raises:
            BadLayout: names the field, its value, and what is allowed.
        """
        ordered_axes = checked_axes(axes)
        world_size = prod(axes.values())
        if ranks_per_node < 1 or world_size % ranks_per_node:
            raise bad(
                "ranks_per_node", ranks_per_node, f"a divisor of the {world_size} ranks, at least 1"
            )
        if replica_axis not in ("", REPLICA_AXIS) and replica_axis not in axes:
            raise bad("replica_axis", replica_axis, f"one of {listed(axes)}, or empty for none")
        named_groups = checked_groups(groups or {}, tuple(axes))
        taken = (*axes, *(name for name, _ in named_groups))
        return cls(
            axes=ordered_axes,
            ranks_per_node=ranks_per_node,
            groups=named_groups,
            rank_sets=checked_rank_sets(rank_sets or {}, world_size, taken),
            replica_axis=replica_axis,
        )

    # --- ranks and slots ----------------------------------------------------------------------

    @cached_property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(size for _, size in self.axes)

    @property
    def slot_count(self) -> int:
        """Number of slots, hence of nodes that a full topology needs."""
        return self.world_size // self.ranks_per_node

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the index of `rank` along each axis, outermost first."""
        self._check("rank", rank, self.world_size)
        return {name: rank // stride % size for name, size, stride in self._strides}

    def rank_at(self, coordinates: Mapping[str, int]) -> Rank:
        """Return the rank at these coordinates, of which every axis must have one."""
        if coordinates.keys() != dict(self.axes).keys():
            axes = listed(name for name, _ in self.axes)
            raise bad("coordinates", listed(coordinates), f"exactly the axes {axes}")
        rank = 0
        for name, size, stride in self._strides:
            self._check(f"coordinate {name}", coordinates[name], size)
            rank += coordinates[name] * stride
        return Rank(rank)

    def slot_of(self, rank: int) -> Slot:
        """Return the slot in which `rank` sits."""
        self._check("rank", rank, self.world_size)
        return Slot(rank // self.ranks_per_node)

    def ranks_of(self, slot: int) -> tuple[Rank, ...]:
        """Return the ranks of a slot, ascending."""
        self._check("slot", slot, self.slot_count)
        first = slot * self.ranks_per_node
        return tuple(Rank(rank) for rank in range(first, first + self.ranks_per_node))

    # --- groups -------------------------------------------------------------------------------

    def group_kinds(self) -> tuple[str, ...]:
        """Return the names that groups may have before their index, in order of enumeration."""
        declared = dict.fromkeys(name.partition("[")[0] for name, _ in self.rank_sets)
        return (*self._kinds, *declared)

    def group(self, name: str) -> GroupRef:
        """Return the group called `name`, such as ``dp[3]``.

        Raises:
            BadLayout: no group of this layout has that name.
        """
        if name in self._sets:
            return self._set_ref(GroupName(name))
        match = INDEXED.match(name)
        kind = self._kinds.get(match[1]) if match else None
        if match is None or kind is None:
            allowed = f"name[index] with a name of {listed(self.group_kinds())}"
            raise bad("group", name, allowed)
        self._check(f"group {kind.name}", int(match[2]), kind.count)
        return self._ref(kind, int(match[2]))

    def groups_of_rank(self, rank: int) -> tuple[GroupRef, ...]:
        """Return the groups that hold `rank`: by axis, then named, then explicit."""
        self._check("rank", rank, self.world_size)
        kinds = [kind for kind in self._kinds.values() if not kind.ends or kind.holds(rank)]
        by_axes = [self._ref(kind, kind.index_of(rank)) for kind in kinds]
        return (*by_axes, *(self._set_ref(name) for name in self._sets_by_rank.get(rank, ())))

    def affected_groups(
        self, slots: Iterable[int], *, include_local: bool = False
    ) -> tuple[GroupRef, ...]:
        """Return the groups that a change of these slots touches, in order of kind and index.

        Groups wholly inside one slot are left out unless `include_local`: whoever fills the slot
        builds them alone.
        """
        ranks = [rank for slot in sorted(set(slots)) for rank in self.ranks_of(slot)]
        found = [
            self._ref(kind, index)
            for kind in self._kinds.values()
            for index in sorted({kind.index_of(rank) for rank in ranks if kind.holds(rank)})
            if include_local or not self._is_local(kind, index)
        ]
        touched = {name for rank in ranks for name in self._sets_by_rank.get(rank, ())}
        declared = [self._set_ref(name) for name, _ in self.rank_sets if name in touched]
        found += [group for group in declared if include_local or not group.local]
        return tuple(found)

    def affected_slots(self, slots: Iterable[int]) -> tuple[Slot, ...]:
        """Return these slots and every slot with a rank in an affected group, ascending."""
        wanted = set(slots)
        ranks = {rank for group in self.affected_groups(wanted) for rank in group.ranks}
        return tuple(sorted({Slot(slot) for slot in wanted} | {self.slot_of(r) for r in ranks}))

    # --- what a slot is for -------------------------------------------------------------------

    def role_of(self, slot: int) -> Role:
        """Return the role of a slot: its place along the axis ``pp``; ``only`` without one."""
        stages = dict(self.axes).get(STAGE_AXIS, 1)
        if stages == 1:
            self._check("slot", slot, self.slot_count)
            return ONLY
        held = {self.coordinates(rank)[STAGE_AXIS] for rank in self.ranks_of(slot)}
        if {0, stages - 1} <= held:
            return ONLY
        if 0 in held:
            return FIRST
        return LAST if stages - 1 in held else MIDDLE

    def replicas_of(self, slot: int) -> tuple[Slot, ...]:
        """Return the other slots each of which holds all state that `slot` holds, ascending."""
        self._check("slot", slot, self.slot_count)
        kind = self._kinds.get(self.replica_axis)
        if kind is None:
            return ()
        per_node = self.ranks_per_node
        (size, stride), *more = kind.inside
        if not more and stride % per_node == 0:  # all ranks of a node move along the axis together
            step, at = stride // per_node, slot * per_node // stride % size
            first = slot - at * step
            return tuple(Slot(first + step * place) for place in range(size) if place != at)
        ranks = self.ranks_of(slot)
        holders = [
            {Slot(rank // per_node) for rank in kind.ranks(index)}
            for index in sorted({kind.index_of(rank) for rank in ranks})
        ]
        return tuple(sorted(set.intersection(*holders) - {Slot(slot)}))

    def shards_of(self, slot: int) -> tuple[int, ...]:
        """Return the numbers of the shards of state that a slot holds, ascending: ranks that
        differ along the replica axis alone hold the same one.
        """
        ranks = self.ranks_of(slot)
        kind = self._kinds.get(self.replica_axis)
        if kind is None:
            return tuple(ranks)
        return tuple(sorted({kind.index_of(rank) for rank in ranks}))

    @property
    def data_parts(self) -> int:
        """Number of parts in which a batch is split: the size of the replica axis, or 1."""
        return dict(self.axes).get(self.replica_axis, 1)

    def data_part(self, rank: int) -> int:
        """Return which part of a batch `rank` works on: its place along the replica axis, or 0."""
        return self.coordinates(rank).get(self.replica_axis, 0)

    # --- inside -------------------------------------------------------------------------------

    @cached_property
    def _strides(self) -> tuple[tuple[str, int, int], ...]:
        strides = []
        stride = self.world_size
        for name, size in self.axes:
            stride //= size
            strides.append((name, size, stride))
        return tuple(strides)

    @cached_property
    def _kinds(self) -> dict[str, _Kind]:
        by_axis = [(name, (name,)) for name, _ in self.axes]
        return {name: self._kind(name, axes) for name, axes in (*by_axis, *self.groups)}

    @cached_property
    def _sets(self) -> dict[GroupName, tuple[Rank, ...]]:
        return dict(self.rank_sets)

    @cached_property
    def _sets_by_rank(self) -> dict[int, tuple[GroupName, ...]]:
        sets: dict[int, tuple[GroupName, ...]] = {}
        for name, ranks in self.rank_sets:
            for rank in ranks:
                sets[rank] = (*sets.get(rank, ()), name)
        return sets

    def _kind(self, name: str, axes: tuple[str, ...]) -> _Kind:
        inside, outside, ends = [], [], []
        for axis, size, stride in self._strides:
            if axis in axes:
                inside.append((size, stride))
            elif f"{axis}{ENDS}" in axes:
                ends.append((size, stride))
                inside.append((2, stride * (size - 1)) if size > 1 else (1, stride))
            else:
                outside.append((size, stride))
        return _Kind(name, tuple(inside), tuple(outside), tuple(ends))

    def _is_local(self, kind: _Kind, index: int) -> bool:
        base = kind.base_of(index)  # slots ascend with ranks, so the two ends decide
        return base // self.ranks_per_node == (base + kind.span) // self.ranks_per_node

    def _ref(self, kind: _Kind, index: int) -> GroupRef:
        name = GroupName(f"{kind.name}[{index}]")
        return GroupRef(name=name, ranks=kind.ranks(index), local=self._is_local(kind, index))

    def _set_ref(self, name: GroupName) -> GroupRef:
        ranks = self._sets[name]
        return GroupRef(name=name, ranks=ranks, local=len({self.slot_of(r) for r in ranks}) == 1)

    def _check(self, field: str, value: int, count: int) -> None:
        if not 0 <= value < count:
            raise bad(field, value, f"0 to {count - 1}")
