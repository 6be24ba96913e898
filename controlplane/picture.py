"""The fleet at one moment, as an operator sees it: fold, leader and vitals brought together.

What belongs here: what is worth showing, as plain values ready for JSON; and keeping it up to date
while the log grows. How it is laid out on a terminal is `cli.tables`; no rule of the state machine
is repeated here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from msgspec import Struct

from controlplane.eventlog import EventLog, VitalsItem
from controlplane.folding import fold_to_head
from statemachine.errors import CodecError
from statemachine.events import Recorded
from statemachine.evolve import evolve
from statemachine.evolve_jobs import holder_of
from statemachine.ids import NodeId, Position, Slot
from statemachine.lifecycle import NodeState, Phase, Warmth
from statemachine.state import FleetState, Job, Node, Transition
from statemachine.vitals import STEP_MS, WAIT_MS, WORK_MS, Vitals, decode_vitals

AWAY = (NodeState.LOST, NodeState.GONE)


class Picture(Struct, frozen=True, kw_only=True):
    """What was read: the fold, who leads, and the last window of each node."""

    fleet: str
    state: FleetState
    leader: tuple[str, int] | None
    vitals: Mapping[NodeId, Vitals]


async def fold_log(log: EventLog, state: FleetState | None = None) -> FleetState:
    """Fold the log up to its head: from its newest snapshot, or on from a state.

    Raises:
        Archived, LogCorrupt, StoreUnavailable.
    """
    if state is None:
        return (await fold_to_head(log)).image.state
    async for entries in log.read_entries(Position(state.position + 1)):
        for entry in entries:
            state = evolve(state, entry.recorded())
    return state


async def look(log: EventLog) -> Picture:
    """Read a picture of the fleet as it is now."""
    state = await fold_log(log)
    vitals = readable(await log.vitals())
    return Picture(fleet=log.fleet, state=state, leader=await log.leader(), vitals=vitals)


def readable(items: Sequence[VitalsItem]) -> dict[NodeId, Vitals]:
    """Vitals by node, without those that do not decode."""
    found = {}
    for item in items:
        try:
            found[item.node] = decode_vitals(item.value)
        except CodecError:
            continue
    return found


class Watcher:
    """A picture that follows the fleet. `changed` is set anew whenever something differs."""

    def __init__(self, log: EventLog, picture: Picture) -> None:
        self.picture = picture
        self.listeners: list[Callable[[Recorded, FleetState], None]] = []
        """Told of each entry and the state after it. Must not block or raise."""
        self._log = log
        self._changed = anyio.Event()

    async def wait(self) -> None:
        """Wait until the picture differs from the last time this returned."""
        await self._changed.wait()
        self._changed = anyio.Event()

    def _show(self, **news: Any) -> None:
        fields = {name: getattr(self.picture, name) for name in Picture.__struct_fields__}
        self.picture = Picture(**(fields | news))
        self._changed.set()

    async def follow_log(self) -> None:
        """Fold as the log grows, until cancelled."""
        start = Position(self.picture.state.position + 1)
        async with self._log.follow(start) as entries:
            async for recorded in entries:
                state = evolve(self.picture.state, recorded)
                for listener in self.listeners:
                    listener(recorded, state)
                self._show(state=state, leader=(state.controller, state.term))

    async def follow_vitals(self) -> None:
        """Take in windows as they come, until cancelled."""
        async with self._log.watch_vitals() as view:
            async for delta in view:
                gone = {item.node for item in delta.removed}
                kept = {n: each for n, each in self.picture.vitals.items() if n not in gone}
                self._show(vitals=kept | readable(delta.updated))


@asynccontextmanager
async def watching(log: EventLog) -> AsyncIterator[Watcher]:
    """Keep a picture for as long as the body runs."""
    watcher = Watcher(log, await look(log))
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.follow_log)
        group.start_soon(watcher.follow_vitals)
        yield watcher
        group.cancel_scope.cancel()


# --- plain values -----------------------------------------------------------------------------


def as_values(picture: Picture, now_ms: int) -> dict[str, Any]:
    """Everything `status` shows, as JSON values; durations in seconds, unknown ones null."""
    state = picture.state
    nodes = [state.nodes[name] for name in sorted(state.nodes)]
    present = [node for node in nodes if node.state not in AWAY]
    return {
        "fleet": picture.fleet,
        "position": state.position,
        "leader": picture.leader[0] if picture.leader else None,
        "term": picture.leader[1] if picture.leader else None,
        "paused_by": state.paused_by or None,
        "policy_version": state.policy_version,
        "unknown_events": len(state.unknown_tags),
        "nodes_by_state": _by_state(nodes),
        "jobs": [_job(picture, state.jobs[name], now_ms) for name in sorted(state.jobs)],
        "nodes": [node_values(picture, node, now_ms) for node in nodes],
        "verdicts": [_verdict(node, now_ms) for node in present if node.verdict is not None],
        "sweeps": [_sweep(state, number, now_ms) for number in sorted(state.sweeps)],
    }


def _by_state(nodes: Sequence[Node]) -> dict[str, int]:
    counts = {state.value: 0 for state in NodeState}
    for node in nodes:
        counts[node.state] += 1
    return {name: count for name, count in counts.items() if count}


def _since_s(now_ms: int, at_ms: int) -> float:
    return round(max(0, now_ms - at_ms) / 1000, 1)


def _job(picture: Picture, job: Job, now_ms: int) -> dict[str, Any]:
    seen = [
        vitals
        for slot in range(job.layout.slot_count)
        if (vitals := _vitals_of(picture, holder_of(picture.state, job, Slot(slot)))) is not None
    ]
    last = max(seen, key=lambda vitals: vitals.last_step, default=None)
    return {
        "job": job.job,
        "axes": job.declared.axes,
        "epoch": job.epoch,
        "state": _job_state(job),
        "steps": job.declared.steps,
        "step": last.last_step if last is not None else None,
        "loss": last.loss if last is not None else None,
        "vacant": sorted(job.vacant),
        "slots": [_slot(picture, job, Slot(slot)) for slot in range(job.layout.slot_count)],
        "standbys": [
            name
            for name in sorted(picture.state.pool)
            if picture.state.nodes[name].job == job.job
            and picture.state.nodes[name].state is NodeState.STANDBY
        ],
        "stalled": job.stalled,
        "pending": _pending(job.pending, now_ms) if job.pending is not None else None,
    }


def _job_state(job: Job) -> str:
    if job.finished:
        return "finished"
    if not job.launched:
        return "waiting to launch"
    return "running" if not job.vacant else "parked"


def _slot(picture: Picture, job: Job, slot: Slot) -> dict[str, Any]:
    node = holder_of(picture.state, job, slot)
    vitals = _vitals_of(picture, node)
    return {
        "slot": slot,
        "role": job.layout.role_of(slot),
        "node": node.node if node is not None else None,
        "incarnation": node.incarnation if node is not None else None,
        **_vital_numbers(vitals),
    }


def _vitals_of(picture: Picture, node: Node | None) -> Vitals | None:
    vitals = picture.vitals.get(node.node) if node is not None else None
    if vitals is None or node is None or vitals.incarnation != node.incarnation:
        return None
    return vitals


def _vital_numbers(vitals: Vitals | None) -> dict[str, Any]:
    if vitals is None:
        return dict.fromkeys(("step", "loss", "work_ms", "wait_ms", "step_ms"))
    numbers: dict[str, Any] = {"step": vitals.last_step, "loss": vitals.loss}
    for name in (WORK_MS, WAIT_MS, STEP_MS):
        metric = vitals.measured(name)
        numbers[name] = round(metric.p50, 3) if metric is not None else None
    return numbers


def _pending(pending: Transition, now_ms: int) -> dict[str, Any]:
    plan, commit = pending.plan, pending.committed
    preparing = pending.phase is Phase.PREPARING or commit is None
    began_at_ms = pending.planned_at_ms if preparing else pending.committed_at_ms
    deadline_at_ms = plan.deadline_at_ms if commit is None else commit.deadline_at_ms
    return {
        "transition": plan.transition,
        "motive": plan.motive,
        "phase": pending.phase,
        "since_s": _since_s(now_ms, began_at_ms),
        "deadline_s": round((deadline_at_ms - began_at_ms) / 1000, 1),
        "awaited": list(pending.awaited()),
        "changes": [
            {"slot": c.slot, "joiner": c.joiner, "leaver": c.leaver or None} for c in plan.changes
        ],
        "refused": [{"node": r.node, "reason": r.reason} for r in pending.refused],
        "reason": plan.reason,
    }


def node_values(picture: Picture, node: Node, now_ms: int) -> dict[str, Any]:
    """What `nodes` shows of one."""
    return {
        "node": node.node,
        "incarnation": node.incarnation,
        "state": node.state,
        "since_s": _since_s(now_ms, node.since_at_ms),
        "job": node.job or None,
        "slot": node.slot if node.slot >= 0 else None,
        "warm": sorted(r.role for r in node.rehearsals if r.warmth is Warmth.WARM),
        "verdict": node.verdict.verdict if node.verdict is not None else None,
        "wanted_out": f"{node.wanted_out} by {node.wanted_out_by}" if node.wanted_out else None,
        "quarantine": node.quarantine or None,
        "promotions": node.promotions,
        "certified": node.certificate is not None,
        "host": node.host,
        "hardware": node.hardware,
        **_vital_numbers(_vitals_of(picture, node)),
    }


def _verdict(node: Node, now_ms: int) -> dict[str, Any]:
    verdict = node.verdict
    assert verdict is not None
    expires_s = round((verdict.expires_at_ms - now_ms) / 1000, 1) if verdict.expires_at_ms else None
    return {
        "node": node.node,
        "incarnation": node.incarnation,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "position": node.verdict_position,
        "expires_s": expires_s,
    }


def _sweep(state: FleetState, number: int, now_ms: int) -> dict[str, Any]:
    sweep = next(sweep for key, sweep in state.sweeps.items() if key == number)
    done = [finished.round for finished in sweep.rounds]
    return {
        "sweep": number,
        "node": sweep.request.node,
        "partner": sweep.request.partner or None,
        "since_s": _since_s(now_ms, sweep.started_at_ms),
        "done": done,
        "open": [name for name in sweep.request.rounds if name not in done],
        "reason": sweep.request.reason,
    }
