"""A log as a trace: a track per job and per node, with arrows from cause to effect.

What belongs here: from entries to records of the Trace Event Format, which Perfetto and
chrome://tracing open. Written as the log is read, so that memory does not grow with it.

Theory of operation. Three processes: *jobs* has two threads per job, its epochs and its
transitions; *nodes* one per node, with the states it was in and, within them, what it stated or was
stated of it; *controllers* one per writer of decisions that concern neither. Every entry of the log
is a slice of just under a millisecond, the resolution of its time, a little shorter than the one
before it in that millisecond, so that slices of one track either follow or contain each other.
Arrows bind to those slices: from the evidence to the plan that
names it, from a plan to the members that prepared, from the last of them to the commit, from there
to those who applied it, from the last of those to the end; and from a verdict, an operator's wish
or a sweep's request to what it led to. Of many members only those that joined, left or came last
have an arrow. Time is in µs from the log's first entry; `metadata` has that in Unix ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, Final

import msgspec

from controlplane.lines import words_of
from controlplane.postmortem.checking import checked
from controlplane.postmortem.logfile import LogFile
from controlplane.postmortem.stretches import EpochStretch, NodeStretch, Stretches
from statemachine import events as e
from statemachine.evolve import evolve
from statemachine.ids import JobId, NodeId, Position, SweepId, TransitionId
from statemachine.state import FleetState

JOBS: Final = 1
NODES: Final = 2
CONTROLLERS: Final = 3
_PROCESSES: Final = {JOBS: "jobs", NODES: "nodes", CONTROLLERS: "controllers"}

ENTRY_US: Final = 999
"""Length of an entry's slice."""

_APART_MAX: Final = 480
"""Entries of one millisecond that are told apart: each begins 1 µs later, and ends 1 µs earlier."""

_SAID_OF_A_JOB: Final = (
    e.ChangesDrafted,
    e.SourcesChosen,
    e.TransitionPlanned,
    e.TransitionCommitted,
    e.TransitionFinished,
    e.TransitionAborted,
    e.JobDeclared,
    e.JobFinished,
    e.JobRestarted,
)

Record = dict[str, Any]
Place = tuple[int, int, int]
"""Process, thread, time in µs of an entry's slice."""


def write_trace(log: LogFile, sink: IO[bytes]) -> int:
    """Write a log as a trace; returns how many records that were.

    Raises:
        UsageError: the file cannot be read.
    """
    encode = msgspec.json.Encoder().encode
    tracer = _Tracer()
    count = 0
    sink.write(b'{"traceEvents":[\n')
    for record in tracer.records(log):
        sink.write(b",\n" if count else b"")
        sink.write(encode(record))
        count += 1
    metadata = {
        "source": "changeover",
        "began_at_unix_ms": tracer.began_ms,
        "log_is_whole": log.is_whole,
        "said_first": log.notes(),
    }
    sink.write(b'\n],"displayTimeUnit":"ms","metadata":' + encode(metadata) + b"}\n")
    return count


class _Tracer:
    """Hears a log once and makes records."""

    def __init__(self) -> None:
        self.began_ms = 0
        self._tracks: dict[tuple[int, str], int] = {}
        self._new: list[Record] = []
        self._causes = _Causes()
        self._at_ms = 0
        self._nth = 0

    def records(self, log: LogFile) -> Iterator[Record]:
        for number, name in _PROCESSES.items():
            yield {
                "ph": "M",
                "name": "process_name",
                "pid": number,
                "tid": 0,
                "args": {"name": name},
            }
            yield {
                "ph": "M",
                "name": "process_sort_index",
                "pid": number,
                "tid": 0,
                "args": {"sort_index": number},
            }
        state, stretches = FleetState(), Stretches()
        open_transitions: dict[JobId, int] = {}
        for recorded in checked(log):
            self.began_ms = self.began_ms or recorded.at_ms
            before, state = state, evolve(state, recorded)
            nodes, epochs = stretches.hear(before, recorded, state)
            made = [self._node(each) for each in nodes] + [self._epoch(each) for each in epochs]
            made += self._transition(recorded.event, state, open_transitions)
            self._nth = min(self._nth + 1, _APART_MAX) if recorded.at_ms == self._at_ms else 0
            self._at_ms = recorded.at_ms
            place = self._place(recorded)
            made.append(self._entry(recorded, place))
            yield from self._with_new_tracks([each for each in made if each])
            yield from self._causes.of(recorded, place, state)
        nodes, epochs = stretches.rest(state.at_ms + 1)
        made = [self._node(each) for each in nodes] + [self._epoch(each) for each in epochs]
        for job, from_ms in sorted(open_transitions.items()):
            made.append(self._slice(JOBS, f"{job}: transitions", "open", from_ms, state.at_ms + 1))
        yield from self._with_new_tracks([each for each in made if each])

    def _with_new_tracks(self, made: list[Record]) -> Iterator[Record]:
        new, self._new = self._new, []
        yield from new
        yield from made

    def _track(self, process: int, name: str) -> int:
        """The number of a thread; a new one is announced before its first record."""
        key = (process, name)
        if key not in self._tracks:
            number = self._tracks[key] = len(self._tracks) + 1
            self._new.append(
                {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": process,
                    "tid": number,
                    "args": {"name": name},
                }
            )
        return self._tracks[key]

    def _us(self, at_ms: float) -> int:
        return round((at_ms - self.began_ms) * 1000)

    # --- slices -------------------------------------------------------------------------------

    def _slice(
        self,
        process: int,
        track: str,
        name: str,
        from_ms: float,
        to_ms: float,
        **more: Any,
    ) -> Record | None:
        if to_ms <= from_ms:
            return None
        return {
            "ph": "X",
            "name": name,
            "cat": more.pop("cat", "state"),
            "pid": process,
            "tid": self._track(process, track),
            "ts": self._us(from_ms),
            "dur": self._us(to_ms) - self._us(from_ms),
            "args": more,
        }

    def _node(self, each: NodeStretch) -> Record | None:
        name = f"{each.state} slot {each.slot}" if each.slot >= 0 else str(each.state)
        return self._slice(NODES, each.node, name, each.from_ms, each.to_ms, job=each.job)

    def _epoch(self, each: EpochStretch) -> Record | None:
        track = f"{each.job}: epochs"
        return self._slice(JOBS, track, f"epoch {each.epoch}", each.from_ms, each.to_ms)

    def _transition(
        self, event: e.AnyEvent, state: FleetState, begun: dict[JobId, int]
    ) -> list[Record | None]:
        """The stretches from a plan to its commit, and on to its end, when they end."""
        match event:
            case e.TransitionPlanned():
                phase = ""
            case e.TransitionCommitted():
                phase = "preparing"
            case e.TransitionFinished():
                phase = "committed"
            case e.TransitionAborted():
                phase = "aborted"
            case _:
                return []
        track, job = f"{event.job}: transitions", event.job
        from_ms = begun.pop(job, state.at_ms)
        name = f"t{event.transition} {phase or 'replaced'}"
        if not isinstance(event, (e.TransitionFinished, e.TransitionAborted)):
            begun[job] = state.at_ms
        return [self._slice(JOBS, track, name, from_ms, state.at_ms, cat="transition")]

    def _where(self, recorded: e.Recorded) -> tuple[int, str]:
        event = recorded.event
        if isinstance(event, _SAID_OF_A_JOB):
            return JOBS, f"{event.job}: transitions"
        node = getattr(event, "node", "")
        return (NODES, node) if node else (CONTROLLERS, recorded.writer)

    def _place(self, recorded: e.Recorded) -> Place:
        process, track = self._where(recorded)
        return process, self._track(process, track), self._us(recorded.at_ms) + self._nth

    def _entry(self, recorded: e.Recorded, place: Place) -> Record:
        process, track, at_us = place
        return {
            "ph": "X",
            "name": type(recorded.event).__name__,
            "cat": "entry",
            "pid": process,
            "tid": track,
            "ts": at_us,
            "dur": ENTRY_US - 2 * self._nth,
            "args": {
                "position": recorded.position,
                "writer": recorded.writer,
                "words": words_of(recorded.event),
            },
        }


class _Causes:
    """Which entry led to which: arrows, made when the effect is heard."""

    def __init__(self) -> None:
        self._flows = 0
        self._evidence: dict[Position, Place] = {}
        self._about: dict[NodeId, Place] = {}
        self._plans: dict[tuple[JobId, TransitionId], tuple[Place, frozenset[NodeId]]] = {}
        self._acks: dict[tuple[JobId, TransitionId], Place] = {}
        self._sweeps: dict[SweepId, Place] = {}

    def of(self, recorded: e.Recorded, place: Place, after: FleetState) -> Iterator[Record]:
        """The arrows that end at an entry; a plan is taken as a whole, however it was said."""
        event = recorded.event
        if isinstance(event, e.TransitionPlanned):
            event = after.whole(event)
        for cause in self._led_to(event):
            yield from self._arrow(cause, place)
        self._remember(event, recorded.position, place)

    def _led_to(self, event: e.AnyEvent) -> list[Place]:
        found = [self._evidence.get(at) for at in getattr(event, "evidence", ())]
        match event:
            case e.TransitionPlanned():
                found += [self._about.pop(change.leaver, None) for change in event.changes]
            case e.TransitionPrepared() | e.TransitionApplied():
                plan = self._plans.get((event.job, event.transition))
                if plan is not None and event.node in plan[1]:
                    found.append(plan[0])
            case e.TransitionCommitted() | e.TransitionFinished():
                found.append(self._acks.pop((event.job, event.transition), None))
            case e.SweepRoundFinished() | e.SweepFinished() | e.CertificateIssued():
                found.append(self._sweeps.get(event.sweep))
            case e.SweepRequested():
                found.append(self._about.pop(event.node, None))
            case _:
                pass
        return list(dict.fromkeys(each for each in found if each is not None))

    def _remember(self, event: e.AnyEvent, position: Position, place: Place) -> None:
        match event:
            case e.TransitionPlanned():
                movers = {name for c in event.changes for name in (c.joiner, c.leaver)}
                self._plans[event.job, event.transition] = (place, frozenset(movers))
            case e.TransitionCommitted():
                key = (event.job, event.transition)
                if key in self._plans:
                    self._plans[key] = (place, self._plans[key][1])
            case e.TransitionFinished() | e.TransitionAborted():
                self._plans.pop((event.job, event.transition), None)
            case e.TransitionPrepared() | e.TransitionApplied():
                self._acks[event.job, event.transition] = place
            case e.SweepRequested():
                self._sweeps[event.sweep] = place
            case (
                e.VerdictIssued()
                | e.DrainRequested()
                | e.SwitchoverRequested()
                | e.QuarantineRequested()
                | e.SweepAsked()
                | e.NodeQuarantined()
            ):
                self._about[event.node] = place
                self._evidence[position] = place
            case (
                e.PeerReset()
                | e.PeerWaited()
                | e.WorkerExited()
                | e.LeaseExpired()
                | e.NodeLost()
                | e.NodeLeft()
                | e.GroupBroken()
            ):
                self._evidence[position] = place
            case _:
                pass

    def _arrow(self, cause: Place, effect: Place) -> Iterator[Record]:
        self._flows += 1
        shared = {"name": "cause", "cat": "cause", "id": self._flows}
        yield {"ph": "s", "pid": cause[0], "tid": cause[1], "ts": cause[2], **shared}
        yield {"ph": "f", "bp": "e", "pid": effect[0], "tid": effect[1], "ts": effect[2], **shared}
