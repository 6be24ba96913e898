"""What a layout may look like: each check names the field, its value and what is allowed.

What belongs here: refusing bad input of `statemachine.layout`, and putting good input into its one
canonical form, so that equal layouts are equal values. No arithmetic on ranks.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from statemachine.errors import BadLayout
from statemachine.ids import GroupName, Rank

INDEXED: Final = re.compile(r"([a-z][a-z0-9_.-]{0,31})\[(0|[1-9][0-9]{0,8})\]\Z")
"""A group's name: its kind, and its index in brackets."""

ENDS: Final = ":ends"
"""Behind an axis in a group: of this axis the first and the last coordinate alone."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,31}\Z")
_NAME_ALLOWED: Final = "a letter a-z, then up to 31 of a-z 0-9 _ . -"


def checked_axes(axes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return axes as (name, size), in the given order."""
    if not axes:
        raise bad("axes", "{}", "at least one axis, such as dp=4")
    for name, size in axes.items():
        if not _NAME.match(name):
            raise bad("axis name", name, _NAME_ALLOWED)
        if size < 1:
            raise bad(f"axis {name}", size, "a size of at least 1")
    return tuple(axes.items())


def checked_groups(
    groups: Mapping[str, Sequence[str]], axes: tuple[str, ...]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return named groups sorted by name, the axes of each in the order of the layout."""
    checked = []
    for name, members in sorted(groups.items()):
        if not _NAME.match(name) or name in axes:
            raise bad("group name", name, f"{_NAME_ALLOWED}, and not the name of an axis")
        plain = [member.removesuffix(ENDS) for member in members]
        if not plain or len(set(plain)) < len(plain) or not set(plain) <= set(axes):
            allowed = f"distinct axes out of {listed(axes)}, each perhaps with {ENDS}"
            raise bad(f"group {name}", listed(members), allowed)
        said = dict(zip(plain, members, strict=True))
        checked.append((name, tuple(said[axis] for axis in axes if axis in said)))
    return tuple(checked)


def checked_rank_sets(
    rank_sets: Mapping[str, Sequence[int]], world_size: int, taken: tuple[str, ...]
) -> tuple[tuple[GroupName, tuple[Rank, ...]], ...]:
    """Return rank sets by full name, sorted by name and index; `taken` are other kinds' names."""
    families: dict[str, dict[int, tuple[Rank, ...]]] = {}
    for key, ranks in sorted(rank_sets.items()):
        match = INDEXED.match(key if "[" in key else f"{key}[0]")
        if match is None or match[1] in taken:
            allowed = f"name or name[index], the name unlike {listed(taken)}"
            raise bad("rank set name", key, allowed)
        if len(ranks) < 2 or len(set(ranks)) < len(ranks):
            raise bad(f"rank set {key}", tuple(ranks), "two or more distinct ranks")
        if min(ranks) < 0 or max(ranks) >= world_size:
            raise bad(f"rank set {key}", tuple(ranks), f"ranks from 0 to {world_size - 1}")
        family = families.setdefault(match[1], {})
        if int(match[2]) in family:
            raise bad("rank set name", key, f"{match[1]} or {match[1]}[0], not both")
        family[int(match[2])] = tuple(Rank(rank) for rank in sorted(ranks))
    return tuple(ranks for name in sorted(families) for ranks in _family(name, families[name]))


def _family(
    name: str, family: Mapping[int, tuple[Rank, ...]]
) -> Iterator[tuple[GroupName, tuple[Rank, ...]]]:
    if max(family) >= len(family):
        raise bad(f"rank set {name}", listed(sorted(family)), "dense indices from 0")
    seen: set[Rank] = set()
    for index in range(len(family)):
        if doubled := seen.intersection(family[index]):
            raise bad(f"rank set {name}[{index}]", min(doubled), "ranks of no other set of a name")
        seen.update(family[index])
        yield GroupName(f"{name}[{index}]"), family[index]


def bad(field: str, value: object, allowed: str) -> BadLayout:
    """Build the error that names a field, its value and what is allowed."""
    return BadLayout(f"layout: {field} is {value}; allowed: {allowed}")


def listed(names: Iterable[object]) -> str:
    """Join names for a sentence."""
    return ", ".join(str(name) for name in names) or "nothing"
