"""A group over links: prepared in the background, switched at a boundary, broken at once.

What belongs here: which links a plan needs, which view of them is in force, how a group breaks and
how the news spreads. What does not: arithmetic and tensors (delta), sockets (links).

Rules. Nothing but connections is made before a switch, and a switch exchanges pointers. A break
closes nothing between healthy peers: it marks the group, wakes the training thread and passes the
news on, once, to every healthy peer. Only a peer's end without goodbye accuses it.
"""

import threading
import time
from collections.abc import Sequence

from worker.groups.bulk import OutOfStep, PeerMovedOn, StreamEnded, StreamFault
from worker.groups.exchange import Exchange, Interrupted, Lane, NothingMoved
from worker.groups.ledger import Ledger
from worker.groups.link import Link
from worker.groups.links import LinkEndpoint
from worker.groups.port import (
    Cause,
    CauseKind,
    Channel,
    GroupPlan,
    LinkCounts,
    Member,
    NotPrepared,
    PeerReset,
    Prepared,
    PrepareRefused,
    Waits,
)
from worker.groups.rings import Progress
from worker.groups.sideline import Errand, Sideline
from worker.groups.trees import Tree
from worker.groups.view import View, end_kind, neighbours_of
from worker.groups.wakeup import WakeUp


class LinkedGroup:
    """The life of one group over an endpoint's links; subclasses add the collectives.

    `direct_peers` are indices to which `prepare` also opens links for `send` and `receive`; others
    are opened when first used. `op_timeout_s` is the backstop: no progress for so long breaks the
    group.
    """

    def __init__(
        self,
        name: str,
        endpoint: LinkEndpoint,
        on_peer_reset: PeerReset | None = None,
        op_timeout_s: float = 300.0,
        direct_peers: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._endpoint = endpoint
        self._on_peer_reset = on_peer_reset
        self._direct_peers = frozenset(direct_peers)
        self._op_timeout_s = op_timeout_s
        self._forget_posted()
        self._lock = threading.RLock()
        self._turn = threading.Lock()
        self._view: View | None = None
        self._tree: Tree | None = None
        self._broken: Cause | None = None
        self._prepared: dict[int, View] = {}
        self._told: dict[int, int | None] = {}
        self._accused: set[tuple[str, int]] = set()
        self._ledger = Ledger()
        self._sequence = 0
        self._last_tag = 0
        self._wake = WakeUp()
        self._errand: Errand | None = None
        self._sideline = Sideline(lambda: self._broken is not None, op_timeout_s)
        self._exchange = Exchange(self._wake, lambda: self._broken is not None, op_timeout_s)
        endpoint.register(name, self)

    # --- what is in force -------------------------------------------------------------------------

    @property
    def plan(self) -> GroupPlan | None:
        """The plan in force; None before the first switch."""
        view = self._view
        return view.plan if view else None

    @property
    def broken(self) -> Cause | None:
        """Why results are no longer valid, until the next switch."""
        return self._broken

    @property
    def counts(self) -> LinkCounts:
        """Links and bytes so far."""
        with self._lock:
            return self._ledger.counts()

    def carried(self) -> dict[str, tuple[int, float]]:
        """By peer: bytes of large frames that came from it, and the seconds that took."""
        found: dict[str, tuple[int, float]] = {}
        for link in self._endpoint.links_of(self.name):
            size, took_s = found.get(link.key.node, (0, 0.0))
            stream = link.bulk
            found[link.key.node] = (size + stream.carried_bytes, took_s + stream.carried_s)
        return found

    def waits(self) -> Waits:
        """Where the time went since the last reset."""
        return self._exchange.waits

    def reset_waits(self) -> None:
        """Start counting afresh."""
        self._exchange.waits = Waits()

    # --- prepare, switch --------------------------------------------------------------------------

    def prepare(self, plan: GroupPlan, deadline_s: float) -> Prepared:
        """Open the links that `plan` needs and this member lacks; may run beside collectives.

        Raises:
            PrepareRefused: a neighbour cannot be linked in time, or the plan is not for us.
        """
        started = time.monotonic()
        self._check_plan(plan)
        peers = neighbours_of(plan.me, plan.size)
        links = self._endpoint.ensure(plan, peers, Channel.COLLECTIVE, deadline_s)
        left_s = max(0.0, deadline_s - (time.monotonic() - started))
        wanted = self._direct_peers - {plan.me}
        direct = self._endpoint.ensure(plan, wanted, Channel.DIRECT, left_s)
        with self._lock:
            view = View(plan, links, direct)
            self._prepared[plan.tag] = view
            opened = self._ledger.hold(view.all_links, plan.transition)
        kept = len(view.all_links) - opened
        return Prepared(plan.tag, opened, kept, time.monotonic() - started)

    def _check_plan(self, plan: GroupPlan) -> None:
        me = plan.members[plan.me]
        ours = self._endpoint.identity
        if plan.name != self.name or plan.job != ours.job:
            raise PrepareRefused(f"plan is for {plan.job}/{plan.name}", None)
        if me.identity != (ours.node, ours.incarnation):
            raise PrepareRefused(f"{plan.name}: index {plan.me} is {me}, which is not us", None)
        if plan.tag <= self._last_tag:
            raise PrepareRefused(f"{plan.name}: plan is not newer than the one in force", None)

    def _release(self, wanted: set[int], transition: int) -> None:
        """Let go of every link that is not `wanted` (by serial), and retire it."""
        self._ledger.release(wanted, transition)
        links = self._endpoint.links_of(self.name)
        self._endpoint.retire(link for link in links if link.serial not in wanted)

    def switch(self, plan: GroupPlan) -> None:
        """Put a prepared plan in force; frees links that it does not want in the background.

        Raises:
            NotPrepared: `plan` was not prepared.
        """
        with self._turn, self._lock:
            view = self._prepared.pop(plan.tag, None)
            if view is None or view.plan != plan:
                raise NotPrepared(f"{self.name}: epoch {plan.epoch} was not prepared")
            self._prepared = {tag: one for tag, one in self._prepared.items() if tag > plan.tag}
            self._view = view
            self._forget_posted()
            self._tree = Tree(plan.me, plan.size, view.streams)
            self._sequence = 0
            self._last_tag = plan.tag
            self._broken = None
            self._wake.clear()
            told = {tag: index for tag, index in self._told.items() if tag >= plan.tag}
            self._told = told
            view.keep_direct(self._endpoint.links_of(self.name))
            self._ledger.hold(view.all_links, plan.transition)
            views = [view, *self._prepared.values()]
            wanted = {link.serial for one in views for link in one.all_links}
            self._release(wanted, plan.transition)
            cause = view.first_unusable()
            if plan.tag in told:
                cause = Cause(CauseKind.TOLD, told[plan.tag], "before the switch")
        if cause is not None:
            self.abort(cause)

    # --- breaking ---------------------------------------------------------------------------------

    def abort(self, cause: Cause) -> None:
        """Break the group at once; a blocked rank returns, and peers hear of it."""
        with self._lock:
            view = self._view
            if view is None:
                return
            if self._broken is not None:
                self._refine(cause)
                return
            self._broken = cause
            self._wake.signal()
            self._sideline.wake.signal()
        for link in view.all_links:
            if not link.has_ended and not link.retiring:
                self._endpoint.say_abort(link, view.plan.tag, cause.index)

    def _refine(self, cause: Cause) -> None:
        """Replace `link failed` by what the monitor found out a moment later."""
        known = self._broken
        if known is None or known.kind is not CauseKind.LINK_FAILED or known.index != cause.index:
            return
        if cause.kind in (CauseKind.PEER_RESET, CauseKind.PEER_LEFT):
            self._broken = cause

    def detach(self) -> None:
        """Let go of the plan in force, in order; peers are told goodbye. Nobody is there any more.

        Called between collectives by the training thread of a node that gives up its slot.
        """
        with self._turn, self._lock:
            transition = self.plan.transition if self.plan else 0
            self._view = None
            self._tree = None
            self._broken = None
            self._forget_posted()
            wanted = {link.serial for one in self._prepared.values() for link in one.all_links}
            self._release(wanted, transition)

    def close(self) -> None:
        """Leave in order: say goodbye on this group's links. The endpoint lives on."""
        with self._lock:
            if self._view is not None and self._broken is None:
                self._broken = Cause(CauseKind.CLOSED)
                self._wake.signal()
                self._sideline.wake.signal()
            self._sideline.stop()
            self._prepared.clear()
            self._release(set(), self.plan.transition if self.plan else 0)

    def link_ended(self, link: Link, *, died: bool) -> None:
        """A link is over: break if its peer is in the plan in force, report it if it died."""
        view = self._view
        index = view.index_of(link) if view is not None else None
        if view is not None and index is not None:
            self.abort(Cause(end_kind(link), index, str(view.plan.members[index])))
        identity = (link.key.node, link.key.incarnation)
        if not died or self._on_peer_reset is None or identity in self._accused:
            return
        self._accused.add(identity)
        self._on_peer_reset(self._member(identity), self.name)

    def _member(self, identity: tuple[str, int]) -> Member:
        with self._lock:
            views = [*self._prepared.values(), *([self._view] if self._view else [])]
        for view in views:
            for member in view.plan.members:
                if member.identity == identity:
                    return member
        return Member(-1, -1, identity[0], identity[1], "", 0)

    def may_link(self, caller: tuple[str, int], transition: int) -> bool:
        """Whether a caller is a member, as far as can be known here: a ghost is not.

        Of a transition that this member was not told of yet nothing is known; a link that turns out
        to be nobody's is retired at the next switch.
        """
        with self._lock:
            plans = [view.plan for view in self._prepared.values()]
            current = self.plan
        named = [plan for plan in plans if plan.transition == transition]
        if not named and current is not None and transition <= current.transition:
            named = [current]
        if not named:
            return True
        return any(caller == member.identity for plan in named for member in plan.members)

    def link_added(self, link: Link) -> None:
        """Nothing to do: a plan will ask for it."""

    def link_left(self, link: Link) -> None:
        """A goodbye breaks nothing by itself: the peer may have finished what we still compute."""

    def link_abort(self, link: Link, tag: int, index: int | None) -> None:
        """A peer's group broke: so does ours, now or as soon as we are at that plan."""
        with self._lock:
            current = self.plan
            if current is None or tag > current.tag:
                self._told.setdefault(tag, index)
                return
            if tag < current.tag:
                return
        self.abort(Cause(CauseKind.TOLD, index, f"by {link.key.node}.{link.key.incarnation}"))

    # --- running collectives ----------------------------------------------------------------------

    def _stamp(self) -> tuple[int, int]:
        """What the next collective's frames carry: tag and sequence."""
        assert self._view is not None
        self._sequence += 1
        return (self._view.plan.tag, self._sequence)

    def _run(self, lanes: Sequence[Lane]) -> bool:
        """Run one collective's lanes; False when the group is or becomes broken."""
        assert self._view is not None
        try:
            self._exchange.run(lanes, self._background())
            return True
        except Interrupted:
            pass
        except StreamFault as fault:
            self.abort(self._cause_of(fault))
        except NothingMoved as error:
            self.abort(Cause(CauseKind.TIMED_OUT, self._view.index_of_fds(error.fds), str(error)))
        except BaseException:
            self.abort(Cause(CauseKind.ABORTED, None, "interrupted in the middle of a collective"))
            self._abandon()
            raise
        self._abandon()
        return False

    def _background(self) -> list[Lane]:
        """Lanes to run beside a collective."""
        return []

    def _forget_posted(self) -> None:
        """Drop what was posted and not finished: the group broke, or its members changed."""

    def _run_in_two(self, progress: Progress, lanes: list[Lane]) -> bool:
        """Run one collective with its first lane, the sending one, on the second thread."""
        progress.across_threads(self._sideline.wake)
        self._errand = self._sideline.start(lanes[:1], self._wake)
        try:
            return self._run([*lanes[1:], self._errand.joined()])
        finally:
            self._errand = None

    def _abandon(self) -> None:
        assert self._view is not None
        if self._errand is not None:
            self._errand.settle()
        self._forget_posted()
        for link in self._view.all_links:
            link.bulk.abandon_send()
            link.bulk.abandon_receive()

    def _cause_of(self, fault: StreamFault) -> Cause:
        assert self._view is not None
        index, link = self._view.index_of_stream(fault.stream)
        match fault:
            case StreamEnded() if link is not None:
                self._endpoint.suspect(link)
                return Cause(end_kind(link), index, str(fault))
            case PeerMovedOn():
                return Cause(CauseKind.ABORTED, None, str(fault))
            case OutOfStep():
                return Cause(CauseKind.DESYNCHRONISED, index, str(fault))
            case _:
                return Cause(CauseKind.LINK_FAILED, index, str(fault))
