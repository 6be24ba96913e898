"""Windows of vitals in, verdicts out: a grey node is told from its peers, nobody else.

What belongs here: which windows are compared with which, and what is remembered between rounds.
How one round is compared: `comparison`; what evidence amounts to: `judgement`; the knobs:
`detector_policy`. Sans I/O: the caller brings vitals, time and policy, and appends what comes back.

Theory of operation.
1. *Cohort*: the nodes in the same role of the same job. A *round* of a cohort takes one window of
   each; it closes when all that were in the last round have reported, when one reports twice, or
   when a window begins at a later step than any of the round ended at. So windows of the same
   steps are compared as they arrive, whatever the nodes' clocks say.
2. *Evidence*: a round says of each node, in each aspect, by which ratio it is worse than its
   peers, and whether the indicators agree. A window that cannot be read is no evidence, for or
   against.
3. *Sustained*: a verdict needs windows in a row that accuse (one in four may be silent), or many
   windows of which a good part does; their ratio reaches its tier and stands out of the noise.
4. *Hysteresis*: a verdict falls only when more windows than that are near the peers again, or when
   it expires without confirmation. A worse verdict replaces a milder one, never the reverse.
5. A slowdown of all shows as no ratio at all: it is noted, and flags nobody.
"""

from __future__ import annotations  # rpds maps take no subscript at run time

from collections.abc import Iterable, Mapping
from functools import partial
from math import sqrt
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace
from rpds import HashTrieMap, HashTrieSet

from statemachine.columns import spread
from statemachine.comparison import Aspect, Comparison, compare
from statemachine.detector_policy import DetectorPolicy
from statemachine.events import VerdictIssued
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role
from statemachine.judgement import VERSION, Case, Judgement, Trace, expired, horizons, judge
from statemachine.pairs import carried
from statemachine.vitals import Vitals, median

__all__ = ["VERSION", "DetectorPolicy", "DetectorState", "Judgement", "Observation"]
__all__ += ["forgotten", "observe", "restored"]


Traces = Mapping[Aspect, Trace]
"""What is remembered of one node, by aspect."""


class Record(Struct, frozen=True, kw_only=True):
    """What is remembered of one node: its place, its last window, what its windows said.

    `fresh` counts its windows since it joined or the epoch changed; `rates` is what its last window
    said of the connections that reach it.
    """

    incarnation: Incarnation
    job: JobId
    role: Role
    epoch: Epoch
    window: int
    fresh: int = 1
    traces: Traces = MappingProxyType({})
    rates: Mapping[NodeId, float] = MappingProxyType({})


class Cohort(Struct, frozen=True, kw_only=True):
    """Nodes in one role of one job: the round being gathered, noise and pace of earlier ones.

    `noise` is that of single windows, `apart` how far means of several were apart, each by round.
    `last_step` is the last step of any window gathered; -1 while there is none.
    """

    epoch: Epoch
    last_step: int = -1
    gathered: HashTrieMap[NodeId, Vitals] = HashTrieMap()
    awaited: HashTrieSet[NodeId] = HashTrieSet()
    noise: Mapping[Aspect, tuple[float, ...]] = MappingProxyType({})
    apart: Mapping[tuple[Aspect, int], tuple[float, ...]] = MappingProxyType({})
    pace_ms: tuple[float, ...] = ()


_NOBODY: HashTrieMap[NodeId, Vitals] = HashTrieMap()
_NOONE: HashTrieSet[NodeId] = HashTrieSet()


class DetectorState(Struct, frozen=True, kw_only=True):
    """Everything the detector remembers; structure-shared, so keeping an old one costs nothing."""

    records: HashTrieMap[NodeId, Record] = HashTrieMap()
    cohorts: HashTrieMap[tuple[JobId, Role], Cohort] = HashTrieMap()
    standing: HashTrieMap[NodeId, VerdictIssued] = HashTrieMap()


class Observation(Struct, frozen=True, kw_only=True):
    """What came of a batch: the next state, events to append, and notes that change nothing.

    Notes repeat in each round while they hold, so log them when they change.
    """

    state: DetectorState
    judgements: tuple[Judgement, ...] = ()
    notes: tuple[str, ...] = ()


def restored(verdicts: Iterable[VerdictIssued]) -> DetectorState:
    """Return the state of a detector that takes over: verdicts stand, evidence begins anew.

    Verdicts that no detector issued are an operator's affair and left alone.
    """
    return DetectorState(standing=HashTrieMap({v.node: v for v in verdicts if v.detector}))


def forgotten(state: DetectorState, node: NodeId) -> DetectorState:
    """The detector without a node that is gone: no round waits for it, nothing it did counts."""
    cohorts = state.cohorts
    for key, cohort in state.cohorts.items():
        if node in cohort.gathered or node in cohort.awaited:
            gathered, awaited = cohort.gathered.discard(node), cohort.awaited.discard(node)
            cohorts = cohorts.insert(key, replace(cohort, gathered=gathered, awaited=awaited))
    return replace(
        state,
        records=state.records.discard(node),
        standing=state.standing.discard(node),
        cohorts=cohorts,
    )


def observe(
    state: DetectorState, batch: Iterable[Vitals], now_ms: int, policy: DetectorPolicy
) -> Observation:
    """Take in windows in the order of their arrival; an empty batch lets verdicts expire.

    `now_ms` is the caller's clock; windows seen before, and those of ghosts, are ignored.
    """
    judgements: list[Judgement] = []
    notes: list[str] = []
    for vitals in batch:
        if _stale(state, vitals):
            continue
        key = (vitals.job, vitals.role)
        rounds = _Rounds(key, now_ms, policy, judgements, notes)
        state = _with_cohort(state, vitals)
        if _is_over(state.cohorts[key], vitals):
            state = rounds.close(state)
        awaited_before = state.cohorts[key].awaited
        state = _gather(state, vitals, policy)
        if vitals.node in awaited_before and not state.cohorts[key].awaited:
            state = rounds.close(state)
    state = _expire(state, now_ms, judgements)
    return Observation(state=state, judgements=tuple(judgements), notes=tuple(notes))


def _stale(state: DetectorState, vitals: Vitals) -> bool:
    """Tell whether a window comes from a ghost, is of an earlier epoch, or was seen before."""
    record = state.records.get(vitals.node)
    if record is not None:
        seen = (record.incarnation, record.window)
        if (vitals.incarnation, vitals.window) <= seen:
            return True
    cohort = state.cohorts.get((vitals.job, vitals.role))
    return cohort is not None and vitals.epoch < cohort.epoch


def _is_over(cohort: Cohort, vitals: Vitals) -> bool:
    """Tell whether a window shows that a round is as full as it gets."""
    if vitals.node in cohort.gathered:
        return True
    return bool(cohort.gathered) and vitals.last_step - vitals.steps >= cohort.last_step


def _with_cohort(state: DetectorState, vitals: Vitals) -> DetectorState:
    """See to it that the cohort of a window exists; a new epoch begins its rounds anew."""
    key = (vitals.job, vitals.role)
    cohort = state.cohorts.get(key)
    if cohort is None:
        cohort = Cohort(epoch=vitals.epoch)
    elif vitals.epoch > cohort.epoch:
        cohort = replace(cohort, epoch=vitals.epoch, last_step=-1, gathered=_NOBODY, awaited=_NOONE)
    return replace(state, cohorts=state.cohorts.insert(key, cohort))


def _gather(state: DetectorState, vitals: Vitals, policy: DetectorPolicy) -> DetectorState:
    """Add a window to the round of its cohort and to the record of its node."""
    key = (vitals.job, vitals.role)
    cohort = state.cohorts[key]
    cohort = replace(
        cohort,
        gathered=cohort.gathered.insert(vitals.node, vitals),
        awaited=cohort.awaited.discard(vitals.node),
        last_step=max(cohort.last_step, vitals.last_step),
    )
    record = _recorded(state.records.get(vitals.node), vitals, policy)
    return replace(
        state,
        records=state.records.insert(vitals.node, record),
        cohorts=state.cohorts.insert(key, cohort),
    )


def _recorded(before: Record | None, vitals: Vitals, policy: DetectorPolicy) -> Record:
    """Return a node's record after a window: evidence survives an epoch, not a change of place."""
    record = Record(
        incarnation=vitals.incarnation,
        job=vitals.job,
        role=vitals.role,
        epoch=vitals.epoch,
        window=vitals.window,
        rates=carried(vitals),
    )
    if before is None or (before.incarnation, before.job, before.role) != (
        record.incarnation,
        record.job,
        record.role,
    ):
        return record
    missing = vitals.window - before.window - 1
    return replace(
        record,
        fresh=before.fresh + 1 if before.epoch == record.epoch else 1,
        traces=before.traces if missing <= policy.gap_windows_max else {},
    )


def _others(
    state: DetectorState, windows: Mapping[NodeId, Vitals]
) -> dict[NodeId, Mapping[NodeId, float]]:
    """What those at the other ends of these nodes' connections measured, if they are not of them:
    a pipeline's neighbours have other roles, and are witnesses all the same.
    """
    found: dict[NodeId, Mapping[NodeId, float]] = {}
    for node, vitals in windows.items():
        for peer in state.records[node].rates:
            record = state.records.get(peer) if peer not in windows else None
            if record is not None and (record.job, record.epoch) == (vitals.job, vitals.epoch):
                found[peer] = record.rates
    return found


_NO_TRACE = Trace()


def _apart(traces: Mapping[NodeId, Traces], aspect: Aspect, windows: int) -> float:
    """How far the mean log ratios of so many windows are apart now; 0 with too few to tell."""
    means = [
        kept.mean(windows)
        for node in traces
        if (kept := traces[node].get(aspect)) is not None and len(kept.logs) >= windows
    ]
    if len(means) < _APART_NODES_MIN:
        return 0.0
    middle = median(means)
    return spread([mean - middle for mean in means])


_APART_NODES_MIN = 4
_APART_ROUNDS_MIN = 4
"""Rounds that must say how far means are apart; before, a mean counts as noisy as one window."""


class _Rounds:
    """Closes rounds of one cohort, collecting what comes of it."""

    def __init__(
        self,
        key: tuple[JobId, Role],
        now_ms: int,
        policy: DetectorPolicy,
        judgements: list[Judgement],
        notes: list[str],
    ) -> None:
        self.key = key
        self.now_ms = now_ms
        self.policy = policy
        self.judgements = judgements
        self.notes = notes

    def close(self, state: DetectorState) -> DetectorState:
        """Compare the windows of a round, judge every node in it, and begin the next round."""
        cohort = state.cohorts[self.key]
        grace = self.policy.grace_windows
        fresh = sorted(n for n in cohort.gathered if state.records[n].fresh <= grace)
        settled = {n: v for n, v in cohort.gathered.items() if n not in set(fresh)}
        comparison = compare(settled, cohort.noise, self.policy, _others(state, settled))
        self._note(dict.fromkeys(fresh, "it, or its epoch, is new") | comparison.left_out)
        self.notes += [f"{self.key[0]}/{self.key[1]}: {said}" for said in comparison.remarks]
        self._note_common_mode(cohort, comparison)
        traces = {
            node: self._traced(state.records[node], node, comparison)
            for node in comparison.evidence
        }
        following = self._next_round(cohort, comparison, traces)
        state = replace(state, cohorts=state.cohorts.insert(self.key, following))
        return self._judge(state, traces, following)

    def _next_round(
        self, cohort: Cohort, comparison: Comparison, traces: Mapping[NodeId, Traces]
    ) -> Cohort:
        """Await whoever was in this round; remember its noise and pace."""
        noise, pace_ms = dict(cohort.noise), cohort.pace_ms
        kept = self.policy.rounds_remembered - 1
        for aspect, view in comparison.views.items():
            if view.evidence:
                noise[aspect] = (*noise.get(aspect, ())[-kept:], view.noise)
        if comparison.evidence:
            pace_ms = (*pace_ms[-kept:], comparison.work_ms)
        apart = dict(cohort.apart)
        for aspect in comparison.views:
            for windows in horizons(self.policy):
                if now := _apart(traces, aspect, windows):
                    key = (aspect, windows)
                    apart[key] = (*apart.get(key, ())[-kept:], now)
        awaited = HashTrieSet(cohort.gathered.keys())
        return Cohort(
            epoch=cohort.epoch, awaited=awaited, noise=noise, apart=apart, pace_ms=pace_ms
        )

    def _apart(self, cohort: Cohort, aspect: Aspect, windows: int) -> float:
        """How far apart means of so many windows are, by what many rounds said of it."""
        floor = self.policy.noise_floor
        if aspect is Aspect.LINK:
            floor = self.policy.link_noise_floor
        known = cohort.apart.get((aspect, windows), ())
        if len(known) < _APART_ROUNDS_MIN:
            single = cohort.noise.get(aspect, ())
            return max(floor, sum(single) / max(1, len(single)))
        return max(floor / sqrt(windows), sum(known) / len(known))

    def _judge(
        self, state: DetectorState, traces: Mapping[NodeId, Traces], cohort: Cohort
    ) -> DetectorState:
        records, standing = state.records, state.standing
        for node, kept in traces.items():
            before = records[node]
            records = records.insert(node, replace(before, traces=kept))
            case = Case(
                node=node,
                incarnation=before.incarnation,
                job=before.job,
                traces=kept,
                apart=partial(self._apart, cohort),
                standing=standing.get(node),
            )
            judgement = judge(case, self.now_ms, self.policy)
            if judgement is None:
                continue
            self.judgements.append(judgement)
            if isinstance(judgement, VerdictIssued):
                standing = standing.insert(node, judgement)
            else:
                standing = standing.remove(node)
        return replace(state, records=records, standing=standing)

    def _traced(self, record: Record, node: NodeId, comparison: Comparison) -> Traces:
        """A node's traces with this round added, in every aspect that it was compared in."""
        return {
            aspect: record.traces.get(aspect, _NO_TRACE).after(view.evidence[node], self.policy)
            for aspect, view in comparison.views.items()
            if node in view.evidence
        }

    def _note(self, left_out: dict[NodeId, str]) -> None:
        job, role = self.key
        for node, why in sorted(left_out.items()):
            self.notes.append(f"{job}/{role}: {node} is not compared: {why}")

    def _note_common_mode(self, cohort: Cohort, comparison: Comparison) -> None:
        """Report a cohort that is slow as a whole: nobody's fault that peers could tell."""
        if not comparison.evidence or len(cohort.pace_ms) < self.policy.windows_to_clear:
            return
        usual_ms = median(cohort.pace_ms)
        pace = comparison.work_ms / usual_ms
        if pace >= self.policy.common_ratio:
            job, role = self.key
            self.notes.append(
                f"{job}/{role}: all are slow: median work {comparison.work_ms:.1f} ms per step is "
                f"{pace:.2f}x the {usual_ms:.1f} ms of earlier rounds; that flags nobody"
            )


def _expire(state: DetectorState, now_ms: int, judgements: list[Judgement]) -> DetectorState:
    standing = state.standing
    for node in sorted(standing):
        withdrawn = expired(standing[node], now_ms)
        if withdrawn is not None:
            standing = standing.remove(node)
            judgements.append(withdrawn)
    return replace(state, standing=standing)
