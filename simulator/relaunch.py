"""Launched anew: what follows when the rules give up everything that is in memory.

Where nobody who lives holds the state of a slot, all go back in place to the newest checkpoint
(`World` has it load and roll back). Where there is none yet, or a policy would rather, the state
machine decides on a launch anew (`JobRestarted`). Here is what that takes: every process starts
afresh and loads what there is. With every node explicit the launch is the rules' own; else the job
is put back as `launch_implicit` has it, and the free machines that the rules would take, the first
by name, take the slots of the broken ones. A test holds the two to the same times.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from simulator.core import JOB, node_id, number_of
from statemachine import events as e

if TYPE_CHECKING:
    from simulator.faults import Fault
    from simulator.world import World


class Relaunch:
    """The launches anew of one fleet."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.under_way = False
        self._loaded = False
        self._fenced: set[int] = set()
        """Whole machines that hold a slot, and whose agents begin a new life."""

    def missing(self) -> int:
        """Machines that the launch takes from the pool."""
        return len(self.world.broken) if self.under_way else 0

    def fences(self, number: int) -> bool:
        """Tell whether a whole machine was fenced only to start afresh; it keeps its slot then."""
        world = self.world
        if world.core.job.launched or world.plant.slot_of(number) < 0:
            return False
        world.plant.machine(number).incarnation += 1
        self._fenced.add(number)
        if world.explicit:
            world.agenda.after(world.costs.restart_s, partial(self._comes_back, number))
        return True

    def begin(self) -> None:
        """The rules gave up what is in memory; what is done since a checkpoint is done again."""
        world = self.world
        world.totals.restored += 1
        world.meter.roll_back(world.scenario.job.checkpoint_interval_s)
        self.under_way, self._loaded = True, False
        if not world.explicit:
            world.agenda.after(world.costs.restart_s, self._has_loaded)

    def breaks(self, number: int, slot: int, fault: Fault) -> None:
        """A machine fails while all load: the launch takes one machine more."""
        world = self.world
        world.broken[slot] = fault
        world.plant.machine(number).up = False
        world.plant.vacate(number)
        self._fenced.discard(number)
        node = world.core.state.nodes.get(node_id(number))
        if node is None or node.node not in world.core.participants:
            world.supply.send_to_repair(number, fault)
            return
        world.accused[number] = fault
        ended = e.WorkerExited(
            node=node.node, incarnation=node.incarnation, job=JOB, reason="fault"
        )
        world.core.submit(ended)

    def ends(self) -> None:
        """The job runs again."""
        self.under_way = False
        self._fenced.clear()

    def _comes_back(self, number: int) -> None:
        if self.world.plant.is_whole(number):
            self.world.core.join(number, self.world.plant.incarnation(number))

    def _has_loaded(self) -> None:
        self._loaded = True

    def launch_if_ready(self) -> None:
        """Put the job back, without a record of any holder, once there is a machine per slot."""
        if not self.under_way or not self._loaded or self.world.explicit:
            return
        world, state = self.world, self.world.core.state
        free = [name for name in sorted(state.pool) if state.nodes[name].worker is not None]
        if len(free) < len(world.broken):
            return  # whoever is delivered next wakes us
        for slot, name in zip(sorted(world.broken), free, strict=False):
            number = number_of(name)
            gone = e.NodeLeft(
                node=name, incarnation=state.nodes[name].incarnation, reason="takes a slot"
            )
            world.core.submit(gone, name)
            world.core.part(number)
            world.plant.machine(number).incarnation += 1
            world.plant.seat(slot, number)
            self._fenced.add(number)
        world.broken.clear()
        world.core.relaunch_implicit([node_id(number) for number in sorted(self._fenced)])
        for number in sorted(self._fenced):
            world.quarantine.seated(number)
        self.ends()
        world.pace_changed()
        world.meter.resume()
