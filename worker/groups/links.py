"""Links: authenticated connections between two incarnations, kept across epochs.

What belongs here: the one endpoint per training process that dials, accepts, finds and retires
links. What does not: collectives, plans in force (linked), the listener's and the monitor's loops.

A link belongs to (group, channel, peer's node, peer's incarnation); it outlives plans and aborts,
and goes only when no plan wants it or its peer is gone. Between two members the lower index dials.
A link that a peer opened early waits here until this side's plan asks for it.
"""

import os
import socket
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

from worker.groups.dialling import Dialler, Identity
from worker.groups.hello import Claim, Role, Verdict
from worker.groups.link import Link, LinkKey
from worker.groups.listener import LinkListener
from worker.groups.monitor import LinkMonitor
from worker.groups.port import Channel, GroupPlan, PrepareRefused

LINKS_VARIABLE: Final = "CHANGEOVER_LINKS"
"""Environment variable: ``network`` links processes of one machine as if each had its own."""

_HALVES_MAX: Final = 1024
_END_WAIT_S: Final = 3.0


class LinkWatcher(Protocol):
    """What a group is told about its links, on the listener's or the monitor's thread."""

    def may_link(self, caller: tuple[str, int], transition: int) -> bool:
        """Whether a node of this incarnation may open a link for a transition."""
        ...

    def link_added(self, link: Link) -> None:
        """A peer has opened it."""
        ...

    def link_ended(self, link: Link, *, died: bool) -> None:
        """It is over without goodbye; `died`: because the peer's process ended."""
        ...

    def link_left(self, link: Link) -> None:
        """The peer said goodbye."""
        ...

    def link_abort(self, link: Link, tag: int, index: int | None) -> None:
        """The peer's group broke at `tag`, because of member `index`."""
        ...


class LinkEndpoint:
    """All links of one incarnation. One per training process.

    `secret` is the fleet's; `address` is what this incarnation's `Member` must say. `locally`:
    peers on the same machine are linked through it, and not through the network; None: unless
    `LINKS_VARIABLE` says otherwise.
    """

    def __init__(
        self,
        job: str,
        node: str,
        incarnation: int,
        secret: bytes,
        host: str = "127.0.0.1",
        *,
        locally: bool | None = None,
    ) -> None:
        if len(secret) < 16:
            raise ValueError("a fleet secret has at least 16 bytes")
        if locally is None:
            locally = os.environ.get(LINKS_VARIABLE) != "network"
        self.identity = Identity(job, node, incarnation)
        self._dialler = Dialler(self.identity, secret, locally=locally)
        self._links: dict[LinkKey, Link] = {}
        self._under_way: set[LinkKey] = set()
        self._halves: dict[str, tuple[Claim, socket.socket]] = {}
        self._watchers: dict[str, LinkWatcher] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._monitor = LinkMonitor(self)
        self._listener = LinkListener(host, secret, self._judge, self._welcome, locally=locally)
        self.address = self._listener.address
        _alive.add(self)

    @property
    def refused(self) -> Counter[str]:
        """Hellos turned away, by verdict."""
        return self._listener.refused

    def register(self, group: str, watcher: LinkWatcher) -> None:
        """Tell `watcher` about links of `group` from now on."""
        self._watchers[group] = watcher

    def find(self, key: LinkKey) -> Link | None:
        """Return the usable link, if there is one."""
        with self._changed:
            link = self._links.get(key)
            return link if link is not None and link.usable else None

    def links_of(self, group: str) -> list[Link]:
        """Every link of `group`, whatever its state."""
        with self._changed:
            return [link for key, link in self._links.items() if key.group == group]

    def say_abort(self, link: Link, tag: int, index: int | None) -> None:
        """Pass the news of a broken group on to a peer; never blocks."""
        self._monitor.say_abort(link, tag, index)

    def suspect(self, link: Link) -> None:
        """Mark a link whose bulk stream failed: the next plan opens it anew."""
        link.bulk_failed = True

    # --- opening ----------------------------------------------------------------------------------

    def ensure(
        self,
        plan: GroupPlan,
        peers: Iterable[int],
        channel: Channel,
        deadline_s: float,
    ) -> dict[int, Link]:
        """Return a usable link to each peer (an index in `plan`), opening those that are missing.

        Raises:
            PrepareRefused: names the first peer that cannot be linked within `deadline_s`.
        """
        ends_at = time.monotonic() + deadline_s
        found: dict[int, Link] = {}
        awaited: list[int] = []
        dialled: list[int] = []
        for index in sorted(set(peers)):
            link = self.find(self._key(plan, index, channel))
            if link is not None:
                found[index] = link
            else:
                self._discard(self._key(plan, index, channel))
                dials = channel is Channel.DIRECT or plan.me < index
                (dialled if dials else awaited).append(index)
        found.update(self._dial_all(plan, dialled, channel, ends_at))
        for index in awaited:
            found[index] = self._await(plan, index, channel, ends_at)
        return found

    def _key(self, plan: GroupPlan, index: int, channel: Channel) -> LinkKey:
        member = plan.members[index]
        return LinkKey(plan.name, channel, member.node, member.incarnation)

    def _dial_all(
        self, plan: GroupPlan, peers: list[int], channel: Channel, ends_at: float
    ) -> dict[int, Link]:
        results: dict[int, Link | PrepareRefused] = {}

        def dial_one(index: int) -> None:
            try:
                results[index] = self._dial(plan, index, channel, ends_at)
            except PrepareRefused as error:
                results[index] = error

        threads = [threading.Thread(target=dial_one, args=(index,)) for index in peers[1:]]
        for thread in threads:
            thread.start()
        for index in peers[:1]:
            dial_one(index)
        for thread in threads:
            thread.join()
        opened: dict[int, Link] = {}
        for index in peers:
            result = results[index]
            if isinstance(result, PrepareRefused):
                raise result
            opened[index] = result
        return opened

    def _dial(self, plan: GroupPlan, index: int, channel: Channel, ends_at: float) -> Link:
        """Dial, unless another preparation is dialling the same peer: of two links each end might
        keep the one that the other end retires.
        """
        member, key = plan.members[index], self._key(plan, index, channel)
        with self._changed:
            left_s = max(0.0, ends_at - time.monotonic())
            if not self._changed.wait_for(lambda: key not in self._under_way, left_s):
                raise PrepareRefused(f"{plan.name}: an earlier dial has not ended", member)
            link = self._links.get(key)
            if link is not None and link.usable:
                return link
            self._under_way.add(key)
        try:
            pair = self._dialler.dial_pair(plan, member, channel, ends_at)
            return self._add(Link(key, *pair, plan.transition))
        finally:
            with self._changed:
                self._under_way.discard(key)
                self._changed.notify_all()

    def _await(
        self,
        plan: GroupPlan,
        index: int,
        channel: Channel,
        ends_at: float,
    ) -> Link:
        key = self._key(plan, index, channel)

        def arrived() -> bool:
            link = self._links.get(key)
            return self._closed or (link is not None and link.usable)

        with self._changed:
            self._changed.wait_for(arrived, max(0.0, ends_at - time.monotonic()))
            link = self._links.get(key)
            if link is None or not link.usable:
                reason = f"{plan.name}: it was to dial us and has not"
                raise PrepareRefused(reason, plan.members[index])
            return link

    # --- accepting, on the listener's thread ------------------------------------------------------

    def _judge(self, claim: Claim) -> Verdict:
        me = self.identity
        if self._closed:
            return Verdict.SHUTTING_DOWN
        if claim.job != me.job:
            return Verdict.WRONG_JOB
        if (claim.to_node, claim.to_incarnation) != (me.node, me.incarnation):
            return Verdict.WRONG_INCARNATION
        watcher = self._watchers.get(claim.group)
        caller = (claim.node, claim.incarnation)
        if watcher is not None and not watcher.may_link(caller, claim.transition):
            return Verdict.NOT_A_MEMBER
        known = claim.channel in (Channel.COLLECTIVE, Channel.DIRECT) and claim.role in (1, 2)
        return Verdict.WELCOME if known else Verdict.MALFORMED

    def _welcome(self, claim: Claim, sock: socket.socket) -> None:
        other = self._halves.pop(claim.link, None)
        if other is None:
            while len(self._halves) >= _HALVES_MAX:
                self._halves.pop(next(iter(self._halves)))[1].close()
            self._halves[claim.link] = (claim, sock)
            return
        control, bulk = (other[1], sock) if claim.role == Role.BULK else (sock, other[1])
        channel = Channel.INCOMING if claim.channel == Channel.DIRECT else Channel.COLLECTIVE
        key = LinkKey(claim.group, channel, claim.node, claim.incarnation)
        link = self._add(Link(key, control, bulk, claim.transition))
        watcher = self._watchers.get(claim.group)
        if watcher is not None:
            watcher.link_added(link)

    def _add(self, link: Link) -> Link:
        with self._changed:
            before = self._links.get(link.key)
            self._links[link.key] = link
            self._changed.notify_all()
        if before is not None:
            self._monitor.retire(before)
        self._monitor.watch(link)
        return link

    # --- ending -----------------------------------------------------------------------------------

    def _discard(self, key: LinkKey) -> None:
        with self._changed:
            link = self._links.get(key)
            if link is None or link.usable:
                return
            del self._links[key]
        self._monitor.retire(link)

    def retire(self, links: Iterable[Link]) -> None:
        """Say goodbye and close, in the background; the caller no longer uses these links."""
        for link in links:
            with self._changed:
                if self._links.get(link.key) is link:
                    del self._links[link.key]
            self._monitor.retire(link)

    def close(self) -> None:
        """Say goodbye on every link, wait shortly for the peers' answers, stop both threads."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            links = list(self._links.values())
            self._changed.notify_all()
        self._listener.close()
        self.retire(links)
        self._monitor.close(_END_WAIT_S)
        for _, sock in self._halves.values():
            sock.close()
        _alive.discard(self)

    def abandon(self) -> None:
        """Close descriptors only; see `_abandon_in_child`."""
        self._listener.abandon()
        for link in list(self._links.values()):
            link.control.close()
            link.bulk.close()
        for _, sock in list(self._halves.values()):
            sock.close()

    # --- told by the monitor ----------------------------------------------------------------------

    def link_ended(self, link: Link, *, died: bool) -> None:
        """Pass on that a link is over, and whether that speaks of a death."""
        watcher = self._watchers.get(link.key.group)
        if watcher is not None:
            watcher.link_ended(link, died=died)

    def link_left(self, link: Link) -> None:
        """Pass on that a peer said goodbye."""
        watcher = self._watchers.get(link.key.group)
        if watcher is not None:
            watcher.link_left(link)

    def link_abort(self, link: Link, tag: int, index: int | None) -> None:
        """Pass on that a peer's group broke."""
        watcher = self._watchers.get(link.key.group)
        if watcher is not None:
            watcher.link_abort(link, tag, index)


_alive: "weakref.WeakSet[LinkEndpoint]" = weakref.WeakSet()


def _abandon_in_child() -> None:
    """A forked child (a data loader) must not hold our sockets open when this process dies."""
    for endpoint in list(_alive):
        endpoint.abandon()
    _alive.clear()


os.register_at_fork(after_in_child=_abandon_in_child)
