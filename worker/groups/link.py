"""One link's end, and what makes it the one that is looked for.

What belongs here: the state of a link. What does not: who changes it (links, monitor, bulk).
"""

import itertools
import socket
import threading
from typing import NamedTuple

from worker.groups.bulk import BulkStream
from worker.groups.port import Channel

_serials = itertools.count(1)


class LinkKey(NamedTuple):
    """What makes a link the one that is looked for."""

    group: str
    channel: Channel
    node: str
    incarnation: int


class Link:
    """One link's end: a control socket (the monitor's) and a bulk stream (the training thread's).

    `has_left`: the peer said goodbye. `has_ended`: the control connection is over. `died`: because
    the peer's process ended.
    """

    def __init__(
        self, key: LinkKey, control: socket.socket, bulk: socket.socket, transition: int
    ) -> None:
        control.setblocking(False)
        self.serial = next(_serials)
        self.key = key
        self.control = control
        self.bulk = BulkStream(bulk)
        self.transition = transition
        self.has_left = False
        self.has_ended = False
        self.died = False
        self.bulk_failed = False
        self.retiring = False
        self.said_goodbye = False
        self.control_lock = threading.Lock()
        self.outbox = bytearray()
        self.inbox = bytearray()

    @property
    def usable(self) -> bool:
        """Whether a plan may rely on it."""
        return not (self.has_left or self.has_ended or self.bulk_failed or self.retiring)

    def __repr__(self) -> str:
        """For logs and failed assertions."""
        key = self.key
        flags = ("has_left", "has_ended", "bulk_failed", "retiring")
        marks = "".join(f" {flag}" for flag in flags if getattr(self, flag))
        return f"<link {key.group}/{key.channel.name} to {key.node}.{key.incarnation}{marks}>"
