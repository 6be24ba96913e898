"""The swap family: a fleet whose every decision is the state machine's, on virtual time.

Here is what the rules cannot know: what breaks, how long things take, what a sweep measures, when a
provisioner delivers. Facts go to `Core`, answers come back as actions on the agenda.

Theory of operation. The job stands still from the instant a holder breaks until every member is
inside the new groups. Detection, preparation and the switch are delays between facts; how many
there are, who takes the slot and what happens to a second loss meanwhile is decided by `settle`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from simulator.agenda import Agenda
from simulator.answers import Answers
from simulator.core import JOB, Core, node_id, number_of
from simulator.faults import Fault, Kind, Trace
from simulator.machines import Plant
from simulator.meter import Meter, Totals, pace
from simulator.parts import Costs, Recipe, costs_of
from simulator.quarantine import Quarantine
from simulator.relaunch import Relaunch
from simulator.rng import Streams
from simulator.scenario import Scenario
from simulator.supply import Supply
from statemachine import events as e
from statemachine import messages as m
from statemachine.lifecycle import NodeState
from statemachine.participant import Participant, RunRound
from statemachine.policy import knobs_of
from statemachine.successors import why_nobody


class World:
    """One replication of one swap strategy."""

    def __init__(
        self,
        scenario: Scenario,
        recipe: Recipe,
        trace: Trace,
        replication: int = 0,
        *,
        explicit: bool = False,
        keep: Callable[[e.Recorded], None] | None = None,
    ) -> None:
        self.scenario = scenario
        self.recipe = recipe
        self.explicit = explicit
        self.monitor = scenario.guard.monitor if recipe.monitor is None else recipe.monitor
        self.sweeps = scenario.guard.sweep if recipe.sweep is None else recipe.sweep
        self.costs: Costs = costs_of(scenario, recipe)
        self.standbys = scenario.fleet.standbys if recipe.standby else 0
        self.agenda = Agenda()
        self.meter = Meter(scenario)
        self.streams = Streams(scenario.seed, replication)
        self.plant = Plant(scenario, trace, self.standbys)
        self.core = Core(scenario, self.agenda, self, self.standbys)
        self.core.keep = keep
        self.supply = Supply(self)
        self.quarantine = Quarantine(self)
        self.relaunch = Relaunch(self)
        self.answers = Answers(self)
        self.broken: dict[int, Fault] = {}
        """Slot -> fault of its holder, until another machine has taken the slot."""
        self.accused: dict[int, Fault] = {}
        """Machine -> fault, of those whose loss will be or was declared."""
        self._plan: e.TransitionPlanned | None = None
        self._drafted: tuple[e.Change, ...] = ()
        self.loads = False
        """Whether the last commit has everybody load a checkpoint."""
        self.cold: set[int] = set()
        """Machines that take a slot without having rehearsed it."""
        self._later: list[Callable[[], None]] = []
        for fault in trace.faults:
            self.agenda.at(fault.at_s, partial(self._happens, fault))
        self._launch()

    def run(self) -> Totals:
        """Run to the end and return where the time went."""
        self._rest()
        self.agenda.run_until(self.scenario.horizon_s, self._passes, self._rest)
        self.meter.advance(self.agenda.now_s)
        return self.meter.close()

    @property
    def totals(self) -> Totals:
        """The sums so far."""
        return self.meter.totals

    # --- beginning ----------------------------------------------------------------------------

    def _launch(self) -> None:
        first_standby = self.plant.slots
        if self.explicit:
            knobs = knobs_of(self.core.state.policy)
            self.core.submit(e.PolicyChanged(version=1, knobs=knobs, by="simctl"))
            self.core.submit(self.core.declared)
            for number in range(self.plant.slots + self.standbys):
                self.core.join(number, 1)
        else:
            self.core.launch_implicit()
            for number in range(first_standby, first_standby + self.standbys):
                self.core.join(number, 1)
        for number in sorted(self.plant.trace.slow):
            self.quarantine.turned_slow(number)
        self._set_pace()

    # --- what happens -------------------------------------------------------------------------

    def _happens(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.HARD:
                self.break_down(fault.machine, fault)
            case Kind.GREY:
                self.quarantine.turn_slow(fault)
            case Kind.PLANNED:
                self.between_transitions(lambda: self.drain(self.plant.holder(fault.machine)))
            case Kind.FALSE_ALARM:
                self.between_transitions(
                    lambda: self.quarantine.false_alarm(self.plant.holder(fault.machine))
                )

    def break_down(self, number: int, fault: Fault) -> None:
        """A machine fails hard; if it holds a slot, the job stands still from now on."""
        plant = self.plant
        if plant.ignores(fault):
            return
        slot = plant.slot_of(number)
        if slot < 0 and node_id(number) not in self.core.participants:
            return
        still = slot >= 0 and self.meter.state != "running"
        if still and not self.scenario.faults.while_down:
            return
        plant.machine(number).up = False
        delay_s = 0.0
        if slot >= 0:
            self.totals.losses += 1
            self.totals.lost_at_s.append(self.agenda.now_s)
            if self.relaunch.under_way:
                self.relaunch.breaks(number, slot, fault)
                return
            self.broken[slot] = fault
            if self.meter.state == "running":
                self.meter.roll_back(self.scenario.job.step_s)
            self.meter.stop("down")
            kind = self.scenario.faults.classes[fault.fault_class]
            delay_s = self.costs.detect_s + kind.detect_s + kind.locate_s
            if self.explicit or node_id(number) in self.core.participants:
                self._say_injected(number, fault)
        self.accused[number] = fault
        life = plant.incarnation(number)
        self.agenda.after(delay_s, partial(self._accuse, number, life, fault))

    def _accuse(self, number: int, life: int, fault: Fault) -> None:
        """The fleet gets to know what happened."""
        if self.plant.incarnation(number) != life or number not in self.accused:
            return
        slot = self.plant.slot_of(number)
        if slot >= 0 and self.relaunch.under_way:
            self.relaunch.breaks(number, slot, self.accused.pop(number))
            return
        if slot >= 0:
            self.hold_record(number)
            self._ensure_witness(slot)
        node, incarnation = node_id(number), self.core.state.nodes[node_id(number)].incarnation
        kind = self.scenario.faults.classes[fault.fault_class].evidence
        witness = self._witness(slot) if kind == "reset" and slot >= 0 else None
        if witness is not None:
            self.hold_record(witness)
            reporter = self.core.state.nodes[node_id(witness)]
            event: e.AnyEvent = e.PeerReset(
                node=reporter.node,
                incarnation=reporter.incarnation,
                job=JOB,
                epoch=self.core.job.epoch,
                peer=node,
                peer_incarnation=incarnation,
                group=self.core.job.layout.groups_of_rank(0)[0].name,
            )
        elif kind == "lease":
            event = e.LeaseExpired(node=node, incarnation=incarnation)
        else:
            event = e.WorkerExited(node=node, incarnation=incarnation, job=JOB, reason="fault")
        self.core.submit(event)

    def _say_injected(self, number: int, fault: Fault) -> None:
        """Note the instant of a fault for whoever reads the log: no rule looks at it."""
        at_ms = float(self.core.now_ms)
        self.core.submit(
            e.FaultInjected(node=node_id(number), kind=fault.cause, injected_at_ms=at_ms)
        )

    def hold_record(self, number: int) -> None:
        """Make sure that a holder has a record in the state."""
        slot = self.plant.slot_of(number)
        if slot >= 0:
            self.core.materialise(number, slot, self.plant.incarnation(number))

    def _witness(self, slot: int) -> int | None:
        """A whole machine that holds the same state as a slot."""
        for replica in self.core.replicas_of(slot):
            number = self.plant.holder(replica)
            unproven = replica in self.core.job.unproven
            if replica not in self.broken and not unproven and self.plant.is_whole(number):
                return number
        return None

    def _ensure_witness(self, slot: int) -> None:
        held, unproven = self.core.job.holders, self.core.job.unproven
        for replica in self.core.replicas_of(slot):
            if replica in held and replica not in self.broken and replica not in unproven:
                return
        number = self._witness(slot)
        if number is not None:
            self.hold_record(number)

    def between_transitions(self, act: Callable[[], None]) -> None:
        """Act when no transition is pending. A holder that gets its record in the middle of one
        was not asked for its state, and would count as one that has none.
        """
        if self._is_quiet():
            act()
        else:
            self._later.append(act)

    def _is_quiet(self) -> bool:
        return self.core.job.pending is None and not self.relaunch.under_way

    def drain(self, number: int) -> None:
        """An operator wants a machine out for maintenance."""
        if not self.plant.is_whole(number) or self.plant.slot_of(number) < 0:
            return
        self.hold_record(number)
        if why_nobody(self.core.state, self.core.state.nodes[node_id(number)]):
            self.supply.want_for(number)  # the rules refuse to wait for what nobody promised
            return
        self.quarantine.maintained.add(number)
        self.core.submit(e.DrainRequested(node=node_id(number), by="maintenance"))

    # --- around every decision ----------------------------------------------------------------

    def _passes(self) -> bool:
        return self.meter.advance(self.agenda.now_s)

    def _rest(self) -> None:
        self.core.rest(self._before_deciding)
        self.relaunch.launch_if_ready()
        while self._later and self._is_quiet():
            self._later.pop(0)()
            self.core.rest(self._before_deciding)
        self.supply.balance()
        self.core.rest(self._before_deciding)
        if not self.explicit:
            self.core.put_aside(())
        self.meter.idle = len(self.core.state.pool)

    def _before_deciding(self) -> None:
        job = self.core.state.jobs.get(JOB)
        if job is not None and not self.explicit and not self.relaunch.under_way:
            if job.vacant:
                for slot in (*job.vacant, *job.unproven):
                    self._ensure_witness(slot)
            self.quarantine.ensure_partner()

    def _set_pace(self) -> None:
        self.meter.speed = pace(
            self.plant.slow,
            self.scenario.job.axes,
            self.scenario.fleet.gpus_per_node,
            self.scenario.job.microbatches,
        )

    def pace_changed(self) -> None:
        """A holder turned slow or well, or another machine took a slot."""
        self._set_pace()

    # --- what the state machine decided -------------------------------------------------------

    def heard(self, recorded: e.Recorded) -> None:
        """Physical consequences of an entry of the log."""
        event = recorded.event
        match event:
            case e.ChangesDrafted():
                self._drafted = (*(self._drafted if event.part > 1 else ()), *event.changes)
            case e.TransitionPlanned():
                drafted = self._drafted if event.parts else ()
                event = self._plan = replace(event, changes=(*drafted, *event.changes))
                if event.motive is e.Motive.UNPLANNED:
                    self._note_cold(event)
            case e.TransitionCommitted():
                self._committed(event)
            case e.TransitionFinished():
                self._finished()
            case e.NodeLost():
                self._lost(number_of(event.node))
            case e.JobRestarted():
                self.relaunch.begin()
            case _:
                self.quarantine.heard(event)

    def _note_cold(self, plan: e.TransitionPlanned) -> None:
        job = self.core.job
        for change in plan.changes:
            node = self.core.state.nodes[change.joiner]
            if not node.warm_for(JOB, job.layout.role_of(change.slot)):
                self.cold.add(number_of(change.joiner))
                self.totals.cold += 1

    def _committed(self, event: e.TransitionCommitted) -> None:
        plan, self.loads = self._plan, event.loads
        if event.loads:
            self.totals.restored += 1
            self.meter.roll_back(self.scenario.job.checkpoint_interval_s)
        if plan is None or plan.transition != event.transition:
            return
        if plan.motive is e.Motive.LAUNCH and not self.relaunch.under_way:
            return
        for change in plan.changes:
            number = number_of(change.joiner)
            self.plant.seat(change.slot, number)
            if self.plant.is_whole(number):
                self.broken.pop(change.slot, None)
            else:
                self.broken[change.slot] = self.accused[number]
            self.quarantine.seated(number)
        self.pace_changed()

    def _finished(self) -> None:
        self.cold.clear()
        if not self.broken and not self.core.job.vacant:
            self.relaunch.ends()
            self.meter.resume()

    def _lost(self, number: int) -> None:
        """A machine is fenced: it goes to repair and comes back to the supply, or to a sweep."""
        self.core.part(number)
        fault = self.accused.pop(number, None)
        if fault is None and self.relaunch.fences(number):
            return
        if fault is None:  # the rules gave it up although it is whole: it is free again
            self.supply.give_back(number)
            return
        if self.sweeps and self.scenario.guard.triage:
            self.core.submit(e.QuarantineRequested(node=node_id(number), by="triage"))
        self.supply.send_to_repair(number, fault)

    def told(self, me: Participant, message: m.ToWorker) -> None:
        """A training process was told something."""
        self.answers.told(me, message)

    def asked_round(self, me: Participant, round_: RunRound) -> None:
        """A node measures one round of a sweep."""
        self.quarantine.measure(me, round_)

    def is_active(self, number: int) -> bool:
        """Whether a machine holds a slot by the log."""
        node = self.core.state.nodes.get(node_id(number))
        if node is None:
            return self.plant.slot_of(number) >= 0
        return node.state is NodeState.ACTIVE

    def renewed(self, number: int) -> int:
        """Begin a new life of a machine's agent; return its incarnation."""
        machine = self.plant.machine(number)
        machine.incarnation += 1
        machine.away = False
        return machine.incarnation
