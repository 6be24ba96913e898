"""Messages between two members, posted now and finished when waited for.

What belongs here: queues of posted messages per peer, the lanes that work through them, opening a
link at its first use. What does not: collectives (delta).

Theory of operation. Posting never blocks, so that two members may post in any order without
deadlock. Posted messages move whenever this member is in a collective or waits for any message:
their lanes run beside whatever is waited for. Messages of one pair travel in order, and both sides
must agree on the tag and the size of each.
"""

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from worker.groups.arrays import Copyable
from worker.groups.backend import DirectTicket
from worker.groups.exchange import MORE, OTHER_LANE, Lane, receive, send
from worker.groups.frames import chunks_of
from worker.groups.link import Link, LinkKey
from worker.groups.linked import LinkedGroup
from worker.groups.port import Cause, CauseKind, Channel, PrepareRefused
from worker.groups.view import View

OPEN_DEADLINE_S: Final = 10.0


class Ticket:
    """One posted message."""

    def __init__(self, group: "DirectGroup", data: Copyable, tag: int) -> None:
        self._group = group
        self.data = data
        self.tag = tag
        self.done = False

    def wait(self) -> bool:
        """Finish the message; False when the group is or becomes broken."""
        return self._group.finish(self)


@dataclass(slots=True)
class _Line:
    """What is posted to and expected from one peer, and the lanes at work on it."""

    peer: int
    outgoing: deque[Ticket] = field(default_factory=deque)
    incoming: deque[Ticket] = field(default_factory=deque)
    sending: Lane | None = None
    receiving: Lane | None = None
    dialling: bool = False


class DirectGroup(LinkedGroup):
    """Adds messages to a group over links."""

    _lines: dict[int, _Line]

    def post_send(self, tensor: Tensor, peer: int, tag: int) -> DirectTicket | None:
        """Queue `tensor` for `peer`; it must stay unchanged until waited for. None: broken."""
        with self._turn:
            line = self._line(peer)
            if line is None:
                return None
            ticket = Ticket(self, Copyable(tensor), tag)
            line.outgoing.append(ticket)
            return ticket

    def post_receive(self, tensor: Tensor, peer: int, tag: int) -> DirectTicket | None:
        """Say where the next message from `peer` goes. None: broken."""
        with self._turn:
            line = self._line(peer)
            if line is None:
                return None
            ticket = Ticket(self, Copyable(tensor), tag)
            line.incoming.append(ticket)
            return ticket

    def finish(self, ticket: Ticket) -> bool:
        """Run posted messages until `ticket` is done."""
        with self._turn:
            if not ticket.done and (self._broken is not None or self._view is None):
                return False

            def until_done() -> Lane:
                while not ticket.done:
                    yield OTHER_LANE

            return ticket.done or self._run([until_done()])

    # --- lanes ------------------------------------------------------------------------------------

    def _background(self) -> list[Lane]:
        lanes = []
        for line in self._lines.values():
            if line.outgoing and line.sending is None:
                line.sending = self._send_all(line)
            if line.incoming and line.receiving is None:
                line.receiving = self._receive_all(line)
            lanes += [lane for lane in (line.sending, line.receiving) if lane is not None]
        return lanes

    def _send_all(self, line: _Line) -> Lane:
        view = self._current()
        while line.peer not in view.direct:
            self._dial(view, line)
            yield OTHER_LANE
        stream, stamp = view.direct[line.peer].bulk, view.plan.tag
        while line.outgoing:
            ticket = line.outgoing[0]
            for number, chunk in enumerate(chunks_of(ticket.data.payload)):
                yield from send(stream, stamp, ticket.tag, number, chunk)
                yield MORE
            line.outgoing.popleft().done = True
        line.sending = None

    def _receive_all(self, line: _Line) -> Lane:
        view = self._current()
        while not self._has_dialled_us(view, line.peer):
            yield OTHER_LANE
        stream, stamp = view.incoming[line.peer].bulk, view.plan.tag
        while line.incoming:
            ticket = line.incoming[0]
            for number, chunk in enumerate(chunks_of(ticket.data.payload)):
                yield from receive(stream, stamp, ticket.tag, number, chunk)
                yield MORE
            ticket.data.store()
            line.incoming.popleft().done = True
        line.receiving = None

    def _current(self) -> View:
        assert self._view is not None
        return self._view

    def _forget_posted(self) -> None:
        self._lines = {}

    # --- opening ----------------------------------------------------------------------------------

    def _line(self, peer: int) -> _Line | None:
        view = self._view
        if view is None or self._broken is not None:
            return None
        if peer == view.plan.me or not 0 <= peer < view.plan.size:
            raise ValueError(f"{self.name}: no message from {view.plan.me} to {peer}")
        return self._lines.setdefault(peer, _Line(peer))

    def link_added(self, link: Link) -> None:
        """A peer has something for us: let the lane that waits for it look."""
        if link.key.channel is Channel.INCOMING:
            self._wake.signal()

    def _has_dialled_us(self, view: View, peer: int) -> bool:
        if peer in view.incoming:
            return True
        member = view.plan.members[peer]
        key = LinkKey(self.name, Channel.INCOMING, member.node, member.incarnation)
        link = self._endpoint.find(key)
        if link is None:
            return False
        self._adopt(view, view.incoming, peer, link)
        return True

    def _adopt(self, view: View, into: dict[int, Link], peer: int, link: Link) -> None:
        with self._lock:
            if self._view is view:
                into[peer] = link
                self._ledger.hold([link], view.plan.transition)

    def _dial(self, view: View, line: _Line) -> None:
        """Dial in a thread of its own: an abort must get this rank out at once."""
        if line.dialling:
            return
        line.dialling = True

        def dial() -> None:
            try:
                opened = self._endpoint.ensure(
                    view.plan, [line.peer], Channel.DIRECT, OPEN_DEADLINE_S
                )
            except PrepareRefused as error:
                if self._view is view:
                    self.abort(Cause(CauseKind.LINK_FAILED, line.peer, error.reason))
                return
            self._adopt(view, view.direct, line.peer, opened[line.peer])
            self._wake.signal()

        threading.Thread(target=dial, name="link-dialling", daemon=True).start()
