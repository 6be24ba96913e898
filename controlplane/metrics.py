"""What Prometheus is told. Names, labels and units are documented in docs/reference/metrics.md.

What belongs here: from the picture of a fleet, the log as it passes, and what this process does, to
metric families. Labels are jobs, states and kinds, never nodes: a fleet of 8,192 must not become
8,192 series. What a page or a rule needs of one node is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.logstats import Stats
from controlplane.picture import Picture
from statemachine import events as e
from statemachine.ids import JobId, TransitionId
from statemachine.incidents import Telling
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState, Job
from statemachine.vitals import STEP_MS, WAIT_MS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

DOWNTIME_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
PHASE_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Meters:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.picture: Callable[[], Picture | None] = lambda: None
        """Where the present picture comes from; None while the fleet was not read yet."""
        self.stats: Callable[[], Stats | None] = lambda: None
        """What the store was last found to hold."""
        self._telling: Telling | None = None
        self._resumed: dict[tuple[JobId, TransitionId], int] = {}
        self._of_this_process(self.registry)
        self._of_the_log(self.registry)
        self.registry.register(_PictureCollector(self))

    def _of_this_process(self, new: CollectorRegistry) -> None:
        """What this process does."""
        self.leading = Gauge(
            "changeover_leading", "1 while this process leads the fleet, else 0.", registry=new
        )
        self.terms = Counter(
            "changeover_terms", "Terms of leadership that this process began.", registry=new
        )
        self.turns = Counter(
            "changeover_turns", "Turns of the sequencer taken by this process.", registry=new
        )
        self.turn_at = Gauge(
            "changeover_last_turn_timestamp_seconds",
            "Unix time at which this process last appended to the log.",
            registry=new,
        )
        self.passed = Counter(
            "changeover_facts_passed_over",
            "Facts that did not enter the log, by outcome (set aside, held back).",
            ["outcome"],
            registry=new,
        )
        self.deliveries = Counter(
            "changeover_hook_deliveries",
            "Deliveries by hook and outcome (delivered, repeated, retried, failed, dropped).",
            ["hook", "outcome"],
            registry=new,
        )

    def _of_the_log(self, new: CollectorRegistry) -> None:
        """What passes in the log."""
        self.events = Counter(
            "changeover_events",
            "Events that entered the log since this process began to follow it, by type.",
            ["type"],
            registry=new,
        )
        self.transitions = Counter(
            "changeover_transitions",
            "Transitions that ended, by job, motive and outcome (finished, aborted).",
            ["job", "motive", "outcome"],
            registry=new,
        )
        self.downtime = Histogram(
            "changeover_incident_downtime_seconds",
            "Downtime of a loss, or pause of a planned transition, by job and kind.",
            ["job", "kind"],
            buckets=DOWNTIME_S,
            registry=new,
        )
        self.phases = Histogram(
            "changeover_incident_phase_seconds",
            "Duration of each phase of an incident, by job and phase.",
            ["job", "phase"],
            buckets=PHASE_S,
            registry=new,
        )

    def render(self) -> bytes:
        """The exposition that Prometheus scrapes."""
        return generate_latest(self.registry)

    # --- the log as it passes -----------------------------------------------------------------

    def begin(self, state: FleetState) -> None:
        """Follow from a state on."""
        self._telling = Telling(state=state)
        self._resumed.clear()

    def heard(self, recorded: e.Recorded, state: FleetState) -> None:
        """Take in one entry of the log."""
        if self._telling is None:
            self.begin(FleetState())
        assert self._telling is not None
        self.events.labels(type(recorded.event).__name__).inc()
        before = self._telling.state
        self._telling.hear(recorded)
        match recorded.event:
            case e.TransitionFinished() | e.TransitionAborted() as over:
                job = before.jobs.get(over.job)
                motive = str(job.pending.plan.motive) if job and job.pending else "unknown"
                finished = isinstance(over, e.TransitionFinished)
                outcome = "finished" if finished else "aborted"
                self.transitions.labels(over.job, motive, outcome).inc()
            case e.StepResumed() as step:
                self._count_resumed(step, state)
            case _:
                pass

    def _count_resumed(self, step: e.StepResumed, state: FleetState) -> None:
        """Once all members have resumed, the incident's numbers are final."""
        job = state.jobs.get(step.job)
        if job is None or self._telling is None:
            return
        key = (step.job, step.transition)
        self._resumed[key] = self._resumed.get(key, 0) + 1
        if self._resumed[key] != job.slots_held:
            return
        del self._resumed[key]
        for told in self._telling.told():
            if (told.job, told.transition) != key:
                continue
            if told.downtime_ms is not None:
                self.downtime.labels(told.job, told.kind).observe(told.downtime_ms / 1000)
            for phase, ms in told.phases_ms.items():
                self.phases.labels(told.job, phase).observe(ms / 1000)


class _Reading(Struct, frozen=True):
    """One gauge of the picture."""

    name: str
    words: str
    labels: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], float], ...]


class _PictureCollector(Collector):
    """Gauges that are read off the picture when they are asked for."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def describe(self) -> Iterator[Metric]:
        """Nothing: what there is depends on the fleet."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Every family of the picture and of the store."""
        picture, stats = self._meters.picture(), self._meters.stats()
        readings = list(_of_picture(picture)) if picture is not None else []
        readings += list(_of_stats(stats)) if stats is not None else []
        for reading in readings:
            family = GaugeMetricFamily(reading.name, reading.words, labels=reading.labels)
            for labels, value in reading.rows:
                family.add_metric(list(labels), value)
            yield family


def _of_picture(picture: Picture) -> Iterator[_Reading]:
    state = picture.state
    yield _Reading(
        "changeover_log_position", "Position of the last event.", (), (((), state.position),)
    )
    leader, term = picture.leader if picture.leader is not None else ("", 0)
    yield _Reading("changeover_term", "Term of the leading controller.", (), (((), term),))
    yield _Reading(
        "changeover_leader",
        "1 with the name of the leading controller; absent while nobody leads.",
        ("controller",),
        (((leader,), 1),) if leader else (),
    )
    yield _Reading(
        "changeover_decisions_paused",
        "1 while verdicts are not acted upon.",
        (),
        (((), float(bool(state.paused_by))),),
    )
    counts = dict.fromkeys(NodeState, 0)
    verdicts: dict[str, int] = {each.value: 0 for each in e.Verdict}
    for node in state.nodes.values():
        counts[node.state] += 1
        if node.verdict is not None and node.state not in (NodeState.LOST, NodeState.GONE):
            verdicts[node.verdict.verdict] += 1
    by_state = tuple(((str(each),), float(count)) for each, count in counts.items())
    yield _Reading("changeover_nodes", "Nodes by state.", ("state",), by_state)
    by_verdict = tuple(((name,), float(count)) for name, count in verdicts.items())
    yield _Reading("changeover_verdicts", "Standing verdicts.", ("verdict",), by_verdict)
    yield _Reading("changeover_sweeps_open", "Sweeps under way.", (), (((), len(state.sweeps)),))
    unknown = len(state.unknown_tags)
    yield _Reading(
        "changeover_newer_events", "Events that only a newer release folds.", (), (((), unknown),)
    )
    yield from _of_jobs(picture)


def _of_jobs(picture: Picture) -> Iterator[_Reading]:
    jobs = [picture.state.jobs[name] for name in sorted(picture.state.jobs)]

    def rows(value: Callable[[Job], float | None]) -> tuple[tuple[tuple[str, ...], float], ...]:
        found = (((str(job.job),), value(job)) for job in jobs)
        return tuple((labels, number) for labels, number in found if number is not None)

    def reading(name: str, words: str, value: Callable[[Job], float | None]) -> _Reading:
        return _Reading(name, words, ("job",), rows(value))

    step, loss, pace, wait = _of_vitals(picture)
    yield reading("changeover_job_epoch", "Epoch of a job.", lambda job: job.epoch)
    yield reading("changeover_job_slots", "Slots of a job.", lambda job: job.layout.slot_count)
    vacant = "Slots whose holder is lost."
    yield reading("changeover_job_slots_vacant", vacant, lambda job: len(job.vacant))
    running = "1 while a job runs with every slot held."
    yield reading(
        "changeover_job_running",
        running,
        lambda job: float(job.launched and not job.finished and not job.vacant),
    )
    pending = "Members of the pending transition that have yet to answer; absent without one."
    yield reading(
        "changeover_job_transition_awaited",
        pending,
        lambda job: len(job.pending.members) - len(job.pending.answers) if job.pending else None,
    )
    yield reading("changeover_job_step", "Last step reported.", lambda job: step.get(job.job))
    yield reading("changeover_job_loss", "Loss at that step.", lambda job: loss.get(job.job))
    words = "Median step of the slowest member in its last window."
    yield reading("changeover_job_step_seconds", words, lambda job: pace.get(job.job))
    words = "Median wait for others of the member that waits least: about 0 at the straggler."
    yield reading("changeover_job_wait_seconds", words, lambda job: wait.get(job.job))


def _of_vitals(
    picture: Picture,
) -> tuple[dict[JobId, float], dict[JobId, float], dict[JobId, float], dict[JobId, float]]:
    """By job: last step, its loss, step time of the slowest, wait of the least waiting."""
    step: dict[JobId, float] = {}
    loss: dict[JobId, float] = {}
    pace: dict[JobId, float] = {}
    wait: dict[JobId, float] = {}
    for name, each in picture.vitals.items():
        node = picture.state.nodes.get(name)
        if node is None or node.incarnation != each.incarnation:
            continue
        if each.last_step > step.get(each.job, -1):
            step[each.job] = each.last_step
            if each.loss is not None:
                loss[each.job] = each.loss
        took, waited = each.measured(STEP_MS), each.measured(WAIT_MS)
        if took is not None:
            pace[each.job] = max(took.p50 / 1000, pace.get(each.job, 0.0))
        if waited is not None:
            wait[each.job] = min(waited.p50 / 1000, wait.get(each.job, float("inf")))
    return step, loss, pace, wait


def _of_stats(stats: Stats) -> Iterator[_Reading]:
    def one(name: str, words: str, value: float | None) -> _Reading:
        return _Reading(name, words, (), (((), value),) if value is not None else ())

    yield one("changeover_store_bytes", "Size of the store.", stats.store_bytes)
    quota = "Part of the store's quota that is in use, 0 to 1; act from 0.6 on."
    yield one("changeover_store_quota_ratio", quota, stats.quota_share)
    yield one("changeover_log_live_entries", "Events in the store.", stats.live_entries)
    yield one("changeover_inbox_facts", "Facts that wait for a sequencer.", stats.waiting_facts)
    since = "Events since the last snapshot."
    yield one("changeover_snapshot_lag_entries", since, stats.entries_since_snapshot)
    age = "Age of the last snapshot; absent without one."
    yield one("changeover_snapshot_age_seconds", age, stats.snapshot_age_s)
