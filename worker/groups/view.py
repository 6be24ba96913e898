"""A plan together with its links: what a switch puts in force.

What belongs here: which links a plan needs, and whose they are. What does not: opening them, and
when a view is in force (linked).
"""

from dataclasses import dataclass, field

from worker.groups.bulk import BulkStream
from worker.groups.link import Link
from worker.groups.port import Cause, CauseKind, Channel, GroupPlan
from worker.groups.trees import children_of, parent_of


def neighbours_of(index: int, size: int) -> set[int]:
    """Whom a member has links to: at most two on the ring and four on the tree."""
    found = {(index - 1) % size, (index + 1) % size, *children_of(index, size)}
    parent = parent_of(index)
    if parent is not None:
        found.add(parent)
    return found - {index}


@dataclass(slots=True)
class View:
    """A plan with its links: what a switch puts in force."""

    plan: GroupPlan
    links: dict[int, Link]
    direct: dict[int, Link] = field(default_factory=dict)
    incoming: dict[int, Link] = field(default_factory=dict)

    @property
    def streams(self) -> dict[int, BulkStream]:
        """Bulk streams to the neighbours, by index."""
        return {index: link.bulk for index, link in self.links.items()}

    @property
    def all_links(self) -> list[Link]:
        """Links of every channel."""
        return [*self.links.values(), *self.direct.values(), *self.incoming.values()]

    def index_of(self, link: Link) -> int | None:
        """The member at the other end, if it is in the plan."""
        wanted = (link.key.node, link.key.incarnation)
        for index, member in enumerate(self.plan.members):
            if member.identity == wanted:
                return index
        return None

    def keep_direct(self, links: list[Link]) -> None:
        """Take over message links to members who stay."""
        for link in links:
            index = self.index_of(link)
            if index is None or not link.usable:
                continue
            if link.key.channel is Channel.DIRECT:
                self.direct.setdefault(index, link)
            elif link.key.channel is Channel.INCOMING:
                self.incoming.setdefault(index, link)

    def first_unusable(self) -> Cause | None:
        """Why this view is broken before its first collective, if it is."""
        for index, link in self.links.items():
            if not link.usable:
                return Cause(end_kind(link), index, "before the switch")
        return None

    def index_of_stream(self, stream: BulkStream) -> tuple[int | None, Link | None]:
        """Whose stream this is, and on which link."""
        for link in self.all_links:
            if link.bulk is stream:
                return self.index_of(link), link
        return None, None

    def index_of_fds(self, fds: list[int]) -> int | None:
        """The member behind the first of these descriptors."""
        for link in self.all_links:
            if not link.bulk.descriptors.isdisjoint(fds):
                return self.index_of(link)
        return None


def end_kind(link: Link) -> CauseKind:
    """What a link that cannot be used any more says about its peer."""
    if link.has_left:
        return CauseKind.PEER_LEFT
    return CauseKind.PEER_RESET if link.died else CauseKind.LINK_FAILED
