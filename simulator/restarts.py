"""The restart family: what existing systems do, on the same trace, by their published costs.

Here no rule of ours is at work, so no state machine runs: a loss stops the job for a downtime that
depends on the recipe, and rolls it back or not. A further fault during a recovery begins it anew.
Machines come from the spares and go to repair as in `world`.

Theory of operation. A recovery restarts the job, then looks for a machine: a standby is there at
once; else machines are chosen (infra), which may take preempting borrowed ones. A recipe without
standbys always chooses. What shrinks goes on with one replica less, at (dp - missing) / dp of its
speed, and takes the machine in when there is one.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from simulator.agenda import Agenda
from simulator.faults import Fault, Kind, Trace
from simulator.machines import Plant
from simulator.meter import Meter, Totals, pace
from simulator.parts import Recipe, costs_of
from simulator.scenario import Scenario


class Restarts:
    """One replication of one strategy that restarts or shrinks."""

    def __init__(
        self, scenario: Scenario, recipe: Recipe, trace: Trace, replication: int = 0
    ) -> None:
        self.scenario = scenario
        self.recipe = recipe
        self.costs = costs_of(scenario, recipe)
        self.standbys = scenario.fleet.standbys if recipe.standby else 0
        self.agenda = Agenda()
        self.meter = Meter(scenario)
        self.plant = Plant(scenario, trace, self.standbys)
        slots = self.plant.slots
        self.hot = deque(range(slots, slots + self.standbys))
        """Machines that stand by."""
        self.missing: list[int] = []
        """Slots without a machine while the job runs smaller."""
        self.waiting: list[int] = []
        """Slots without a machine while the job stands still."""
        self._attempt = 0
        self._stuck = False
        self._coming = 0
        self._replicas = max(1, scenario.job.axes.get("dp", 1))
        self._interval_s = scenario.job.checkpoint_interval_s
        self.meter.idle = len(self.hot)
        for fault in trace.faults:
            self.agenda.at(fault.at_s, partial(self._happens, fault))
        self.totals.grey = sum(1 for number in trace.slow if number < slots)
        self._set_speed()

    @property
    def totals(self) -> Totals:
        """The sums so far."""
        return self.meter.totals

    def run(self) -> Totals:
        """Run to the end and return where the time went."""
        self.agenda.run_until(self.scenario.horizon_s, self._passes, self._after)
        self.meter.advance(self.agenda.now_s)
        return self.meter.close()

    def _passes(self) -> bool:
        return self.meter.advance(self.agenda.now_s)

    def _after(self) -> None:
        self.meter.idle = len(self.hot)

    def _happens(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.HARD:
                self._hard(fault)
            case Kind.GREY:
                self._grey(fault)
            case Kind.PLANNED:
                self._planned(fault)
            case Kind.FALSE_ALARM:
                pass

    def _hard(self, fault: Fault) -> None:
        number = fault.machine
        if self.plant.ignores(fault) or self.plant.slot_of(number) < 0:
            return
        slot = self.plant.slot_of(number)
        if self.meter.state != "running" and not self.scenario.faults.while_down:
            return
        self.totals.losses += 1
        self.totals.lost_at_s.append(self.agenda.now_s)
        if self.meter.state == "running":
            self.meter.roll_back(
                self._interval_s if self.recipe.rolls_back else self.scenario.job.step_s
            )
        self.meter.stop("down")
        self._to_repair(number, fault)
        kind = self.scenario.faults.classes[fault.fault_class]
        detect_s = self.costs.detect_s + kind.detect_s + kind.locate_s
        self._recover(slot, detect_s, planned=False)

    def _to_repair(self, number: int, fault: Fault) -> None:
        repair = self.plant.repair(number, fault)
        if repair.manual:
            self.totals.human_h += self.scenario.human.per_manual_repair_h
        self.plant.vacate(number)
        self.agenda.after(repair.hours * 3600, partial(self._back, number, repair.cured))

    def _back(self, number: int, cured: bool) -> None:
        self.plant.repaired(number, cured=cured)
        if len(self.hot) + self._coming < self.standbys:
            self.hot.append(number)
        else:
            self.plant.supply.append(number)
        if self.waiting and self._stuck:
            self._try_again()
        elif self.missing and self.plant.supply and self.meter.state == "running":
            self._grow()

    # --- standing still -----------------------------------------------------------------------

    def _recover(self, slot: int, detect_s: float, *, planned: bool) -> None:
        """Stand still for as long as the recipe says, then go on, smaller or not."""
        self._attempt += 1
        self.totals.planned += planned
        if self.recipe.shrinks:
            self.missing.append(slot)
            down_s = self.costs.lose_s + detect_s
            coming_s = down_s + self.costs.infra_s + self.costs.rehearse_s
            self.agenda.after(coming_s, self._machine_came)
            self.agenda.after(down_s, partial(self._goes_on, self._attempt))
            return
        self.waiting.append(slot)
        down_s = detect_s + self.costs.restart_s
        self.agenda.after(down_s, partial(self._restarted, self._attempt))

    def _restarted(self, attempt: int) -> None:
        """The job could run again: fill its slots from standbys, else choose machines."""
        if attempt != self._attempt:
            return
        if not self.recipe.reschedule:
            while self.waiting and self.hot:
                self._seat(self.waiting.pop(), self.hot.popleft())
        if self.waiting:
            self._choose(attempt)
        else:
            self._goes_on(attempt)

    def _choose(self, attempt: int) -> None:
        """Choose machines for empty slots; preempt borrowed ones if there are too few."""
        if attempt != self._attempt:
            return
        plant = self.plant
        if len(plant.supply) >= len(self.waiting):
            self.agenda.after(self.costs.infra_s, partial(self._chosen, attempt))
        elif plant.borrowed:
            self.agenda.after(self.scenario.fleet.preempt_s, partial(self._preempted, attempt))
        else:
            self._stuck = True  # no machine at all: `_back` tries again
            self.totals.waited += 1

    def _preempted(self, attempt: int) -> None:
        plant = self.plant
        if plant.borrowed:
            self.totals.preempted += 1
            plant.supply.append(plant.borrowed.popleft())
        self._choose(attempt)

    def _chosen(self, attempt: int) -> None:
        if attempt != self._attempt:
            return
        self.totals.chosen += 1
        while self.waiting and self.plant.supply:
            self._seat(self.waiting.pop(), self.plant.supply.popleft())
        while len(self.hot) < self.standbys and self.plant.supply:
            self.hot.append(self.plant.supply.popleft())
        if self.waiting:
            self._choose(attempt)
        else:
            self._goes_on(attempt)

    def _try_again(self) -> None:
        self._stuck = False
        self._attempt += 1
        self.agenda.after(self.costs.restart_s, partial(self._restarted, self._attempt))

    def _goes_on(self, attempt: int) -> None:
        """A recovery that no further fault began anew is over."""
        if attempt != self._attempt:
            return
        self._set_speed()
        self.meter.resume()
        if self.scenario.fleet.refill:
            self._refill()

    def _seat(self, slot: int, number: int) -> None:
        self.plant.machine(number).away = False
        self.plant.seat(slot, number)

    def _refill(self) -> None:
        """Ask for a machine in place of each standby that was used."""
        while len(self.hot) + self._coming < self.standbys and self.plant.supply:
            self._coming += 1
            number = self.plant.supply.popleft()
            self.agenda.after(self.costs.infra_s, partial(self._stands_by, number))

    def _stands_by(self, number: int) -> None:
        self._coming -= 1
        self.hot.append(number)
        if self.waiting and self._stuck:
            self._try_again()

    # --- running smaller ----------------------------------------------------------------------

    def _machine_came(self) -> None:
        """A new machine is up: take it in, unless the job stands still or needs none."""
        if self.missing and self.plant.supply and self.meter.state == "running":
            self._grow()
        elif self.missing and self.meter.state != "running":
            self.agenda.after(self.costs.lose_s, self._machine_came)

    def _grow(self) -> None:
        self._seat(self.missing.pop(0), self.plant.supply.popleft())
        self.meter.stop("planned")
        self._attempt += 1
        self.agenda.after(self.costs.add_s, partial(self._goes_on, self._attempt))

    # --- other than losses --------------------------------------------------------------------

    def _planned(self, fault: Fault) -> None:
        """Maintenance: a checkpoint is written first, so no work is lost; then as after a loss."""
        number = self.plant.holder(fault.machine)
        if self.meter.state != "running" or not self.plant.is_whole(number):
            return
        if self.plant.slot_of(number) < 0:
            return
        self.meter.stop("planned")
        self.plant.machine(number).away = True
        self.plant.vacate(number)
        hours = self.scenario.faults.maintenance_h
        self.agenda.after(hours * 3600, partial(self._back, number, False))
        self._recover(fault.machine, 0.0, planned=True)

    def _grey(self, fault: Fault) -> None:
        """A machine turns slow, and nobody notices until it fails or recovers."""
        machine = self.plant.machine(fault.machine)
        if not machine.up or machine.severity >= fault.severity:
            return
        machine.severity = fault.severity
        self.totals.grey += self.plant.slot_of(fault.machine) >= 0
        self.plant.note_severity(fault.machine)
        self._set_speed()
        if fault.ends_after_s:
            self.agenda.after(fault.ends_after_s, partial(self._ends, fault))

    def _ends(self, fault: Fault) -> None:
        machine = self.plant.machine(fault.machine)
        if machine.severity == fault.severity:
            machine.severity = 1.0
            self.plant.note_severity(fault.machine)
            self._set_speed()

    def _set_speed(self) -> None:
        job = self.scenario.job
        speed = pace(self.plant.slow, job.axes, self.scenario.fleet.gpus_per_node, job.microbatches)
        smaller = min(self._replicas - 1, len(self.missing))
        self.meter.speed = speed * (self._replicas - smaller) / self._replicas
