"""What may happen next in a world, and the world after it.

What belongs here: the environment (delivery, death, patience) and the model of a training process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from msgspec.structs import replace

from statemachine import events as e
from statemachine import messages as m
from statemachine import participant as p
from statemachine.decide import next_deadline
from statemachine.ids import GroupName, NodeId
from statemachine.topology import desired_of, orders_of
from tests.properties.world import (
    ONE,
    Impossible,
    Machine,
    Process,
    World,
    record,
    state_fact,
)

Move: TypeAlias = "tuple[str, World]"


def moves(world: World) -> Iterator[Move]:
    """Everything that may happen next, with the world after it."""
    quiet = True
    for name, machine in world.machines:
        if machine.inbox:
            quiet = False
            yield f"deliver {name}", _deliver(world, name, machine)
        if not machine.alive:
            continue
        for what, after in _moves_of(world, name, machine):
            quiet = False
            yield f"{what} {name}", after
        if world.kills:
            yield f"kill {name}", _kill(world, name, machine)
    if quiet:
        yield from _patience(world)


def _deliver(world: World, name: NodeId, machine: Machine) -> World:
    event, rest = machine.inbox[0], machine.inbox[1:]
    return record(world.put(name, replace(machine, inbox=rest)), event)


def _kill(world: World, name: NodeId, machine: Machine) -> World:
    return replace(world.put(name, replace(machine, alive=False)), kills=world.kills - 1)


def _patience(world: World) -> Iterator[Move]:
    """Nothing else can happen: the dead are missed by their leases, then a deadline passes."""
    for name, machine in world.machines:
        if not machine.alive and world.fleet.current(name, ONE) is not None:
            yield f"expire {name}", record(world, e.LeaseExpired(node=name, incarnation=ONE))
            return
    due_ms = next_deadline(world.fleet, world.now_ms, world.fleet.policy)
    if due_ms is not None:
        after = record(replace(world, now_ms=due_ms))
        if after.fleet.position > world.fleet.position:
            yield "wait", after


def _moves_of(world: World, name: NodeId, machine: Machine) -> Iterator[Move]:
    process = machine.process
    if machine.seen < world.fleet.position:
        after = _observe(world, name, machine)
        if after.machine(name) != replace(machine, seen=world.fleet.position):
            yield "observe", after
    for peer in process.peers:
        dead = not world.machine(peer).alive
        if dead and peer not in machine.reported and world.fleet.current(peer, ONE) is not None:
            yield f"report {peer}", _report(world, name, machine, peer)
    if process.trains and _may_break(world, process):
        yield from _break(world, name, machine)
    if _may_answer(world, process):
        yield "answer", _answer(world, name, machine)
    if _may_pass_boundary(world, process):
        yield "boundary", _pass_boundary(world, name, machine)
    order = _next_order(process)
    if order is not None:
        yield f"obey {type(order).__name__}", _obey(world, name, machine, order)
    if process.receiving is not None:
        yield from _receive(world, name, machine, process.receiving)
    if process.giving is not None and process.interrupted:
        yield "stop giving", _leave(world, name, process.giving, keeps=True)
    elif process.giving is not None and _has_given(world, process.giving):
        yield "gave", _leave(world, name, process.giving, keeps=False)


def _observe(world: World, name: NodeId, machine: Machine) -> World:
    world = world.put(name, replace(machine, seen=world.fleet.position))
    world = state_fact(world, name, p.on_desired(machine.agent, desired_of(world.fleet, world.job)))
    orders = orders_of(world.fleet, world.fleet.nodes[name])
    return state_fact(world, name, p.on_orders(world.machine(name).agent, orders))


def _report(world: World, name: NodeId, machine: Machine, peer: NodeId) -> World:
    machine = replace(machine, reported=machine.reported | {peer})
    gone = m.PeerGone(
        peer=peer,
        peer_incarnation=ONE,
        group=GroupName("dp[0]"),
        epoch=machine.agent.epoch,
        step=machine.process.applied + 1,
    )
    return state_fact(world.put(name, machine), name, p.on_message(machine.agent, gone))


# --- a step and its end -----------------------------------------------------------------------


def _may_break(world: World, process: Process) -> bool:
    """A group breaks when a peer died or abandoned it, or when this process is told to."""
    if process.broken or process.seat is None:
        return process.broken
    return any(_has_left(world.machine(peer), process.seat[0]) for peer in process.peers)


def _has_left(peer: Machine, epoch: int) -> bool:
    """Whether a peer is dead to the groups of an epoch: gone, broken, or told of a later loss."""
    process = peer.process
    if not peer.alive:
        return True
    if process.seat is not None and process.seat[0] == epoch and process.broken:
        return True
    prepare = process.prepare
    if prepare is None or prepare.motive is not e.Motive.UNPLANNED:
        return False
    return prepare.epoch > epoch


def _break(world: World, name: NodeId, machine: Machine) -> Iterator[Move]:
    """Park with one of the reports that the vote allows."""
    process = machine.process
    assert process.seat is not None
    epoch = process.seat[0]
    passed = world.vote[1] if world.vote[0] == epoch else None
    step = process.applied + 1
    parked = replace(process, parked=True, broken=True, pending=-1)

    def after(process: Process, passed: bool | None) -> World:
        return replace(world, vote=(epoch, passed)).put(name, replace(machine, process=process))

    if passed is not True:
        yield "park without gradients", after(parked, passed=False)
    if not all(epoch in world.machine(peer).epochs for peer in process.peers):
        return  # no collective of this epoch ever ended
    yield "park with gradients", after(replace(parked, pending=step), passed)
    if passed is not False:
        yield "park after the vote", after(replace(parked, applied=step), passed=True)


def _may_pass_boundary(world: World, process: Process) -> bool:
    order = _planned(process)
    if order is None or not process.trains or process.broken:
        return False
    if world.boundary == order.transition:
        return True
    assert process.seat is not None
    if world.vote == (process.seat[0], False):
        return False
    return all(
        _votes_for(world.machine(peer), process.seat[0], order.transition) for peer in process.peers
    )


def _planned(process: Process) -> m.Commit | None:
    for order in process.orders:
        if isinstance(order, m.Commit) and order.motive is e.Motive.PLANNED:
            return order
    return None


def _votes_for(machine: Machine, epoch: int, transition: int) -> bool:
    process = machine.process
    order = _planned(process)
    if not machine.alive or not process.trains or process.broken or process.seat is None:
        return False
    return process.seat[0] == epoch and order is not None and order.transition == transition


def _pass_boundary(world: World, name: NodeId, machine: Machine) -> World:
    process, order = machine.process, _planned(machine.process)
    assert order is not None
    assert process.seat is not None
    world = replace(world, boundary=order.transition, vote=(process.seat[0], True))
    process = replace(
        process,
        applied=process.applied + 1,
        orders=tuple(o for o in process.orders if o is not order),
    )
    if order.leave:
        return world.put(name, replace(machine, process=replace(process, giving=order)))
    return _take_seat(world, name, replace(machine, process=process), order)


# --- orders -----------------------------------------------------------------------------------


def _may_answer(world: World, process: Process) -> bool:
    """Links need a live process at the other end; after a loss the answer needs a parked one."""
    prepare = process.prepare
    if prepare is None or process.answered or process.receiving is not None:
        return False
    if prepare.motive is not e.Motive.PLANNED and _is_released(process):
        return False
    if prepare.slot >= 0 and not all(world.machine(h.node).alive for h in prepare.members):
        return False
    return prepare.motive is e.Motive.PLANNED or process.parked or process.seat is None


def _is_released(process: Process) -> bool:
    """Whether it is told to leave and did not yet: what it says of its state would not hold."""
    return any(isinstance(order, m.Release) for order in process.orders)


def _answer(world: World, name: NodeId, machine: Machine) -> World:
    process = machine.process
    prepare = process.prepare
    assert prepare is not None
    report = None
    if prepare.motive is not e.Motive.PLANNED:
        report = e.Report(has_state=False)
        if process.has_state:
            report = e.Report(has_state=True, applied=process.applied, pending=process.pending)
    said = m.Prepared(transition=prepare.transition, links_opened=1, took_ms=1.0, report=report)
    machine = replace(machine, process=replace(process, answered=True))
    return state_fact(world.put(name, machine), name, p.on_message(machine.agent, said))


def _next_order(process: Process) -> m.ToWorker | None:
    """As `Control.park`: who holds a slot leaves a planned commit for the vote."""
    if process.receiving is not None or process.giving is not None:
        return None
    if process.seat is not None and not process.parked:
        return None
    for order in process.orders:
        planned = isinstance(order, m.Commit) and order.motive is e.Motive.PLANNED
        if not (planned and process.seat is not None):
            return order
    return None


def _obey(world: World, name: NodeId, machine: Machine, order: m.ToWorker) -> World:
    process = machine.process
    orders = tuple(o for o in process.orders if o is not order)
    process = replace(process, orders=orders)
    match order:
        case m.Commit():
            if order.leave:
                process = _applied_now(name, replace(process, interrupted=False), order)
                machine = replace(machine, process=replace(process, giving=order))
                return world.put(name, machine)
            return _commit(world, name, replace(machine, process=process), order)
        case m.Release():
            left = Process(orders=orders, prepare=process.prepare, answered=process.answered)
            return world.put(name, replace(machine, process=left))
        case m.Rehearse():
            said = m.Rehearsed(job=order.job, role=order.role, digest="code")
            machine = replace(machine, process=process)
            return state_fact(world.put(name, machine), name, p.on_message(machine.agent, said))
        case _:
            raise Impossible(f"{name} is told {order}")


def _commit(world: World, name: NodeId, machine: Machine, order: m.Commit) -> World:
    process = machine.process
    prepare = process.prepare
    if prepare is None or prepare.transition != order.transition:
        return world.put(name, machine)  # as in the loop: there is no seat for it
    process = replace(process, interrupted=False)
    if order.receive is not None:
        process = replace(process, has_state=False, receiving=order, parked=False)
        return world.put(name, replace(machine, process=process))
    process = _applied_now(name, process, order)
    if order.resume_step == 0 and not process.has_state:
        process = replace(process, has_state=True, applied=-1)
    return _take_seat(world, name, replace(machine, process=process), order)


def _applied_now(name: NodeId, process: Process, order: m.Commit) -> Process:
    """Apply the step whose gradients this process holds, if it is told to."""
    if not order.apply:
        return process
    if process.pending != order.resume_step - 1:
        raise Impossible(f"{name} shall apply {order.resume_step - 1}, holds {process.pending}")
    return replace(process, applied=process.pending, pending=-1)


def _take_seat(world: World, name: NodeId, machine: Machine, order: m.Commit) -> World:
    process = machine.process
    prepare = process.prepare
    if prepare is None or prepare.transition != order.transition:
        raise Impossible(f"{name} takes a seat of t{order.transition} that it did not prepare")
    if not process.has_state:
        raise Impossible(f"{name} takes a seat without state")
    if order.resume_step >= 0 and process.applied != order.resume_step - 1:
        raise Impossible(f"{name} resumes {order.resume_step} with {process.applied} applied")
    seat = (int(order.epoch), int(prepare.slot))
    for other, machine_of in world.machines:
        held = machine_of.process.seat
        if other != name and machine_of.alive and held == seat:
            raise Impossible(f"{name} and {other} both train in {seat}")
    process = Process(
        seat=seat,
        peers=tuple(h.node for h in prepare.members if h.node != name),
        has_state=True,
        applied=process.applied,
        prepare=prepare,
        answered=process.answered,
        orders=process.orders,
    )
    said = m.Applied(transition=order.transition, epoch=order.epoch, step=process.applied + 1)
    machine = replace(machine, process=process, epochs=machine.epochs | {seat[0]})
    return state_fact(world.put(name, machine), name, p.on_message(machine.agent, said))


def _receive(world: World, name: NodeId, machine: Machine, order: m.Commit) -> Iterator[Move]:
    process = machine.process
    stopped = replace(process, receiving=None)
    if process.interrupted:
        yield "give up receiving", world.put(name, replace(machine, process=stopped))
        return
    if all(not world.machine(source.node).alive for source in order.sources):
        yield "fail to receive", world.put(name, replace(machine, process=stopped))
    for source in order.sources:
        giver = world.machine(source.node)
        if giver.alive and _offers(giver.process, order):
            got = replace(stopped, has_state=True, applied=giver.process.applied)
            after = world.put(name, replace(machine, process=got))
            yield f"receive from {source.node}", _take_seat(after, name, after.machine(name), order)


def _offers(giver: Process, order: m.Commit) -> bool:
    if giver.giving is not None:
        return giver.giving.transition == order.transition and giver.has_state
    return giver.seat is not None and giver.seat[0] == order.epoch and giver.has_state


def _has_given(world: World, order: m.Commit) -> bool:
    """A leaver waits until its joiner has the state, or can never have it."""
    for holder in order.send:
        joiner = world.machine(holder.node)
        waits = joiner.process.receiving is not None or _is_ahead(joiner, order)
        if joiner.alive and waits:
            return False
    return True


def _is_ahead(joiner: Machine, order: m.Commit) -> bool:
    """Whether a joiner has yet to obey the commit that sends it here."""
    known = joiner.process.prepare
    if known is None or known.transition != order.transition:
        return False
    seat = joiner.process.seat
    return seat is None or seat[0] < order.epoch


def _leave(world: World, name: NodeId, order: m.Commit, *, keeps: bool) -> World:
    """Leave the groups; who was interrupted keeps the state, perhaps nobody else has it."""
    machine = world.machine(name)
    process = machine.process
    left = Process(orders=process.orders, prepare=process.prepare, answered=process.answered)
    if keeps:
        left = replace(left, has_state=process.has_state, applied=process.applied)
    machine = replace(machine, process=left)
    if keeps:
        return world.put(name, machine)
    said = m.Applied(transition=order.transition, epoch=order.epoch, step=0)
    return state_fact(world.put(name, machine), name, p.on_message(machine.agent, said))
