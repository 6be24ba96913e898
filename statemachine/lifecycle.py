"""The lifecycles: of a node, of a transition, of a warm-up.

Rule 1: no change of state exists outside these tables; the diagrams in docs/internals are drawn
from them, and a test fails when they drift.
Rule 2: this file knows states and types of events. It does not know time, policy or topology.

A pair that is missing from a table means: the event does not move this state. Such events are
normal (a late acknowledgement, a second verdict) and are folded without effect.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from statemachine import events as e


class NodeState(StrEnum):
    """Where a node stands between joining and leaving."""

    JOINING = "joining"
    """Its agent holds a lease; no training process is ready yet."""
    SPARE = "spare"
    """Its training process is ready but has not rehearsed."""
    WARMING = "warming"
    """Rehearses a role in the sandbox."""
    STANDBY = "standby"
    """Warm: can be promoted without a cold start."""
    ACTIVE = "active"
    """Holds a slot."""
    LEAVING = "leaving"
    """Its slot was given away by a committed transition that is not finished."""
    DRAINED = "drained"
    """Left its slot at an operator's wish; belongs to the operator."""
    QUARANTINED = "quarantined"
    """Kept out of every duty until a sweep or an operator clears it."""
    SWEEPING = "sweeping"
    """Measures itself beside the run."""
    RETIRED = "retired"
    """Came back to quarantine too often; only an operator brings it back."""
    LOST = "lost"
    """Fenced: nothing this incarnation says counts any more."""
    GONE = "gone"
    """Gave its lease back."""


AWAY_STATES: Final = (NodeState.LOST, NodeState.GONE)
"""A node in one of these is no more. A tuple: looking for a member of an enumeration in a set calls
its hash, which is written in Python, and this is asked once an event."""


class Phase(StrEnum):
    """Where a transition stands."""

    PREPARING = "preparing"
    COMMITTED = "committed"
    FINISHED = "finished"
    ABORTED = "aborted"


class Warmth(StrEnum):
    """How far a node has rehearsed one role of one job."""

    NONE = "none"
    WARMING = "warming"
    WARM = "warm"
    STALE = "stale"
    FAILED = "failed"


_S = NodeState
_AWAY: Final[Mapping[type[e.Event], NodeState]] = {e.NodeLost: _S.LOST, e.NodeLeft: _S.GONE}

NODE_TABLE: Final[Mapping[NodeState, Mapping[type[e.Event], NodeState]]] = {
    _S.JOINING: {
        e.WorkerReady: _S.SPARE,
        e.NodeQuarantined: _S.QUARANTINED,
        e.NodeRetired: _S.RETIRED,
        **_AWAY,
    },
    _S.SPARE: {
        e.WarmupStarted: _S.WARMING,
        e.NodeAssigned: _S.JOINING,
        e.TransitionCommitted: _S.ACTIVE,
        e.SweepRequested: _S.SWEEPING,
        e.NodeQuarantined: _S.QUARANTINED,
        e.NodeRetired: _S.RETIRED,
        e.NodeDrained: _S.DRAINED,
        **_AWAY,
    },
    _S.WARMING: {
        e.WarmupPassed: _S.STANDBY,
        e.WarmupFailed: _S.SPARE,
        e.TransitionCommitted: _S.ACTIVE,
        e.NodeAssigned: _S.JOINING,
        e.NodeQuarantined: _S.QUARANTINED,
        e.NodeRetired: _S.RETIRED,
        e.NodeDrained: _S.DRAINED,
        **_AWAY,
    },
    _S.STANDBY: {
        e.WarmupStarted: _S.WARMING,
        e.NodeAssigned: _S.JOINING,
        e.TransitionCommitted: _S.ACTIVE,
        e.SweepRequested: _S.SWEEPING,
        e.NodeQuarantined: _S.QUARANTINED,
        e.NodeRetired: _S.RETIRED,
        e.NodeDrained: _S.DRAINED,
        **_AWAY,
    },
    _S.ACTIVE: {e.TransitionCommitted: _S.LEAVING, e.JobFinished: _S.SPARE, **_AWAY},
    _S.LEAVING: {
        e.NodeQuarantined: _S.QUARANTINED,
        e.NodeRetired: _S.RETIRED,
        e.NodeDrained: _S.DRAINED,
        e.NodePooled: _S.SPARE,
        **_AWAY,
    },
    _S.DRAINED: {
        e.NodePooled: _S.SPARE,
        e.SweepRequested: _S.SWEEPING,
        e.NodeQuarantined: _S.QUARANTINED,
        e.NodeRetired: _S.RETIRED,
        **_AWAY,
    },
    _S.QUARANTINED: {
        e.SweepRequested: _S.SWEEPING,
        e.NodePooled: _S.SPARE,
        e.NodeRetired: _S.RETIRED,
        **_AWAY,
    },
    _S.SWEEPING: {
        e.CertificateIssued: _S.SPARE,
        e.NodePooled: _S.SPARE,
        e.NodeDrained: _S.DRAINED,
        e.NodeQuarantined: _S.QUARANTINED,
        e.NodeRetired: _S.RETIRED,
        **_AWAY,
    },
    _S.RETIRED: {e.NodePooled: _S.SPARE, **_AWAY},
    _S.LOST: {e.NodeJoined: _S.JOINING},
    _S.GONE: {e.NodeJoined: _S.JOINING},
}
"""{state: {type of event: next state}}, of one life of a node. A new life, which `NodeJoined`
begins, is JOINING from the start, whatever its node was and whether the last one was missed."""

TRANSITION_TABLE: Final[Mapping[Phase, Mapping[type[e.Event], Phase]]] = {
    Phase.PREPARING: {e.TransitionCommitted: Phase.COMMITTED, e.TransitionAborted: Phase.ABORTED},
    Phase.COMMITTED: {e.TransitionFinished: Phase.FINISHED},
    Phase.FINISHED: {},
    Phase.ABORTED: {},
}
"""Abort is possible until the commit; after it, only forward."""

WARMUP_TABLE: Final[Mapping[Warmth, Mapping[type[e.Event], Warmth]]] = {
    Warmth.NONE: {e.WarmupStarted: Warmth.WARMING},
    Warmth.WARMING: {e.WarmupPassed: Warmth.WARM, e.WarmupFailed: Warmth.FAILED},
    Warmth.WARM: {
        e.WarmupStarted: Warmth.WARMING,
        e.WorkerReady: Warmth.STALE,
        e.NodePooled: Warmth.STALE,
        e.CertificateIssued: Warmth.STALE,
        e.RecordingMade: Warmth.STALE,
    },
    Warmth.STALE: {e.WarmupStarted: Warmth.WARMING},
    Warmth.FAILED: {e.WarmupStarted: Warmth.WARMING},
}
"""A new training process (`WorkerReady`) has rehearsed nothing, and a node that returns to the
pool, certified or not, was used for something else since: what was warm is stale. So is what was
rehearsed with another recording than the job's present one."""


def next_phase(phase: Phase, kind: type[e.Event]) -> Phase:
    """Phase of a transition after an event of `kind`; the same phase where the table is silent."""
    return TRANSITION_TABLE[phase].get(kind, phase)


def next_warmth(warmth: Warmth, kind: type[e.Event]) -> Warmth:
    """Warmth of a role after an event of `kind`; the same where the table is silent."""
    return WARMUP_TABLE[warmth].get(kind, warmth)
