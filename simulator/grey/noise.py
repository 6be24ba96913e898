"""Noise as it was recorded: step times of real training, resampled in runs.

What belongs here: reading recordings, and cutting nodes' shares out of them. A node's windows are
consecutive stretches of one recorded rank, from a random place on, so whatever the machine did for
a while lasts as long in the fleet. As many nodes as were recorded beside each other share a place:
what disturbed all ranks of the recording disturbs them together. Other nodes are independent of
them. Times are relative to the median of their recording.

A node that has its machine to itself takes as long as the *processor time* that was recorded: that
holds what caches, clocks and neighbours on the same cores did to a step, and not that a rank had to
queue for a processor. A node of a demo takes as long as the clock on the wall said.
"""

import gzip
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path

import msgspec
from msgspec import Struct

from simulator.errors import BadTrace

SHIPPED = "step_times.jsonl.gz"
"""Recorded by `benchmarks/record_step_times.py` on two cores that other programs wanted as well:
``paired`` with one rank to a core, ``crowded`` with two."""


class Recording(Struct, frozen=True, kw_only=True):
    """Wall and processor time of one rank's steps, in microseconds, as they followed each other."""

    name: str
    rank: int
    ranks: int
    cores: int
    work_us: tuple[int, ...]
    cpu_us: tuple[int, ...]


class Stretch(Struct, frozen=True):
    """One window's steps: own work, and processor time, relative to the recording's medians."""

    work: tuple[float, ...]
    cpu: float


def read_recordings(path: Path | None = None) -> tuple[Recording, ...]:
    """Read recordings; those that are shipped unless a path is given.

    Raises:
        BadTrace: the file cannot be read, or holds something else.
    """
    source = path if path is not None else resources.files("simulator.grey") / SHIPPED
    try:
        lines = gzip.decompress(source.read_bytes()).splitlines()
        return tuple(msgspec.json.decode(line, type=Recording) for line in lines)
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        raise BadTrace(f"{source}: no recorded step times: {error}") from error


@lru_cache
def shipped(name: str) -> tuple[Recording, ...]:
    """The shipped recordings of one name.

    Raises:
        BadTrace: there is none of that name.
    """
    everything = read_recordings()
    found = tuple(recording for recording in everything if recording.name == name)
    if not found:
        known = ", ".join(sorted({recording.name for recording in everything}))
        raise BadTrace(f"no recording {name!r}: there are {known}")
    return found


@lru_cache(maxsize=64)
def stretches(recording: Recording, steps: int, *, alone: bool) -> tuple[Stretch, ...]:
    """Cut a recording into windows of so many steps; `alone`: as on a machine of one's own."""
    taken_us = recording.cpu_us if alone else recording.work_us
    work_us, cpu_us = _middle(taken_us), _middle(recording.cpu_us)
    return tuple(
        Stretch(
            tuple(us / work_us for us in taken_us[at : at + steps]),
            _middle(recording.cpu_us[at : at + steps]) / cpu_us,
        )
        for at in range(0, len(taken_us) - steps + 1, steps)
    )


def nodes_windows(
    recordings: Sequence[Recording], steps: int, nodes: int, chance: random.Random, *, alone: bool
) -> Iterator[list[Stretch]]:
    """Yield one window of each of so many nodes, without end."""
    together = [stretches(recording, steps, alone=alone) for recording in recordings]
    length = min(map(len, together))
    places = [chance.randrange(length) for _ in range(-(-nodes // len(together)))]
    while True:
        yield [
            together[node % len(together)][places[node // len(together)]] for node in range(nodes)
        ]
        places = [_after(place, length, chance) for place in places]


def _after(place: int, length: int, chance: random.Random) -> int:
    """The next window of a recording; from its end on to a random place."""
    return place + 1 if place + 1 < length else chance.randrange(length)


def _middle(values: Sequence[int]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
