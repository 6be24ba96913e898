"""Slow machines: how they are noticed, what a sweep finds in them, and what triage does then.

The verdict comes from the detector of production (`watching`); who is swapped out when, who is
swept and what its numbers amount to is decided by the state machine. Here is only the truth: how
slow a machine is, and what a probe would read off it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from simulator.core import JOB, node_id, number_of
from simulator.faults import Fault, Kind
from simulator.watching import watch
from statemachine import events as e
from statemachine.ids import Incarnation, NodeId
from statemachine.lifecycle import NodeState

if TYPE_CHECKING:
    from simulator.world import World
    from statemachine.participant import Participant, RunRound

_GOOD, _BAD = 100.0, 60.0
NEW_MACHINE_H = 72.0
"""Hours until a retired machine's replacement stands there (vendor swap: days)."""


class Quarantine:
    """Verdicts, sweeps and triage of one fleet."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.maintained: set[int] = set()
        """Machines that leave for maintenance."""
        self._watched: dict[int, tuple[int, float]] = {}
        """Machine -> life and severity that the monitor has an eye on."""
        self._fits: dict[tuple[int, str], bool] = {}

    # --- truth --------------------------------------------------------------------------------

    def turn_slow(self, fault: Fault) -> None:
        """A machine becomes slow."""
        machine = self.world.plant.machine(fault.machine)
        if not machine.up or machine.severity >= fault.severity:
            return
        machine.severity = fault.severity
        if fault.ends_after_s:
            self.world.agenda.after(
                fault.ends_after_s, partial(self._ends, fault.machine, fault.severity)
            )
        self.turned_slow(fault.machine)

    def turned_slow(self, number: int) -> None:
        """Take note of a machine that is slow now."""
        self.world.plant.note_severity(number)
        if self.world.plant.slot_of(number) >= 0:
            self.world.totals.grey += 1
            self.world.pace_changed()
            self._begin_watch(number)

    def _ends(self, number: int, severity: float) -> None:
        machine = self.world.plant.machine(number)
        if machine.severity == severity:
            machine.severity = 1.0
            self.world.plant.note_severity(number)
            self.world.pace_changed()

    def seated(self, number: int) -> None:
        """A machine took a slot: if it is slow, the monitor begins to see it."""
        if self.world.plant.machine(number).severity > 1:
            self._begin_watch(number)

    # --- verdicts -----------------------------------------------------------------------------

    def _begin_watch(self, number: int) -> None:
        world = self.world
        if not world.monitor:
            return
        severity = world.plant.machine(number).severity
        life = world.plant.incarnation(number)
        before = self._watched.get(number)
        if before is not None and before[0] == life and before[1] >= severity:
            return
        self._watched[number] = (life, severity)
        scenario = world.scenario
        seen = watch(
            severity,
            scenario.job.step_s * 1000,
            scenario.grey.noise,
            scenario.guard.peers,
            policy=world.core.state.policy.detector,
            chance=world.streams.fresh(f"watch/{number}/{severity}"),
        )
        if seen.verdict is None:
            return
        delay_s = seen.windows * scenario.guard.window_s
        accuse = partial(self._accuse, number, life, severity, seen.verdict)
        world.agenda.after(delay_s, partial(world.between_transitions, accuse))

    def _accuse(self, number: int, life: int, severity: float, verdict: e.VerdictIssued) -> None:
        """Issue a verdict, and confirm it for as long as nothing comes of it."""
        world = self.world
        if world.plant.incarnation(number) != life:
            return  # whoever began anew is watched anew
        slow = world.plant.machine(number).severity == severity
        if not slow or not world.plant.is_whole(number) or not world.is_active(number):
            self._watched.pop(number, None)
            return
        self._issue(number, verdict)
        renew_s = world.core.state.policy.detector.verdict_ttl_s / 2
        again = partial(self._accuse, number, life, severity, verdict)
        world.agenda.after(renew_s, partial(world.between_transitions, again))

    def _issue(self, number: int, verdict: e.VerdictIssued) -> None:
        world = self.world
        world.hold_record(number)
        node = world.core.state.nodes[node_id(number)]
        ttl_ms = round(world.core.state.policy.detector.verdict_ttl_s * 1000)
        issued = replace(
            verdict,
            node=node.node,
            incarnation=node.incarnation,
            job=JOB,
            expires_at_ms=world.core.now_ms + ttl_ms,
        )
        world.core.submit(issued)

    def false_alarm(self, number: int) -> None:
        """The monitor accuses a machine that is well."""
        if not self.world.monitor or not self.world.plant.is_whole(number):
            return
        if self.world.plant.machine(number).severity > 1:
            return
        self.world.totals.false_swaps += 1
        alarm = e.VerdictIssued(
            node=NodeId(""),
            incarnation=Incarnation(0),
            verdict=e.Verdict.DEGRADED,
            reason="a false alarm",
            detector="false-alarm",
        )
        self._issue(number, alarm)

    # --- sweeps -------------------------------------------------------------------------------

    def ensure_partner(self) -> None:
        """Give the sweeps a node that may serve as partner, if none has a record."""
        core = self.world.core
        state = core.state
        if not state.unsettled or not any(
            state.nodes[name].state is NodeState.QUARANTINED for name in state.unsettled
        ):
            return
        if any(state.nodes[name].worker is not None for name in state.pool):
            return
        for slot in range(self.world.plant.slots):
            number = self.world.plant.holder(slot)
            whole = self.world.plant.is_whole(number) and slot not in self.world.broken
            if whole and slot not in self.world.plant.slow:
                self.world.hold_record(number)
                return

    def measure(self, me: Participant, round_: RunRound) -> None:
        """Answer one round when the sweep is that far."""
        total_s = self.world.scenario.guard.sweep_s
        share = 0.95 if round_.round in ("solo", "reference") else 0.05  # together follows alone
        if not self.world.sweeps:
            return
        done = e.SweepRoundFinished(
            sweep=round_.sweep.sweep,
            node=round_.sweep.node,
            incarnation=round_.sweep.incarnation,
            round=round_.round,
            measurements=self._numbers(round_),
            partner=round_.sweep.partner,
        )
        self.world.agenda.after(total_s * share, partial(self.world.core.submit, done, me.node))

    def _numbers(self, round_: RunRound) -> dict[str, float]:
        alone = round_.round in ("solo", "reference")
        metric = "gemm_gflops_best" if alone else "link_mbps_best"
        if round_.round == "reference":
            return {metric: _GOOD}
        return {metric: _BAD if self._shows(round_) else _GOOD}

    def _shows(self, round_: RunRound) -> bool:
        """Whether a round shows a defect, rightly or wrongly; each sweep draws once."""
        guard, streams = self.world.scenario.guard, self.world.streams
        alone = round_.round == "solo"
        if not alone and not guard.pair:
            return False
        number = number_of(round_.sweep.node)
        machine = self.world.plant.machine(number)
        chance = streams.fresh(f"sweep/{number}/{round_.sweep.sweep}")
        seen, where = chance.random(), chance.random()
        if machine.severity > 1 or machine.lemon:  # a defect is seen alone or not, each time
            in_solo = streams.fresh(f"defect/{number}").random() < guard.solo_sees
            return in_solo == alone and seen >= guard.false_pass
        in_solo = where < guard.solo_sees or not guard.pair
        return in_solo == alone and seen < guard.false_fail

    # --- triage -------------------------------------------------------------------------------

    def heard(self, event: e.AnyEvent) -> None:
        """Consequences of an entry of the log for the machine itself."""
        match event:
            case e.NodeQuarantined():
                self._quarantined(event)
            case e.SweepFinished():
                self.world.totals.sweeps += 1
                if event.outcome is not e.SweepOutcome.PASSED:
                    self.world.totals.human_h += self.world.scenario.human.per_sweep_failed_h
                    number = number_of(event.node)
                    self.world.plant.machine(number).found = True
                    self.world.agenda.after(0.0, partial(self._take_out, number, "sweep", -1.0))
            case e.NodeRetired():
                number = number_of(event.node)
                hours = NEW_MACHINE_H
                self.world.agenda.after(0.0, partial(self._take_out, number, "retired", hours))
            case e.NodeDrained():
                number = number_of(event.node)
                hours = self.world.scenario.faults.maintenance_h
                self.world.agenda.after(0.0, partial(self._take_out, number, "drained", hours))
            case _:
                pass

    def _quarantined(self, event: e.NodeQuarantined) -> None:
        number = number_of(event.node)
        self._watched.pop(number, None)
        if self.world.plant.machine(number).severity > 1:
            self.world.totals.caught += 1
        if not self.world.sweeps:
            self.world.agenda.after(0.0, partial(self._take_out, number, "triage", -1.0))

    def _take_out(self, number: int, why: str, hours: float) -> None:
        """A machine leaves the fleet: for maintenance, for repair (hours < 0), or for good."""
        world = self.world
        node = world.core.state.nodes.get(node_id(number))
        if node is None or node.state in (NodeState.LOST, NodeState.GONE):
            return
        gone = e.NodeLeft(node=node.node, incarnation=node.incarnation, reason=why)
        world.core.submit(gone, node.node)
        world.core.part(number)
        self.maintained.discard(number)
        if hours < 0:
            chance = world.streams.fresh(f"repair/{number}/{world.plant.incarnation(number)}")
            marks = (chance.random(), chance.random(), chance.random())
            fault = Fault(world.agenda.now_s, Kind.GREY, number, marks)
            world.supply.send_to_repair(number, fault)
            return
        world.plant.machine(number).away = True
        world.agenda.after(hours * 3600, partial(self._again, number, why))

    def _again(self, number: int, why: str) -> None:
        node = self.world.core.recall(number)
        if why == "retired":
            self.world.plant.replaced(number)
        if node is not None and (node.quarantine or node.retired or node.drained_by):
            self.world.core.submit(e.ReleaseRequested(node=node.node, by="triage", force=True))
        self.world.supply.give_back(number)
