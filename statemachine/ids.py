"""Identities: one NewType per idea, and the one rule for names that come from outside.

What belongs here: types that only identify. No behaviour but the check of a name.
"""

import re
from typing import Final, NewType

from statemachine.errors import BadName

NodeId = NewType("NodeId", str)
"""A machine, as its operator names it. Survives restarts."""

JobId = NewType("JobId", str)
"""One training job."""

GroupName = NewType("GroupName", str)
"""A communicator of a layout, such as ``dp[0]``."""

Role = NewType("Role", str)
"""Class of position in a layout that warms up alike, such as ``first`` or ``middle``."""

Slot = NewType("Slot", int)
"""One node's place in a job's layout, 0-based; survives whoever fills it."""

Rank = NewType("Rank", int)
"""Index of one training process in a job, 0-based."""

Epoch = NewType("Epoch", int)
"""Version of the communicator topology: +1 per committed transition; 0 before the launch."""

Position = NewType("Position", int)
"""Dense sequence number of an event in the log; the first event has 1."""

Incarnation = NewType("Incarnation", int)
"""Lifetime counter of one node's agent: a restarted agent is a new incarnation."""

TransitionId = NewType("TransitionId", int)
"""Number of a transition within its job; the first has 1."""

SweepId = NewType("SweepId", int)
"""Number of a sweep within the fleet; the first has 1."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")


def check_name(kind: str, value: str) -> str:
    """Return `value` if it may name a `kind` (node, job, fleet, controller).

    Names become parts of etcd keys, file names and pages, hence the narrow alphabet.

    Raises:
        BadName: the value is empty, too long, or holds another character.
    """
    if not _NAME.match(value):
        raise BadName(kind, value)
    return value
