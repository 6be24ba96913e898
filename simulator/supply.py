"""Where machines come from and go to: the provisioner, the repair shop, and the pool's size.

The fleet wants its standbys, one machine per vacant slot and one per node that is to be swapped
out; what is missing is asked of the provisioner, what is too much goes back to it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from statemachine import events as e
from statemachine.lifecycle import NodeState

if TYPE_CHECKING:
    from simulator.faults import Fault
    from simulator.world import World

_BAD = (e.Verdict.DEGRADED, e.Verdict.FAULTY)


class Supply:
    """Orders, deliveries and returns of one fleet."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._coming = 0
        self._for: list[int] = []
        """Machines that somebody wants out as soon as another one is there."""

    def want_for(self, number: int) -> None:
        """Order a machine in whose favour another one will be drained."""
        self._for.append(number)

    def balance(self) -> None:
        """Ask for what is missing; give back what is too much."""
        core = self.world.core
        state = core.state
        job = core.job
        leaving = 0
        for name in state.unsettled:
            node = state.nodes[name]
            bad = node.verdict is not None and node.verdict.verdict in _BAD
            leaving += node.state is NodeState.ACTIVE and bool(node.wanted_out or bad)
        relaunch = self.world.relaunch
        wanted = self.world.standbys + len(job.vacant) + leaving + relaunch.missing()
        wanted += len(self._for)
        pending = job.pending
        there = len(state.pool) + self._coming
        plant = self.world.plant
        while there < wanted and (plant.supply or plant.borrowed):
            self._coming += 1
            there += 1
            delay_s = self.world.costs.infra_s
            if not plant.supply:
                delay_s += self.world.scenario.fleet.preempt_s
                self.world.totals.preempted += 1
            number = (plant.supply or plant.borrowed).popleft()
            self.world.agenda.after(delay_s, partial(self._deliver, number))
        if relaunch.under_way:
            return
        if there > wanted and pending is None and not job.vacant and not leaving:
            self._shed(there - wanted)

    def _deliver(self, number: int) -> None:
        self._coming -= 1
        self.world.core.join(number, self.world.renewed(number))
        leavers, self._for = self._for, []
        for leaver in leavers:
            self.world.between_transitions(partial(self.world.drain, leaver))

    def _shed(self, count: int) -> None:
        """Give machines back that nobody waits for: those not warm first, then the last."""
        state = self.world.core.state
        free = sorted(
            (state.nodes[name] for name in state.pool),
            key=lambda node: (node.state is NodeState.STANDBY, node.node),
        )
        for node in free[:count]:
            if node.sweep or node.wanted_out or node.quarantine or self._is_partner(node.node):
                continue
            gone = e.NodeLeft(node=node.node, incarnation=node.incarnation, reason="not needed")
            self.world.core.submit(gone, node.node)
            self.world.core.part(int(node.node[1:]))
            self.give_back(int(node.node[1:]))

    def _is_partner(self, name: str) -> bool:
        sweeps = self.world.core.state.sweeps
        return any(sweeps[number].request.partner == name for number in sweeps)

    def give_back(self, number: int) -> None:
        """A whole machine is free for the provisioner."""
        self.world.plant.machine(number).away = True
        self.world.plant.supply.append(number)

    def send_to_repair(self, number: int, fault: Fault) -> None:
        """A machine is away until it is repaired; then it goes to a sweep or to the supply."""
        world = self.world
        repair = world.plant.repair(number, fault)
        if repair.manual:
            world.totals.human_h += world.scenario.human.per_manual_repair_h
        world.agenda.after(repair.hours * 3600, partial(self._back, number, repair.cured))

    def _back(self, number: int, cured: bool) -> None:
        world = self.world
        world.plant.repaired(number, cured=cured)
        node = world.core.recall(number)
        if node is None or not node.quarantine:
            self.give_back(number)
        elif world.sweeps:
            world.core.join(number, world.renewed(number))
        else:
            world.core.submit(e.ReleaseRequested(node=node.node, by="triage", force=True))
            self.give_back(number)
