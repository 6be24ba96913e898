"""Collectives for small payloads: up a tree and down again.

What belongs here: the tree's shape and the lanes over it. What does not: large payloads (rings),
tensors.

Member i's parent is (i - 1) // 3 whatever the group's size, so each member has at most four tree
links, and a swap touches few. Three children rather than two, because what a small collective costs
is waking one process after another: at 4 and 8 ranks on two cores a vote took a quarter to a third
less. The reduction order is own, then the children from the lowest: fixed by index, the same bits
wherever a node sits. A payload is one frame.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from worker.groups.bulk import BulkStream
from worker.groups.exchange import Lane, receive, send

FANOUT: Final = 3


def parent_of(index: int) -> int | None:
    """Index of the parent; the root has none."""
    return None if index == 0 else (index - 1) // FANOUT


def children_of(index: int, size: int) -> list[int]:
    """Indices of the children, lowest first."""
    first = FANOUT * index + 1
    return list(range(first, min(first + FANOUT, size)))


def _path_to_top(index: int) -> Iterator[int]:
    while index:
        yield index
        index = (index - 1) // FANOUT
    yield 0


def towards(me: int, root: int) -> int | None:
    """The tree neighbour on the way from `me` to `root`; None at `root` itself."""
    if me == root:
        return None
    below = None
    for step in _path_to_top(root):
        if step == me:
            return below
        below = step
    return parent_of(me)


@dataclass(frozen=True, slots=True)
class Tree:
    """This member's place in the tree, and the streams to its neighbours by index."""

    me: int
    size: int
    streams: Mapping[int, BulkStream]

    def up_and_down(
        self,
        stamp: tuple[int, int],
        payload: memoryview,
        scratch: memoryview,
        fold: Callable[[], None],
        settled: Callable[[], None],
    ) -> Lane:
        """Reduce to the root and send the result back down.

        `fold` reduces `scratch` into `payload`. `settled` is called once this member holds the
        outcome: at the root before anybody else does, below it before the outcome is passed on.
        """
        children = children_of(self.me, self.size)
        parent = parent_of(self.me)
        for child in children:
            yield from receive(self.streams[child], *stamp, 0, scratch)
            fold()
        if parent is not None:
            yield from send(self.streams[parent], *stamp, 0, payload)
            yield from receive(self.streams[parent], *stamp, 1, payload)
        settled()
        for child in children:
            yield from send(self.streams[child], *stamp, 1, payload)

    def flood(self, stamp: tuple[int, int], payload: memoryview, root: int) -> Lane:
        """Spread `payload` from `root`, which may be any member, along the tree's edges."""
        source = towards(self.me, root)
        if source is not None:
            yield from receive(self.streams[source], *stamp, 0, payload)
        parent = parent_of(self.me)
        neighbours = children_of(self.me, self.size) + ([] if parent is None else [parent])
        for neighbour in neighbours:
            if neighbour != source:
                yield from send(self.streams[neighbour], *stamp, 0, payload)
