"""Other rules on the same windows: what is published, and what everybody would try first.

What belongs here: one number per node and window, and the threshold at which its authors flag. Each
rule is given what it would measure itself: medians of sections of own work, without any waiting.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from statemachine.ids import NodeId
from statemachine.vitals import WORK_MS, Vitals


class Rule(Protocol):
    """Scores nodes; the higher, the worse."""

    threshold: float
    """From which score on a node is flagged."""

    def see(self, batch: Sequence[Vitals]) -> Mapping[NodeId, float]:
        """Score one window of each node."""
        ...


class NvrxScores:
    """The scores of nvidia-resiliency-ext's straggler report, one report per window.

    Relative: the least median of all ranks over one's own. Individual: one's own best median so far
    over the present one. Flagged when either is below 0.75. Here 1 less the lower of the two.
    """

    threshold: Final[float] = 0.25

    def __init__(self) -> None:
        self._best: dict[NodeId, float] = {}

    def see(self, batch: Sequence[Vitals]) -> Mapping[NodeId, float]:
        """Score one window of each node."""
        own = {v.node: v.metrics[WORK_MS].p50 for v in batch}
        least = min(own.values())
        found = {}
        for node, value in own.items():
            best = self._best[node] = min(value, self._best.get(node, value))
            found[node] = 1 - min(least, best) / value
        return found


class ZScore:
    """Mean work of a window in standard deviations from that of all nodes; flagged above 3."""

    threshold: Final[float] = 3.0

    def see(self, batch: Sequence[Vitals]) -> Mapping[NodeId, float]:
        """Score one window of each node."""
        own = {v.node: v.metrics[WORK_MS].mean for v in batch}
        middle, sigma = statistics.fmean(own.values()), statistics.pstdev(own.values())
        return {node: (value - middle) / sigma if sigma > 0 else 0.0 for node, value in own.items()}


RIVALS: Final[Mapping[str, type[NvrxScores | ZScore]]] = {"nvrx": NvrxScores, "zscore": ZScore}
