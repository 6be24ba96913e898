"""The plot: launch, lose a node, bring it back, make a node grey, watch it being replaced.

What belongs here: what is done to the fleet, when, and what is then waited for. Whether it went
well is `proof`'s to say; how it looks, `live`'s.

Every fault is real (SIGKILL to a process group; a node that burns time in its own work) and is
stated in the log as `FaultInjected`, which no decision reads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio

from controlplane.demo.chronicle import Chronicle, StepsOver
from controlplane.demo.greys import GREYS, words_for
from controlplane.demo.stage import JOB, OPERATOR, Stage
from controlplane.localfleet.fleet import born_at_s
from statemachine import events as e
from statemachine.ids import NodeId, Slot
from statemachine.incidents import Incident, incidents
from statemachine.lifecycle import NodeState

KILL: Final = "kill"
GREY: Final = "grey"

KILL_AT: Final = 1 / 3
GREY_AT: Final = 5 / 8
"""Shares of the steps after which a node is killed, and another made grey."""

REBOOT_S: Final = 1.0
"""How long a killed machine takes until its agent is started again."""

REPLACED_S: Final = 60.0
FOUND_S: Final = 60.0
SWEPT_S: Final = 60.0
BACK_S: Final = 90.0
STEPS_S: Final = 600.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Identity:
    """A training process: its id, and when it was started, which a reuse of the id would change."""

    pid: int
    born_at_s: float | None


@dataclass(slots=True)
class Hurt:
    """One fault: who was hurt, when (Unix ms), and the other nodes' processes before and after."""

    kind: str
    node: NodeId
    at_ms: float
    before: dict[NodeId, Identity]
    after: dict[NodeId, Identity] = field(default_factory=dict)
    failed_sweeps: int = 0
    came_back: bool = False


class Plot:
    """Plays one run on a stage; `hurts` tells what was done."""

    def __init__(self, stage: Stage, say: Say) -> None:
        self.hurts: list[Hurt] = []
        self._stage = stage
        self._say = say

    @property
    def _chronicle(self) -> Chronicle:
        return self._stage.chronicle

    async def play(self) -> None:
        """Play from the declaration to the last step.

        Raises:
            Overdue: something that was waited for did not come true.
        """
        options = self._stage.options
        await self._stage.declare(options.everyone, options.standbys)
        self._say(f"waiting for {len(options.everyone)} nodes: torch is being imported")
        await self._stage.launched()
        self._say(f"launched: {options.nodes} active, {options.layout_text}")
        if options.faults.kills:
            await self._lose_a_node()
        if options.faults.greys:
            await self._grey_a_node()
        if options.steps_spare:
            await self._until(lambda: self._chronicle.step >= options.steps, STEPS_S, "the end")
            await self._stage.submit(e.JobStopRequested(job=JOB, by=OPERATOR))
        await self._stage.finished(STEPS_S)
        self._say("the job is finished")

    # --- acts ---------------------------------------------------------------------------------

    async def _lose_a_node(self) -> None:
        """Kill an active node; a standby takes its slot; the node comes back as standby."""
        stage, options = self._stage, self._stage.options
        await self._standby_and_step(round(KILL_AT * options.steps))
        victim = self._holder(Slot((1 + options.seed) % options.nodes))
        before = self._identities()
        stage.hurt.add(victim)
        stage.fleet.kill_node(victim)
        hurt = Hurt(KILL, victim, time.time() * 1000, before)
        self.hurts.append(hurt)
        self._say(f"killed {victim} (SIGKILL to its process group)")
        await self._stated(hurt, "SIGKILL to its process group")
        found = await self._replaced(hurt, REPLACED_S)
        self._say(f"{found.replacement} took slot {found.slot} of {victim}; nobody else moved")
        await anyio.sleep(REBOOT_S)
        stage.start_node(victim)
        self._say(f"{victim} was started again: it joins as a new incarnation")
        if options.faults.greys and self._some_standby():
            return  # nobody has to wait for it
        try:
            await self._standby(victim, BACK_S)
        except StepsOver:
            if options.faults.greys:  # which needs a standby again
                raise
            self._say(f"the steps ran out before {victim} was standby again")
            return
        hurt.came_back = True
        self._say(f"{victim} has rehearsed and is standby")

    async def _grey_a_node(self) -> None:
        """Slow a node down; it is found, swapped, swept; then the fault is lifted."""
        stage, options = self._stage, self._stage.options
        await self._standby_and_step(round(GREY_AT * options.steps))
        victim = self._holder(Slot((2 + options.seed) % options.nodes))
        fault_file = stage.fleet.folder.fault_file(victim)
        before = self._identities()
        factor = options.grey_factor or GREYS[options.grey_kind].factor
        write_fault(fault_file, factor, options.grey_kind)
        hurt = Hurt(GREY, victim, time.time() * 1000, before)
        self.hurts.append(hurt)
        self._say(f"made {victim} grey: {words_for(options.grey_kind, factor)}")
        await self._stated(hurt, f"{options.grey_kind}, slow_factor {factor:g}")
        found = await self._replaced(hurt, FOUND_S)
        self._say(f"{found.replacement} took slot {found.slot} of {victim} at a step boundary")
        await self._swept(hurt)
        fault_file.unlink()
        await stage.submit(e.FaultLifted(node=victim, kind=GREY))
        self._say(f"lifted the fault of {victim}")
        await self._standby(victim, SWEPT_S)
        hurt.came_back = True
        self._say(f"{victim} passed its sweep, has rehearsed, and is standby")

    async def _swept(self, hurt: Hurt) -> None:
        """Wait until the grey node, out of the run, was measured by a sweep that could tell."""
        chronicle = self._chronicle
        planned = incidents_of(chronicle.entries, hurt)[0].planned

        def over(event: e.AnyEvent) -> bool:
            if not isinstance(event, e.SweepFinished) or event.node != hurt.node:
                return False
            return event.outcome is not e.SweepOutcome.INCONCLUSIVE

        await self._until(lambda: chronicle.found(over, planned) is not None, SWEPT_S, "a sweep")
        recorded = chronicle.found(over, planned)
        assert recorded is not None
        assert isinstance(recorded.event, e.SweepFinished)
        if recorded.event.outcome is not e.SweepOutcome.PASSED:
            hurt.failed_sweeps += 1
        outcome, reason = recorded.event.outcome, recorded.event.reason
        self._say(f"sweep of {hurt.node}, still grey: {outcome} ({reason})")

    # --- what acts are made of ----------------------------------------------------------------

    async def _standby_and_step(self, step: int) -> None:
        await self._until(lambda: self._chronicle.step >= step, STEPS_S, f"step {step}")
        await self._until(self._some_standby, BACK_S, "a warm standby")

    def _some_standby(self) -> bool:
        nodes = self._chronicle.state.nodes
        return any(nodes[name].state is NodeState.STANDBY for name in nodes)

    async def _standby(self, node: NodeId, timeout_s: float) -> None:
        chronicle = self._chronicle
        await self._until(
            lambda: chronicle.state_of(node) is NodeState.STANDBY, timeout_s, f"{node} as standby"
        )

    async def _replaced(self, hurt: Hurt, timeout_s: float) -> Incident:
        """Wait until the hurt node was replaced and the run goes on; look at the others again."""

        def over() -> bool:
            found = incidents_of(self._chronicle.entries, hurt)
            return bool(found) and found[0].downtime_ms is not None

        await self._until(over, timeout_s, f"{hurt.node} to be replaced")
        hurt.after = self._identities()
        return incidents_of(self._chronicle.entries, hurt)[0]

    async def _until(self, holds: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for something that must come true before the job is over.

        Raises:
            Overdue: it did not in time.
            StepsOver: the steps ran out before.
        """

        def holds_or_over() -> bool:
            job = self._chronicle.job
            return holds() or (job is not None and bool(job.finished_nodes))

        await self._chronicle.until(holds_or_over, timeout_s, what)
        if not holds():
            steps = self._stage.options.steps_most
            raise StepsOver(f"the {steps} steps ran out before {what}: ask for more with --steps")

    def _holder(self, slot: Slot) -> NodeId:
        job = self._chronicle.job
        assert job is not None, "a fault needs a job that runs"
        return job.holders[slot]

    def _identities(self) -> dict[NodeId, Identity]:
        """The training processes of all nodes in a slot."""
        job = self._chronicle.job
        nodes = self._chronicle.state.nodes
        found = {}
        for slot in job.holders if job is not None else ():
            node = nodes[job.holders[slot]] if job is not None else None
            if node is not None and node.worker is not None:
                found[node.node] = Identity(node.worker.pid, born_at_s(node.worker.pid))
        return found

    async def _stated(self, hurt: Hurt, detail: str) -> None:
        await self._stage.submit(
            e.FaultInjected(
                node=hurt.node, kind=hurt.kind, detail=detail, injected_at_ms=hurt.at_ms
            )
        )


def incidents_of(log: list[e.Recorded], hurt: Hurt) -> list[Incident]:
    """The incidents that a fault led to, in order."""
    return [
        found
        for found in incidents(log)
        if found.node == hurt.node and found.job == JOB and found.began_at_ms >= hurt.at_ms - 1
    ]


def write_fault(path: Path, slow_factor: float, kind: str = "compute") -> None:
    """Make what is of a kind take `slow_factor` times as long; a node's processes look here."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"slow_factor": slow_factor, "kind": kind}))
    draft.replace(path)
