"""Which links a group holds, and what it counted: openings, closings, bytes.

What belongs here: bookkeeping under the group's own lock. What does not: opening or closing.
"""

from worker.groups.link import Link
from worker.groups.port import LinkCounts


class Ledger:
    """The links that one group holds, by serial."""

    def __init__(self) -> None:
        self._held: dict[int, Link] = {}
        self._released_bytes = [0, 0]
        self._counts = LinkCounts()

    def counts(self) -> LinkCounts:
        """Return the totals so far."""
        counts = self._counts
        held = [link.bulk for link in self._held.values()]
        counts.sent_bytes = self._released_bytes[0] + sum(one.sent_bytes for one in held)
        received = sum(one.received_bytes for one in held)
        counts.received_bytes = self._released_bytes[1] + received
        return counts

    def hold(self, links: list[Link], transition: int) -> int:
        """Count the links that were not held yet; returns how many those are."""
        fresh = {link.serial: link for link in links if link.serial not in self._held}
        self._held.update(fresh)
        if fresh:
            by = self._counts.opened_by_transition
            by[transition] = by.get(transition, 0) + len(fresh)
            self._counts.opened += len(fresh)
        return len(fresh)

    def release(self, wanted: set[int], transition: int) -> None:
        """Let go of every link that is not `wanted`."""
        for serial in [serial for serial in self._held if serial not in wanted]:
            link = self._held.pop(serial)
            self._released_bytes[0] += link.bulk.sent_bytes
            self._released_bytes[1] += link.bulk.received_bytes
            by = self._counts.closed_by_transition
            by[transition] = by.get(transition, 0) + 1
            self._counts.closed += 1
