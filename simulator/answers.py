"""What training processes answer, and how long it takes them: the costs of a switch, by phase.

The protocol is the participant's of production; here is what it cannot know. A rehearsal, the
preparation of a planned move, a cold start, the pause, loading a checkpoint: each is a delay
between what a process is told and what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from simulator.core import DIGEST, number_of
from statemachine import events as e
from statemachine import messages as m
from statemachine.ids import Epoch, TransitionId
from statemachine.lifecycle import Phase

if TYPE_CHECKING:
    from simulator.world import World
    from statemachine.participant import Participant


class Answers:
    """The training processes of one fleet."""

    def __init__(self, world: World) -> None:
        self.world = world

    def _after(self, me: Participant, delay_s: float, said: Callable[[], m.FromWorker]) -> None:
        number = number_of(me.node)

        def answer() -> None:
            if self.world.plant.is_whole(number):
                self.world.core.say(me.node, me.incarnation, said())

        self.world.agenda.after(max(0.0, delay_s), answer)

    def told(self, me: Participant, message: m.ToWorker) -> None:
        """A training process was told something: answer when it is done."""
        match message:
            case m.Rehearse():
                first = not self.world.core.state.nodes[me.node].rehearsals[1:]
                wait_s = self.world.costs.rehearse_s if first else self.world.costs.rehearse_next_s
                done = m.Rehearsed(job=message.job, role=message.role, digest=DIGEST)
                self._after(me, wait_s if self.world.agenda.now_s > 0 else 0.0, lambda: done)
            case m.Prepare():
                self._told_prepare(me, message)
            case m.Commit():
                self._told_commit(me, message)
            case _:
                pass

    def _told_prepare(self, me: Participant, message: m.Prepare) -> None:
        number = number_of(me.node)
        delay_s, report = 0.0, None
        if message.motive is e.Motive.PLANNED:
            delay_s = self.world.costs.prepare_s
        elif message.motive is e.Motive.UNPLANNED:
            report = self._report(me, asks_saves=message.asks_saves)
            if number in self.world.cold:
                delay_s = max(0.0, self.world.costs.cold_s - self.world.costs.pause_unplanned_s)
        else:
            report = e.Report(has_state=False)
        said = m.Prepared(transition=message.transition, links_opened=1, took_ms=0.0, report=report)
        self._after(me, delay_s, lambda: said)

    def _report(self, me: Participant, *, asks_saves: bool) -> e.Report:
        """Where a parked process stands: it has the state of its slot, unless that is on its way
        there; checkpoints are where everybody can load them.
        """
        holds = me.member and me.slot not in self.world.core.job.unproven
        interval_s = self.world.scenario.job.checkpoint_interval_s
        return e.Report(
            has_state=holds,
            applied=self.world.meter.step if holds else -1,
            saved=self.world.meter.saved_step(interval_s) if asks_saves else -1,
        )

    def _told_commit(self, me: Participant, message: m.Commit) -> None:
        match message.motive:
            case e.Motive.PLANNED:
                boundary_s = self.world.meter.to_boundary_s()
                self.world.agenda.after(boundary_s, partial(self._pause, message.epoch))
                delay_s = boundary_s + self.world.costs.pause_planned_s
            case e.Motive.UNPLANNED:
                costs = self.world.costs
                delay_s = costs.pause_loading_s if self.world.loads else costs.pause_unplanned_s
            case _:
                delay_s = 0.0
        if message.leave:
            return
        phases_ms = {"switch": delay_s * 1000} if message.motive is e.Motive.UNPLANNED else {}
        said = m.Applied(
            transition=message.transition, epoch=message.epoch, step=0, phases_ms=phases_ms
        )
        self._after(me, delay_s, lambda: said)
        if self.world.explicit:
            stopped_ms = self.world.core.now_ms if message.motive is e.Motive.UNPLANNED else 0
            resumed = partial(self._resumed, message.transition, delay_s, stopped_ms)
            self._after(me, delay_s + self.world.scenario.job.step_s, resumed)

    def _resumed(self, transition: TransitionId, pause_s: float, stopped_ms: int) -> m.Resumed:
        """The first step of the new epoch; the one before it ended when the job stopped."""
        step_ms, now_ms = self.world.scenario.job.step_s * 1000, float(self.world.core.now_ms)
        pause_ms = self.world.costs.pause_planned_s * 1000 if not stopped_ms else pause_s * 1000
        return m.Resumed(
            transition=transition,
            step=1,
            step_ms=step_ms,
            committed_at_ms=now_ms,
            previous_at_ms=now_ms - step_ms - pause_ms,
        )

    def _pause(self, epoch: Epoch) -> None:
        """The boundary of a planned transition: the job stands still for the switch."""
        pending = self.world.core.job.pending
        still = pending is not None and pending.phase is Phase.COMMITTED
        if still and self.world.core.job.epoch == epoch and self.world.meter.state == "running":
            self.world.totals.planned += 1
            self.world.meter.stop("planned")
