"""What a communicator is asked to do, and in which words.

What belongs here: the values that describe a group's members at one epoch, what breaks a group,
what is counted, and its errors. What does not: sockets, torch, algorithms; the calls themselves
(backend). This file loads without torch.

The life of a group: `prepare` a plan in the background, `switch` to it at a step boundary, run
collectives, and either switch again or become **broken**. A broken group stays broken until the
next switch; it never raises in the training thread, it only stops telling the truth about tensors,
which is why every step ends in a vote.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


@dataclass(frozen=True, slots=True)
class Member:
    """One place in a group and the incarnation that fills it.

    `host` and `port` say where that incarnation's listener accepts links.
    """

    slot: int
    rank: int
    node: str
    incarnation: int
    host: str
    port: int

    @property
    def identity(self) -> tuple[str, int]:
        """Who this is: a node's name with its incarnation."""
        return (self.node, self.incarnation)

    def __str__(self) -> str:
        """One line, as in logs: `n3.2`."""
        return f"{self.node}.{self.incarnation}"


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group's members at one epoch, in slot order.

    A member's index is its position in `members`. Results depend on the index alone, so whoever
    takes over a slot computes the same bits.
    """

    name: str
    job: str
    epoch: int
    transition: int
    me: int
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        """Refuse a plan that two members would read differently."""
        slots = [(member.slot, member.rank) for member in self.members]
        if slots != sorted(slots) or len(set(slots)) != len(slots):
            raise ValueError(f"members of {self.name} must be in slot order: {slots}")
        if not 0 <= self.me < len(self.members):
            raise ValueError(f"index {self.me} is outside {self.name} of size {len(self.members)}")

    @property
    def size(self) -> int:
        """How many members."""
        return len(self.members)

    @property
    def tag(self) -> int:
        """What frames of this plan carry; grows with every switch of a group."""
        return self.epoch << 32 | (self.transition & 0xFFFFFFFF)


class ReduceOp(StrEnum):
    """How two values become one."""

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


class Channel(IntEnum):
    """Which kind of traffic a link carries; one link per peer and channel.

    Messages between two members have a link per direction, dialled by the sender: what is DIRECT at
    its end is INCOMING at the receiver's.
    """

    COLLECTIVE = 0
    DIRECT = 1
    INCOMING = 2


class CauseKind(StrEnum):
    """Why a group broke."""

    PEER_RESET = "peer reset"
    PEER_LEFT = "peer left"
    LINK_FAILED = "link failed"
    TOLD = "told"
    ABORTED = "aborted"
    TIMED_OUT = "timed out"
    DESYNCHRONISED = "desynchronised"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a group broke, and the index of the member it is about (None: nobody in particular)."""

    kind: CauseKind
    index: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        """One line for logs."""
        about = "" if self.index is None else f" (index {self.index})"
        return f"{self.kind}{about}: {self.detail}" if self.detail else f"{self.kind}{about}"


class GroupError(Exception):
    """Base of what this package raises outside the training thread.

    ```
    GroupError
    |- PrepareRefused   the plan cannot be prepared: report it; the running group is untouched
    |- NotPrepared      a switch to a plan that was not prepared: prepare it first
    `- HelloRefused     a peer did not prove who it is, or is not who was asked for
    ```
    """


class PrepareRefused(GroupError):
    """A plan cannot be prepared; the group in use is untouched.

    `reason` says what was waited for, `peer` with whom (None: the plan itself is at fault).
    """

    def __init__(self, reason: str, peer: Member | None) -> None:
        super().__init__(f"{reason} (peer {peer})" if peer else reason)
        self.reason = reason
        self.peer = peer


class NotPrepared(GroupError):
    """A switch to a plan that this backend has not prepared."""


class HelloRefused(GroupError):
    """The other end of a connection did not prove to be the incarnation that was asked for."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a preparation cost: links that were opened and kept, and how long it took."""

    tag: int
    links_opened: int
    links_kept: int
    took_s: float


@dataclass(slots=True)
class LinkCounts:
    """Links and bytes of one group since its creation, and links per transition.

    A link is counted once at each of its two ends; each consists of two sockets.
    """

    opened: int = 0
    closed: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    opened_by_transition: dict[int, int] = field(default_factory=dict)
    closed_by_transition: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Waits:
    """Where the time of collectives went since the last reset.

    `wait_s` is time blocked until peers (or the network) were ready; `busy_s` is time spent on
    copying, reducing and system calls, that is, this rank's own work.
    """

    wait_s: float = 0.0
    busy_s: float = 0.0
    operations: int = 0


PeerReset = Callable[[Member, str], None]
"""Called with the member whose process ended and the group that saw it, on the monitor's thread."""
