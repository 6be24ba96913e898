"""What the members of a transition answered: thousands of answers, one event each.

Theory of operation. Members are numbered once, when the transition is planned; an answer belongs at
its member's place in a block of 64. Storing it there copies a block and the list of blocks, two
hundred references, so that is done for a handful at once: the newest answers wait in a small
mapping, which is all that an ordinary insertion copies. In a large fleet most events are answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

from msgspec import Struct

from statemachine.ids import NodeId

BLOCK: Final = 64

RECENT: Final = 16
"""So many answers wait outside the blocks: few enough to copy for each, many enough to share."""

T = TypeVar("T")


def numbered(names: Iterable[NodeId]) -> dict[NodeId, int]:
    """Members with their numbers, in order of name."""
    # Sorting what is nearly sorted costs next to nothing; what comes out of a set is not.
    return {name: number for number, name in enumerate(dict.fromkeys(sorted(names)))}


class Answers(Struct, Generic[T], frozen=True, kw_only=True, gc=False):
    """Member -> answer; like a mapping, but `insert` gives another. Build it with `among`."""

    members: Mapping[NodeId, int] = {}
    blocks: tuple[tuple[T | None, ...], ...] = ()
    recent: dict[NodeId, T] = {}
    """By name, since a snapshot knows no other keys; instead of what the blocks hold."""
    count: int = 0

    @classmethod
    def among(cls, members: Mapping[NodeId, int]) -> Answers[T]:
        """No answers yet of these members."""
        blocks = -(-len(members) // BLOCK)
        return cls(members=members, blocks=((None,) * BLOCK,) * blocks)

    def insert(self, name: NodeId, said: T) -> Answers[T]:
        """With the answer of a member, in the place of an earlier one."""
        number = self.members[name]
        recent, count, blocks = self.recent, self.count, self.blocks
        if name not in recent and blocks[number >> 6][number & 63] is None:
            count += 1
        if len(recent) < RECENT:
            recent = recent.copy()
            recent[name] = said
        else:
            blocks = _stored(self.members, blocks, recent)
            recent = {name: said}
        return Answers(members=self.members, blocks=blocks, recent=recent, count=count)

    def get(self, name: NodeId) -> T | None:
        """What a member answered, if it did."""
        number = self.members.get(name)
        if number is None:
            return None
        said = self.recent.get(name)
        return self.blocks[number // BLOCK][number % BLOCK] if said is None else said

    def __contains__(self, name: NodeId) -> bool:
        return self.get(name) is not None

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[NodeId]:
        return (name for name in self.members if name in self)

    def items(self) -> Iterator[tuple[NodeId, T]]:
        """Who answered, and what, in order of name."""
        for name in self.members:
            said = self.get(name)
            if said is not None:
                yield name, said


def _stored(
    members: Mapping[NodeId, int],
    blocks: tuple[tuple[T | None, ...], ...],
    recent: Mapping[NodeId, T],
) -> tuple[tuple[T | None, ...], ...]:
    """The blocks with what waited."""
    touched: dict[int, list[T | None]] = {}
    for name, said in recent.items():
        number = members[name]
        block = touched.get(number >> 6)
        if block is None:
            block = touched[number >> 6] = list(blocks[number >> 6])
        block[number & 63] = said
    whole = list(blocks)
    for index, block in touched.items():
        whole[index] = tuple(block)
    return tuple(whole)
