"""Links compared in pairs: which side of a slow connection is the slow one.

What belongs here: what each end measured of a connection, and what follows for its two ends. No
noise, no windows in a row (`comparison`, `judgement`).

Theory of operation. A connection has two ends, so a slow one blames nobody by itself. A node that
is slow sends or receives slowly *whoever* is at the other end; its neighbour is slow with it alone.
So a node is as fast as its fastest peer lets it be, and of a pair whose ends are both fast
elsewhere it is the way between them that is slow. A connection counts by its slower direction: one
direction of a broken port may be as fast as ever.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from statemachine.ids import NodeId
from statemachine.vitals import LINK_MBPS, Vitals, median

_REMARKS_MAX = 8
_NOBODY: Mapping[NodeId, Mapping[NodeId, float]] = MappingProxyType({})


class Pairs:
    """Rates of one round by (sender, receiver), in 10^6 bits per second, as receivers saw them."""

    def __init__(self, rates: Mapping[tuple[NodeId, NodeId], float]) -> None:
        self.rates = rates
        self._by_peer: dict[NodeId, dict[NodeId, float]] = {}
        for (sender, receiver), rate in rates.items():
            for node, peer in ((sender, receiver), (receiver, sender)):
                known = self._by_peer.setdefault(node, {})
                known[peer] = min(rate, known.get(peer, rate))

    def best(self, node: NodeId) -> float | None:
        """What the node does with its fastest peer; None with fewer than two to tell by."""
        known = self._by_peer.get(node, {})
        return max(known.values()) if len(known) > 1 else None

    def slow_reports(self, node: NodeId, below: float) -> dict[NodeId, float]:
        """Who measured less than `below` on a connection of the node, and the least they saw.

        The node itself is one witness, however many connections it has, each peer another.
        """
        found: dict[NodeId, float] = {}
        for peer in self._by_peer.get(node, {}):
            for sender, receiver in ((node, peer), (peer, node)):
                rate = self.rates.get((sender, receiver))
                if rate is not None and rate < below:
                    found[receiver] = min(rate, found.get(receiver, rate))
        return found

    def remarks(self, ratio: float) -> tuple[str, ...]:
        """Name pairs that are slower than usual by `ratio` while both ends are fast elsewhere."""
        if len(self.rates) < 3:
            return ()
        usual = median(list(self.rates.values()))
        between = []
        for (sender, receiver), rate in sorted(self.rates.items()):
            elsewhere = (self.best(sender) or 0.0, self.best(receiver) or 0.0)
            if rate < usual / ratio and min(elsewhere) >= usual / ratio:
                said = f"{rate / usual:.0%} of the usual rate, and both are fast elsewhere"
                between.append(f"the way from {sender} to {receiver} carries {said}")
        return tuple(between[:_REMARKS_MAX])


def carried(vitals: Vitals) -> dict[NodeId, float]:
    """What a node measured of the connections that reach it, by who is at the other end."""
    return {
        NodeId(name.removeprefix(_PREFIX)): metric.p50
        for name, metric in vitals.metrics.items()
        if name.startswith(_PREFIX) and metric.count > 0 and metric.p50 > 0
    }


_PREFIX = f"{LINK_MBPS}."


def pairs_of(
    windows: Sequence[Vitals], others: Mapping[NodeId, Mapping[NodeId, float]] = _NOBODY
) -> Pairs:
    """Collect what nodes measured of the connections that reach them.

    `others` is what nodes that are not compared here, such as those of other roles, measured in
    their last windows: they are witnesses all the same.
    """
    measured = {vitals.node: carried(vitals) for vitals in windows}
    rates = {
        (sender, receiver): rate
        for receiver, known in measured.items()
        for sender, rate in known.items()
    }
    for receiver, known in others.items():
        for sender, rate in known.items():
            if sender in measured and receiver not in measured:
                rates[sender, receiver] = rate
    return Pairs(rates)
