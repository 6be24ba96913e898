"""The machines themselves: which are whole, which are slow, where they are, who is being repaired.

Physical truth, which no rule of the state machine can see. Machines that nothing happened to have
no record here: `Plant` answers for them with the defaults.
"""

from collections import deque

from simulator.faults import Fault, Trace
from simulator.repair import Repair, repair_of
from simulator.scenario import Scenario


class Machine:
    """One machine that something happened to."""

    __slots__ = ("away", "found", "incarnation", "lemon", "severity", "up")

    def __init__(self, *, lemon: bool, severity: float) -> None:
        self.up = True
        self.away = False
        """Out of the fleet: in the supply, in repair, or under maintenance."""
        self.incarnation = 1
        self.lemon = lemon
        self.severity = severity
        self.found = False
        """Whether a sweep has shown what is wrong with it, since it was repaired last."""


class Plant:
    """All machines of a scenario, their seats, and the supply of free ones."""

    def __init__(self, scenario: Scenario, trace: Trace, standbys: int) -> None:
        self.scenario = scenario
        self.trace = trace
        self.slots = scenario.slots
        self._machines: dict[int, Machine] = {}
        self._seat: dict[int, int] = {}
        self._slot: dict[int, int] = {}
        first_free = self.slots + standbys
        first_borrowed = max(first_free, scenario.machines - scenario.fleet.borrowed)
        self.supply = deque(range(first_free, first_borrowed))
        self.borrowed = deque(range(first_borrowed, scenario.machines))
        self.slow: dict[int, float] = {}
        """Slot -> factor, of holders that are slow."""
        for number, severity in trace.slow.items():
            if number < self.slots:
                self.slow[number] = severity

    def machine(self, number: int) -> Machine:
        """The record of a machine, made when first asked for."""
        found = self._machines.get(number)
        if found is None:
            found = Machine(
                lemon=number in self.trace.lemons, severity=self.trace.slow.get(number, 1.0)
            )
            self._machines[number] = found
        return found

    def holder(self, slot: int) -> int:
        """The machine in a slot."""
        return self._seat.get(slot, slot)

    def slot_of(self, number: int) -> int:
        """The slot of a machine; -1 if it holds none."""
        return self._slot.get(number, number if number < self.slots else -1)

    def is_whole(self, number: int) -> bool:
        """Whether a machine is up."""
        found = self._machines.get(number)
        return found is None or found.up

    def incarnation(self, number: int) -> int:
        """The present life of a machine's agent."""
        found = self._machines.get(number)
        return 1 if found is None else found.incarnation

    def seat(self, slot: int, number: int) -> None:
        """A machine takes a slot; whoever held it holds none."""
        if self.slot_of(self.holder(slot)) == slot:
            self._slot[self.holder(slot)] = -1
        self._seat[slot] = number
        self._slot[number] = slot
        self.note_severity(number)

    def vacate(self, number: int) -> None:
        """A machine holds no slot any more, and nobody holds its."""
        slot = self.slot_of(number)
        self._slot[number] = -1
        self.slow.pop(slot, None)

    def note_severity(self, number: int) -> None:
        """Keep the table of slow slots in step with a machine."""
        slot = self.slot_of(number)
        if slot < 0:
            return
        severity = self.machine(number).severity
        if severity > 1:
            self.slow[slot] = severity
        else:
            self.slow.pop(slot, None)

    def ignores(self, fault: Fault) -> bool:
        """Whether a fault has nothing to hit: the machine is away, or the lemon was cured."""
        found = self.machine(fault.machine)
        free = fault.machine >= self.slots and found.away
        return not found.up or free or (fault.excess and not found.lemon)

    def repair(self, number: int, fault: Fault) -> Repair:
        """Send a machine to repair; the caller brings it back after the hours it takes."""
        machine = self.machine(number)
        machine.up = False
        machine.away = True
        return repair_of(self.scenario.repair, fault)

    def repaired(self, number: int, *, cured: bool) -> None:
        """A machine is back from repair."""
        machine = self.machine(number)
        machine.up = True
        if cured and (machine.found or self.scenario.repair.unfound_cures):
            machine.severity = 1.0
            machine.lemon = False
        machine.found = False

    def replaced(self, number: int) -> None:
        """Another machine stands in this one's place."""
        machine = self.machine(number)
        machine.up = True
        machine.severity = 1.0
        machine.lemon = False
