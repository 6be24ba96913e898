"""The shape of a demo's job: its axes, and what of a demo they make possible.

What belongs here: reading ``pp=3,dp=2`` and counting peers and replicas. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Final

from statemachine.errors import UsageError

AXES: Final = ("pp", "tp", "dp")
"""Axes that the examples know: pipeline stages, parts of a layer, replicas."""

LAYERS_LEAST: Final = 4
HEADS: Final = 4
_PART: Final = re.compile(r"([a-z]+)=([0-9]{1,3})")


class BadShape(UsageError):
    """A layout that the examples cannot be trained in."""


def shape_of(text: str) -> dict[str, int]:
    """The axes of a layout such as ``pp=3,dp=2``, outermost first.

    Raises:
        BadShape: says which part, and what is allowed.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or match[1] not in AXES or match[1] in found or not int(match[2]):
            allowed = ", ".join(f"{axis}=N" for axis in AXES)
            raise BadShape(f"--layout {text}: {part.strip()!r} is not one of {allowed}, each once")
        found[match[1]] = int(match[2])
    if HEADS % found.get("tp", 1):
        raise BadShape(f"--layout {text}: tp must divide {HEADS}, the heads of the model")
    return found


def is_plain(axes: Mapping[str, int]) -> bool:
    """Whether every rank holds the whole model."""
    return axes.get("pp", 1) == 1 and axes.get("tp", 1) == 1


def peers_of(axes: Mapping[str, int]) -> int:
    """With how many others of its role the node that has the fewest can be compared."""
    stages, nodes = axes.get("pp", 1), prod(axes.values())
    return nodes // stages - 1


def model_arguments(axes: Mapping[str, int]) -> tuple[str, ...]:
    """Arguments of the training scripts that make the model divisible in this shape."""
    if is_plain(axes):
        return ()
    stages = axes.get("pp", 1)
    return ("--layers", str(stages * -(-LAYERS_LEAST // stages)))
