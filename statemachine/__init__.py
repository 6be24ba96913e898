"""The rules, pure: no clock, no I/O, no async, no randomness, no logging.

The façade: what others build on, pinned by a test. `evolve` folds one entry of a log into a state,
`decide` says what follows from it and why, `settle` both until nothing follows; `History` keeps the
state at every position. The shells of this repository import the modules themselves.

    from statemachine import FleetState, decode_recorded, fold

    state = fold(FleetState(), map(decode_recorded, open("fleet.events.jsonl", "rb")))
    for job in state.jobs.values():
        print(job.job, job.epoch, dict(job.holders))
"""

from statemachine.codec import decode_event, decode_recorded, encode_event, encode_recorded
from statemachine.decide import Settled, decide, next_deadline, settle
from statemachine.decision import Decision
from statemachine.difference import Difference, diff, lines_of_difference
from statemachine.errors import (
    BadLayout,
    BadName,
    BadPolicy,
    ChangeoverError,
    CodecError,
    EventCorrupt,
    EventTooLarge,
    InvariantBroken,
    NotInHistory,
    SchemaTooNew,
    UsageError,
)
from statemachine.events import AnyEvent, Event, Fact, Recorded, UnknownEvent
from statemachine.evolve import evolve, fold
from statemachine.history import History, state_at
from statemachine.incidents import Incident, incidents
from statemachine.invariants import INVARIANTS, Breach, CheckedFold, check, check_step
from statemachine.layout import Layout
from statemachine.lifecycle import NodeState, Phase, Warmth
from statemachine.notation import line_of_entry, lines_of_state
from statemachine.policy import Policy, knobs_of, policy_of
from statemachine.state import FleetState, Job, Node, Transition

__all__ = [
    "INVARIANTS",
    "AnyEvent",
    "BadLayout",
    "BadName",
    "BadPolicy",
    "Breach",
    "ChangeoverError",
    "CheckedFold",
    "CodecError",
    "Decision",
    "Difference",
    "Event",
    "EventCorrupt",
    "EventTooLarge",
    "Fact",
    "FleetState",
    "History",
    "Incident",
    "InvariantBroken",
    "Job",
    "Layout",
    "Node",
    "NodeState",
    "NotInHistory",
    "Phase",
    "Policy",
    "Recorded",
    "SchemaTooNew",
    "Settled",
    "Transition",
    "UnknownEvent",
    "UsageError",
    "Warmth",
    "check",
    "check_step",
    "decide",
    "decode_event",
    "decode_recorded",
    "diff",
    "encode_event",
    "encode_recorded",
    "evolve",
    "fold",
    "incidents",
    "knobs_of",
    "line_of_entry",
    "lines_of_difference",
    "lines_of_state",
    "next_deadline",
    "policy_of",
    "settle",
    "state_at",
]
