"""One round's numbers by metric: each node's own, and the median of all others beside it.

What belongs here: order statistics of one round. What they mean: `comparison`, `attribution`.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import Final

from statemachine.ids import NodeId
from statemachine.vitals import Metric, Vitals

Statistic = Callable[[Metric], float]

_LEAST: Final = 1e-6
_MAD_TO_SIGMA: Final = 1.4826
_SMALL_SAMPLE: Final = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129}


def p50(metric: Metric) -> float:
    """The median of a window."""
    return metric.p50


def mean(metric: Metric) -> float:
    """The mean of a window."""
    return metric.mean


class Column:
    """One number of all compared nodes, and its median over the peers of any one of them."""

    def __init__(self, values: Mapping[NodeId, float]) -> None:
        self.values = values
        self._ordered = sorted(values.values())
        self.all_median = _middle(self._ordered)

    def peers_median(self, node: NodeId) -> float:
        """The median of all but `node`; of all where that is the only one."""
        ordered = self._ordered
        if len(ordered) < 2:
            return self.all_median
        left_out = bisect_left(ordered, self.values[node])
        upper = (len(ordered) - 1) // 2
        high = ordered[upper + (upper >= left_out)]
        if len(ordered) % 2 == 0:
            return high
        low = ordered[upper - 1 + (upper - 1 >= left_out)]
        return (low + high) / 2

    def beside_peers(self, node: NodeId, peers_min: int) -> tuple[float, float] | None:
        """Return a node's value and its peers' median; None where too few measured it."""
        own = self.values.get(node)
        if own is None or len(self.values) <= peers_min:
            return None
        return own, self.peers_median(node)

    def noise(self) -> float:
        """Relative noise between nodes, robust against a few that are off."""
        middle = max(self.all_median, _LEAST)
        values = self._ordered
        if values and values[0] < _LEAST:
            values = [max(value, _LEAST) for value in values]
        return spread([log(value / middle) for value in values])


def spread(deviations: Sequence[float]) -> float:
    """Standard deviation around zero by the median of sizes, corrected for few of them."""
    count = len(deviations)
    size = _middle(sorted(map(abs, deviations)))
    return _MAD_TO_SIGMA * _SMALL_SAMPLE.get(count, count / (count - 0.8)) * size


def _middle(ordered: Sequence[float]) -> float:
    count = len(ordered)
    if not count:
        return 0.0
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


class Columns:
    """The columns of one round, each made when it is first asked for."""

    def __init__(self, fit: Sequence[Vitals]) -> None:
        self.fit = fit
        self._known: dict[tuple[str, Statistic], Column] = {}

    def of(self, metric: str, statistic: Statistic = mean) -> Column:
        """One statistic of one metric, where it was measured."""
        known = self._known.get((metric, statistic))
        if known is None:
            found = {v.node: statistic(read) for v in self.fit if (read := v.measured(metric))}
            known = self._known[metric, statistic] = Column(found)
        return known
