"""Vitals in, the detector on, verdicts out.

What belongs here: which vitals the detector gets to see, and in which order. What they mean is
`statemachine.detector`; what a verdict leads to is decided like everything else.

Rules: only incarnations that hold a slot by the fold are compared; a value that does not decode,
or speaks for somebody else, is reported once per incarnation and ignored, since unknown is not
unhealthy; an incarnation that is over is forgotten; a node that measures as a sweep's partner is
slow on our behalf, and is not accused of it. Runs only while its controller leads.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import anyio
from msgspec.structs import replace
from rpds import HashTrieMap

from controlplane import journal
from controlplane.eventlog import View, VitalsItem
from controlplane.health.history import HISTORY_VARIABLE, VitalsHistory
from statemachine import events as e
from statemachine import hangs
from statemachine.detector import DetectorState, Judgement, forgotten, observe, restored
from statemachine.detector_policy import DetectorPolicy
from statemachine.errors import CodecError
from statemachine.hangs import Jobs
from statemachine.ids import JobId, NodeId
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState
from statemachine.vitals import Vitals, decode_vitals

LENT = "lent to a sweep"
"""Phase of the windows of a node that serves a sweep as partner; they are not compared."""

EXPIRY_CHECK_S = 5.0
"""How often verdicts are looked at when no vitals arrive, in seconds."""


class Collector:
    """Feeds the detector. `states` gives the folded state as of now, `clock_ms` Unix time."""

    def __init__(
        self,
        states: Callable[[], FleetState],
        state_events: Callable[[Iterable[Judgement]], None],
        clock_ms: Callable[[], int],
        history: VitalsHistory | None = None,
    ) -> None:
        self._states = states
        self._state_events = state_events
        self._clock_ms = clock_ms
        self.listeners: list[Callable[[Vitals], None]] = []
        """Told of each window of a node in duty. Must not block or raise."""
        self._detector = restored(_standing(states()))
        self._latest: dict[NodeId, Vitals] = {}
        self._lent: set[NodeId] = set()
        self._reported: set[tuple[NodeId, int]] = set()
        self._notes: tuple[str, ...] = ()
        self._progress: Jobs = HashTrieMap()
        self._hung: tuple[JobId, ...] = ()
        self._history = history if history is not None else _from_environment()

    @property
    def latest(self) -> Mapping[NodeId, Vitals]:
        """The last window of each node that reports."""
        return self._latest

    @property
    def detector(self) -> DetectorState:
        """What the detector remembers."""
        return self._detector

    def heard(self, recorded: Sequence[e.Recorded], state: FleetState) -> None:
        """Listen to the log: forget who is gone, or is no longer compared."""
        for entry in recorded:
            event = entry.event
            match event:
                case e.NodeLost() | e.NodeLeft() | e.NodeJoined() | e.NodeQuarantined():
                    self._detector = forgotten(self._detector, event.node)
                    self._progress = hangs.forgotten(self._progress, event.node)
                    if self._history is not None:
                        self._history.forgotten(event.node)
                case e.JobFinished():
                    self._progress = self._progress.discard(event.job)
                case e.VerdictWithdrawn():  # by its expiry, or by an operator
                    if self._history is not None and event.node in self._detector.standing:
                        self._history.withdrawn(event.node)
                    standing = self._detector.standing.discard(event.node)
                    self._detector = replace(self._detector, standing=standing)
                case _:
                    pass

    async def run(self, view: View[VitalsItem]) -> None:
        """Follow vitals until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._run_expiry)
            async for delta in view:
                for item in delta.removed:
                    self._latest.pop(item.node, None)
                self._take(delta.updated)

    def _take(self, items: Iterable[VitalsItem]) -> None:
        self.offer(vitals for item in items if (vitals := self._decoded(item)) is not None)

    def offer(self, windows: Iterable[Vitals]) -> None:
        """Take in windows, from the store or from another source of metrics."""
        batch = []
        for vitals in windows:
            self._latest[vitals.node] = vitals
            node = self._states().current(vitals.node, vitals.incarnation)
            if node is not None and node.state is NodeState.ACTIVE:
                batch.append(self._marked(vitals))
        self._observe(batch)
        for vitals in batch:
            for listener in self.listeners:
                listener(vitals)

    def _marked(self, vitals: Vitals) -> Vitals:
        """The window, marked if a sweep in which its node is the partner fell into it.

        The window in which the sweep ends is reported after that end, so one more is marked.
        """
        sweeps = self._states().sweeps
        if any(sweeps[number].request.partner == vitals.node for number in sweeps):
            self._lent.add(vitals.node)
        elif vitals.node in self._lent:
            self._lent.discard(vitals.node)
        else:
            return vitals
        return replace(vitals, phase=LENT)

    def _decoded(self, item: VitalsItem) -> Vitals | None:
        try:
            vitals = decode_vitals(item.value)
            if (vitals.node, vitals.incarnation) == (item.node, item.incarnation):
                return vitals
            fault = f"speaks for {vitals.node}/{vitals.incarnation}"
        except CodecError as error:
            fault = str(error)
        if (item.node, item.incarnation) not in self._reported:
            self._reported.add((item.node, item.incarnation))
            journal.warn("vitals ignored", node=item.node, why=fault)
        return None

    def _observe(self, batch: Sequence[Vitals]) -> None:
        policy, now_ms = self._states().policy, self._clock_ms()
        if self._history is not None and (batch or self._detector.standing):
            self._history.observed(batch, now_ms, policy)
        seen = observe(self._detector, batch, now_ms, policy.detector)
        self._detector = seen.state
        self._progress = hangs.moved(self._progress, batch, now_ms)
        self._tell_hangs(now_ms, policy.detector)
        if seen.judgements:
            self._state_events([_resting(each, self._states()) for each in seen.judgements])
        if batch and seen.notes and seen.notes != self._notes:
            self._notes = seen.notes
            for note in seen.notes:
                journal.note("detector", note=note)

    def _tell_hangs(self, now_ms: int, policy: DetectorPolicy) -> None:
        """Say once of each job that it stands still, for longer than its phase ever does."""
        found = hangs.hangs(self._progress, now_ms, policy)
        for hang in found:
            if hang.job not in self._hung:
                journal.warn("no progress", job=hang.job, why=str(hang))
        self._hung = tuple(hang.job for hang in found)

    async def _run_expiry(self) -> None:
        while True:
            await anyio.sleep(EXPIRY_CHECK_S)
            self._observe(())


def _from_environment() -> VitalsHistory | None:
    path = os.environ.get(HISTORY_VARIABLE)
    return VitalsHistory(Path(path)) if path else None


def _resting(judgement: Judgement, state: FleetState) -> Judgement:
    """A withdrawal with where the verdict is that it withdraws; a verdict rests on its numbers."""
    node = state.nodes.get(judgement.node)
    if not isinstance(judgement, e.VerdictWithdrawn) or node is None or not node.verdict_position:
        return judgement
    return replace(judgement, evidence=(node.verdict_position,))


def _standing(state: FleetState) -> list[e.VerdictIssued]:
    """Verdicts of the fold that a detector that takes over must know of."""
    found = (state.nodes[name].verdict for name in sorted(state.unsettled))
    return [verdict for verdict in found if verdict is not None and verdict.detector]
