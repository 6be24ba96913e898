"""Where the time of a job went: useful, repeated, waiting, transition, restart; they sum to wall.

What belongs here: reading, after the fact, like `incidents`, whose numbers it uses. `Ledger` hears
a log once; `told()` is total over any prefix.

Theory of operation. A job's wall time runs from its declaration to its last step, or to the end of
the log. Stretches of it are claimed, and where claims overlap the first of these counts:

- *restart*: from `JobRestarted` until the first step was committed again;
- *waiting*: a slot is vacant and nobody is there to take it (nothing is pending), before the
  launch too;
- *transition*: the launch, and the downtime of every loss, from the fault to the first step that
  was committed by all in the new epoch. Of a planned transition it is the pause beyond an ordinary
  step, taken off what is left.

What nobody claims is *useful*, without the *repeated*: steps begun and thrown away, or run again
after a restart, at the pace of the stretch before. Standbys cost nothing of a job's time: what they
idle is told apart, in node-seconds.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct, field

from statemachine import events as e
from statemachine.ids import JobId, TransitionId
from statemachine.incidents import Incident, Telling
from statemachine.state import FleetState, Job

CLAIMS: Final = ("restart", "waiting", "transition")
"""Kinds of claimed time; where two overlap the earlier in this order counts."""


class Account(Struct, frozen=True, kw_only=True):
    """Time in seconds; all but `idle_standby`, which is node-seconds, sum to `wall`."""

    wall: float = 0.0
    useful: float = 0.0
    repeated: float = 0.0
    waiting: float = 0.0
    transition: float = 0.0
    restart: float = 0.0
    idle_standby: float = 0.0

    @property
    def ettr(self) -> float | None:
        """Useful time over wall time; None of an empty log."""
        return self.useful / self.wall if self.wall > 0 else None


class Accounts(Struct, frozen=True, kw_only=True):
    """A log told: its incidents, and where the time went, of each job and of all together."""

    entries: int
    first_at_ms: int
    last_at_ms: int
    incidents: tuple[Incident, ...]
    jobs: dict[JobId, Account]
    idle_standby_s: float
    state: FleetState

    @property
    def total(self) -> Account:
        """The sum over all jobs, with what standbys idled beside any of them."""
        names = Account.__struct_fields__
        sums = {name: sum(getattr(job, name) for job in self.jobs.values()) for name in names}
        return Account(**(sums | {"idle_standby": self.idle_standby_s}))


def accounts(log: Iterable[e.Recorded]) -> Accounts:
    """Tell a log: its incidents and where the time went."""
    ledger = Ledger()
    for recorded in log:
        ledger.hear(recorded)
    return ledger.told()


# --- hearing the log --------------------------------------------------------------------------


class _Stretch(Struct, frozen=True):
    """A claim on a job's time, in Unix ms."""

    kind: str
    from_ms: float
    to_ms: float


class _Run(Struct, kw_only=True):
    """What was heard of one job."""

    declared_at_ms: int
    ended_at_ms: int | None = None
    last_step: int | None = None
    claims: list[_Stretch] = field(default_factory=list)
    open: dict[str, float] = field(default_factory=dict)
    launch: TransitionId = TransitionId(0)
    launched_at_ms: float | None = None
    """When that launch was finished; its first step comes a little later."""
    again: bool = False
    """Whether that launch follows a restart."""
    launches: list[tuple[int, float, int]] = field(default_factory=list)
    """Of each launch: first step committed, when, and how many steps were done before it."""
    done: int = 0
    """Steps that the log knows to be in somebody's weights."""

    def mark(self, kind: str, at_ms: float, *, claimed: bool) -> None:
        """Open or close a claim."""
        if claimed:
            self.open.setdefault(kind, at_ms)
        elif kind in self.open:
            self.claims.append(_Stretch(kind, self.open.pop(kind), at_ms))


_MOVES: Final = frozenset(
    {
        e.JobDeclared,
        e.JobFinished,
        e.JobRestarted,
        e.NodeLost,
        e.NodeLeft,
        e.TransitionPlanned,
        e.TransitionAborted,
        e.TransitionCommitted,
        e.TransitionFinished,
    }
)
"""Events after which a job may have come to stand still, or to run."""


class Ledger:
    """Hears a log once, in order; what it keeps grows with incidents, not with length."""

    def __init__(self) -> None:
        self.telling = Telling()
        self.entries = 0
        self._first_at_ms = 0
        self._runs: dict[JobId, _Run] = {}
        self._idle_ms = 0.0
        self._idlers = 0
        """Standbys that idle beside a run since the entry before; counted where it may change."""

    @property
    def state(self) -> FleetState:
        """The fold of what was heard."""
        return self.telling.state

    def hear(self, recorded: e.Recorded) -> None:
        """Take in the next entry."""
        telling = self.telling
        before = telling.state
        telling.hear(recorded)
        state = telling.state
        if not self.entries:
            self._first_at_ms = recorded.at_ms
        elif self._idlers:
            self._idle_ms += self._idlers * (state.at_ms - before.at_ms)
        self.entries += 1
        event: Any = recorded.event
        kind = type(event)
        if kind is e.StepResumed:
            self._resumed(recorded.at_ms, event)
        elif kind is e.TransitionPrepared:
            self._parked(event)
        elif kind in _MOVES:
            self._moved(state, recorded)
            self._idlers = _idlers(state)
        if state.pool is not before.pool:
            self._idlers = _idlers(state)

    def _moved(self, state: FleetState, recorded: e.Recorded) -> None:
        event = recorded.event
        concerned = getattr(event, "job", None)
        for name in (concerned,) if concerned else state.jobs:
            job = state.jobs.get(name)
            if job is None:
                continue
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = _Run(declared_at_ms=state.at_ms)
            if run.ended_at_ms is None:
                self._claim(run, job, recorded, state.at_ms)

    def _claim(self, run: _Run, job: Job, recorded: e.Recorded, at_ms: int) -> None:
        match recorded.event:
            case e.JobRestarted():
                run.again = True
                run.mark("restart", at_ms, claimed=True)
            case e.TransitionPlanned(motive=e.Motive.LAUNCH) as plan:
                run.launch, run.launched_at_ms = plan.transition, None
            case e.TransitionFinished() as done if done.transition == run.launch:
                run.launched_at_ms = at_ms
                run.mark("restart", at_ms, claimed=False)
            case e.JobFinished() as over:
                run.last_step = over.step
            case _:
                pass
        run.mark("waiting", at_ms, claimed=_waits(job))
        launching = bool(run.launch) and run.launched_at_ms is None
        run.mark("transition", at_ms, claimed=not job.finished and (launching or _stands(job)))
        if job.finished:
            run.ended_at_ms = at_ms
            for kind in list(run.open):
                run.mark(kind, at_ms, claimed=False)

    def _parked(self, event: e.TransitionPrepared) -> None:
        run, report = self._runs.get(event.job), event.report
        if run is None or run.ended_at_ms is not None or report is None or not report.has_state:
            return
        if report.applied >= run.done:
            run.done = report.applied + 1

    def _resumed(self, at_ms: int, event: e.StepResumed) -> None:
        run = self._runs.get(event.job)
        if run is None or run.ended_at_ms is not None:
            return
        if event.transition == run.launch:
            ended_ms = min(event.committed_at_ms or at_ms, at_ms)
            kind = "restart" if run.again else "transition"
            run.claims.append(_Stretch(kind, run.launched_at_ms or ended_ms, ended_ms))
            run.again = False
            run.launches.append((event.step, ended_ms, run.done))
            run.launch = TransitionId(0)
        if event.step >= run.done:
            run.done = event.step + 1

    # --- telling ------------------------------------------------------------------------------

    def told(self) -> Accounts:
        """What was heard so far."""
        state = self.telling.state
        found = self.telling.told()
        jobs = {
            name: _account(run, [each for each in found if each.job == name], state.at_ms)
            for name, run in self._runs.items()
        }
        return Accounts(
            entries=self.entries,
            first_at_ms=self._first_at_ms,
            last_at_ms=state.at_ms,
            incidents=found,
            jobs=jobs,
            idle_standby_s=self._idle_ms / 1000,
            state=state,
        )


def _idlers(state: FleetState) -> int:
    trains = any(state.jobs[name].launched for name in state.open_jobs)
    return len(state.pool) if trains else 0


def _waits(job: Job) -> bool:
    """Whether a job cannot go on, and nothing is under way about it."""
    if job.finished or job.pending is not None:
        return False
    return not job.launched or len(job.vacant) > 0 or bool(job.stalled)


def _stands(job: Job) -> bool:
    """Whether a launched job is parked: a slot is vacant, or a loss is being repaired."""
    if not job.launched:
        return False
    unplanned = job.pending is not None and job.pending.plan.motive is e.Motive.UNPLANNED
    return unplanned or len(job.vacant) > 0 or bool(job.stalled)


def _account(run: _Run, found: Sequence[Incident], log_end_ms: int) -> Account:
    end_ms = float(run.ended_at_ms if run.ended_at_ms is not None else log_end_ms)
    begin_ms = float(run.declared_at_ms)
    claims = [*run.claims, *(_Stretch(kind, at_ms, end_ms) for kind, at_ms in run.open.items())]
    claims += [
        _Stretch("transition", each.began_at_ms, each.ended_at_ms or _planned_ms(each))
        for each in found
        if each.motive is e.Motive.UNPLANNED
    ]
    spent = _claimed(claims, begin_ms, end_ms)
    wall_ms = end_ms - begin_ms
    rest_ms = max(0.0, wall_ms - sum(spent.values()))
    paused_ms = min(rest_ms, sum(_pauses_ms(found).values()))
    rest_ms -= paused_ms
    repeated_ms = min(rest_ms, _repeated_ms(run, found))
    # Useful is what the rest leaves, by subtraction of what is told: so the parts sum to wall.
    parts = {
        "repeated": repeated_ms / 1000,
        "waiting": spent["waiting"] / 1000,
        "transition": (spent["transition"] + paused_ms) / 1000,
        "restart": spent["restart"] / 1000,
    }
    wall_s = wall_ms / 1000
    return Account(wall=wall_s, useful=max(0.0, wall_s - sum(parts.values())), **parts)


def _planned_ms(each: Incident) -> float:
    """When an incident was planned; from there on the fold says whether the job stands."""
    return each.began_at_ms + each.phases_ms.get("detect", 0.0) + each.phases_ms.get("decide", 0.0)


def _claimed(claims: Iterable[_Stretch], begin_ms: float, end_ms: float) -> dict[str, float]:
    """How long each kind was claimed, each moment once, within a span."""
    edges: list[tuple[float, int, str]] = []
    for claim in claims:
        from_ms, to_ms = max(claim.from_ms, begin_ms), min(claim.to_ms, end_ms)
        if to_ms > from_ms:
            edges += [(from_ms, 1, claim.kind), (to_ms, -1, claim.kind)]
    spent = dict.fromkeys(CLAIMS, 0.0)
    depth = dict.fromkeys(CLAIMS, 0)
    last_ms = begin_ms
    for at_ms, change, kind in sorted(edges):
        owner = next((name for name in CLAIMS if depth[name]), None)
        if owner is not None:
            spent[owner] += at_ms - last_ms
        depth[kind] += change
        last_ms = at_ms
    return spent


def _pauses_ms(found: Iterable[Incident]) -> dict[TransitionId, float]:
    """The pause of every planned transition, once, however many slots it moved."""
    return {
        each.transition: each.downtime_ms or 0.0
        for each in found
        if each.motive is e.Motive.PLANNED
    }


def _repeated_ms(run: _Run, found: Iterable[Incident]) -> float:
    """Time of steps thrown away by losses, and of steps run again after restarts."""
    points = [(step, at_ms, max(0, done - step)) for step, at_ms, done in run.launches]
    seen: set[TransitionId] = set()
    for each in found:
        if each.ended_at_ms is not None and each.transition not in seen and each.resume_step >= 0:
            seen.add(each.transition)
            points.append((each.resume_step, each.ended_at_ms, each.steps_lost or 0))
    repeated_ms, pace_ms = 0.0, 0.0
    before: tuple[int, float] | None = None
    for step, at_ms, again in sorted(points, key=lambda point: point[1]):
        if before is not None and step > before[0]:
            pace_ms = max(0.0, at_ms - before[1]) / (step - before[0])
        repeated_ms += again * pace_ms
        before = (step, at_ms)
    return repeated_ms
