"""The tree's shape, for every size that is small enough to try."""

import pytest

from worker.groups.trees import children_of, parent_of, towards
from worker.groups.view import neighbours_of

SIZES = range(1, 34)


@pytest.mark.parametrize("size", SIZES)
def test_parents_and_children_agree(size: int) -> None:
    """Every member but the root is exactly one member's child, and knows whose."""
    children = {child: index for index in range(size) for child in children_of(index, size)}

    assert children == {index: parent_of(index) for index in range(1, size)}


@pytest.mark.parametrize("size", SIZES)
def test_neighbours_are_mutual_and_few(size: int) -> None:
    """Both ends of a link want it, and nobody wants more than six."""
    near = {index: neighbours_of(index, size) for index in range(size)}

    assert all(index in near[other] for index in near for other in near[index])
    assert all(len(found) <= 6 and index not in found for index, found in near.items())


@pytest.mark.parametrize("size", SIZES)
def test_the_way_towards_a_root_gets_there(size: int) -> None:
    """From anywhere, following the way reaches the root over tree links in few steps."""
    for root in range(size):
        for start in range(size):
            at: int | None = start
            for _ in range(2 * size.bit_length() + 1):
                assert at is not None
                step = towards(at, root)
                if step is None:
                    break
                assert step in {*children_of(at, size), parent_of(at)}
                at = step
            assert at == root
