"""Who may state what: a fact is sequenced only if it is its writer's to state. Pure.

What belongs here: the literal table of facts by kind of writer, and whether a fact speaks in its
writer's own name. What a fact leads to is the state machine's; that the writer is alive was
checked by the store when the fact was put.

A tag of a newer release is let through from anybody: it is folded into nothing by this release,
and a log must not lose what a later one can read.
"""

from typing import Final

from controlplane.eventlog import InboxItem
from controlplane.eventlog.log import OPERATOR_PREFIX
from statemachine import events as e
from statemachine.codec import EVENT_BYTES_MAX
from statemachine.errors import CodecError

FACT_BYTES_MAX: Final = EVENT_BYTES_MAX + 1024
"""Size of a fact: its event, and who said it when."""

NODE_FACTS: Final = (
    e.NodeJoined,
    e.NodeLeft,
    e.WorkerReady,
    e.WorkerExited,
    e.WorkerFinished,
    e.PeerReset,
    e.PeerWaited,
    e.GroupBroken,
    e.WarmupPassed,
    e.WarmupFailed,
    e.RecordingMade,
    e.CheckpointWritten,
    e.TransitionPrepared,
    e.TransitionRefused,
    e.TransitionApplied,
    e.StepResumed,
    e.SweepRoundFinished,
)
"""What a node states: of itself, and what it saw of its peers."""

OPERATOR_ACTS: Final = (
    e.JobDeclared,
    e.JobStopRequested,
    e.DrainRequested,
    e.SwitchoverRequested,
    e.QuarantineRequested,
    e.ReleaseRequested,
    e.SweepAsked,
    e.RemedyFinished,
    e.DecisionsPaused,
    e.DecisionsResumed,
    e.PolicyChanged,
    e.FaultInjected,
    e.FaultLifted,
)
"""What a person, or a program in a person's name, states."""


def admit(item: InboxItem) -> e.Fact | str:
    """Decode a fact that waits; or say why it may not enter the log."""
    if len(item.raw) > FACT_BYTES_MAX:
        return f"is {len(item.raw)} bytes; a fact is at most {FACT_BYTES_MAX}"
    try:
        fact = item.fact()
    except CodecError as error:
        return f"does not decode: {error}"
    claimed = (fact.writer, fact.incarnation, fact.counter)
    if claimed != (item.writer, item.incarnation, item.counter):
        return f"claims to be fact {claimed[2]} of {claimed[0]}/{claimed[1]}"
    return _foreign(fact) or fact


def _foreign(fact: e.Fact) -> str:
    """Say why a fact is not its writer's to state; empty if it is."""
    event = fact.event
    kind = type(event).__name__
    if isinstance(event, e.UnknownEvent):
        return ""
    if fact.writer.startswith(OPERATOR_PREFIX):
        return "" if isinstance(event, OPERATOR_ACTS) else f"{kind} is not an operator's to state"
    if not isinstance(event, NODE_FACTS):
        return f"{kind} is not a node's to state"
    if isinstance(event, e.SweepRoundFinished):  # a round of a partner is about its subject
        return "" if fact.writer in (event.node, event.partner) else f"{kind} about {event.node}"
    if (event.node, event.incarnation) != (fact.writer, fact.incarnation):
        return f"{kind} speaks for {event.node}/{event.incarnation}"
    return ""
