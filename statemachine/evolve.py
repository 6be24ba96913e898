"""Fold: `evolve(state, recorded) -> state`, one short function per event; nothing else does.

Rules: total over every event; never an effect, never a refusal. An event that does not fit (a
late acknowledgement, a fact of a fenced incarnation) is folded into nothing but the position:
whoever wrote it into the log had the right to, and the fold must tell the same story forever.
"""

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from statemachine import events as e
from statemachine import evolve_health as health
from statemachine import evolve_jobs as jobs
from statemachine import evolve_nodes as nodes
from statemachine.errors import BadPolicy
from statemachine.policy import policy_of
from statemachine.state import FleetState


def fold(state: FleetState, log: Iterable[e.Recorded]) -> FleetState:
    """Fold a sequence of recorded events."""
    for recorded in log:
        state = evolve(state, recorded)
    return state


def evolve(state: FleetState, recorded: e.Recorded) -> FleetState:
    """Fold one recorded event into the state; total over every event type."""
    state = replace(state, position=recorded.position, at_ms=max(state.at_ms, recorded.at_ms))
    return _evolve(state, recorded.event)


def _evolve(state: FleetState, event: e.AnyEvent) -> FleetState:
    match event:
        case e.NodeJoined():
            return nodes.joined(state, event)
        case e.NodeLeft() | e.NodeLost():
            return nodes.ended(state, event)
        case e.WorkerReady():
            return nodes.worker_ready(state, event)
        case e.WorkerExited() | e.LeaseExpired() | e.PeerReset() | e.PeerWaited():
            return nodes.accused(state, event)
        case e.GroupBroken():
            return jobs.group_broken(state, event)
        case e.WorkerFinished():
            return jobs.worker_finished(state, event)
        case e.JobDeclared():
            return jobs.declared(state, event)
        case e.JobFinished():
            return jobs.finished(state, event)
        case e.WarmupStarted() | e.WarmupPassed() | e.WarmupFailed():
            return nodes.rehearsed(state, event)
        case e.VerdictIssued():
            return health.verdict_issued(state, event)
        case e.VerdictWithdrawn():
            return health.verdict_withdrawn(state, event)
        case e.TransitionPlanned():
            return jobs.planned(state, event)
        case e.TransitionPrepared():
            return jobs.prepared(state, event)
        case e.TransitionRefused():
            return jobs.refused(state, event)
        case e.TransitionCommitted():
            return jobs.committed(state, event)
        case e.TransitionApplied():
            return jobs.applied(state, event)
        case e.TransitionFinished():
            return jobs.transition_finished(state, event)
        case e.TransitionAborted():
            return jobs.aborted(state, event)
        case e.NodeQuarantined() | e.NodeDrained() | e.NodePooled() | e.NodeRetired():
            return health.placed(state, event)
        case e.SweepRequested():
            return health.sweep_requested(state, event)
        case e.SweepRoundFinished():
            return health.sweep_round_finished(state, event)
        case e.SweepFinished():
            return health.sweep_finished(state, event)
        case e.CertificateIssued():
            return health.certified(state, event)
        case e.DrainRequested() | e.SwitchoverRequested() | e.QuarantineRequested():
            return health.wanted_out(state, event)
        case e.ReleaseRequested() | e.SweepAsked():
            return health.asked(state, event)
        case e.ActRefused():
            return health.refused(state, event)
        case e.DecisionsPaused():
            return replace(state, paused_by=event.by or "unknown")
        case e.DecisionsResumed():
            return replace(state, paused_by="")
        case e.PolicyChanged():
            return _policy_changed(state, event)
        case e.LeaderElected():
            return replace(state, term=event.term, controller=event.controller)
        case e.UnknownEvent():
            return replace(state, unknown_tags=(*state.unknown_tags[-99:], event.tag))
        case e.StepResumed() | e.FaultInjected() | e.FaultLifted():
            return state
        case _ as unreachable:
            assert_never(unreachable)


def _policy_changed(state: FleetState, event: e.PolicyChanged) -> FleetState:
    """A policy that does not hold together is kept out by its submitter; here it has no effect."""
    try:
        policy = policy_of(event.knobs)
    except BadPolicy:
        return state
    return replace(state, policy=policy, policy_version=event.version)
