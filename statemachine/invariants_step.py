"""What must hold of one event between the state before it and the state after.

What belongs here: the numbered properties 10 and up of `invariants`, which says them in English.
"""

from collections.abc import Iterator
from typing import Final

from statemachine import events as e
from statemachine.ids import JobId, NodeId, Slot
from statemachine.indexes import POOLED_STATES
from statemachine.lifecycle import NodeState, Phase
from statemachine.planning import budget_left, is_engaged, why_out
from statemachine.state import FleetState, Job, Transition, is_harmful
from statemachine.transition import target_members

Found = Iterator[tuple[int, str]]

DECISIONS: Final = (
    e.NodeLost,
    e.NodeAssigned,
    e.JobFinished,
    e.JobRestarted,
    e.WarmupStarted,
    e.ActWithheld,
    e.ChangesDrafted,
    e.TransitionPlanned,
    e.SourcesChosen,
    e.TransitionCommitted,
    e.TransitionFinished,
    e.TransitionAborted,
    e.NodeQuarantined,
    e.NodeDrained,
    e.NodePooled,
    e.NodeRetired,
    e.SweepRequested,
    e.SweepFinished,
    e.ActRefused,
)
"""What the controller decides. It also states facts of its own, such as an expired lease."""

_MOVES: Final = (
    e.NodeLost,
    e.NodeAssigned,
    e.WarmupStarted,
    e.NodeDrained,
    e.NodePooled,
    e.NodeRetired,
)

_OF_JOB: Final = (
    e.NodeAssigned,
    e.JobFinished,
    e.JobRestarted,
    e.WarmupStarted,
    e.ChangesDrafted,
    e.TransitionPlanned,
    e.SourcesChosen,
    e.TransitionCommitted,
    e.TransitionFinished,
    e.TransitionAborted,
)


def step_breaches(before: FleetState, recorded: e.Recorded, after: FleetState) -> Found:
    """Every property that this step breaks, as (number, detail)."""
    event = recorded.event
    if before.position and recorded.position != before.position + 1:
        yield 10, f"position {recorded.position} follows {before.position}"
    if recorded.at_ms < before.at_ms:
        yield 11, f"{before.at_ms - recorded.at_ms} ms before the last event"
    yield from _epochs(before, event, after)
    if isinstance(event, DECISIONS):
        yield from _decided(before, recorded)
        yield from _effect(before, event, after)
    match event:
        case e.NodeJoined():
            known = before.nodes.get(event.node)
            if known is not None and event.incarnation <= known.incarnation:
                yield 20, f"{event.node}.{event.incarnation} joins after {known.incarnation}"
        case e.NodeLost():
            if not event.evidence or max(event.evidence) > before.position:
                yield 20, f"{event.node} is lost by evidence {event.evidence}"
        case e.TransitionPlanned():
            yield from _planned(before, after.whole(event), recorded.at_ms)
        case e.TransitionCommitted():
            yield from _committed(before, _whole_commit(event, after))
        case e.TransitionFinished() | e.TransitionAborted():
            yield from _ended(before, event)
        case e.NodeQuarantined() | e.NodeDrained() | e.NodePooled() | e.NodeRetired():
            yield from _released(before, event)
        case _:
            pass


def _epochs(before: FleetState, event: e.AnyEvent, after: FleetState) -> Found:
    if before.jobs is after.jobs:
        return
    name = JobId(getattr(event, "job", ""))
    names = (name,) if name else tuple(sorted(after.jobs))
    for each in names:
        old, new = before.jobs.get(each), after.jobs.get(each)
        if new is None:
            continue
        was = old.epoch if old is not None else 0
        rise = int(isinstance(event, e.TransitionCommitted))
        if new.epoch - was not in (0, rise):
            yield 12, f"{each} goes from epoch {was} to {new.epoch} by {type(event).__name__}"


def _decided(before: FleetState, recorded: e.Recorded) -> Found:
    event = recorded.event
    kind = type(event).__name__
    if not getattr(event, "reason", ""):
        yield 17, f"{kind} without a reason"
    if isinstance(event, _OF_JOB):
        job = before.jobs.get(event.job)
        if job is None or job.finished:
            yield 18, f"{kind} of {event.job}, which is {'finished' if job else 'unknown'}"
    if recorded.decided_from > before.position:
        yield 24, f"{kind} was decided from {recorded.decided_from}, after {before.position}"
    if recorded.decided_from and recorded.policy_version != before.policy_version:
        versions = f"{recorded.policy_version} where {before.policy_version} is in force"
        yield 24, f"{kind} was decided by policy {versions}"


def _effect(before: FleetState, event: e.AnyEvent, after: FleetState) -> Found:
    if isinstance(event, e.SweepFinished):
        if event.sweep not in before.sweeps or event.sweep in after.sweeps:
            yield 21, f"SweepFinished of s{event.sweep}, which was not open or is still"
        return
    name = NodeId(getattr(event, "node", ""))
    old, new = before.nodes.get(name), after.nodes.get(name)
    if name and (old is None or new is None or old == new):
        yield 21, f"{type(event).__name__} does nothing to {name}"
    if isinstance(event, _MOVES) and old is not None and new is not None and old.state is new.state:
        yield 21, f"{type(event).__name__} leaves {name} {old.state}"


# --- transitions ------------------------------------------------------------------------------


def _whole_commit(commit: e.TransitionCommitted, after: FleetState) -> e.TransitionCommitted:
    job = after.jobs.get(commit.job)
    pending = job.pending if job is not None else None
    said = pending.committed if pending is not None else None
    return said if said is not None and said.transition == commit.transition else commit


def _planned(before: FleetState, plan: e.TransitionPlanned, at_ms: int) -> Found:
    job = before.jobs.get(plan.job)
    if job is None:
        return
    if plan.parts and (job.draft is None or job.draft.parts != plan.parts):
        yield 22, f"t{plan.transition} has {plan.parts} parts, and they are not all there"
    if plan.transition != job.last_transition + 1:
        yield 22, f"t{plan.transition} of {plan.job} follows t{job.last_transition}"
    if plan.from_epoch != job.epoch:
        yield 22, f"t{plan.transition} begins at epoch {plan.from_epoch}, the job is at {job.epoch}"
    pending = job.pending.plan.transition if job.pending is not None else 0
    if plan.replaces not in ((pending,) if pending else (0, job.last_transition)):
        yield 22, f"t{plan.transition} replaces t{plan.replaces}, and t{pending} is pending"
    if job.pending is not None and job.pending.phase is Phase.PREPARING:
        yield 19, f"t{plan.transition} replaces t{pending}, which was not given up"
    for change in plan.changes:
        yield from _promoted(before, change)
    if plan.motive is e.Motive.PLANNED:
        yield from _harmless(before, plan, at_ms)


def _promoted(before: FleetState, change: e.Change) -> Found:
    node = before.current(change.joiner, change.joiner_incarnation)
    if node is None:
        yield 15, f"{change.joiner}.{change.joiner_incarnation} is not alive"
        return
    if node.state not in POOLED_STATES or node.slot >= 0:
        yield 15, f"{node.node} is {node.state}"
    if node.quarantine or node.retired or node.wanted_out:
        why = node.retired or node.quarantine or node.wanted_out
        yield 15, f"{node.node} is kept out: {why}"
    if is_harmful(node.verdict):
        yield 15, f"{node.node} is under a verdict"


def _harmless(before: FleetState, plan: e.TransitionPlanned, at_ms: int) -> Found:
    harmed = 0
    for change in plan.changes:
        node = before.current(change.leaver, change.leaver_incarnation)
        if not change.leaver:
            continue
        if node is None or not why_out(before, node, before.policy):
            yield 23, f"{change.leaver} is taken out without a reason that holds"
        elif not node.wanted_out:
            harmed += 1
    if harmed > budget_left(before, at_ms, before.policy):
        yield (
            23,
            f"{harmed} nodes are taken out, {budget_left(before, at_ms, before.policy)} may be",
        )


def _committed(before: FleetState, commit: e.TransitionCommitted) -> Found:
    job = before.jobs.get(commit.job)
    pending = job.pending if job is not None else None
    if job is None or pending is None or pending.plan.transition != commit.transition:
        yield 13, f"t{commit.transition} of {commit.job} commits, and is not pending"
        return
    if pending.phase is not Phase.PREPARING:
        yield 19, f"t{commit.transition} commits twice"
    if commit.parts and commit.parts != pending.chosen_parts:
        yield 22, f"t{commit.transition} has {commit.parts} parts, and they are not all there"
    if commit.epoch != job.epoch + 1:
        yield 12, f"t{commit.transition} commits epoch {commit.epoch} at epoch {job.epoch}"
    for name in pending.plan.required:
        node, ack = before.nodes.get(name), pending.prepared.get(name)
        if ack is None:
            yield 13, f"t{commit.transition} commits without {name}"
        elif ack.transition != commit.transition:
            yield 13, f"t{commit.transition} commits by what {name} said of t{ack.transition}"
        elif node is None or before.current(name, ack.incarnation) is None:
            yield (
                13,
                f"t{commit.transition} commits with {name}.{ack.incarnation}, which is no more",
            )
    for change in pending.plan.changes:
        yield from _promoted(before, change)
    if pending.plan.motive is e.Motive.UNPLANNED:
        yield from _resumes(job, pending, commit)


def _resumes(job: Job, pending: Transition, commit: e.TransitionCommitted) -> Found:
    live = {s: n for s, n in job.holders.items() if s not in job.vacant}
    members = target_members(live, pending.plan)
    parties = [*members.items(), *((giver.slot, giver.node) for giver in pending.plan.givers)]
    receives = {handover.slot: handover for handover in commit.handovers}
    last = commit.resume_step - 1
    if commit.loads:
        yield from _loads(pending, members, receives, last)
        return
    holds = set()
    for slot, name in parties:
        ack = pending.prepared.get(name)
        report = ack.report if ack is not None else None
        if report is None or not report.has_state:
            continue
        if report.applied > last:
            yield 14, f"{name} applied step {report.applied}, and all resume at {last + 1}"
        if report.applied == last or (slot in commit.apply and report.pending == last):
            holds.add(name)
    if not holds and last >= 0:
        yield 14, f"all resume at {last + 1}, and nobody holds the state of {last}"
    for slot, name in members.items():
        handover = receives.get(slot)
        if name not in holds and holds and handover is None:
            yield 14, f"{name} holds no state of {last}, and receives none"
        if handover is not None and holds and not holds >= set(handover.sources):
            yield 14, f"{name} receives from {handover.sources}, who do not all hold it"


def _loads(
    pending: Transition,
    members: dict[Slot, NodeId],
    receives: dict[Slot, e.Handover],
    last: int,
) -> Found:
    """All go back to a step, and each has it from a save or from one who has."""
    able = set()
    for name in members.values():
        ack = pending.prepared.get(name)
        report = ack.report if ack is not None else None
        if report is not None and (last in report.saves or not report.saves):
            able |= {name} if last <= report.saved else set()
    for slot, name in members.items():
        handover = receives.get(slot)
        if handover is None and name not in able:
            yield 14, f"{name} shall load step {last}, and said of no save of it"
        if handover is not None and not able >= set(handover.sources):
            yield 14, f"{name} receives step {last} from {handover.sources}, who cannot all load it"


def _ended(before: FleetState, event: e.TransitionFinished | e.TransitionAborted) -> Found:
    job = before.jobs.get(event.job)
    pending = job.pending if job is not None else None
    if pending is None or pending.plan.transition != event.transition:
        yield 19, f"t{event.transition} of {event.job} ends, and is not pending"
        return
    aborts = isinstance(event, e.TransitionAborted)
    if aborts != (pending.phase is Phase.PREPARING):
        how = "given up" if aborts else "finished"
        yield 19, f"t{event.transition} is {how} while {pending.phase}"
    if not aborts and (not pending.is_answered or pending.gone):
        yield 13, f"t{event.transition} finishes without {pending.awaited() or pending.gone}"


def _released(
    before: FleetState,
    event: e.NodeQuarantined | e.NodeDrained | e.NodePooled | e.NodeRetired,
) -> Found:
    node = before.current(event.node, event.incarnation)
    kind = type(event).__name__
    if node is None:
        yield 16, f"{kind} of {event.node}.{event.incarnation}, which is no more"
        return
    if node.state is NodeState.ACTIVE or node.slot >= 0:
        yield 16, f"{kind} of {event.node}, which holds slot {node.slot}"
    if is_engaged(before.jobs.get(node.job), node):
        yield 16, f"{kind} of {event.node}, which takes part in a pending transition"
