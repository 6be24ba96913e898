"""Every knob of the detector, frozen, with unit, default and the reason for the default.

What belongs here: numbers and the inequalities between them. Ratios and shares have no unit;
windows are those of vitals (30 s in production, about 1 s in a demo).

How the defaults were chosen: by the generator in the tests, on a quiet fleet (windows within 1.5 %
of each other) and on a noisy one (8 %, with spikes), so that neither is accused while clean. The
noise itself is not a knob: the detector measures it and asks for more where there is more.
"""

from itertools import pairwise
from typing import Final

from msgspec import Struct

from statemachine.errors import BadPolicy


class DetectorPolicy(Struct, frozen=True, kw_only=True):
    """What it takes for a window to accuse, for windows to convict, and for a verdict to fall."""

    # One window accuses.

    peers_min: int = 3
    """Nodes that a node must be comparable with; with fewer nobody is judged."""

    samples_min: int = 1
    """Steps that a window must hold. One will do: where a step takes as long as a window, windows
    are noisier, and the noise is measured."""

    watch_ratio: float = 1.05
    """Own work over the peers' median, from which a window may accuse."""

    wait_share_min: float = 0.5
    """Share of the excess work that peers must be seen waiting for; less contradicts the work."""

    cpu_share_min: float = 0.5
    """Share of the relative excess of work that processor time must show as well to speak."""

    effect_min: float = 0.03
    """Share by which every step is longer because of the node; below, it costs nobody anything."""

    indicators_min: int = 2
    """Indicators that must speak in a window for it to accuse; one is never enough."""

    # Windows convict.

    degraded_ratio: float = 1.08
    """Median ratio of a degraded node; under 1.10, so that noise hides no true 10 %."""

    faulty_ratio: float = 1.18
    """Median ratio of a node that must go at once; under 1.20 for the same reason."""

    windows_to_suspect: int = 3
    """Windows in a row until a node as slow as `degraded_ratio` is watched."""

    windows_to_judge: int = 4
    """Windows in a row until a node as slow as `faulty_ratio` is judged; one may be silent."""

    windows_to_degrade: int = 8
    """Windows in a row until a node as slow as `degraded_ratio` is judged; two may be silent."""

    z_min: float = 5.5
    """Standard deviations by which the mean of windows in a row must stand out: work and waiting
    alike follow from wall time, so noise can make both."""

    z_min_backed: float = 5.0
    """The same where a third indicator, such as processor time, speaks as well."""

    z_min_grave: float = 3.5
    """The same of a node as slow as `faulty_ratio`, where the third indicator stands out by itself
    in every accusing window: that cannot wait."""

    # The same over many windows: what noise hides in a few, it does not hide in many.

    windows_long: tuple[int, ...] = (24, 48, 96)
    """Windows over which a mean ratio is judged as well, shortest first; for slowdowns that noise
    hides, that come and go, or that creep. None: only windows in a row convict."""

    long_share_min: float = 0.35
    """Share of those windows, and of the last quarter of them, that must accuse."""

    long_degraded_ratio: float = 1.07
    """Mean ratio of a degraded node over all but the shortest of them: less noise, less room for
    it."""

    long_suspect_ratio: float = 1.035
    """Mean ratio over them from which a node is watched."""

    z_min_long: float = 5.0
    """Standard deviations by which their mean must stand out of the means of equal nodes."""

    link_watch_ratio: float = 1.15
    """How many times slower than its peers' a node's fastest connection is, from which it may
    accuse."""

    link_noise_floor: float = 0.04
    """Least relative noise between the rates of equal nodes that is believed."""

    noise_floor: float = 0.015
    """Least relative noise between equal nodes that is believed, however even they look."""

    rounds_remembered: int = 32
    """Rounds whose noise and pace are remembered."""

    # What does not count, and what ends a verdict.

    grace_windows: int = 2
    """Windows that count for nothing after a node joined or the epoch changed."""

    gap_windows_max: int = 2
    """Windows that may be missing before what came earlier is forgotten."""

    common_ratio: float = 1.2
    """Pace of a whole cohort over its own earlier pace, from which all are called slow."""

    clear_ratio: float = 1.04
    """Median ratio below which a verdict is withdrawn."""

    windows_to_clear: int = 10
    """Windows in a row that a withdrawal takes: more than any verdict."""

    verdict_ttl_s: float = 900.0
    """How long a verdict stands without being confirmed again, s."""

    # When a job that stands still is said to.

    hang_least_s: float = 30.0
    """No deadline of a phase is shorter, however even windows come, s."""

    hang_floor_s: float = 600.0
    """Deadline of a phase of which too little is known, s."""

    hang_times: float = 4.0
    """Multiple of the longest pause that was seen in a phase lately, which is its deadline."""

    def __post_init__(self) -> None:
        """Refuse knobs that are out of range or contradict each other.

        Raises:
            BadPolicy: names the inequality that fails, with the numbers.
        """
        for names in _ASCENDING:
            for low, high in pairwise(names):
                if getattr(self, low) > getattr(self, high):
                    numbers = f"{getattr(self, low)} > {getattr(self, high)}"
                    raise BadPolicy(f"detector: {low} <= {high} does not hold: {numbers}")
        if any(n <= 0 for n in self.windows_long) or list(self.windows_long) != sorted(
            set(self.windows_long)
        ):
            raise BadPolicy(
                f"detector: windows_long is {self.windows_long}; must be ascending, each above 0"
            )
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise BadPolicy(f"detector: {name} is {getattr(self, name)}; at least {least}")


_ASCENDING: Final = (
    ("clear_ratio", "watch_ratio", "degraded_ratio", "faulty_ratio"),
    ("windows_to_suspect", "windows_to_judge", "windows_to_degrade", "windows_to_clear"),
    ("z_min_grave", "z_min_backed", "z_min"),
    ("clear_ratio", "degraded_ratio"),
    ("long_suspect_ratio", "long_degraded_ratio", "degraded_ratio"),
)

_LEAST: Final = {
    "peers_min": 2,  # one peer cannot tell which of the two is slow
    "samples_min": 1,
    "indicators_min": 2,
    "wait_share_min": 0.1,
    "cpu_share_min": 0.1,
    "effect_min": 0.0,
    "clear_ratio": 1.0,
    "windows_to_suspect": 1,
    "z_min_grave": 1.0,
    "noise_floor": 0.001,
    "link_noise_floor": 0.001,
    "link_watch_ratio": 1.01,
    "long_share_min": 0.1,
    "long_suspect_ratio": 1.01,
    "z_min_long": 1.0,
    "rounds_remembered": 2,
    "grace_windows": 0,
    "gap_windows_max": 0,
    "common_ratio": 1.0,
    "verdict_ttl_s": 1.0,
    "hang_least_s": 0.1,
    "hang_floor_s": 0.1,
    "hang_times": 1.0,
}
