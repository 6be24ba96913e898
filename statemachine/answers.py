"""What the members of a transition answered: thousands of answers, one event each.

Theory of operation. Members are numbered once, when the transition is planned; an answer goes to
its member's place in a block of 64. To add one copies a block and the list of blocks, two hundred
references, and shares the rest: less than a persistent map of names takes, and in a large fleet
most events are answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

from msgspec import Struct

from statemachine.ids import NodeId

BLOCK: Final = 64

T = TypeVar("T")


def numbered(names: Iterable[NodeId]) -> dict[NodeId, int]:
    """Members with their numbers, in order of name."""
    return {name: number for number, name in enumerate(sorted(set(names)))}


class Answers(Struct, Generic[T], frozen=True, kw_only=True, gc=False):
    """Member -> answer; like a mapping, but `insert` gives another. Build it with `among`."""

    members: Mapping[NodeId, int] = {}
    blocks: tuple[tuple[T | None, ...], ...] = ()
    count: int = 0

    @classmethod
    def among(cls, members: Mapping[NodeId, int]) -> Answers[T]:
        """No answers yet of these members."""
        blocks = -(-len(members) // BLOCK)
        return cls(members=members, blocks=((None,) * BLOCK,) * blocks)

    def insert(self, name: NodeId, said: T) -> Answers[T]:
        """With the answer of a member, in the place of an earlier one."""
        number = self.members[name]
        blocks = list(self.blocks)
        block = list(blocks[number >> 6])
        count = self.count + (block[number & 63] is None)
        block[number & 63] = said
        blocks[number >> 6] = tuple(block)
        return Answers(members=self.members, blocks=tuple(blocks), count=count)

    def get(self, name: NodeId) -> T | None:
        """What a member answered, if it did."""
        number = self.members.get(name)
        if number is None:
            return None
        return self.blocks[number // BLOCK][number % BLOCK]

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
