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
from typing import Any, Final

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
    `steps_lost` counts steps that a survivor had begun and did again; a step that all of them kept
    and finished in the new epoch is none of these. None while that is not known.
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
    telling = Telling()
    for recorded in log:
        telling.hear(recorded)
    return telling.told()


# --- hearing the log --------------------------------------------------------------------------


class _Change(Struct, frozen=True, kw_only=True):
    """A slot that changes hands, with who held it before."""

    slot: Slot
    joiner: NodeId
    left: NodeId
    left_incarnation: Incarnation


class _Resumed(Struct, kw_only=True):
    """The first step of an epoch, of all who committed it: the last to commit it, the last to
    begin it (all end it together), the longest time since a step before.
    """

    step: int
    step_ms: float
    committed_at_ms: float
    gap_ms: float


class _Account(Struct, kw_only=True):
    """What was said about one transition."""

    plan: e.TransitionPlanned
    position: Position
    planned_at_ms: int
    changes: tuple[_Change, ...]
    members: tuple[NodeId, ...] = ()
    leavers: frozenset[NodeId] = frozenset()
    joiners: frozenset[NodeId] = frozenset()
    prepared_at_ms: int | None = None
    quiesce_ms: float = 0.0
    begun: dict[NodeId, int] = field(default_factory=dict)
    """The last step that each member was in when it was parked, without who kept that step."""
    begun_last: int = -1
    """The last of these, once nobody is awaited any more."""
    committed: tuple[int, e.TransitionCommitted] | None = None
    measured_ms: dict[str, float] = field(default_factory=dict)
    given_ms: float | None = None
    """How long a leaver took to hand its state over."""
    bytes_received: int = 0
    resumed: _Resumed | None = None
    last: e.Recorded | None = None
    """Who answered last in the present phase."""
    finished: bool = False
    replaced: bool = False
    aborted: bool = False

    def prepare(self, at_ms: int, event: e.TransitionPrepared) -> None:
        """Take in one acknowledgement of phase one."""
        if self.prepared_at_ms is None or at_ms > self.prepared_at_ms:
            self.prepared_at_ms = at_ms
        if event.quiesce_ms > self.quiesce_ms:  # noqa: PLR1730  (see _PROGRESS)
            self.quiesce_ms = event.quiesce_ms
        report = event.report
        if report is not None and report.has_state:
            self.begun[event.node] = max(report.applied + 1, report.pending)

    def apply(self, event: e.TransitionApplied) -> None:
        """Take in what a member measured itself, of each phase the slowest."""
        self.bytes_received += event.bytes_received
        if event.keeps_step:
            self.begun.pop(event.node, None)
        measured = self.measured_ms
        for name, ms in event.phases_ms.items():
            if ms >= measured.get(name, 0.0):
                measured[name] = ms
            if name == "transfer" and event.node in self.leavers:
                self.given_ms = max(ms, self.given_ms or 0.0)

    def close(self) -> None:
        """Nobody answers any more: keep of who was in which step what is told of it."""
        self.begun_last = self.last_begun()
        self.begun = {}

    def last_begun(self) -> int:
        """The last step that was begun and not kept; -1 if there is none."""
        return max(self.begun.values(), default=self.begun_last)

    def resume(self, event: e.StepResumed) -> None:
        """Take in a member's first step of the new epoch."""
        stayed = event.node not in self.joiners
        gap_ms = 0.0  # a joiner's step before may be of a time when it was a member already
        if event.previous_at_ms and stayed:
            gap_ms = event.committed_at_ms - event.previous_at_ms
        so_far = self.resumed
        if so_far is None:
            self.resumed = _Resumed(
                step=event.step,
                step_ms=event.step_ms,
                committed_at_ms=event.committed_at_ms,
                gap_ms=gap_ms,
            )
            return
        if event.step < so_far.step:  # noqa: PLR1730  (see _PROGRESS)
            so_far.step = event.step
        if event.step_ms < so_far.step_ms:  # noqa: PLR1730  (see _PROGRESS)
            so_far.step_ms = event.step_ms
        if event.committed_at_ms > so_far.committed_at_ms:  # noqa: PLR1730  (see _PROGRESS)
            so_far.committed_at_ms = event.committed_at_ms
        if gap_ms > so_far.gap_ms:  # noqa: PLR1730  (see _PROGRESS)
            so_far.gap_ms = gap_ms


_Key = tuple[JobId, TransitionId]


_PROGRESS: Final = frozenset(
    {
        e.TransitionPrepared,
        e.TransitionCommitted,
        e.TransitionApplied,
        e.StepResumed,
        e.TransitionFinished,
        e.TransitionAborted,
    }
)
"""What is told of a transition after its plan: most of a log, hence no calls of `max` for it."""

_SAID: Final = frozenset(
    {
        e.PeerReset,
        e.PeerWaited,
        e.WorkerExited,
        e.LeaseExpired,
        e.NodeLost,
        e.NodeLeft,
        e.DrainRequested,
        e.SwitchoverRequested,
        e.QuarantineRequested,
        e.VerdictIssued,
        e.VerdictWithdrawn,
        e.FaultInjected,
        e.TransitionPlanned,
    }
)
"""What may be evidence, a wish, a fault or a plan; looked up before it is looked at."""


class Telling(Struct, kw_only=True):
    """Everything that incidents are told from, gathered in one pass.

    Of acknowledgements only what is told of them is kept: its size grows with the incidents of a
    log, not with its length.
    """

    state: FleetState = field(default_factory=FleetState)
    accounts: dict[_Key, _Account] = field(default_factory=dict)
    evidence: dict[tuple[NodeId, Incarnation], e.Recorded] = field(default_factory=dict)
    lost_with: dict[tuple[JobId, Slot], tuple[NodeId, Incarnation]] = field(default_factory=dict)
    """Whose life ended in a slot last: its node may have joined anew before the slot is planned."""
    wishes: dict[NodeId, e.Recorded] = field(default_factory=dict)
    faults: list[e.FaultInjected] = field(default_factory=list)

    def told(self) -> tuple[Incident, ...]:
        """Every incident heard so far, in the order in which their slots were planned anew."""
        return tuple(
            _incident(account, change, self)
            for account in self.accounts.values()
            if not account.replaced and not account.aborted
            for change in account.changes
        )

    def hear(self, recorded: e.Recorded) -> None:
        """Take in one entry, with the state before it still at hand."""
        event: Any = recorded.event
        kind = type(event)
        if kind in _PROGRESS:
            self._progress(kind, recorded, event)
        elif kind in _SAID:
            self._heard(recorded)
        self.state = evolve(self.state, recorded)

    def _heard(self, recorded: e.Recorded) -> None:
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
                self._ended(event.node, event.incarnation)
            case e.DrainRequested() | e.SwitchoverRequested() | e.QuarantineRequested():
                self.wishes[event.node] = recorded
            case e.VerdictIssued() if event.verdict in (e.Verdict.DEGRADED, e.Verdict.FAULTY):
                self.evidence.setdefault((event.node, event.incarnation), recorded)
            case e.VerdictWithdrawn():
                self.evidence.pop((event.node, event.incarnation), None)
            case e.FaultInjected():
                self.faults.append(event)
            case e.TransitionPlanned() if event.motive is not e.Motive.LAUNCH:
                self._planned(recorded, evolve(self.state, recorded).whole(event))
            case _:
                pass

    def _ended(self, name: NodeId, incarnation: Incarnation) -> None:
        node = self.state.current(name, incarnation)
        job = self.state.jobs.get(node.job) if node is not None else None
        if node is not None and job is not None and job.holders.get(node.slot) == name:
            self.lost_with[(job.job, node.slot)] = (name, incarnation)

    def _planned(self, recorded: e.Recorded, plan: e.TransitionPlanned) -> None:
        job = self.state.jobs.get(plan.job)
        held = job.holders if job is not None else {}
        before = self.accounts.get((plan.job, plan.replaces))
        changes = []
        for change in plan.changes:
            left = change.leaver or held.get(change.slot, NodeId(""))
            known = self._incarnation_in(plan.job, change.slot, left)
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
            before.close()
            earlier = {change.slot: change for change in before.changes}
            changes = [_continued(change, earlier.get(change.slot)) for change in changes]
        members = tuple(sorted({held[slot] for slot in held}))
        account = _Account(
            plan=plan,
            position=recorded.position,
            planned_at_ms=recorded.at_ms,
            changes=tuple(changes),
            members=members,
            leavers=frozenset(change.left for change in changes),
            joiners=frozenset(change.joiner for change in changes),
        )
        self.accounts[(plan.job, plan.transition)] = account

    def _incarnation_in(self, job: JobId, slot: Slot, name: NodeId) -> Incarnation:
        lost, incarnation = self.lost_with.get((job, slot), (NodeId(""), Incarnation(0)))
        node = self.state.nodes.get(name)
        if lost == name or node is None:
            return incarnation
        return node.incarnation

    def last_answer(
        self, job: JobId, transition: TransitionId, *, take: bool = False
    ) -> e.Recorded | None:
        """Who answered last in the present phase of a transition; with `take` it counts no more."""
        account = self.accounts.get((job, transition))
        if account is None:
            return None
        last = account.last
        if take:
            account.last = None
        return last

    def _progress(self, kind: type, recorded: e.Recorded, event: Any) -> None:
        account = self.accounts.get((event.job, event.transition))
        if account is None:
            return
        # `match` asks case by case, and a log has a thousand answers for one plan
        if kind is e.TransitionPrepared:
            account.last = recorded
            account.prepare(recorded.at_ms, event)
        elif kind is e.StepResumed:
            account.last = recorded
            account.resume(event)
        elif kind is e.TransitionApplied:
            account.last = recorded
            account.apply(event)
        elif kind is e.TransitionCommitted:
            account.committed = (recorded.at_ms, event)
        elif kind is e.TransitionFinished:
            account.finished = True
            account.close()
        else:
            account.aborted = True
            account.close()


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


def _incident(account: _Account, change: _Change, story: Telling) -> Incident:
    plan = account.plan
    evidence = story.evidence.get((change.left, change.left_incarnation))
    if plan.motive is e.Motive.PLANNED:
        evidence = _cause(account, change, story, evidence)
    seen_at_ms = float(evidence.at_ms if evidence is not None else account.planned_at_ms)
    fault = _fault_of(change.left, story.faults, min(seen_at_ms, account.planned_at_ms))
    began_at_ms = fault.injected_at_ms if fault is not None else seen_at_ms
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
        bytes_received=account.bytes_received,
        downtime_ms=_downtime_ms(account, began_at_ms),
        ended_at_ms=_ended_at_ms(account),
        evidence=evidence.position if evidence is not None else Position(0),
        planned=account.position,
        survivors=tuple(node for node in account.members if node not in account.leavers),
    )


def _cause(
    account: _Account, change: _Change, story: Telling, evidence: e.Recorded | None
) -> e.Recorded | None:
    """Why a node that lived was taken out: the act that the plan names, else what was said before
    it. What came later, such as that the node left once it was drained, is no cause.
    """
    wish = story.wishes.get(change.left)
    if wish is not None and wish.position in account.plan.evidence:
        return wish
    known = (said for said in (evidence, wish) if said is not None)
    return next((said for said in known if said.position < account.position), None)


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
    if account.prepared_at_ms is not None and account.committed is not None:
        phases["prepare"] = float(account.prepared_at_ms - account.planned_at_ms)
        phases["quiesce"] = account.quiesce_ms
        phases["commit"] = float(account.committed[0] - account.prepared_at_ms)
    phases |= account.measured_ms
    if account.given_ms is not None:
        # The joiner of a planned transition is told to fetch while the others still train: only
        # the leaver, which gives from the boundary on, knows how long that took.
        phases["transfer"] = account.given_ms
    if account.resumed is not None:
        phases["first_step"] = account.resumed.step_ms
    order = {name: place for place, name in enumerate(PHASES)}
    return dict(sorted(phases.items(), key=lambda item: order.get(item[0], len(PHASES))))


def _resume_step(account: _Account) -> int:
    if account.resumed is not None:
        return account.resumed.step
    return account.committed[1].resume_step if account.committed is not None else -1


def _steps_lost(account: _Account) -> int | None:
    """Steps begun and done again: none in a planned transition, else those from the resume step up
    to the last one that a survivor was in, unless all who were in it went on in it.
    """
    if account.committed is None:
        return None
    if account.plan.motive is e.Motive.PLANNED:
        return 0
    return max(0, account.last_begun() + 1 - account.committed[1].resume_step)


def _ended_at_ms(account: _Account) -> float | None:
    if not account.finished or account.resumed is None:
        return None
    return account.resumed.committed_at_ms


def _downtime_ms(account: _Account, began_at_ms: float) -> float | None:
    ended_at_ms = _ended_at_ms(account)
    if ended_at_ms is None:
        return None
    if account.plan.motive is e.Motive.UNPLANNED:
        return max(0.0, ended_at_ms - began_at_ms)
    assert account.resumed is not None
    ordinary_ms = account.resumed.step_ms
    return max(0.0, (account.resumed.gap_ms or ordinary_ms) - ordinary_ms)
