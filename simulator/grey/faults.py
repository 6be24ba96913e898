"""What each kind of fault does to a node: the truth that a detector is asked for.

What belongs here: physics, as far as vitals show it. Each kind cites what it is modelled on. `size`
is how many times as long own work takes (or, of links, the exchange); `at` counts windows since the
onset, `step` steps since the run began.
"""

import random
from enum import StrEnum
from math import inf
from typing import Final

from msgspec import Struct


class Kind(StrEnum):
    """Kinds of faults, each with what it looks like from outside."""

    COMPUTE = "compute"
    """Everything computed takes longer, and burns processor time for it."""
    DEVICE = "device"
    """The same on a device: longer, while the host's processors know nothing of it."""
    HEAT = "heat"
    """The device heats up over ten windows, its clock falls (Guard: 50 to 77 C, 1.93 to 1.38 GHz)
    and work takes longer in proportion."""
    POWER = "power"
    """Low power draw and a low clock at an ordinary temperature (Guard: 10 to 15 % less power)."""
    STEAL = "steal"
    """A virtual machine gets less of its processors (Guard: too few cores, up to 20 % slower)."""
    INPUT = "input"
    """The data loader is late in each step."""
    LINK = "link"
    """The node's network port carries less, in both directions (Guard: NIC rate down)."""
    FLAPPING = "flapping"
    """Slow for 6 windows, well for 6, again and again."""
    EVERY_KTH = "every_kth"
    """One step in five is slow, by five times the excess: on average the step is `size`."""
    DRIFT = "drift"
    """Slower bit by bit, `size` after an hour (120 windows)."""


GROUP: Final = {
    Kind.INPUT: "input",
    Kind.LINK: "communication",
}
"""What a verdict should call the cause; whatever is not named here is ``compute``."""

_DRIFT_WINDOWS: Final = 120
_HEAT_WINDOWS: Final = 10
_FLAP_WINDOWS: Final = 6
_KTH: Final = 5


class Fault(Struct, frozen=True, kw_only=True):
    """One node's fault, from window `onset` to before window `end`."""

    kind: Kind
    size: float
    onset: int = 0
    end: float = inf

    def factor(self, window: int) -> float:
        """How many times as long own work takes in a window, whichever step."""
        at = window - self.onset
        if not self.onset <= window < self.end or self.kind in (Kind.LINK, Kind.EVERY_KTH):
            return 1.0
        match self.kind:
            case Kind.HEAT:
                return 1 + (self.size - 1) * min(1.0, (at + 1) / _HEAT_WINDOWS)
            case Kind.DRIFT:
                return 1 + (self.size - 1) * min(1.0, (at + 1) / _DRIFT_WINDOWS)
            case Kind.FLAPPING:
                return self.size if at // _FLAP_WINDOWS % 2 == 0 else 1.0
            case _:
                return self.size

    def slow_step(self, window: int, step: int) -> float:
        """How many times as long one step takes on top of `factor`."""
        if self.kind is not Kind.EVERY_KTH or not self.onset <= window < self.end:
            return 1.0
        return 1 + _KTH * (self.size - 1) if step % _KTH == 0 else 1.0

    def link_share(self, window: int) -> float:
        """What is left of the node's network rate."""
        if self.kind is not Kind.LINK or not self.onset <= window < self.end:
            return 1.0
        return 1 / self.size

    def shows_in_cpu(self) -> bool:
        """Whether the excess burns the host's processor time."""
        return self.kind in (Kind.COMPUTE, Kind.FLAPPING, Kind.EVERY_KTH, Kind.DRIFT)

    def group(self) -> str:
        """What a verdict should call the cause."""
        return GROUP.get(self.kind, "compute")


class Gauges(Struct, frozen=True, kw_only=True):
    """What the gauges of one node say in one window."""

    clock_mhz: float
    temp_c: float
    power_w: float
    steal: float


def gauges(fault: Fault | None, window: int, chance: random.Random) -> Gauges:
    """Read a node's gauges: a little noise, and what its fault does to them."""
    factor = fault.factor(window) if fault is not None else 1.0
    kind = fault.kind if fault is not None and factor > 1 else None
    slowed = kind in (Kind.HEAT, Kind.POWER)
    return Gauges(
        clock_mhz=1930 * chance.gauss(1, 0.004) / (factor if slowed else 1),
        temp_c=chance.gauss(55, 1.5) + (90 * (factor - 1) if kind is Kind.HEAT else 0),
        power_w=chance.gauss(600, 12) * (0.87 if kind is Kind.POWER else 1),
        steal=max(0.0, chance.gauss(0.002, 0.002)) + (1 - 1 / factor) * (kind is Kind.STEAL),
    )
