"""The kinds of grey node that a demo makes, and what is right to find about each.

What belongs here: one literal table. How a node is made so is `worker.faults`; who says what of it,
the detector and the sweep, is held to the table by `proof`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from statemachine.events import SweepOutcome


class Grey(NamedTuple):
    """One kind: how much of what, and what a verdict and a sweep shall say of it.

    `cause` is how the verdict's cause begins, `metrics` how those begin of which one must be bad in
    the sweep; none where the sweep shall pass. `environment` is what all nodes run with.
    """

    factor: float
    words: str
    cause: str
    outcome: SweepOutcome
    metrics: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}


GREYS: Final[Mapping[str, Grey]] = {
    "compute": Grey(
        1.4,
        "its own work takes {factor:g} times as long",
        "compute",
        SweepOutcome.FAILED,
        ("gemm_",),
    ),
    "memory": Grey(
        1.4,
        "moving memory takes it {factor:g} times as long",
        "compute",
        SweepOutcome.FAILED,
        ("memory_",),
    ),
    "link": Grey(
        10.0,
        "what it sends and receives takes {factor:g} times as long",
        "communication",
        SweepOutcome.FAILED,
        ("link_", "collective_"),
        {"CHANGEOVER_LINKS": "network"},
    ),
    "input": Grey(
        1.4,
        "its data comes late, so its steps take {factor:g} times as long",
        "input",
        SweepOutcome.PASSED,
    ),
}
"""A link needs a larger factor than work for the same effect: exchanging gradients is a tenth of a
step of the demo's model. And it needs links that go through a network port, if a local one."""


def words_for(kind: str, factor: float) -> str:
    """What is done to a node of a kind, in words."""
    return GREYS[kind].words.format(factor=factor)
