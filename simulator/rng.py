"""Chance by name: every kind of draw has a stream of its own, derived from seed, run and name.

Rule: nothing else in the simulator makes random numbers. Because a stream depends on nothing but
its name, a strategy that draws more of one kind leaves every other kind alone: strategies are
compared on common random numbers. No wall clock, no hash of the interpreter goes in.
"""

import hashlib
import random
from collections.abc import Sequence
from itertools import accumulate
from math import log


class Streams:
    """The streams of one replication."""

    def __init__(self, seed: int, replication: int = 0) -> None:
        self._prefix = f"{seed}/{replication}/"
        self._open: dict[str, random.Random] = {}

    def stream(self, name: str) -> random.Random:
        """Return the stream called `name`; the same object on every call."""
        found = self._open.get(name)
        if found is None:
            found = self._open[name] = self.fresh(name)
        return found

    def fresh(self, name: str) -> random.Random:
        """Return the stream called `name` from its beginning, beside any that is open."""
        digest = hashlib.blake2b(f"{self._prefix}{name}".encode(), digest_size=16).digest()
        return random.Random(int.from_bytes(digest, "big"))  # noqa: S311 - chance is seeded, not secret


def exponential(chance: random.Random, mean: float) -> float:
    """Draw from an exponential distribution with this mean; one uniform number per draw."""
    return -mean * log(1.0 - chance.random())


def weibull(chance: random.Random, mean: float, shape: float, gamma: float) -> float:
    """Draw from a Weibull distribution; `gamma` is Gamma(1 + 1 / shape)."""
    return float(mean / gamma * (-log(1.0 - chance.random())) ** (1 / shape))


def long_weibull(chance: random.Random, mean: float, shape: float, gamma: float) -> float:
    """Draw from a Weibull distribution in proportion to length: the gap around an instant."""
    return float(mean / gamma * chance.gammavariate(1 + 1 / shape, 1.0) ** (1 / shape))


def weighted(chance: random.Random, weights: Sequence[float]) -> int:
    """Draw an index in proportion to `weights`; one uniform number per draw."""
    edges = list(accumulate(weights))
    point = chance.random() * edges[-1]
    return next((index for index, edge in enumerate(edges) if point < edge), len(edges) - 1)
