"""What the demo sees of its run: the log as it grows, the fold of it, and the last vitals.

What belongs here: following, remembering, and waiting for something to become true under a
deadline. Nothing here judges what was seen (`proof`) or causes it (`plot`).

Every entry is written to `events.jsonl` as it comes, in the form of `changeover log export`, so
that the log is there even if the demo is ended at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import BinaryIO, Final

import anyio

from controlplane.eventlog import EventLog
from controlplane.localfleet.folder import RunFolder
from statemachine.checksums import with_checksum
from statemachine.errors import CodecError
from statemachine.events import AnyEvent, Recorded
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, JobId, NodeId
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState, Job
from statemachine.vitals import Vitals, decode_vitals

_HEAD_S: Final = 5.0


class Overdue(Exception):
    """What the plot waits for did not come true in time. Fit for an operator."""


class StepsOver(Overdue):
    """The job's last step came before what the plot waits for."""


class Chronicle:
    """The log of one fleet, folded, and the newest vitals of each node."""

    def __init__(self, log: EventLog, folder: RunFolder, job: JobId) -> None:
        self.log = log
        self.job_name = job
        self.state = FleetState()
        self.entries: list[Recorded] = []
        self.vitals: dict[NodeId, Vitals] = {}
        self.history: list[Vitals] = []
        self.on_entry: Callable[[Recorded], None] = lambda _: None
        self._folder = folder
        self._changed = anyio.Event()

    # --- following ----------------------------------------------------------------------------

    async def follow_log(self) -> None:
        """Take in the log until cancelled."""
        with self._folder.events.open("ab", buffering=0) as file:
            async with self.log.follow() as entries:
                while True:
                    for entry in await entries.next_batch():
                        self._take(entry.raw, entry.recorded(), file)

    def _take(self, raw: bytes, recorded: Recorded, file: BinaryIO) -> None:
        file.write(with_checksum(raw) + b"\n")
        self.entries.append(recorded)
        self.state = evolve(self.state, recorded)
        self.on_entry(recorded)
        self._wake()

    async def follow_vitals(self) -> None:
        """Take in vitals until cancelled; each window once."""
        seen: dict[NodeId, tuple[Incarnation, int]] = {}
        with self._folder.vitals.open("ab", buffering=0) as file:
            async with self.log.watch_vitals() as view:
                async for delta in view:
                    for item in delta.updated:
                        vitals = _decoded(item.value)
                        if vitals is None or seen.get(item.node) == _window(vitals):
                            continue
                        seen[item.node] = _window(vitals)
                        file.write(item.value + b"\n")
                        self.vitals[item.node] = vitals
                        self.history.append(vitals)
                    self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def complete(self) -> None:
        """Wait until everything that the log holds now was taken in."""
        head = await self.log.head()
        await self.until(lambda: self.state.position >= head, _HEAD_S, "the end of the log")

    # --- asking -------------------------------------------------------------------------------

    @property
    def job(self) -> Job | None:
        """The run's job as the log tells it."""
        return self.state.jobs.get(self.job_name)

    @property
    def step(self) -> int:
        """The last step that any node reported; -1 before the first."""
        return max((vitals.last_step for vitals in self.vitals.values()), default=-1)

    def state_of(self, node: NodeId) -> NodeState | None:
        """Where a node stands, if it ever joined."""
        record = self.state.nodes.get(node)
        return record.state if record is not None else None

    def found(self, matches: Callable[[AnyEvent], bool], after: int = 0) -> Recorded | None:
        """The first entry behind position `after` whose event matches."""
        for recorded in self.entries[after:]:
            if matches(recorded.event):
                return recorded
        return None

    # --- waiting ------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until something holds, looked at whenever something was taken in.

        Raises:
            Overdue: it did not hold within `timeout_s` seconds; says what was waited for, and
                what the fleet was doing.
        """
        started_s = time.monotonic()
        with anyio.move_on_after(timeout_s):
            while not holds():
                await self._changed.wait()
        if not holds():
            waited_s = time.monotonic() - started_s
            raise Overdue(f"waited {waited_s:.0f} s for {what}; {self.situation()}")

    def situation(self) -> str:
        """One line: position, step, pending transition with who is awaited, nodes by state."""
        job = self.job
        parts = [f"position {self.state.position}", f"step {self.step}"]
        if job is not None and job.pending is not None:
            plan = job.pending.plan
            waiting = ", ".join(job.pending.awaited()) or "nobody"
            parts.append(f"transition {plan.transition} {job.pending.phase}, awaited: {waiting}")
        nodes = self.state.nodes
        parts.append("nodes: " + " ".join(f"{n}={nodes[n].state}" for n in sorted(nodes)))
        return "; ".join(parts)


def _window(vitals: Vitals) -> tuple[Incarnation, int]:
    return vitals.incarnation, vitals.window


def _decoded(raw: bytes) -> Vitals | None:
    try:
        return decode_vitals(raw)
    except CodecError:
        return None  # the controller reports it; the demo only shows what it can read
