"""What a log tells of each incident: who left, who came, and where the time went.

What belongs here: reading, after the fact. `incidents(log)` is pure and total over any prefix of a
log; an incident that is not over yet has the phases that are known and no downtime.

Theory of operation. A slot that changed hands is an incident: its first cause is a fault that
somebody says they injected, else the first evidence in the log. A transition that replaces another
continues the same incident. Times are of three clocks: the sequencer's (`Recorded.at_ms`), the
injector's (`FaultInjected.injected_at_ms`) and the workers' (`StepResumed.committed_at_ms`);
`detect` and `downtime_ms` compare them, so they are exact only where all are on one machine. The
phases that a worker measures (`quiesce`, `transfer`, `switch`, `first_step`) are durations of its
own and always exact; of several workers the slowest counts (of `first_step`, which all end
together, the one that began last).
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from statemachine import events as e
from statemachine.evolve import evolve
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Position, Slot, TransitionId
from statemachine.state import FleetState

PHASES: Final = (
    "detect",
    "decide",
    "prepare",
    "quiesce",
    "commit",
    "transfer",
    "switch",
    "first_step",
)
"""Phases in the order of time. `quiesce` is a part of `prepare`, and the pause of an unplanned
transition only; the others follow each other."""


class Incident(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One slot changed hands because something was wrong, or somebody wanted it.

    `began_at_ms` is Unix time of the injection where the log knows it (`fault` names its kind),
    else of the first evidence. `downtime_ms` is, after a loss, the time until the first step was
    committed by all in the new epoch; in a planned transition the pause beyond an ordinary step.
    `steps_lost` counts steps whose work was thrown away; None while that is not known.
    """

    job: JobId
    motive: e.Motive
    kind: str
    node: NodeId
    slot: Slot
    replacement: NodeId
    transition: TransitionId
    began_at_ms: float
    reason: str
    epoch: Epoch = Epoch(0)
    fault: str = ""
    phases_ms: dict[str, float] = field(default_factory=dict)
    steps_lost: int | None = None
    resume_step: int = -1
    bytes_received: int = 0
    downtime_ms: float | None = None
    ended_at_ms: float | None = None
    evidence: Position = Position(0)
    planned: Position = Position(0)
    survivors: tuple[NodeId, ...] = ()


def incidents(log: Iterable[e.Recorded]) -> tuple[Incident, ...]:
    """Tell every incident of a log, in the order in which their slots were planned anew."""
    story = _Story()
    for recorded in log:
        story.hear(recorded)
    return tuple(
        _incident(account, change, story)
        for account in story.accounts.values()
        if not account.replaced and not account.aborted
        for change in account.changes
    )


# --- hearing the log --------------------------------------------------------------------------


class _Change(Struct, frozen=True, kw_only=True):
    """A slot that changes hands, with who held it before."""

    slot: Slot
    joiner: NodeId
    left: NodeId
    left_incarnation: Incarnation


class _Account(Struct, kw_only=True):
    """What was said about one transition."""

    plan: e.TransitionPlanned
    position: Position
    planned_at_ms: int
    changes: tuple[_Change, ...]
    members: tuple[NodeId, ...] = ()
    prepared: list[tuple[int, e.TransitionPrepared]] = field(default_factory=list)
    committed: tuple[int, e.TransitionCommitted] | None = None
    applied: list[e.TransitionApplied] = field(default_factory=list)
    resumed: list[e.StepResumed] = field(default_factory=list)
    finished: bool = False
    replaced: bool = False
    aborted: bool = False


_Key = tuple[JobId, TransitionId]


class _Story(Struct, kw_only=True):
    """Everything that incidents are told from, gathered in one pass."""

    state: FleetState = field(default_factory=FleetState)
    accounts: dict[_Key, _Account] = field(default_factory=dict)
    evidence: dict[tuple[NodeId, Incarnation], e.Recorded] = field(default_factory=dict)
    wishes: dict[NodeId, e.Recorded] = field(default_factory=dict)
    faults: list[e.FaultInjected] = field(default_factory=list)

    def hear(self, recorded: e.Recorded) -> None:
        """Take in one entry, with the state before it still at hand."""
        event = recorded.event
        match event:
            case e.PeerReset():
                self.evidence.setdefault((event.peer, event.peer_incarnation), recorded)
            case e.PeerWaited() if event.silent_ms:
                self.evidence.setdefault((event.peer, event.peer_incarnation), recorded)
            case e.PeerWaited():
                self.evidence.pop((event.peer, event.peer_incarnation), None)
            case e.WorkerExited() | e.LeaseExpired() | e.NodeLost() | e.NodeLeft():
                self.evidence.setdefault((event.node, event.incarnation), recorded)
            case e.DrainRequested() | e.SwitchoverRequested() | e.QuarantineRequested():
                self.wishes[event.node] = recorded
            case e.VerdictIssued() if event.verdict in (e.Verdict.DEGRADED, e.Verdict.FAULTY):
                self.evidence.setdefault((event.node, event.incarnation), recorded)
            case e.VerdictWithdrawn():
                self.evidence.pop((event.node, event.incarnation), None)
            case e.FaultInjected():
                self.faults.append(event)
            case e.TransitionPlanned() if event.motive is not e.Motive.LAUNCH:
                self._planned(recorded, event)
            case _:
                self._progress(recorded)
        self.state = evolve(self.state, recorded)

    def _planned(self, recorded: e.Recorded, plan: e.TransitionPlanned) -> None:
        job = self.state.jobs.get(plan.job)
        held = job.holders if job is not None else {}
        before = self.accounts.get((plan.job, plan.replaces))
        changes = []
        for change in plan.changes:
            left = change.leaver or held.get(change.slot, NodeId(""))
            node = self.state.nodes.get(left)
            known = node.incarnation if node is not None else Incarnation(0)
            changes.append(
                _Change(
                    slot=change.slot,
                    joiner=change.joiner,
                    left=left,
                    left_incarnation=change.leaver_incarnation or known,
                )
            )
        if before is not None:
            before.replaced = True
            earlier = {change.slot: change for change in before.changes}
            changes = [_continued(change, earlier.get(change.slot)) for change in changes]
        members = tuple(sorted({held[slot] for slot in held}))
        account = _Account(
            plan=plan,
            position=recorded.position,
            planned_at_ms=recorded.at_ms,
            changes=tuple(changes),
            members=members,
        )
        self.accounts[(plan.job, plan.transition)] = account

    def _progress(self, recorded: e.Recorded) -> None:
        event = recorded.event
        key = (getattr(event, "job", JobId("")), getattr(event, "transition", TransitionId(0)))
        account = self.accounts.get(key)
        if account is None:
            return
        match event:
            case e.TransitionPrepared():
                account.prepared.append((recorded.at_ms, event))
            case e.TransitionCommitted():
                account.committed = (recorded.at_ms, event)
            case e.TransitionApplied():
                account.applied.append(event)
            case e.StepResumed():
                account.resumed.append(event)
            case e.TransitionFinished():
                account.finished = True
            case e.TransitionAborted():
                account.aborted = True
            case _:
                pass


def _continued(change: _Change, before: _Change | None) -> _Change:
    """The same slot in a plan that replaces another: whoever left first is who the story is of."""
    if before is None or before.joiner == change.left:
        return change
    return _Change(
        slot=change.slot,
        joiner=change.joiner,
        left=before.left,
        left_incarnation=before.left_incarnation,
    )


# --- telling ----------------------------------------------------------------------------------


def _incident(account: _Account, change: _Change, story: _Story) -> Incident:
    plan = account.plan
    evidence = story.evidence.get((change.left, change.left_incarnation))
    if plan.motive is e.Motive.PLANNED:
        wish = story.wishes.get(change.left)
        evidence = evidence or wish
    seen_at_ms = float(evidence.at_ms if evidence is not None else account.planned_at_ms)
    fault = _fault_of(change.left, story.faults, min(seen_at_ms, account.planned_at_ms))
    began_at_ms = fault.injected_at_ms if fault is not None else seen_at_ms
    left = {each.left for each in account.changes}
    return Incident(
        job=plan.job,
        motive=plan.motive,
        kind=_kind(plan.motive, evidence),
        node=change.left,
        slot=change.slot,
        replacement=change.joiner,
        transition=plan.transition,
        epoch=account.committed[1].epoch if account.committed is not None else Epoch(0),
        began_at_ms=began_at_ms,
        reason=plan.reason,
        fault=fault.kind if fault is not None else "",
        phases_ms=_phases(account, fault, seen_at_ms),
        steps_lost=_steps_lost(account),
        resume_step=_resume_step(account),
        bytes_received=sum(applied.bytes_received for applied in account.applied),
        downtime_ms=_downtime_ms(account, began_at_ms),
        ended_at_ms=_ended_at_ms(account),
        evidence=evidence.position if evidence is not None else Position(0),
        planned=account.position,
        survivors=tuple(node for node in account.members if node not in left),
    )


def _kind(motive: e.Motive, evidence: e.Recorded | None) -> str:
    if motive is e.Motive.UNPLANNED:
        return "loss"
    match evidence.event if evidence is not None else None:
        case e.DrainRequested():
            return "drain"
        case e.SwitchoverRequested():
            return "switchover"
        case e.QuarantineRequested():
            return "quarantine"
        case _:
            return "grey"


def _fault_of(
    node: NodeId, faults: list[e.FaultInjected], before_ms: float
) -> e.FaultInjected | None:
    """The last fault that hurt a node before it was noticed; its own position may be later."""
    found = [f for f in faults if f.node == node and 0 < f.injected_at_ms <= before_ms + 1]
    return max(found, key=lambda fault: fault.injected_at_ms, default=None)


def _phases(
    account: _Account, fault: e.FaultInjected | None, seen_at_ms: float
) -> dict[str, float]:
    phases: dict[str, float] = {}
    if fault is not None:
        phases["detect"] = max(0.0, seen_at_ms - fault.injected_at_ms)
    phases["decide"] = max(0.0, account.planned_at_ms - seen_at_ms)
    if account.prepared and account.committed is not None:
        last_ms = max(at_ms for at_ms, _ in account.prepared)
        phases["prepare"] = float(last_ms - account.planned_at_ms)
        quiesce_ms = max(prepared.quiesce_ms for _, prepared in account.prepared)
        phases["quiesce"] = quiesce_ms
        phases["commit"] = float(account.committed[0] - last_ms)
    phases |= _measured(account)
    if account.resumed:  # all commit it together: the last to begin it did not wait in it
        phases["first_step"] = min(resumed.step_ms for resumed in account.resumed)
    order = {name: place for place, name in enumerate(PHASES)}
    return dict(sorted(phases.items(), key=lambda item: order.get(item[0], len(PHASES))))


def _measured(account: _Account) -> dict[str, float]:
    """What members measured themselves, of each phase the slowest.

    In a planned transition the joiner is told to fetch while the others still train up to the
    boundary: only the leaver, which gives the state from the boundary on, knows how long it took.
    """
    leavers = {change.left for change in account.changes}
    given = [applied for applied in account.applied if applied.node in leavers]
    phases: dict[str, float] = {}
    for applied in account.applied:
        for name, ms in applied.phases_ms.items():
            heard = given if name == "transfer" and given else [applied]
            if applied in heard:
                phases[name] = max(ms, phases.get(name, 0.0))
    return phases


def _resume_step(account: _Account) -> int:
    steps = [resumed.step for resumed in account.resumed]
    if steps:
        return min(steps)
    return account.committed[1].resume_step if account.committed is not None else -1


def _steps_lost(account: _Account) -> int | None:
    """Steps begun and thrown away: none in a planned transition, else those from the resume step
    up to the last one that a survivor was in.
    """
    if account.committed is None:
        return None
    if account.plan.motive is e.Motive.PLANNED:
        return 0
    begun = [
        max(prepared.report.applied + 1, prepared.report.pending)
        for _, prepared in account.prepared
        if prepared.report is not None and prepared.report.has_state
    ]
    return max(0, max(begun, default=-1) + 1 - account.committed[1].resume_step)


def _ended_at_ms(account: _Account) -> float | None:
    if not account.finished or not account.resumed:
        return None
    return max(resumed.committed_at_ms for resumed in account.resumed)


def _downtime_ms(account: _Account, began_at_ms: float) -> float | None:
    ended_at_ms = _ended_at_ms(account)
    if ended_at_ms is None:
        return None
    if account.plan.motive is e.Motive.UNPLANNED:
        return max(0.0, ended_at_ms - began_at_ms)
    gaps_ms = [r.committed_at_ms - r.previous_at_ms for r in account.resumed if r.previous_at_ms]
    ordinary_ms = min(resumed.step_ms for resumed in account.resumed)
    return max(0.0, max(gaps_ms, default=ordinary_ms) - ordinary_ms)
