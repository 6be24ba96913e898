"""What can go wrong with the event log, sorted by what the caller does next.

    EventLogError
    |-- Retry             the same call may be made again; nothing was changed by it
    |   |-- StoreUnavailable   no answer, no leader, overloaded
    |   `-- WatchLost          a watch stream ended; read again, then watch again
    |-- Reread            the caller's picture is old; read, then decide anew
    |   |-- OutcomeUnknown     the answer of a write was lost; it may or may not have been applied
    |   |-- Compacted          the history asked for is gone; the live keys are not
    |   `-- HeadMoved          the log is longer than the appender thought
    `-- Stop              repeating it cannot help; the message says whose fault and what next
        |-- Fenced             this incarnation was declared dead: join anew
        |   `-- LeaseLost      it can no longer prove that it is alive: re-establish, or join anew
        |-- Deposed            another controller leads
        |-- NodeAlreadyAlive   the name is taken by a live incarnation
        |-- NoSpace            the store's quota is used up
        |-- TooLarge           one value, or one transaction, is over the store's limit
        |-- PermissionDenied   credentials are missing or do not cover the key
        |-- UnsupportedServer  the server is too old, or known to lose writes
        |-- ClientMissing      the package of the chosen client is not installed
        |-- Refused            the store calls the request malformed: a bug on our side
        |-- Archived           the position asked for stands in an archive only
        `-- LogCorrupt         a position of the log is missing or unreadable

Rule: a leaf never changes parent; code branches on `Retry`, `Reread` and `Stop`.
"""

from __future__ import annotations


class EventLogError(Exception):
    """Anything that the event log or its store reports."""


class Retry(EventLogError):
    """Make the same call again after a pause; this one changed nothing."""


class Reread(EventLogError):
    """Read the keys in question, then decide anew."""


class Stop(EventLogError):
    """Repeating the call cannot help."""


class StoreUnavailable(Retry):
    """The store did not answer, has no leader, or is overloaded."""


class WatchLost(Retry):
    """A watch stream ended; what it would have said must be read."""


class OutcomeUnknown(Reread):
    """The answer of a write was lost: it may or may not have been applied."""


class Compacted(Reread):
    """The revision asked for is compacted away.

    `revision` is the oldest from which the store can still answer, or 0 if it did not say.
    """

    def __init__(self, revision: int) -> None:
        """Remember the oldest revision that is left."""
        before = f"before store revision {revision} " if revision else ""
        super().__init__(f"the history asked for {before}is compacted: read again")
        self.revision = revision


class HeadMoved(Reread):
    """The head of the log is not where the appender thought."""

    def __init__(self, expected: int, actual: int) -> None:
        """Remember both positions."""
        super().__init__(f"the head of the log is at position {actual}, not {expected}: read on")
        self.expected = expected
        self.actual = actual


class Fenced(Stop):
    """This incarnation was declared dead; its writes fail at the store. Join anew."""


class LeaseLost(Fenced):
    """The lease ended, or cannot be proven alive in time: act as dead until re-established."""


class Deposed(Stop):
    """Another controller leads, or nobody does; this one's appends fail at the store."""


class NodeAlreadyAlive(Stop):
    """A live incarnation holds the node's name."""

    def __init__(self, node: str, incarnation: int) -> None:
        """Remember who holds the name."""
        super().__init__(
            f"node {node} is alive as incarnation {incarnation}: stop that agent, "
            "or wait until its lease ends"
        )
        self.node = node
        self.incarnation = incarnation


class NoSpace(Stop):
    """The store's quota is used up: compact, defragment and disarm its alarm."""


class TooLarge(Stop):
    """One value, or one transaction, is over the store's limit."""


class PermissionDenied(Stop):
    """Credentials are missing, wrong, or do not cover the key."""


class UnsupportedServer(Stop):
    """The server is too old, or known to lose acknowledged writes."""


class ClientMissing(Stop):
    """The package of the chosen client is not installed; the message says which."""


class Refused(Stop):
    """The store calls the request malformed; this is a bug on our side."""


class Archived(Stop):
    """The position asked for was moved out of the store; `oldest` is the first that is left."""

    def __init__(self, position: int, oldest: int) -> None:
        """Name what was asked for and what there is."""
        super().__init__(
            f"position {position} of the log is archived, the store begins at {oldest}: "
            "read the archive, or begin with a snapshot"
        )
        self.position = position
        self.oldest = oldest


class LogCorrupt(Stop):
    """A position of the log is missing or holds what cannot be read."""

    def __init__(self, position: int, found: str) -> None:
        """Name the position and what stands there."""
        super().__init__(f"the log is damaged at position {position}: {found}")
        self.position = position
