"""Every collective, over processes of their own, against what torch computes by itself."""

from typing import Any

import pytest

from tests.integration.groups.conftest import Fleet

FOUR = ["n0", "n1", "n2", "n3"]
THREE = FOUR[:3]
SIZES = [1, 3, 1000, 32_768, 300_001, 3_000_001]
"""Elements: fewer than members, odd, near the tree's limit, and many uneven chunks."""


def check(answers: dict[str, Any], tolerance: float) -> None:
    """Fail with all answers unless every rank has the right numbers and nobody broke."""
    assert not any(one["broken"] for one in answers.values()), answers
    assert all(one["error"] <= tolerance for one in answers.values()), answers


def same_bits(answers: dict[str, Any]) -> bool:
    """Whether all ranks hold the same bits."""
    return len({one["digest"] for one in answers.values()}) == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float32", 1e-6), ("float64", 1e-15), ("bfloat16", 1e-2), ("float16", 2e-3)],
)
def test_fractions_are_summed_alike_everywhere(
    four: Fleet, dtype: str, tolerance: float, size: int
) -> None:
    """A sum is right to the type's precision, and bit for bit the same on every rank."""
    answers = four.all(FOUR, "collective", "dp", "all_reduce", dtype, size)

    check(answers, tolerance)
    assert same_bits(answers), answers


@pytest.mark.parametrize("size", [5, 100_003])
@pytest.mark.parametrize("op", ["sum", "avg", "min", "max", "product", "band", "bor", "bxor"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_whole_numbers_are_reduced_exactly(three: Fleet, dtype: str, op: str, size: int) -> None:
    """Every reduction of whole numbers is exact."""
    answers = three.all(THREE, "collective", "dp", "all_reduce", dtype, size, op)

    check(answers, 0.0)


@pytest.mark.parametrize("op", ["avg", "min", "max", "product"])
@pytest.mark.parametrize("size", [7, 70_001])
def test_fractions_are_reduced_in_every_way(four: Fleet, op: str, size: int) -> None:
    """Averages, extremes and products of fractions are right, on the tree and on the ring."""
    answers = four.all(FOUR, "collective", "dp", "all_reduce", "float32", size, op)

    check(answers, 1e-6)
    assert same_bits(answers), answers


@pytest.mark.parametrize("op", ["min", "max", "bor", "band"])
def test_truth_values_are_reduced(four: Fleet, op: str) -> None:
    """Booleans can be reduced where that has a meaning."""
    check(four.all(FOUR, "collective", "dp", "all_reduce", "bool", 50_000, op), 0.0)


@pytest.mark.parametrize("root", [0, 1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_broadcast_reaches_all_from_any_root(four: Fleet, root: int, size: int) -> None:
    """Whoever is the root, and however large the tensor, all get its bits."""
    check(four.all(FOUR, "collective", "dp", "broadcast", "float32", size, "sum", root), 0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
@pytest.mark.parametrize("operation", ["all_gather", "gather", "scatter", "all_to_all", "messages"])
@pytest.mark.parametrize("size", [1, 200_000])
def test_copies_are_exact(four: Fleet, operation: str, dtype: str, size: int) -> None:
    """What is only moved arrives bit for bit."""
    check(four.all(FOUR, "collective", "dp", operation, dtype, size, "sum", 2), 0.0)


@pytest.mark.parametrize("operation", ["reduce_scatter", "reduce"])
@pytest.mark.parametrize("size", [1, 90_001])
def test_partial_reductions_are_right(four: Fleet, operation: str, size: int) -> None:
    """A part, or one rank's copy, of a reduction is what the whole would have held."""
    check(four.all(FOUR, "collective", "dp", operation, "float32", size, "sum", 2), 1e-6)


@pytest.mark.parametrize("size", [12, 60_000])
def test_code_that_looks_groups_up_by_name_works(three: Fleet, size: int) -> None:
    """Global ranks, functional collectives, a device mesh and DTensor run on a published group."""
    answers = three.all(THREE, "collective", "dp", "functional", "float32", size, "sum", 1)

    check(answers, 1e-6)


def test_a_vote_finds_each_minimum(four: Fleet) -> None:
    """Every rank learns the element-wise minimum of what all brought."""
    pending = [
        four[node].start("vote", "dp", [index, -index, 10 - index, 2**62])
        for index, node in enumerate(FOUR)
    ]

    assert [one(10)["outcome"] for one in pending] == [[0, -3, 7, 2**62]] * 4


def test_time_blocked_on_a_late_peer_counts_as_waiting(three: Fleet) -> None:
    """A rank that waits for a slow one books the time as waiting, and the slow one does not."""
    before = three.all(THREE, "look", "dp")
    late = three["n1"].start("compute", 0.4)
    answers = three.all(THREE, "collective", "dp", "all_reduce", "float32", 1000)
    late(10)
    after = three.all(THREE, "look", "dp")

    check(answers, 1e-6)
    waited = {node: after[node]["wait_s"] - before[node]["wait_s"] for node in THREE}
    assert waited["n0"] > 0.3, waited
    assert waited["n2"] > 0.3, waited
    assert waited["n1"] < 0.2, waited


def test_ranks_in_different_collectives_break_and_say_so(fleet: Fleet) -> None:
    """Members that call with different sizes get a broken group, not wrong numbers or a hang."""
    fleet.spawn(*THREE)
    fleet.launch("dp", THREE)
    pending = [
        fleet[node].start("collective", "dp", "all_reduce", "float32", 100 + index)
        for index, node in enumerate(THREE)
    ]

    assert all(one(10)["broken"] for one in pending)
    causes = {fleet[node].tell("look", "dp")["kind"] for node in THREE}
    assert "desynchronised" in causes, causes
