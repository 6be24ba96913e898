"""Where a world begins, when two are the same, and what must hold when nothing more can happen."""

from __future__ import annotations

from msgspec.structs import replace

from statemachine import events as e
from statemachine import messages as m
from statemachine import participant as p
from statemachine.codec import encode_event
from statemachine.ids import NodeId, Slot
from statemachine.lifecycle import NodeState, Phase
from statemachine.state import FleetState
from tests.properties.moves import moves
from tests.properties.world import (
    BEGIN_MS,
    JOB,
    ONE,
    STEP,
    Impossible,
    Machine,
    Process,
    World,
    record,
    state_fact,
)


def begin(slots: int, standbys: int, kills: int) -> World:
    """A job that trains in epoch 1, every standby warm."""
    names = [NodeId(f"n{number}") for number in range(slots + standbys)]
    agent = {name: p.Participant(node=name, incarnation=ONE, job=JOB) for name in names}
    machines = tuple(
        (name, Machine(alive=True, agent=agent[name], process=Process())) for name in names
    )
    world = World(fleet=FleetState(), now_ms=BEGIN_MS, machines=machines, kills=0)
    world = record(world, e.JobDeclared(job=JOB, axes={"dp": slots}))
    for name in names:
        world = record(world, e.NodeJoined(node=name, incarnation=ONE, host="h", probe_port=9))
    for name in names:
        ready = m.Ready(pid=1, host="h", port=1, transfer_port=2, digest="code", state_bytes=8)
        world = state_fact(world, name, p.on_message(agent[name], ready))
    world = run(world)
    trained = tuple(
        (name, replace(mc, process=replace(mc.process, applied=STEP)) if mc.process.seat else mc)
        for name, mc in world.machines
    )
    return replace(world, machines=trained, kills=kills, vote=(0, None), boundary=0)


def run(world: World, limit: int = 2000) -> World:
    """Let whatever may happen first happen first, without further kills, until nothing does."""
    world = replace(world, kills=0)
    for _ in range(limit):
        move = next(moves(world), None)
        if move is None:
            return world
        world = move[1]
    raise Impossible("the world does not come to rest")


def holders(world: World) -> dict[Slot, NodeId]:
    """Who trains where, by the processes themselves."""
    found = {}
    for name, machine in world.machines:
        seat = machine.process.seat
        if machine.alive and machine.process.trains and seat is not None:
            found[Slot(seat[1])] = name
    return found


def problem_at_rest(world: World) -> str:
    """Why a world in which nothing more can happen is not where it should be; else empty."""
    job = world.job
    live = [name for name, machine in world.machines if machine.alive]
    out = (NodeState.LOST, NodeState.DRAINED, NodeState.LEAVING)
    fit = [name for name in live if world.fleet.nodes[name].state not in out]
    if job.stalled:
        held = [n for n in live if world.machine(n).process.has_state]
        return f"stalled, and {held} hold the state" if held else ""
    if len(fit) < job.layout.slot_count:
        return ""  # it waits for a node
    if job.pending is not None or job.vacant or job.unproven:
        return "work is left"
    by_processes = holders(world)
    by_fold = {slot: job.holders[slot] for slot in sorted(job.holders)}
    if by_processes != by_fold:
        return f"trains as {by_processes}, and the fold says {by_fold}"
    epochs = {world.machine(name).process.seat for name in by_fold.values()}
    if {seat[0] for seat in epochs if seat is not None} != {int(job.epoch)}:
        return f"trains at {epochs}, and the fold says {job.epoch}"
    applied = {world.machine(name).process.applied for name in by_fold.values()}
    if len(applied) != 1:
        return f"members have applied {applied}"
    return _loiterers(world, set(by_fold.values()))


def _loiterers(world: World, active: set[NodeId]) -> str:
    for name, machine in world.machines:
        if not machine.alive or name in active or world.fleet.current(name, ONE) is None:
            continue
        if machine.process.seat is not None or machine.process.giving or machine.process.orders:
            return f"{name} holds no slot, and its process is at {machine.process}"
        if world.fleet.nodes[name].state is NodeState.LEAVING:
            return f"{name} leaves for ever"
    return ""


def key(world: World) -> object:
    """All that matters for what may happen next; positions, reasons and times do not."""
    job, fleet = world.job, world.fleet
    pending = job.pending
    about = None
    if pending is not None:
        about = (
            pending.plan.transition,
            pending.phase,
            pending.plan.motive,
            pending.plan.changes,
            tuple(sorted((n, a.report) for n, a in pending.prepared.items()))
            if pending.phase is Phase.PREPARING
            else (pending.committed.resume_step if pending.committed else 0),
            tuple(sorted(pending.applied)),
            pending.gone,
            pending.committed.handovers if pending.committed is not None else (),
            pending.committed.apply if pending.committed is not None else (),
        )
    nodes = tuple(_node_key(world, name) for name in sorted(fleet.nodes))
    machines = tuple(
        (
            mc.alive,
            tuple(encode_event(event) for event in mc.inbox),
            mc.reported,
            mc.epochs,
            mc.process,
            _agent_key(mc.agent),
            mc.seen == fleet.position,
        )
        for _, mc in world.machines
    )
    return (
        job.epoch,
        job.last_transition,
        tuple(sorted(job.holders.items())),
        tuple(sorted(job.vacant)),
        tuple(sorted(job.unproven)),
        bool(job.stalled),
        job.began,
        about,
        nodes,
        machines,
        world.kills,
        world.vote,
        world.boundary,
        world.now_ms,
    )


def _agent_key(agent: p.Participant) -> object:
    pending = agent.pending
    return (
        agent.epoch,
        agent.slot,
        None if pending is None else (pending.transition, pending.phase),
        agent.told_prepare,
        agent.told_commit,
        agent.acked,
        agent.member,
        agent.rehearsing,
    )


def _node_key(world: World, name: NodeId) -> object:
    node = world.fleet.nodes[name]
    return (
        node.state,
        node.slot,
        tuple(sorted((said.by, said.kind) for said in node.accusations)),
        node.wanted_out,
        tuple((r.role, r.warmth) for r in node.rehearsals),
        node.blocked,
        node.promotions,
    )
