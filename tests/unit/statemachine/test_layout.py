"""Layouts: arithmetic of ranks, the groups a change touches, roles and replicas, bad input."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import json

from statemachine.errors import BadLayout
from statemachine.layout import GroupRef, Layout

AXES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(
    lambda sizes: dict(zip(("pp", "dp", "cp", "tp"), sizes, strict=False))
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Small layouts with named groups and any node size that fits."""
    axes = draw(AXES)
    world_size = Layout.of(axes).world_size
    divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
    groups = {"both": tuple(axes)[:2]} if len(axes) > 1 else {}
    if draw(st.booleans()):
        groups["ends"] = (f"{min(axes)}:ends",)
        groups["mixed"] = tuple(f"{axis}:ends" if axis == "pp" else axis for axis in axes)[:2]
    rank_sets = {"tied": (0, world_size - 1)} if world_size > 1 else {}
    return Layout.of(axes, draw(st.sampled_from(divisors)), groups, rank_sets)


def names(groups: tuple[GroupRef, ...]) -> list[str]:
    """The names of groups, in order."""
    return [str(group.name) for group in groups]


def bytecodes(act: Callable[[], Any]) -> int:
    """Number of Python instructions that `act` executes: a measure of work without a clock."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 asks when tracing begins, and never again
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


@given(layouts())
def test_coordinates_and_ranks_are_inverse(layout: Layout) -> None:
    """Every rank has its own coordinates, the innermost axis varies fastest, slots are blocks."""
    seen = []
    for rank in range(layout.world_size):
        coordinates = layout.coordinates(rank)
        seen.append(tuple(coordinates.values()))

        assert layout.rank_at(coordinates) == rank
        assert rank in layout.ranks_of(layout.slot_of(rank))

    assert seen == sorted(set(seen)), "ranks do not ascend with their coordinates"


@given(layouts())
def test_groups_of_an_axis_are_the_ranks_that_differ_in_it_alone(layout: Layout) -> None:
    """A group along axes holds exactly the ranks that agree on every other axis."""
    kinds = {name: {name} for name, _ in layout.axes} | {n: set(a) for n, a in layout.groups}
    sizes = dict(layout.axes)
    for rank in range(layout.world_size):
        mine = layout.coordinates(rank)
        for group in layout.groups_of_rank(rank):
            if group.kind not in kinds:
                continue
            along = {name.removesuffix(":ends") for name in kinds[group.kind]}
            ends = {name.removesuffix(":ends") for name in kinds[group.kind] if ":" in name}
            fixed = {axis: i for axis, i in mine.items() if axis not in along}
            expected = [
                other
                for other in range(layout.world_size)
                if fixed.items() <= layout.coordinates(other).items()
                and all(layout.coordinates(other)[a] in (0, sizes[a] - 1) for a in ends)
            ]

            assert list(group.ranks) == expected, f"{layout} {group.name}"


@given(layouts())
def test_indices_are_dense_and_names_lead_back(layout: Layout) -> None:
    """Each kind numbers its groups from 0 without a hole, and `group` finds each by name."""
    for kind in layout.group_kinds():
        found = {
            group.name: group
            for rank in range(layout.world_size)
            for group in layout.groups_of_rank(rank)
            if group.kind == kind
        }

        assert set(found) == {f"{kind}[{index}]" for index in range(len(found))}
        assert all(layout.group(name) == group for name, group in found.items())
        with pytest.raises(BadLayout):
            layout.group(f"{kind}[{len(found)}]")


@given(layouts(), st.data())
def test_affected_groups_are_what_enumeration_finds(layout: Layout, data: st.DataObject) -> None:
    """Affected groups and slots equal those found by looking at every rank and every group."""
    slots = data.draw(st.sets(st.integers(0, layout.slot_count - 1), max_size=3))
    every = {
        group.name: group
        for rank in range(layout.world_size)
        for group in layout.groups_of_rank(rank)
    }
    touched = {
        name: group
        for name, group in every.items()
        if {layout.slot_of(rank) for rank in group.ranks} & slots
    }
    crossing = {name for name, group in touched.items() if not group.local}

    affected = layout.affected_groups(slots)

    assert len(affected) == len(set(affected))
    assert set(names(affected)) == crossing
    assert set(names(layout.affected_groups(slots, include_local=True))) == set(touched)
    expected = slots | {layout.slot_of(rank) for name in crossing for rank in every[name].ranks}
    assert layout.affected_slots(slots) == tuple(sorted(expected))


@given(layouts())
def test_replicas_hold_every_shard_of_the_slot(layout: Layout) -> None:
    """Replicas are exactly the other slots that hold each coordinate set of a slot but for dp."""

    def shards(slot: int) -> set[tuple[tuple[str, int], ...]]:
        return {
            tuple((axis, i) for axis, i in layout.coordinates(rank).items() if axis != "dp")
            for rank in layout.ranks_of(slot)
        }

    has_replicas = "dp" in dict(layout.axes)
    for slot in range(layout.slot_count):
        expected = [
            other
            for other in range(layout.slot_count)
            if has_replicas and other != slot and shards(slot) <= shards(other)
        ]

        assert list(layout.replicas_of(slot)) == expected, f"{layout} slot {slot}"


def test_a_swap_in_65536_ranks_costs_no_more_per_answered_rank_than_in_512() -> None:
    """The work for one swap follows the size of the affected groups, not the number of ranks."""

    def work_per_answered_rank(stages: int) -> float:
        layout = Layout.of({"pp": stages, "dp": 8, "tp": 8}, 8, {"dp_tp": ("dp", "tp")})
        far = layout.slot_count - 1
        answered = sum(len(group.ranks) for group in layout.affected_groups({far}))

        def act() -> None:
            assert len(layout.affected_slots({far})) == 8 + stages - 1
            layout.replicas_of(far)
            layout.role_of(far)

        return bytecodes(act) / answered

    small, large = work_per_answered_rank(8), work_per_answered_rank(1024)

    assert Layout.of({"pp": 1024, "dp": 8, "tp": 8}, 8).world_size == 65_536
    assert large <= small < 200, (small, large)


def test_a_swap_of_plain_data_parallel_touches_one_group() -> None:
    """With one axis and one rank per node, every slot shares the only group."""
    layout = Layout.of({"dp": 4})

    assert names(layout.affected_groups({2})) == ["dp[0]"]
    assert layout.affected_slots({2}) == (0, 1, 2, 3)
    assert layout.replicas_of(2) == (0, 1, 3)


def test_tensor_groups_inside_a_node_are_local() -> None:
    """Groups wholly inside a node are left out of the delta, and shown on demand."""
    layout = Layout.of({"pp": 2, "dp": 2, "tp": 2}, 2)

    assert names(layout.affected_groups({0})) == ["pp[0]", "pp[1]", "dp[0]", "dp[1]"]
    assert "tp[0]" in names(layout.affected_groups({0}, include_local=True))
    assert layout.affected_slots({0}) == (0, 1, 2)


@pytest.mark.parametrize(
    ("axes", "ranks_per_node", "expected"),
    [
        (
            {"pp": 4, "dp": 2},
            1,
            ["first", "first", "middle", "middle"] + ["middle"] * 2 + ["last"] * 2,
        ),
        ({"dp": 2, "pp": 4}, 4, ["only", "only"]),
        ({"dp": 1, "pp": 4}, 2, ["first", "last"]),
        ({"pp": 1, "dp": 2}, 1, ["only", "only"]),
        ({"dp": 3}, 1, ["only", "only", "only"]),
        ({"pp": 2, "dp": 1}, 1, ["first", "last"]),
    ],
)
def test_roles_follow_the_pipeline(
    axes: dict[str, int], ranks_per_node: int, expected: list[str]
) -> None:
    """A slot is first, middle or last by its stages, and only when it holds both ends."""
    layout = Layout.of(axes, ranks_per_node)

    assert [layout.role_of(slot) for slot in range(layout.slot_count)] == expected


def test_rank_sets_are_groups_by_name_and_index() -> None:
    """Tied embeddings are named sets; a lone name is index 0; ranks ascend."""
    layout = Layout.of(
        {"pp": 2, "dp": 2}, rank_sets={"tied[1]": (3, 1), "tied[0]": (0, 2), "odd": (3, 0)}
    )

    assert layout.group_kinds() == ("pp", "dp", "odd", "tied")
    assert layout.group("tied[1]").ranks == (1, 3)
    assert names(layout.groups_of_rank(3)) == ["pp[1]", "dp[1]", "odd[0]", "tied[1]"]
    assert "odd[0]" in names(layout.affected_groups({0}))


def test_tied_embeddings_of_a_whole_layout_are_one_group_by_the_ends_of_its_stages() -> None:
    """First and last stage share a group for each place in them; the stages between have none."""
    layout = Layout.of({"pp": 4, "dp": 2, "tp": 2}, groups={"embedding": ("pp:ends",)})

    assert layout.group("embedding[0]").ranks == (0, 12)
    assert layout.group("embedding[3]").ranks == (3, 15)
    assert "embedding" not in {group.kind for group in layout.groups_of_rank(4)}
    assert "embedding[1]" in names(layout.affected_groups([13]))
    assert layout.affected_slots([4]) == (0, 4, 5, 6, 8, 12)


def test_experts_and_context_have_groups_of_several_axes() -> None:
    """Gradients of dense weights are reduced over `dp x ep`, of experts over `dp` alone, those of
    sequence parts over `dp x cp`: a swap touches one of each.
    """
    axes = {"pp": 2, "dp": 4, "ep": 2, "cp": 2, "tp": 8}
    layout = Layout.of(axes, 8, {"dense": ("dp", "ep"), "dpcp": ("dp", "cp")})
    touched = layout.affected_groups([0])

    sizes = {group.kind: len(group.ranks) for group in touched}
    assert sizes == {"pp": 2, "dp": 4, "ep": 2, "cp": 2, "dense": 8, "dpcp": 8}
    assert len(touched) == 8 * len(sizes), "one group of each kind for every rank of the node"
    assert layout.replicas_of(0) == tuple(4 * part for part in range(1, 4)), "equal experts"


def test_data_parts_follow_the_replica_axis() -> None:
    """A rank's part of the batch is its place along the replica axis."""
    layout = Layout.of({"pp": 2, "ddp": 3}, replica_axis="ddp")

    assert layout.data_parts == 3
    assert [layout.data_part(rank) for rank in range(6)] == [0, 1, 2, 0, 1, 2]
    assert layout.replicas_of(4) == (3, 5)
    assert Layout.of({"pp": 2}).data_parts == 1
    assert Layout.of({"pp": 2}).replicas_of(0) == ()


def test_equal_input_gives_equal_values_that_survive_json() -> None:
    """Order of groups does not matter, order of axes does, and JSON brings the same value back."""
    groups = {"a": ("tp", "dp"), "b": ("dp",)}
    layout = Layout.of({"dp": 2, "tp": 2}, 2, groups, {"s": (0, 3)})
    turned = Layout.of({"dp": 2, "tp": 2}, 2, dict(reversed(groups.items())), {"s[0]": (3, 0)})

    assert layout == turned
    assert layout != Layout.of({"tp": 2, "dp": 2}, 2, groups, {"s": (0, 3)})
    assert json.decode(json.encode(layout), type=Layout) == layout
    assert layout.groups[0] == ("a", ("dp", "tp"))


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: Layout.of({}), "axes is {}"),
        (lambda: Layout.of({"dp": 0}), "axis dp is 0; allowed: a size of at least 1"),
        (lambda: Layout.of({"DP": 2}), "axis name is DP"),
        (lambda: Layout.of({"dp": 6}, 4), "ranks_per_node is 4; allowed: a divisor of the 6 ranks"),
        (lambda: Layout.of({"dp": 6}, 0), "ranks_per_node is 0"),
        (lambda: Layout.of({"dp": 2}, 1, {"dp": ("dp",)}), "group name is dp"),
        (lambda: Layout.of({"dp": 2}, 1, {"g": ("tp",)}), "group g is tp; allowed: distinct axes"),
        (lambda: Layout.of({"dp": 2}, 1, {"g": ()}), "group g is nothing"),
        (lambda: Layout.of({"dp": 2}, 1, {"g": ("dp", "dp")}), "group g is dp, dp"),
        (lambda: Layout.of({"dp": 2}, 1, None, {"dp": (0, 1)}), "rank set name is dp"),
        (lambda: Layout.of({"dp": 2}, 1, None, {"s": (0,)}), "two or more distinct ranks"),
        (lambda: Layout.of({"dp": 2}, 1, None, {"s": (0, 2)}), "ranks from 0 to 1"),
        (lambda: Layout.of({"dp": 2}, 1, None, {"s[1]": (0, 1)}), "dense indices from 0"),
        (lambda: Layout.of({"dp": 2}, 1, None, {"s": (0, 1), "s[0]": (0, 1)}), "not both"),
        (lambda: Layout.of({"dp": 3}, 1, None, {"s[0]": (0, 1), "s[1]": (1, 2)}), "no other set"),
        (lambda: Layout.of({"dp": 2}, replica_axis="x"), "replica_axis is x; allowed: one of dp"),
        (lambda: Layout.of({"dp": 2}).coordinates(2), "rank is 2; allowed: 0 to 1"),
        (lambda: Layout.of({"dp": 2}).ranks_of(-1), "slot is -1; allowed: 0 to 1"),
        (lambda: Layout.of({"dp": 2}).role_of(2), "slot is 2"),
        (lambda: Layout.of({"dp": 2}).rank_at({"dp": 2}), "coordinate dp is 2"),
        (lambda: Layout.of({"dp": 2}).rank_at({"tp": 0}), "exactly the axes dp"),
        (lambda: Layout.of({"dp": 2}).group("tp[0]"), "group is tp[0]; allowed: name[index]"),
        (lambda: Layout.of({"dp": 2}).group("dp"), "group is dp"),
        (lambda: Layout.of({"dp": 2}).group("dp[01]"), "group is dp[01]"),
    ],
)
def test_bad_input_names_field_value_and_what_is_allowed(
    act: Callable[[], object], says: str
) -> None:
    """Every refusal says what was wrong, with which value, and what would be right."""
    with pytest.raises(BadLayout) as refusal:
        act()

    assert says in str(refusal.value)


@settings(max_examples=5)
@given(st.integers(0, 65_535))
def test_a_rank_of_a_huge_layout_is_found_back(rank: int) -> None:
    """Arithmetic holds at 65,536 ranks without enumerating them."""
    layout = Layout.of({"pp": 16, "dp": 64, "cp": 8, "tp": 8}, 8)
    work = bytecodes(lambda: layout.rank_at(layout.coordinates(rank)))

    assert layout.rank_at(layout.coordinates(rank)) == rank
    assert work < 1_000
